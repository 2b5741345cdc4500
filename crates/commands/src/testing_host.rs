//! Test support for local handlers (handlers that run without shards). Provides one connection and
//! a fake host, which stands for the server process.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use pantala_base::{Distribution, Histogram};
use pantala_engine::acl::User;
use pantala_engine::client::{
    Client, Clients, ClusterNode, Configured, Durability, Endpoint, Failover, Followed, Host, Listener, LocalCall,
    LocalCaller, OnDisk, ProcessMemory, Replicator, Session, Shutdown, run_local,
};
use pantala_engine::command::Command;
use pantala_engine::functions::{FunctionInfo, Functions, LibraryChange, LibraryInfo, RestorePolicy, RunningFunction};
use pantala_engine::keyspace::{Execution, Keyspace, Layout, WorkerPort};
use pantala_resp::value::parse_reply;
use pantala_resp::{ArgRange, Args, Reply};

use crate::records::resolve;

/// Initial time, Unix time in ms.
pub(crate) const START_MS: i64 = 1_700_000_000_000;

/// A host that records its calls.
#[derive(Default)]
pub(crate) struct FakeHost {
    pub(crate) clients: Clients,
    pub(crate) memory: ProcessMemory,
    pub(crate) now_us: i64,
    /// The recorded calls, one line each.
    pub(crate) calls: Mutex<Vec<String>>,
    pub(crate) has_replicas: bool,
    /// The error that every fallible call of the host returns. If it is empty, these calls succeed.
    pub(crate) error: &'static str,
}

impl FakeHost {
    fn record(&self, call: String) -> Result<(), String> {
        self.calls.lock().expect("lock is not poisoned").push(call);
        if self.error.is_empty() { Ok(()) } else { Err(self.error.to_owned()) }
    }
}

