//! Clients: what a connection has agreed with the server, and the list of all of them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use pantala_base::Distribution;
use pantala_resp::Version;

use crate::command::Command;
use crate::effect::ConsumerId;
use crate::effect::blocking::Waiter;
use crate::effect::follower::Follower;
use crate::events::pubsub::{KINDS, Kind, Listener, Subscriptions};
use crate::events::tracking::{Reader, SessionTracking};
use crate::session::functions::Functions;
use crate::shard::access::SessionView;
use crate::shard::keyspace::Keyspace;
use crate::shard::transaction::{Transaction, Watch, Watching};
use crate::tuning::pause::Pause;

mod memory;
pub use memory::{ClientMemory, LIMIT_BYTES_MIN};

/// What `CLIENT REPLY` asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplyMode {
    /// Replies are sent.
    #[default]
    On,
    /// None is, until `CLIENT REPLY ON`.
    Off,
    /// The next command's is not (set by `CLIENT REPLY SKIP`).
    SkipNext,
    /// This command's is not.
    Skip,
}

/// What a connection has agreed with the server. Belongs to the connection's worker.
pub struct Session {
    /// What others may see of it.
    pub client: Arc<Client>,
    /// Selected database.
    pub db: u32,
    /// Protocol version of replies.
    pub version: Version,
    /// Whether it may run commands.
    pub authenticated: bool,
    /// `CLIENT REPLY`.
    pub reply_mode: ReplyMode,
    /// Close once the replies so far are sent.
    pub close_after_reply: bool,
    /// What it listens to; `None` when that is nothing.
    pub subscriptions: Option<Box<Subscriptions>>,
    /// What it has sent since `MULTI`; `None` when that wasn't sent.
    pub transaction: Option<Box<Transaction>>,
    /// An ended transaction, empty: its memory is for the next one.
    ended_transaction: Option<Box<Transaction>>,
    /// What it watches.
    pub watching: Option<Box<Watching>>,
    /// It sees every command (`MONITOR`).
    pub monitors: bool,
    /// It follows the stream of effects (`SYNC`).
    pub follows: Option<ConsumerId>,
    /// `CLIENT CACHING` was sent, and the command that it is for not yet.
    pub caching: bool,
    /// As whose what it reads is noted, if it is. Follows from the fields around it.
    pub reads_as: Option<Arc<Reader>>,
    /// What it has asked for with `CLIENT TRACKING`; `None` when it doesn't track.
    pub tracking: Option<Box<SessionTracking>>,
    /// `EXEC` runs its commands now.
    pub in_exec: bool,
    /// `CLIENT PAUSE` has run, and its worker hasn't seen to the answer yet.
    pub pause: Option<Box<Pause>>,
}

impl Session {
    /// The session of a new connection.
    pub fn new(client: Arc<Client>, authenticated: bool) -> Self {
        Session {
            client,
            db: 0,
            version: Version::Resp2,
            authenticated,
            reply_mode: ReplyMode::On,
            close_after_reply: false,
            subscriptions: None,
            transaction: None,
            ended_transaction: None,
            watching: None,
            monitors: false,
            follows: None,
            caching: false,
            reads_as: None,
            tracking: None,
            in_exec: false,
            pause: None,
        }
    }

    /// Has it see every command, or no more.
    pub fn set_monitors(&mut self, keyspace: &Keyspace, monitors: bool) {
        if self.monitors != monitors {
            self.monitors = monitors;
            self.client.monitors.store(monitors, Relaxed);
            let listener = self.listener();
            let (all, tuning) = (keyspace.monitors(), &keyspace.tuning);
            if monitors { all.add(tuning, listener) } else { all.remove(tuning, listener) }
        }
    }

    /// Sends it the stream of effects, behind an empty snapshot.
    ///
    /// # Errors
    /// The journal's thread can't be started.
    pub fn follow_effects(&mut self, keyspace: &Keyspace) -> std::io::Result<()> {
        if self.follows.is_none() {
            let follower = Follower::new(Arc::clone(keyspace.ports()), self.listener());
            self.follows = Some(keyspace.attach_consumer(Box::new(follower))?);
        }
        Ok(())
    }

    /// Ends [`Session::follow_effects`].
    pub fn leave_effects(&mut self, keyspace: &Keyspace) {
        if let Some(consumer) = self.follows.take() {
            keyspace.detach_consumer(consumer);
        }
    }

    /// Where messages for it go.
    pub fn listener(&self) -> Listener {
        Listener { worker: self.client.worker, connection: self.client.connection.load(Relaxed) }
    }

