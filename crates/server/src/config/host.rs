//! The file system, as an interface for reading the configuration. Tests and fuzzing use a file
//! system in memory instead of the real one.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};

/// Maximum size of a configuration file, bytes. No real file is that large. Without a limit,
/// `include /dev/zero` would not end.
pub const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Files and directories.
pub trait Host {
    /// Reads the file at `path`.
    ///
    /// # Errors
    ///
    /// The system's error.
    fn read_file(&mut self, path: &Path) -> io::Result<Vec<u8>>;

    /// Reads all of standard input.
    ///
    /// # Errors
    ///
    /// The system's error.
    fn read_stdin(&mut self) -> io::Result<Vec<u8>>;

    /// Lists the names in the directory at `path`, in unspecified order. Returns no names if the
    /// directory can't be read.
    fn list_dir(&mut self, path: &Path) -> Vec<Vec<u8>>;

    /// Makes `path` the working directory.
    ///
    /// # Errors
    ///
    /// The system's error.
    fn change_dir(&mut self, path: &Path) -> io::Result<()>;

    /// Returns the working directory.
    fn current_dir(&mut self) -> PathBuf;

    /// Tries to open the file at `path` for appending.
    ///
    /// # Errors
    ///
    /// The system's error.
    fn try_append(&mut self, path: &Path) -> io::Result<()>;
}

/// The real system.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

impl Host for System {
    fn read_file(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        read_bounded(std::fs::File::open(path)?)
    }

    fn read_stdin(&mut self) -> io::Result<Vec<u8>> {
        read_bounded(io::stdin().lock())
    }

    fn list_dir(&mut self, path: &Path) -> Vec<Vec<u8>> {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().as_bytes().to_vec()).collect()
    }

    fn change_dir(&mut self, path: &Path) -> io::Result<()> {
        std::env::set_current_dir(path)
    }

    fn current_dir(&mut self) -> PathBuf {
        std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."))
    }

    fn try_append(&mut self, path: &Path) -> io::Result<()> {
        std::fs::OpenOptions::new().append(true).create(true).open(path).map(drop)
    }
}

/// A directory that was opened, so that it can become the working directory without waiting for the
/// disk.
#[derive(Debug)]
pub struct OpenDir(OwnedFd);

impl OpenDir {
    /// Opens the directory at `path`.
    ///
    /// # Errors
    ///
    /// The system's error, if the directory can't become the working directory.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty())?;
        // The lookup needs the same permission as `enter`. The file system may have to read the
        // permissions from the disk; `enter` then finds them in memory.
        rustix::fs::statat(&dir, ".", AtFlags::empty())?;
        Ok(OpenDir(dir))
    }

    /// Makes this the working directory.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn enter(&self) -> io::Result<()> {
        Ok(rustix::process::fchdir(&self.0)?)
    }
}

/// Reads everything from `reader`. Fails if the content exceeds [`FILE_BYTES_MAX`].
fn read_bounded(reader: impl Read) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    reader.take(FILE_BYTES_MAX + 1).read_to_end(&mut content)?;
    if content.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::from(io::ErrorKind::FileTooLarge));
    }
    Ok(content)
}

/// Returns the system's text for `error`, as worded by C's `strerror`.
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error ") {
        Some(end) => text[..end].to_string(),
        None => text,
    }
}

/// Returns whether `path` contains wildcards.
pub fn has_wildcards(path: &[u8]) -> bool {
    path.iter().any(|byte| matches!(byte, b'*' | b'?' | b'['))
}

/// Returns the existing paths that match `pattern`, sorted, like `glob(3)`. A wildcard matches
/// neither a slash nor a leading dot. The directories before the first wildcard are not checked: if
/// one of them doesn't exist, the listing is empty.
pub fn expand(host: &mut dyn Host, pattern: &Path) -> Vec<PathBuf> {
    let (mut found, mut has_globbed) = (vec![PathBuf::new()], false);
    for part in pattern.components() {
        let name = part.as_os_str().as_bytes();
        if !matches!(part, Component::Normal(_)) || !has_wildcards(name) {
            if has_globbed && matches!(part, Component::Normal(_)) {
                found.retain(|dir| host.list_dir(dir).iter().any(|entry| entry == name));
            }
            found.iter_mut().for_each(|path| path.push(part));
            continue;
        }
        has_globbed = true;
        let glob = shell_glob(name);
        let mut next = Vec::new();
        for path in found {
            let dir = if path.as_os_str().is_empty() { PathBuf::from(".") } else { path.clone() };
            let mut names = host.list_dir(&dir);
            names.retain(|name| {
                (name.first() != Some(&b'.') || glob.first() == Some(&b'.'))
                    && pantala_base::glob::matches(&glob, name, false)
            });
            names.sort_unstable();
            next.extend(names.iter().map(|name| path.join(OsStr::from_bytes(name))));
        }
        found = next;
    }
    found
}

