//! Bytes that a connection has received and not run, and the commands among them.
//!
//! ```text
//! 0          start          parsed               end
//! │  done     │  parsed, to   │  not parsed, or     │
//! │           │  be run       │  part of a command  │
//! ```
//!
//! The bytes are either still in the event loop's memory, where they arrived (a chunk: nothing is copied when a turn runs
//! all of it, which is the rule), or in the connection's own (`rest`), never both.

use pantala_base::{Lender, Lent};
use pantala_resp::{ArgRange, Limits, Parser, ProtocolError};

/// A connection's own buffer above this capacity is freed when it is empty: ten thousand idle connections must not
/// each keep the room of their largest request.
const REST_KEPT_BYTES_MAX: usize = 16 * 1024;

/// A complete command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// Position of its first byte.
    pub begin: usize,
    /// Position behind its last.
    pub end: usize,
    /// It came as a line.
    pub is_inline: bool,
}

/// A command that was parsed and hasn't run.
#[derive(Clone, Copy, Debug)]
pub struct Unrun<'w> {
    /// Where it stands.
    pub parsed: Parsed,
    /// Where its arguments stand, relative to its first byte.
    pub ranges: &'w [ArgRange],
}

/// Commands that were parsed and may not run yet, in order. There is always one that is left.
#[derive(Default)]
struct Held {
    /// Each with the number of its arguments.
    commands: Vec<(Parsed, usize)>,
    /// The arguments of all of them.
    ranges: Vec<ArgRange>,
    /// Commands and arguments before these were taken.
    next: (usize, usize),
    /// How far the bytes have moved towards the beginning since the commands were parsed.
    moved: usize,
}

impl Held {
    fn push(&mut self, parsed: Parsed, ranges: &[ArgRange]) {
        self.commands.push((parsed, ranges.len()));
        self.ranges.extend_from_slice(ranges);
    }

    fn append(&mut self, mut behind: Held) {
        while !behind.is_empty() {
            let (parsed, ranges) = behind.take();
            self.push(parsed, ranges);
        }
    }

    fn is_empty(&self) -> bool {
        self.next.0 == self.commands.len()
    }

    /// Position of the first byte of the next one.
    fn begin(&self) -> usize {
        self.commands[self.next.0].0.begin - self.moved
    }

    /// Position behind the last byte of the last one.
    fn end(&self) -> usize {
        self.commands[self.commands.len() - 1].0.end - self.moved
    }

    /// Takes the next one, with its arguments.
    fn take(&mut self) -> (Parsed, &[ArgRange]) {
        let (command, first_arg) = self.next;
        let (Parsed { begin, end, is_inline }, args) = self.commands[command];
        self.next = (command + 1, first_arg + args);
        let parsed = Parsed { begin: begin - self.moved, end: end - self.moved, is_inline };
        (parsed, &self.ranges[first_arg..first_arg + args])
    }
}

/// See the head of this module. `C`: chunks of the event loop's memory.
pub struct Input<C> {
    parser: Parser,
    chunk: Option<C>,
    rest: Vec<u8>,
    start: usize,
    parsed: usize,
    /// Bytes that came after the parser had last asked for more.
    unseen: usize,
    /// Commands between `start` and `parsed` that no window has.
    held: Option<Box<Held>>,
}

impl<C> Default for Input<C> {
    fn default() -> Self {
        Input { parser: Parser::default(), chunk: None, rest: Vec::new(), start: 0, parsed: 0, unseen: 0, held: None }
    }
}

impl<C: Lent> Input<C> {
    /// Takes a chunk. It stays where it is when nothing else waits; otherwise its bytes go behind what waits.
    #[inline]
    pub fn receive<M: Lender<Chunk = C>>(&mut self, memory: &mut M, chunk: C) {
        if self.chunk.is_none() && self.rest.is_empty() {
            self.chunk = Some(chunk);
        } else {
            self.receive_behind(memory, chunk);
        }
    }

    /// As [`Input::receive`], behind what waits.
    #[inline(never)]
    fn receive_behind<M: Lender<Chunk = C>>(&mut self, memory: &mut M, chunk: C) {
        self.keep(memory);
        let bytes = memory.bytes(&chunk);
        // A large bulk has announced its length: grow no further than its end. Trust that only as far
        // as some times what is there, since the announcement costs its sender nothing.
        let announced = trusted(self.parser.needed().saturating_sub(self.unseen), self.rest.len());
        let room = self.rest.capacity() - self.rest.len();
        if room < bytes.len() {
            let wanted = bytes.len().max(announced).max(self.rest.len() / GROWTH_SHARE);
            if self.rest.try_reserve_exact(wanted).is_err() {
                // What is announced may be more than there is. What came has to be kept.
                self.rest.reserve_exact(bytes.len());
            }
        }
        self.rest.extend_from_slice(bytes);
        self.unseen += bytes.len();
        memory.release(chunk);
    }

