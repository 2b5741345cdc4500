//! A connection that reads the stream of effects after `SYNC`.
//!
//! Its worker reads the log when it is woken ([`Workers::wake_follower`]) and when the connection
//! has sent the parts read before. Unread parts stay in the log, which cuts the reader off when
//! they are too many.

use std::sync::Arc;

use pantala_base::{Outgoing, crc64};

use crate::clients::listener::Listener;
use crate::effect::log::{Ahead, Start};
use crate::effect::{Journal, Reader};
use crate::events::Workers;
use crate::tuning::Tuning;

/// The stream of a following connection, which its worker owns.
pub struct Follower {
    reader: Reader,
    has_started: bool,
}

impl Follower {
    /// Makes a connection follow the stream from now on.
    ///
    /// # Errors
    /// The journal's thread can't be started.
    pub(crate) fn new(
        journal: &Journal,
        tuning: &Tuning,
        workers: Arc<dyn Workers>,
        connection: Listener,
    ) -> std::io::Result<Self> {
        let wake = Arc::new(move || workers.wake_follower(connection));
        let reader = journal.join(tuning, Start::Now, journal.replica_bound(), wake)?;
        Ok(Follower { reader: reader.expect("the present is always held"), has_started: false })
    }

    /// Returns its reader.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// As [`Reader::read`], after a snapshot without keys: the stream holds the writes since its
    /// start.
    pub fn read(&mut self, bytes: usize, into: &mut Vec<Outgoing>) -> Ahead {
        let at = into.len();
        let ahead = self.reader.read(bytes, into);
        if !self.has_started && matches!(ahead, Ahead::Nothing | Ahead::More) {
            self.has_started = true;
            into.insert(at, snapshot().into());
        }
        ahead
    }
}

/// Returns an RDB file without keys, as a replica gets it.
fn snapshot() -> Vec<u8> {
    let mut file = b"REDIS0010\xff".to_vec();
    file.extend_from_slice(&crc64(0, &file).to_le_bytes());
    let mut bytes = format!("${}\r\n", file.len()).into_bytes();
    bytes.append(&mut file);
    bytes
}
