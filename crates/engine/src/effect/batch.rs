//! Effects collected until they are committed. The effects of one command, transaction or script
//! form a *unit*.

use pantala_base::number::Decimal;
use pantala_resp::Args;

/// Effects, encoded as consecutive RESP arrays.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) bytes: Vec<u8>,
    pub(crate) effects: Vec<Effect>,
}

/// One encoded effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effect {
    /// Database of the effect.
    pub(crate) db: u32,
    /// End of the effect in [`Batch::bytes`].
    pub(crate) end: usize,
    /// Whether the effect deletes an expired or evicted key, or an expired hash field. A rollback
    /// does not restore the key or field, and therefore keeps the effect.
    pub(crate) is_deletion: bool,
}

/// Capacity that a batch keeps between units, bytes.
const KEPT_BYTES_MAX: usize = 64 * 1024;

impl Batch {
    pub(crate) fn is_empty(&self) -> bool {
        self.effects.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.effects.clear();
        if self.bytes.capacity() > KEPT_BYTES_MAX {
            *self = Batch::default();
        }
    }

    /// Adds a command, given as words. Marks the effect as a deletion. [`Batch::append`] replaces
    /// this mark when it moves the effect to another batch.
    pub(crate) fn push(&mut self, db: u32, words: &[&[u8]]) {
        encode(&mut self.bytes, words.len(), words.iter().copied());
        self.end(db, true);
    }

    /// Adds a command, given as arguments.
    pub(crate) fn push_args(&mut self, db: u32, args: &Args<'_>) {
        encode_args(&mut self.bytes, args);
        self.end(db, false);
    }

    fn end(&mut self, db: u32, is_deletion: bool) {
        self.effects.push(Effect { db, end: self.bytes.len(), is_deletion });
    }

    /// Moves all effects of another batch to the end of this one. `is_deletion` says whether they
    /// are deletions of expired or evicted keys.
    pub(crate) fn append(&mut self, other: &mut Batch, is_deletion: bool) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        self.effects.extend(other.effects.iter().map(|effect| Effect {
            end: start + effect.end,
            is_deletion,
            ..*effect
        }));
        other.clear();
    }

    /// Removes all effects except the deletions of expired and evicted keys.
    pub(crate) fn retain_deletions(&mut self) {
        let (mut kept, mut start) = (Batch::default(), 0);
        for effect in &self.effects {
            if effect.is_deletion {
                kept.bytes.extend_from_slice(&self.bytes[start..effect.end]);
                kept.effects.push(Effect { end: kept.bytes.len(), ..*effect });
            }
            start = effect.end;
        }
        *self = kept;
    }
}

/// Appends a command as a RESP array of bulk strings.
fn encode_args(bytes: &mut Vec<u8>, args: &Args<'_>) {
    match args.as_canonical() {
        Some(sent) => bytes.extend_from_slice(sent),
        None => encode(bytes, args.len(), args.iter()),
    }
}

/// Maximum length in bytes of the RESP header of an array or a bulk string, and of the line end
/// after a bulk string.
const HEADER_BYTES_MAX: usize = 24;

/// Returns a bound for the number of bytes that [`encode`] appends for a command.
pub(crate) fn encoded_bytes_max(args: &Args<'_>) -> usize {
    args.len_bytes() + (args.len() + 1) * HEADER_BYTES_MAX
}

/// Appends the words of a command as a RESP array of bulk strings.
pub(crate) fn encode<'w>(bytes: &mut Vec<u8>, count: usize, words: impl Iterator<Item = &'w [u8]>) {
    let header = |bytes: &mut Vec<u8>, kind: u8, number: usize| {
        bytes.push(kind);
        bytes.extend_from_slice(Decimal::new().format_u64(number as u64));
        bytes.extend_from_slice(b"\r\n");
    };
    header(bytes, b'*', count);
    for word in words {
        header(bytes, b'$', word.len());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
}

/// The effects of the unit that a worker will commit next.
#[derive(Debug, Default)]
pub struct Unit {
    pub(crate) batch: Batch,
    /// Nesting depth of running transactions and scripts, whose commands form one unit.
    pub(crate) depth: u32,
    /// Whether the unit has the effect of a command without shards (`FUNCTION LOAD`, `PUBLISH`).
    pub(crate) has_local: bool,
}
