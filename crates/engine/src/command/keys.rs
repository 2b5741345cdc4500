//! Key extraction: applies key specifications to a call's arguments. Used by routing, permission
//! checks, `COMMAND GETKEYS` and `COMMAND GETKEYSANDFLAGS`.

use pantala_base::number::parse_i64;
use pantala_resp::Args;

use super::{BeginSearch, Command, FindKeys, KeySpec};

/// Error: the key specifications do not fit the arguments. Examples: a count is not a number or is
/// too large, a key is missing, or a specification cannot describe its keys
/// ([`FindKeys::Unknown`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidKeys;

/// Fields 4 to 6 of `COMMAND INFO`, which predate key specifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LegacyRange {
    /// Argument index of the first key, or 0 if there are no keys.
    pub first: i32,
    /// Argument index of the last key. A negative number counts from the end: -1 is the last
    /// argument.
    pub last: i32,
    /// Distance from one key to the next.
    pub step: i32,
    /// Whether the command has keys that the other three fields do not describe (`movablekeys`).
    pub movable: bool,
}

impl Command {
    /// Returns the index of the argument that is probably a member (command on a set) or a field
    /// (command on a hash). The index is only used to prefetch the entry, so a wrong index does no
    /// harm.
    #[inline]
    pub fn member_argument(&self) -> Option<usize> {
        (matches!(self.group, "set" | "hash") && self.arity.unsigned_abs() > 2).then_some(2)
    }

    /// Returns the argument index of the key if the command has exactly one key, at a fixed index.
    /// This is the case for most commands that clients send.
    ///
    /// The caller must have checked the arity, which ensures that the argument exists.
    #[inline]
    pub fn single_key(&self) -> Option<usize> {
        match self.key_specs {
            [KeySpec { begin: BeginSearch::Index(index), find: FindKeys::Range { last: 0, .. }, .. }] => {
                Some(*index as usize)
            }
            _ => None,
        }
    }

    /// Merges the key specifications into a single range, as far as possible.
    pub fn legacy_range(&self) -> LegacyRange {
        if let [KeySpec { begin: BeginSearch::Index(first), find: FindKeys::Range { last, step, .. }, flags, .. }] =
            self.key_specs
        {
            let last = if *last >= 0 { first + last } else { *last };
            return LegacyRange { first: *first, last, step: *step, movable: flags.contains(&"incomplete") };
        }
        let mut range = LegacyRange::default();
        for spec in self.key_specs {
            let (BeginSearch::Index(first), FindKeys::Range { last, step: 1, .. }) = (spec.begin, spec.find) else {
                range.movable = true;
                continue;
            };
            // Only consecutive ranges can be merged.
            if range.first != 0 && range.last != first - 1 {
                range.movable = true;
                continue;
            }
            let last = if last >= 0 { first + last } else { last };
            range = LegacyRange {
                first: if range.first == 0 { first } else { range.first },
                last,
                step: 1,
                movable: range.movable || spec.flags.contains(&"incomplete"),
            };
        }
        range
    }
}

/// Appends the argument index of each key of a call to `keys`, in the order of the key
/// specifications.
///
/// A specification whose keyword is missing from the call has no keys. If the number of arguments
/// is wrong, the result is an error, or only the keys that are among the arguments.
///
/// # Errors
/// A specification does not fit the arguments. `keys` is then unchanged.
pub fn keys_of(command: &Command, args: &Args<'_>, keys: &mut Vec<usize>) -> Result<(), InvalidKeys> {
    let before = keys.len();
    let found = for_each_key(command, args, |index, _| keys.push(index));
    if found.is_err() {
        keys.truncate(before);
    }
    found
}

