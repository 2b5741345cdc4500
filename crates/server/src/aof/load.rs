//! Loads the files of a manifest: the base (the dataset at one instant), then the increments (the
//! commands since then). Used at startup and by `DEBUG LOADAOF`.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

use pantala_engine::access::SessionView;
use pantala_engine::executor::Executor;
use pantala_engine::functions::RestorePolicy;
use pantala_engine::ownership::Ownership;
use pantala_persistence::aof::scan::{End as Found, Stopped, run_all};
use pantala_persistence::aof::{Listed, Manifest, RDB_MAGIC_BYTES, Unread, is_rdb};

use super::directory::{Directory, directory_of};
use super::replay::{At, Replay, time_before_deadlines};
use crate::config::Settings;
use crate::host::Server;
use crate::snapshot::{Duty, Loaded, Watched, load as load_snapshot, restore_libraries};

/// The loaded files.
#[derive(Debug, Default)]
pub struct Files {
    /// The manifest of the existing files.
    pub manifest: Manifest,
    /// Size of the base, bytes.
    pub base_bytes: u64,
    /// Size of all files, bytes.
    pub all_bytes: u64,
}

/// How the load of one file has ended.
enum End {
    Whole,
    /// The file ended within a command or transaction. It was truncated before this command or
    /// transaction.
    Truncated,
}

/// The reason why a file was not loaded, for the log.
struct Failed(String);

/// The shards to load into.
pub struct Target<'t, 'k> {
    /// Runs the commands.
    pub executor: &'t mut Executor<'k>,
    /// Ownership of all shards.
    pub owned: &'t mut Vec<Ownership>,
    /// The session whose permissions apply to the load.
    pub view: SessionView,
}

/// Returns whether there may be files to load. If the manifest can't be read, returns `true`; the
/// load will then report the error.
pub fn has_files(settings: &Settings) -> bool {
    let directory = directory_of(settings);
    let single = settings.dir.join(std::ffi::OsStr::from_bytes(directory.prefix()));
    directory.read_manifest().map_or(true, |manifest| !manifest.is_empty()) || single.is_file()
}

/// Loads the files into an empty dataset.
///
/// # Errors
/// Returns the reason why the files can't be loaded, as text for the operator. Some of the files
/// may have been loaded.
pub fn load(server: &Server, target: &mut Target<'_, '_>) -> Result<Files, String> {
    let settings = server.config().settings();
    let directory = directory_of(&settings);
    let mut manifest = directory.read_manifest().map_err(|unread| match unread {
        Unread::Io(error) => format!("Fatal error: can't open the AOF manifest file for reading: {error}"),
        Unread::Wrong(error) => format!("*** FATAL AOF MANIFEST FILE ERROR *** {error}"),
    })?;
    adopt_single_file(&settings.dir, &directory, &mut manifest)?;
    let began = Instant::now();
    let mut files = Files { manifest, ..Files::default() };
    for listed in files.manifest.to_load() {
        let unknown = |error: io::Error| {
            format!("Unable to obtain the AOF file {} length. stat: {error}", listed.name.escape_ascii())
        };
        files.all_bytes += fs::metadata(directory.join(&listed.name)).map_err(unknown)?.len();
    }
    if files.all_bytes == 0 {
        return Ok(files);
    }
    server.snapshots().loading.note_total_bytes(files.all_bytes);
    let now_ms = time_before_deadlines(server.now_ms());
    let count = files.manifest.to_load().count();
    for (index, listed) in files.manifest.to_load().enumerate() {
        let is_base = files.manifest.base() == Some(listed);
        // After a failed write of the manifest, its last increments may be empty. So a file counts
        // as the last one if all later files are empty.
        let is_last = index + 1 == count
            || !is_base && files.manifest.to_load().skip(index + 1).all(|later| directory.size_of(later) == 0);
        let file_began = Instant::now();
        let single = Single { server, directory: &directory, listed, now_ms };
        let end = single.load(target).map_err(|Failed(why)| why)?;
        if matches!(end, End::Truncated) && !is_last {
            return Err("Fatal error: the truncated file is not the last file".to_owned());
        }
        let kind = if is_base { "base" } else { "incr" };
        tracing::info!(
            "DB loaded from {kind} file {}: {:.3} seconds",
            listed.name.escape_ascii(),
            file_began.elapsed().as_secs_f64()
        );
    }
    // The load may have truncated a file.
    files.base_bytes = files.manifest.base().map_or(0, |base| directory.size_of(base));
    files.all_bytes = files.manifest.to_load().map(|listed| directory.size_of(listed)).sum();
    let mut access = target.executor.runner().look(&target.view, target.owned, server.now_ms());
    access.whole().measure();
    server.snapshots().set_unsaved_changes(server.keyspace(), 0);
    tracing::info!("DB loaded from append only file: {:.3} seconds", began.elapsed().as_secs_f64());
    Ok(files)
}

