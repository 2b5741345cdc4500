//! Redis's own test suite, run against a server from outside.
//!
//! The suite is Tcl and is not part of this tree: [`source`] downloads Debian's source package of
//! redis with the ordinary apt client and unpacks it below `target/upstream`. Its *external mode*
//! (`--host --port`) runs a file of tests, a *unit*, on a running server. [`run`] gives each unit a
//! fresh server, since units leave settings behind; [`report`] parses the suite's output; [`list`]
//! compares it with the files committed in `tests/upstream`:
//!
//! - `units.txt`: the units, how many tests each runs on redis-server 7.0.15 in external mode, and
//!   its maximum time;
//! - `skipped/*.txt`: the tests that Pantala doesn't pass, each under its reason.
//!
//! # Words
//!
//! - *unit*: a file of the suite, named as the suite names it (`unit/type/string`).
//! - *test*: a test in it, by name. A name used several times in a unit passes if each test passes.
//! - *listed*: named in a skip list. A listed test is run, and must fail, unless its line starts
//!   with `!` (it isn't run, because it would hang or make later tests fail) or with `-` (the suite
//!   itself doesn't reach it on Pantala).
//! - *lost*: a test that neither passed nor failed, since the code around it failed. The number in
//!   `units.txt` reveals it.
//! - *ignored*: a test that the suite itself doesn't run on an external server.

pub mod list;
pub mod report;
pub mod run;
pub mod source;
