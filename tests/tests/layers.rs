//! The layers of the design, held against the workspace as cargo sees it: which crate may import which, and where `unsafe`
//! may stand.

use std::collections::BTreeSet;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};
use pantala_tests::binary::workspace_root;
use pantala_tests::tidy;

/// Crate, what it may import.
const LAYERS: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("resp", &["base"]),
    ("dict", &["base"]),
    ("types", &["base", "dict"]),
    ("engine", &["base", "resp", "dict", "types"]),
    ("commands", &["base", "resp", "types", "engine"]),
    ("persistence", &["base", "resp", "types", "engine"]),
    ("replication", &["base", "resp", "engine", "persistence"]),
    ("scripting", &["base", "resp", "engine"]),
    ("session", &["base", "resp", "engine"]),
    ("runtime", &["base"]),
    (
        "server",
        &[
            "base",
            "resp",
            "dict",
            "types",
            "engine",
            "commands",
            "persistence",
            "replication",
            "scripting",
            "session",
            "runtime",
        ],
    ),
    ("bench", &["base", "resp", "runtime"]),
];

/// Crates that may hold `unsafe`.
const UNSAFE_ALLOWED: &[&str] = &["base", "dict", "types", "engine", "runtime", "scripting"];

/// Packages beside the crates, under no rule of the table: benches look at everything, black-box tests at nothing.
const BENCHES: &str = "pantala-benches";
const TESTS: &str = "pantala-tests";

fn metadata() -> Metadata {
    MetadataCommand::new()
        .manifest_path(workspace_root().join("Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo metadata reads the workspace")
}

/// Name of a crate in the table: its folder's.
fn layer(package: &str) -> Option<&str> {
    match package {
        "pantala" => Some("server"),
        _ => package.strip_prefix("pantala-"),
    }
}

#[test]
fn crates_import_only_what_the_design_allows() {
    let mut wrong = Vec::new();
    for package in metadata().workspace_packages() {
        let name = package.name.as_str();
        if name == BENCHES {
            continue;
        }
        let allowed = match layer(name).and_then(|layer| LAYERS.iter().find(|(crate_name, _)| *crate_name == layer)) {
            Some((_, allowed)) => *allowed,
            None if name == TESTS => &[],
            None => {
                wrong.push(format!("{name} isn't in the table of layers"));
                continue;
            }
        };
        for dependency in
            package.dependencies.iter().filter(|dependency| dependency.kind != DependencyKind::Development)
        {
            let Some(import) = layer(&dependency.name) else { continue };
            if dependency.path.is_some() && !allowed.contains(&import) {
                wrong.push(format!("{name} imports {}, which the design doesn't allow", dependency.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A table with a cycle, or with a name that is no crate, would allow anything.
#[test]
fn the_table_goes_one_way() {
    let mut below = BTreeSet::new();
    let mut left: Vec<_> = LAYERS.to_vec();
    while !left.is_empty() {
        let (ready, rest): (Vec<_>, Vec<_>) =
            left.iter().partition(|(_, imports)| imports.iter().all(|import| below.contains(import)));
        assert!(!ready.is_empty(), "a cycle among {rest:?}");
        below.extend(ready.iter().map(|(name, _)| *name));
        left = rest;
    }
}

#[test]
fn unsafe_stands_only_where_the_design_allows() {
    let mut wrong = Vec::new();
    for package in metadata().workspace_packages() {
        let name = package.name.as_str();
        if layer(name).is_some_and(|layer| UNSAFE_ALLOWED.contains(&layer)) {
            continue;
        }
        let folder = package.manifest_path.parent().expect("a manifest lies in a folder");
        // The fuzz package lies below tests/ but is no member: its macro is the fuzzer's.
        for (path, text) in tidy::rust_files(folder.as_std_path()) {
            if tidy::has_word(&tidy::code_only(&text), "unsafe") {
                wrong.push(format!("{}: unsafe in {name}", path.display()));
            }
        }
        for target in package.targets.iter().filter(|target| target.is_lib() || target.is_bin()) {
            let text = std::fs::read_to_string(&target.src_path).expect("a target has a root file");
            if !text.contains("#![forbid(unsafe_code)]") {
                wrong.push(format!("{} lacks #![forbid(unsafe_code)]", target.src_path));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_package_takes_the_lints_of_the_workspace() {
    for package in metadata().workspace_packages() {
        let manifest = std::fs::read_to_string(&package.manifest_path).expect("a package has a manifest");
        assert!(
            manifest.contains("[lints]\nworkspace = true"),
            "{} doesn't take the workspace's lints",
            package.manifest_path
        );
    }
}
