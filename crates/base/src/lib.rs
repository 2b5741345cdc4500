//! The basis of the other crates: time, randomness, checksums, number formats, queues between
//! threads, the allocator and shared limits. This crate has no code for RESP, sockets or file
//! formats.
//!
//! | module | contents | cost |
//! | --- | --- | --- |
//! | [`allocator`] | the global allocator: mimalloc, `mmap` for large blocks | a comparison per call |
//! | [`block`] | the memory usage of a heap block | a comparison for small blocks |
//! | [`clock`] | injected time | system clocks: one vDSO call each |
//! | [`code`] | the resident memory of code | a page fault per 64 KiB that runs again |
//! | [`counter`] | statistics with one writer | a load and a store per count; 16 bytes |
//! | [`cpus`] | sets of CPUs | a system call where threads are bound |
//! | [`mod@crc16`] | checksum and slot of a key | about half a nanosecond per byte |
//! | [`mod@crc64`] | checksum of `DUMP` payloads and RDB files | a step per 8 bytes; tables of 16 KiB |
//! | [`double`] | doubles as Redis 7.0 prints them | no allocation |
//! | [`gauge`] | levels with one writer | a load and a store per change; 8 bytes |
//! | [`glob`] | Redis's glob patterns | at most `pattern × text` steps, no allocation |
//! | [`hexadecimal`] | hexadecimal floating-point numbers | no allocation |
//! | [`histogram`] | latency histograms with one writer | a load and a store per count; 2 KiB per chunk in use |
//! | [`killable`] | a script run, killable until its first change | a compare-and-swap per run |
//! | [`lent`] | received bytes in memory lent by an event loop | – |
//! | [`limits`] | every bound that holds across crates | – |
//! | [`mailbox`] | intrusive lock-free queues between threads | a compare-and-swap per message |
//! | [`number`] | decimal integers, as strict as Redis | no allocation |
//! | [`numa`] | memory on a NUMA node | a system call per mapping, if there are several nodes |
//! | [`outgoing`] | bytes to send, owned or shared | a reference count where shared |
//! | [`pool`] | buffers that are reused | a lock per buffer |
//! | [`purges`] | threads that purge their heaps on request | a load where nothing is requested |
//! | [`random`] | injected randomness, seeded | about a nanosecond per 64 bits |
//! | [`sync`] | atomics: std's, or loom's under `--cfg loom` | – |
//! | [`topology`] | the host's cores, caches and NUMA nodes | some file reads per CPU |
//! | [`title`] | the title of the process | – |

#[cfg(not(miri))]
pub mod allocator;
pub mod block;
pub mod clock;
#[cfg(not(miri))]
pub mod code;
pub mod counter;
#[cfg(not(miri))]
pub mod cpus;
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
pub mod numa;
pub mod number;
pub mod outgoing;
pub mod pool;
pub mod purges;
pub mod random;
pub mod sync;
#[cfg(not(miri))]
pub mod title;
#[cfg(not(miri))]
pub mod topology;

pub use block::block_bytes;
pub use clock::{Clock, ManualClock, Moment, SystemClock, jump_ms};
pub use counter::Counter;
pub use crc16::{crc16, key_slot};
pub use crc64::crc64;
pub use gauge::Gauge;
pub use histogram::{Distribution, Histogram};
pub use killable::Killable;
pub use lent::{Lender, Lent};
pub use outgoing::{Outgoing, SharedBytes};
pub use pool::{BufferPool, PooledBuffer};
pub use purges::ThreadHeap;
pub use random::Random;