/// Moves the single append-only file of Redis 6 into the directory, as the base. Does nothing if
/// this file does not exist, or if the manifest lists other files.
fn adopt_single_file(dir: &Path, directory: &Directory, manifest: &mut Manifest) -> Result<(), String> {
    let name = directory.prefix();
    let single = dir.join(std::ffi::OsStr::from_bytes(name));
    if !single.is_file() {
        return Ok(());
    }
    // An earlier start may have crashed between writing the manifest and moving the file.
    let is_half_done = manifest.increments().is_empty()
        && manifest.base().is_some_and(|base| base.name == name && !directory.join(name).exists());
    if !manifest.is_empty() && !is_half_done {
        return Ok(());
    }
    tracing::info!(
        "Successfully migrated an old-style AOF configuration ({}) into a multi part AOF.",
        name.escape_ascii()
    );
    let failed = |error: io::Error| format!("Error trying to upgrade the AOF file {}: {error}", single.display());
    manifest.adopt_single_file(name);
    directory.create().map_err(failed)?;
    directory.write_manifest(manifest).map_err(failed)?;
    directory.rename(&single, name).map_err(failed)
}

/// One file to load.
struct Single<'s> {
    server: &'s Server,
    directory: &'s Directory,
    listed: &'s Listed,
    /// The time that the file's commands see, Unix time in ms ([`time_before_deadlines`]).
    now_ms: i64,
}

impl Single<'_> {
    fn load(&self, target: &mut Target<'_, '_>) -> Result<End, Failed> {
        let (name, path) = (self.name(), self.directory.join(&self.listed.name));
        let unread = |error| Failed(format!("Fatal error: can't open the append log file {name} for reading: {error}"));
        let mut file = File::open(&path).map_err(unread)?;
        let loading = &self.server.snapshots().loading;
        let loaded_bytes = loading.loaded_bytes();
        let offset = self.load_preamble(&mut file, target)?;
        // The RDB part is read in large pieces, of which the last may contain commands too. These
        // commands are read again below, so the count of loaded bytes is corrected.
        loading.set_loaded_bytes(loaded_bytes + offset);
        file.seek(SeekFrom::Start(offset)).map_err(unread)?;
        let mut replay = Replay::new(self.server, target.executor, target.owned, self.now_ms);
        let mut input = Watched { file: &file, server: self.server };
        let cut_at = match run_all(offset, &mut input, &mut replay) {
            Ok(Found::Whole) => return Ok(End::Whole),
            Ok(Found::Cut(at)) => at,
            Ok(Found::CutTransaction(at)) => {
                tracing::warn!("Revert incomplete MULTI/EXEC transaction from AOF file {name}");
                at
            }
            Err(Stopped::Input(error)) => {
                return Err(Failed(format!("Unrecoverable error reading the append only file {name}: {error}")));
            }
            Err(Stopped::Refused(At(why, offset))) => {
                return Err(Failed(format!("{why} {name} (at offset {offset})")));
            }
            Err(Stopped::Damaged(error)) => {
                return Err(Failed(format!(
                    "Bad file format reading the append only file {name}: {error}. Make a backup of your AOF file, \
                     then use pantala check-aof --fix <filename.manifest>"
                )));
            }
        };
        self.cut(cut_at)
    }

    fn name(&self) -> String {
        self.listed.name.escape_ascii().to_string()
    }

    /// Loads the RDB data at the start of the file, if any. Returns the offset of the first byte
    /// after this data, or 0.
    fn load_preamble(&self, file: &mut File, target: &mut Target<'_, '_>) -> Result<u64, Failed> {
        let mut start = [0; RDB_MAGIC_BYTES];
        if file.read_exact(&mut start).is_err() || !is_rdb(&start) {
            return Ok(0);
        }
        let name = self.name();
        let is_single = self.listed.name == self.directory.prefix();
        tracing::info!("Reading RDB {} AOF...", if is_single { "preamble from" } else { "base file on loading the" });
        let what = if is_single { "RDB preamble of the AOF" } else { "RDB base" };
        let failed = |why: &dyn std::fmt::Display| {
            Failed(format!("Error reading the {what} file {name}, AOF loading aborted: {why}"))
        };
        file.seek(SeekFrom::Start(0)).map_err(|error| failed(&error))?;
        let mut access = target.executor.runner().look(&target.view, target.owned, self.now_ms);
        let loaded = load_snapshot(self.server, file, &mut access.whole(), Duty::Store);
        let Loaded { libraries, counts, end } = loaded.map_err(|error| failed(&error))?;
        restore_libraries(self.server, libraries, RestorePolicy::Append).map_err(|error| failed(&error))?;
        self.server.snapshots().note_loaded(&counts);
        if is_single {
            tracing::info!("Reading the remaining AOF tail...");
        }
        Ok(end)
    }

    /// Truncates the file at offset `at`, after its last complete command or transaction. Fails if
    /// `aof-load-truncated` is not set.
    fn cut(&self, at: u64) -> Result<End, Failed> {
        let name = self.name();
        if !self.server.config().settings().aof.load_truncated {
            return Err(Failed(format!(
                "Unexpected end of file reading the append only file {name} (after offset {at}). You can: 1) Make a \
                 backup of your AOF file, then use pantala check-aof --fix <filename.manifest>. 2) Alternatively you \
                 can set the 'aof-load-truncated' configuration option to yes and restart the server."
            )));
        }
        tracing::warn!("!!! Warning: short read while loading the AOF file {name}!!!");
        tracing::warn!("!!! Truncating the AOF {name} at offset {at} !!!");
        let cut = self.directory.truncate(&self.listed.name, at);
        cut.map_err(|error| Failed(format!("Error truncating the AOF file {name}: {error}")))?;
        tracing::warn!("AOF {name} loaded anyway because aof-load-truncated is enabled");
        Ok(End::Truncated)
    }
}
