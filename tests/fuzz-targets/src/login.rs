//! Arbitrary bytes from a client to a server that requires a password. Some byte values are
//! replaced by the valid password, or by commands with it ([`expand`]), so that some inputs log in.
//! No other input can contain the password, because it is random.
//!
//! From the commands, a model computes when the client is logged in. Until then, no command that
//! needs a login may run. The client may receive only the replies of `QUIT` and `RESET`, and errors
//! that reveal no data. No input may change the users.
//!
//! The server is complete: a worker with its event loop serves one end of a pair of sockets.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, OnceLock};
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
use pantala_resp::{ArgRange, Args, Limits, Parser};
use pantala_runtime::{Backend, Doorbell, EpollLoop, EventLoop};

use crate::host::Files;

/// Maximum wait for a reply.
const PATIENCE: Duration = Duration::from_secs(10);

/// The starts of all errors that a client may see before it is logged in.
const ERRORS: &[&str] = &[
    "NOAUTH ",
    "WRONGPASS ",
    "NOPROTO ",
    "ERR Protocol error: ",
    "ERR unknown command ",
    "ERR unknown subcommand ",
    "ERR wrong number of arguments for ",
    // In a reply of `EXEC`, these follow [`IN_EXEC`].
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

/// Commands that a client that isn't logged in may run.
const ALLOWED: [&str; 4] = ["auth", "hello", "quit", "reset"];

/// The permissions of the users `default` and `ann` after the login. Each of these commands has one
/// short reply, and none affects other clients.
const RULES: &str =
    "resetkeys ~k* resetchannels -@all +auth +hello +quit +reset +set +strlen +del +ping +echo +acl|whoami";

/// The user that counts the commands that ran.
const OBSERVER: &str = "observer";

/// Bytes of an input that are replaced by the password, or by commands that log in.
const PASSWORD: u8 = 0xf8;
const AUTH: u8 = 0xf9;
const AUTH_USER: u8 = 0xfa;
const HELLO_2: u8 = 0xfb;
const HELLO_3: u8 = 0xfc;

/// A server with one worker, its password, and the connection of the observer.
struct Target {
    server: &'static Server,
    password: String,
    observer: Mutex<UnixStream>,
}

impl Target {
    /// Starts a server with a random password.
    fn start() -> Target {
        let mut password = [0; 16];
        assert!(pantala::users::fill_random(&mut password));
        let password: String = password.iter().map(|byte| format!("{byte:02x}")).collect();
        let server = start(&password);
        let mut observer = connect(server);
        let login = format!("AUTH {OBSERVER} {password}\r\n");
        observer.write_all(login.as_bytes()).expect("the server reads");
        assert_eq!(read_reply(&mut observer), Value::Simple(b"OK".to_vec()));
        Target { server, password, observer: Mutex::new(observer) }
    }
}

/// Returns how many commands that need a login have run, except those of the observer.
fn commands_run(observer: &mut UnixStream) -> u64 {
    observer.write_all(b"INFO commandstats\r\n").expect("the server reads");
    let Value::Bulk(text) = read_reply(observer) else { panic!("INFO replies with a text") };
    let calls = |line: &str| {
        let (name, counts) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let is_counted = name != "info" && !ALLOWED.contains(&name);
        is_counted.then(|| counts.split(',').next().and_then(|count| count.parse::<u64>().ok()).expect("a count"))
    };
    String::from_utf8_lossy(&text).lines().filter_map(calls).sum()
}

/// Encodes a command.
fn encode(words: &[&str]) -> Vec<u8> {
    let words_encoded = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
    format!("*{}\r\n{}", words.len(), words_encoded.collect::<String>()).into_bytes()
}

/// Returns the next reply. The connection must receive nothing after it.
fn read_reply(client: &mut UnixStream) -> Value {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        if let Some((value, length)) = parse_reply(&bytes).expect("a valid reply") {
            assert_eq!(length, bytes.len());
            return value;
        }
        match client.read(&mut chunk) {
            Ok(count) if count > 0 => bytes.extend_from_slice(&chunk[..count]),
            // libFuzzer's timer interrupts reads.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => panic!("{other:?} after {}", bytes.escape_ascii()),
        }
    }
}

