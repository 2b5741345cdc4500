//! Publishes one message to many subscribers. Each of them receives it, and the server stores it
//! once.

use std::io::{Read, Write};
use std::net::TcpStream;

use pantala_tests::client::{READ_MAX, encode};
use pantala_tests::waiting::eventually;
use pantala_tests::{Backend, Client, Random, Reply, Server, for_each_backend, tool};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const KB: usize = 1024;
const MB: usize = 1024 * KB;

/// Returns a message on `news` as a RESP2 subscriber receives it.
fn message(payload: &str) -> Vec<u8> {
    encode(&["message", "news", payload])
}

/// Raises the limit of open files of this process and its servers. Returns whether the host allows
/// this.
fn allow_files(count: u64) -> bool {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= count) {
        return true;
    }
    let is_allowed = maximum.is_none_or(|maximum| maximum >= count);
    is_allowed && setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum }).is_ok()
}

fn used_memory(client: &mut Client) -> usize {
    let text = client.call("INFO memory").text();
    let value = text.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("INFO has it");
    value.trim().parse().expect("a number")
}

/// Each of ten thousand subscribers of one channel receives a message. The server stores the
/// message once. Copies would use a third of a gigabyte.
#[test]
fn ten_thousand_listeners_share_a_message() {
    const LISTENERS: usize = 10_000;
    const PAYLOAD_BYTES: usize = 32 * KB;
    if !allow_files(LISTENERS as u64 + 200) {
        return tool::skipped(format_args!("fan-out: this host allows too few open files"));
    }
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "2", "--maxclients", "10100"]);
        let subscribe = encode(&["SUBSCRIBE", "news"]);
        let answer = b"*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n";
        let mut listeners: Vec<TcpStream> = (0..LISTENERS)
            .map(|_| {
                let mut listener = TcpStream::connect(("127.0.0.1", server.port())).expect("the server takes it");
                listener.set_read_timeout(Some(READ_MAX)).expect("a socket takes a timeout");
                listener.write_all(&subscribe).expect("the server receives");
                let mut bytes = vec![0; answer.len()];
                listener.read_exact(&mut bytes).expect("a reply");
                assert_eq!(bytes, answer);
                listener
            })
            .collect();
        let mut publisher = server.connect();
        let before = server.peak_resident_bytes();
        let payload = "p".repeat(PAYLOAD_BYTES);
        assert_eq!(publisher.command(&["PUBLISH", "news", &payload]), Reply::Integer(LISTENERS as i64));
        let expected = message(&payload);
        let mut bytes = vec![0; expected.len()];
        for (number, listener) in listeners.iter_mut().enumerate() {
            listener.read_exact(&mut bytes).expect("a message");
            assert!(bytes == expected, "listener {number} received another message");
        }
        let taken = server.peak_resident_bytes().saturating_sub(before) as usize;
        assert!(taken < LISTENERS * PAYLOAD_BYTES / 8, "{taken} bytes more");
        server.assert_sound();
    });
}

