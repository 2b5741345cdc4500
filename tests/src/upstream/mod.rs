//! Redis's own test suite, run against a server from outside.
//!
//! The suite is Tcl and is not part of this tree: [`source`] fetches Debian's source package of redis with the ordinary apt
//! client and unpacks it below `target/upstream`. Its *external mode* (`--host --port`) runs a file of tests, a *unit*, on a
//! server that is already there. [`run`] gives each unit a fresh server, since units leave settings behind; [`report`] reads
//! what the suite prints; [`list`] holds it against what is committed in `tests/upstream`:
//!
//! - `units.txt`: the units, how many tests each runs on redis-server 7.0.15 in external mode, and how long it may take;
//! - `skipped/*.txt`: the tests that Pantala doesn't pass, each under its reason.
//!
//! # Words
//!
//! - *unit*: a file of the suite, named as the suite names it (`unit/type/string`).
//! - *test*: a test of it, by its name. Some names are used several times in a unit: such a test passes when each of them does.
//! - *listed*: named in a skip list. A listed test is run all the same, and must fail, unless its line begins with `!` (it isn't
//!   run, because it would hang or take tests behind it along) or with `-` (the suite itself doesn't come to it on Pantala).
//! - *lost*: a test that neither passed nor failed, since the code around it failed. The number in `units.txt` finds it.
//! - *ignored*: a test that the suite itself doesn't run on an external server.

pub mod list;
pub mod report;
pub mod run;
pub mod source;
