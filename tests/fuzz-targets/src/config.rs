//! redis.conf: any text is parsed or rejected, without a panic. A parsed file is rewritten so that
//! parsing it again has the same result.

use pantala::config::rewrite::rewrite_text;
use pantala::config::table::names;
use pantala::config::value::show;
use pantala::config::{Host, HostDefaults, LoadError, Loaded, Sources, load};
use std::io;
use std::path::{Path, PathBuf};

/// A single file that exists under every name, so that it may include itself.
struct OneFile<'a>(&'a [u8]);

impl Host for OneFile<'_> {
    fn read_file(&mut self, _: &Path) -> io::Result<Vec<u8>> {
        Ok(self.0.to_vec())
    }

    fn read_stdin(&mut self) -> io::Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn list_dir(&mut self, _: &Path) -> Vec<Vec<u8>> {
        vec![b"a.conf".to_vec(), b".hidden".to_vec()]
    }

    fn change_dir(&mut self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn current_dir(&mut self) -> PathBuf {
        "/".into()
    }

    fn try_append(&mut self, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

fn read(text: &[u8]) -> Result<Loaded, LoadError> {
    let sources = Sources { file: Some("a.conf".into()), ..Sources::default() };
    let defaults = HostDefaults { workers: 2, shards: |workers| workers * 16, partitions: |_, shards| shards };
    load(&sources, defaults, &mut OneFile(text))
}

/// Runs the target on one input, and panics on a defect.
pub fn run(text: &[u8]) {
    let loaded = match read(text) {
        Ok(loaded) => loaded,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let _ = loaded.check_renames(|name| name == b"get" || name == b"set");
    // A file that includes itself is rewritten as only a part of its content, so skip those.
    if text.to_ascii_lowercase().windows(7).any(|window| window == b"include") {
        return;
    }
    let rewritten = rewrite_text(text, &loaded.values, &[]);
    let again = match read(&rewritten) {
        Ok(again) => again,
        Err(error) => panic!("{error}\n{}", rewritten.escape_ascii()),
    };
    for found in names() {
        let kind = found.directive().kind;
        let (before, after) = (show(kind, loaded.values.at(found.index)), show(kind, again.values.at(found.index)));
        assert_eq!(before, after, "{} in {}", found.name(), rewritten.escape_ascii());
    }
}
