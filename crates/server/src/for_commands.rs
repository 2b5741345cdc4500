//! Implements the engine's interfaces [`Host`] and [`Functions`], through which commands use the
//! server.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pantala_base::{Clock, Distribution, purges};
use pantala_engine::acl::User;
use pantala_engine::client::{
    Client, Clients, ClusterNode, Configured, Followed, Host, ProcessMemory, Replicator, Shutdown,
};
use pantala_engine::command::Command;
use pantala_engine::functions::{FunctionInfo, Functions, LibraryChange, LibraryInfo, RestorePolicy, RunningFunction};
use pantala_engine::message::Message;
use pantala_scripting::{Existing, Library};

use crate::aof::{self, FirstRewrite};
use crate::config::replica::Address;
use crate::host::Server;
use crate::process;
use crate::scripting::{Kind, forget};
use crate::snapshot::SHUTDOWN_FAILED;
use crate::tune;
use crate::users;

impl Host for Server {
    fn command(&self, name: &[u8]) -> Option<&'static Command> {
        self.renames().command(name)
    }

    fn is_removed(&self, command: &'static Command) -> bool {
        self.renames().is_removed(command)
    }

    fn replication(&self) -> &dyn Replicator {
        self
    }

    fn cluster_node(&self) -> ClusterNode {
        let settings = self.config().settings();
        let or = |announced: u16, port: u16| if announced == 0 { port } else { announced };
        ClusterNode {
            id: self.facts().node_id.clone(),
            ip: settings.cluster_announce_ip.clone(),
            hostname: settings.cluster_announce_hostname.clone(),
            port: or(settings.cluster_announce_port, settings.port),
            bus_port: or(settings.cluster_announce_bus_port, settings.bus_port()),
            endpoint: settings.cluster_preferred_endpoint,
        }
    }

    fn script_load(&self, body: &[u8]) -> Result<Vec<u8>, Vec<u8>> {
        self.scripting().load(body)
    }

    fn script_exists(&self, name: &[u8]) -> bool {
        self.scripting().exists(name)
    }

    fn script_flush(&self) {
        self.scripting().scripts.flush();
    }

    fn script_kill(&self) -> Result<(), &'static str> {
        self.scripting().kill(Kind::Script, self.monotonic_ms(), self.script_thresholds())
    }

    fn functions(&self) -> &dyn Functions {
        self
    }

    fn follow(&self, primary: Option<(&[u8], u16)>, client: &Client) -> Followed {
        let primary = primary.map(|(host, port)| Address { host: String::from_utf8_lossy(host).into_owned(), port });
        self.replication().replica.follow(self, primary, client)
    }

    fn config_get(&self, patterns: &[&[u8]]) -> Vec<(String, Vec<u8>)> {
        self.config().get(patterns)
    }

    fn config_set(&self, pairs: &[(&[u8], &[u8])], client: &Client, in_exec: bool) -> Result<Configured, String> {
        if !in_exec && tune::config_set_opens_files(self, pairs, client)? {
            return Ok(Configured::Later);
        }
        // Without a transaction, the check above has found that no file is opened, unless another
        // client has turned the append-only file off since then. The rewrite is then started as in
        // a transaction, because this worker must not wait for the disk.
        tune::set_config(self, pairs, client, FirstRewrite::Soon, &|| Ok(())).map(|()| Configured::Now)
    }

    fn config_rewrite(&self) -> Result<(), String> {
        self.config().rewrite(|| self.keyspace().users().lines()).map_err(|reason| format!("ERR {reason}"))
    }

    fn config_rewrite_all(&self) -> Result<(), String> {
        self.config().rewrite_all(|| self.keyspace().users().lines()).map_err(|reason| format!("ERR {reason}"))
    }

    fn reset_stats(&self) {
        for worker in self.all_worker_stats() {
            worker.reset();
        }
        for shard in 0..self.keyspace().partition_count() {
            let stats = self.keyspace().shard_stats(shard);
            for counter in [
                &stats.commands,
                &stats.hits,
                &stats.misses,
                &stats.expired,
                &stats.evicted,
                &stats.combined,
                &stats.handovers,
            ] {
                counter.reset();
            }
        }
        self.keyspace().hot.reset();
        self.keyspace().lazy_free().reset();
        self.keyspace().memory().reset();
        self.keyspace().expiry.reset();
        for counter in [
            &self.stats.connections_received,
            &self.stats.connections_rejected,
            &self.stats.output_limit_closed,
            &self.stats.link_bytes,
        ] {
            counter.store(0, Relaxed);
        }
        self.keyspace().clients().memory().evicted.store(0, Relaxed);
        self.replication().syncs.reset();
    }

    fn clients(&self) -> &Clients {
        self.keyspace().clients()
    }

    fn kill(&self, client: &Client) {
        self.close_client(client);
    }

    fn load_acl_file(&self) -> Result<Vec<Arc<User>>, String> {
        users::load(self, || Ok(()))
    }

    fn save_acl_file(&self) -> Result<(), String> {
        users::save(self)
    }

    fn fill_random(&self, bytes: &mut [u8]) -> bool {
        users::fill_random(bytes)
    }

    fn shutdown(&self, how: Shutdown) -> Result<(), String> {
        if how.abort {
            return match self.replication().abort_shutdown(self) {
                true => Ok(()),
                false => Err("ERR No shutdown in progress.".into()),
            };
        }
        tracing::warn!("User requested shutdown...");
        // While the dataset is being loaded, the state of the append-only file doesn't prevent the
        // exit, because the file is not a copy of the incomplete dataset.
        if !self.snapshots().loading.is_incomplete() && !aof::allows_exit(self, how) {
            return Err(SHUTDOWN_FAILED.into());
        }
        self.stop();
        Ok(())
    }

    fn log(&self, line: &str) {
        tracing::warn!("{line}");
    }

    fn drains_before(&self, how: Shutdown) -> bool {
        !how.abort && !self.snapshots().loading.is_incomplete() && self.replication().drains_before(self)
    }

    fn saves_before(&self, how: Shutdown) -> bool {
        Server::saves_before(self, how)
    }

    fn note_asks_always(&self, asks: bool) {
        self.snapshots().aof.note_asks_always(self, asks);
    }

    fn rewrite_append_only_file(&self) -> Result<&'static str, &'static str> {
        aof::rewrite_in_background(self)
    }

    fn last_save_s(&self) -> i64 {
        self.snapshots().saves.last_save_s()
    }

    fn info(&self, sections: &[String]) -> String {
        crate::info::info(self, sections)
    }

    fn latencies(&self) -> Vec<(&'static str, Distribution)> {
        crate::info::stats::latencies(self)
    }

    fn memory(&self) -> ProcessMemory {
        // Bytes that several clients share are counted once.
        let mut clients_bytes = self.kept_messages().load(Relaxed);
        for client in self.keyspace().clients().all() {
            clients_bytes += client.unshared_bytes();
        }
        let startup_bytes = self.facts().startup_bytes;
        let used_bytes = startup_bytes + self.data_bytes() + clients_bytes;
        let peak_bytes = self.stats.peak_used_bytes.fetch_max(used_bytes, Relaxed).max(used_bytes);
        let resident_bytes = process::resident_bytes().unwrap_or(used_bytes);
        let scripts_bytes = self.scripting().scripts.bytes();
        let libraries_bytes = self.scripting().libraries.table().bytes() as u64;
        ProcessMemory {
            used_bytes,
            peak_bytes,
            startup_bytes,
            clients_bytes,
            resident_bytes,
            scripts_bytes,
            libraries_bytes,
        }
    }

    fn purge_memory(&self) {
        purges::request();
        self.keyspace().ports().iter().for_each(|port| port.send(Message::Purge));
    }

    fn debug_allowed(&self, client: &Client) -> bool {
        self.config().settings().enable_debug_command.allows(client.address.is_local())
    }

    fn modules_allowed(&self, client: &Client) -> bool {
        self.config().settings().enable_module_command.allows(client.address.is_local())
    }

    fn log_unloadable(&self, path: &[u8], reason: &str) {
        tracing::warn!("Module {} failed to load: {reason}", path.escape_ascii());
    }

    fn now_us(&self) -> i64 {
        self.clock.now_us()
    }
}

