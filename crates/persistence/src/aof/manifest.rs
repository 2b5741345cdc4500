//! The manifest: the list of the files that form the append-only file, in order. The *base* has the
//! dataset at one instant. Each *increment* has effects (commands that repeat changes of the
//! dataset).

use std::fmt;

use pantala_resp::{quote, words_of};

use super::names;

/// Maximum length of a line, bytes, with its line end.
pub const LINE_BYTES_MAX: usize = 1024;

/// Minimum number of words in a line.
const WORDS_MIN: usize = 6;

/// The role of a file in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The dataset at one instant.
    Base,
    /// A file that a rewrite has replaced, and that may be deleted.
    History,
    /// Effects since the base or the preceding increment.
    Increment,
}

impl Kind {
    fn letter(self) -> u8 {
        match self {
            Kind::Base => b'b',
            Kind::History => b'h',
            Kind::Increment => b'i',
        }
    }
}

/// A file in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The file's name in the directory of the manifest.
    pub name: Vec<u8>,
    /// The file's number among the files of its kind.
    pub seq: u64,
}

/// The list of files. See the head of this module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    base: Option<Listed>,
    history: Vec<Listed>,
    increments: Vec<Listed>,
    /// The highest sequence number of a base so far.
    base_seq: u64,
    /// The highest sequence number of an increment so far.
    increment_seq: u64,
}

/// The reason why a manifest can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestError {
    /// Number of the line, counted from 1; 0 means the file as a whole.
    pub line: usize,
    /// The line.
    pub text: Vec<u8>,
    /// Redis's error text.
    pub why: &'static str,
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "Reading the manifest file, at line {}: '{}': ", self.line, self.text.escape_ascii())?;
        }
        f.write_str(self.why)
    }
}

impl std::error::Error for ManifestError {}

const INVALID: &str = "Invalid AOF manifest file format";

impl Manifest {
    /// Parses a manifest.
    ///
    /// # Errors
    /// The text isn't a manifest, or contradicts itself.
    pub fn parse(text: &[u8]) -> Result<Self, ManifestError> {
        let mut manifest = Manifest::default();
        if text.is_empty() {
            return Err(ManifestError { line: 0, text: Vec::new(), why: "Found an empty AOF manifest" });
        }
        for (index, line) in text.split_inclusive(|byte| *byte == b'\n').enumerate() {
            if line.starts_with(b"#") {
                continue;
            }
            let failed = |why| ManifestError { line: index + 1, text: line.trim_ascii().to_vec(), why };
            if !line.ends_with(b"\n") || line.len() > LINE_BYTES_MAX {
                return Err(failed("The AOF manifest file contains too long line"));
            }
            let (listed, kind) = parse_line(line.trim_ascii()).map_err(failed)?;
            manifest.add(listed, kind).map_err(failed)?;
        }
        Ok(manifest)
    }