/// Returns an input with its replaced bytes.
fn expand(input: &[u8], password: &str) -> Vec<u8> {
    let mut stream = Vec::new();
    for &byte in input {
        let words: &[&str] = match byte {
            PASSWORD => {
                stream.extend_from_slice(password.as_bytes());
                continue;
            }
            AUTH => &["AUTH", password],
            AUTH_USER => &["AUTH", "ann", password],
            HELLO_2 => &["HELLO", "2", "AUTH", "default", password],
            HELLO_3 => &["HELLO", "3", "AUTH", "ann", password],
            _ => {
                stream.push(byte);
                continue;
            }
        };
        stream.extend(encode(words));
    }
    stream
}

/// How a command affects the login.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Effect {
    LogsIn,
    /// `HELLO` with a valid password and with other options. The login fails if an option is
    /// invalid.
    MayLogIn,
    LogsOut,
    Ends,
    None,
}

fn effect(words: &[Vec<u8>], password: &str) -> Effect {
    let is = |index: usize, text: &str| words.get(index).is_some_and(|word| word.eq_ignore_ascii_case(text.as_bytes()));
    let is_login = |user: &[u8], word: &[u8]| {
        word == password.as_bytes() && [&b"default"[..], b"ann", OBSERVER.as_bytes()].contains(&user)
    };
    match words {
        [_, word] if is(0, "auth") && is_login(b"default", word) => Effect::LogsIn,
        [_, user, word] if is(0, "auth") && is_login(user, word) => Effect::LogsIn,
        [_, version, _, user, word]
            if is(0, "hello") && matches!(&version[..], b"2" | b"3") && is(2, "auth") && is_login(user, word) =>
        {
            Effect::LogsIn
        }
        [_, rest @ ..] if is(0, "hello") && rest.windows(2).any(|pair| is_login(&pair[0], &pair[1])) => {
            Effect::MayLogIn
        }
        [_] if is(0, "reset") => Effect::LogsOut,
        [_, ..] if is(0, "quit") => Effect::Ends,
        _ => Effect::None,
    }
}

/// Returns the effects of the commands of a stream, up to its first error.
fn effects(mut stream: Vec<u8>, password: &str) -> Vec<Effect> {
    let (mut parser, mut found) = (Parser::new(), Vec::new());
    loop {
        let mut ranges = Vec::<ArgRange>::new();
        let Ok(Some(length)) = parser.parse(&mut stream, &mut ranges, &Limits::default()) else { return found };
        let words: Vec<Vec<u8>> = Args::new(&stream, &ranges).iter().map(<[u8]>::to_vec).collect();
        // An empty command has no reply, so it has no entry here.
        if !words.is_empty() {
            found.push(effect(&words, password));
        }
        stream.drain(..length);
    }
}

/// Starts a server with one worker.
fn start(password: &str) -> &'static Server {
    let options = format!(
        "port 0\nsave \"\"\nworkers 1\nshards 2\nuser default on >{password} {RULES}\n\
         user ann on >{password} {RULES}\nuser {OBSERVER} on >{password} -@all +info\n"
    );
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
    server.port(server.worker_for(&socket, &server.config().settings())).send(Message::Socket(socket, 0));
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
    logins(data);
}

/// Runs the target on one input. Returns how often the client logged in.
fn logins(data: &[u8]) -> usize {
    static TARGET: OnceLock<Target> = OnceLock::new();
    let target = TARGET.get_or_init(Target::start);
    let users = target.server.keyspace().users();
    let before = (users.epoch(), users.lines());
    // Only one input runs at a time, because each input changes the server's counters.
    let mut observer = target.observer.lock().expect("no earlier input failed");
    let commands_before = commands_run(&mut observer);
    let Some((&split, input)) = data.split_first() else { return 0 };
    let stream = expand(input, &target.password);
    let at = (usize::from(split) * stream.len() / 256).min(stream.len());
    let replies = exchange(connect(target.server), stream.split_at(at).into());
    let mut effects = effects(stream, &target.password).into_iter();
    let mut rest = &replies[..];
    // Whether the client is logged in. `None` if the model doesn't know that.
    let mut state = Some(false);
    let (mut logins, mut has_been_in, mut has_ended) = (0, false, false);
    while !rest.is_empty() {
        assert!(!has_ended, "QUIT ends the connection: {}", replies.escape_ascii());
        let (value, length) = match parse_reply(rest) {
            Ok(Some(parsed)) => parsed,
            other => panic!("{other:?}: {}", rest.escape_ascii()),
        };
        rest = &rest[length..];
        let is_error = matches!(value, Value::Error(_));
        // If the effects of all commands are used up, this is the reply to a protocol error.
        let effect = effects.next().unwrap_or(Effect::None);
        match effect {
            Effect::LogsIn if !is_error => {
                (state, has_been_in) = (Some(true), true);
                logins += 1;
                continue;
            }
            Effect::LogsIn => assert!(is_protocol_error(&value), "{value:?} for a valid login"),
            Effect::MayLogIn => (state, has_been_in) = (None, true),
            Effect::LogsOut if value == Value::Simple(b"RESET".to_vec()) => state = Some(false),
            Effect::Ends => has_ended = true,
            Effect::LogsOut | Effect::None => {}
        }
        if state == Some(false) {
            assert_reveals_nothing(&value, effect);
        }
    }
    assert_eq!((users.epoch(), users.lines()), before, "users are as before");
    if !has_been_in {
        assert_eq!(commands_run(&mut observer), commands_before, "commands ran without a login");
    }
    logins
}

