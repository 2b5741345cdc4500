//! A scripted primary, which a Pantala server follows. The test determines what the primary sends,
//! such as a damaged snapshot or a stream with errors, and when the primary breaks the link.
//!
//! A *scene* is the primary's script for one connection: replies to the commands of the replica's
//! handshake, then an *answer* to `PSYNC` or `SYNC`.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::client::encode;

/// The replication ID of a scripted primary.
pub const ID: &str = "0123456789012345678901234567890123456789";

/// An RDB file without keys, and without a checksum.
pub const EMPTY_RDB: &[u8] = b"REDIS0010\xff\0\0\0\0\0\0\0\0";

/// A command that the replica has sent.
pub type Sent = Vec<String>;

/// The primary's behaviour on one connection (see the module documentation).
pub struct Scene {
    /// Replies to commands with these names, instead of the usual replies.
    replies: Vec<(&'static str, Vec<u8>)>,
    answer: Answer,
    end: End,
}

type Answer = Box<dyn FnOnce(&Sent) -> Vec<u8> + Send>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Closes the sending side after the answer, and reads until the replica closes.
    Close,
    /// Keeps the sending side open, and reads until the replica closes.
    Keep,
    /// Sends the answer repeatedly, until the replica closes.
    Repeat,
}

impl Scene {
    /// Returns a scene that completes the handshake, sends these bytes in reply to `PSYNC` or
    /// `SYNC`, and closes the sending side.
    #[must_use]
    pub fn answers(bytes: impl Into<Vec<u8>>) -> Scene {
        let bytes = bytes.into();
        Scene::computes(|_| bytes)
    }

    /// Returns a scene like [`Scene::answers`], but the function `answer` computes the bytes from
    /// the replica's `PSYNC`.
    #[must_use]
    pub fn computes(answer: impl FnOnce(&Sent) -> Vec<u8> + Send + 'static) -> Scene {
        Scene { replies: Vec::new(), answer: Box::new(answer), end: End::Close }
    }

    /// Returns a scene that answers with a full sync at `offset`, a snapshot without keys, and the
    /// bytes `stream`.
    #[must_use]
    pub fn streams(offset: u64, stream: &[u8]) -> Scene {
        Scene::answers([full_sync(offset, EMPTY_RDB), stream.to_vec()].concat())
    }

    /// Makes the scene reply to the handshake's command `name` with the bytes `reply`.
    #[must_use]
    pub fn replying(mut self, name: &'static str, reply: &[u8]) -> Scene {
        self.replies.push((name, reply.to_vec()));
        self
    }

    /// Makes the scene keep the link open after the answer.
    #[must_use]
    pub fn keeping(self) -> Scene {
        Scene { end: End::Keep, ..self }
    }

    /// Makes the scene send the answer repeatedly, until the replica closes the link.
    #[must_use]
    pub fn repeating(self) -> Scene {
        Scene { end: End::Repeat, ..self }
    }
}

/// Returns a `+FULLRESYNC` line and a snapshot of known length.
#[must_use]
pub fn full_sync(offset: u64, rdb: &[u8]) -> Vec<u8> {
    [format!("+FULLRESYNC {ID} {offset}\r\n${}\r\n", rdb.len()).as_bytes(), rdb].concat()
}

/// Returns the bytes of a stream with these commands.
#[must_use]
pub fn stream(commands: &[&str]) -> Vec<u8> {
    let encoded = commands.iter().map(|words| encode(&words.split(' ').collect::<Vec<_>>()));
    encoded.collect::<Vec<_>>().concat()
}

/// A scripted primary (see the module documentation).
pub struct StagedPrimary {
    port: u16,
    /// The commands that each connection has received.
    sent: Arc<Mutex<Vec<Vec<Sent>>>>,
    /// Number of empty lines that all connections have received.
    empty_lines: Arc<AtomicUsize>,
    thread: JoinHandle<()>,
}

