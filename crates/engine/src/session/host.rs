//! The interface of the server for commands without keys.

use std::sync::Arc;

use pantala_base::Distribution;

use crate::acl::User;
use crate::clients::client::{Client, Clients};
use crate::command::Command;
use crate::session::functions::Functions;
use crate::session::replication::Replicator;

/// How a node of a cluster presents itself (`CLUSTER`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterNode {
    /// ID of the node: 40 hexadecimal digits.
    pub id: String,
    /// `cluster-announce-ip`. If empty, clients use the address to which they have connected.
    pub ip: String,
    /// `cluster-announce-hostname`, or empty.
    pub hostname: String,
    /// Port for clients.
    pub port: u16,
    /// Port for other nodes.
    pub bus_port: u16,
    /// The kind of endpoint to which clients shall connect.
    pub endpoint: PreferredEndpoint,
}

/// `cluster-preferred-endpoint-type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreferredEndpoint {
    /// The address.
    #[default]
    Ip,
    /// The hostname; `?` if there is none.
    Hostname,
    /// The endpoint to which the client has connected.
    Unknown,
}

/// The result of a request to follow a primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Followed {
    /// The server now follows another primary, or none.
    Changed,
    /// The server already follows this primary, or already follows none.
    Same,
    /// Rejected, because a failover is running.
    FailingOver,
}

/// Options of `SHUTDOWN`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shutdown {
    /// `NOSAVE`.
    pub no_save: bool,
    /// `SAVE`.
    pub save: bool,
    /// `NOW`.
    pub now: bool,
    /// `FORCE`.
    pub force: bool,
    /// `ABORT`: cancels a shutdown.
    pub abort: bool,
}

/// Work of a connection that its worker does once it holds all shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllShards {
    /// `SHUTDOWN`: saves the dataset and stops the server.
    Shutdown(Shutdown),
    /// `DEBUG LOADAOF`: loads the append-only file.
    LoadAof,
    /// On a replica: work of the server that needs all shards, such as a snapshot. The work runs
    /// between two commands of the link to the primary.
    Pending,
}

/// The memory usage of the process, bytes (`MEMORY STATS`, `INFO memory`). The memory usage of the
/// data is in `Keyspace::memory_bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    /// All accounted memory: the process at startup, the data and the clients.
    pub used_bytes: u64,
    /// Peak of `used_bytes`.
    pub peak_bytes: u64,
    /// Memory of the process at startup, before any data.
    pub startup_bytes: u64,
    /// Buffers and state of the clients.
    pub clients_bytes: u64,
    /// Resident memory (RSS).
    pub resident_bytes: u64,
    /// Texts of cached scripts. Not part of the accounted memory.
    pub scripts_bytes: u64,
    /// Texts of function libraries. Not part of the accounted memory.
    pub libraries_bytes: u64,
}

/// Whether a `CONFIG SET` has been applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Configured {
    /// The parameters are set.
    Now,
    /// The client must wait.
    Later,
}

/// A command that reads or writes files. Outside of a transaction, a thread runs it, because a
/// worker must not wait for the disk. The client is blocked until the reply
/// ([`Awaited::Files`](super::replication::Awaited::Files)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileCommand {
    /// `CONFIG SET`, if [`Host::config_set`] has returned [`Configured::Later`].
    ConfigSet,
    /// `CONFIG REWRITE`.
    ConfigRewrite,
    /// `ACL LOAD`.
    AclLoad,
    /// `ACL SAVE`.
    AclSave,
}

