//! Checks the engine's layers in its source: which top-level modules may refer to others.

use std::collections::{BTreeMap, BTreeSet};

use pantala_tests::binary::workspace_root;
use pantala_tests::tidy;

/// Each layer, and the layers to which it may refer. A layer may refer only to layers that are
/// listed before it.
const LAYERS: &[(&str, &[&str])] = &[
    ("tuning", &[]),
    ("command", &[]),
    ("faults", &["command"]),
    ("acl", &["command"]),
    ("clients", &["command", "acl"]),
    ("events", &["tuning", "command", "clients"]),
    ("effect", &["tuning", "command", "faults", "clients", "events"]),
    ("store", &["tuning", "command", "faults", "clients", "events", "effect"]),
    ("shard", &["tuning", "command", "faults", "acl", "clients", "events", "effect", "store"]),
    ("session", &["tuning", "command", "acl", "clients", "events", "effect", "shard"]),
];

/// A file's module path, and its code without comments, strings and tests.
struct Source {
    module: Vec<String>,
    code: String,
}

/// Returns all source files of the engine except tests and `lib.rs`, which re-exports paths.
fn sources() -> Vec<Source> {
    let folder = workspace_root().join("crates/engine/src");
    let mut sources = Vec::new();
    for (path, text) in tidy::rust_files(&folder) {
        let path = path.strip_prefix(&folder).expect("a file in the directory").with_extension("");
        let mut module: Vec<String> = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        if module.last().is_some_and(|last| last == "mod") {
            module.pop();
        }
        let name = module.last().expect("a file has a name");
        if module == ["lib"] || name == "tests" || name.ends_with("_tests") {
            continue;
        }
        let code = tidy::code_only(&text);
        // In every file of the engine, the tests are the last item.
        let end = ["#[cfg(test)]\nmod tests {", "#[cfg(all(test, not(loom)))]\nmod tests {"]
            .iter()
            .filter_map(|tests| code.find(tests))
            .min();
        sources.push(Source { module, code: code[..end.unwrap_or(code.len())].to_owned() });
    }
    sources
}

/// Returns the top-level names of the crate that code in a module refers to. A path to such a name
/// starts with `crate::`, or with one `super::` for each level of the module.
fn references(module: &[String], code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        if is_start_of_path(code, at) {
            found.extend(names(&code[at + "crate::".len()..]));
        }
    }
    for (at, _) in code.match_indices("super::") {
        if !is_start_of_path(code, at) {
            continue;
        }
        let mut rest = &code[at..];
        let mut ups = 0;
        while let Some(after) = rest.strip_prefix("super::") {
            (rest, ups) = (after, ups + 1);
        }
        if ups == module.len() {
            found.extend(names(rest));
        }
    }
    found
}

/// Returns whether a path starts at this position. Returns false within a longer word or path.
fn is_start_of_path(code: &str, at: usize) -> bool {
    !code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == ':')
}

/// Returns the first names of the paths at the start of `rest`. There is one path, or a group of
/// paths in braces.
fn names(rest: &str) -> Vec<String> {
    let name = |text: &str| -> String {
        text.trim_start().chars().take_while(|c| c.is_alphanumeric() || matches!(c, '_' | '*')).collect()
    };
    let Some(group) = rest.strip_prefix('{') else { return vec![name(rest)] };
    let mut depth = 0;
    let mut starts = vec![0];
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => starts.push(at + 1),
            _ => {}
        }
    }
    starts.iter().map(|start| name(&group[*start..])).filter(|name| !name.is_empty()).collect()
}

/// Returns the references of each layer to others, with the files that contain them.
fn references_of_layers() -> BTreeMap<String, BTreeMap<String, Vec<String>>> {
    let mut all: BTreeMap<String, BTreeMap<String, Vec<String>>> = BTreeMap::new();
    for Source { module, code } in sources() {
        let of_layer = all.entry(module[0].clone()).or_default();
        for name in references(&module, &code).into_iter().filter(|name| *name != module[0]) {
            of_layer.entry(name).or_default().push(module.join("::"));
        }
    }
    all
}

#[test]
fn layers_refer_only_to_those_above_them_in_the_table() {
    let mut wrong = Vec::new();
    let all = references_of_layers();
    for (layer, found) in &all {
        let Some((_, allowed)) = LAYERS.iter().find(|(known, _)| known == layer) else {
            wrong.push(format!("{layer} is missing from the table of layers"));
            continue;
        };
        for (name, files) in found.iter().filter(|(name, _)| !allowed.contains(&name.as_str())) {
            wrong.push(format!("{layer} may not refer to {name}: {files:?}"));
        }
        for unused in allowed.iter().filter(|name| !found.contains_key(**name)) {
            wrong.push(format!("{layer} doesn't refer to {unused}, which the table allows"));
        }
    }
    assert_eq!(all.len(), LAYERS.len(), "top-level modules: {:?}", all.keys());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A layer may refer only to layers above it in the table, so the table can't contain a cycle.
#[test]
fn the_table_goes_one_way() {
    for (at, (layer, allowed)) in LAYERS.iter().enumerate() {
        for name in *allowed {
            assert!(
                LAYERS[..at].iter().any(|(above, _)| above == name),
                "{layer} refers to {name}, which isn't above it"
            );
        }
    }
}

/// [`references`] searches text and doesn't parse Rust. This test shows which paths it finds.
#[test]
fn paths_are_found() {
    let found = |module: &[&str], code: &str| {
        let module: Vec<String> = module.iter().map(|part| (*part).to_owned()).collect();
        references(&module, code).into_iter().collect::<Vec<_>>()
    };
    assert_eq!(
        found(&["a", "b"], "use crate::one::{Two, three::Four};\nfn f(_: crate::five::Six) {}"),
        ["five", "one"]
    );
    assert_eq!(
        found(&["a"], "use crate::{\n    one::{Two, three},\n    four,\n    five::Six,\n};"),
        ["five", "four", "one"]
    );
    assert_eq!(found(&["a", "b"], "use super::one;\nuse super::super::two::X;\nuse super::super::super::no;"), ["two"]);
    assert_eq!(found(&["a"], "use super::one::X;\nuse super::{two, three::Y};"), ["one", "three", "two"]);
    assert_eq!(found(&["a"], "use other_crate::one;\nuse base::super_::two;\npub(crate) use self::b;"), [""; 0]);
    assert_eq!(found(&["a"], "use crate::*;"), ["*"]);
}