    /// Ends all its subscriptions.
    pub fn leave_channels(&mut self, keyspace: &Keyspace) {
        if let Some(mut subscriptions) = self.subscriptions.take() {
            keyspace.pubsub().leave(&mut subscriptions, self.listener());
            self.tell_subscriptions();
        }
    }

    /// Has others see how much it listens to.
    pub fn tell_subscriptions(&self) {
        for kind in KINDS {
            let count = self.subscriptions.as_ref().map_or(0, |subscriptions| subscriptions.names(kind).len());
            self.client.subscriptions[kind as usize].store(count as u32, Relaxed);
        }
    }

    /// Bytes of what it listens to (but for the names, which all share), watches, and wants to hear of.
    pub fn overhead_bytes(&self) -> usize {
        let listened = self.subscriptions.as_ref().map_or(0, |subscriptions| subscriptions.bytes());
        let watched = self.watching.as_ref().map_or(0, |watching| watching.bytes());
        listened + watched + self.tracking.as_ref().map_or(0, |tracking| tracking.bytes())
    }

    /// Returns whether it may run every command, wants every reply, and nothing of what it runs
    /// depends on an earlier command: no transaction, no `CLIENT CACHING`, no tracking.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.authenticated
            && self.reply_mode == ReplyMode::On
            && !(self.monitors | self.caching | self.close_after_reply)
            && self.subscriptions.is_none()
            && self.transaction.is_none()
            && self.reads_as.is_none()
    }

    /// Whether it may only subscribe, unsubscribe and the like: with RESP2 its replies could not be told from messages.
    #[inline]
    pub fn only_listens(&self) -> bool {
        self.subscriptions.is_some() && self.version == Version::Resp2
    }

    /// What a keyed command may know.
    #[inline]
    pub fn view(&self) -> SessionView {
        SessionView {
            client: self.client.id,
            db: self.db,
            version: self.version,
            no_touch: self.client.no_touch.load(Relaxed),
            in_script: false,
        }
    }

    /// Selects a database (below the number of databases).
    pub fn select(&mut self, db: u32) {
        self.db = db;
        self.client.db.store(db, Relaxed);
    }

    /// Has others see the selected database again, after a script that has selected another for itself.
    pub fn select_shown(&self) {
        self.client.db.store(self.db, Relaxed);
    }

    /// Sets the protocol version of replies.
    pub fn set_version(&mut self, version: Version) {
        self.version = version;
        self.client.resp.store(if version == Version::Resp3 { 3 } else { 2 }, Relaxed);
    }

    /// Begins a transaction.
    pub fn begin_transaction(&mut self) {
        self.transaction = Some(self.ended_transaction.take().unwrap_or_default());
        self.tell_transaction();
    }

    /// Keeps the memory of a transaction that has run, unless it is much.
    pub fn keep_ended(&mut self, mut transaction: Box<Transaction>) {
        if transaction.clear() {
            self.ended_transaction = Some(transaction);
        }
    }

    /// Ends the transaction, and the watch with it.
    pub fn discard(&mut self) {
        self.transaction = None;
        self.watching = None;
        self.tell_transaction();
    }

    /// Has others see how much it has queued.
    pub fn tell_transaction(&self) {
        let queued = self.transaction.as_ref().map_or(-1, |transaction| transaction.queue().len() as i64);
        self.client.queued.store(queued, Relaxed);
        let bytes = self.transaction.as_ref().map_or(0, |transaction| transaction.bytes() as u64);
        self.client.queued_bytes.store(bytes, Relaxed);
    }

    /// Back to what it was when the connection was new (`RESET`), but for `CLIENT NO-EVICT`, which stays as in Redis 7.0.
    pub fn reset(&mut self, authenticated: bool) {
        self.discard();
        self.select(0);
        self.set_version(Version::Resp2);
        self.authenticated = authenticated;
        // A reply that is to be skipped is skipped, RESET's own too.
        if self.reply_mode != ReplyMode::Skip {
            self.reply_mode = ReplyMode::On;
        }
        self.client.names().name = Vec::new();
        self.client.no_touch.store(false, Relaxed);
    }
}

/// An end of a connection, as `CLIENT LIST` prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Address and port.
    Tcp(SocketAddr),
    /// Path of a Unix socket (Redis prints it with port 0).
    Unix(String),
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Endpoint::Tcp(address) => write!(f, "{address}"),
            Endpoint::Unix(path) => write!(f, "{path}:0"),
        }
    }
}

impl Endpoint {
    /// Whether it is on this host.
    pub fn is_local(&self) -> bool {
        match self {
            Endpoint::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Endpoint::Unix(_) => true,
        }
    }
}

