//! A base (the file with the dataset at one instant) that consists of commands
//! (`aof-use-rdb-preamble no`): an RDB file translated to `RESTORE` commands.
//!
//! Redis writes the commands of each type instead, such as `RPUSH`. Redis and Pantala load both
//! forms. The payload of `RESTORE` is shorter, and preserves the value's encoding.

use std::io;

use pantala_types::rdb_value::payload::seal;

use super::checksum::Group;
use crate::disk::Disk;
use crate::rdb::{Error, Next, Piece, Reader};
use crate::temporary::TemporaryFile;

/// A base that is being written as commands.
pub struct CommandBase {
    commands: Commands,
    /// The time annotation that precedes the first command; `None` once it is written.
    annotation: Option<Vec<u8>>,
    has_checksums: bool,
}

impl CommandBase {
    /// Starts a base with an annotation, if there is one. With `has_checksums`, the commands are
    /// written with checksums.
    #[must_use]
    pub fn new(commands: Commands, annotation: Option<Vec<u8>>, has_checksums: bool) -> Self {
        CommandBase { commands, annotation, has_checksums }
    }

    /// Writes the commands that the next bytes of the snapshot contain. `None` stands for the end
    /// of the snapshot. After an error, the file must be dropped.
    ///
    /// # Errors
    /// The system's error, or the snapshot is invalid.
    pub fn write<D: Disk>(&mut self, bytes: Option<&[u8]>, file: &mut TemporaryFile<D>) -> io::Result<()> {
        let mut translated = self.annotation.take().unwrap_or_default();
        let outcome = match bytes {
            Some(bytes) => self.commands.feed(bytes, &mut translated),
            None => self.commands.finish(&mut translated),
        };
        outcome.map_err(io::Error::other)?;
        if self.has_checksums && !translated.is_empty() {
            file.write(&Group::of(std::iter::once(&translated[..])).line())?;
        }
        Ok(file.write(&translated)?)
    }
}

/// Translates an RDB file. No hash field in the file may have an expiry, because `RESTORE` can't
/// express it.
pub struct Commands {
    reader: Reader,
    db: Option<u32>,
    payload: Vec<u8>,
    /// Whether the end of the RDB file has been translated.
    is_ended: bool,
}

impl Commands {
    /// Starts the translation for a server with this many databases and strings of at most
    /// `string_bytes_max` bytes.
    #[must_use]
    pub fn new(databases: u32, string_bytes_max: u64) -> Self {
        let reader = Reader::new(None, databases, string_bytes_max, false);
        Commands { reader, db: None, payload: Vec::new(), is_ended: false }
    }

    /// Adds the next bytes of the RDB file, translates the entries that are complete, and appends
    /// the commands to `out`. After a long entry, the reader collects more bytes before it reads
    /// further entries, so the last entries may be left for [`Commands::finish`].
    ///
    /// # Errors
    /// The RDB file is invalid.
    pub fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        self.reader.feed(bytes)?;
        self.translate(out)
    }

    /// Translates the rest of the RDB file, after its last byte was added.
    ///
    /// # Errors
    /// The RDB file is invalid or truncated.
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), Error> {
        self.reader.end_input();
        while !self.is_ended {
            // Returns an error if the file has no more bytes before its end marker.
            self.translate(out)?;
        }
        Ok(())
    }

    fn translate(&mut self, out: &mut Vec<u8>) -> Result<(), Error> {
        while !self.is_ended {
            match self.reader.next_piece()? {
                Next::NeedsInput => return Ok(()),
                Next::Piece(_, Piece::End(_)) => self.is_ended = true,
                Next::Piece(_, Piece::Aux(..) | Piece::Database(_)) => {}
                Next::Piece(_, Piece::Function(text)) => command(out, &[b"FUNCTION", b"LOAD", text]),
                Next::Piece(_, Piece::Entry(entry)) => {
                    if self.db != Some(entry.db) {
                        self.db = Some(entry.db);
                        command(out, &[b"SELECT", entry.db.to_string().as_bytes()]);
                    }
                    self.payload.clear();
                    self.payload.push(entry.kind);
                    self.payload.extend_from_slice(entry.body);
                    seal(&mut self.payload);
                    let at_ms = entry.expire_at_ms.unwrap_or(0).to_string();
                    let mut words: Vec<&[u8]> = vec![b"RESTORE", entry.key, at_ms.as_bytes(), &self.payload];
                    if entry.expire_at_ms.is_some() {
                        words.push(b"ABSTTL");
                    }
                    command(out, &words);
                }
            }
        }
        Ok(())
    }
}

/// Appends a command.
fn command(out: &mut Vec<u8>, words: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}
