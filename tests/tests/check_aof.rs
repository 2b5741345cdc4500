//! Compares `pantala check-aof` with redis-check-aof. For the same files, both must print the same
//! text and make the same repairs.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use pantala_tests::{binary, tool};
use tempfile::TempDir;

const SET: &str = "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$3\r\nabc\r\n";
const MULTI: &str = "*1\r\n$5\r\nMULTI\r\n";
const EXEC: &str = "*1\r\n$4\r\nEXEC\r\n";

/// The result of a program: exit code and printed text.
type Outcome = (Option<i32>, String);
/// The names and contents of files, of which the program checks the first, and the program's
/// options.
type Scene<'s> = (Vec<(&'s str, String)>, &'s [&'s str]);

fn write_all(files: &[(&str, String)]) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).expect("a file");
    }
    folder
}

fn run(command: &mut Command, folder: &Path, options: &[&str], file: &str) -> Outcome {
    let ran = command.args(options).arg(file).current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = ran.expect("the program starts");
    // Confirms a repair. The write fails if the program didn't ask for confirmation and has exited.
    let _ = child.stdin.take().expect("piped").write_all(b"y\n");
    let output = child.wait_with_output().expect("the program ends");
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(folder).expect("the folder is there").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<_> = entries
        .map(|path| {
            (
                path.display().to_string().replace(&folder.display().to_string(), ""),
                std::fs::read(&path).expect("a file"),
            )
        })
        .collect();
    files.sort();
    files
}

/// Returns a report without its line numbers.
fn without_line(text: &str) -> String {
    let parts =
        text.split("ok_up_to_line=").map(|part| part.trim_start_matches(|letter: char| letter.is_ascii_digit()));
    parts.collect()
}

#[test]
fn reports_and_repairs_are_those_of_redis() {
    let Some(redis) = tool::find("redis-check-aof") else { return };
    let whole = format!("{SET}{MULTI}{SET}{EXEC}");
    let timed = format!("#TS:100\r\n{SET}#TS:200\r\n{SET}");
    let manifest = "file a.1.base.aof seq 1 type b\nfile a.1.incr.aof seq 1 type i\n".to_owned();
    let one = |text: String| vec![("a.aof", text)];
    let parts = |base: &str, increment: &str| {
        vec![
            ("a.manifest", manifest.clone()),
            ("a.1.base.aof", base.to_owned()),
            ("a.1.incr.aof", increment.to_owned()),
        ]
    };
    let scenes: Vec<Scene<'_>> = vec![
        (one(whole.clone()), &[]),
        (one(String::new()), &[]),
        (one(format!("{SET}{MULTI}{SET}")), &[]),
        (one(format!("{SET}{MULTI}{SET}")), &["--fix"]),
        (one(format!("{SET}{EXEC}")), &[]),
        (one(format!("{SET}{MULTI}{MULTI}")), &["--fix"]),
        (one(SET[..SET.len() - 3].to_owned()), &[]),
        (one(format!("{SET}{}", &SET[..SET.len() - 3])), &["--fix"]),
        (one(format!("{SET}{}", &SET[..4])), &["--fix"]),
        (one(format!("{SET}hello")), &["--fix"]),
        (one(format!("{SET}*1\r\n+x\r\n")), &[]),
        (one(format!("{SET}*1\r\n$1\r\nabc\r\n")), &[]),
        (one(timed.clone()), &["--truncate-to-timestamp", "150"]),
        (one(timed.clone()), &["--truncate-to-timestamp", "200"]),
        (one(timed.clone()), &["--truncate-to-timestamp", "50"]),
        (one(timed.clone()), &["--truncate-to-timestamp", "x"]),
        (one(timed), &["--unknown"]),
        (parts(SET, &whole), &[]),
        (parts(SET, ""), &[]),
        (parts(SET, &format!("{SET}*1\r\n")), &["--fix"]),
        (parts(&format!("{SET}*1\r\n"), SET), &["--fix"]),
        (parts(SET, &format!("{SET}#TS:200\r\n{SET}")), &["--truncate-to-timestamp", "100"]),
        (parts(&format!("{SET}#TS:200\r\n{SET}"), SET), &["--truncate-to-timestamp", "100"]),
        (vec![("a.manifest", manifest.clone())], &[]),
        (vec![("a.manifest", format!("{manifest}{manifest}"))], &[]),
    ];
    for (files, options) in scenes {
        let [ours, theirs] = [write_all(&files), write_all(&files)];
        let ran = run(Command::new(binary::pantala()).arg("check-aof"), ours.path(), options, files[0].0);
        let right = run(&mut Command::new(&redis), theirs.path(), options, files[0].0);
        assert_eq!(ran.0, right.0, "{files:?} {options:?}\n{}\n{}", ran.1, right.1);
        assert_eq!(contents(ours.path()), contents(theirs.path()), "{files:?} {options:?}\n{}", ran.1);
        // These messages aren't compared, because Pantala words them differently.
        let is_worded_otherwise =
            |text: &str| text.contains("Usage") || text.contains("Cannot") || text.contains("MANIFEST");
        if !is_worded_otherwise(&right.1) {
            // With several files, line numbers aren't compared: redis-check-aof doesn't restart at
            // line 1 for the second file.
            let is_single = files.len() == 1;
            let comparable = |text: &str| if is_single { text.to_owned() } else { without_line(text) };
            assert_eq!(comparable(&ran.1), comparable(&right.1), "{files:?} {options:?}");
        }
    }
}

#[test]
fn the_tail_after_an_rdb_preamble_is_checked() {
    let Some(redis) = tool::find("redis-check-aof") else { return };
    // A checksum of zero means no checksum.
    let preamble = [&b"REDIS0010\xff"[..], &[0; 8]].concat();
    for (tail, code) in [(SET, 0), ("x", 1)] {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("a.aof"), [&preamble[..], tail.as_bytes()].concat()).expect("a file");
        let ran = run(Command::new(binary::pantala()).arg("check-aof"), folder.path(), &[], "a.aof");
        let right = run(&mut Command::new(&redis), folder.path(), &[], "a.aof");
        assert_eq!((ran.0, right.0), (Some(code), Some(code)), "{}\n{}", ran.1, right.1);
        let last = |outcome: &Outcome| outcome.1.lines().last().map(str::to_owned);
        assert_eq!(last(&ran), last(&right));
    }
}

/// A manifest is never truncated, even if its first line is damaged.
#[test]
fn a_damaged_manifest_is_not_repaired() {
    let second = "file a.1.incr.aof seq 1 type i\n";
    for (name, first) in
        [("a.manifest", "xile a.1.base.aof seq 1 type b\n"), ("a.copy", "\0ile a.1.base.aof\n"), ("a.manifest", "\n")]
    {
        let files = [(name, format!("{first}{second}")), ("a.1.base.aof", SET.to_owned())];
        let folder = write_all(&files);
        for options in [&[][..], &["--fix"], &["--truncate-to-timestamp", "100"]] {
            let before = contents(folder.path());
            let ran = run(Command::new(binary::pantala()).arg("check-aof"), folder.path(), options, name);
            assert_eq!(ran.0, Some(1), "{name} {options:?}\n{}", ran.1);
            assert!(ran.1.contains("FATAL AOF MANIFEST FILE ERROR"), "{name} {options:?}\n{}", ran.1);
            assert_eq!(contents(folder.path()), before, "{name} {options:?}\n{}", ran.1);
        }
    }
}
