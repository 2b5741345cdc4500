//! Runs Redis's own units on users (acl, acl-v2, auth) and on TLS. These units start their own
//! servers, with configurations, ACL files and certificates. Therefore `pantala` replaces
//! `redis-server` in a copy of the suite. `upstream.rs` runs the other units.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pantala_tests::server::free_port;
use pantala_tests::upstream::source;
use pantala_tests::{binary, tool};

/// Units on users.
const UNITS: &[(&str, &[&str])] = &[("unit/acl", &[]), ("unit/acl-v2", &[]), ("unit/auth", &[])];

/// The unit on TLS.
const TLS_UNITS: &[(&str, &[&str])] = &[("unit/tls", &["--tls"])];

/// Minimum numbers of passed tests over all units. Without these minimums, a suite that runs no
/// tests would pass.
const PASSED_MIN: usize = 130;
const TLS_PASSED_MIN: usize = 7;

/// Maximum time in which Tcl loads a package.
const TCL_MAX: Duration = Duration::from_secs(60);

/// Pairs of ciphers. The first has no forward secrecy. Redis's tests use it, but Pantala doesn't
/// support it. The second is the replacement, with forward secrecy.
const SUITES: [(&str, &str); 2] =
    [("AES128-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"), ("AES256-SHA256", "ECDHE-RSA-AES256-GCM-SHA384")];

/// Settings of the suite's servers that Pantala rejects at startup.
const UNSUPPORTED: [&str; 2] = ["\"tls-dh-params-file\"", "\"tls-cluster\""];

/// Makes a copy of the suite whose `redis-server` is Pantala.
fn copy_suite(source: &Path, folder: &Path) {
    let copied =
        Command::new("cp").arg("-r").args(["tests", "utils"].map(|part| source.join(part))).arg(folder).status();
    assert!(copied.is_ok_and(|status| status.success()), "the suite is copied");
    let _ = fs::remove_dir_all(folder.join("tests/tmp"));
    fs::create_dir_all(folder.join("tests/tmp")).expect("a folder for the suite's servers");
    let programs = folder.join("src");
    fs::create_dir(&programs).expect("a folder for programs");
    for program in ["redis-cli", "redis-benchmark"] {
        symlink(source.join("src").join(program), programs.join(program)).expect("a program is linked");
    }
    // The suite waits for this line, which must contain the ID of the process that the suite has
    // started. This process is the shell, which `exec` replaces with Pantala.
    let script = format!(
        "#!/bin/sh\nme=$$\n(sleep 0.7; echo \" PID: $me Server initialized\") &\nexec {} \"$@\" --workers 2\n",
        binary::pantala().display()
    );
    let server = programs.join("redis-server");
    fs::write(&server, script).expect("the script is written");
    fs::set_permissions(&server, fs::Permissions::from_mode(0o755)).expect("it can be run");
}

/// Changes a file of the copy.
fn edit(path: &Path, change: impl FnOnce(String) -> String) {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    fs::write(path, change(text)).expect("written");
}

/// Makes the certificates of the suite, and replaces or removes the settings that Pantala doesn't
/// support.
fn prepare_tls(folder: &Path) {
    let tls = folder.join("tests/tls");
    fs::create_dir_all(&tls).expect("a folder for certificates");
    // The Diffie-Hellman parameters aren't needed, and take long to generate.
    fs::write(tls.join("redis.dh"), "").expect("written");
    // rustls rejects certificates of X.509 version 1. openssl makes such a certificate if it has no
    // extensions.
    edit(&folder.join("utils/gen-test-certs.sh"), |text| {
        text.replace(
            "redis \"Generic-cert\"",
            "redis \"Generic-cert\" \"-extfile tests/tls/openssl.cnf -extensions any_cert\"",
        )
        .replace("[ client_cert ]", "[ any_cert ]\nkeyUsage = digitalSignature\n\n[ client_cert ]")
    });
    let made = Command::new("bash").arg("utils/gen-test-certs.sh").current_dir(folder).output();
    assert!(made.as_ref().is_ok_and(|made| made.status.success()), "{made:?}");
    edit(&folder.join("tests/support/server.tcl"), |text| {
        let is_kept = |line: &&str| !UNSUPPORTED.iter().any(|name| line.contains(name));
        text.lines().filter(is_kept).map(|line| format!("{line}\n")).collect()
    });
    edit(&folder.join("tests/unit/tls.tcl"), |text| {
        SUITES.iter().fold(text, |text, (theirs, ours)| text.replace(theirs, ours))
    });
}

/// Runs units. Returns the number of passed tests.
fn run(folder: &Path, units: &[(&str, &[&str])]) -> usize {
    let mut passed = 0;
    for (unit, options) in units {
        let port = free_port().to_string();
        let output = Command::new("tclsh")
            .args(["tests/test_helper.tcl", "--single", unit, "--clients", "1", "--baseport", &port])
            .args(*options)
            .current_dir(folder)
            .output()
            .expect("tclsh starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let is_bad = |line: &&str| ["[err]", "[exception]", "Expected"].iter().any(|mark| plain(line).contains(mark));
        let bad: Vec<&str> = text.lines().filter(is_bad).collect();
        assert!(bad.is_empty() && text.contains("All tests passed"), "{unit}: {bad:#?}\n{text}");
        passed += text.lines().filter(|line| plain(line).contains("[ok]")).count();
    }
    passed
}

#[test]
#[ignore = "runs Redis's suite, which is fetched: minutes"]
fn redis_units_of_users_pass() {
    let Some(source) = source::folder() else { return };
    let folder = tempfile::tempdir().expect("a folder for the suite");
    copy_suite(&source, folder.path());
    let passed = run(folder.path(), UNITS);
    assert!(passed >= PASSED_MIN, "only {passed} tests passed");
}

#[test]
#[ignore = "runs Redis's suite, which is fetched: a minute"]
fn redis_unit_of_tls_passes() {
    let Some(source) = source::folder() else { return };
    let has_tls = tool::run_to_end(&mut Command::new("tclsh"), b"package require tls\n", TCL_MAX).errors.is_empty();
    if !has_tls {
        return tool::skipped("Tcl's package tls is not installed");
    }
    let folder = tempfile::tempdir().expect("a folder for the suite");
    copy_suite(&source, folder.path());
    prepare_tls(folder.path());
    let passed = run(folder.path(), TLS_UNITS);
    assert!(passed >= TLS_PASSED_MIN, "only {passed} tests passed");
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
