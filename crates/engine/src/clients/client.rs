//! Clients: the state of a connection that every worker may read, and the list of all clients.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::acl::{DEFAULT_USER, User};
use crate::clients::listener::{KINDS, Kind, Listener};
use crate::clients::waiter::Waiter;
use crate::clients::watch::Watch;
use crate::command::Command;

mod memory;
pub use memory::{ClientMemory, LIMIT_BYTES_MIN};

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
    /// Returns whether the endpoint is on this host.
    pub fn is_local(&self) -> bool {
        match self {
            Endpoint::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Endpoint::Unix(_) => true,
        }
    }
}

/// The names that a client has set.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// `CLIENT SETNAME`.
    pub name: Vec<u8>,
    /// `CLIENT SETINFO LIB-NAME`.
    pub library: Vec<u8>,
    /// `CLIENT SETINFO LIB-VER`.
    pub library_version: Vec<u8>,
}

/// The state of a client that every worker may read. Only the client's own worker writes it.
/// Exceptions are `killed`, `queued` (while another thread logs a denied call of a transaction) and
/// the client memory accounting ([`ClientMemory`]). Accesses are relaxed unless a comment says
/// otherwise.
pub struct Client {
    /// ID, ascending in the order in which clients connect.
    pub id: u64,
    /// The address for messages to the connection. It changes when the connection moves to another
    /// worker.
    listener: Mutex<Listener>,
    /// Whether the connection must stay on its worker, because invalidations of other clients are
    /// redirected to it. Never cleared.
    is_pinned: AtomicBool,
    /// File descriptor.
    pub fd: i32,
    /// Address of the client.
    pub address: Endpoint,
    /// Address of the server.
    pub local_address: Endpoint,
    /// Time at which the client connected, Unix time in ms.
    pub created_ms: i64,
    /// Time at which bytes were last received from or sent to the client, Unix time in ms.
    pub active_ms: AtomicI64,
    /// Selected database.
    pub db: AtomicU32,
    /// Protocol version: 2 or 3.
    pub resp: AtomicU8,
    /// `CLIENT NO-EVICT`.
    pub no_evict: AtomicBool,
    /// `CLIENT NO-TOUCH`.
    pub no_touch: AtomicBool,
    /// Number of subscriptions, by [`Kind`].
    pub subscriptions: [AtomicU32; KINDS.len()],
    /// Number of commands queued since `MULTI`; -1 outside of a transaction.
    pub queued: AtomicI64,
    /// Memory usage of the queued commands, bytes.
    pub queued_bytes: AtomicU64,
    /// Unix time in ms since which the client has been unauthenticated, and may run only commands
    /// such as `AUTH`. 0 if the client has logged in, or connected while no login was required.
    pub unauthenticated_since_ms: AtomicI64,
    /// Whether the TLS handshake is unfinished.
    pub is_handshaking: AtomicBool,
    /// Whether the client runs `MONITOR`.
    pub monitors: AtomicBool,
    /// Whether the client is a replica (`SYNC`, `PSYNC`).
    pub is_replica: AtomicBool,
    /// Whether the client is the primary that this replica follows.
    pub is_primary: AtomicBool,
    /// [`Options`](crate::events::tracking::Options) of `CLIENT TRACKING`, as bits.
    pub tracking: AtomicU8,
    /// ID of the client to which invalidations are redirected; 0: none; -1: the client does not
    /// track keys.
    pub redirect: AtomicI64,
    /// Whether the client has disconnected.
    pub is_disconnected: AtomicBool,
    /// Whether the connection must be closed (`CLIENT KILL`, eviction of clients).
    pub killed: AtomicBool,
    /// Whether `CLIENT PAUSE` holds back the client's command.
    pub paused: AtomicBool,
    /// Bytes that were received and not yet executed.
    pub query_bytes: AtomicU64,
    /// Capacity of the query buffer, bytes.
    pub query_capacity_bytes: AtomicU64,
    /// Number of free bytes in the query buffer, as last recorded by the worker. The buffer belongs
    /// to the client or to the event loop.
    pub query_free_bytes: AtomicU64,
    /// Bytes of unsent replies.
    pub output_bytes: AtomicU64,
    /// Number of buffers that contain the pending output, including one that is being sent. 0 if
    /// the pending output is short.
    pub output_pieces: AtomicU64,
    /// Bytes of unsent replies that are shared with other clients.
    pub shared_bytes: AtomicU64,
    /// Bytes of the arguments of the client's commands that are blocked or in flight to their
    /// shards.
    pub argument_bytes: AtomicU64,
    /// Bytes of subscriptions, watches, tracked prefixes and other state of the connection.
    pub overhead_bytes: AtomicU64,
    /// Accounted size ([`ClientMemory`]), bytes.
    accounted_bytes: AtomicU64,
    /// The client's bucket and its position in it, for the eviction of clients (see `memory`).
    place: AtomicU64,
    /// The last command; null if the client has sent no command, or an unknown one.
    command: AtomicPtr<Command>,
    names: Mutex<Names>,
    /// The user as which the client has logged in. `None`: the client has not logged in and has the
    /// default user.
    user: Mutex<Option<Arc<User>>>,
    /// The waiter (the blocked command), while the client is blocked.
    waiter: Mutex<Option<Arc<Waiter>>>,
    /// The session's watch: a flag that is raised when a watched key changes. The reference can be
    /// upgraded while the session watches keys.
    watch: Mutex<Weak<Watch>>,
}