/// A long message that several subscribers haven't read is stored once, not once per subscriber. It
/// is freed when all have read it. As in Redis, its full length counts in each subscriber's output
/// buffer.
#[test]
fn unread_long_messages_are_stored_once() {
    const LISTENERS: usize = 100;
    const MESSAGES: usize = 6;
    for_each_backend(|backend| {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("socket");
        let path = socket.to_str().expect("a path in ASCII");
        // On a Unix socket, the kernel's buffers are small, so nearly all messages stay in the
        // server.
        let mut server = Server::pantala(backend, &["--workers", "2", "--unixsocket", path]);
        let mut listeners: Vec<Client> = (0..LISTENERS).map(|_| Client::unix(&socket)).collect();
        for listener in &mut listeners {
            listener.call("SUBSCRIBE news");
        }
        let mut publisher = server.connect();
        let (used, peak) = (used_memory(&mut publisher), server.peak_resident_bytes());
        let payloads: Vec<String> =
            (0..MESSAGES).map(|number| char::from(b'a' + number as u8).to_string().repeat(MB)).collect();
        for payload in &payloads {
            assert_eq!(publisher.command(&["PUBLISH", "news", payload]), Reply::Integer(LISTENERS as i64));
        }
        let waiting = |publisher: &mut Client| -> Vec<usize> {
            let list = publisher.call("CLIENT LIST TYPE pubsub").text();
            let omem = |line: &str| line.split(' ').find_map(|field| field.strip_prefix("omem=")?.parse().ok());
            list.lines().map(|line| omem(line).expect("each line has the field")).collect()
        };
        eventually("the output buffers are counted", || {
            waiting(&mut publisher).iter().all(|bytes| *bytes > (MESSAGES - 1) * MB)
        });
        // Each of the two workers stores its own copy of a message, which is half of this limit.
        // The other half is tolerance.
        let allowed = 4 * MESSAGES * MB;
        let taken = used_memory(&mut publisher).saturating_sub(used);
        assert!((MESSAGES * MB..allowed).contains(&taken), "{taken} bytes more are used");
        let taken = server.peak_resident_bytes().saturating_sub(peak) as usize;
        assert!(taken < 2 * allowed, "{taken} bytes more are resident");
        for listener in &mut listeners {
            for payload in &payloads {
                assert!(listener.receive_raw().1 == message(payload));
            }
        }
        eventually("the messages are freed", || used_memory(&mut publisher).saturating_sub(used) < MB);
        server.assert_sound();
    });
}

/// Long messages are shared between subscribers. Short messages are copied into the subscribers'
/// output buffers. Both kinds, and replies between them, arrive in the order in which they were
/// sent.
#[test]
fn long_and_short_messages_and_replies_keep_their_order() {
    const MESSAGES: usize = 400;
    let seed = Random::seed("fan_out_order");
    for_each_backend(|backend| {
        for execution in ["inline", "owner"] {
            let mut random = Random::from_seed(seed);
            let mut server = Server::pantala(backend, &["--workers", "2", "--execution", execution]);
            let mut listeners: Vec<Client> = (0..4).map(|_| server.connect()).collect();
            for listener in &mut listeners {
                listener.call("HELLO 3");
                listener.call("SUBSCRIBE news");
                listener.call("PSUBSCRIBE n*");
            }
            let mut publisher = server.connect();
            let mut pings = 0;
            let payloads: Vec<String> = (0..MESSAGES)
                .map(|number| {
                    let len = [0, 100, 15 * KB, 17 * KB, 100 * KB][random.below(5)];
                    let payload = format!("{number}:{}", "x".repeat(random.below(len + 1)));
                    assert_eq!(publisher.command(&["PUBLISH", "news", &payload]), Reply::Integer(8));
                    if random.one_in(3) {
                        pings += 1;
                        listeners.iter_mut().for_each(|listener| listener.send(&["PING", &pings.to_string()]));
                    }
                    payload
                })
                .collect();
            for listener in &mut listeners {
                let (mut received, mut answered) = (Vec::new(), Vec::new());
                for _ in 0..2 * MESSAGES + pings {
                    match listener.receive() {
                        Reply::Push(parts) => received.push(parts.last().expect("a payload").text()),
                        reply => answered.push(reply.text()),
                    }
                }
                // Each message arrives twice: once by the channel and once by the pattern.
                let twice: Vec<&String> = payloads.iter().flat_map(|payload| [payload; 2]).collect();
                assert!(received.iter().eq(twice), "received in another order than published");
                assert!(
                    answered.into_iter().eq((1..=pings).map(|number| number.to_string())),
                    "replies in another order"
                );
            }
            server.assert_sound();
        }
    });
}

/// Subscribers of `news` on a server with one worker. The server counts its writes to sockets.
struct Audience {
    server: Server,
    listeners: Vec<Client>,
    publisher: Client,
}

/// Number of commands that one connection sends. A worker needs more than two turns for so many
/// commands. Once it has replied to all of them, at least two turns have ended, and the second turn
/// delivers messages.
const PINGS_OF_TWO_TURNS: usize = 2 * 1024;