impl StagedPrimary {
    /// Starts a primary that runs these scenes, one for each connection.
    ///
    /// # Panics
    /// If no port is free.
    #[must_use]
    pub fn start(scenes: Vec<Scene>) -> StagedPrimary {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let sent = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&sent);
        let empty_lines = Arc::default();
        let count = Arc::clone(&empty_lines);
        let thread = std::thread::spawn(move || {
            for scene in scenes {
                let Ok((socket, _)) = listener.accept() else { break };
                socket.set_nodelay(true).expect("a socket takes the option");
                all.lock().expect("no thread panics while holding it").push(Vec::new());
                play(scene, &socket, &count, &|command| {
                    let mut all = all.lock().expect("no thread panics while holding it");
                    all.last_mut().expect("pushed above").push(command);
                });
            }
        });
        StagedPrimary { port, sent, empty_lines, thread }
    }

    /// Returns the primary's port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the commands that each connection has received so far.
    ///
    /// # Panics
    /// If the primary's thread has panicked.
    #[must_use]
    pub fn sent(&self) -> Vec<Vec<Sent>> {
        self.sent.lock().expect("no thread panics while holding it").clone()
    }

    /// Returns the number of empty lines received so far. A replica sends empty lines to keep the
    /// link alive.
    #[must_use]
    pub fn empty_lines(&self) -> usize {
        self.empty_lines.load(Relaxed)
    }

    /// Waits until the last scene has ended. Returns the arguments of each connection's `PSYNC`, or
    /// an empty string for a connection without `PSYNC`.
    ///
    /// # Panics
    /// If the primary's thread has panicked.
    #[must_use]
    pub fn finish(self) -> Vec<String> {
        self.thread.join().expect("the staged primary does not panic");
        let all = self.sent.lock().expect("no thread panics while holding it");
        let asked = |commands: &Vec<Sent>| {
            let psync = commands.iter().find(|command| command[0] == "PSYNC");
            psync.map_or_else(String::new, |words| words[1..].join(" "))
        };
        all.iter().map(asked).collect()
    }
}

fn play(scene: Scene, mut socket: &TcpStream, empty_lines: &AtomicUsize, note: &dyn Fn(Sent)) {
    let Scene { replies, answer, end } = scene;
    let mut reader = BufReader::new(socket);
    let psync = loop {
        let Some(command) = read_command(&mut reader, empty_lines) else { return };
        note(command.clone());
        let name = command[0].as_str();
        let other = replies.iter().find(|(of, _)| *of == name).map(|(_, reply)| reply.as_slice());
        let reply = match (name, other) {
            ("PSYNC" | "SYNC", None) => break command,
            (_, Some(reply)) => reply,
            ("PING", None) => b"+PONG\r\n",
            (_, None) => b"+OK\r\n",
        };
        // The replica may have closed the connection.
        if socket.write_all(reply).is_err() {
            return;
        }
    };
    let bytes = answer(&psync);
    // The replica may close before it has read everything.
    let mut is_sent = socket.write_all(&bytes).is_ok();
    while end == End::Repeat && is_sent {
        is_sent = socket.write_all(&bytes).is_ok();
    }
    if end == End::Close {
        let _ = socket.shutdown(Shutdown::Write);
    }
    while let Some(command) = read_command(&mut reader, empty_lines) {
        note(command);
    }
}

/// Reads a command and returns its words. Converts the name of a command in array form to capitals.
/// Returns an inline command (`SYNC`) unchanged, as one word. Adds the number of empty lines before
/// the command to `empty_lines`. Returns `None` at the end of the stream.
fn read_command(reader: &mut impl BufRead, empty_lines: &AtomicUsize) -> Option<Sent> {
    let mut line = String::new();
    loop {
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if !line.trim().is_empty() {
            break;
        }
        empty_lines.fetch_add(1, Relaxed);
        line.clear();
    }
    let Some(count) = line.strip_prefix('*') else { return Some(vec![line.trim().to_owned()]) };
    let mut words = Vec::new();
    for _ in 0..count.trim().parse::<usize>().ok()? {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let mut word = vec![0; header.strip_prefix('$')?.trim().parse::<usize>().ok()? + 2];
        reader.read_exact(&mut word).ok()?;
        words.push(String::from_utf8_lossy(&word[..word.len() - 2]).into_owned());
    }
    words.first_mut()?.make_ascii_uppercase();
    Some(words)
}
