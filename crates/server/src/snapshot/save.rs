//! `SAVE`, and the snapshot of a shutdown. The thread that holds all shards encodes the dataset. A
//! second thread writes the encoded bytes.

use std::io;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};

use pantala_engine::client::Host;
use pantala_engine::functions::Functions;
use pantala_engine::whole::Whole;
use pantala_persistence::rdb::{HeadFields, Sink, Version, write_dataset};
use pantala_persistence::temporary::Failed;

use super::file::{Target, Unfinished};
use crate::cli::REDIS_VERSION;
use crate::host::Server;

/// Maximum number of encoded chunks that wait for the thread that writes.
const CHUNKS_MAX: usize = 4;

/// Error: a snapshot could not be written. The log has the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveFailed;

/// Writes a snapshot of all shards to the file, and replaces the previous file.
///
/// # Errors
/// Writing failed. The log has the reason. The previous file is unchanged, except if only syncing
/// the directory has failed.
pub fn save(server: &Server, whole: &mut Whole<'_>) -> Result<(), SaveFailed> {
    let target = Target::of(&server.config().settings(), 0);
    let snapshots = server.snapshots();
    // Counted before the libraries are copied. Libraries belong to no shard, so they may change at
    // any time, and the file may lack a change that happens after the copy.
    let changes = snapshots.all_changes(server.keyspace());
    match write(server, whole, &target) {
        Ok(version) => {
            note_version(version);
            tracing::info!("DB saved on disk");
            snapshots.saves.note_saved(server, changes);
            Ok(())
        }
        Err(failed) => {
            tracing::warn!("Write error saving DB on disk '{}': {failed}", target.path().display());
            Err(SaveFailed)
        }
    }
}

fn write(server: &Server, whole: &mut Whole<'_>, target: &Target) -> Result<Version, Failed> {
    let more = server.replication().saved_position(server);
    let header = HeadFields { keeps_expired: !more.is_empty(), more, ..snapshot_header(server, false) };
    std::thread::scope(|scope| {
        let (full, chunks) = mpsc::sync_channel(CHUNKS_MAX);
        let (recycled, empty) = mpsc::channel();
        let writing = std::thread::Builder::new()
            .name("pantala-snapshot".into())
            .spawn_scoped(scope, move || write_chunks(target.create()?, &chunks, &recycled))
            .map_err(|error| Failed::during("starting a thread", error))?;
        let mut pipe = Pipe { full, empty };
        let (version, is_whole) = write_dataset(whole, &header, &mut pipe);
        drop(pipe);
        let written = writing.join().unwrap_or_else(|_| Err(Failed::during("writing", io::ErrorKind::Other.into())))?;
        if !is_whole {
            return Err(Failed::during("writing", io::ErrorKind::UnexpectedEof.into()));
        }
        written.replace(target.path()).map(|()| version)
    })
}

fn write_chunks(
    mut file: Unfinished,
    chunks: &Receiver<Vec<u8>>,
    recycled: &Sender<Vec<u8>>,
) -> Result<Unfinished, Failed> {
    for mut chunk in chunks {
        file.write(&chunk)?;
        chunk.clear();
        // An error means that the encoder has finished and needs no more buffers.
        let _ = recycled.send(chunk);
    }
    Ok(file)
}

/// Logs a message if only newer Redis versions can read the file.
pub(super) fn note_version(version: Version) {
    if version == Version::Redis7_4 {
        tracing::info!("Fields of hashes expire: the RDB file has version 12, which Redis 7.4 and later read");
    }
}

/// Returns the content of a snapshot except its keys, and the options for writing the snapshot.
pub fn snapshot_header(server: &Server, is_aof_base: bool) -> HeadFields {
    let settings = server.config().settings();
    HeadFields {
        redis_version: REDIS_VERSION.to_owned(),
        used_bytes: server.memory().used_bytes,
        libraries: server.libraries().iter().map(|library| library.text.to_vec()).collect(),
        more: Vec::new(),
        keeps_expired: false,
        is_aof_base,
        compresses: settings.rdb_compression,
        checks: settings.rdb_checksum,
    }
}

/// The channel through which chunks reach the thread that writes.
struct Pipe {
    full: SyncSender<Vec<u8>>,
    /// Buffers whose content is written, for reuse.
    empty: Receiver<Vec<u8>>,
}

impl Sink for Pipe {
    fn take(&mut self, chunk: &mut Vec<u8>) -> bool {
        let full = std::mem::replace(chunk, self.empty.try_recv().unwrap_or_default());
        self.full.send(full).is_ok()
    }
}
