//! Arbitrary bytes as redis.conf. Any text is parsed or rejected, without a panic. If a parsed file
//! is rewritten, parsing the new text has the same result.

use pantala::config::rewrite::{Extent, rewrite_text};
use pantala::config::table::names;
use pantala::config::value::show;
use pantala::config::{HostDefaults, LoadError, Loaded, Sources, load};

use crate::host::Files;

fn read(text: &[u8]) -> Result<Loaded, LoadError> {
    let sources = Sources { file: Some("a.conf".into()), ..Sources::default() };
    let defaults = HostDefaults { workers: 2, shards: |workers| workers * 16, partitions: |_, shards| shards };
    load(&sources, defaults, &mut Files(Some(text)))
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
    // Files with `include` are skipped: a file that includes itself can't be rewritten as a whole.
    if text.to_ascii_lowercase().windows(7).any(|window| window == b"include") {
        return;
    }
    for extent in [Extent::Changed, Extent::All] {
        let rewritten = rewrite_text(text, &loaded.values, &[], extent);
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
}
