//! Propagated forms: the commands sent to replicas and the append-only file in place of the
//! client's command. A relative expiry becomes a deadline. A random or blocking pop becomes a
//! command with the same outcome. By default the client's command is propagated unchanged;
//! `pantala_engine::effect` describes how a handler overrides the default.

use pantala_base::number::Decimal;
use pantala_engine::access::{Access, Key};
use pantala_engine::command::{Omission, Propagated};
use pantala_resp::Args;

/// Propagates the deletion of a key.
pub(crate) fn deletion(access: &mut Access<'_>, key: &Key<'_>, lazy: bool) -> Propagated {
    access.propagate(&[if lazy { b"UNLINK" } else { b"DEL" }, key.bytes])
}

/// Propagates the deadline of a key. `at_ms` is Unix time in ms.
pub(crate) fn deadline(access: &mut Access<'_>, key: &Key<'_>, at_ms: i64) -> Propagated {
    access.propagate(&[b"PEXPIREAT", key.bytes, Decimal::new().format_i64(at_ms)])
}

/// Propagates a pop as `command` on the key, with `count` if it is given.
pub(crate) fn pop(access: &mut Access<'_>, command: &str, key: &Key<'_>, count: Option<usize>) -> Propagated {
    match count {
        None => access.propagate(&[command.as_bytes(), key.bytes]),
        Some(count) => access.propagate(&[command.as_bytes(), key.bytes, Decimal::new().format_u64(count as u64)]),
    }
}

/// Propagates a command given as its arguments, which are not collected while the journal is off.
pub(crate) fn words<'w>(access: &mut Access<'_>, words: impl IntoIterator<Item = &'w [u8]>) -> Propagated {
    if !access.is_journaled() {
        return access.propagate_nothing(Omission::Unrecorded);
    }
    let words: Vec<&[u8]> = words.into_iter().collect();
    access.propagate(&words)
}

/// Propagates the client's command without the option `word` (case-insensitive), for example `SET`
/// without `GET`. Keeps all arguments before index `first`.
pub(crate) fn without_word(access: &mut Access<'_>, args: &Args<'_>, first: usize, word: &str) -> Propagated {
    let kept =
        args.iter().enumerate().filter(|(index, arg)| *index < first || !arg.eq_ignore_ascii_case(word.as_bytes()));
    words(access, kept.map(|(_, arg)| arg))
}

/// Propagates several commands in place of the client's, or nothing if there are none.
pub(crate) fn each<'w, const N: usize>(
    access: &mut Access<'_>,
    commands: impl Iterator<Item = [&'w [u8]; N]>,
) -> Propagated {
    commands.for_each(|words| _ = access.propagate(&words));
    access.propagate_nothing(Omission::Replaced)
}
