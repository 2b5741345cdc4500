//! `DEBUG RELOAD`: loads the dataset from its file while the server runs.

use std::fs::File;

use pantala_engine::access::Access;
use pantala_engine::command::Omission;
use pantala_engine::functions::RestorePolicy;
use pantala_engine::whole::Reload;

use super::load::{self, Counts, Duty, LoadError};
use super::{path_of, save};
use crate::host::Server;

const FAILED: &str = "ERR Error trying to load the RDB dump, check server logs.";

/// Saves the dataset, deletes all keys and loads the file. `how` may exclude the save or the
/// deletion. The whole file is checked before the dataset is changed.
///
/// # Errors
/// Returns the error reply.
pub fn reload(server: &Server, access: &mut Access<'_>, how: Reload) -> Result<(), String> {
    // As in Redis, a reload is not propagated, because it normally leaves the dataset as it was.
    access.propagate_nothing(Omission::Loaded);
    if !how.no_save && save::save(server, &mut access.whole()).is_err() {
        return Err("ERR".to_owned());
    }
    let unsaved = server.snapshots().unsaved_changes(server.keyspace());
    let loaded = load_checked(server, access, how);
    server.snapshots().set_unsaved_changes(server.keyspace(), unsaved);
    match loaded {
        Ok(counts) => {
            server.snapshots().note_loaded(&counts);
            tracing::warn!("DB reloaded by DEBUG RELOAD");
            Ok(())
        }
        Err(error) => {
            tracing::warn!("Error loading the DB from {}: {error}", path_of(&server.config().settings()).display());
            Err(FAILED.to_owned())
        }
    }
}

fn load_checked(server: &Server, access: &mut Access<'_>, how: Reload) -> Result<Counts, LoadError> {
    let path = path_of(&server.config().settings());
    let check = if how.no_flush && !how.merge { Duty::CheckNew } else { Duty::Check };
    let libraries = load::load(server, &File::open(&path)?, &mut access.whole(), check)?.libraries;
    let policy = match (how.no_flush, how.merge) {
        (false, _) => RestorePolicy::Flush,
        (true, true) => RestorePolicy::Replace,
        (true, false) => RestorePolicy::Append,
    };
    load::restore_libraries(server, libraries, policy)?;
    if !how.no_flush {
        let databases = 0..access.keyspace().databases();
        access.flush(databases, false);
    }
    // If a key occurs twice in the file, this is detected only when the key is stored the second
    // time. When all keys have been deleted, an error at that point would lose the dataset. So the
    // last value of such a key is kept instead.
    let duty = if how.merge || !how.no_flush { Duty::Replace } else { Duty::Store };
    let loaded = load::load(server, &File::open(&path)?, &mut access.whole(), duty);
    if loaded.is_err() && !how.no_flush {
        // This is unexpected, because the same file has passed the check. The dataset is now
        // incomplete and must not be served.
        let databases = 0..access.keyspace().databases();
        access.flush(databases, false);
        tracing::warn!("The dataset is empty now.");
    }
    access.whole().measure();
    loaded.map(|loaded| loaded.counts)
}