impl Audience {
    fn new(backend: Backend, listeners: usize, options: &[&str]) -> Audience {
        let server = Server::pantala(backend, &[&["--workers", "1"], options].concat());
        let mut listeners: Vec<Client> = (0..listeners).map(|_| server.connect()).collect();
        listeners.iter_mut().for_each(|listener| drop(listener.call("SUBSCRIBE news")));
        let publisher = server.connect();
        Audience { server, listeners, publisher }
    }

    fn writes(&mut self) -> usize {
        let text = self.publisher.call("INFO stats").text();
        let value = text.lines().find_map(|line| line.strip_prefix("total_writes_processed:")).expect("INFO has it");
        value.trim().parse().expect("a number")
    }

    /// Asserts that each subscriber receives exactly these payloads, in order.
    fn assert_received(&mut self, payloads: &[String]) {
        for listener in &mut self.listeners {
            for payload in payloads {
                assert!(listener.receive_raw().1 == message(payload));
            }
            listener.send(&["PING"]);
            assert_eq!(listener.receive_raw().1, encode(&["pong", ""]));
        }
    }
}

/// In each turn (iteration of a worker's event loop), the server sends a message to only some of
/// very many subscribers. Commands of other clients therefore run in between.
#[test]
fn a_message_to_many_delays_no_client() {
    const LISTENERS: usize = 3000;
    if !allow_files(LISTENERS as u64 + 200) {
        return tool::skipped(format_args!("fan-out: this host allows too few open files"));
    }
    for_each_backend(|backend| {
        let mut audience = Audience::new(backend, LISTENERS, &[]);
        let before = audience.writes();
        let mut commands = encode(&["PUBLISH", "news", "short"]);
        (0..PINGS_OF_TWO_TURNS).for_each(|_| commands.extend(encode(&["PING"])));
        commands.extend(encode(&["INFO", "stats"]));
        audience.publisher.send_raw(&commands);
        assert_eq!(audience.publisher.receive(), Reply::Integer(LISTENERS as i64));
        (0..PINGS_OF_TWO_TURNS).for_each(|_| drop(audience.publisher.receive()));
        let text = audience.publisher.receive().text();
        let value = text.lines().find_map(|line| line.strip_prefix("total_writes_processed:")).expect("INFO has it");
        let sent = value.trim().parse::<usize>().expect("a number") - before;
        assert!((1..LISTENERS / 2).contains(&sent), "{sent} messages were sent before the next turn");
        audience.assert_received(&["short".to_owned()]);
        audience.server.assert_sound();
    });
}

/// If messages are published faster than they are sent, they are batched in order. A client that
/// reads them is not closed as a slow client.
#[test]
fn delayed_messages_are_batched() {
    const LISTENERS: usize = 1000;
    // The limit doesn't count 16 KiB of output: two long messages are within it, and three exceed
    // it.
    const LONG_BYTES: usize = 6_500;
    if !allow_files(LISTENERS as u64 + 200) {
        return tool::skipped(format_args!("fan-out: this host allows too few open files"));
    }
    for_each_backend(|backend| {
        for execution in ["inline", "owner"] {
            let limit = ["--client-output-buffer-limit", "pubsub 1200 0 0", "--execution", execution];
            let mut audience = Audience::new(backend, LISTENERS, &limit);
            for is_long in [false, true] {
                let before = audience.writes();
                let (messages, padding_bytes) = if is_long { (20, LONG_BYTES) } else { (100, 10) };
                let padding = "x".repeat(padding_bytes);
                let payloads: Vec<String> = (0..messages).map(|number| format!("{number}:{padding}")).collect();
                for payload in &payloads {
                    let published = audience.publisher.command(&["PUBLISH", "news", payload]);
                    assert_eq!(published, Reply::Integer(LISTENERS as i64));
                }
                audience.assert_received(&payloads);
                let writes = audience.writes() - before;
                // Each batch is one write. A batch contains many short messages, so there must be
                // fewer writes than half the messages. A batch contains at most two long messages,
                // so there must only be fewer writes than messages.
                let most = if is_long { messages * LISTENERS } else { messages * LISTENERS / 2 };
                assert!(writes < most, "{writes} writes");
            }
            audience.server.assert_sound();
        }
    });
}
