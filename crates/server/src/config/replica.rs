//! Settings that apply while the server is a replica.

use super::values::Values;

/// A primary's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Host name or IP address.
    pub host: String,
    /// Port.
    pub port: u16,
}

/// The way in which a replica receives a snapshot (`repl-diskless-load`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisklessLoad {
    /// Receives the snapshot to a file, which is loaded once it is complete.
    Disabled,
    /// If there are no keys, loads the snapshot while it arrives. Otherwise the same as `Disabled`.
    OnEmptyDb,
    /// If there are no keys and no function libraries, loads the snapshot while it arrives.
    /// Otherwise receives it to memory, from which it is loaded once it is complete.
    Swapdb,
}

/// Settings that apply while the server is a replica.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaSettings {
    /// `replicaof`: the primary that the server follows.
    pub primary: Option<Address>,
    /// `bind-source-addr`: address from which the link connects. If empty, the kernel chooses one.
    pub source_addr: String,
    /// `masteruser`: user name for the primary. If empty, the primary's default user.
    pub user: Vec<u8>,
    /// `masterauth`: password for the primary.
    pub password: Option<Vec<u8>>,
    /// `replica-priority`: rank for Sentinel; 0 means that Sentinel never promotes this replica.
    pub priority: i128,
    /// `replica-announced`: whether Sentinel lists this replica. Sentinel reads the setting from
    /// `INFO`.
    pub is_announced: bool,
    /// `replica-announce-ip`: address announced to the primary. If empty, no address is announced,
    /// and the primary uses the address from which the link comes.
    pub announced_ip: String,
    /// `replica-announce-port`: port announced to the primary; 0 means the real port.
    pub announced_port: i128,
    /// `replica-serve-stale-data`: whether to serve reads while the link is down.
    pub serves_stale_data: bool,
    /// `replica-read-only`: whether to reject writes of clients.
    pub is_read_only: bool,
    /// `replica-ignore-maxmemory`: whether to leave eviction to the primary.
    pub ignores_maxmemory: bool,
    /// `replica-lazy-flush`: whether to free the old dataset in the background.
    pub flushes_lazily: bool,
    /// `replica-refuse-empty-primary`: whether to keep the dataset if the primary has an empty
    /// dataset with another replication history.
    pub refuses_empty_primary: bool,
    /// `repl-diskless-load`: how a snapshot is received.
    pub diskless_load: DisklessLoad,
    /// `rdb-del-sync-files`: whether to delete the RDB file after a sync. The file stays if the
    /// server has save points or an append-only file.
    pub deletes_sync_files: bool,
}

impl ReplicaSettings {
    pub(super) fn new(values: &Values) -> Self {
        ReplicaSettings {
            primary: address(values.text("replicaof")),
            source_addr: String::from_utf8_lossy(values.text("bind-source-addr")).into_owned(),
            user: values.text("masteruser").to_vec(),
            password: Some(values.text("masterauth").to_vec()).filter(|password| !password.is_empty()),
            priority: values.number("replica-priority"),
            is_announced: values.bool("replica-announced"),
            announced_ip: String::from_utf8_lossy(values.text("replica-announce-ip")).into_owned(),
            announced_port: values.number("replica-announce-port"),
            serves_stale_data: values.bool("replica-serve-stale-data"),
            is_read_only: values.bool("replica-read-only"),
            ignores_maxmemory: values.bool("replica-ignore-maxmemory"),
            flushes_lazily: values.bool("replica-lazy-flush"),
            refuses_empty_primary: values.bool("replica-refuse-empty-primary"),
            diskless_load: match values.text("repl-diskless-load") {
                b"on-empty-db" => DisklessLoad::OnEmptyDb,
                b"swapdb" => DisklessLoad::Swapdb,
                _ => DisklessLoad::Disabled,
            },
            deletes_sync_files: values.bool("rdb-del-sync-files"),
        }
    }
}

/// Parses the validated value of `replicaof`, which is a host and a port, or empty.
fn address(value: &[u8]) -> Option<Address> {
    let text = String::from_utf8_lossy(value);
    let (host, port) = text.rsplit_once(' ')?;
    Some(Address { host: host.to_owned(), port: port.parse().ok()? })
}
