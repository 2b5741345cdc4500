//! Events of keys, as `notify-keyspace-events` names them.

/// The class of an event: Redis's letter in `notify-keyspace-events`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EventClass {
    /// `g`: commands of any type (DEL, EXPIRE, RENAME …).
    Generic = b'g',
    /// `$`.
    String = b'$',
    /// `l`.
    List = b'l',
    /// `s`.
    Set = b's',
    /// `h`.
    Hash = b'h',
    /// `z`.
    SortedSet = b'z',
    /// `t`.
    Stream = b't',
    /// `x`: a key expired.
    Expired = b'x',
    /// `e`: a key was evicted.
    Evicted = b'e',
    /// `n`: a new key.
    New = b'n',
    /// `m`: a key that was asked for isn't there.
    Miss = b'm',
    /// `d`: of modules.
    Module = b'd',
}
