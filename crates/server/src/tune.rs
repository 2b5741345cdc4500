//! Applies the settings: at startup, and after `CONFIG SET`.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pantala_engine::client::Client;
use pantala_engine::message::Message;

use crate::aof;
use crate::config::{Circumstances, Refusal, Settings};
use crate::host::Server;
use crate::process;
use crate::replication::spill_limits;
use crate::snapshot;

/// How a change of settings turns the append-only file on, if it does so.
#[derive(Clone, Copy, Debug)]
pub struct TurningOn {
    /// Whether `CONFIG SET` names `appendonly`. `appendonly yes` then turns the append-only file on
    /// if it is off, even if the setting was already `yes`. (The file can be off although the
    /// setting is `yes`, because the server may have failed to reopen the file after a full sync.)
    pub is_named: bool,
    /// The outcome of [`aof::check_files`]. A transaction doesn't check the files: as in Redis, the
    /// log then has the errors.
    pub checked: Result<(), &'static str>,
    /// When the first rewrite starts.
    pub first: aof::FirstRewrite,
}

/// The name of the thread that waits for the disk before it sets the configuration.
const THREAD: &str = "pantala-config";

/// Sets the configuration for the `CONFIG SET` of a client. `checked` and `first`: see
/// [`TurningOn`].
///
/// # Errors
/// Redis's error reply. Nothing is set then.
pub fn set_config(
    server: &Server,
    pairs: &[(&[u8], &[u8])],
    client: &Client,
    checked: Result<(), &'static str>,
    first: aof::FirstRewrite,
) -> Result<(), String> {
    let is_replica = server.keyspace().tuning.is_replica();
    let appendonly = TurningOn { is_named: names_appendonly(pairs), checked, first };
    let apply = |old: &Settings, new: &Settings| {
        process::change_oom_score(&old.process, &new.process, is_replica, || server.apply(old, new, appendonly))
    };
    server.config().set(pairs, circumstances(server, client), &apply)?;
    for port in server.keyspace().ports().iter() {
        port.send(Message::Reload);
    }
    Ok(())
}

/// Returns whether a `CONFIG SET` of a client turns the append-only file on. If so, the client
/// must wait for [`set_config_on_thread`].
///
/// # Errors
/// Redis's error reply, if a directive or a value is wrong.
pub fn config_set_opens_files(server: &Server, pairs: &[(&[u8], &[u8])], client: &Client) -> Result<bool, String> {
    let is_named = names_appendonly(pairs);
    if !is_named {
        return Ok(false);
    }
    let new = server.config().with(pairs, circumstances(server, client))?;
    Ok(turns_appendonly_on(server, &server.config().settings(), &new, is_named))
}

/// Starts a thread that checks the files of the append-only file and then sets the
/// configuration, because the disk may hang. Calls `answer` with the outcome: Redis's error
/// reply, or nothing.
///
/// # Errors
/// The system's error, if it can't start a thread.
pub fn set_config_on_thread(
    server: &Server,
    words: Vec<Vec<u8>>,
    client: Arc<Client>,
    answer: impl FnOnce(&Server, Result<(), String>) + Send + 'static,
) -> std::io::Result<()> {
    let stopping = || std::io::Error::other("the server is stopping");
    let server = server.snapshots().background.server().ok_or_else(stopping)?;
    let run = move || {
        let pairs: Vec<(&[u8], &[u8])> = words.chunks_exact(2).map(|pair| (&pair[0][..], &pair[1][..])).collect();
        // No lock of the configuration is held during the check, so that no worker waits for
        // such a lock.
        let checked = match server.config().with(&pairs, circumstances(&server, &client)) {
            Ok(new) => aof::check_files(&new),
            // `set_config` fails too.
            Err(_) => Ok(()),
        };
        answer(&server, set_config(&server, &pairs, &client, checked, aof::FirstRewrite::Now));
    };
    std::thread::Builder::new().name(THREAD.into()).spawn(run).map(drop)
}

fn circumstances(server: &Server, client: &Client) -> Circumstances {
    let is_loading = server.snapshots().loading.denies_changes(server.keyspace().tuning.refusals());
    Circumstances { is_local: client.address.is_local(), is_loading }
}

