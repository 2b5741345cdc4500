//! Applies the settings: at startup, and after `CONFIG SET`.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pantala_engine::client::Client;
use pantala_engine::message::Message;

use crate::aof;
use crate::config::{Circumstances, NotSet, Plan, Refusal, Settings};
use crate::host::Server;
use crate::process::{self, Encryption, Unusable};
use crate::replication::spill_limits;
use crate::snapshot;

/// The parts of a change of settings that may wait for the disk, and their outcomes.
pub struct Change {
    /// Whether `CONFIG SET` names `appendonly`. `appendonly yes` then turns the append-only file on
    /// if it is off, even if the setting was already `yes`. (The file can be off although the
    /// setting is `yes`, because the server may have failed to reopen the file after a full sync.)
    names_appendonly: bool,
    /// The outcome of [`aof::check_files`]. A transaction doesn't check the files: as in Redis, the
    /// log then has the errors.
    checked: Result<(), &'static str>,
    /// When the first rewrite starts.
    first: aof::FirstRewrite,
    /// The state of encrypted connections for the new settings; `None` if they are unchanged.
    encryption: Option<Result<Option<Arc<Encryption>>, Unusable>>,
}

impl Change {
    /// Reads and checks the files that a planned change names.
    fn of(server: &Server, plan: &Plan<'_>, first: aof::FirstRewrite) -> Self {
        let (old, new) = (&plan.old, &plan.new);
        let is_tls_changed = plan.names.tls && old.tls != new.tls;
        let encryption =
            is_tls_changed.then(|| Encryption::renewed(server.listening().encryption(), &old.tls, &new.tls, &new.dir));
        let is_checked = first == aof::FirstRewrite::Now && !matches!(encryption, Some(Err(_)));
        let names_appendonly = plan.names.appendonly;
        let checked = match is_checked && turns_appendonly_on(server, old, new, names_appendonly) {
            true => aof::check_files(new),
            false => Ok(()),
        };
        Change { names_appendonly, checked, first, encryption }
    }
}

/// Sets the configuration for the `CONFIG SET` of a client. Waits for the disk if
/// [`config_set_opens_files`] returns `true`. No lock is held meanwhile, because other commands
/// take the locks of the configuration on their workers. Only with [`aof::FirstRewrite::Now`],
/// checks the files of an append-only file that is turned on. `recheck` is called after the wait.
///
/// # Errors
/// Redis's error reply, or the error of `recheck`. Nothing is set then.
pub fn set_config(
    server: &Server,
    pairs: &[(&[u8], &[u8])],
    client: &Client,
    first: aof::FirstRewrite,
    recheck: &dyn Fn() -> Result<(), String>,
) -> Result<(), String> {
    let is_replica = server.keyspace().tuning.is_replica();
    loop {
        let prepared = server.config().plan(pairs, circumstances(server, client))?.prepare()?;
        let change = Change::of(server, &prepared.plan, first);
        recheck()?;
        let apply = |old: &Settings, new: &Settings| {
            process::change_oom_score(&old.process, &new.process, is_replica, || server.apply(old, new, &change))
        };
        match server.config().set(&prepared, || circumstances(server, client), &apply) {
            Ok(()) => break,
            Err(NotSet::Failed(reply)) => return Err(reply),
            Err(NotSet::Outdated) => {}
        }
    }
    for port in server.keyspace().ports().iter() {
        port.send(Message::Reload);
    }
    Ok(())
}

/// Returns whether a `CONFIG SET` of a client reads or writes files. If so, a thread must call
/// [`set_config`].
///
/// # Errors
/// Redis's error reply, if a directive or a value is wrong.
pub fn config_set_opens_files(server: &Server, pairs: &[(&[u8], &[u8])], client: &Client) -> Result<bool, String> {
    let plan = server.config().plan(pairs, circumstances(server, client))?;
    let turns_on = || turns_appendonly_on(server, &plan.old, &plan.new, plan.names.appendonly);
    Ok(plan.names.dir || plan.names.tls || turns_on())
}

fn circumstances(server: &Server, client: &Client) -> Circumstances {
    let is_loading = server.snapshots().loading.denies_changes(server.keyspace().tuning.refusals());
    Circumstances { is_local: client.address.is_local(), is_loading }
}

/// Returns whether the change from the old settings to the new ones turns the append-only file
/// on. `is_named`: whether `CONFIG SET` names `appendonly` ([`Change`]).
fn turns_appendonly_on(server: &Server, old: &Settings, new: &Settings, is_named: bool) -> bool {
    let is_off = || server.snapshots().aof.state() == aof::State::Off;
    new.aof.is_on && (!old.aof.is_on || is_named && is_off())
}

impl Server {
    /// Applies the changed settings, or none of them if one can't be applied.
    ///
    /// # Errors
    /// A setting can't be applied. The server continues to run with the old settings.
    fn apply(&self, old: &Settings, new: &Settings, change: &Change) -> Result<(), Refusal> {
        if new.maxclients > old.maxclients {
            process::allow_clients(new.maxclients).map_err(|reason| Refusal { directive: "maxclients", reason })?;
        }
        let encryption = change.encryption.clone().transpose().map_err(|Unusable| {
            let reason = "Unable to update TLS configuration. Check server logs.";
            Refusal { directive: new.tls.changed_first, reason: reason.into() }
        })?;
        let turns_on = turns_appendonly_on(self, old, new, change.names_appendonly);
        if turns_on {
            let refused = |reason: &str| Refusal { directive: "appendonly", reason: reason.into() };
            change.checked.map_err(refused)?;
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
        if let Some(encryption) = encryption {
            self.listening().set_encryption(encryption);
        }
        if old.requirepass != new.requirepass {
            self.keyspace().users().set_default_password(new.requirepass.as_deref());
        }
        if turns_on {
            aof::turn_on(self, new, change.first);
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
    }
}
