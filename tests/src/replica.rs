//! Servers (*copies*) that follow another server's stream of effects while clients write. Each
//! *unit* of the stream (the effects between `MULTI` and `EXEC`, or a single effect) is checked
//! when it arrives. Since a crash or a lost link may end the stream after any unit, every property
//! of a replica's dataset must hold after every unit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use crate::client::encode_into;
use crate::effects::{
    Effect, EffectStream, MARKER, as_sent_by_a_client, digest, has_error, show_effect, wait_for_expiry,
};
use crate::waiting::eventually;
use crate::{Client, Server};

/// Number of effects after which a batch for the copies ends. A batch that reaches this number
/// within a transaction continues to the end of the transaction.
const TOGETHER: usize = 1000;

/// Maximum number of times that the digests of two servers are compared. The servers count as
/// different if every comparison fails. One comparison is not enough, because a key may expire
/// between its two digests.
const DIGESTS_MAX: usize = 3;

/// A check of a unit, given as its effects without `MULTI` and `EXEC`. An error says which property
/// doesn't hold after this unit.
pub type Look = Box<dyn FnMut(&[Effect]) -> Result<(), String> + Send>;

/// Copies that follow a server (see the module documentation).
pub struct Replica {
    copies: Vec<Server>,
    effects: Arc<AtomicU64>,
    is_marked: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), String>>,
}

impl Replica {
    /// Makes copies follow the server from this moment. The copies and the server must be empty.
    ///
    /// # Panics
    /// If the server rejects `SYNC`.
    #[must_use]
    pub fn attach(server: &Server, copies: Vec<Server>, look: Look) -> Replica {
        let stream = EffectStream::attach(server);
        let clients = copies.iter().map(Server::connect).collect();
        let (effects, is_marked) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let follower =
            Follower { stream, clients, look, effects: Arc::clone(&effects), is_marked: Arc::clone(&is_marked) };
        Replica { copies, effects, is_marked, thread: std::thread::spawn(move || follower.run()) }
    }

    /// Returns the number of effects received so far.
    #[must_use]
    pub fn effects(&self) -> u64 {
        self.effects.load(Ordering::Relaxed)
    }

    /// Returns whether following has stopped, because of an error.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until the copies have applied all effects, and compares them with the server. No
    /// client may write any more. Returns the number of effects.
    ///
    /// # Errors
    /// A check of a unit failed, a copy replied with an error, or a copy has a different dataset.
    ///
    /// # Panics
    /// If the stream ends.
    pub fn finish(self, server: &Server) -> Result<u64, String> {
        wait_for_expiry(server);
        let mut client = server.connect();
        // If another worker ran a write, the write's effect may follow the first marker, although
        // the write was acknowledged before the marker was set. The effect precedes the second
        // marker, which is set only after the first was received.
        client.command(&[&b"SET"[..], MARKER, b"first"]);
        eventually("the stream contains the first marker", || {
            self.is_marked.load(Ordering::Relaxed) || self.has_ended()
        });
        client.command(&[&b"SET"[..], MARKER, b"last"]);
        self.thread.join().expect("the follower does not panic")?;
        for copy in &self.copies {
            copy.connect().call("SELECT 0");
            if !(0..DIGESTS_MAX).any(|_| digest(copy) == digest(server)) {
                return Err(format!("a copy differs: {} and {}", sizes(copy), sizes(server)));
            }
        }
        Ok(self.effects.load(Ordering::Relaxed))
    }
}

fn sizes(server: &Server) -> String {
    server.connect().call("INFO keyspace").text().replace("\r\n", " ")
}

struct Follower {
    stream: EffectStream,
    clients: Vec<Client>,
    look: Look,
    effects: Arc<AtomicU64>,
    is_marked: Arc<AtomicBool>,
}

impl Follower {
    fn run(mut self) -> Result<(), String> {
        let mut units = Units::default();
        loop {
            let (mut bytes, mut count, mut is_last) = (Vec::new(), 0, false);
            // Replies are read after each batch. No batch ends within a transaction, because its
            // commands have no result before `EXEC`.
            while !is_last && (count == 0 || units.is_open() || count < TOGETHER && !self.stream.is_drained()) {
                let effect = self.stream.next_effect();
                let marker = (effect.len() == 3 && effect[1] == MARKER).then(|| effect[2].as_slice());
                is_last = marker == Some(b"last");
                if marker == Some(b"first") {
                    self.is_marked.store(true, Ordering::Relaxed);
                }
                encode_into(&mut bytes, &as_sent_by_a_client(&effect));
                count += 1;
                if let Some(unit) = units.add(effect)? {
                    (self.look)(&unit)?;
                }
            }
            self.effects.fetch_add(count as u64, Ordering::Relaxed);
            for client in &mut self.clients {
                for (number, (reply, _)) in client.exchange(&bytes, count).into_iter().enumerate() {
                    if has_error(&reply) {
                        return Err(format!("a copy replied to effect {number} of {count} with {reply:?}"));
                    }
                }
            }
            if is_last {
                return Ok(());
            }
        }
    }
}

/// Assembles effects into units.
#[derive(Default)]
struct Units {
    open: Option<Vec<Effect>>,
}

impl Units {
    fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Adds an effect. Returns the unit that the effect completes.
    fn add(&mut self, effect: Effect) -> Result<Option<Vec<Effect>>, String> {
        match (effect.as_slice(), &mut self.open) {
            ([name], None) if name == b"MULTI" => self.open = Some(Vec::new()),
            ([name], Some(_)) if name == b"EXEC" => return Ok(self.open.take()),
            ([name], _) if name == b"MULTI" || name == b"EXEC" => {
                return Err(format!("{} at a wrong place", show_effect(&effect)));
            }
            (_, Some(open)) => open.push(effect),
            (_, None) => return Ok(Some(vec![effect])),
        }
        Ok(None)
    }
}
