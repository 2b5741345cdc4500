//! Error replies that several commands share, as Redis words them.

use pantala_engine::db::EditError;

/// An option that isn't one, or one at the wrong place.
pub const SYNTAX: &str = "ERR syntax error";

/// A number was expected; or one that fits 64 bits.
pub const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";

/// A number that is too large for what it counts.
pub const OUT_OF_RANGE: &str = "ERR value is out of range";

/// A floating-point number was expected.
pub const NOT_A_FLOAT: &str = "ERR value is not a valid float";

/// The key holds another type than the command works on.
pub const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// A command that needs its key to exist.
pub const NO_SUCH_KEY: &str = "ERR no such key";

/// `COPY` and `MOVE` onto the very same key.
pub const SAME_OBJECT: &str = "ERR source and destination objects are the same";

/// There is no database of that number.
pub const NO_SUCH_DATABASE: &str = "ERR DB index is out of range";

/// A string would become longer than `proto-max-bulk-len`.
pub const STRING_TOO_LONG: &str = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";

/// The allocator refused; nothing was changed. Redis would abort.
pub const OUT_OF_MEMORY: &str = "OOM the allocator refused the memory for this value";

/// A hash has as many fields as it can have: there is no such bound in Redis, where memory ends before.
pub(crate) const HASH_FULL: &str = "ERR a hash holds at most 4294967295 fields";

/// The same for members of a set.
pub(crate) const SET_FULL: &str = "ERR a set holds at most 4294967295 members";

/// Returns the reply of a command that could not change a string.
pub(crate) fn of_edit(error: EditError) -> &'static str {
    match error {
        EditError::WrongType => WRONG_TYPE,
        EditError::OutOfMemory => OUT_OF_MEMORY,
    }
}
