//! The scripts of continuous integration run each test that `cargo test` skips.

use std::path::Path;

use pantala_tests::binary::workspace_root;
use pantala_tests::tidy;

/// Returns the filters with which the scripts select ignored tests.
fn filters() -> Vec<String> {
    let scripts = [".ci/run", ".ci/nightly"].map(|script| {
        let path = workspace_root().join(script);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    });
    let after = scripts.iter().flat_map(|text| text.lines()).filter_map(|line| line.split_once(" -- ")).map(|it| it.1);
    let selected = after.filter(|args| args.contains("--ignored")).flat_map(str::split_whitespace);
    selected.filter(|word| word.starts_with(char::is_alphabetic)).map(str::to_owned).collect()
}

/// Returns the tests that are marked with `#[ignore]`, each as `module::function`.
fn ignored() -> Vec<String> {
    let root = workspace_root();
    let mut tests = Vec::new();
    for (path, text) in ["crates", "tests/tests"].iter().flat_map(|folder| tidy::rust_files(&root.join(folder))) {
        let module = Path::new(&path).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        for after in text.split("\n#[ignore").skip(1).chain(text.split("\n    #[ignore").skip(1)) {
            let function = after.split_once("fn ").and_then(|(_, rest)| rest.split_once('(')).expect("a function").0;
            tests.push(format!("{module}::{function}"));
        }
    }
    tests
}

#[test]
fn ignored_tests_are_run_by_a_script() {
    let (filters, ignored) = (filters(), ignored());
    assert!(ignored.len() > 10 && filters.len() > 5, "{ignored:?}, {filters:?}");
    let is_run = |test: &String| filters.iter().any(|filter| test.contains(filter.as_str()));
    let forgotten: Vec<&String> = ignored.iter().filter(|test| !is_run(test)).collect();
    assert!(forgotten.is_empty(), "no script runs {forgotten:?}");
}
