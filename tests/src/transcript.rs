//! Transcripts: a function sends commands to a server and returns lines about the replies.
//! Pantala's lines must equal those of the reference, redis-server.

use crate::{Server, for_each_backend};

/// Calls `transcript` with redis-server, and with Pantala on each backend. The arguments of
/// `transcript` are the server and the version of RESP. Checks that the lines are the same. Pantala
/// is started with `args`. Skips the check if redis-server isn't installed.
///
/// # Panics
/// If a line differs, or one server has more lines.
pub fn assert_as_redis(args: &[&str], transcript: impl Fn(&Server, u8) -> Vec<String>) {
    if let Some(reference) = Server::redis(&[]) {
        assert_as(&reference, args, transcript);
    }
}

/// Checks as [`assert_as_redis`] does, with each execution (`inline`, `owner`).
///
/// # Panics
/// Like [`assert_as_redis`].
pub fn assert_as_redis_in_each_form(args: &[&str], transcript: impl Fn(&Server, u8) -> Vec<String>) {
    if let Some(reference) = Server::redis(&[]) {
        for execution in ["inline", "owner"] {
            assert_as(&reference, &[args, &["--execution", execution]].concat(), &transcript);
        }
    }
}

/// Checks as [`assert_as_redis`] does, with a reference that is already running.
///
/// # Panics
/// Like [`assert_as_redis`].
pub fn assert_as(reference: &Server, args: &[&str], transcript: impl Fn(&Server, u8) -> Vec<String>) {
    for version in [2, 3] {
        let right = transcript(reference, version);
        for_each_backend(|backend| {
            let mut server = Server::pantala(backend, args);
            let given = transcript(&server, version);
            for (given, right) in given.iter().zip(&right) {
                assert_eq!(given, right, "with RESP{version}");
            }
            assert_eq!(given.len(), right.len(), "lines, with RESP{version}");
            server.assert_sound();
        });
    }
}