    /// Moves what is left of the chunk, if there is one, into the connection's own memory. To be called at the end of each
    /// turn. Returns whether there was a chunk and nothing is left of it: then nothing is left at all.
    #[inline]
    pub fn keep<M: Lender<Chunk = C>>(&mut self, memory: &mut M) -> bool {
        let Some(chunk) = self.chunk.take() else { return false };
        debug_assert!(self.rest.is_empty());
        let is_done = self.start == chunk.len_bytes();
        if is_done {
            debug_assert!(self.parsed == self.start && self.held.is_none());
            (self.start, self.parsed) = (0, 0);
        } else {
            self.rest.extend_from_slice(&memory.bytes(&chunk)[self.start..]);
            self.move_to_start();
        }
        memory.release(chunk);
        is_done
    }

    /// The bytes have moved so that the first one not done is the first of all.
    #[inline]
    fn move_to_start(&mut self) {
        if let Some(held) = &mut self.held {
            held.moved += self.start;
        }
        self.parsed -= self.start;
        self.start = 0;
    }

    /// Returns the next command: the first of those held back, otherwise the one that is parsed next.
    /// Appends where its arguments stand, relative to the command's first byte.
    #[inline(always)]
    pub fn parse<M: Lender<Chunk = C>>(
        &mut self,
        memory: &mut M,
        args: &mut Vec<ArgRange>,
        limits: &Limits,
    ) -> Result<Option<Parsed>, ProtocolError> {
        if self.held.is_some() {
            return Ok(self.take_held(args));
        }
        let bytes = match &self.chunk {
            Some(chunk) => memory.bytes_mut(chunk),
            None => &mut self.rest,
        };
        let begin = self.parsed;
        if begin == bytes.len() {
            return Ok(None);
        }
        let is_inline = bytes[begin] != b'*';
        match self.parser.parse(&mut bytes[begin..], args, limits) {
            Ok(Some(len)) => {
                self.parsed = begin + len;
                Ok(Some(Parsed { begin, end: self.parsed, is_inline }))
            }
            Ok(None) => {
                self.unseen = 0;
                Ok(None)
            }
            Err(error) => {
                // It may be met again, behind commands that have to wait.
                self.parser.reset();
                Err(error)
            }
        }
    }

    /// All bytes; positions of [`Input::parse`] refer to them.
    #[inline]
    pub fn bytes<'b, M: Lender<Chunk = C>>(&'b self, memory: &'b M) -> &'b [u8] {
        match &self.chunk {
            Some(chunk) => memory.bytes(chunk),
            None => &self.rest,
        }
    }

    /// Notes that everything before `end` has run.
    #[inline]
    pub fn done(&mut self, end: usize) {
        self.start = end;
    }

