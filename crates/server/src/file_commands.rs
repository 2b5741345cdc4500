//! Commands that read or write files. Outside of a transaction, a thread runs such a command,
//! because the disk may hang. Only the clients of such commands wait.

use std::io;
use std::sync::Arc;

use pantala_engine::acl::{Context, Denied, User};
use pantala_engine::blocking::Waiter;
use pantala_engine::client::{Client, FileCommand, Host};
use pantala_engine::command::Command;
use pantala_resp::Args;

use crate::aof::FirstRewrite;
use crate::host::Server;
use crate::tune::set_config;
use crate::users;

/// The name of the thread.
const THREAD: &str = "pantala-config";

/// The outcome of a command.
pub struct Outcome {
    /// Redis's error reply, or `OK`.
    pub reply: Result<(), String>,
    /// Whether the client's connection must be closed after the reply, because `ACL LOAD` has
    /// replaced its user.
    pub closes: bool,
}

impl From<Result<(), String>> for Outcome {
    fn from(reply: Result<(), String>) -> Self {
        Outcome { reply, closes: false }
    }
}

/// Makes a thread run the command of a blocked client, and then call `answer`.
///
/// # Errors
/// The system's error, if it can't start a thread.
pub fn run_on_thread(
    server: &Server,
    command: FileCommand,
    client: Arc<Client>,
    waiter: Arc<Waiter>,
    answer: impl FnOnce(Outcome) + Send + 'static,
) -> io::Result<()> {
    let stopping = || io::Error::other("the server is stopping");
    let server = server.snapshots().background.server().ok_or_else(stopping)?;
    let of_thread = Arc::clone(&server);
    let start = || {
        let run = move || of_thread.config().jobs.run();
        std::thread::Builder::new().name(THREAD.into()).spawn(run).map(drop)
    };
    let queue = Arc::clone(&server);
    queue.config().jobs.push(Box::new(move || answer(run(&server, command, &client, &waiter))), start)
}

fn run(server: &Server, command: FileCommand, client: &Client, waiter: &Waiter) -> Outcome {
    let args = waiter.args();
    // A permission that another client revokes during the wait must have no effect afterwards.
    let recheck = || recheck(server, client, waiter.command(), &args);
    match command {
        FileCommand::ConfigSet => {
            let words: Vec<&[u8]> = args.iter().skip(2).collect();
            let pairs: Vec<(&[u8], &[u8])> = words.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
            set_config(server, &pairs, client, FirstRewrite::Now, &recheck).into()
        }
        FileCommand::ConfigRewrite => server.config_rewrite().into(),
        FileCommand::AclSave => users::save(server).into(),
        FileCommand::AclLoad => match users::load(server, recheck) {
            Ok(former) => Outcome { reply: Ok(()), closes: close_clients_of(server, &former, client) },
            Err(error) => Err(error).into(),
        },
    }
}

/// Checks a command for a second time, because rules may have changed while its client waited. Logs
/// a denial. A client that has disconnected keeps its permissions, unless its user was deleted.
///
/// # Errors
/// The error reply, if the user was deleted or has lost the permission.
fn recheck(server: &Server, client: &Client, command: &Command, args: &Args<'_>) -> Result<(), String> {
    let keyspace = server.keyspace();
    let user = client.user().unwrap_or_else(|| Arc::clone(keyspace.users().default_user()));
    let checked = if user.is_deleted() { Err(Denied::Command) } else { user.rules().check(command, args) };
    checked.map_err(|denied| {
        keyspace.note_denied(client, denied, Context::TopLevel, command, args, server.now_ms());
        denied.message(command.full_name)
    })
}

/// Closes the connections of users, except that of `client`. Returns whether it must be closed too.
fn close_clients_of(server: &Server, users: &[Arc<User>], client: &Client) -> bool {
    let is_theirs = |of: &Client| users.iter().any(|user| of.is_user(user));
    for other in server.keyspace().clients().all().iter().filter(|other| is_theirs(other)) {
        if other.id != client.id {
            server.close_client(other);
        }
    }
    is_theirs(client)
}
