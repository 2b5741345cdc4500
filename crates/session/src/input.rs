//! Received bytes whose commands have not run yet, and the parsed commands.
//!
//! ```text
//! 0          start          parsed               end
//! │  done     │  parsed, to   │  not parsed, or     │
//! │           │  be run       │  part of a command  │
//! ```
//!
//! The bytes are in one of two places, never in both: in the event loop's memory, where they
//! arrived (a *chunk*), or in the connection's own buffer (`rest`). Usually a turn (one round of
//! the owner's loop) runs all commands of a chunk and copies nothing.

use pantala_base::block::MAPPED_BYTES_MIN;
use pantala_base::{Lender, Lent};
use pantala_resp::{ArgRange, Limits, Parser, ProtocolError};

/// Maximum capacity of an empty buffer that a connection keeps, bytes. Without this limit, each of
/// ten thousand idle connections would keep the memory of its largest request.
const REST_KEPT_BYTES_MAX: usize = 16 * 1024;

/// A complete command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// Position of the first byte.
    pub begin: usize,
    /// Position just past the last byte.
    pub end: usize,
    /// Whether it is an inline command.
    pub is_inline: bool,
}

/// A parsed command that hasn't run.
#[derive(Clone, Copy, Debug)]
pub struct Unrun<'w> {
    /// The command's position.
    pub parsed: Parsed,
    /// The ranges of the command's arguments, relative to its first byte.
    pub ranges: &'w [ArgRange],
}

/// Parsed commands that may not run yet, in order. If there are none, an `Input` has no list.
#[derive(Default)]
struct Held {
    /// The commands, each with its number of arguments.
    commands: Vec<(Parsed, usize)>,
    /// The arguments of all commands.
    ranges: Vec<ArgRange>,
    /// Indexes of the next command in `commands`, and of its first argument in `ranges`. All
    /// commands before it have been taken.
    next: (usize, usize),
    /// The number of bytes by which the input has moved towards the start since the commands were
    /// parsed.
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

    /// Returns the position of the first byte of the next command.
    fn begin(&self) -> usize {
        self.commands[self.next.0].0.begin - self.moved
    }

    /// Returns the position just past the last byte of the last command.
    fn end(&self) -> usize {
        self.commands[self.commands.len() - 1].0.end - self.moved
    }

    /// Takes the next command, with its arguments.
    fn take(&mut self) -> (Parsed, &[ArgRange]) {
        let (command, first_arg) = self.next;
        let (Parsed { begin, end, is_inline }, args) = self.commands[command];
        self.next = (command + 1, first_arg + args);
        let parsed = Parsed { begin: begin - self.moved, end: end - self.moved, is_inline };
        (parsed, &self.ranges[first_arg..first_arg + args])
    }
}

/// The input described at the head of this module. `C` is a chunk of the event loop's memory.
pub struct Input<C> {
    parser: Parser,
    chunk: Option<C>,
    rest: Vec<u8>,
    start: usize,
    parsed: usize,
    /// Number of bytes that were received since the parser last ran and found an incomplete
    /// command.
    unseen: usize,
    /// Commands between `start` and `parsed` that aren't in the owner's current window (the
    /// commands that the owner has parsed and runs together).
    held: Option<Box<Held>>,
}

impl<C> Default for Input<C> {
    fn default() -> Self {
        Input { parser: Parser::default(), chunk: None, rest: Vec::new(), start: 0, parsed: 0, unseen: 0, held: None }
    }
}

impl<C: Lent> Input<C> {
    /// Takes a chunk. If other bytes are pending, appends the chunk's bytes to them. Otherwise the
    /// chunk stays in place.
    #[inline]
    pub fn receive<M: Lender<Chunk = C>>(&mut self, memory: &mut M, chunk: C) {
        if self.chunk.is_none() && self.rest.is_empty() {
            self.chunk = Some(chunk);
        } else {
            self.receive_after(memory, chunk);
        }
    }

    /// Takes bytes that were read from the socket before the event loop owned the socket.
    pub fn preload(&mut self, bytes: Vec<u8>) {
        debug_assert!(self.chunk.is_none() && self.rest.is_empty(), "input was already received");
        self.unseen += bytes.len();
        self.rest = bytes;
    }

    /// Does the work of [`Input::receive`] when other bytes are pending.
    #[inline(never)]
    fn receive_after<M: Lender<Chunk = C>>(&mut self, memory: &mut M, chunk: C) {
        self.keep(memory);
        self.append(memory.bytes(&chunk));
        memory.release(chunk);
    }