/// Returns whether the change from the old settings to the new ones turns the append-only file
/// on. `is_named`: see [`TurningOn::is_named`].
fn turns_appendonly_on(server: &Server, old: &Settings, new: &Settings, is_named: bool) -> bool {
    let is_off = || server.snapshots().aof.state() == aof::State::Off;
    new.aof.is_on && (!old.aof.is_on || is_named && is_off())
}

impl Server {
    /// Applies the changed settings, or none of them if one can't be applied.
    ///
    /// # Errors
    /// A setting can't be applied. The server continues to run with the old settings.
    pub fn apply(&self, old: &Settings, new: &Settings, appendonly: TurningOn) -> Result<(), Refusal> {
        if new.maxclients > old.maxclients {
            process::allow_clients(new.maxclients).map_err(|reason| Refusal { directive: "maxclients", reason })?;
        }
        let encryption = if old.tls == new.tls {
            self.listening().encryption()
        } else {
            let reason = "Unable to update TLS configuration. Check server logs.";
            let refused = |_| Refusal { directive: new.tls.changed_first, reason: reason.into() };
            process::Encryption::renewed(self.listening().encryption(), &old.tls, &new.tls).map_err(refused)?
        };
        let turns_on = turns_appendonly_on(self, old, new, appendonly.is_named);
        if turns_on {
            let refused = |reason: &str| Refusal { directive: "appendonly", reason: reason.into() };
            appendonly.checked.map_err(refused)?;
        }
        // This step is the last that can fail, so the new sockets never have to be closed again.
        if (old.port, old.tls.port, &old.bind) != (new.port, new.tls.port, &new.bind) {
            let refused = |(directive, reason): (_, &str)| Refusal { directive, reason: reason.into() };
            let changed = self.listening().change(old, new);
            // Makes the worker that accepts connections listen on the current sockets. The message
            // is sent even after a failure, because the old addresses may then have new sockets.
            self.port(self.facts().first_io_worker).send(Message::Reload);
            changed.map_err(refused)?;
        }
        self.listening().set_encryption(encryption);
        if old.requirepass != new.requirepass {
            self.keyspace().users().set_default_password(new.requirepass.as_deref());
        }
        if turns_on {
            aof::turn_on(self, new, appendonly.first);
        } else if old.aof.is_on && !new.aof.is_on {
            aof::turn_off(self);
        }
        process::set_log_level(new.loglevel);
        process::update_title(new);
        self.tune(new);
        let (used, limit) = (self.keyspace().memory().used_bytes(), new.maxmemory_bytes);
        if limit != old.maxmemory_bytes && limit > 0 && used > limit {
            tracing::warn!(
                "The new maxmemory value set via CONFIG SET ({limit}) is smaller than the current memory usage ({used}). \
                 Keys will be evicted, or new commands that may take memory refused, depending on the maxmemory-policy."
            );
        }
        Ok(())
    }