/// Calls `visit` with the argument index of each key of a call and the key's specification.
///
/// # Errors
/// A specification does not fit the arguments. `visit` was called for the preceding specifications.
pub fn for_each_key(
    command: &Command,
    args: &Args<'_>,
    visit: impl FnMut(usize, &'static KeySpec),
) -> Result<(), InvalidKeys> {
    // An argument with the flag `not_key` (the channel of `SPUBLISH`) determines the slot like a
    // key, but is not a key.
    for_each_in(command, args, |spec| !spec.flags.contains(&"not_key"), visit)
}

/// Calls `visit` like [`for_each_key`], and also for arguments that determine the slot without
/// being keys.
pub(super) fn for_each_slotted(
    command: &Command,
    args: &Args<'_>,
    visit: impl FnMut(usize, &'static KeySpec),
) -> Result<(), InvalidKeys> {
    for_each_in(command, args, |_| true, visit)
}

fn for_each_in(
    command: &Command,
    args: &Args<'_>,
    is_wanted: impl Fn(&KeySpec) -> bool,
    mut visit: impl FnMut(usize, &'static KeySpec),
) -> Result<(), InvalidKeys> {
    if let Some(own_keys) = command.own_keys {
        own_keys(args, &mut |index, spec| visit(index, &command.key_specs[spec]));
        return Ok(());
    }
    for spec in command.key_specs {
        if !is_wanted(spec) {
            continue;
        }
        let Some(first) = begin(spec, args)? else {
            continue;
        };
        let (first, last, step) = extent(spec, first, args)?;
        if first > last || last >= args.len() {
            return Err(InvalidKeys);
        }
        for index in (first..=last).step_by(step) {
            visit(index, spec);
        }
    }
    Ok(())
}

/// Returns the argument index at which a specification's keys start, or `None` if its keyword is
/// missing.
fn begin(spec: &KeySpec, args: &Args<'_>) -> Result<Option<usize>, InvalidKeys> {
    match spec.begin {
        BeginSearch::Index(index) => usize::try_from(index).map(Some).map_err(|_| InvalidKeys),
        BeginSearch::Keyword(keyword, from) => {
            let is_keyword = |index: &usize| args[*index].eq_ignore_ascii_case(keyword.as_bytes());
            let distance = from.unsigned_abs() as usize;
            let found = if from >= 0 {
                (distance..args.len()).find(is_keyword)
            } else {
                let start = args.len().saturating_sub(distance);
                (1..=start).rev().find(is_keyword)
            };
            Ok(found.map(|index| index + 1))
        }
        BeginSearch::Unknown => Err(InvalidKeys),
    }
}

/// Returns the index of the first key, the index of the last key and the step. `first` is the
/// argument index at which the specification's keys start ([`begin`]). The index of the last key
/// may be out of range.
fn extent(spec: &KeySpec, first: usize, args: &Args<'_>) -> Result<(usize, usize, usize), InvalidKeys> {
    let count = args.len();
    match spec.find {
        FindKeys::Range { last, step, limit } => {
            let back = last.unsigned_abs() as usize;
            let last = match (last >= 0, limit) {
                (true, _) => Some(first + back),
                (false, 0 | 1) => count.checked_sub(back),
                // The keys are only the first part of the remaining arguments. XREAD, for example,
                // has one ID for each stream, after all streams.
                (false, limit) => {
                    (first + count.saturating_sub(first) / limit.unsigned_abs() as usize).checked_sub(back)
                }
            };
            Ok((first, last.ok_or(InvalidKeys)?, step_of(step)))
        }
        FindKeys::KeyNum { keynum, first: after, step } => {
            let number = args.get(offset(first, keynum)?).and_then(parse_i64).ok_or(InvalidKeys)?;
            let number = usize::try_from(number).map_err(|_| InvalidKeys)?;
            let first = offset(first, after)?;
            let last = first.checked_add(number).and_then(|end| end.checked_sub(1)).ok_or(InvalidKeys)?;
            Ok((first, last, step_of(step)))
        }
        FindKeys::Unknown => Err(InvalidKeys),
    }
}

/// Adds an offset, which may be negative, to an index.
fn offset(from: usize, by: i32) -> Result<usize, InvalidKeys> {
    from.checked_add_signed(by as isize).ok_or(InvalidKeys)
}

/// Returns a step of at least 1, because `step_by` panics for 0.
fn step_of(step: i32) -> usize {
    usize::try_from(step).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use pantala_resp::ArgRange;

    use super::*;

    fn with_specs(specs: &[KeySpec]) -> Command {
        Command { key_specs: specs.to_vec().leak(), ..Command::BLANK }
    }

    /// Returns the indexes of the keys of a call, given as words separated by spaces.
    fn keys(specs: &[KeySpec], call: &str) -> Result<Vec<usize>, InvalidKeys> {
        let mut start = 0;
        let range = |word: &str| {
            let range = ArgRange::new(start, word.len());
            start += word.len() + 1;
            range
        };
        let ranges: Vec<ArgRange> = call.split(' ').map(range).collect();
        let command = with_specs(specs);
        let mut keys = vec![usize::MAX];
        let found = keys_of(&command, &Args::new(call.as_bytes(), &ranges), &mut keys);
        assert_eq!(keys.remove(0), usize::MAX, "existing elements are kept");
        assert!(found.is_ok() || keys.is_empty(), "a failure appends nothing");
        found.map(|()| keys)
    }

    const fn spec(begin: BeginSearch, find: FindKeys) -> KeySpec {
        KeySpec { notes: "", flags: &["RO"], begin, find }
    }

    #[test]
    fn ranges() {
        assert_eq!(keys(&[KeySpec::at(1, &["RO"])], "get k"), Ok(vec![1]));
        assert_eq!(keys(&[KeySpec::at(1, &["RO"])], "get"), Err(InvalidKeys));
        assert_eq!(keys(&[KeySpec::range(1, 1, &["RO"])], "lcs a b len"), Ok(vec![1, 2]));
        assert_eq!(keys(&[KeySpec::all_from(1, 1, &["RO"])], "del a b c"), Ok(vec![1, 2, 3]));
        assert_eq!(keys(&[KeySpec::all_from(1, 1, &["RO"])], "del"), Err(InvalidKeys));
        // Redis includes the key without a value too.
        assert_eq!(keys(&[KeySpec::all_from(1, 2, &["OW"])], "mset a 1 b"), Ok(vec![1, 3]));
        // The keys of BLPOP end before its timeout.
        const BUT_LAST: KeySpec = spec(BeginSearch::Index(1), FindKeys::Range { last: -2, step: 1, limit: 0 });
        assert_eq!(keys(&[BUT_LAST], "blpop a b 0"), Ok(vec![1, 2]));
        assert_eq!(keys(&[BUT_LAST], "blpop 0"), Err(InvalidKeys));
        assert_eq!(keys(&[], "ping"), Ok(vec![]));
    }

    #[test]
    fn keywords() {
        const STREAMS: KeySpec =
            spec(BeginSearch::Keyword("STREAMS", 1), FindKeys::Range { last: -1, step: 1, limit: 2 });
        assert_eq!(keys(&[STREAMS], "xread count 2 streams a b 0 0"), Ok(vec![4, 5]));
        assert_eq!(keys(&[STREAMS], "xread streams"), Err(InvalidKeys));
        assert_eq!(keys(&[STREAMS], "xread a b"), Ok(vec![]), "no keyword, no keys");
        const FROM_END: KeySpec =
            spec(BeginSearch::Keyword("KEYS", -2), FindKeys::Range { last: -1, step: 1, limit: 0 });
        assert_eq!(keys(&[FROM_END], "migrate h p KEYS a b"), Ok(vec![4, 5]));
        assert_eq!(keys(&[FROM_END], "migrate h p x"), Ok(vec![]));
        assert_eq!(keys(&[FROM_END], "migrate"), Ok(vec![]));
    }

    #[test]
    fn counts() {
        const COUNTED: KeySpec = spec(BeginSearch::Index(2), FindKeys::KeyNum { keynum: 0, first: 1, step: 1 });
        assert_eq!(keys(&[COUNTED], "eval s 2 a b c"), Ok(vec![3, 4]));
        for hostile in ["eval s 0 a", "eval s -1 a", "eval s 4 a b c", "eval s x a", "eval s", "eval s 1"] {
            assert_eq!(keys(&[COUNTED], hostile), Err(InvalidKeys), "{hostile}");
        }
        assert_eq!(keys(&[COUNTED], "eval s 9223372036854775807 a"), Err(InvalidKeys));
        // ZUNIONSTORE also has a destination. If one specification fails, no key is found.
        const BOTH: &[KeySpec] = &[KeySpec::at(1, &["OW"]), COUNTED];
        assert_eq!(keys(BOTH, "zunionstore d 2 a b weights 1 2"), Ok(vec![1, 3, 4]));
        assert_eq!(keys(BOTH, "zunionstore d 9 a b"), Err(InvalidKeys));
    }

    #[test]
    fn unknown_specifications_and_non_key_arguments() {
        const UNKNOWN: KeySpec = spec(BeginSearch::Unknown, FindKeys::Unknown);
        const CHANNEL: KeySpec = KeySpec::at(1, &["not_key"]);
        assert_eq!(keys(&[UNKNOWN], "sort a"), Err(InvalidKeys));
        assert_eq!(keys(&[CHANNEL], "spublish c m"), Ok(vec![]));
    }

    #[test]
    fn legacy_ranges() {
        const KEYNUM: KeySpec = spec(BeginSearch::Index(2), FindKeys::KeyNum { keynum: 0, first: 1, step: 1 });
        let shown = |specs: &[KeySpec]| {
            let LegacyRange { first, last, step, movable } = with_specs(specs).legacy_range();
            (first, last, step, movable)
        };
        // The values that redis-server 7.0.15 shows for PING, GET, LCS, MSET, RENAME, SUNIONSTORE,
        // EVAL, ZUNIONSTORE.
        assert_eq!(shown(&[]), (0, 0, 0, false));
        assert_eq!(shown(&[KeySpec::at(1, &["RO"])]), (1, 1, 1, false));
        assert_eq!(shown(&[KeySpec::range(1, 1, &["RO"])]), (1, 2, 1, false));
        assert_eq!(shown(&[KeySpec::all_from(1, 2, &["OW"])]), (1, -1, 2, false));
        assert_eq!(shown(&[KeySpec::at(1, &["RW"]), KeySpec::at(2, &["OW"])]), (1, 2, 1, false));
        assert_eq!(shown(&[KeySpec::at(1, &["OW"]), KeySpec::all_from(2, 1, &["RO"])]), (1, -1, 1, false));
        assert_eq!(shown(&[KEYNUM]), (0, 0, 0, true));
        assert_eq!(shown(&[KeySpec::at(1, &["OW"]), KEYNUM]), (1, 1, 1, true));
        assert_eq!(shown(&[KeySpec::at(1, &["RW"]), KeySpec::at(3, &["OW"])]), (1, 1, 1, true));
        assert_eq!(shown(&[KeySpec::at(1, &["RW", "incomplete"])]), (1, 1, 1, true));
    }

    #[test]
    fn a_fixed_key_is_single() {
        let single = |specs: &[KeySpec]| with_specs(specs).single_key();
        assert_eq!(single(&[KeySpec::at(2, &["RO"])]), Some(2));
        assert_eq!(single(&[KeySpec::all_from(1, 1, &["RO"])]), None);
        assert_eq!(single(&[KeySpec::at(1, &["RO"]), KeySpec::at(2, &["RO"])]), None);
        assert_eq!(single(&[]), None);
    }
}
