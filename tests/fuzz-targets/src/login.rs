//! A server that requires a password, and a client that doesn't know it, on arbitrary bytes. The
//! client may receive only errors that reveal no data, and the replies of `QUIT` and `RESET`. It
//! may change nothing.
//!
//! The server is complete: a worker with its event loop serves one end of a pair of sockets.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::time::Duration;

use pantala::config::{ConfigStore, HostDefaults, Sources, load};
use pantala::host::{Facts, Server};
use pantala::process::Kind;
use pantala::process::placement::{Placement, Wanted};
use pantala::renames::Renames;
use pantala::worker::Worker;
use pantala_engine::keyspace::{Execution, Keyspace, Layout, WorkerPort};
use pantala_engine::message::Message;
use pantala_resp::value::{Value, parse_reply};
use pantala_runtime::{Backend, Doorbell, EpollLoop, EventLoop};

use crate::host::Files;

/// Maximum wait for a reply.
const PATIENCE: Duration = Duration::from_secs(10);

/// The starts of all errors that such a client may see.
const ERRORS: &[&str] = &[
    "NOAUTH ",
    "WRONGPASS ",
    "NOPROTO ",
    "ERR Protocol error: ",
    "ERR unknown command ",
    "ERR unknown subcommand ",
    "ERR wrong number of arguments for ",
    // These follow `IN_EXEC` in a reply of `EXEC`.
    "wrong number of arguments for ",
    "ERR syntax error",
    "ERR Syntax error in HELLO option ",
    "ERR Protocol version is not an integer",
    "ERR Client names cannot contain ",
    "ERR DEBUG command not allowed",
    "ERR MODULE command not allowed",
];

/// The start of the reply to a rejected `EXEC`, before the reason.
const IN_EXEC: &str = "EXECABORT Transaction discarded because of: ";

/// Starts a server with one worker and a random password, which no input contains.
fn start() -> &'static Server {
    let mut password = [0; 32];
    assert!(pantala::users::fill_random(&mut password));
    let password: String = password.iter().map(|byte| format!("{byte:02x}")).collect();
    let options =
        format!("port 0\nsave \"\"\nworkers 1\nshards 2\nrequirepass {password}\nuser ann on >{password} +@all\n");
    let sources = Sources { options: options.into_bytes(), ..Sources::default() };
    let defaults = HostDefaults { workers: 1, shards: |_| 2, partitions: |_, shards| shards };
    let loaded = load(&sources, defaults, &mut Files(None)).expect("a valid configuration");
    let wanted = Wanted { homes: 1, io_workers: 0, pin_threads: false, numa: false };
    let facts = Facts {
        backend: Backend::Epoll,
        backend_reason: String::new(),
        executable: String::new(),
        config_file: String::new(),
        run_id: String::new(),
        node_id: String::new(),
        started_ms: 0,
        startup_bytes: 0,
        workers: 1,
        placement: Placement::of_process(wanted),
        first_io_worker: 0,
    };
    let layout = Layout {
        shards: 2,
        partitions: 2,
        databases: 16,
        homes: 1,
        workers: 1,
        execution: Execution::Inline,
        seed: 1,
        random_seed: 1,
    };
    let doorbell = Doorbell::new().expect("an eventfd");
    let bell = doorbell.clone();
    let keyspace = Keyspace::new(layout, vec![WorkerPort::new(Box::new(move || bell.ring()))]);
    let (config, renames) = (ConfigStore::new(&loaded), Renames::new(&loaded.renames));
    // The server lives as long as the process.
    let server: &'static Server = Box::leak(Box::new(Server::new(keyspace, config, renames, facts, Vec::new())));
    server.load_users(&loaded.users).expect("valid users");
    std::thread::spawn(move || {
        let io = EpollLoop::new(doorbell).expect("an epoll instance");
        Worker::new(server, 0, io).run().expect("the worker runs");
    });
    server
}

/// Connects a client to the worker.
fn connect(server: &Server) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    ours.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    ours.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    theirs.set_nonblocking(true).expect("it doesn't block");
    let settings = server.config().settings();
    let socket = server.admit(theirs.into(), Kind::Tcp, &settings).expect("it is admitted");
    server.port(server.worker_for(&socket)).send(Message::Socket(socket, 0));
    ours
}

/// Returns all that the server replies before it closes the connection.
fn exchange(mut client: UnixStream, pieces: [&[u8]; 2]) -> Vec<u8> {
    for piece in pieces {
        // The server may have closed the connection.
        if client.write_all(piece).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Write);
    let (mut replies, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        match client.read(&mut chunk) {
            Ok(0) => return replies,
            Ok(count) => replies.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return replies,
            // libFuzzer's timer interrupts reads.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("{error} after {}", replies.escape_ascii()),
        }
    }
}

/// Runs the target on one input, and panics on a defect.
pub fn run(data: &[u8]) {
    static SERVER: OnceLock<&'static Server> = OnceLock::new();
    let server = *SERVER.get_or_init(start);
    let users = server.keyspace().users();
    let before = (users.epoch(), users.lines());
    let Some((&split, stream)) = data.split_first() else { return };
    let at = (usize::from(split) * stream.len() / 256).min(stream.len());
    let replies = exchange(connect(server), stream.split_at(at).into());
    let mut rest = &replies[..];
    let mut has_quit = false;
    while !rest.is_empty() {
        assert!(!has_quit, "QUIT ends the connection: {}", replies.escape_ascii());
        let (value, length) = match parse_reply(rest) {
            Ok(Some(parsed)) => parsed,
            other => panic!("{other:?}: {}", rest.escape_ascii()),
        };
        match &value {
            Value::Error(text) => {
                let text = String::from_utf8_lossy(text);
                let text = text.strip_prefix(IN_EXEC).unwrap_or(&text);
                assert!(ERRORS.iter().any(|known| text.starts_with(known)), "{text}");
            }
            Value::Simple(text) if text == b"OK" => has_quit = true,
            Value::Simple(text) => assert_eq!(text, b"RESET"),
            other => panic!("{other:?}: {}", replies.escape_ascii()),
        }
        rest = &rest[length..];
    }
    assert_eq!((users.epoch(), users.lines()), before, "users are as before");
}
