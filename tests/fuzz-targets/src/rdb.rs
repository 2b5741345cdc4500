//! RDB files from arbitrary bytes. The reader returns an error with an offset in the file, or
//! pieces whose values are decoded. The result doesn't depend on how the bytes are split. The
//! reader never panics, and never allocates memory for bytes that the file declares but doesn't
//! contain.

use pantala_persistence::rdb::{Error, Next, Piece, Reader, opcode};
use pantala_types::HashLimits;
use pantala_types::list::NodeLimit;
use pantala_types::rdb_value::Limits;
use pantala_types::sorted_set::PackLimits;

const NOW_MS: i64 = 1_700_000_000_000;

const LIMITS: Limits = Limits {
    string_bytes_max: 1 << 16,
    list_node: NodeLimit { bytes: 256, entries: 16, alone_bytes: 200, plain_depth: 1 },
    hash: HashLimits { entries_max: 8, value_bytes_max: 16 },
    set_intset_entries_max: 8,
    sorted_set: PackLimits { entries: 8, value_bytes: 16 },
};

/// Returns the content of a file that is fed in pieces of `step` bytes.
fn read(file: &[u8], step: usize, knows_len: bool) -> Result<Vec<String>, Error> {
    let mut reader = Reader::new(knows_len.then_some(file.len() as u64), 16, LIMITS.string_bytes_max, false);
    let (mut input, mut pieces) = (file.chunks(step), Vec::new());
    loop {
        match reader.next_piece()? {
            Next::NeedsInput => match input.next() {
                Some(chunk) => reader.feed(chunk)?,
                None => reader.end_input(),
            },
            Next::Piece(_, Piece::End(_)) => return Ok(pieces),
            Next::Piece(offset, Piece::Entry(entry)) => {
                let value = entry.decode(&LIMITS, NOW_MS)?;
                pieces.push(format!("{offset} {} {:?} {}", entry.db, entry.key, value.is_some()));
            }
            Next::Piece(offset, piece) => pieces.push(format!("{offset} {piece:?}")),
        }
    }
}

/// Runs the target on one input, and panics on a defect.
pub fn run(data: &[u8]) {
    // Random bytes almost never start with the magic of an RDB file, so the first byte chooses a
    // magic.
    let Some((&first, rest)) = data.split_first() else { return };
    let magic: &[u8] = match first % 4 {
        0 => b"",
        1 => b"REDIS0010",
        2 => b"REDIS0012",
        _ => b"VALKEY080",
    };
    let mut file = [magic, rest].concat();
    if first & 4 != 0 {
        file.push(opcode::END);
        file.extend_from_slice(&[0; 8]);
    }
    let whole = read(&file, file.len().max(1), true);
    if let Err(error) = &whole {
        assert!(error.offset <= file.len() as u64, "{error}");
    }
    let in_pieces = read(&file, usize::from(first / 8) + 1, false);
    assert_eq!(whole.is_ok(), in_pieces.is_ok(), "{whole:?} {in_pieces:?}");
    if whole.is_ok() {
        assert_eq!(whole, in_pieces);
    }
}