fn is_protocol_error(value: &Value) -> bool {
    matches!(value, Value::Error(text) if text.starts_with(b"ERR Protocol error: "))
}

/// Checks a reply to a client that isn't logged in.
fn assert_reveals_nothing(value: &Value, effect: Effect) {
    match value {
        Value::Error(text) => {
            let text = String::from_utf8_lossy(text);
            let text = text.strip_prefix(IN_EXEC).unwrap_or(&text);
            assert!(ERRORS.iter().any(|known| text.starts_with(known)), "{text}");
        }
        Value::Simple(text) if text == b"OK" => assert_eq!(effect, Effect::Ends),
        Value::Simple(text) if text == b"RESET" => assert_eq!(effect, Effect::LogsOut),
        other => panic!("{other:?} without a login"),
    }
}

#[cfg(test)]
mod tests {
    use pantala_tests::random::Random;

    use super::*;

    /// Inputs whose logins the server accepts, and similar inputs.
    #[test]
    fn valid_passwords_log_in_and_others_do_not() {
        let with = |parts: &[&[u8]]| logins(&parts.concat());
        for command in [AUTH, AUTH_USER, HELLO_2, HELLO_3] {
            for split in [0, 100, 255] {
                assert_eq!(with(&[&[split], b"GET k\r\n", &[command], b"SET k v\r\nSTRLEN k\r\nGET k\r\n"]), 1);
                assert_eq!(with(&[&[split, command], b"RESET\r\nGET k\r\n", &[command], b"QUIT\r\nPING\r\n"]), 2);
            }
        }
        assert_eq!(with(&[b"\0auth default ", &[PASSWORD], b"\r\nPING\r\n"]), 1);
        assert_eq!(with(&[b"\0AUTH nobody ", &[PASSWORD], b"\r\nPING\r\n"]), 0);
        assert_eq!(with(&[b"\0AUTH ", &[PASSWORD], b"x\r\nPING\r\nRESET\r\nQUIT\r\n"]), 0);
        // The model can't tell whether these commands log in.
        assert_eq!(with(&[b"\0HELLO 3 AUTH ann ", &[PASSWORD], b" SETNAME me\r\nPING\r\n"]), 0);
        assert_eq!(with(&[b"\0HELLO 3 AUTH ann ", &[PASSWORD], b" NONE\r\nPING\r\n"]), 0);
    }

    /// Random sequences of commands and parts of commands, with and without the valid password.
    #[test]
    fn random_sequences_agree_with_the_model() {
        const INPUTS: usize = 2_000;
        const PARTS_MAX: usize = 20;
        let parts: [&[u8]; 21] = [
            &[PASSWORD],
            &[AUTH],
            &[AUTH_USER],
            &[HELLO_2],
            &[HELLO_3],
            b"AUTH ",
            b"AUTH ann ",
            b"AUTH x y\r\n",
            b"HELLO 3 AUTH default ",
            b"HELLO 3\r\n",
            b" SETNAME a",
            b"RESET\r\n",
            b"QUIT\r\n",
            b"PING\r\n",
            b"SET k v\r\n",
            b"SET x v\r\n",
            b"MULTI\r\n",
            b"*2\r\n$4\r\nECHO\r\n$32\r\n",
            b"*1\r\n$5\r\nRESET\r\n",
            b"\r\n",
            b"\"",
        ];
        let mut random = Random::from_seed(Random::seed("logins of the fuzz target"));
        let mut count = 0;
        for _ in 0..INPUTS {
            let mut input = vec![random.next_u64() as u8];
            for _ in 0..random.below(PARTS_MAX) {
                let part: &&[u8] = random.pick(&parts);
                input.extend_from_slice(part);
            }
            count += logins(&input);
        }
        assert!(count > INPUTS / 2, "only {count} logins");
    }
}
