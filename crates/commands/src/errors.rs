//! Error replies shared by several commands, with Redis's texts.

use pantala_engine::db::EditError;

/// An unknown option, or one in the wrong place.
pub const SYNTAX: &str = "ERR syntax error";

/// An argument isn't a number, or doesn't fit in 64 bits.
pub const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";

/// A number is outside of the range that the command accepts.
pub const OUT_OF_RANGE: &str = "ERR value is out of range";

/// An argument isn't a floating-point number.
pub const NOT_A_FLOAT: &str = "ERR value is not a valid float";

/// The key holds a value of another type.
pub const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// The command requires the key to exist.
pub const NO_SUCH_KEY: &str = "ERR no such key";

/// Source and destination of `COPY` or `MOVE` are the same key.
pub const SAME_OBJECT: &str = "ERR source and destination objects are the same";

/// No database has this number.
pub const NO_SUCH_DATABASE: &str = "ERR DB index is out of range";

/// A string would exceed `proto-max-bulk-len`.
pub const STRING_TOO_LONG: &str = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";

/// An allocation failed, and nothing was changed. (Redis would end the process.)
pub const OUT_OF_MEMORY: &str = "OOM not enough memory for this value";

/// A hash has the maximum number of fields. Redis has no such limit, because it runs out of memory
/// first.
pub(crate) const HASH_FULL: &str = "ERR a hash holds at most 4294967295 fields";

/// A set has the maximum number of members.
pub(crate) const SET_FULL: &str = "ERR a set holds at most 4294967295 members";

/// A sorted set has no room for the new members.
pub(crate) const SORTED_SET_FULL: &str = "ERR a sorted set holds at most 32 GiB of members and scores";

/// Returns the error reply for a failed change of a string.
pub(crate) fn edit_error(error: EditError) -> &'static str {
    match error {
        EditError::WrongType => WRONG_TYPE,
        EditError::OutOfMemory => OUT_OF_MEMORY,
    }
}
