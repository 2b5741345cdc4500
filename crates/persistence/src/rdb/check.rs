//! Checks an RDB file for the command `check-rdb`: decodes every value and drops it.

use pantala_types::rdb_value::{Dialect, Limits};

use super::{Error, Next, Piece, Reader};

/// Counts of the part of a file that was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Keys.
    pub keys: u64,
    /// Keys with an expiry.
    pub expiring: u64,
    /// Keys whose expiry has passed.
    pub expired: u64,
    /// Libraries of functions.
    pub functions: u64,
}

/// A check of a file in progress.
pub struct Check<'f> {
    reader: Reader,
    limits: Limits,
    now_ms: i64,
    findings: Findings,
    /// Called with each line of the report and its offset in the file.
    report: &'f mut dyn FnMut(u64, &str),
}

impl<'f> Check<'f> {
    /// Starts a check of the file that `reader` reads. `now_ms` is the current Unix time. `report`
    /// is called for each auxiliary field, each database and the verdict on the checksum, with
    /// their offsets.
    pub fn new(reader: Reader, limits: Limits, now_ms: i64, report: &'f mut dyn FnMut(u64, &str)) -> Self {
        Check { reader, limits, now_ms, findings: Findings::default(), report }
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn findings(&self) -> Findings {
        self.findings
    }

    /// Returns the offset after the pieces (parts of the file, see [the parent module](super)) that
    /// were read so far. At the end, this is the offset of the end of the RDB file.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.reader.offset()
    }

    /// Returns the file's dialect and version, once they have been read.
    #[must_use]
    pub fn version(&self) -> Option<(Dialect, u32)> {
        self.reader.version()
    }

    /// Checks the next bytes of the file. An empty slice means the end of the file. Returns whether
    /// the whole file was checked.
    ///
    /// # Errors
    /// The error in the file, and its offset.
    pub fn feed(&mut self, input: &[u8]) -> Result<bool, Error> {
        if input.is_empty() {
            self.reader.end_input();
        } else {
            self.reader.feed(input)?;
        }
        loop {
            match self.reader.next_piece()? {
                Next::NeedsInput => return Ok(false),
                Next::Piece(_, Piece::End(checksum)) => {
                    let line = match checksum {
                        Some(0) => "RDB file was saved with checksum disabled: no check performed.",
                        Some(_) => "Checksum OK",
                        None => return Ok(true),
                    };
                    (self.report)(self.reader.offset(), line);
                    return Ok(true);
                }
                Next::Piece(offset, Piece::Aux(name, value)) => {
                    (self.report)(offset, &format!("AUX FIELD {} = '{}'", name.escape_ascii(), value.escape_ascii()));
                }
                Next::Piece(offset, Piece::Database(number)) => {
                    (self.report)(offset, &format!("Selecting DB ID {number}"));
                }
                Next::Piece(_, Piece::Function(_)) => self.findings.functions += 1,
                Next::Piece(_, Piece::Entry(entry)) => {
                    self.findings.keys += 1;
                    if let Some(at_ms) = entry.expire_at_ms {
                        self.findings.expiring += 1;
                        self.findings.expired += u64::from(at_ms < self.now_ms);
                    }
                    entry.decode(&self.limits, self.now_ms)?;
                }
            }
        }
    }
}