    /// Copies settings to the places where commands read them.
    pub fn tune(&self, settings: &Settings) {
        self.listening().handshakes.set_threads_max(settings.tls.handshake_threads);
        let tuning = &self.keyspace().tuning;
        tuning.proto_max_bulk_len.store(settings.proto_max_bulk_len_bytes, Relaxed);
        let hard_bytes = [&settings.output_limit_normal, &settings.output_limit_pubsub].map(|limit| limit.hard_bytes);
        let reply_bytes_max = if hard_bytes.contains(&0) { u64::MAX } else { hard_bytes[0].max(hard_bytes[1]) };
        tuning.reply_bytes_max.store(reply_bytes_max, Relaxed);
        let pubsub_bytes_max = if hard_bytes[1] == 0 { u64::MAX } else { hard_bytes[1] };
        tuning.pubsub_bytes_max.store(pubsub_bytes_max, Relaxed);
        tuning.lazyfree_lazy_eviction.store(settings.lazyfree_lazy_eviction, Relaxed);
        tuning.lazyfree_lazy_expire.store(settings.lazyfree_lazy_expire, Relaxed);
        tuning.lazyfree_lazy_server_del.store(settings.lazyfree_lazy_server_del, Relaxed);
        tuning.lazyfree_lazy_user_del.store(settings.lazyfree_lazy_user_del, Relaxed);
        tuning.lazyfree_lazy_user_flush.store(settings.lazyfree_lazy_user_flush, Relaxed);
        snapshot::reject_writes_on_error(self, settings);
        self.snapshots().loading.set_delay(settings.key_load_delay);
        self.snapshots().background.set_key_delay(settings.key_save_delay);
        tuning.rdb_compression.store(settings.rdb_compression, Relaxed);
        tuning.hll_sparse_max_bytes.store(settings.hll_sparse_max_bytes, Relaxed);
        tuning.lfu_log_factor.store(settings.lfu_log_factor, Relaxed);
        tuning.lfu_decay_time_minutes.store(settings.lfu_decay_time_minutes, Relaxed);
        tuning.stream_node_max_bytes.store(settings.stream_node_max_bytes, Relaxed);
        tuning.stream_node_max_entries.store(settings.stream_node_max_entries, Relaxed);
        tuning.list_max_listpack_size.store(settings.list_max_listpack_size, Relaxed);
        tuning.list_compress_depth.store(settings.list_compress_depth, Relaxed);
        tuning.hash_max_listpack_entries.store(settings.hash_max_listpack_entries, Relaxed);
        tuning.hash_max_listpack_value_bytes.store(settings.hash_max_listpack_value_bytes, Relaxed);
        tuning.set_max_intset_entries.store(settings.set_max_intset_entries, Relaxed);
        tuning.zset_max_listpack_entries.store(settings.zset_max_listpack_entries, Relaxed);
        tuning.zset_max_listpack_value_bytes.store(settings.zset_max_listpack_value_bytes, Relaxed);
        tuning.active_expire_effort.store(settings.active_expire_effort, Relaxed);
        tuning.hz.store(settings.hz, Relaxed);
        tuning.latency_threshold_ms.store(settings.latency_monitor_threshold_ms, Relaxed);
        tuning.slowlog_slower_than_us.store(settings.slowlog_log_slower_than_us, Relaxed);
        tuning.tracking_table_max_keys.store(settings.tracking_table_max_keys, Relaxed);
        tuning.slowlog_max_len.store(settings.slowlog_max_len, Relaxed);
        self.keyspace().users().set_log_len_max(settings.acllog_max_len);
        self.keyspace().users().set_channels_by_default(settings.acl_channels_by_default);
        self.keyspace().journal().set_ping_period(Duration::from_secs(settings.repl_ping_period_s));
        self.keyspace().journal().set_backlog(settings.repl_backlog_bytes);
        self.keyspace().journal().set_replica_bound(match settings.output_limit_replica.hard_bytes {
            0 => u64::MAX,
            // As in Redis, the limit is at least the length of the backlog. A lower limit would
            // close a replica that is catching up from the backlog.
            hard_bytes => hard_bytes.max(settings.repl_backlog_bytes),
        });
        self.keyspace().journal().spilling().set_limits(spill_limits(settings));
        tuning.times_all.store(settings.times_all(), Relaxed);
        self.keyspace().clients().limit_memory(settings.clients_memory_bytes());
        tuning.set_events(settings.notify_keyspace_events);
        tuning.set_eviction_policy(settings.maxmemory_policy.eviction());
        tuning.maxmemory_samples.store(settings.maxmemory_samples, Relaxed);
        tuning.maxmemory_eviction_tenacity.store(settings.maxmemory_eviction_tenacity, Relaxed);
        self.replication().replica.tune(self, settings);
        aof::tune(self, &settings.aof);
        self.replication().require_good_replicas(self, settings.primary);
    }
}

/// Returns whether a `CONFIG SET` names `appendonly`.
fn names_appendonly(pairs: &[(&[u8], &[u8])]) -> bool {
    pairs.iter().any(|(name, _)| name.eq_ignore_ascii_case(b"appendonly"))
}
