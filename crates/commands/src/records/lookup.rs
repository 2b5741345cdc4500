//! Finds the record of a command by its name. Every call needs a lookup, so the hash table of names
//! is built at compile time. A lookup takes about ten arithmetic instructions and reads one cache
//! line. It allocates nothing, and compares words instead of bytes.
//!
//! The table represents a name by its length and two words of eight bytes, in lower case. Two names
//! of up to 16 bytes are equal if their lengths and words are equal. Longer names are also compared
//! byte by byte.

use pantala_engine::command::Command;

use super::COMMANDS;

/// Number of table entries, a power of two. The table is several times larger than the number of
/// commands, so that most names are found at the first probe.
const TABLE_LEN: usize = 1 << TABLE_BITS;
const TABLE_BITS: u32 = 10;

// The table is at most a quarter full. It has room for all 240 commands of Redis 7.0.
const _: () = assert!(COMMANDS.len() * 4 <= TABLE_LEN);

/// Length of the longest name that two words cover completely, in bytes.
const COVERED_BYTES_MAX: usize = 16;

/// Length of the longest name in bytes.
const NAME_BYTES_MAX: usize = {
    let mut longest = 0;
    let mut index = 0;
    while index < COMMANDS.len() {
        if COMMANDS[index].name.len() > longest {
            longest = COMMANDS[index].name.len();
        }
        index += 1;
    }
    longest
};

/// A name in lower case, packed into two words. An entry takes half a cache line, so that no entry
/// straddles two lines.
#[derive(Clone, Copy)]
#[repr(align(32))]
struct Entry {
    head: u64,
    tail: u64,
    len: u16,
    command: Option<&'static Command>,
}

const _: () = assert!(size_of::<Entry>() == 32);

/// The commands by the hash of their name. Collisions are resolved by linear probing.
static TABLE: [Entry; TABLE_LEN] = table();

const fn table() -> [Entry; TABLE_LEN] {
    let mut table = [Entry { head: 0, tail: 0, len: 0, command: None }; TABLE_LEN];
    let mut index = 0;
    while index < COMMANDS.len() {
        let mut packed = pack(COMMANDS[index].name.as_bytes());
        packed.command = Some(&COMMANDS[index]);
        let mut at = hash(&packed);
        while table[at].command.is_some() {
            at = (at + 1) % TABLE_LEN;
        }
        table[at] = packed;
        index += 1;
    }
    table
}

/// Packs a name into two words, which may overlap. If the name is longer than
/// [`COVERED_BYTES_MAX`], they contain its two ends. Reading two overlapping words is cheaper than
/// copying the name to a buffer.
#[inline(always)]
const fn pack(name: &[u8]) -> Entry {
    let (head, tail) = if let (Some(head), Some(tail)) = (name.first_chunk(), name.last_chunk()) {
        (u64::from_le_bytes(*head), u64::from_le_bytes(*tail))
    } else if let (Some(head), Some(tail)) = (name.first_chunk(), name.last_chunk()) {
        (u32::from_le_bytes(*head) as u64, u32::from_le_bytes(*tail) as u64)
    } else {
        match name {
            [first, .., last] => (*first as u64, (name[1] as u64) << 8 | *last as u64),
            [only] => (*only as u64, 0),
            [] => (0, 0),
        }
    };
    Entry { head: lower_case(head), tail: lower_case(tail), len: name.len() as u16, command: None }
}

/// Converts the upper-case letters among eight bytes to lower case, all at once.
#[inline(always)]
const fn lower_case(word: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const TOP: u64 = 0x80 * EACH;
    // The top bit of each byte is cleared, so that an addition to a byte doesn't carry into the
    // next byte. After the additions, the top bits show which bytes are at least `A`, and which are
    // beyond `Z`.
    let low = word & !TOP;
    let from_a = low + (0x80 - b'A' as u64) * EACH;
    let past_z = low + (0x7f - b'Z' as u64) * EACH;
    let letters = (from_a & !past_z) & !word & TOP;
    word | letters >> 2
}