    fn add(&mut self, listed: Listed, kind: u8) -> Result<(), &'static str> {
        match kind {
            b'b' if self.base.is_some() => return Err("Found duplicate base file information"),
            b'b' => {
                self.base_seq = self.base_seq.max(listed.seq);
                self.base = Some(listed);
            }
            b'h' => {
                // A file in the history may not be deleted yet, so a new file must not reuse its
                // number.
                self.base_seq = self.base_seq.max(listed.seq);
                self.increment_seq = self.increment_seq.max(listed.seq);
                self.history.push(listed);
            }
            b'i' if self.increments.last().is_some_and(|last| listed.seq <= last.seq) => {
                return Err("Found a non-monotonic sequence number");
            }
            b'i' => {
                self.increment_seq = self.increment_seq.max(listed.seq);
                self.increments.push(listed);
            }
            _ => return Err("Unknown AOF file type"),
        }
        Ok(())
    }

    /// Returns the text of the manifest, as Redis writes it.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        let base = self.base.iter().map(|listed| (listed, Kind::Base));
        let history = self.history.iter().map(|listed| (listed, Kind::History));
        let increments = self.increments.iter().map(|listed| (listed, Kind::Increment));
        for (Listed { name, seq }, kind) in base.chain(history).chain(increments) {
            text.extend_from_slice(b"file ");
            if needs_quotes(name) {
                quote(&mut text, name);
            } else {
                text.extend_from_slice(name);
            }
            text.extend_from_slice(format!(" seq {seq} type ").as_bytes());
            text.extend([kind.letter(), b'\n']);
        }
        text
    }

    /// Returns the base file.
    #[must_use]
    pub fn base(&self) -> Option<&Listed> {
        self.base.as_ref()
    }

    /// Returns the increments, in order.
    #[must_use]
    pub fn increments(&self) -> &[Listed] {
        &self.increments
    }

    /// Returns the files that may be deleted.
    #[must_use]
    pub fn history(&self) -> &[Listed] {
        &self.history
    }

    /// Returns the files to load, in order.
    pub fn to_load(&self) -> impl Iterator<Item = &Listed> {
        self.base.iter().chain(&self.increments)
    }

    /// Returns whether there is nothing to load.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.base.is_none() && self.increments.is_empty()
    }

    /// Adds an increment after all others and returns its name.
    pub fn add_increment(&mut self, prefix: &[u8]) -> Vec<u8> {
        self.increment_seq += 1;
        let listed = Listed { name: names::increment(prefix, self.increment_seq), seq: self.increment_seq };
        self.increments.push(listed.clone());
        listed.name
    }

    /// Skips the sequence numbers that `other` has used, so that new files don't overwrite the
    /// files that `other` lists.
    pub fn skip_numbers_of(&mut self, other: &Manifest) {
        self.base_seq = self.base_seq.max(other.base_seq);
        self.increment_seq = self.increment_seq.max(other.increment_seq);
    }

    /// Makes a new file the base and returns its name. Moves the former base to the history (the
    /// files that may be deleted).
    pub fn replace_base(&mut self, prefix: &[u8], is_rdb: bool) -> Vec<u8> {
        if let Some(former) = self.base.take() {
            self.history.insert(0, former);
        }
        self.base_seq += 1;
        let listed = Listed { name: names::base(prefix, self.base_seq, is_rdb), seq: self.base_seq };
        self.base.insert(listed).name.clone()
    }

    /// Makes the single append-only file of Redis 6 the base of an empty list.
    pub fn adopt_single_file(&mut self, name: &[u8]) {
        self.base_seq = 1;
        self.base = Some(Listed { name: name.to_vec(), seq: 1 });
    }

    /// Moves all increments except the last `kept` to the history.
    pub fn retire_increments(&mut self, kept: usize) {
        let retired = self.increments.len().saturating_sub(kept);
        for listed in self.increments.drain(..retired).rev() {
            self.history.insert(0, listed);
        }
    }

    /// Removes the files that may be deleted from the list, and returns them.
    pub fn take_history(&mut self) -> Vec<Listed> {
        std::mem::take(&mut self.history)
    }
}

/// Returns the file in a line, and the letter of its kind.
fn parse_line(line: &[u8]) -> Result<(Listed, u8), &'static str> {
    let words = words_of(line).map_err(|_| INVALID)?;
    if words.len() < WORDS_MIN || words.len() % 2 != 0 {
        return Err(INVALID);
    }
    let (mut name, mut seq, mut kind) = (None, 0, None);
    for pair in words.chunks_exact(2) {
        let value = &pair[1];
        if pair[0].eq_ignore_ascii_case(b"file") {
            if value.iter().any(|byte| matches!(byte, b'/' | b'\\')) {
                return Err("File can't be a path, just a filename");
            }
            name = Some(value.clone());
        } else if pair[0].eq_ignore_ascii_case(b"seq") {
            seq = leading_number(value);
        } else if pair[0].eq_ignore_ascii_case(b"type") {
            kind = value.first().copied();
        }
    }
    match (name, kind) {
        (Some(name), Some(kind)) if seq > 0 && !name.is_empty() => Ok((Listed { name, seq }, kind)),
        _ => Err(INVALID),
    }
}

/// Returns the number at the start of a word, as C's `atoll` does; 0 if there is none.
fn leading_number(word: &[u8]) -> u64 {
    let len = word.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&word[..len]).ok().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Returns whether a name must be quoted by Redis's rules.
fn needs_quotes(name: &[u8]) -> bool {
    name.iter().any(|byte| !byte.is_ascii_graphic() || matches!(byte, b'\\' | b'"' | b'\''))
}
