//! What every other crate of Pantala stands on. Knows nothing of Redis's protocol, of sockets or of files.
//!
//! | module | what | costs |
//! | --- | --- | --- |
//! | [`allocator`] | the global allocator of the binary: mimalloc, and mappings for large blocks | a compare per call |
//! | [`mod@crc16`] | checksum and slot of a key | about half a nanosecond per byte |
//! | [`mod@crc64`] | checksum of `DUMP` payloads and RDB files | one step per eight bytes, 16 KiB of tables |
//! | [`double`] | doubles as Redis 7.0 prints them | no allocation |
//! | [`glob`] | Redis's patterns | at most `pattern × text` steps, no allocation |
//! | [`clock`] | injected time | system clocks: one vDSO call each |
//! | [`random`] | injected randomness, seeded | about a nanosecond per 64 bits |
//! | [`counter`] | statistics with one writer | a load and a store per count; 16 bytes |
//! | [`gauge`] | levels with one writer | a load and a store per change; 8 bytes |
//! | [`killable`] | a run that others may kill until it has changed something; atomics from [`sync`] | an exchange per run that changes something |
//! | [`hexadecimal`] | hexadecimal floating-point numbers | no allocation |
//! | [`mailbox`] | intrusive queues of one atomic word; the atomics come from [`sync`], which is loom's under `--cfg loom` | one exchange per message |
//! | [`number`] | decimal integers, strict as Redis | no allocation |
//! | [`mailbox`] | intrusive lock-free queues between threads | a compare-and-swap per message |
//! | [`sync`] | the atomics used there: std's, or loom's under `--cfg loom` | – |
//! | [`lent`] | received bytes, in memory that an event loop lends | – |
//! | [`limits`] | every bound that holds across crates | – |
//! | [`outgoing`] | bytes to be sent: of one connection, or shared by many | a count of those shared |

#[cfg(not(miri))]
pub mod allocator;
pub mod clock;
pub mod counter;
pub mod crc16;
pub mod crc64;
pub mod double;
pub mod gauge;
pub mod glob;
pub mod hexadecimal;
pub mod histogram;
pub mod killable;
pub mod lent;
pub mod limits;
pub mod mailbox;
pub mod number;
pub mod outgoing;
pub mod random;
pub mod sync;

pub use clock::{Clock, ManualClock, Moment, SystemClock};
pub use counter::Counter;
pub use crc16::{crc16, key_slot};
pub use crc64::crc64;
pub use gauge::Gauge;
pub use histogram::{Distribution, Histogram};
pub use killable::Killable;
pub use lent::{Lender, Lent};
pub use outgoing::{Outgoing, SharedBytes};
pub use random::Random;
