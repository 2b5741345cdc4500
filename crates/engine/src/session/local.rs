//! Runs commands that need no shards. Their handlers have the type [`Handler::Local`].

use std::sync::atomic::AtomicU64;

use pantala_resp::{Args, Reply, is_aborted};

use crate::command::{Command, Flags, Handler, Handlers, Local};
use crate::session::Session;
use crate::session::functions::{Functions, LibraryChange};
use crate::session::host::Host;
use crate::shard::commit::{Recorder, report};
use crate::shard::keyspace::Keyspace;

/// The context of a command that needs no shards. Only [`run_local`] creates one, so no caller can
/// run a handler and forget to propagate its command.
pub struct LocalContext<'a> {
    /// The connection.
    pub session: &'a mut Session,
    /// The keyspace, for statistics and settings. No shard is held.
    pub keyspace: &'a Keyspace,
    /// The server.
    pub host: &'a dyn Host,
    /// Time of the worker's current turn (iteration of its event loop): Unix time, ms.
    pub now_ms: i64,
    has_changed_libraries: bool,
}

impl LocalContext<'_> {
    /// Changes the function libraries. `change` returns `Ok` if it has changed them, and otherwise
    /// the complete error reply.
    ///
    /// # Errors
    /// The error of `change`.
    pub fn change_libraries<R>(
        &mut self,
        change: impl FnOnce(&dyn Functions, &LibraryChange) -> Result<R, Vec<u8>>,
    ) -> Result<R, Vec<u8>> {
        let result = change(self.host.functions(), &LibraryChange(()));
        self.has_changed_libraries |= result.is_ok();
        result
    }
}

impl Local for Handlers {
    type Context<'a> = LocalContext<'a>;
}

/// The caller of a command without shards.
pub enum LocalCaller<'r, 'k> {
    /// A client. Monitors see the command, and its effect is propagated.
    Client(&'r mut Recorder<'k>),
    /// A script. Monitors see the command unless `is_hidden` is set, and its effect is propagated.
    Script {
        /// The recorder of the script's effects.
        recorder: &'r mut Recorder<'k>,
        /// Whether the command is hidden from monitors, because the script may be rolled back.
        is_hidden: bool,
    },
    /// An append-only file that is loaded. The command is neither shown nor propagated.
    File,
}

/// A call of a command without shards.
pub struct LocalCall<'a> {
    /// The command, which must have a local handler.
    pub command: &'static Command,
    /// Arguments of the command.
    pub args: Args<'a>,
    /// The session of the connection. A script and an append-only file have their own.
    pub session: &'a mut Session,
    /// The keyspace.
    pub keyspace: &'a Keyspace,
    /// The server.
    pub host: &'a dyn Host,
    /// Unix time, ms.
    pub now_ms: i64,
    /// Limit of the reply, as for [`Reply::limited`].
    pub reply_limit: Option<&'a AtomicU64>,
}

/// Runs a command without shards, for all kinds of callers: calls its handler, shows the command to
/// monitors, and propagates it if it has succeeded.
///
/// # Panics
/// If the command's handler is not local.
pub fn run_local(call: LocalCall<'_>, caller: LocalCaller<'_, '_>, output: &mut Vec<u8>) {
    let LocalCall { command, args, session, keyspace, host, now_ms, reply_limit } = call;
    let Handler::Local(handler) = command.handler else { panic!("{} is not local", command.full_name) };
    let before = output.len();
    let mut reply = Reply::limited(output, session.version, reply_limit);
    let mut context = LocalContext { session, keyspace, host, now_ms, has_changed_libraries: false };
    handler(&mut context, &args, &mut reply);
    reply.finish();
    let LocalContext { session, has_changed_libraries, .. } = context;
    let is_watched = keyspace.monitors().are_there();
    let recorder = match caller {
        LocalCaller::Client(recorder) => {
            if is_watched {
                keyspace.show(command, &args, session.client.id, session.db);
            }
            recorder
        }
        LocalCaller::Script { recorder, is_hidden } => {
            if is_watched && !is_hidden {
                keyspace.show_of_script(command, &args, session.db);
            }
            recorder
        }
        LocalCaller::File => return,
    };
    let has_succeeded = has_succeeded(&output[before..]);
    if has_changed_libraries && !(has_succeeded && command.flags.contains(Flags::WRITE)) {
        report(command, "changed the function libraries, but is not propagated");
    }
    if has_succeeded {
        recorder.propagate_local(command, session.db, &args);
    }
}

/// Returns whether a command has succeeded, so that it must be propagated. This is also so if its
/// reply was aborted, because only the reply of a successful command can exceed the limit. An error
/// about the length has then replaced the reply.
#[inline]
fn has_succeeded(reply: &[u8]) -> bool {
    reply.first() != Some(&b'-') || is_aborted(reply)
}