fn with_code(why: &[u8]) -> Vec<u8> {
    [b"ERR ", why].concat()
}

impl Functions for Server {
    fn load(&self, text: &[u8], replace: bool, _: &LibraryChange) -> Result<Vec<u8>, Vec<u8>> {
        let name = self.scripting().load_function_library(text, replace).map_err(|why| with_code(&why))?;
        self.snapshots().note_change();
        Ok(name)
    }

    fn libraries(&self) -> Vec<LibraryInfo> {
        let info_of = |library: &Arc<Library>| LibraryInfo {
            name: library.name.to_vec(),
            text: Arc::clone(&library.text),
            functions: library
                .functions
                .iter()
                .map(|function| FunctionInfo {
                    name: function.name.to_vec(),
                    description: function.description.as_ref().map(|text| text.to_vec()),
                    flags: function.flags.names().collect(),
                })
                .collect(),
        };
        self.scripting().libraries.table().libraries().map(info_of).collect()
    }

    fn counts(&self) -> (usize, usize) {
        let table = self.scripting().libraries.table();
        (table.libraries().len(), table.functions())
    }

    fn delete(&self, name: &[u8], _: &LibraryChange) -> Result<bool, Vec<u8>> {
        let is_removed = self.scripting().libraries.remove(name).map_err(|why| with_code(&why))?;
        if is_removed {
            self.snapshots().note_change();
        }
        Ok(is_removed)
    }

    fn flush(&self, _: &LibraryChange) -> Result<(), Vec<u8>> {
        self.scripting().libraries.flush().map_err(|why| with_code(&why))?;
        self.snapshots().note_change();
        Ok(())
    }

    fn restore(
        &self,
        texts: &[Vec<u8>],
        trouble: Option<&str>,
        policy: RestorePolicy,
        _: &LibraryChange,
    ) -> Result<(), Vec<u8>> {
        let loaded = self.scripting().load_all(texts).map_err(|why| with_code(&why))?;
        if let Some(trouble) = trouble {
            forget(&loaded.iter().map(|library| library.id).collect::<Vec<_>>());
            return Err(trouble.as_bytes().to_vec());
        }
        let existing = match policy {
            RestorePolicy::Append => Existing::Kept,
            RestorePolicy::Replace => Existing::Replaced,
            RestorePolicy::Flush => Existing::Flushed,
        };
        self.scripting().add_libraries(&loaded, existing, "").map_err(|why| with_code(&why))?;
        self.snapshots().note_change();
        Ok(())
    }

    fn running(&self) -> Result<Option<RunningFunction>, &'static str> {
        self.scripting().running_function(self.monotonic_ms(), self.script_thresholds())
    }

    fn kill(&self) -> Result<(), &'static str> {
        self.scripting().kill(Kind::Function, self.monotonic_ms(), self.script_thresholds())
    }
}