impl Client {
    /// Returns a client that has just connected.
    pub fn new(id: u64, listener: Listener, fd: i32, address: Endpoint, local_address: Endpoint, now_ms: i64) -> Self {
        Client {
            id,
            listener: Mutex::new(listener),
            is_pinned: AtomicBool::new(false),
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
            unauthenticated_since_ms: AtomicI64::new(0),
            is_handshaking: AtomicBool::new(false),
            monitors: AtomicBool::new(false),
            is_replica: AtomicBool::new(false),
            is_primary: AtomicBool::new(false),
            tracking: AtomicU8::new(0),
            redirect: AtomicI64::new(-1),
            is_disconnected: AtomicBool::new(false),
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
            accounted_bytes: AtomicU64::new(0),
            place: AtomicU64::new(0),
            command: AtomicPtr::new(std::ptr::null_mut()),
            names: Mutex::new(Names::default()),
            user: Mutex::new(None),
            waiter: Mutex::new(None),
            watch: Mutex::new(Weak::new()),
        }
    }

    /// Returns the address for messages to the connection.
    pub fn listener(&self) -> Listener {
        *self.lock_listener()
    }

    /// Changes the address, before the connection leaves its worker. Returns false, and changes
    /// nothing, if the connection must stay.
    pub fn leave_for(&self, to: Listener) -> bool {
        let mut listener = self.lock_listener();
        let may_leave = !self.is_pinned.load(Relaxed);
        if may_leave {
            *listener = to;
        }
        may_leave
    }

    /// Changes the address, when the connection has arrived at another worker.
    pub fn arrive_at(&self, at: Listener) {
        *self.lock_listener() = at;
    }

    /// Makes the connection stay on its worker from now on. If it is leaving already, it will stay
    /// on the next worker.
    pub(crate) fn pin(&self) {
        // The lock of the address is held. So either a move that starts later sees the flag, or the
        // move has already changed the address, and the caller reads the new one.
        let _listener = self.lock_listener();
        self.is_pinned.store(true, Relaxed);
    }

    /// Returns whether the connection must stay on its worker.
    pub(crate) fn is_pinned(&self) -> bool {
        self.is_pinned.load(Relaxed)
    }

    /// Marks the client as killed. Returns the address of the connection, which must be closed. If
    /// the connection is moving, the next worker finds the mark and closes it.
    pub fn kill(&self) -> Listener {
        let listener = self.lock_listener();
        self.killed.store(true, Relaxed);
        *listener
    }

    fn lock_listener(&self) -> MutexGuard<'_, Listener> {
        // A panic of another holder is ignored: the address is replaced as a whole, so it is always
        // consistent.
        self.listener.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of subscriptions of a kind.
    pub fn subscribed(&self, kind: Kind) -> u32 {
        self.subscriptions[kind as usize].load(Relaxed)
    }

    /// Returns whether the client has subscriptions.
    pub fn is_subscriber(&self) -> bool {
        KINDS.iter().any(|kind| self.subscribed(*kind) > 0)
    }

    /// Returns the client's address as logs of commands show it.
    pub fn shown_address(&self) -> String {
        match (&self.address, &self.local_address) {
            (Endpoint::Tcp(_), _) => self.address.to_string(),
            (Endpoint::Unix(_), Endpoint::Unix(path)) => format!("unix:{path}"),
            (Endpoint::Unix(path), _) => format!("unix:{path}"),
        }
    }

    /// Returns the names that the client has set.
    pub fn names(&self) -> MutexGuard<'_, Names> {
        // A panic of another holder cannot have left the names inconsistent, because each field is
        // replaced as a whole.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the user as which the client has logged in. `None`: the client has not logged in and
    /// has the default user.
    pub fn user(&self) -> Option<Arc<User>> {
        self.lock_user().clone()
    }

