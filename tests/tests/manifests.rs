//! Unusual and invalid manifests of the append-only file. Pantala and redis-server must start with
//! the same data, or fail for the same reason.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use pantala_tests::server::READY_MAX;
use pantala_tests::{Client, binary, tool};

/// The result of starting a server with a manifest.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// The server started, and this is its reply to `GET n`.
    Started(String),
    /// The server exited with an error that contains this text of [`REASONS`].
    Failed(&'static str),
    /// The server exited with another error. This is its log.
    Unknown(String),
}

/// Texts by which errors are recognized.
const REASONS: &[&str] = &[
    "Found an empty AOF manifest",
    "too long line",
    "Invalid AOF manifest file format",
    "File can't be a path, just a filename",
    "Found duplicate base file information",
    "Found a non-monotonic sequence number",
    "Unknown AOF file type",
    "the truncated file is not the last file",
    "Unexpected end of file reading the append only file",
    "Unrecoverable error reading the append only file",
    "Bad file format reading the append only file",
    "Unable to obtain the AOF file missing length. stat: No such file or directory",
];

const BASE: &str = "file base seq 1 type b\n";
const INCREMENT: &str = "file one seq 1 type i\n";

/// `INCR n`, in a file of effects.
const INCR: &str = "*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n";

/// Writes the files of a server: a base, two increments, an increment that ends within a command,
/// an empty file, and the manifest.
fn lay_out(dir: &Path, manifest: &[u8]) {
    let files = dir.join("appendonlydir");
    fs::create_dir(&files).expect("a directory");
    for name in ["base", "one", "two"] {
        fs::write(files.join(name), INCR).expect("written");
    }
    fs::write(files.join("cut"), &INCR[..INCR.len() - 3]).expect("written");
    fs::write(files.join("empty"), "").expect("written");
    fs::write(files.join("appendonly.aof.manifest"), manifest).expect("written");
}

/// Starts a server with the files of [`lay_out`] and this manifest, and returns the result.
fn outcome(program: &Path, manifest: &[u8], more: &[&str]) -> Outcome {
    let folder = tempfile::tempdir().expect("a folder");
    lay_out(folder.path(), manifest);
    let (log, socket) = (folder.path().join("log"), folder.path().join("socket"));
    let mut child = Command::new(program)
        .args(["--port", "0", "--unixsocket", "socket", "--save", "", "--appendonly", "yes"])
        .args(more)
        .current_dir(folder.path())
        .stdout(File::create(&log).expect("the log opens"))
        .stderr(File::options().append(true).open(&log).expect("the log opens"))
        .spawn()
        .expect("the program starts");
    let deadline = Instant::now() + READY_MAX;
    let outcome = loop {
        if child.try_wait().expect("a child can be waited for").is_some() {
            let text = fs::read_to_string(&log).expect("a log");
            let reason = REASONS.iter().find(|reason| text.to_lowercase().contains(&reason.to_lowercase()));
            break reason.map_or(Outcome::Unknown(text), |reason| Outcome::Failed(reason));
        }
        assert!(Instant::now() < deadline, "{} neither starts nor ends", program.display());
        // redis-server creates its socket before it has loaded the files, so its log must also show
        // that it is ready.
        if socket.exists() && fs::read_to_string(&log).expect("a log").contains("eady to accept connections") {
            let mut client = Client::unix(&socket);
            break Outcome::Started(format!("{:?}", client.call("GET n")));
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let _ = child.kill();
    let _ = child.wait();
    outcome
}

#[test]
fn unusual_manifests_are_accepted_or_rejected_as_by_redis() {
    let Some(redis) = tool::find("redis-server") else { return tool::skipped("redis-server is not installed") };
    let long = format!("file {} seq 1 type i\n", "x".repeat(1100));
    let cases: Vec<String> = [
        "",
        "# nothing\nfile one seq 1 type i\n",
        "\n",
        "file one seq 1 type i",
        &long,
        "file one seq 1\n",
        "file one seq 1 type i extra\n",
        "file one seq 0 type i\n",
        "file one seq x type i\n",
        "file one seq 1x type i\n",
        "file one seq 1 type x\n",
        "file one seq 1 type increment\n",
        "FILE one SEQ 1 TYPE i\n",
        "type i seq 1 file one other words\n",
        "file \"one\" seq 1 type i\n",
        "file \"one seq 1 type i\n",
        "file ../one seq 1 type i\n",
        "file .. seq 1 type i\n",
        "file missing seq 1 type i\n",
        "file missing seq 1 type h\nfile one seq 1 type i\n",
        "file empty seq 1 type i\nfile two seq 2 type i\n",
        "file cut seq 1 type i\nfile two seq 2 type i\n",
        "file one seq 2 type i\nfile two seq 1 type i\n",
        "file one seq 1 type i\nfile two seq 1 type i\n",
        "file one seq 1 type i\nfile one seq 2 type i\n",
        "file one seq 1 type i\nfile two seq 7 type i\n",
    ]
    .into_iter()
    .map(str::to_owned)
    .chain([
        format!("{INCREMENT}{BASE}"),
        format!("{BASE}{BASE}"),
        format!("{BASE}{INCREMENT}file cut seq 2 type i\n"),
        format!("{BASE}file base seq 2 type b\n"),
        format!("  {BASE}\t{INCREMENT}"),
        format!("{BASE}\n{INCREMENT}"),
        format!("{}\r\n", BASE.trim()),
    ])
    .collect();
    let mut wrong = Vec::new();
    for more in [&[][..], &["--aof-load-truncated", "no"]] {
        for manifest in &cases {
            let right = outcome(&redis, manifest.as_bytes(), more);
            assert!(!matches!(right, Outcome::Unknown(_)), "{manifest:?}: {right:?}");
            let given = outcome(binary::pantala(), manifest.as_bytes(), more);
            if given != right {
                wrong.push(format!("{manifest:?} {more:?}: {given:?}, not {right:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