/// Converts a shell pattern to Redis's glob syntax. A negated class starts with `!` in a shell and
/// with `^` in Redis.
fn shell_glob(name: &[u8]) -> Vec<u8> {
    let mut glob = name.to_vec();
    for at in 1..glob.len() {
        if glob[at] == b'!' && glob[at - 1] == b'[' {
            glob[at] = b'^';
        }
    }
    glob
}

#[cfg(test)]
pub(crate) mod fake {
    //! A host in memory, for tests.

    use super::*;
    use std::collections::BTreeMap;

    /// Files by path. Every prefix of a file's path is a directory.
    #[derive(Debug, Default)]
    pub struct Fake {
        pub files: BTreeMap<PathBuf, Vec<u8>>,
        pub stdin: Vec<u8>,
        pub dir: PathBuf,
    }

    impl Fake {
        pub fn with(files: &[(&str, &str)]) -> Self {
            let files = files.iter().map(|(path, text)| (path.into(), text.as_bytes().to_vec())).collect();
            Fake { files, stdin: Vec::new(), dir: "/".into() }
        }

        fn is_dir(&self, path: &Path) -> bool {
            self.files.keys().any(|file| file.starts_with(path) && file != path)
        }
    }

    impl Host for Fake {
        fn read_file(&mut self, path: &Path) -> io::Result<Vec<u8>> {
            let path = self.dir.join(path);
            self.files.get(&path).cloned().ok_or_else(|| io::Error::from_raw_os_error(2))
        }

        fn read_stdin(&mut self) -> io::Result<Vec<u8>> {
            Ok(std::mem::take(&mut self.stdin))
        }

        fn list_dir(&mut self, path: &Path) -> Vec<Vec<u8>> {
            let path: PathBuf = self.dir.join(path).components().filter(|part| *part != Component::CurDir).collect();
            let below = self.files.keys().filter_map(|file| file.strip_prefix(&path).ok()?.components().next());
            let mut names: Vec<Vec<u8>> = below.map(|part| part.as_os_str().as_bytes().to_vec()).collect();
            names.dedup();
            names
        }

        fn change_dir(&mut self, path: &Path) -> io::Result<()> {
            let path = self.dir.join(path);
            if !self.is_dir(&path) {
                return Err(io::Error::from_raw_os_error(2));
            }
            self.dir = path;
            Ok(())
        }

        fn current_dir(&mut self) -> PathBuf {
            self.dir.clone()
        }

        fn try_append(&mut self, path: &Path) -> io::Result<()> {
            let path = self.dir.join(path);
            let parent = path.parent().unwrap_or(Path::new("/")).to_path_buf();
            if self.is_dir(&parent) { Ok(()) } else { Err(io::Error::from_raw_os_error(2)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fake::Fake;
    use super::*;

    #[test]
    fn patterns_expand_by_name_and_in_order() {
        let mut host = Fake::with(&[
            ("/c/b.conf", ""),
            ("/c/a.conf", ""),
            ("/c/.h.conf", ""),
            ("/c/d/x.conf", ""),
            ("/e/x.conf", ""),
        ]);
        let mut expand = |pattern: &str| -> Vec<String> {
            expand(&mut host, Path::new(pattern)).into_iter().map(|path| path.display().to_string()).collect()
        };
        assert_eq!(expand("/c/*.conf"), ["/c/a.conf", "/c/b.conf"]);
        assert_eq!(expand("/c/.*.conf"), ["/c/.h.conf"]);
        assert_eq!(expand("/c/[!a].conf"), ["/c/b.conf"]);
        assert_eq!(expand("c/[ab].conf"), ["c/a.conf", "c/b.conf"]);
        assert_eq!(expand("/none/*.conf"), Vec::<String>::new());
        assert_eq!(expand("*/b.conf"), ["c/b.conf"]);
        assert_eq!(expand("/*/x.conf"), ["/e/x.conf"]);
        assert_eq!(expand("/*/d/x.conf"), ["/c/d/x.conf"]);
    }

    #[test]
    fn reasons_match_strerror() {
        assert_eq!(reason(&io::Error::from_raw_os_error(2)), "No such file or directory");
    }

    #[test]
    fn an_endless_file_is_rejected() {
        assert!(read_bounded(io::repeat(b'#')).is_err());
        assert_eq!(read_bounded(&b"abc"[..]).expect("short"), b"abc");
    }
}