    /// Sets the user as which the client has logged in.
    pub(crate) fn set_user(&self, user: Arc<User>) {
        *self.lock_user() = Some(user);
    }

    /// Returns whether `user` is the client's user.
    pub fn is_user(&self, user: &Arc<User>) -> bool {
        match &*self.lock_user() {
            Some(known) => Arc::ptr_eq(known, user),
            None => user.name() == DEFAULT_USER,
        }
    }

    /// Calls `with` with the name of the client's user.
    pub fn user_name<T>(&self, with: impl FnOnce(&[u8]) -> T) -> T {
        with(self.lock_user().as_ref().map_or(DEFAULT_USER, |user| user.name()))
    }

    fn lock_user(&self) -> MutexGuard<'_, Option<Arc<User>>> {
        // See `Client::names`.
        self.user.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the waiter, locked. The value is `Some` while the client is blocked.
    pub fn waiter(&self) -> MutexGuard<'_, Option<Arc<Waiter>>> {
        self.waiter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the session's watch visible to other workers while the session watches keys.
    pub fn publish_watch(&self, watch: Weak<Watch>) {
        *self.watch.lock().unwrap_or_else(PoisonError::into_inner) = watch;
    }

    /// Returns whether a watched key was changed. `EXEC` will then run nothing.
    pub fn watch_is_broken(&self) -> bool {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner).upgrade().is_some_and(|watch| watch.is_changed())
    }

    /// Returns [`Client::memory_bytes`] less the output that is shared with other clients.
    pub fn unshared_bytes(&self) -> u64 {
        self.memory_bytes().saturating_sub(self.shared_bytes.load(Relaxed))
    }

    /// Returns the client's memory usage in bytes, as last recorded by its worker. The result
    /// includes buffers, queued commands and other state.
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

    /// Records the command that the client runs.
    #[inline]
    pub fn set_command(&self, command: &'static Command) {
        let pointer = std::ptr::from_ref(command).cast_mut();
        if self.command.load(Relaxed) != pointer {
            self.command.store(pointer, Relaxed);
        }
    }

    /// Records that the client has sent an unknown command.
    pub fn forget_command(&self) {
        self.command.store(std::ptr::null_mut(), Relaxed);
    }

    /// Returns the last command. Returns `None` if the client has sent no command, or if its last
    /// command is unknown.
    pub fn command(&self) -> Option<&'static Command> {
        let pointer = self.command.load(Relaxed);
        // SAFETY: the pointer is null or was made by `set_command` from a `&'static Command`, which
        // is never mutated.
        unsafe { pointer.cast_const().as_ref() }
    }
}

/// All clients, in the order in which they connected.
#[derive(Default)]
pub struct Clients {
    by_id: Mutex<BTreeMap<u64, Arc<Client>>>,
    next_id: AtomicU64,
    memory: ClientMemory,
}

impl Clients {
    /// Returns an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns an ID for a new client, starting at 1.
    pub fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Relaxed) + 1
    }

    /// Adds a client.
    pub fn add(&self, client: Arc<Client>) {
        self.lock().insert(client.id, client);
    }

    /// Removes a client. The client's worker must no longer update the client's accounted size.
    pub fn remove(&self, id: u64) {
        let removed = self.lock().remove(&id);
        // The client is removed from the list first. A thread that sets the limit accounts for all
        // listed clients, and it must not account for this client again.
        if let Some(client) = removed {
            self.memory.forget(&client);
        }
    }

    /// Returns the client memory accounting.
    pub fn memory(&self) -> &ClientMemory {
        &self.memory
    }

    /// Limits the memory usage of all clients, bytes; 0: no limit. Any other limit is raised to at
    /// least [`LIMIT_BYTES_MIN`].
    pub fn limit_memory(&self, limit_bytes: u64) {
        self.memory.set_limit(limit_bytes, |account| self.lock().values().for_each(account));
    }

    /// Returns the number of clients.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Returns whether there are no clients.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the client with an ID.
    pub fn find(&self, id: u64) -> Option<Arc<Client>> {
        self.lock().get(&id).cloned()
    }

    /// Returns the client that connected first of those for which `wanted` returns true.
    pub fn first(&self, wanted: impl Fn(&Client) -> bool) -> Option<Arc<Client>> {
        self.lock().values().find(|client| wanted(client)).cloned()
    }

    /// Returns all current clients.
    pub fn all(&self) -> Vec<Arc<Client>> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Client>>> {
        // See `Client::names`. A holder makes at most one insertion or removal, so a panic leaves
        // no partial change.
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
