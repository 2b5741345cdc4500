//! Redis's own test suite, run against a server from outside.
//!
//! The suite is written in Tcl and isn't part of this tree: [`source`] downloads Debian's source
//! package of redis with the ordinary apt client and unpacks it in `target/upstream`. In its
//! *external mode* (`--host --port`) the suite runs a file of tests, a *unit*, on a running server.
//! [`run`] starts a new server for each unit, because units change settings. [`report`] parses the
//! suite's output. [`list`] compares the results with the files committed in `tests/upstream`:
//!
//! - `units.txt`: the units, with the number of tests that each runs on redis-server 7.0.15 in
//!   external mode, and the maximum time.
//! - `skipped/*.txt`: the tests that Pantala doesn't pass, grouped by the reason.
//!
//! In the suite's other mode ([`list::Mode::Own`]), the suite starts the servers itself. The lists
//! for this mode are in `tests/upstream/own`.
//!
//! # Words
//!
//! - *unit*: a file of the suite, identified by the suite's name for it (`unit/type/string`).
//! - *test*: a named test in a unit. If several tests of a unit have the same name, all must pass.
//! - *listed*: named in a skip list. A listed test without a mark runs, and must fail. A mark at
//!   the start of the line changes this: `!` (the test doesn't run, because it would hang or make
//!   later tests fail), `@` (the test runs alone, on a server with one worker, and must pass) or
//!   `-` (the suite doesn't reach the test on Pantala).
//! - *lost*: a test that neither passed nor failed, because the code around it failed. A run with
//!   lost tests has fewer tests than `units.txt` says.
//! - *ignored*: a test that the suite doesn't run on an external server.

pub mod list;
pub mod report;
pub mod run;
pub mod source;
