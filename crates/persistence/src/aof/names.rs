//! Names of the files that form the append-only file: the base (the dataset at one instant), the
//! increments (the effects since then), and the manifest (the list of these files). Each name is
//! derived from `appendfilename`.

/// Returns the name of a base, which is an RDB file or a file of commands.
#[must_use]
pub fn base(prefix: &[u8], seq: u64, is_rdb: bool) -> Vec<u8> {
    [prefix, format!(".{seq}.base.{}", if is_rdb { "rdb" } else { "aof" }).as_bytes()].concat()
}

/// Returns the name of an increment.
#[must_use]
pub fn increment(prefix: &[u8], seq: u64) -> Vec<u8> {
    [prefix, format!(".{seq}.incr.aof").as_bytes()].concat()
}

/// Returns the name of the manifest.
#[must_use]
pub fn manifest(prefix: &[u8]) -> Vec<u8> {
    [prefix, b".manifest"].concat()
}

/// Returns the temporary name of a manifest that has not replaced the former one yet.
#[must_use]
pub fn temporary_manifest(prefix: &[u8]) -> Vec<u8> {
    [b"temp-", prefix, b".manifest"].concat()
}

/// Returns the name of the file whose creation shows that files can be created.
#[must_use]
pub fn probe(prefix: &[u8]) -> Vec<u8> {
    [b"temp-", prefix, b".probe"].concat()
}

/// Returns the name of an increment that no manifest lists yet, because the base before it is still
/// being written.
#[must_use]
pub fn temporary_increment(prefix: &[u8]) -> Vec<u8> {
    [b"temp-", prefix, b".incr"].concat()
}