fn text(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

impl Replicator for FakeHost {
    fn sync(&self, _: &mut Session, _: Option<&[&[u8]]>, _: &mut Reply<'_>) {}
    fn configure(&self, _: &mut Session, _: &[&[u8]], reply: &mut Reply<'_>) {
        reply.ok();
    }
    fn role(&self, reply: &mut Reply<'_>) {
        reply.array(0);
    }
    fn fail_over(&self, wanted: &Failover<'_>) -> Result<(), String> {
        self.record(format!("fail over to {wanted:?}"))
    }
    fn abort_failover(&self) -> Result<(), String> {
        self.record("abort the failover".to_owned())
    }
    fn acknowledged(&self, _: u64) -> Option<u64> {
        Some(0)
    }
    fn on_disk(&self, _: u64, _: Durability) -> OnDisk {
        OnDisk { replicas: Some(0), ..OnDisk::default() }
    }
    fn change_id(&self) {
        let _ = self.record("change the replication ID".to_owned());
    }
}

impl Host for FakeHost {
    fn command(&self, name: &[u8]) -> Option<&'static Command> {
        crate::lookup(name)
    }
    fn is_removed(&self, command: &'static Command) -> bool {
        // One command counts as removed, so that tests can check how removed commands behave.
        command.name == "substr"
    }
    fn script_load(&self, body: &[u8]) -> Result<Vec<u8>, Vec<u8>> {
        self.record(format!("load {}", text(body))).map(|()| b"sha".to_vec()).map_err(String::into_bytes)
    }
    fn log(&self, line: &str) {
        let _ = self.record(line.to_owned());
    }
    fn script_exists(&self, name: &[u8]) -> bool {
        name == b"known"
    }
    fn purge_memory(&self) {
        let _ = self.record("purge memory".to_owned());
    }
    fn script_flush(&self) {
        let _ = self.record("flush scripts".to_owned());
    }
    fn script_kill(&self) -> Result<(), &'static str> {
        if self.error.is_empty() { Ok(()) } else { Err(self.error) }
    }
    fn functions(&self) -> &dyn Functions {
        self
    }
    fn replication(&self) -> &dyn Replicator {
        self
    }
    fn follow(&self, primary: Option<(&[u8], u16)>, _: &Client) -> Followed {
        let primary = primary.map_or("no one".to_owned(), |(host, port)| format!("{}:{port}", text(host)));
        if self.record(format!("follow {primary}")).is_ok() { Followed::Changed } else { Followed::Same }
    }
    fn cluster_node(&self) -> ClusterNode {
        ClusterNode { id: "0".repeat(40), port: 6379, bus_port: 16379, ..ClusterNode::default() }
    }
    fn config_get(&self, patterns: &[&[u8]]) -> Vec<(String, Vec<u8>)> {
        patterns.iter().map(|pattern| (text(pattern), b"value".to_vec())).collect()
    }
    fn config_set(&self, pairs: &[(&[u8], &[u8])], client: &Client, _: bool) -> Result<Configured, String> {
        let pairs: Vec<String> = pairs.iter().map(|(name, value)| format!("{}={}", text(name), text(value))).collect();
        self.record(format!("set {} by {}", pairs.join(" "), client.id))?;
        Ok(if pairs.iter().any(|pair| pair == "appendonly=yes") { Configured::Later } else { Configured::Now })
    }
    fn config_rewrite(&self) -> Result<(), String> {
        self.record("rewrite".to_owned())
    }
    fn config_rewrite_all(&self) -> Result<(), String> {
        self.record("rewrite all".to_owned())
    }
    fn reset_stats(&self) {
        let _ = self.record("resetstat".to_owned());
    }
    fn clients(&self) -> &Clients {
        &self.clients
    }
    fn kill(&self, client: &Client) {
        client.killed.store(true, Relaxed);
    }
    fn load_acl_file(&self) -> Result<Vec<Arc<User>>, String> {
        self.record("load users".to_owned()).map(|()| Vec::new())
    }
    fn save_acl_file(&self) -> Result<(), String> {
        self.record("save users".to_owned())
    }
    fn fill_random(&self, bytes: &mut [u8]) -> bool {
        bytes.fill(0xa5);
        true
    }
    fn shutdown(&self, how: Shutdown) -> Result<(), String> {
        self.record(format!("{how:?}"))
    }
    fn drains_before(&self, how: Shutdown) -> bool {
        self.has_replicas && !how.abort
    }
    fn saves_before(&self, how: Shutdown) -> bool {
        how.save
    }
    fn note_asks_always(&self, asks: bool) {
        let _ = self.record(format!("asks for always: {asks}"));
    }

    fn rewrite_append_only_file(&self) -> Result<&'static str, &'static str> {
        Ok("Background append only file rewriting started")
    }

    fn last_save_s(&self) -> i64 {
        START_MS / 1000
    }
    fn info(&self, sections: &[String]) -> String {
        format!("{}\n", sections.join(" "))
    }
    fn latencies(&self) -> Vec<(&'static str, Distribution)> {
        let histogram = Histogram::default();
        histogram.record(8_000, 2);
        vec![("get", Distribution::of([&histogram])), ("client|id", Distribution::of([&histogram]))]
    }
    fn memory(&self) -> ProcessMemory {
        self.memory
    }
    fn debug_allowed(&self, _: &Client) -> bool {
        true
    }
    fn modules_allowed(&self, _: &Client) -> bool {
        true
    }
    fn log_unloadable(&self, _: &[u8], _: &str) {}
    fn now_us(&self) -> i64 {
        self.now_us
    }
}

/// A connection to a fake host.
pub(crate) struct LocalTest {
    pub(crate) host: FakeHost,
    pub(crate) keyspace: Keyspace,
    pub(crate) session: Session,
    pub(crate) now_ms: i64,
}

impl LocalTest {
    /// Creates client 1 of a server without a password.
    pub(crate) fn new() -> Self {
        let layout = Layout {
            shards: 4,
            partitions: 4,
            databases: 16,
            homes: 1,
            workers: 1,
            execution: Execution::Inline,
            seed: 42,
            random_seed: 42,
        };
        let mut keyspace = Keyspace::new(layout, vec![WorkerPort::new(Box::new(|| {}))]);
        crate::acl::set_catalog(&mut keyspace);
        let host = FakeHost { now_us: START_MS * 1000 + 25, ..FakeHost::default() };
        let client = add_client(&host, 1001);
        let session = Session::new(client, keyspace.users());
        LocalTest { host, keyspace, session, now_ms: START_MS }
    }

    /// Creates client 1 of a server with a password.
    pub(crate) fn with_password(password: &'static [u8]) -> Self {
        let mut test = Self::new();
        test.keyspace.users().set_default_password(Some(password));
        test.session = Session::new(Arc::clone(&test.session.client), test.keyspace.users());
        test
    }

    /// Adds another client at this port.
    pub(crate) fn add(&self, port: u16) -> Arc<Client> {
        add_client(&self.host, port)
    }