/// What a client calls itself.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// `CLIENT SETNAME`.
    pub name: Vec<u8>,
    /// `CLIENT SETINFO LIB-NAME`.
    pub library: Vec<u8>,
    /// `CLIENT SETINFO LIB-VER`.
    pub library_version: Vec<u8>,
}

/// What every worker may see of a client. Figures are written by the client's own worker and read by anyone: relaxed throughout.
pub struct Client {
    /// Its number, ascending in order of arrival.
    pub id: u64,
    /// The worker that owns its connection.
    pub worker: u32,
    /// That worker's token for it.
    pub connection: AtomicU64,
    /// File descriptor.
    pub fd: i32,
    /// Its end.
    pub address: Endpoint,
    /// Our end.
    pub local_address: Endpoint,
    /// When it connected, unix time in ms.
    pub created_ms: i64,
    /// When it last sent a command, unix time in ms.
    pub active_ms: AtomicI64,
    /// Selected database.
    pub db: AtomicU32,
    /// 2 or 3.
    pub resp: AtomicU8,
    /// `CLIENT NO-EVICT`.
    pub no_evict: AtomicBool,
    /// `CLIENT NO-TOUCH`.
    pub no_touch: AtomicBool,
    /// What it listens to, by the number of its [`Kind`]: how much.
    pub subscriptions: [AtomicU32; KINDS.len()],
    /// Commands queued since `MULTI`; -1 when that wasn't sent.
    pub queued: AtomicI64,
    /// Bytes of those.
    pub queued_bytes: AtomicU64,
    /// It sees every command (`MONITOR`).
    pub monitors: AtomicBool,
    /// [`Options`](crate::events::tracking::Options) of `CLIENT TRACKING`, as bits.
    pub tracking: AtomicU8,
    /// The client that is told of changed keys in its place; 0: none; -1: it doesn't track.
    pub redirect: AtomicI64,
    /// Its connection has ended.
    pub gone: AtomicBool,
    /// To be closed (`CLIENT KILL`).
    pub killed: AtomicBool,
    /// `CLIENT PAUSE` holds it back.
    pub paused: AtomicBool,
    /// Bytes received and not run.
    pub query_bytes: AtomicU64,
    /// Capacity of the query buffer.
    pub query_capacity_bytes: AtomicU64,
    /// Room behind what it has sent, in the buffer where that lies: its own, or one of the event
    /// loop's. As its worker last told, bytes.
    pub query_free_bytes: AtomicU64,
    /// Bytes of replies not sent.
    pub output_bytes: AtomicU64,
    /// Pieces in which long output is sent; 0 where it is short.
    pub output_pieces: AtomicU64,
    /// Bytes of replies not sent that other clients have too.
    pub shared_bytes: AtomicU64,
    /// Bytes of the arguments of its commands, while they wait for a key or are on their way to their shards.
    pub argument_bytes: AtomicU64,
    /// Bytes of what it listens to, watches and wants to hear of.
    pub overhead_bytes: AtomicU64,
    /// What it weighs ([`ClientMemory`]), bytes.
    weight_bytes: AtomicU64,
    /// Where it stands among those who may be closed for that.
    place: AtomicU64,
    /// The last command; null: none.
    command: AtomicPtr<Command>,
    names: Mutex<Names>,
    /// What it waits with, while it does.
    waiter: Mutex<Option<Arc<Waiter>>>,
    /// Its last watch, which ends with its session's `Watching`.
    watch: Mutex<Weak<Watch>>,
}

impl Client {
    /// A client that has just connected.
    pub fn new(id: u64, worker: u32, fd: i32, address: Endpoint, local_address: Endpoint, now_ms: i64) -> Self {
        Client {
            id,
            worker,
            connection: AtomicU64::new(0),
            fd,
            address,
            local_address,
            created_ms: now_ms,
            active_ms: AtomicI64::new(now_ms),
            db: AtomicU32::new(0),
            resp: AtomicU8::new(2),
            no_evict: AtomicBool::new(false),
            no_touch: AtomicBool::new(false),
            subscriptions: Default::default(),
            queued: AtomicI64::new(-1),
            queued_bytes: AtomicU64::new(0),
            monitors: AtomicBool::new(false),
            tracking: AtomicU8::new(0),
            redirect: AtomicI64::new(-1),
            gone: AtomicBool::new(false),
            killed: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            query_bytes: AtomicU64::new(0),
            query_capacity_bytes: AtomicU64::new(0),
            query_free_bytes: AtomicU64::new(0),
            output_bytes: AtomicU64::new(0),
            output_pieces: AtomicU64::new(0),
            shared_bytes: AtomicU64::new(0),
            argument_bytes: AtomicU64::new(0),
            overhead_bytes: AtomicU64::new(0),
            weight_bytes: AtomicU64::new(0),
            place: AtomicU64::new(0),
            command: AtomicPtr::new(std::ptr::null_mut()),
            names: Mutex::new(Names::default()),
            waiter: Mutex::new(None),
            watch: Mutex::new(Weak::new()),
        }
    }