    /// Takes bytes that are not in the event loop's memory.
    pub fn receive_copy<M: Lender<Chunk = C>>(&mut self, memory: &mut M, bytes: &[u8]) {
        self.keep(memory);
        self.append(bytes);
    }

    /// Returns whether the input holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.chunk.is_none() && self.rest.is_empty()
    }

    /// Appends bytes to the connection's own buffer.
    fn append(&mut self, bytes: &[u8]) {
        // If the parser knows the length of an incomplete bulk string, this reserves memory for the
        // rest of the string. But a sender can announce any length at no cost. So this reserves at
        // most a multiple of the bytes received so far, or `RESERVE_BYTES_MIN` if that is more.
        let announced = trusted(self.parser.needed().saturating_sub(self.unseen), self.rest.len());
        let room = self.rest.capacity() - self.rest.len();
        if room < bytes.len() {
            let wanted = bytes.len().max(announced).max(growth(self.rest.len()));
            if self.rest.try_reserve_exact(wanted).is_err() {
                // There may be too little memory for the announced length, but the received bytes
                // must be kept.
                self.rest.reserve_exact(bytes.len());
            }
        }
        self.rest.extend_from_slice(bytes);
        self.unseen += bytes.len();
    }

    /// Moves the unused part of the chunk, if any, into the connection's own buffer. The owner must
    /// call this at the end of each turn. Returns whether there was a chunk, all of whose commands
    /// have run. If so, the input is now empty.
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

    /// Adjusts positions after the pending bytes were moved to the start of the buffer.
    #[inline]
    fn move_to_start(&mut self) {
        if let Some(held) = &mut self.held {
            held.moved += self.start;
        }
        self.parsed -= self.start;
        self.start = 0;
    }

    /// Returns the next command. Held-back commands precede all others. Appends the ranges of the
    /// command's arguments, relative to its first byte, to `args`.
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
                // If commands before the error must wait, the invalid bytes are parsed again in a
                // later turn. So the parser is reset.
                self.parser.reset();
                Err(error)
            }
        }
    }

    /// Returns all bytes. Positions from [`Input::parse`] refer to them.
    #[inline]
    pub fn bytes<'b, M: Lender<Chunk = C>>(&'b self, memory: &'b M) -> &'b [u8] {
        match &self.chunk {
            Some(chunk) => memory.bytes(chunk),
            None => &self.rest,
        }
    }

    /// Records that all commands before the position `end` have run.
    #[inline]
    pub fn done(&mut self, end: usize) {
        self.start = end;
    }

    /// Holds back parsed commands that may not run yet. [`Input::parse`] returns them before all
    /// others, and does not parse them again. Ignores commands in `unrun` that have run or are held
    /// back already.
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

    /// Takes the first held-back command.
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

    /// Returns whether an argument fills the connection's own buffer, except for a small part.
    /// `range` is the argument's range, and `end` the end of its command. Returns `false` if bytes
    /// follow the command.
    pub fn is_buffer_of(&self, range: ArgRange, end: usize) -> bool {
        self.chunk.is_none()
            && end == self.rest.len()
            && self.rest.capacity() - range.len() <= HANDED_WASTE_BYTES_MAX + range.len() / HANDED_WASTE_SHARE
    }

    /// Takes the connection's own buffer and reduces it to `range`, for which
    /// [`Input::is_buffer_of`] must have returned true. In this way, the value of a large SET keeps
    /// the buffer in which it was received. Afterwards the input is empty, because the range
    /// belongs to the last received command, and all earlier commands have run.
    pub fn hand_over(&mut self, range: ArgRange) -> Vec<u8> {
        debug_assert!(self.held.is_none(), "there is input behind the last command");
        let mut rest = std::mem::take(&mut self.rest);
        rest.truncate(range.start() + range.len());
        rest.drain(..range.start());
        (self.start, self.parsed, self.unseen) = (0, 0, 0);
        rest
    }

    /// Returns the number of received bytes whose commands have not run.
    pub fn waiting_bytes(&self) -> usize {
        self.chunk.as_ref().map_or(self.rest.len(), Lent::len_bytes) - self.start
    }

    /// Returns the size of the query buffer as Redis defines it, bytes. If commands are held back,
    /// this is the size of all bytes from the first of these commands to the end. Otherwise it is
    /// the size of the bytes that have not been parsed, such as an incomplete argument.
    pub fn query_buffer_bytes(&self) -> usize {
        let end = self.chunk.as_ref().map_or(self.rest.len(), Lent::len_bytes);
        match &self.held {
            Some(held) => end - held.begin(),
            None => end - self.parsed - self.parser.split_bytes().min(end - self.parsed),
        }
    }

    /// Returns the memory of the list of held-back commands, without the commands themselves,
    /// bytes.
    pub fn held_bytes(&self) -> usize {
        self.held.as_ref().map_or(0, |held| {
            held.commands.capacity() * size_of::<(Parsed, usize)>() + held.ranges.capacity() * size_of::<ArgRange>()
        })
    }

    /// Returns the free space after the received bytes in their buffer, bytes.
    pub fn free_bytes<M: Lender<Chunk = C>>(&self, memory: &M) -> usize {
        match &self.chunk {
            Some(chunk) => memory.room_after(chunk),
            None => self.rest.capacity() - self.rest.len(),
        }
    }

    /// Returns the capacity of the connection's own buffer, bytes.
    pub fn capacity_bytes(&self) -> usize {
        self.rest.capacity()
    }

    /// Drops the bytes of commands that have run, unless this would move more bytes than it drops.
    /// So each byte is moved about once. Also frees a large buffer that is empty.
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

    /// Drops all bytes and releases the chunk.
    pub fn discard<M: Lender<Chunk = C>>(&mut self, memory: &mut M) {
        if let Some(chunk) = self.chunk.take() {
            memory.release(chunk);
        }
        *self = Input::default();
    }
}