    /// Runs a command and returns its encoded reply, which is empty if there is none.
    pub(crate) fn raw(&mut self, arguments: &[&[u8]]) -> Vec<u8> {
        let (mut bytes, mut ranges) = (Vec::new(), Vec::new());
        for argument in arguments {
            ranges.push(ArgRange::new(bytes.len(), argument.len()));
            bytes.extend_from_slice(argument);
        }
        let args = Args::new(&bytes, &ranges);
        let command = match resolve(&args) {
            Ok(command) => command,
            Err(unresolved) => return [b"-", unresolved.message(&args).as_slice(), b"\r\n"].concat(),
        };
        self.session.client.set_command(command);
        let mut reply = Vec::new();
        let call = LocalCall {
            command,
            args,
            session: &mut self.session,
            keyspace: &self.keyspace,
            host: &self.host,
            now_ms: self.now_ms,
            reply_limit: None,
        };
        run_local(call, LocalCaller::File, &mut reply);
        if !reply.is_empty() {
            let whole = parse_reply(&reply).expect("a well-formed reply").map(|(_, len)| len);
            assert_eq!(whole, Some(reply.len()), "exactly one reply: {}", reply.escape_ascii());
        }
        reply
    }

    /// Runs a command given as words; `''` stands for an empty word. Returns the reply with `|` for
    /// each line end.
    pub(crate) fn run(&mut self, command: &str) -> String {
        let words: Vec<&[u8]> =
            command.split(' ').map(|word| if word == "''" { b"" } else { word.as_bytes() }).collect();
        let reply = self.raw(&words);
        String::from_utf8_lossy(&reply).replace("\r\n", "|")
    }

    /// Asserts the reply to each command.
    #[track_caller]
    pub(crate) fn expect(&mut self, script: &[(&str, &str)]) {
        for (command, reply) in script {
            assert_eq!(self.run(command), *reply, "{command}");
        }
    }

    /// Returns the calls recorded since the last call of this function.
    pub(crate) fn take_calls(&mut self) -> Vec<String> {
        std::mem::take(&mut *self.host.calls.lock().expect("lock is not poisoned"))
    }
}

fn add_client(host: &FakeHost, port: u16) -> Arc<Client> {
    let endpoint = |port: u16| Endpoint::Tcp(([127, 0, 0, 1], port).into());
    let client =
        Arc::new(Client::new(host.clients.next_id(), Listener::default(), 9, endpoint(port), endpoint(6379), START_MS));
    host.clients.add(Arc::clone(&client));
    client
}

impl Functions for FakeHost {
    fn load(&self, code: &[u8], replace: bool, _: &LibraryChange) -> Result<Vec<u8>, Vec<u8>> {
        self.record(format!("load {replace} {}", text(code))).map(|()| b"library".to_vec()).map_err(String::into_bytes)
    }
    fn libraries(&self) -> Vec<LibraryInfo> {
        let function = |name: &str, description: Option<&str>, flags: &[&'static str]| FunctionInfo {
            name: name.into(),
            description: description.map(Vec::from),
            flags: flags.to_vec(),
        };
        let library = |name: &str, functions| LibraryInfo {
            name: name.into(),
            text: format!("#!lua name={name}\n").into_bytes().into(),
            functions,
        };
        vec![
            library("first", vec![function("f", None, &[]), function("g", Some("says"), &["no-writes"])]),
            library("second", vec![function("h", None, &[])]),
        ]
    }
    fn counts(&self) -> (usize, usize) {
        (2, 3)
    }
    fn delete(&self, name: &[u8], _: &LibraryChange) -> Result<bool, Vec<u8>> {
        Ok(name == b"first")
    }
    fn flush(&self, _: &LibraryChange) -> Result<(), Vec<u8>> {
        self.record("flush functions".to_owned()).map_err(String::into_bytes)
    }
    fn restore(
        &self,
        texts: &[Vec<u8>],
        trouble: Option<&str>,
        policy: RestorePolicy,
        _: &LibraryChange,
    ) -> Result<(), Vec<u8>> {
        let texts: Vec<String> = texts.iter().map(|code| text(code)).collect();
        let _ = self.record(format!("restore {policy:?} {}", texts.join(" ")));
        trouble.map_or(Ok(()), |trouble| Err(trouble.as_bytes().to_vec()))
    }
    fn running(&self) -> Result<Option<RunningFunction>, &'static str> {
        Ok(None)
    }
    fn kill(&self) -> Result<(), &'static str> {
        if self.error.is_empty() { Ok(()) } else { Err(self.error) }
    }
}
