//! Parses options and numbers of all commands as Redis does.

use pantala_base::number::parse_i64;
use pantala_engine::keyspace::Keyspace;
use pantala_resp::{Args, Reply};
use pantala_types::LongDouble;

use crate::errors;

/// Returns the part of an argument before its first zero byte. Redis treats options as C strings
/// when it compares them and prints them in errors.
pub(crate) fn c_string(argument: &[u8]) -> &[u8] {
    argument.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// Maximum number of bytes of a name that an error quotes, as in Redis. An error that also quotes
/// arguments quotes about this number of their bytes in total.
pub(crate) const SHOWN_BYTES_MAX: usize = 128;

/// Returns the part of a name that an error quotes.
pub(crate) fn shown(name: &[u8]) -> &[u8] {
    c_string(&name[..name.len().min(SHOWN_BYTES_MAX)])
}

/// Returns the name by which the client called a command, in upper case. With `rename-command`, it
/// may differ from the name in the command's record, which the client is not to see.
pub(crate) fn upper_name(args: &Args<'_>) -> Vec<u8> {
    c_string(args.get(0).unwrap_or_default()).to_ascii_uppercase()
}

/// Replies with Redis's error for an unknown subcommand of a container (a command with
/// subcommands), or for a wrong number of a subcommand's arguments. The error shows both names as
/// the client spelled them.
pub(crate) fn wrong_subcommand(args: &Args<'_>, reply: &mut Reply<'_>) {
    let (before, after) = (b"ERR unknown subcommand or wrong number of arguments for '", b"'. Try ");
    reply.error_bytes(&[before, shown(args.at(1)), after, &upper_name(args), b" HELP."].concat());
}

/// Returns whether an argument is `option`, ignoring case.
#[inline]
pub(crate) fn is_option(argument: &[u8], option: &str) -> bool {
    argument.len() >= option.len()
        && argument[..option.len()].eq_ignore_ascii_case(option.as_bytes())
        && argument.get(option.len()).is_none_or(|&byte| byte == 0)
}

/// Parses an integer. Replies with an error and returns `None` if the argument isn't one.
#[inline]
pub(crate) fn integer(argument: &[u8], reply: &mut Reply<'_>) -> Option<i64> {
    let parsed = parse_i64(argument);
    if parsed.is_none() {
        reply.error(errors::NOT_AN_INTEGER);
    }
    parsed
}

/// Parses a nonnegative integer. Replies with an error and returns `None` if the argument isn't
/// one.
pub(crate) fn natural(argument: &[u8], reply: &mut Reply<'_>) -> Option<u64> {
    let natural = parse_i64(argument).and_then(|value| u64::try_from(value).ok());
    if natural.is_none() {
        reply.error("ERR value is out of range, must be positive");
    }
    natural
}

/// Parses a positive integer. Replies with `wrong` and returns `None` if the argument isn't one.
pub(crate) fn positive(argument: &[u8], wrong: &str, reply: &mut Reply<'_>) -> Option<u64> {
    let positive = parse_i64(argument).and_then(|value| u64::try_from(value).ok()).filter(|&value| value > 0);
    if positive.is_none() {
        reply.error(wrong);
    }
    positive
}

/// Parses a count of random elements, of either sign. Replies with an error and returns `None` if
/// the argument isn't one.
pub(crate) fn signed_count(argument: &[u8], reply: &mut Reply<'_>) -> Option<i64> {
    let count = integer(argument, reply)?;
    if count == i64::MIN {
        reply.error("ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807");
        return None;
    }
    Some(count)
}

/// Parses a timeout in seconds, possibly with a fraction, and returns milliseconds; 0 means no
/// timeout. Replies with an error and returns `None` if the argument isn't a timeout.
pub(crate) fn timeout_s(argument: &[u8], reply: &mut Reply<'_>) -> Option<i64> {
    // Most timeouts are a single digit. For these, the slow long-double arithmetic below is not
    // needed.
    if let &[digit @ b'0'..=b'9'] = argument {
        return Some(i64::from(digit - b'0') * 1000);
    }
    let Some(seconds) = LongDouble::parse(argument) else {
        reply.error("ERR timeout is not a float or out of range");
        return None;
    };
    // In Redis 7.0.15 the conversion of a large timeout overflows to a negative one. A timeout that
    // doesn't fit therefore gets the same error as a negative timeout.
    let timeout_ms = seconds.seconds_to_ms().filter(|&ms| ms >= 0);
    if timeout_ms.is_none() {
        reply.error("ERR timeout is negative");
    }
    timeout_ms
}

/// Parses the number of an existing database. Replies with an error and returns `None` if the
/// argument isn't one.
pub(crate) fn database(argument: &[u8], keyspace: &Keyspace, reply: &mut Reply<'_>) -> Option<u32> {
    let index = database_index(argument, None, reply)?;
    let database = database_of(index, keyspace);
    if database.is_none() {
        reply.error(errors::NO_SUCH_DATABASE);
    }
    database
}

/// Parses a database number as a C `int`. The database need not exist. If the argument isn't a C
/// `int`, replies with an error and returns `None`. The error is `wrong`, or one of Redis's errors
/// for numbers if `wrong` is `None`.
pub(crate) fn database_index(argument: &[u8], wrong: Option<&str>, reply: &mut Reply<'_>) -> Option<i32> {
    let index = parse_i64(argument).map(i32::try_from);
    match (index, wrong) {
        (Some(Ok(index)), _) => return Some(index),
        (_, Some(wrong)) => reply.error(wrong),
        (Some(Err(_)), None) => {
            reply.error("ERR value is out of range, value must between -2147483648 and 2147483647");
        }
        (None, None) => reply.error(errors::NOT_AN_INTEGER),
    }
    None
}

/// Converts a database number from a client. Returns `None` if there is no such database.
pub(crate) fn database_of(index: i32, keyspace: &Keyspace) -> Option<u32> {
    u32::try_from(index).ok().filter(|&db| db < keyspace.databases())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_match_as_c_strings_ignoring_case() {
        assert!(is_option(b"nx", "NX") && is_option(b"Nx", "NX") && is_option(b"NX\0junk", "NX"));
        assert!(!is_option(b"N", "NX") && !is_option(b"NXX", "NX") && !is_option(b"", "NX"));
        assert_eq!(c_string(b"ab\0c"), b"ab");
        assert_eq!(c_string(b""), b"");
    }
}