/// Maximum number of unused bytes of a buffer that becomes the buffer of a value
/// ([`Input::hand_over`]). A long value may have more unused bytes: its length divided by
/// [`HANDED_WASTE_SHARE`] is added to this number.
const HANDED_WASTE_BYTES_MAX: usize = 512;
const HANDED_WASTE_SHARE: usize = 64;

/// A buffer grows by at least its length divided by this number.
const GROWTH_SHARE: usize = 4;

/// Minimum length, in bytes, of a buffer that grows to at least [`MAPPED_BYTES_MIN`]. The allocator
/// gives a buffer of that size a mapping of its own.
const LONG_BYTES_MIN: usize = 2 * 1024 * 1024;

/// Returns the minimum number of bytes by which a buffer that holds `held` bytes grows. A long
/// buffer grows in one step to a size for which the allocator makes a kernel mapping. The unused
/// pages of a mapping are not resident, and a mapping grows without leaving smaller blocks behind.
fn growth(held: usize) -> usize {
    let share = held / GROWTH_SHARE;
    if held < LONG_BYTES_MIN { share } else { share.max(MAPPED_BYTES_MIN.saturating_sub(held)) }
}

/// Returns the number of bytes to reserve for a bulk that lacks `needed` bytes, if `held` bytes
/// have arrived. Redis reserves the whole length if the client has authenticated.
fn trusted(needed: usize, held: usize) -> usize {
    needed.min(held.saturating_mul(TRUST).max(RESERVE_BYTES_MIN))
}

/// If a connection can't run commands now and has more than this number of pending bytes, it stops
/// receiving, so that its peer must wait.
pub const WAITING_BYTES_MAX: usize = 1024 * 1024;

/// The counterpart of [`WAITING_BYTES_MAX`] for a client that has not authenticated, so that such a
/// client cannot occupy much memory. An incomplete command may be longer; the parser limits its
/// length.
pub const STRANGER_WAITING_BYTES_MAX: usize = 32 * 1024;

/// Maximum ratio of reserved to received bytes. A large ratio makes the buffer grow rarely. Each
/// time that the buffer grows, the received bytes are copied and the former buffer is freed.
const TRUST: usize = 16;

/// Minimum memory reserved in one step for an announced bulk, bytes.
const RESERVE_BYTES_MIN: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the capacity that the buffer of a bulk reaches if the bulk arrives in pieces.
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
    #[test]
    fn a_long_buffer_becomes_a_mapping_in_one_step() {
        assert_eq!(growth(LONG_BYTES_MIN - 4), LONG_BYTES_MIN / GROWTH_SHARE - 1);
        assert_eq!(LONG_BYTES_MIN + growth(LONG_BYTES_MIN), MAPPED_BYTES_MIN);
        assert_eq!(growth(4 * MAPPED_BYTES_MIN), MAPPED_BYTES_MIN);
    }
}
