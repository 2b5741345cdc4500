//! A file as `check-rdb` looks at it: every value is decoded and dropped.

use pantala_types::rdb_value::{Dialect, Limits};

use super::{Error, Next, Piece, Reader};

/// What a file has, as far as it was read.
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

/// Looks at a file: see the head of this module.
pub struct Check<'f> {
    reader: Reader,
    limits: Limits,
    now_ms: i64,
    findings: Findings,
    /// Told of what is found: a line each.
    tell: &'f mut dyn FnMut(u64, &str),
}

impl<'f> Check<'f> {
    /// Begins to look at what `reader` reads, at a unix time in ms. `tell` is told of auxiliary fields and databases, with
    /// their offsets.
    pub fn new(reader: Reader, limits: Limits, now_ms: i64, tell: &'f mut dyn FnMut(u64, &str)) -> Self {
        Check { reader, limits, now_ms, findings: Findings::default(), tell }
    }

    /// Returns what was found until now.
    #[must_use]
    pub fn findings(&self) -> Findings {
        self.findings
    }

    /// Returns version of the file, once that was read.
    #[must_use]
    pub fn version(&self) -> Option<(Dialect, u32)> {
        self.reader.version()
    }

    /// Takes more of the file; none: it has come to its end. Returns whether the whole file is right.
    ///
    /// # Errors
    /// It is wrong: what, and where.
    pub fn feed(&mut self, input: &[u8]) -> Result<bool, Error> {
        if input.is_empty() {
            self.reader.end_input();
        } else {
            self.reader.feed(input)?;
        }
        loop {
            match self.reader.next_piece()? {
                Next::NeedsInput => return Ok(false),
                Next::Piece(_, Piece::End) => return Ok(true),
                Next::Piece(offset, Piece::Aux(name, value)) => {
                    (self.tell)(offset, &format!("AUX FIELD {} = '{}'", name.escape_ascii(), value.escape_ascii()));
                }
                Next::Piece(offset, Piece::Database(number)) => {
                    (self.tell)(offset, &format!("Selecting DB ID {number}"));
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
