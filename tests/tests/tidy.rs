//! Rules of the source tree that lints don't check.

use std::collections::BTreeMap;
use std::path::Path;

use pantala_tests::binary::workspace_root;
use pantala_tests::tidy::{self, prose};

/// Maximum number of lines of a Rust file, including tests.
const LINES_MAX: usize = 1000;

/// Number of violations that a directory may still have, by rule. **A budget only decreases:**
/// lower it after rewriting a directory, and never raise it. A directory without an entry has no
/// budget.
///
/// `cargo test -p pantala-tests --test structure tidy:: -- --nocapture` prints the table with the
/// current numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Budget {
    /// Lines of prose of more than 100 columns.
    wide: usize,
    /// Idioms of [`prose::IDIOMS`].
    idioms: usize,
    /// Public functions whose doc comment doesn't start with a verb.
    verbs: usize,
    /// Source files of more than 600 lines.
    long: usize,
}

const BUDGETS: &[(&str, Budget)] = &[];

/// Returns the directory whose budget applies to a file: its crate, or the first directory of its
/// path.
fn folder(path: &Path) -> String {
    let mut parts = path.iter().map(|part| part.to_string_lossy());
    match (parts.next(), parts.next()) {
        (Some(first), Some(second)) if first == "crates" => format!("crates/{second}"),
        (Some(first), Some(_)) => first.into_owned(),
        _ => ".".to_owned(),
    }
}

/// Returns whether a file is a table of data, such as the records that describe commands. Such
/// files may be long.
fn is_data(path: &str) -> bool {
    path.contains("/records/") || path.contains("/config/table")
}

/// Returns whether a file contains only tests.
fn is_test(path: &str) -> bool {
    path.starts_with("tests/") || path.contains("/tests/") || path.ends_with("tests.rs") || path.ends_with("testing.rs")
}