    /// How many names of a kind it listens to.
    pub fn subscribed(&self, kind: Kind) -> u32 {
        self.subscriptions[kind as usize].load(Relaxed)
    }

    /// Whether it listens to anything.
    pub fn is_subscriber(&self) -> bool {
        KINDS.iter().any(|kind| self.subscribed(*kind) > 0)
    }

    /// Its end as logs of commands show it.
    pub fn shown_address(&self) -> String {
        match (&self.address, &self.local_address) {
            (Endpoint::Tcp(_), _) => self.address.to_string(),
            (Endpoint::Unix(_), Endpoint::Unix(path)) => format!("unix:{path}"),
            (Endpoint::Unix(path), _) => format!("unix:{path}"),
        }
    }

    /// What it calls itself.
    pub fn names(&self) -> MutexGuard<'_, Names> {
        // A panic while it was held can't have left it half-way: each field is replaced whole.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it waits with, while its command waits for a key.
    pub fn waiter(&self) -> MutexGuard<'_, Option<Arc<Waiter>>> {
        self.waiter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has others see that it watches keys.
    pub fn tell_watch(&self, watching: &Watching) {
        *self.watch.lock().unwrap_or_else(PoisonError::into_inner) = watching.watch();
    }

    /// Whether a key that it watches was changed: its `EXEC` will run nothing.
    pub fn watch_is_broken(&self) -> bool {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner).upgrade().is_some_and(|watch| watch.is_changed())
    }

    /// As [`Client::memory_bytes`], without what it shares with others.
    pub fn unshared_bytes(&self) -> u64 {
        self.memory_bytes().saturating_sub(self.shared_bytes.load(Relaxed))
    }

    /// What it takes of memory, bytes, as far as its worker has told: its buffers, what it has queued, and what is kept for it.
    pub fn memory_bytes(&self) -> u64 {
        let parts = [
            &self.query_capacity_bytes,
            &self.output_bytes,
            &self.queued_bytes,
            &self.argument_bytes,
            &self.overhead_bytes,
        ];
        size_of::<Self>() as u64 + parts.iter().map(|part| part.load(Relaxed)).sum::<u64>()
    }

    /// Remembers the command it runs.
    #[inline]
    pub fn set_command(&self, command: &'static Command) {
        let pointer = std::ptr::from_ref(command).cast_mut();
        if self.command.load(Relaxed) != pointer {
            self.command.store(pointer, Relaxed);
        }
    }

    /// It has sent something that is no command.
    pub fn forget_command(&self) {
        self.command.store(std::ptr::null_mut(), Relaxed);
    }

    /// The last command it sent; `None`: it has sent none, or what is none.
    pub fn command(&self) -> Option<&'static Command> {
        let pointer = self.command.load(Relaxed);
        // SAFETY: the pointer is null or was made by `set_command` from a `&'static Command`, which nothing ever changes.
        unsafe { pointer.cast_const().as_ref() }
    }
}

/// All clients, in order of arrival.
#[derive(Default)]
pub struct Clients {
    by_id: Mutex<BTreeMap<u64, Arc<Client>>>,
    next_id: AtomicU64,
    memory: ClientMemory,
}

impl Clients {
    /// No clients.
    pub fn new() -> Self {
        Self::default()
    }

    /// A number for a new client: 1 is the first.
    pub fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Relaxed) + 1
    }

    /// Adds a client.
    pub fn add(&self, client: Arc<Client>) {
        self.lock().insert(client.id, client);
    }

    /// Removes a client, whose worker weighs it no more.
    pub fn remove(&self, id: u64) {
        let removed = self.lock().remove(&id);
        // Behind that, so that who weighs all of the list weighs nobody who was forgotten.
        if let Some(client) = removed {
            self.memory.forget(&client);
        }
    }

    /// What they take of memory.
    pub fn memory(&self) -> &ClientMemory {
        &self.memory
    }

    /// Sets what they may take together, bytes; 0: anything. Any other limit is at least [`LIMIT_BYTES_MIN`].
    pub fn limit_memory(&self, limit_bytes: u64) {
        self.memory.set_limit(limit_bytes, |weigh| self.lock().values().for_each(weigh));
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The client of that number.
    pub fn find(&self, id: u64) -> Option<Arc<Client>> {
        self.lock().get(&id).cloned()
    }

    /// All of them, as of now.
    pub fn all(&self) -> Vec<Arc<Client>> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Client>>> {
        // As in `Client::names`: one insertion or removal at a time, never half of one.
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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
    /// What clients are to connect to.
    pub endpoint: PreferredEndpoint,
}

/// `cluster-preferred-endpoint-type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreferredEndpoint {
    /// The address.
    #[default]
    Ip,
    /// The name; `?` where there is none.
    Hostname,
    /// What they have connected to.
    Unknown,
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
    /// `ABORT`: don't, after all.
    pub abort: bool,
}

