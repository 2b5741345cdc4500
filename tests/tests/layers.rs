//! Checks with `cargo metadata` that each crate imports only the crates that it may import. Also
//! checks that only certain crates contain `unsafe`.

use std::collections::BTreeSet;
use std::process::Command;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};
use pantala_tests::binary::workspace_root;
use pantala_tests::tidy;

/// A crate, and the crates that it may import.
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
    ("tls", &[]),
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
            "tls",
        ],
    ),
    ("bench", &["base", "resp", "runtime", "tls"]),
];

/// Crates that may contain `unsafe`.
const UNSAFE_ALLOWED: &[&str] = &["base", "dict", "types", "engine", "runtime", "scripting"];

/// Packages outside of the table. Benches and fuzz targets may import any crate, and black-box
/// tests none.
const BENCHES: &str = "pantala-benches";
const FUZZ_TARGETS: &str = "pantala-fuzz-targets";
const TESTS: &str = "pantala-tests";

fn metadata() -> Metadata {
    MetadataCommand::new()
        .manifest_path(workspace_root().join("Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo metadata reads the workspace")
}

/// Returns the name of a crate in the table, which is the name of its directory.
fn layer(package: &str) -> Option<&str> {
    match package {
        "pantala" => Some("server"),
        _ => package.strip_prefix("pantala-"),
    }
}

#[test]
fn crates_import_only_allowed_crates() {
    let mut wrong = Vec::new();
    for package in metadata().workspace_packages() {
        let name = package.name.as_str();
        if name == BENCHES || name == FUZZ_TARGETS {
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

/// The table names only known crates and contains no cycle: in some order of the crates, each crate
/// imports only earlier ones.
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
fn unsafe_is_only_in_allowed_crates() {
    let mut wrong = Vec::new();
    for package in metadata().workspace_packages() {
        let name = package.name.as_str();
        if layer(name).is_some_and(|layer| UNSAFE_ALLOWED.contains(&layer)) {
            continue;
        }
        let folder = package.manifest_path.parent().expect("a manifest is in a directory");
        // For the package in tests/, this also searches tests/fuzz, a workspace of its own. The
        // package there can't have `#![forbid(unsafe_code)]`, because the fuzzer's macro expands to
        // `unsafe`.
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

/// Returns the packages that a build compiles, each with the features enabled for it.
fn built(selection: &[&str]) -> BTreeSet<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["tree", "--offline", "--prefix=none", "--format={p} {f}"])
        .args(selection)
        .current_dir(workspace_root())
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("names are UTF-8");
    text.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
}

/// Tests build binaries (`pantala_tests::binary`) from packages that `cargo test --workspace` has
/// already compiled. Cargo reuses a compiled package only if its features stay the same when fewer
/// packages are selected.
#[test]
fn tests_compile_the_server_once() {
    let all = built(&["--workspace"]);
    for selection in [&["-p=pantala"][..], &["-p=pantala-bench", "-p=pantala", "-p=pantala-tests"]] {
        let again: Vec<_> = built(&[selection, &["--edges=normal,build"]].concat()).difference(&all).cloned().collect();
        assert!(again.is_empty(), "compiled once more for {selection:?}: {again:#?}");
    }
}

/// Returns lifetimes as `function: lifetime`: those that a safe function declares and returns, but
/// that no argument or bound mentions. A caller could choose such a lifetime freely.
fn unbound_lifetimes(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        let line = &code[code[..at].rfind('\n').map_or(0, |end| end + 1)..at];
        let signature = code[at + "fn ".len()..].split(['{', ';']).next().unwrap_or_default();
        let Some((name, rest)) = signature.split_once('<') else { continue };
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
        if !is_name || tidy::has_word(line, "unsafe") {
            continue;
        }
        // Generic parameters end at the parenthesis of the arguments.
        let Some((generics, rest)) = rest.split_once(">(") else { continue };
        let Some((arguments, returned)) = rest.rsplit_once("->") else { continue };
        for lifetime in generics.split(',').map(str::trim).filter(|parameter| parameter.starts_with('\'')) {
            let uses = |text: &str| {
                text.split(|c: char| !c.is_alphanumeric() && !"'_".contains(c)).any(|word| word == lifetime)
            };
            let is_in_a_bound = generics.matches(lifetime).count() > 1;
            if uses(returned) && !uses(arguments) && !is_in_a_bound {
                found.push(format!("{name}: {lifetime}"));
            }
        }
    }
    found
}

#[test]
fn safe_functions_bind_the_lifetimes_that_they_return() {
    let mut wrong = Vec::new();
    for name in UNSAFE_ALLOWED {
        for (path, text) in tidy::rust_files(&workspace_root().join("crates").join(name).join("src")) {
            let found = unbound_lifetimes(&tidy::code_only(&text));
            wrong.extend(found.into_iter().map(|function| format!("{}: {function}", path.display())));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// [`unbound_lifetimes`] searches text and doesn't parse Rust. These cases show what it finds.
#[test]
fn unbound_lifetimes_are_found() {
    for (code, found) in [
        ("pub(crate) fn of<'a>(self) -> &'a [u8] {", vec!["of: 'a"]),
        ("fn both<'a, 'b>(one: &'b u8) -> Two<'a, 'b> {", vec!["both: 'a"]),
        ("unsafe fn of<'a>(self) -> &'a [u8] {", vec![]),
        ("fn of<'a>(one: &'a [u8], other: &u8) -> Option<&'a [u8]> {", vec![]),
        ("fn of<'a, T: Of<'a>>(one: T) -> &'a u8 {", vec![]),
        ("fn of(&self) -> &u8 {", vec![]),
        ("fn of<T>(one: T) -> &'static u8;", vec![]),
    ] {
        assert_eq!(unbound_lifetimes(code), found, "{code}");
    }
}

#[test]
fn every_package_uses_the_lints_of_the_workspace() {
    for package in metadata().workspace_packages() {
        let manifest = std::fs::read_to_string(&package.manifest_path).expect("a package has a manifest");
        assert!(
            manifest.contains("[lints]\nworkspace = true"),
            "{} doesn't use the workspace's lints",
            package.manifest_path
        );
    }
}
