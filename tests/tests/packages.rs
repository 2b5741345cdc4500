//! Checks the licences and sources of all packages that a build of the workspace uses, on any
//! platform, against `deny.toml`. `.ci/dependencies` does the same with `cargo deny`, which must be
//! installed first. This test needs only cargo.

use std::collections::BTreeMap;
use std::fs;

use cargo_metadata::MetadataCommand;
use pantala_tests::binary::workspace_root;

/// Strings of a TOML file, by section and key. A value is a single string or an array of strings.
type Strings = BTreeMap<(String, String), Vec<String>>;

/// Reads the strings of a TOML file. Supports only the syntax that `deny.toml` uses: sections,
/// comments, single strings, and arrays of strings, which may extend over several lines.
fn strings(text: &str) -> Strings {
    let mut found = Strings::new();
    let (mut section, mut key, mut is_in_array) = (String::new(), String::new(), false);
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let mut values = line;
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).filter(|_| !is_in_array) {
            name.clone_into(&mut section);
            continue;
        }
        if !is_in_array && let Some((name, rest)) = line.split_once('=') {
            name.trim().clone_into(&mut key);
            values = rest.trim();
            is_in_array = values.starts_with('[');
        }
        // Every second part is between quotes.
        let quoted = values.split('"').skip(1).step_by(2).map(str::to_owned);
        found.entry((section.clone(), key.clone())).or_default().extend(quoted);
        is_in_array &= !values.ends_with(']');
    }
    found
}

/// The licences that `deny.toml` allows. There is no field for sources, because `read` asserts that
/// only the default registry and the directories of this repository are allowed.
struct Rules {
    licences: Vec<String>,
}

impl Rules {
    fn read() -> Rules {
        let path = workspace_root().join("deny.toml");
        let mut found = strings(&fs::read_to_string(path).expect("deny.toml is readable"));
        let mut of = |section: &str, key: &str| found.remove(&(section.to_owned(), key.to_owned())).unwrap_or_default();
        for key in ["unknown-registry", "unknown-git"] {
            assert_eq!(of("sources", key), ["deny"], "{key}");
        }
        for (section, key) in [("sources", "allow-git"), ("sources", "allow-registry"), ("licenses", "exceptions")] {
            assert!(of(section, key).is_empty(), "this test does not understand {key}");
        }
        Rules { licences: of("licenses", "allow") }
    }

    /// Returns the reason why a package is not allowed, or `None` if the package is allowed.
    /// `source` is `None` for a package from the default registry or from a directory.
    fn objection(&self, licence: Option<&str>, source: Option<&str>) -> Option<String> {
        let Some(licence) = licence else { return Some("it has no licence".to_owned()) };
        match Expression::parse(licence).map(|expression| expression.is_allowed(&self.licences)) {
            Some(true) => {}
            Some(false) => return Some(format!("its licence is {licence}")),
            None => return Some(format!("its licence is not understood: {licence}")),
        }
        source.map(|source| format!("its source is {source}"))
    }
}

/// An SPDX licence expression.
#[derive(Debug)]
enum Expression {
    Licence(String),
    Any(Vec<Expression>),
    All(Vec<Expression>),
}

impl Expression {
    /// Parses an expression. `A/B` is an old form of `A OR B`. Returns `None` for any other text.
    fn parse(text: &str) -> Option<Expression> {
        let text = text.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
        let mut words: Vec<&str> = text.split_whitespace().rev().collect();
        let parsed = Expression::any(&mut words)?;
        words.is_empty().then_some(parsed)
    }

    /// Parses alternatives. `words` is in reverse order.
    fn any(words: &mut Vec<&str>) -> Option<Expression> {
        let mut parts = vec![Expression::all(words)?];
        while words.pop_if(|word| *word == "OR").is_some() {
            parts.push(Expression::all(words)?);
        }
        Some(Expression::Any(parts))
    }

    fn all(words: &mut Vec<&str>) -> Option<Expression> {
        let mut parts = vec![Expression::one(words)?];
        while words.pop_if(|word| *word == "AND").is_some() {
            parts.push(Expression::one(words)?);
        }
        Some(Expression::All(parts))
    }

    fn one(words: &mut Vec<&str>) -> Option<Expression> {
        match words.pop()? {
            "(" => {
                let inner = Expression::any(words)?;
                (words.pop()? == ")").then_some(inner)
            }
            ")" | "AND" | "OR" | "WITH" => None,
            name if words.pop_if(|word| *word == "WITH").is_some() => {
                Some(Expression::Licence(format!("{name} WITH {}", words.pop()?)))
            }
            name => Some(Expression::Licence(name.to_owned())),
        }
    }

    fn is_allowed(&self, allowed: &[String]) -> bool {
        match self {
            Expression::Licence(name) => allowed.contains(name),
            Expression::Any(parts) => parts.iter().any(|part| part.is_allowed(allowed)),
            Expression::All(parts) => parts.iter().all(|part| part.is_allowed(allowed)),
        }
    }
}

#[test]
fn packages_have_allowed_licences_and_sources() {
    let rules = Rules::read();
    let metadata = MetadataCommand::new()
        .manifest_path(workspace_root().join("Cargo.toml"))
        .exec()
        .expect("cargo metadata reads the workspace and its dependencies");
    assert!(metadata.packages.len() > metadata.workspace_members.len(), "there are dependencies");
    let objections: Vec<String> = metadata
        .packages
        .iter()
        .filter_map(|package| {
            let source = package.source.as_ref().filter(|source| !source.is_crates_io());
            let why = rules.objection(package.license.as_deref(), source.map(|source| source.repr.as_str()))?;
            Some(format!("{} {}: {why}", package.name, package.version))
        })
        .collect();
    assert!(objections.is_empty(), "deny.toml does not allow these packages:\n{}", objections.join("\n"));
}

#[test]
fn packages_with_other_licences_and_sources_are_rejected() {
    let rules = Rules::read();
    for licence in ["MIT", "GPL-3.0-only OR MIT", "MIT AND (GPL-2.0/Zlib)", "Apache-2.0 WITH LLVM-exception AND ISC"] {
        assert_eq!(rules.objection(Some(licence), None), None, "{licence}");
    }
    for licence in [
        "GPL-3.0-only",
        "MIT AND GPL-3.0-only",
        "(MIT OR ISC) AND SSPL-1.0",
        "MIT WITH LLVM-exception",
        "MIT OR",
        "MIT ISC",
        "(MIT",
        "AND",
        "",
    ] {
        assert!(rules.objection(Some(licence), None).is_some(), "{licence}");
    }
    assert!(rules.objection(None, None).is_some());
    for source in ["git+https://github.com/rust-lang/libc", "registry+https://example.com/index"] {
        assert!(rules.objection(Some("MIT"), Some(source)).is_some(), "{source}");
    }
}

#[test]
fn strings_of_toml_are_read() {
    let text = "[a]\nx = \"1\" # \"no\"\ny = [\n    \"2\",\n    \"3\",\n]\n[b]\nx = [\"4\", \"5\"]\nz = true\n";
    let found = strings(text);
    let of = |section: &str, key: &str| found[&(section.to_owned(), key.to_owned())].clone();
    assert_eq!(of("a", "x"), ["1"]);
    assert_eq!(of("a", "y"), ["2", "3"]);
    assert_eq!(of("b", "x"), ["4", "5"]);
    assert!(of("b", "z").is_empty());
}
