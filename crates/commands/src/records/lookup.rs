//! From a command's name to its record. Every call of every client comes through here, so it is a hash table built at
//! compile time: some ten arithmetic instructions and one cache line, no allocation, nothing compared byte by byte.
//!
//! A name of up to 16 bytes is two words that cover it, in lower case, and its length: equal words mean the same name.
//! A longer one is compared whole besides.

use pantala_engine::command::Command;

use super::COMMANDS;

/// Places in the table: a power of two, several times the number of commands, so that most names are found at once.
const PLACES: usize = 1 << PLACES_BITS;
const PLACES_BITS: u32 = 10;

// A quarter full at most, with room for every command that Redis 7.0 has (240).
const _: () = assert!(COMMANDS.len() * 4 <= PLACES);

/// Bytes of the longest name that the two words cover whole.
const COVERED_BYTES_MAX: usize = 16;

/// Bytes of the longest name.
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

/// A name in lower case, packed. Half a cache line, so that no place straddles two.
#[derive(Clone, Copy)]
#[repr(align(32))]
struct Place {
    head: u64,
    tail: u64,
    len: u16,
    command: Option<&'static Command>,
}

const _: () = assert!(size_of::<Place>() == 32);

/// Commands by the hash of their name; a taken place pushes its command on to the next one.
static TABLE: [Place; PLACES] = table();

const fn table() -> [Place; PLACES] {
    let mut table = [Place { head: 0, tail: 0, len: 0, command: None }; PLACES];
    let mut index = 0;
    while index < COMMANDS.len() {
        let mut packed = pack(COMMANDS[index].name.as_bytes());
        packed.command = Some(&COMMANDS[index]);
        let mut at = hash(&packed);
        while table[at].command.is_some() {
            at = (at + 1) % PLACES;
        }
        table[at] = packed;
        index += 1;
    }
    table
}

/// Covers a name with two words (the ends of a name longer than [`COVERED_BYTES_MAX`]). They overlap, which is cheaper
/// than to copy the name into a buffer of words first.
#[inline(always)]
const fn pack(name: &[u8]) -> Place {
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
    Place { head: lower_case(head), tail: lower_case(tail), len: name.len() as u16, command: None }
}

/// Makes the upper-case letters among eight bytes lower-case, all at once.
#[inline(always)]
const fn lower_case(word: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const TOP: u64 = 0x80 * EACH;
    // Without their top bits the bytes can be added to without a carry from one into the next; then each top bit
    // tells whether a byte has reached a bound.
    let low = word & !TOP;
    let from_a = low + (0x80 - b'A' as u64) * EACH;
    let past_z = low + (0x7f - b'Z' as u64) * EACH;
    let letters = (from_a & !past_z) & !word & TOP;
    word | letters >> 2
}

/// Where the search for a name begins.
#[inline(always)]
const fn hash(name: &Place) -> usize {
    // An odd constant, whose product's upper bits depend on all bits of the name. Chosen among random ones for the 240 commands of
    // Redis 7.0 and nine of 7.4: 234 of them are found at the first place, none after more than four.
    let mixed = name.head ^ name.tail.rotate_left(23) ^ (name.len as u64) << 56;
    (mixed.wrapping_mul(0xeffa_f64d_28e0_9b51) >> (64 - PLACES_BITS)) as usize
}

/// The command of that name, in any case.
#[inline(always)] // Each command asks for its name; out of line it costs 30 instructions more.
pub fn lookup(name: &[u8]) -> Option<&'static Command> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    let packed = pack(name);
    let mut at = hash(&packed);
    // The table is a quarter full at most, so an empty place ends the search soon.
    loop {
        let place = &TABLE[at];
        let command = place.command?;
        if place.head == packed.head && place.tail == packed.tail && place.len == packed.len {
            let covered = name.len() <= COVERED_BYTES_MAX;
            if covered || command.name.as_bytes().eq_ignore_ascii_case(name) {
                return Some(command);
            }
        }
        at = (at + 1) % PLACES;
    }
}

/// The subcommand of that name, in any case.
#[inline]
pub fn lookup_sub(container: &Command, name: &[u8]) -> Option<&'static Command> {
    container.subcommand(name)
}

/// The command or subcommand of a full name (`get`, `client|list`; any case) as far as `COMMAND` shows it.
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
    fn lower_case_is_that_of_ascii() {
        for byte in 0..=u8::MAX {
            for at in 0..8 {
                // Neighbours that would show a carry.
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
    fn short_names_are_covered_by_their_words() {
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
    fn searches_are_short() {
        let run = |at: usize| TABLE[at..].iter().take_while(|place| place.command.is_some()).count();
        let longest = (0..PLACES).map(run).max();
        // Room for commands to come: only where a new one makes searches long, another constant is to
        // be chosen in `hash`.
        assert!(longest <= Some(8), "a search may look at {longest:?} places");
        let is_first = |command: &&Command| {
            let packed = pack(command.name.as_bytes());
            let place = &TABLE[hash(&packed)];
            (place.head, place.tail, place.len) == (packed.head, packed.tail, packed.len)
        };
        let first = COMMANDS.iter().filter(is_first).count();
        assert!(first * 10 >= COMMANDS.len() * 9, "only {first} of {} are found at once", COMMANDS.len());
    }
}
