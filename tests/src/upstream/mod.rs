//! Redis's own test suite, run against a server from outside.
//!
//! The suite is written in Tcl and isn't part of this tree: [`source`] downloads Debian's source
//! package of redis with the ordinary apt client and unpacks it in `target/upstream`. In its
//! *external mode* (`--host --port`) the suite runs a file of tests, a *unit*, on a running server.
//! [`run`] starts a new server for each unit, because units change settings; [`report`] parses the
//! suite's output; [`list`] compares the results with the files committed in `tests/upstream`:
//!
//! - `units.txt`: the units, with the number of tests that each runs on redis-server 7.0.15 in
//!   external mode, and the maximum time;
//! - `skipped/*.txt`: the tests that Pantala doesn't pass, grouped by reason.
//!
//! In the other mode ([`list::Mode::Own`]) the suite starts the servers itself. Its lists are in
//! `tests/upstream/own`.
//!
//! # Words
//!
//! - *unit*: a file of the suite, identified by the suite's name for it (`unit/type/string`).
//! - *test*: a test in a unit, with its name. If several tests of a unit share a name, all must
//!   pass.
//! - *listed*: named in a skip list. A listed test runs, and must fail, unless its line starts with
//!   a mark: `!` (it doesn't run, because it would hang or make later tests fail), `@` (it runs
//!   alone, on a server with one worker, and must pass) or `-` (the suite doesn't reach it on
//!   Pantala).
//! - *lost*: a test that neither passed nor failed, because the code around it failed. A run with
//!   lost tests has fewer tests than `units.txt` says.
//! - *ignored*: a test that the suite doesn't run on an external server.

pub mod list;
pub mod report;
pub mod run;
pub mod source;
