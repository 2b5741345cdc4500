//! Rules of the source tree that no lint knows.

use pantala_tests::binary::workspace_root;
use pantala_tests::tidy;

/// Lines of a file from which a reader loses the thread: named on standard error.
const LINES_AIM: usize = 600;
/// Lines that no file of code may have.
const LINES_MAX: usize = 1000;

/// Tables of data, which may be long: a declarative record per command.
fn is_data(path: &str) -> bool {
    path.contains("/records/") || path.contains("/config/table")
}

#[test]
fn files_stay_small() {
    let mut wrong = Vec::new();
    for (path, text) in tidy::rust_files(&workspace_root()) {
        let path = path.display().to_string();
        let lines = text.lines().count();
        if lines > LINES_AIM {
            eprintln!("{path}: {lines} lines, aim below {LINES_AIM}");
        }
        if lines > LINES_MAX && !is_data(&path) {
            wrong.push(format!("{path}: {lines} lines, more than {LINES_MAX}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Where packages come from is each machine's own matter: the tree names no registry's host.
#[test]
fn no_host_of_a_package_registry_is_named() {
    // Put together here, so that this file doesn't name them either.
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

/// Text files end in one line end, hold no tab in Rust code, and no space before a line end.
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

/// What a command is stands in its record, as flags: only the table itself, and what injects faults, knows names.
#[test]
fn commands_are_told_apart_by_flags() {
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
fn what_a_newcomer_looks_for_is_there() {
    for file in
        ["README.md", "LICENSE", "CHANGELOG.md", "COMPAT.md", ".ci/run", "docker/Dockerfile", "docs/architecture.md"]
    {
        assert!(workspace_root().join(file).is_file(), "{file} is missing");
    }
}

/// docs/semantics.md rests its sentences on tests: each that it names as `file::test` exists.
#[test]
fn tests_that_the_semantics_name_exist() {
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
    assert!(missing.is_empty() && named > 20, "{named} tests named; there are no {missing:?}");
}
