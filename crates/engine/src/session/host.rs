//! The context of commands without keys: the connection, the data, and the server around both.

use pantala_base::Distribution;

use crate::clients::client::{Client, Clients};
use crate::command::{Command, Handlers, Local};
use crate::session::Session;
use crate::session::functions::Functions;
use crate::session::replication::Replicator;
use crate::shard::keyspace::Keyspace;

/// How a node of a cluster presents itself (`CLUSTER`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterNode {
    /// 40 hexadecimal digits.
    pub id: String,
    /// `cluster-announce-ip`; empty: clients use the address they know.
    pub ip: String,
    /// `cluster-announce-hostname`; empty: none.
    pub hostname: String,
    /// Port for clients.
    pub port: u16,
    /// Port for other nodes.
    pub bus_port: u16,
    /// The kind of endpoint that clients connect to.
    pub endpoint: PreferredEndpoint,
}

/// `cluster-preferred-endpoint-type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreferredEndpoint {
    /// The address.
    #[default]
    Ip,
    /// The name; `?` if there is none.
    Hostname,
    /// The endpoint that the client has connected to.
    Unknown,
}

/// The result of a request to follow a primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Followed {
    /// It follows another one now, or none.
    Changed,
    /// It did so already.
    Same,
    /// It does not, during a failover.
    FailingOver,
}

/// How a server is to stop (`SHUTDOWN`).
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
    /// Pending work of the server, between two commands of the link to the primary.
    Pending,
}

/// The memory usage of the process, bytes (`MEMORY STATS`, `INFO memory`). That of the data is in
/// [`Keyspace::memory_bytes`](crate::shard::keyspace::Keyspace::memory_bytes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryFigures {
    /// All accounted memory: the process at startup, the data, the clients.
    pub used_bytes: u64,
    /// The peak of that.
    pub peak_bytes: u64,
    /// The process at startup, before any data.
    pub startup_bytes: u64,
    /// Buffers and state of the clients.
    pub clients_bytes: u64,
    /// Resident memory (RSS).
    pub resident_bytes: u64,
    /// Texts of cached scripts; not among the accounted memory.
    pub scripts_bytes: u64,
    /// Texts of the libraries of functions; not among the accounted memory.
    pub libraries_bytes: u64,
}

/// The services of the server that commands need. The server implements it; tests may.
pub trait Host: Send + Sync {
    /// Runs `CONFIG GET`. Returns names and values in the order of the reply.
    fn config_get(&self, patterns: &[&[u8]]) -> Vec<(String, Vec<u8>)>;
    /// Runs `CONFIG SET` by this client: all or none. The error is the whole error reply, code
    /// included.
    fn config_set(&self, pairs: &[(&[u8], &[u8])], client: &Client) -> Result<(), String>;
    /// Runs `CONFIG REWRITE`. The error is the whole error reply.
    fn config_rewrite(&self) -> Result<(), String>;
    /// Runs `CONFIG RESETSTAT`.
    fn reset_stats(&self);
    /// Returns all clients.
    fn clients(&self) -> &Clients;
    /// Makes the worker of a client close it.
    fn kill(&self, client: &Client);
    /// Reads the ACL file. Returns its path, and its content or the system's error; `None` if none
    /// is configured.
    fn read_acl_file(&self) -> Option<(String, Result<Vec<u8>, String>)>;
    /// Replaces the content of the ACL file. Returns `None` if none is configured, and
    /// `Some(false)` if it cannot be written; the log has the reason.
    fn write_acl_file(&self, text: &[u8]) -> Option<bool>;
    /// Fills `bytes` with random bytes fit for a secret. Returns false if the system has none.
    fn fill_random(&self, bytes: &mut [u8]) -> bool;
    /// Starts a shutdown of the server, without a snapshot. The error is the whole error reply.
    fn shutdown(&self, how: Shutdown) -> Result<(), String>;
    /// Returns whether the server saves a snapshot before such a shutdown.
    fn saves_before(&self, how: Shutdown) -> bool;
    /// Runs `BGREWRITEAOF`. Returns the reply.
    ///
    /// # Errors
    /// The whole error reply.
    fn rewrite_append_only_file(&self) -> Result<&'static str, &'static str>;
    /// Notes that one more client asks for `CLIENT DURABILITY always`, or one fewer.
    fn note_asks_always(&self, asks: bool);
    /// Returns when the last snapshot was saved, or the server started: unix time in s.
    fn last_save_s(&self) -> i64;
    /// Returns the text of `INFO` for these section names (lower case; empty: the default ones).
    fn info(&self, sections: &[String]) -> String;
    /// Returns the latencies of each command's calls, in ns, by its full name.
    fn latencies(&self) -> Vec<(&'static str, Distribution)>;
    /// Returns the memory usage of the process.
    fn memory(&self) -> MemoryFigures;
    /// Runs `MEMORY PURGE`: every thread returns freed memory to the kernel.
    fn purge_memory(&self);
    /// Returns whether this client may use `DEBUG`.
    fn debug_allowed(&self, client: &Client) -> bool;
    /// Returns whether this client may load and unload modules.
    fn modules_allowed(&self, client: &Client) -> bool;
    /// Logs that a module wasn't loaded, and why.
    fn log_unloadable(&self, path: &[u8], reason: &str);
    /// Returns the current unix time in µs.
    fn now_us(&self) -> i64;
    /// Returns the command of this name (any case), after `rename-command`.
    fn command(&self, name: &[u8]) -> Option<&'static Command>;
    /// Returns how it presents itself in a cluster.
    fn cluster_node(&self) -> ClusterNode;
    /// Returns whether `rename-command` has left a command without a name.
    fn is_removed(&self, command: &'static Command) -> bool;
    /// Runs `SCRIPT LOAD`: compiles a script and distributes it to all workers. Returns its SHA-1.
    /// The error is the whole error reply.
    fn script_load(&self, body: &[u8]) -> Result<Vec<u8>, Vec<u8>>;
    /// Returns whether a script of this SHA-1 is known.
    fn script_exists(&self, name: &[u8]) -> bool;
    /// Forgets all scripts.
    fn script_flush(&self);
    /// Runs `SCRIPT KILL`: ends the scripts that have run for too long. The error is the whole
    /// error reply.
    fn script_kill(&self) -> Result<(), &'static str>;
    /// Returns replication.
    fn replication(&self) -> &dyn Replicator;
    /// Makes the server follow a primary, by host and port, or none, as this client asks.
    fn follow(&self, primary: Option<(&[u8], u16)>, client: &Client) -> Followed;
    /// Returns the services for functions.
    fn functions(&self) -> &dyn Functions;
}

/// The context of a command without keys.
pub struct LocalContext<'a> {
    /// The connection.
    pub session: &'a mut Session,
    /// The data: statistics and settings; no shard is held.
    pub keyspace: &'a Keyspace,
    /// The server.
    pub host: &'a dyn Host,
    /// Unix time, ms, as of this turn of the loop.
    pub now_ms: i64,
}

impl Local for Handlers {
    type Context<'a> = LocalContext<'a>;
}