#[test]
fn prose_keeps_its_rules() {
    let root = workspace_root();
    let mut counts: BTreeMap<String, Budget> = BTreeMap::new();
    let mut findings: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in tidy::files(&root) {
        let own = path.strip_prefix(&root).expect("a file in the workspace");
        let name = own.display().to_string();
        let is_rust = name.ends_with(".rs");
        if !is_rust && !name.ends_with(".md") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        let lines = if is_rust { prose::of_rust(&text) } else { prose::of_markdown(&text) };
        // This file lists the idioms, so it contains all of them.
        let idioms = if name.ends_with("tidy/prose.rs") { Vec::new() } else { prose::idioms(&lines) };
        let (wide, mut verbs, mut long) = (prose::too_wide(&lines), Vec::new(), Vec::new());
        if is_rust {
            verbs = prose::functions_without_verb(&text);
            let code = prose::lines_of_code(&text);
            if code > prose::LINES_MAX && !is_data(&name) && !is_test(&name) {
                long.push(format!("1: {code} lines of code, more than {}", prose::LINES_MAX));
            }
        }
        let count = counts.entry(folder(own)).or_default();
        count.wide += wide.len();
        count.idioms += idioms.len();
        count.verbs += verbs.len();
        count.long += long.len();
        let found = [wide, idioms, verbs, long].concat();
        findings.entry(folder(own)).or_default().extend(found.iter().map(|found| format!("{name}:{found}")));
    }
    let mut wrong = Vec::new();
    for (folder, count) in &counts {
        let budget = BUDGETS.iter().find(|(name, _)| name == folder).map(|(_, budget)| *budget).unwrap_or_default();
        let Budget { wide, idioms, verbs, long } = *count;
        if *count != Budget::default() {
            println!("    ({folder:?}, Budget {{ wide: {wide}, idioms: {idioms}, verbs: {verbs}, long: {long} }}),");
        }
        if wide > budget.wide || idioms > budget.idioms || verbs > budget.verbs || long > budget.long {
            wrong.push(format!("{folder}: {count:?}, allowed {budget:?}:\n{}", findings[folder].join("\n")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Every directory in the table exists. The budget of a directory that no longer exists would apply
/// to a later directory of the same name.
#[test]
fn budgets_name_existing_directories() {
    for (folder, budget) in BUDGETS {
        assert!(workspace_root().join(folder).is_dir() && *budget != Budget::default(), "{folder}: {budget:?}");
    }
}

#[test]
fn files_stay_small() {
    let mut wrong = Vec::new();
    for (path, text) in tidy::rust_files(&workspace_root()) {
        let path = path.display().to_string();
        let lines = text.lines().count();
        if lines > LINES_MAX && !is_data(&path) {
            wrong.push(format!("{path}: {lines} lines, more than {LINES_MAX}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Each machine chooses where packages come from, so the source tree names no registry's host.
#[test]
fn no_host_of_a_package_registry_is_named() {
    // The names are assembled from parts, so that this file doesn't contain them.
    let hosts = [
        ["crates", ".io"],
        ["pypi", ".org"],
        ["pythonhosted", ".org"],
        ["npmjs", ".org"],
        ["proxy.golang", ".org"],
        ["maven", ".org"],
        ["deb.debian", ".org"],
        ["static.rust-lang", ".org"],
        ["docker", ".io"],
    ]
    .map(|parts| parts.concat());
    let mut wrong = Vec::new();
    for path in tidy::files(&workspace_root()) {
        let Ok(bytes) = std::fs::read(&path) else { continue };
        let text = String::from_utf8_lossy(&bytes);
        for (number, line) in text.lines().enumerate() {
            if hosts.iter().any(|host| line.contains(host.as_str())) {
                wrong.push(format!("{}:{}: {line}", path.display(), number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Text files end with one line end. Rust code has no tabs. No line ends with a space.
#[test]
fn whitespace_is_tidy() {
    const KINDS: &[&str] = &["rs", "toml", "md", "conf", "yml"];
    let mut wrong = Vec::new();
    for path in tidy::files(&workspace_root()) {
        let kind = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        if !KINDS.contains(&kind) || text.is_empty() {
            continue;
        }
        let name = path.display();
        if !text.ends_with('\n') || text.ends_with("\n\n") {
            wrong.push(format!("{name}: must end in one line end"));
        }
        for (number, line) in text.lines().enumerate() {
            if line.ends_with([' ', '\t']) || (kind == "rs" && line.starts_with('\t')) {
                wrong.push(format!("{name}:{}: space at the end, or a tab", number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Code decides by a command's flags, not by its name. Only the table of commands and fault
/// injection compare names.
#[test]
fn commands_are_distinguished_by_flags() {
    const FOLDERS: [&str; 4] = ["crates/engine/src", "crates/scripting/src", "crates/server/src", "crates/session/src"];
    const COMPARISONS: [&str; 10] = [
        "command.name ==",
        "command.name !=",
        "command.full_name ==",
        "command.full_name !=",
        "command.full_name.starts_with",
        "contains(&command.name)",
        "contains(&command.full_name)",
        "match command.full_name {",
        "matches!(command.name",
        "matches!(command.full_name",
    ];
    let mut wrong = Vec::new();
    for folder in FOLDERS {
        for (path, text) in tidy::rust_files(&workspace_root().join(folder)) {
            if path.ends_with("engine/src/faults.rs") {
                continue;
            }
            let code = tidy::code_only(text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default());
            for comparison in COMPARISONS {
                if code.contains(comparison) {
                    wrong.push(format!("{}: {comparison}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn files_for_newcomers_exist() {
    for file in
        ["README.md", "LICENSE", "CHANGELOG.md", "COMPAT.md", ".ci/run", "docker/Dockerfile", "docs/architecture.md"]
    {
        assert!(workspace_root().join(file).is_file(), "{file} is missing");
    }
}

/// Every test that docs/semantics.md names as `file::test` exists.
#[test]
fn tests_named_in_the_semantics_exist() {
    let root = workspace_root();
    let page = std::fs::read_to_string(root.join("docs/semantics.md")).expect("the page is there");
    let (mut named, mut missing) = (0, Vec::new());
    for name in page.split('`').skip(1).step_by(2) {
        let Some((file, test)) = name.split_once("::").filter(|_| name != "file::test") else { continue };
        let text = std::fs::read_to_string(root.join(format!("tests/tests/{file}.rs"))).unwrap_or_default();
        named += 1;
        if !text.contains(&format!("#[test]\nfn {test}()")) {
            missing.push(name);
        }
    }
    assert!(missing.is_empty() && named > 20, "{named} tests named, missing: {missing:?}");
}

/// Every row of the tables of attacks in docs/security.md names its test files, or a reason for
/// having no test. If a row names only one file, and that is a file of attacks (`known_attacks` or
/// `escapes`), the file contains the numbers of the row's attacks.
#[test]
fn attacks_have_tests() {
    let root = workspace_root();
    let page = std::fs::read_to_string(root.join("docs/security.md")).expect("the page is there");
    let section = page.split("\n## ").find(|section| section.starts_with("Published attacks")).expect("the section");
    let (mut rows, mut wrong) = (0, Vec::new());
    for row in section.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| ---")) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [numbers, .., tests] = cells[..] else { panic!("{row}") };
        if tests == "test" || tests.starts_with("none: ") {
            continue;
        }
        rows += 1;
        let files: Vec<String> = tests
            .split('`')
            .skip(1)
            .step_by(2)
            .map(|file| root.join("tests/tests").join(file.trim_end_matches(".rs")).with_extension("rs"))
            .map(|path| std::fs::read_to_string(path).unwrap_or_default())
            .collect();
        let names_all = numbers
            .split([',', ' '])
            .filter(|number| number.starts_with("20"))
            .all(|number| files.iter().any(|text| text.contains(&format!("CVE-{number}"))));
        // Other test files test a subject as a whole, and don't contain the numbers of attacks.
        let is_of_attacks = files.len() == 1 && (tests.contains("known_attacks") || tests.contains("escapes"));
        if files.is_empty() || files.iter().any(String::is_empty) || (is_of_attacks && !names_all) {
            wrong.push(row);
        }
    }
    assert!(wrong.is_empty() && rows > 40, "{rows} rows with tests, wrong:\n{}", wrong.join("\n"));
}