    /// Holds back commands that were parsed and may not run yet: [`Input::parse`] returns them before
    /// all others, without parsing them again. `unrun` may contain commands that have run, or that are
    /// held back already: these are left out.
    pub fn hold_back<'w>(&mut self, unrun: impl Iterator<Item = Unrun<'w>>) {
        let held = self.held.take();
        let (begin, end) = held.as_ref().map_or((usize::MAX, usize::MAX), |held| (held.begin(), held.end()));
        let (mut all, mut behind) = (Held::default(), Held::default());
        for Unrun { parsed, ranges } in unrun.filter(|command| command.parsed.end > self.start) {
            if parsed.begin < begin {
                all.push(parsed, ranges);
            } else if parsed.begin >= end {
                behind.push(parsed, ranges);
            }
        }
        all.append(held.map(|held| *held).unwrap_or_default());
        all.append(behind);
        if !all.is_empty() {
            self.held = Some(Box::new(all));
        }
    }

    /// Takes the first of the commands that are held back.
    #[cold]
    #[inline(never)]
    fn take_held(&mut self, args: &mut Vec<ArgRange>) -> Option<Parsed> {
        let held = self.held.as_mut()?;
        let (parsed, ranges) = held.take();
        args.extend_from_slice(ranges);
        if held.is_empty() {
            self.held = None;
        }
        Some(parsed)
    }

    /// Whether a range of the bytes, of a command that ends at `end` and is the last one received,
    /// has the buffer nearly to itself.
    pub fn is_buffer_of(&self, range: ArgRange, end: usize) -> bool {
        self.chunk.is_none()
            && end == self.rest.len()
            && self.rest.capacity() - range.len() <= HANDED_WASTE_BYTES_MAX + range.len() / HANDED_WASTE_SHARE
    }

    /// Hands that range over in this buffer. Nothing is left here: all that was received is done.
    pub fn hand_over(&mut self, range: ArgRange) -> Vec<u8> {
        debug_assert!(self.held.is_none(), "nothing is behind the last command");
        let mut rest = std::mem::take(&mut self.rest);
        rest.truncate(range.start() + range.len());
        rest.drain(..range.start());
        (self.start, self.parsed, self.unseen) = (0, 0, 0);
        rest
    }

    /// Bytes received and not run.
    pub fn waiting_bytes(&self) -> usize {
        self.chunk.as_ref().map_or(self.rest.len(), Lent::len_bytes) - self.start
    }

    /// Bytes received that are no whole argument yet, and those from the first held-back command on:
    /// what Redis calls the query buffer.
    pub fn query_buffer_bytes(&self) -> usize {
        let end = self.chunk.as_ref().map_or(self.rest.len(), Lent::len_bytes);
        match &self.held {
            Some(held) => end - held.begin(),
            None => end - self.parsed - self.parser.split_bytes().min(end - self.parsed),
        }
    }

    /// Bytes of memory that held-back commands take beside their own bytes.
    pub fn held_bytes(&self) -> usize {
        self.held.as_ref().map_or(0, |held| {
            held.commands.capacity() * size_of::<(Parsed, usize)>() + held.ranges.capacity() * size_of::<ArgRange>()
        })
    }

    /// Room behind what was received, in the buffer where it lies, bytes.
    pub fn free_bytes<M: Lender<Chunk = C>>(&self, memory: &M) -> usize {
        match &self.chunk {
            Some(chunk) => memory.room_behind(chunk),
            None => self.rest.capacity() - self.rest.len(),
        }
    }

    /// Bytes of its own memory.
    pub fn capacity_bytes(&self) -> usize {
        self.rest.capacity()
    }

    /// Drops what is done with, and memory that is not needed any more. Amortized: bytes are moved only when at least as
    /// many go.
    pub fn compact(&mut self) {
        if self.chunk.is_some() || self.start == 0 || self.start * 2 < self.rest.len() {
            return;
        }
        if self.start == self.rest.len() {
            self.rest.clear();
            if self.rest.capacity() > REST_KEPT_BYTES_MAX {
                self.rest = Vec::new();
            }
        } else {
            self.rest.drain(..self.start);
        }
        self.move_to_start();
    }

    /// Releases everything.
    pub fn discard<M: Lender<Chunk = C>>(&mut self, memory: &mut M) {
        if let Some(chunk) = self.chunk.take() {
            memory.release(chunk);
        }
        *self = Input::default();
    }
}

/// What a value that is handed over may leave unused of its buffer, bytes, and beside that a part
/// of its length.
const HANDED_WASTE_BYTES_MAX: usize = 512;
const HANDED_WASTE_SHARE: usize = 64;

/// A buffer of which no bulk says how long it is to become grows by this part of it: a quarter.
const GROWTH_SHARE: usize = 4;

/// For how many of the bytes that a bulk still needs a buffer that holds so many grows. Redis trusts
/// a client that has authenticated with all of them.
fn trusted(needed: usize, held: usize) -> usize {
    needed.min(held.saturating_mul(TRUST).max(RESERVE_BYTES_MIN))
}

/// Bytes that may be pending of a connection that can't or need not take more now: with more, its peer has to wait.
pub const WAITING_BYTES_MAX: usize = 1024 * 1024;

/// For how many bytes of an announced bulk a byte that is there stands. Each growth copies what is
/// there, and leaves the old buffer behind: so there are few.
const TRUST: usize = 16;

/// The least room that an announced bulk is given at once.
const RESERVE_BYTES_MIN: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    /// How large the buffer of a bulk becomes whose bytes come in pieces.
    fn capacity_for(bulk: usize, piece: usize) -> usize {
        let mut rest: Vec<u8> = Vec::new();
        while rest.len() < bulk {
            let needed = bulk - rest.len();
            let len = piece.min(needed);
            let announced = trusted(needed, rest.len());
            assert!(announced <= needed && announced <= (rest.len() * TRUST).max(RESERVE_BYTES_MIN));
            if rest.capacity() - rest.len() < len {
                rest.reserve_exact(len.max(announced));
            }
            rest.resize(rest.len() + len, 0);
        }
        rest.capacity()
    }

    #[test]
    fn a_bulk_gets_a_buffer_of_its_own_length() {
        for bulk in [40_000, 100_000, 1 << 20, (1 << 20) + 2000, 20 << 20] {
            for piece in [1000, 16 * 1024, 64 * 1024, 1 << 20] {
                assert_eq!(capacity_for(bulk, piece), bulk, "{bulk} in pieces of {piece}");
            }
        }
    }
}
