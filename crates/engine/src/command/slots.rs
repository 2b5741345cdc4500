//! The slots of a call's keys. In a cluster all keys of a call must have the same slot.

use pantala_base::key_slot;
use pantala_resp::Args;

use super::Command;
use super::keys::for_each_slotted;

/// The slots of the keys of one call or of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots {
    /// There are no keys.
    None,
    /// All keys have this slot.
    One(u16),
    /// The keys have different slots.
    Several,
}

impl Slots {
    /// Returns the slots of a call's keys, or of the channels of `SSUBSCRIBE` and its variants.
    /// Returns [`Slots::None`] if the arguments do not fit the key specifications. As in Redis, the
    /// command then runs, and its handler reports the error.
    pub fn of(command: &Command, args: &Args<'_>) -> Self {
        let mut slots = Slots::None;
        match for_each_slotted(command, args, |index, _| slots.add(Slots::One(key_slot(args.at(index))))) {
            Ok(()) => slots,
            Err(_) => Slots::None,
        }
    }

    /// Adds the slots of further keys.
    pub fn add(&mut self, other: Slots) {
        *self = match (*self, other) {
            (Slots::None, slots) | (slots, Slots::None) => slots,
            (Slots::One(a), Slots::One(b)) if a == b => Slots::One(a),
            _ => Slots::Several,
        };
    }
}

#[cfg(test)]
mod tests {
    use pantala_resp::ArgRange;

    use super::super::KeySpec;
    use super::*;

    fn slots(specs: &'static [KeySpec], words: &[&str]) -> Slots {
        let mut begin = 0;
        let ranges: Vec<ArgRange> = words
            .iter()
            .map(|word| {
                begin += word.len();
                ArgRange::new(begin - word.len(), word.len())
            })
            .collect();
        let command = Command { key_specs: specs, ..Command::BLANK };
        Slots::of(&command, &Args::new(words.concat().as_bytes(), &ranges))
    }

    #[test]
    fn keys_and_channels_decide() {
        const KEYS: &[KeySpec] = &[KeySpec::all_from(1, 1, &["RO"])];
        const CHANNELS: &[KeySpec] = &[KeySpec::all_from(1, 1, &["not_key"])];
        for specs in [KEYS, CHANNELS] {
            // 15495 is what `CLUSTER KEYSLOT a` of redis-server 7.0.15 replies.
            assert_eq!(slots(specs, &["c", "a"]), Slots::One(15495));
            assert_eq!(slots(specs, &["c", "a", "{a}b", "a"]), Slots::One(15495));
            assert_eq!(slots(specs, &["c", "a", "b", "a"]), Slots::Several);
        }
        assert_eq!(slots(&[], &["c", "a", "b"]), Slots::None);
        assert_eq!(slots(KEYS, &["c"]), Slots::None, "the handler reports the error");
    }

    #[test]
    fn sums() {
        let sum = |parts: &[Slots]| {
            parts.iter().fold(Slots::None, |mut sum, part| {
                sum.add(*part);
                sum
            })
        };
        assert_eq!(sum(&[Slots::One(1), Slots::None, Slots::One(1)]), Slots::One(1));
        assert_eq!(sum(&[Slots::One(1), Slots::One(2), Slots::One(1)]), Slots::Several);
        assert_eq!(sum(&[Slots::None, Slots::Several]), Slots::Several);
    }
}
