//! Reads the source tree for tests: its files, its code without comments and strings, its prose.

pub mod prose;

use std::path::{Path, PathBuf};

/// Directories without files written by hand.
const FOLDERS_SKIPPED: &[&str] = &["target", ".git", "corpus", "artifacts"];

/// Returns all files in `folder` written by hand, sorted, without `Cargo.lock`.
///
/// # Panics
/// If a directory can't be read.
#[must_use]
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            // Another test may have removed the file in the meantime.
            let Ok(entry) = entry else { continue };
            let name = entry.file_name();
            let path = entry.path();
            if path.is_dir() {
                if !FOLDERS_SKIPPED.iter().any(|skipped| name == *skipped) {
                    folders.push(path);
                }
            } else if name != "Cargo.lock" {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Returns the Rust files in `folder`, with their text.
///
/// # Panics
/// If a file isn't UTF-8.
#[must_use]
pub fn rust_files(folder: &Path) -> Vec<(PathBuf, String)> {
    let rust = files(folder).into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    rust.map(|path| {
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (path, text)
    })
    .collect()
}

/// Returns Rust code with comments, strings and character literals blanked, line ends kept.
#[must_use]
pub fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let length = opaque_len(&bytes[at..], at > 0 && is_word(bytes[at - 1]));
        if length == 0 {
            code.push(bytes[at]);
            at += 1;
        } else {
            code.extend(bytes[at..at + length].iter().map(|byte| if *byte == b'\n' { b'\n' } else { b' ' }));
            at += length;
        }
    }
    String::from_utf8_lossy(&code).into_owned()
}

/// Returns whether `code` contains `word` as a separate word.
#[must_use]
pub fn has_word(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(at, _)| {
        let before = at.checked_sub(1).is_some_and(|at| is_word(code.as_bytes()[at]));
        let after = code.as_bytes().get(at + word.len()).is_some_and(|byte| is_word(*byte));
        !before && !after
    })
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Returns the length of the comment, string or character literal at the start of `rest`, or 0 if
/// there is none.
fn opaque_len(rest: &[u8], in_word: bool) -> usize {
    let until = |end: &[u8], from: usize| {
        rest[from..].windows(end.len()).position(|window| window == end).map_or(rest.len(), |at| from + at + end.len())
    };
    match rest {
        [b'/', b'/', ..] => until(b"\n", 0).min(rest.len()),
        [b'/', b'*', ..] => until(b"*/", 2),
        [b'r', b'"' | b'#', ..] if !in_word => {
            let hashes = rest[1..].iter().take_while(|byte| **byte == b'#').count();
            if rest.get(1 + hashes) != Some(&b'"') {
                return 0;
            }
            let end = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
            until(&end, 2 + hashes)
        }
        [b'"', ..] => quoted_len(rest, b'"'),
        // Unlike a character literal, a lifetime has no closing quote within the next two bytes.
        [b'\'', b'\\', ..] => quoted_len(rest, b'\''),
        [b'\'', _, b'\'', ..] => 3,
        _ => 0,
    }
}

fn quoted_len(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_stays() {
        let code = code_only(
            "a /* unsafe */ b // unsafe\nc \"unsafe \\\" unsafe\" d r#\"unsafe \" \"# e '\\'' f '\"' g<'a> unsafe h",
        );
        assert_eq!(code.matches("unsafe").count(), 1);
        assert_eq!(code.split_whitespace().collect::<Vec<_>>().join(""), "abcdefg<'a>unsafeh");
        assert_eq!(code.lines().count(), 2);
    }

    #[test]
    fn a_word_stands_alone() {
        assert!(has_word("unsafe {", "unsafe") && has_word("x unsafe", "unsafe"));
        assert!(!has_word("unsafe_code not_unsafe", "unsafe"));
    }
}
