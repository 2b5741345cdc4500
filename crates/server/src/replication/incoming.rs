//! A snapshot that is loaded from the link while it arrives, without a file (`repl-diskless-load
//! on-empty-db` and `swapdb`).

use std::io::{self, Read};
use std::time::{Duration, Instant};

use pantala_engine::whole::Whole;
use pantala_replication::replica::Payload;

use super::link::{Attempt, End, Wire};
use super::replica::Transfer;
use super::socket::Socket;
use crate::host::Server;
use crate::snapshot::load::{self, Duty, Loaded};

/// Minimum interval between empty lines sent to the primary. The lines keep the primary from timing
/// out a replica that is loading.
const ALIVE_EVERY: Duration = Duration::from_secs(1);

/// A snapshot that is arriving. Reading from it blocks until more bytes have arrived.
pub(super) struct Incoming<'a, 's> {
    attempt: &'a Attempt<'s>,
    wire: &'a mut Wire,
    payload: Payload,
    total_bytes: Option<u64>,
    /// The latest received bytes of the snapshot. The first `at` of them have been read.
    part: Vec<u8>,
    at: usize,
    /// Number of bytes received before `part`.
    earlier_bytes: u64,
    /// Whether `part` is the last part of the snapshot.
    is_over: bool,
    /// When the last empty line was sent to the primary.
    alive: Instant,
    /// The reason why the attempt to follow the primary has ended.
    end: Option<End>,
}

impl<'a, 's> Incoming<'a, 's> {
    /// Creates the state of a snapshot from which nothing has been read yet.
    pub(super) fn new(attempt: &'a Attempt<'s>, wire: &'a mut Wire, payload: Payload) -> Self {
        let total_bytes = payload.length();
        Incoming {
            attempt,
            wire,
            payload,
            total_bytes,
            part: Vec::new(),
            at: 0,
            earlier_bytes: 0,
            is_over: false,
            alive: Instant::now(),
            end: None,
        }
    }

    /// Returns the snapshot's length, if the primary has sent it.
    pub(super) fn total_bytes(&self) -> Option<u64> {
        self.total_bytes
    }

    /// Returns the socket.
    pub(super) fn socket(&mut self) -> &mut Socket {
        &mut self.wire.socket
    }

    /// Returns the payload, for receiving the snapshot in another way. Must be called before
    /// anything has been read.
    pub(super) fn into_payload(self) -> Payload {
        self.payload
    }

    /// Takes the reason why a read has ended the attempt to follow the primary.
    pub(super) fn take_end(&mut self) -> Option<End> {
        self.end.take()
    }

    /// Loads the snapshot. Checks that the snapshot ends where the primary has announced.
    pub(super) fn load(&mut self, server: &Server, whole: &mut Whole<'_>) -> Result<Loaded, String> {
        let total_bytes = self.total_bytes;
        let loaded = load::load_from(server, &mut *self, total_bytes, whole, Duty::Store);
        let loaded = loaded.map_err(|error| error.to_string())?;
        let rest = self.read(&mut [0]).map_err(|error| error.to_string())?;
        if rest > 0 || loaded.end != self.earlier_bytes + self.part.len() as u64 {
            return Err("bytes behind the end of the snapshot".to_owned());
        }
        Ok(loaded)
    }

    /// Receives bytes. Replaces the content of `part` by the received bytes that belong to the
    /// snapshot, which may be none.
    fn receive(&mut self) -> Result<(), End> {
        self.earlier_bytes += self.part.len() as u64;
        self.part.clear();
        self.at = 0;
        self.is_over = self.wire.feed(&mut self.payload, &mut self.part);
        if self.part.is_empty() && !self.is_over {
            self.wire.read(self.attempt)?;
            self.is_over = self.wire.feed(&mut self.payload, &mut self.part);
        }
        if self.alive.elapsed() >= ALIVE_EVERY {
            self.alive = Instant::now();
            // The result is ignored, because the next read detects a lost link.
            let _ = self.wire.socket.write_all(b"\n");
        }
        let transfer =
            Transfer { total_bytes: self.total_bytes, read_bytes: self.earlier_bytes + self.part.len() as u64 };
        self.attempt.show(transfer);
        Ok(())
    }
}

impl Read for Incoming<'_, '_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.at == self.part.len() && !self.is_over {
            if let Err(end) = self.receive() {
                let error = io::Error::other(match &end {
                    End::Failed(why) => why.clone(),
                    End::Unwanted => "the link is no longer wanted".to_owned(),
                });
                self.end = Some(end);
                return Err(error);
            }
        }
        let read = buf.len().min(self.part.len() - self.at);
        buf[..read].copy_from_slice(&self.part[self.at..self.at + read]);
        self.at += read;
        self.attempt.count_loaded(read as u64);
        Ok(read)
    }
}
