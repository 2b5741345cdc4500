//! Runs Redis's own units on users (acl, acl-v2, auth). They start servers of their own, with
//! configurations and ACL files, so a copy of the suite has `pantala` in place of `redis-server`.
//! All other units run on one server (`upstream.rs`).

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use pantala_tests::binary;
use pantala_tests::server::free_port;
use pantala_tests::upstream::source;

/// Units, and the suite's options for each. The options exclude replication and limits before a
/// login.
const UNITS: &[(&str, &[&str])] = &[
    ("unit/acl", &[]),
    ("unit/acl-v2", &[]),
    ("unit/auth", &["--tags", "-masterauth", "--skiptest", "For unauthenticated clients output buffer is limited"]),
];

/// Minimum number of passed tests over all units, because a suite that runs nothing proves nothing.
const PASSED_MIN: usize = 130;

/// Makes a copy of the suite whose `redis-server` is Pantala.
fn copy_suite(source: &Path, folder: &Path) {
    let copied = Command::new("cp").arg("-r").arg(source.join("tests")).arg(folder).status();
    assert!(copied.is_ok_and(|status| status.success()), "the suite is copied");
    let _ = fs::remove_dir_all(folder.join("tests/tmp"));
    fs::create_dir_all(folder.join("tests/tmp")).expect("a folder for the suite's servers");
    let programs = folder.join("src");
    fs::create_dir(&programs).expect("a folder for programs");
    for program in ["redis-cli", "redis-benchmark"] {
        symlink(source.join("src").join(program), programs.join(program)).expect("a program is linked");
    }
    // The suite waits for this line, which must come from the process that it has started.
    let script = format!(
        "#!/bin/sh\nme=$$\n(sleep 0.7; echo \" PID: $me Server initialized\") &\nexec {} \"$@\" --workers 2\n",
        binary::pantala().display()
    );
    let server = programs.join("redis-server");
    fs::write(&server, script).expect("the stand-in is written");
    fs::set_permissions(&server, fs::Permissions::from_mode(0o755)).expect("it can be run");
}

#[test]
#[ignore = "runs Redis's suite, which is fetched: minutes"]
fn redis_units_of_users_pass() {
    let Some(source) = source::folder() else { return };
    let folder = tempfile::tempdir().expect("a folder for the suite");
    copy_suite(&source, folder.path());
    let mut passed = 0;
    for (unit, options) in UNITS {
        let port = free_port().to_string();
        let output = Command::new("tclsh")
            .args(["tests/test_helper.tcl", "--single", unit, "--clients", "1", "--baseport", &port])
            .args(*options)
            .current_dir(folder.path())
            .output()
            .expect("tclsh starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let is_bad = |line: &&str| ["[err]", "[exception]", "Expected"].iter().any(|mark| plain(line).contains(mark));
        let bad: Vec<&str> = text.lines().filter(is_bad).collect();
        assert!(bad.is_empty() && text.contains("All tests passed"), "{unit}: {bad:#?}\n{text}");
        passed += text.lines().filter(|line| plain(line).contains("[ok]")).count();
    }
    assert!(passed >= PASSED_MIN, "only {passed} tests have run");
}

/// Returns a line without the colours of a terminal.
fn plain(line: &str) -> String {
    let mut text = String::new();
    let mut bytes = line.chars();
    while let Some(next) = bytes.next() {
        if next == '\u{1b}' {
            bytes.by_ref().find(|letter| *letter == 'm');
        } else {
            text.push(next);
        }
    }
    text
}