/// Returns the entry where the search for a name starts.
#[inline(always)]
const fn hash(name: &Entry) -> usize {
    // The constant is odd, so the upper bits of the product depend on all bits of `mixed`. It is
    // the best of several random constants for the 240 commands of Redis 7.0 and nine commands of
    // 7.4: of these, 234 are in the entry where the search starts, and all within four entries.
    let mixed = name.head ^ name.tail.rotate_left(23) ^ (name.len as u64) << 56;
    (mixed.wrapping_mul(0xeffa_f64d_28e0_9b51) >> (64 - TABLE_BITS)) as usize
}

/// Returns the command with this name, ignoring case.
#[inline(always)] // Runs for every command; out of line it takes 30 more instructions.
pub fn lookup(name: &[u8]) -> Option<&'static Command> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    let packed = pack(name);
    let mut at = hash(&packed);
    // At most a quarter of the entries are used, so a search for an unknown name soon meets an
    // empty entry and ends.
    loop {
        let entry = &TABLE[at];
        let command = entry.command?;
        if entry.head == packed.head && entry.tail == packed.tail && entry.len == packed.len {
            let covered = name.len() <= COVERED_BYTES_MAX;
            if covered || command.name.as_bytes().eq_ignore_ascii_case(name) {
                return Some(command);
            }
        }
        at = (at + 1) % TABLE_LEN;
    }
}

/// Returns the subcommand with this name, ignoring case.
#[inline]
pub fn lookup_sub(container: &Command, name: &[u8]) -> Option<&'static Command> {
    container.subcommand(name)
}

/// Returns the command or subcommand with this full name (`get`, `client|list`), ignoring case.
/// Returns `None` if it is hidden from `COMMAND`.
pub fn lookup_full(name: &[u8]) -> Option<&'static Command> {
    match name.iter().position(|byte| *byte == b'|') {
        None => lookup(name),
        Some(bar) => lookup(&name[..bar])?
            .shown_subcommands()
            .iter()
            .find(|sub| sub.full_name.as_bytes().eq_ignore_ascii_case(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_case_matches_ascii() {
        for byte in 0..=u8::MAX {
            for at in 0..8 {
                // With these values in the other bytes, a carry from one byte to the next would
                // change the result.
                for other in [0, b'Z', 0x7f, 0x80, 0xff] {
                    let mut bytes = [other; 8];
                    bytes[at] = byte;
                    let wanted = bytes.map(|byte| byte.to_ascii_lowercase());
                    assert_eq!(lower_case(u64::from_le_bytes(bytes)).to_le_bytes(), wanted);
                }
            }
        }
    }

    #[test]
    fn two_words_cover_every_short_name() {
        for len in 1..=COVERED_BYTES_MAX {
            for changed in 0..len {
                let name = vec![b'a'; len];
                let mut other = name.clone();
                other[changed] = b'b';
                let (one, two) = (pack(&name), pack(&other));
                assert_ne!((one.head, one.tail), (two.head, two.tail), "byte {changed} of {len}");
            }
        }
    }

    #[test]
    fn probe_sequences_are_short() {
        let run = |at: usize| TABLE[at..].iter().take_while(|entry| entry.command.is_some()).count();
        let longest = (0..TABLE_LEN).map(run).max();
        // The limit of 8 entries leaves room for new commands. If a new command makes a probe
        // sequence too long, choose another constant in `hash`.
        assert!(longest <= Some(8), "a search probes up to {longest:?} entries");
        let is_first = |command: &&Command| {
            let packed = pack(command.name.as_bytes());
            let entry = &TABLE[hash(&packed)];
            (entry.head, entry.tail, entry.len) == (packed.head, packed.tail, packed.len)
        };
        let first = COMMANDS.iter().filter(is_first).count();
        assert!(first * 10 >= COMMANDS.len() * 9, "only {first} of {} are found at the first probe", COMMANDS.len());
    }
}
