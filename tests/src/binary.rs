//! Builds the `pantala` binary and returns its path. `cargo test` builds a binary only for the
//! tests of the binary's own package, and these tests are in another package.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use cargo_metadata::Message;

/// Returns the root directory of the workspace.
///
/// # Panics
/// Never, because this package is in a subdirectory of the workspace.
#[must_use]
pub fn workspace_root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().expect("the package has a parent").to_path_buf()
}

/// Returns the path of the binary under test. This is the value of `PANTALA_BIN`, if it is set.
/// Otherwise cargo builds the binary once per process, in the profile of this test.
///
/// # Panics
/// If the binary can't be built.
pub fn pantala() -> &'static PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| match std::env::var_os("PANTALA_BIN") {
        Some(path) => workspace_root().join(path),
        None => build("pantala", &["pantala"]),
    })
}

/// Returns the path of `pantala-bench`, built once per process by cargo in the profile of this
/// test.
///
/// # Panics
/// If the binary can't be built.
pub fn pantala_bench() -> &'static PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| build("pantala-bench", &["pantala-bench", "pantala", "pantala-tests"]))
}

/// Builds the binary `name` with `cargo build` of these `packages`. The callers choose `packages`
/// so that cargo enables the same features of dependencies as `cargo test --workspace` does. If the
/// tests run under that command, all dependencies are then already built.
fn build(name: &str, packages: &[&str]) -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--bin", name, "--message-format=json-render-diagnostics"]);
    for package in packages {
        command.args(["--package", package]);
    }
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    // Cargo sets this variable for the package under test. The build of another package must not
    // inherit it.
    let mut child = command
        .current_dir(workspace_root())
        .env_remove("CARGO_MANIFEST_DIR")
        .stdout(Stdio::piped())
        .spawn()
        .expect("cargo starts");
    let output = std::io::BufReader::new(child.stdout.take().expect("standard output is piped"));
    // Reads to the end of the stream, because cargo fails if its last lines aren't read.
    let executables = Message::parse_stream(output).filter_map(Result::ok).filter_map(|message| match message {
        Message::CompilerArtifact(artifact) if artifact.target.name == name => artifact.executable,
        _ => None,
    });
    let executable = executables.last();
    let status = child.wait().expect("cargo ends");
    assert!(status.success(), "cargo build of {name} failed: {status}");
    executable.expect("cargo reports the executable that it built").into_std_path_buf()
}