/// The services of the server that commands need. Implemented by the server, and by tests.
pub trait Host: Send + Sync {
    /// Runs `CONFIG GET`. Returns names and values in the order of the reply.
    fn config_get(&self, patterns: &[&[u8]]) -> Vec<(String, Vec<u8>)>;
    /// Runs `CONFIG SET` for this client: sets all parameters or none. Returns
    /// [`Configured::Later`] and sets nothing if that has to wait for the disk. A thread must then
    /// run the command ([`FileCommand::ConfigSet`]). With `in_exec`, sets the parameters in any
    /// case. The error is the complete error reply, including its code.
    fn config_set(&self, pairs: &[(&[u8], &[u8])], client: &Client, in_exec: bool) -> Result<Configured, String>;
    /// Runs `CONFIG REWRITE`, on the calling thread. The error is the complete error reply.
    fn config_rewrite(&self) -> Result<(), String>;
    /// Runs `DEBUG CONFIG-REWRITE-FORCE-ALL`. The error is the complete error reply.
    fn config_rewrite_all(&self) -> Result<(), String>;
    /// Runs `CONFIG RESETSTAT`.
    fn reset_stats(&self);
    /// Writes a line to the log, as a warning (`DEBUG LOG`).
    fn log(&self, line: &str);
    /// Returns all clients.
    fn clients(&self) -> &Clients;
    /// Makes the worker of a client close the client's connection.
    fn kill(&self, client: &Client);
    /// Replaces all users by those in the ACL file, on the calling thread. Returns the former
    /// users, whose connections the caller must close. The error is the complete error reply.
    fn load_acl_file(&self) -> Result<Vec<Arc<User>>, String>;
    /// Writes the users to the ACL file, on the calling thread. The error is the complete error
    /// reply.
    fn save_acl_file(&self) -> Result<(), String>;
    /// Fills `bytes` with random bytes that are fit for secrets. Returns `false` if the system
    /// cannot provide them.
    fn fill_random(&self, bytes: &mut [u8]) -> bool;
    /// Stops the server without saving a snapshot or waiting for replicas. With `ABORT`, cancels a
    /// pending shutdown instead. The error is the complete error reply.
    fn shutdown(&self, how: Shutdown) -> Result<(), String>;
    /// Returns whether a `SHUTDOWN` with these options must wait before the server stops. Its
    /// client is blocked meanwhile. The command must wait in these cases:
    ///
    /// - Another shutdown is pending.
    /// - The server is a replica. It waits a limited time for the end of the link to its primary.
    /// - The server is a primary whose stream is recorded. It waits for the commands that were
    ///   checked before the shutdown held back writes, and then for its replicas, up to
    ///   `shutdown-timeout`.
    fn drains_before(&self, how: Shutdown) -> bool;
    /// Returns whether the server saves a snapshot before a shutdown with these options.
    fn saves_before(&self, how: Shutdown) -> bool;
    /// Runs `BGREWRITEAOF`. Returns the reply.
    ///
    /// # Errors
    /// The complete error reply.
    fn rewrite_append_only_file(&self) -> Result<&'static str, &'static str>;
    /// Counts the clients with `CLIENT DURABILITY always`: adds one if `asks`, otherwise subtracts
    /// one.
    fn note_asks_always(&self, asks: bool);
    /// Returns the Unix time in seconds at which the last snapshot was saved. If none was saved
    /// since the server started, returns the time of the start.
    fn last_save_s(&self) -> i64;
    /// Returns the text of `INFO` for these sections (lower-case names). An empty list stands for
    /// the default sections.
    fn info(&self, sections: &[String]) -> String;
    /// Returns the full name of each command with the latencies of its calls, in ns.
    fn latencies(&self) -> Vec<(&'static str, Distribution)>;
    /// Returns the memory usage of the process.
    fn memory(&self) -> ProcessMemory;
    /// Runs `MEMORY PURGE`: every thread returns freed memory to the kernel.
    fn purge_memory(&self);
    /// Returns whether this client may use `DEBUG`.
    fn debug_allowed(&self, client: &Client) -> bool;
    /// Returns whether this client may load and unload modules.
    fn modules_allowed(&self, client: &Client) -> bool;
    /// Logs that a module was not loaded, and the reason.
    fn log_unloadable(&self, path: &[u8], reason: &str);
    /// Returns the current Unix time in µs.
    fn now_us(&self) -> i64;
    /// Returns the command with a name (case-insensitive). Names are those after `rename-command`.
    fn command(&self, name: &[u8]) -> Option<&'static Command>;
    /// Returns how this server presents itself in a cluster.
    fn cluster_node(&self) -> ClusterNode;
    /// Returns whether `rename-command` has removed a command.
    fn is_removed(&self, command: &'static Command) -> bool;
    /// Runs `SCRIPT LOAD`: compiles a script and distributes it to all workers. Returns its SHA-1.
    /// The error is the complete error reply.
    fn script_load(&self, body: &[u8]) -> Result<Vec<u8>, Vec<u8>>;
    /// Returns whether a script with this SHA-1 is known.
    fn script_exists(&self, name: &[u8]) -> bool;
    /// Removes all cached scripts.
    fn script_flush(&self);
    /// Runs `SCRIPT KILL`: kills the scripts that have run long enough to be killed and have
    /// written nothing. The error is the complete error reply.
    fn script_kill(&self) -> Result<(), &'static str>;
    /// Returns the services for replication.
    fn replication(&self) -> &dyn Replicator;
    /// Makes the server follow a primary (host and port), or none, at the request of this client.
    fn follow(&self, primary: Option<(&[u8], u16)>, client: &Client) -> Followed;
    /// Returns the services for functions.
    fn functions(&self) -> &dyn Functions;
}