/// What the process takes, bytes (`MEMORY STATS`, `INFO memory`). What belongs to the data is in
/// [`Keyspace::memory_bytes`](crate::shard::keyspace::Keyspace::memory_bytes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryFigures {
    /// All that is accounted for: the process as it started, the data, the clients.
    pub used_bytes: u64,
    /// Most that it has been.
    pub peak_bytes: u64,
    /// The process as it started, before any data.
    pub startup_bytes: u64,
    /// Buffers and state of the clients.
    pub clients_bytes: u64,
    /// Resident memory as the operating system counts it.
    pub resident_bytes: u64,
    /// Texts of the scripts that are cached; not among those accounted for.
    pub scripts_bytes: u64,
    /// Texts of the libraries of functions; not among those accounted for.
    pub libraries_bytes: u64,
}

/// What commands need of the server around them. The server implements it; tests may.
pub trait Host: Send + Sync {
    /// `CONFIG GET`: names and values in the order of the answer.
    fn config_get(&self, patterns: &[&[u8]]) -> Vec<(String, Vec<u8>)>;
    /// `CONFIG SET` by this client: all or none. The error is the whole error reply, code included.
    fn config_set(&self, pairs: &[(&[u8], &[u8])], client: &Client) -> Result<(), String>;
    /// `CONFIG REWRITE`. The error is the whole error reply.
    fn config_rewrite(&self) -> Result<(), String>;
    /// `CONFIG RESETSTAT`.
    fn reset_stats(&self);
    /// All clients.
    fn clients(&self) -> &Clients;
    /// Has the worker of a client close it.
    fn kill(&self, client: &Client);
    /// Whether name and password are right.
    fn authenticate(&self, user: &[u8], password: &[u8]) -> bool;
    /// Whether a new connection must authenticate.
    fn requires_password(&self) -> bool;
    /// Begins to stop the server. The error is the whole error reply.
    fn shutdown(&self, how: Shutdown) -> Result<(), String>;
    /// The text of `INFO` for these section names (lower case; empty: the default ones).
    fn info(&self, sections: &[String]) -> String;
    /// How long the calls of each command that was run took, in ns, by its full name.
    fn latencies(&self) -> Vec<(&'static str, Distribution)>;
    /// What the process takes.
    fn memory(&self) -> MemoryFigures;
    /// `MEMORY PURGE`: has every worker return freed memory to the kernel.
    fn purge_memory(&self);
    /// Whether `DEBUG` may be used by this client.
    fn debug_allowed(&self, client: &Client) -> bool;
    /// Unix time in µs, now.
    fn now_us(&self) -> i64;
    /// The command that clients know by this name (any case), after `rename-command`.
    fn command(&self, name: &[u8]) -> Option<&'static Command>;
    /// How it presents itself in a cluster.
    fn cluster_node(&self) -> ClusterNode;
    /// Whether `rename-command` has left a command without a name.
    fn is_removed(&self, command: &'static Command) -> bool;
    /// `SCRIPT LOAD`: compiles a script and has all workers know it; its SHA-1. The error is the whole error reply.
    fn script_load(&self, body: &[u8]) -> Result<Vec<u8>, Vec<u8>>;
    /// Whether a script of this SHA-1 is known.
    fn script_exists(&self, name: &[u8]) -> bool;
    /// Forgets all scripts.
    fn script_flush(&self);
    /// `SCRIPT KILL`: ends the scripts that have run for too long. The error is the whole error reply.
    fn script_kill(&self) -> Result<(), &'static str>;
    /// Functions.
    fn functions(&self) -> &dyn Functions;
}

/// What a command without keys works with.
pub struct LocalContext<'a> {
    /// The connection.
    pub session: &'a mut Session,
    /// The data: figures and settings; no shard is held.
    pub keyspace: &'a Keyspace,
    /// The server.
    pub host: &'a dyn Host,
    /// Unix time, ms, as of this turn of the loop.
    pub now_ms: i64,
}
