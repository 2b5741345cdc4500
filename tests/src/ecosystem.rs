//! Tests with client libraries of other languages, and with programs based on them. `tests/clients`
//! has a directory for each language, with an ordinary package manifest and with workloads that
//! check replies. Each directory is copied to `target/clients`. The language's own package manager
//! installs the manifest's packages in the copy, and the workloads run in the copy against a
//! server.
//!
//! A workload is a program that reads the server's port from `PANTALA_PORT`, prints a line for each
//! check, and exits with 1 if a check fails. If the port is encrypted, `PANTALA_TLS_CA`,
//! `PANTALA_TLS_CERT` and `PANTALA_TLS_KEY` name PEM files, and `PANTALA_TLS_STORE` a file in PKCS
//! #12 format, with the password `PANTALA_TLS_STORE_PASS`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::tls::Certificates;
use crate::{Server, binary, tool};

/// Maximum duration of one step of an installation, including downloads.
const INSTALL_MAX: Duration = Duration::from_secs(300);
/// Maximum duration of one workload. On an idle machine, every workload takes at most 8 s.
const WORKLOAD_MAX: Duration = Duration::from_secs(90);

/// One language.
pub struct Ecosystem {
    /// Its directory in `tests/clients`.
    pub name: &'static str,
    /// Programs that must be on the search path.
    pub programs: &'static [&'static str],
    /// Command lines that install packages, run in the copied directory.
    pub install: &'static [&'static [&'static str]],
    /// Command lines that run workloads, in the copied directory.
    pub workloads: &'static [&'static [&'static str]],
    /// The workloads that can also use TLS.
    pub encrypted: &'static [&'static [&'static str]],
}

/// The languages whose packages this process has tried to install. Each has its copied directory,
/// or `None` if it can't be used.
static INSTALLED: Mutex<Vec<(&str, Option<PathBuf>)>> = Mutex::new(Vec::new());

/// Password of a file in PKCS #12 format, which Java requires.
const STORE_PASSWORD: &str = "workload";

impl Ecosystem {
    /// Copies the directory and installs its packages. If the language is not installed, prints a
    /// `SKIPPED:` line and returns `None`. Outside of CI, a failed installation has the same
    /// result, for example without access to a registry.
    ///
    /// # Panics
    /// With `CI=true`, if the language is installed and the installation of packages fails.
    #[must_use]
    pub fn installed(&self) -> Option<PathBuf> {
        // Tests of one language share the directory, and may run at the same time.
        let mut all = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, folder)) = all.iter().find(|(name, _)| *name == self.name) {
            return folder.clone();
        }
        let folder = self.install();
        all.push((self.name, folder.clone()));
        folder
    }

    fn install(&self) -> Option<PathBuf> {
        if let Some(missing) = self.programs.iter().find(|program| tool::on_path(program).is_none()) {
            tool::skipped(format_args!("clients in {}: {missing} is not installed", self.name));
            return None;
        }
        let root = binary::workspace_root();
        let folder = root.join("target/clients").join(self.name);
        copy(&root.join("tests/clients").join(self.name), &folder);
        let start = Instant::now();
        for line in self.install {
            let ran = tool::run_to_end(&mut command(line, &folder), b"", INSTALL_MAX);
            if !ran.success {
                let why = format!("clients in {}: {line:?} fails:\n{}\n{}", self.name, ran.output, ran.errors);
                assert!(std::env::var("CI").as_deref() != Ok("true"), "{why}");
                tool::skipped(why);
                return None;
            }
        }
        println!("{}: installed in {} s", self.name, start.elapsed().as_secs());
        Some(folder)
    }

    /// Runs all workloads against `server`, one after another.
    ///
    /// # Panics
    /// If a workload exits with a status other than 0, prints no check, or exceeds its time limit.
    pub fn run(&self, folder: &Path, server: &mut Server) {
        for line in self.workloads {
            let port = server.port();
            self.run_one(line, folder, server, port, &[]);
        }
    }

    /// Runs the workloads that can use TLS on an encrypted port of `server`, with the client's
    /// certificate.
    ///
    /// # Panics
    /// Like [`Ecosystem::run`], or if openssl fails.
    pub fn run_encrypted(&self, folder: &Path, server: &mut Server, port: u16, certificates: &Certificates) {
        let store = certificates.file("client.p12");
        let (ca, cert, key) = (certificates.cert("ca"), certificates.cert("client"), certificates.key("client"));
        let pass = format!("pass:{STORE_PASSWORD}");
        certificates.openssl(&[
            "pkcs12",
            "-export",
            "-in",
            &cert,
            "-inkey",
            &key,
            "-out",
            &store,
            "-passout",
            pass.as_str(),
        ]);
        let environment = [
            ("PANTALA_TLS_CA", ca.as_str()),
            ("PANTALA_TLS_CERT", &cert),
            ("PANTALA_TLS_KEY", &key),
            ("PANTALA_TLS_STORE", &store),
            ("PANTALA_TLS_STORE_PASS", STORE_PASSWORD),
        ];
        for line in self.encrypted {
            self.run_one(line, folder, server, port, &environment);
        }
    }

    /// Runs a workload with these environment variables. Afterwards, `server` must still run. The
    /// workload connects to the port of `server`.
    ///
    /// # Panics
    /// Like [`Ecosystem::run`].
    pub fn run_with(&self, line: &[&str], folder: &Path, server: &mut Server, environment: &[(&str, &str)]) {
        self.run_one(line, folder, server, server.port(), environment);
    }

    fn run_one(&self, line: &[&str], folder: &Path, server: &mut Server, port: u16, environment: &[(&str, &str)]) {
        let mut command = command(line, folder);
        command.env("PANTALA_PORT", port.to_string()).envs(environment.iter().copied());
        let ran = tool::run_to_end(&mut command, b"", WORKLOAD_MAX);
        println!("{}", ran.output.trim_end());
        let is_encrypted = environment.iter().any(|(name, _)| name.starts_with("PANTALA_TLS"));
        let how = if is_encrypted { " over TLS" } else { "" };
        assert!(ran.success, "{}: {line:?}{how} fails:\n{}\nthe server:\n{}", self.name, ran.errors, server.log());
        assert!(ran.output.lines().any(|line| line.starts_with("ok ")), "{}: {line:?} checked nothing", self.name);
        server.assert_sound();
    }
}

/// Returns a command line to run in `folder`. A program whose name contains a slash was installed
/// in `folder`.
fn command(line: &[&str], folder: &Path) -> Command {
    let (program, args) = line.split_first().expect("a command line names a program");
    let program = if program.contains('/') { folder.join(program) } else { PathBuf::from(program) };
    let mut command = Command::new(program);
    command.args(args).current_dir(folder);
    // These variables of the surrounding Python or Node environment must not affect the copied
    // environment.
    command.env_remove("VIRTUAL_ENV").env_remove("PYTHONPATH").env_remove("NODE_PATH");
    command
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap_or_else(|error| panic!("{}: {error}", to.display()));
    let entries = std::fs::read_dir(from).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    for entry in entries {
        let path = entry.expect("the folder is read").path();
        if path.is_file() {
            let target = to.join(path.file_name().expect("a file has a name"));
            std::fs::copy(&path, &target).unwrap_or_else(|error| panic!("{}: {error}", target.display()));
        }
    }
}
