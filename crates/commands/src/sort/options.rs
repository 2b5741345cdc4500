//! Parses the arguments of `SORT` after the key, and computes the route.

use pantala_base::number::parse_i64;
use pantala_engine::access::SessionView;
use pantala_engine::keyspace::Keyspace;
use pantala_resp::Args;

use super::pattern::Pattern;
use crate::arguments::is_option;
use crate::errors;

/// The parsed arguments.
#[derive(Default)]
pub(super) struct Options<'a> {
    pub(super) descending: bool,
    pub(super) alpha: bool,
    /// The offset and count of `LIMIT`, unchecked.
    pub(super) limit: Option<(i64, i64)>,
    /// The pattern to sort by.
    pub(super) by: Option<Pattern<'a>>,
    /// Whether a `BY` pattern refers to no key, so that the elements keep their own order.
    pub(super) unsorted: bool,
    pub(super) get: Vec<Pattern<'a>>,
    /// Argument index of the destination.
    pub(super) store: Option<usize>,
}

impl<'a> Options<'a> {
    /// Parses the arguments, or returns the error. `reads_all` returns whether the client's user
    /// may read every key.
    pub(super) fn parse(
        keyspace: &Keyspace,
        args: &Args<'a>,
        read_only: bool,
        reads_all: impl Fn() -> bool,
    ) -> Result<Self, &'static str> {
        let mut options = Options::default();
        let mut index = 2;
        while let Some(option) = args.get(index) {
            let next = args.get(index + 1);
            index += 1;
            if is_option(option, "ASC") {
                options.descending = false;
                continue;
            } else if is_option(option, "DESC") {
                options.descending = true;
                continue;
            } else if is_option(option, "ALPHA") {
                options.alpha = true;
                continue;
            }
            let Some(value) = next else { return Err(errors::SYNTAX) };
            index += 1;
            if is_option(option, "LIMIT") {
                let count = args.get(index).ok_or(errors::SYNTAX)?;
                index += 1;
                let numbers = parse_i64(value).zip(parse_i64(count));
                options.limit = Some(numbers.ok_or(errors::NOT_AN_INTEGER)?);
            } else if is_option(option, "STORE") && !read_only {
                options.store = Some(index - 1);
            } else if is_option(option, "BY") {
                let by = Pattern::new(value);
                if by.names_keys() && keyspace.is_cluster() {
                    return Err("ERR BY option of SORT denied in Cluster mode.");
                }
                if by.names_keys() && !reads_all() {
                    return Err("ERR BY option of SORT denied due to insufficient ACL permissions.");
                }
                // As in Redis, `unsorted` stays true even if a later `BY` refers to keys.
                options.unsorted |= !by.names_keys();
                options.by = Some(by);
            } else if is_option(option, "GET") {
                if keyspace.is_cluster() {
                    return Err("ERR GET option of SORT denied in Cluster mode.");
                }
                if !reads_all() {
                    return Err("ERR GET option of SORT denied due to insufficient ACL permissions.");
                }
                options.get.push(Pattern::new(value));
            } else {
                return Err(errors::SYNTAX);
            }
        }
        Ok(options)
    }

    /// Returns the range of indexes that `LIMIT` selects from `len` elements.
    pub(super) fn range(&self, len: usize) -> std::ops::Range<usize> {
        let Some((offset, count)) = self.limit else { return 0..len };
        let clamped = |number: i64| usize::try_from(number.max(0)).unwrap_or(len).min(len);
        let start = clamped(offset);
        let end = if count < 0 { len } else { start.saturating_add(clamped(count)).min(len) };
        start..end
    }
}

/// Appends the route of `SORT`: all shards if a pattern refers to keys; otherwise the shards of the
/// sorted key and the destination.
pub fn sort_route(keyspace: &Keyspace, _: &SessionView, args: &Args<'_>, shards: &mut Vec<u32>) {
    route(keyspace, args, false, shards);
}

/// Appends the route of `SORT_RO`, like [`sort_route`].
pub fn sort_ro_route(keyspace: &Keyspace, _: &SessionView, args: &Args<'_>, shards: &mut Vec<u32>) {
    route(keyspace, args, true, shards);
}

fn route(keyspace: &Keyspace, args: &Args<'_>, read_only: bool, shards: &mut Vec<u32>) {
    shards.push(keyspace.place(args.at(1)).shard);
    // An invalid call needs no shards for its patterns, because the handler only replies with the
    // error.
    let Ok(options) = Options::parse(keyspace, args, read_only, || true) else { return };
    if options.by.iter().chain(&options.get).any(Pattern::names_keys) {
        shards.extend(0..keyspace.partition_count());
    }
    shards.extend(options.store.map(|index| keyspace.place(args.at(index)).shard));
}

/// Visits the keys of a `SORT` call for `COMMAND GETKEYS`: the sorted key and the last destination.
/// Skips unknown options.
pub fn sort_keys(args: &Args<'_>, visit: &mut dyn FnMut(usize, usize)) {
    const DESTINATION_SPEC: usize = 2;
    sort_ro_keys(args, visit);
    let (mut index, mut destination) = (2, None);
    while let Some(word) = args.get(index) {
        // Skips the destination, even if it is named like an option. Redis parses such a
        // destination as an option. For `STORE GET STORE key`, Redis therefore checks the
        // permissions of the wrong key.
        if is_option(word, "STORE") && index + 1 < args.len() {
            destination = Some(index + 1);
        }
        index += if is_option(word, "LIMIT") {
            3
        } else if ["BY", "GET", "STORE"].iter().any(|option| is_option(word, option)) {
            2
        } else {
            1
        };
    }
    if let Some(index) = destination {
        visit(index, DESTINATION_SPEC);
    }
}

/// Visits the key of `SORT_RO`.
pub fn sort_ro_keys(args: &Args<'_>, visit: &mut dyn FnMut(usize, usize)) {
    if args.len() > 1 {
        visit(1, 0);
    }
}
