//! Transcripts: a function sends commands to a server and returns lines about the replies.
//! Pantala's lines must equal those of the judge, redis-server.

use crate::{Server, for_each_backend};

/// Calls `transcript(server, version of RESP)` with redis-server, and with Pantala started with
/// `args` on each backend, and checks that both return the same lines. Skips the check if
/// redis-server isn't installed.
///
/// # Panics
/// If a line differs, or one server has more lines.
pub fn assert_as_redis(args: &[&str], transcript: impl Fn(&Server, u8) -> Vec<String>) {
    if let Some(judge) = Server::redis(&[]) {
        assert_as(&judge, args, transcript);
    }
}

/// Checks as [`assert_as_redis`] does, with each execution (`inline`, `owner`).
///
/// # Panics
/// Like [`assert_as_redis`].
pub fn assert_as_redis_in_each_form(args: &[&str], transcript: impl Fn(&Server, u8) -> Vec<String>) {
    if let Some(judge) = Server::redis(&[]) {
        for execution in ["inline", "owner"] {
            assert_as(&judge, &[args, &["--execution", execution]].concat(), &transcript);
        }
    }
}

/// Checks as [`assert_as_redis`] does, with a judge that is already running.
///
/// # Panics
/// Like [`assert_as_redis`].
pub fn assert_as(judge: &Server, args: &[&str], transcript: impl Fn(&Server, u8) -> Vec<String>) {
    for version in [2, 3] {
        let right = transcript(judge, version);
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
