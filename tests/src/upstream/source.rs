//! Downloads and unpacks Debian's source package of redis, with the ordinary apt client.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{binary, tool};

/// The version of Redis that Pantala emulates, and whose tests it runs.
pub const VERSION: &str = "7.0.15";

/// The programs of Redis that units run by paths within the source directory.
const PROGRAMS: &[&str] = &["redis-server", "redis-cli", "redis-benchmark"];

/// Returns the directory of the source package, after downloading and unpacking it if it is
/// missing. If a required program isn't installed, prints a `SKIPPED:` line and returns `None`.
/// While one caller downloads, callers in other threads and processes wait.
///
/// # Panics
/// If the package can't be downloaded, or its version isn't [`VERSION`]. Also if [`tool::find`]
/// panics.
#[must_use]
pub fn folder() -> Option<PathBuf> {
    for program in ["tclsh", "apt-get", "dpkg-source"] {
        tool::find(program)?;
    }
    let programs: Vec<_> = PROGRAMS.iter().map(|program| tool::find(program)).collect::<Option<_>>()?;
    let base = base();
    fs::create_dir_all(&base).expect("the suite's directory is created");
    // The lock belongs to this open file, so it also excludes other threads. It ends when the file
    // is closed, even if the process is killed.
    let lock = File::create(base.join("lock")).expect("the lock file is created");
    lock.lock().expect("the lock is acquired");
    let folder = base.join(format!("redis-{VERSION}"));
    if !folder.is_dir() {
        fetch(&base);
        unpack(&base, &folder);
    }
    for (program, path) in PROGRAMS.iter().zip(programs) {
        let link = folder.join("src").join(program);
        if !link.exists() {
            std::os::unix::fs::symlink(path, link).expect("the program is linked into the source directory");
        }
    }
    Some(folder)
}

/// Returns a copy of the source directory in which `src/redis-server` is a script. The script
/// starts `program` with the suite's arguments. If the first of them is a configuration file, the
/// script appends `args`. A copy is needed because both modes of the suite may run at the same
/// time. If a required program isn't installed, prints a `SKIPPED:` line and returns `None`.
///
/// # Panics
/// Like [`folder`]. Also if files can't be created.
#[must_use]
pub fn own_folder(program: &Path, args: &[&str]) -> Option<PathBuf> {
    let source = folder()?;
    let own = base().join("own");
    // An earlier run may have left files.
    let _ = fs::remove_dir_all(&own);
    let status = Command::new("cp").args(["-r", "-P"]).arg(&source).arg(&own).status().expect("cp starts");
    assert!(status.success(), "the suite can't be copied: {status}");
    let script = own.join("src/redis-server");
    // The file is a link. Writing to it would change the program to which the link points, so the
    // link is removed.
    fs::remove_file(&script).expect("the link is removed");
    // The program replaces the shell (`exec`), because the suite sends signals to the process that
    // it has started. If there is no configuration file, the test is about the options themselves.
    // Further options could then become values of the tested options.
    let (program, args) = (program.display(), args.join(" "));
    let text = format!("#!/bin/sh\n[ -f \"$1\" ] || exec '{program}' \"$@\"\nexec '{program}' \"$@\" {args}\n");
    fs::write(&script, text).expect("the script is written");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("the script is made executable");
    for program in ["redis-check-aof", "redis-check-rdb"] {
        std::os::unix::fs::symlink(tool::find(program)?, own.join("src").join(program)).expect("it is linked");
    }
    Some(own)
}

/// Returns the directory of all files of the suite. None of them is committed.
#[must_use]
pub fn base() -> PathBuf {
    binary::workspace_root().join("target/upstream")
}

/// Downloads the source package into `base`. apt uses separate directories for its lists and
/// settings, so that those of the system remain unchanged.
fn fetch(base: &Path) {
    let apt = base.join("apt");
    for folder in ["sources", "lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(apt.join(folder)).expect("apt's directory is created");
    }
    source_lists(Path::new("/etc/apt"), &apt.join("sources"));
    let conf = apt.join("apt.conf");
    let settings = [
        ("Dir::Etc::sourcelist", PathBuf::from("/dev/null")),
        ("Dir::Etc::sourceparts", apt.join("sources")),
        ("Dir::State::lists", apt.join("lists")),
        ("Dir::Cache", apt.join("cache")),
    ];
    let mut text = String::from("Acquire::Languages \"none\";\n");
    for (name, path) in settings {
        text.push_str(&format!("{name} \"{}\";\n", path.display()));
    }
    fs::write(&conf, text).expect("apt's settings are written");
    for args in [["update", "-q"].as_slice(), &["source", "-q", "--download-only", "redis"]] {
        let status = Command::new("apt-get").args(args).env("APT_CONFIG", &conf).current_dir(base).status();
        let status = status.expect("apt-get starts");
        assert!(status.success(), "apt-get {args:?} failed: {status}");
    }
}

/// Copies the lists in which the system's apt finds *binary* packages into `to`, changed so that
/// apt finds *source* packages with them.
fn source_lists(etc: &Path, to: &Path) {
    let parts = fs::read_dir(etc.join("sources.list.d")).into_iter().flatten().flatten().map(|entry| entry.path());
    for path in parts.chain([etc.join("sources.list")]) {
        let kind = path.extension().and_then(|kind| kind.to_str()).unwrap_or_default();
        let Some(name) = path.file_name().filter(|_| matches!(kind, "sources" | "list")) else { continue };
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let lines = text.lines().map(|line| as_source_line(line) + "\n");
        fs::write(to.join(name), lines.collect::<String>()).expect("a list of sources is written");
    }
}

/// Converts a line of a list of package sources, in either of apt's two formats, so that the list
/// names source packages instead of binary packages.
fn as_source_line(line: &str) -> String {
    if line.starts_with("Types:") {
        "Types: deb-src".into()
    } else if let Some(rest) = line.strip_prefix("deb ") {
        format!("deb-src {rest}")
    } else {
        line.into()
    }
}

/// Unpacks the downloaded package and applies Debian's patches, which contain additional tests.
fn unpack(base: &Path, folder: &Path) {
    let names = fs::read_dir(base).expect("the folder is read").flatten().map(|entry| entry.path());
    let mut described: Vec<_> = names.filter(|path| path.extension().is_some_and(|kind| kind == "dsc")).collect();
    described.sort();
    let description = described.pop().expect("apt-get source leaves a description of the package");
    let name = description.file_name().unwrap_or_default().to_string_lossy().into_owned();
    assert!(name.starts_with(&format!("redis_{VERSION}-")), "the available package is {name}, not {VERSION}");
    let part = base.join("unpacking");
    // A killed run may have left this directory.
    let _ = fs::remove_dir_all(&part);
    let output = Command::new("dpkg-source")
        .args(["--no-check", "-x"])
        .args([&description, &part])
        .current_dir(base)
        .stdin(Stdio::null())
        .output()
        .expect("dpkg-source starts");
    assert!(output.status.success(), "dpkg-source failed: {}", String::from_utf8_lossy(&output.stderr));
    fs::rename(part, folder).expect("the unpacked directory is renamed");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_of_source_lists() {
        assert_eq!(as_source_line("Types: deb"), "Types: deb-src");
        assert_eq!(as_source_line("deb [arch=amd64] file:/x stable main"), "deb-src [arch=amd64] file:/x stable main");
        for same in ["URIs: file:/x", "# deb x", "deb-src file:/x stable main", ""] {
            assert_eq!(as_source_line(same), same);
        }
    }
}
