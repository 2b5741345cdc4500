//! `check-aof`: checks one file of effects (commands), with the messages of redis-check-aof.

use super::checksum;
use super::reader::{Fault, Next, Reader};
use super::timestamp_of;
use super::transactions::{Found, Transactions};

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The file was read to its end or to its first error.
    Read(Analysis),
    /// The effects from this offset on were written later than the time limit.
    Later(u64),
    /// A timestamp annotation has no number.
    InvalidTimestamp,
}

/// The part of a file that is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Analysis {
    /// The error as redis-check-aof prints it. `None` in three cases, in which redis-check-aof
    /// prints no error: the file is valid; a record starts with a wrong byte; or the file is
    /// truncated before or within a number, outside of a transaction.
    pub error: Option<String>,
    /// Whether a record starts with neither `*` nor `#`.
    pub is_format_error: bool,
    /// The end of the last complete command or transaction, bytes from the start of the file.
    pub ok_up_to: u64,
    /// The number of the line where reading stopped.
    pub line: u64,
}

/// A check of a file in progress.
#[derive(Debug)]
pub struct Check {
    reader: Reader,
    transactions: Transactions,
    /// The file's name, for errors.
    name: String,
    /// Time after which effects must be removed, Unix time in s.
    until_s: Option<i64>,
    ok_up_to: u64,
    /// The offset of the last string or annotation.
    last_at: u64,
    /// The offset of the last checksum line, if no command after it has been read yet.
    group_at: Option<u64>,
}

impl Check {
    /// Starts a check of the file `name` at `offset`, the end of its RDB preamble. With `until_s`,
    /// the check stops at the first effects that were written later than this time.
    #[must_use]
    pub fn new(offset: u64, name: String, until_s: Option<i64>) -> Self {
        let (reader, transactions) = (Reader::new(offset), Transactions::default());
        Check { reader, transactions, name, until_s, ok_up_to: offset, last_at: offset, group_at: None }
    }

    /// Checks the next bytes of the file. An empty slice means the end of the file. Returns the
    /// result once it is known.
    pub fn feed(&mut self, input: &[u8]) -> Option<Outcome> {
        if input.is_empty() {
            self.reader.end_input();
        } else {
            self.reader.feed(input);
        }
        loop {
            match self.reader.next_record() {
                Ok(Next::NeedsInput) => return None,
                Ok(Next::Annotation(offset, text)) => {
                    self.last_at = offset;
                    if text.starts_with(checksum::PREFIX) {
                        self.group_at = Some(offset);
                    }
                    if let Some(until_s) = self.until_s
                        && let Some(at_s) = timestamp_of(text)
                    {
                        match at_s {
                            Err(_) => return Some(Outcome::InvalidTimestamp),
                            Ok(at_s) if at_s > until_s => {
                                // A group of effects is cut off together with its checksum.
                                return Some(Outcome::Later(self.group_at.unwrap_or(offset)));
                            }
                            Ok(_) => {}
                        }
                    }
                }
                Ok(Next::Command(offset, args)) => {
                    self.group_at = None;
                    let found = self.transactions.note(offset, args.at(0));
                    let (first_bytes, last_bytes) = (args.at(0).len(), args.at(args.len() - 1).len());
                    let header_bytes = format!("*{}\r\n${first_bytes}\r\n", args.len()).len();
                    self.last_at = self.reader.offset() - (last_bytes + b"\r\n".len()) as u64;
                    let what = match found {
                        Found::UnexpectedMulti => "MULTI",
                        Found::UnexpectedExec => "EXEC",
                        Found::Alone | Found::Start | Found::Within | Found::End => {
                            self.note_end();
                            continue;
                        }
                    };
                    return Some(
                        self.ended(
                            offset + header_bytes as u64,
                            Some(format!("Unexpected {what} in AOF {}", self.name)),
                        ),
                    );
                }
                Ok(Next::End) => {
                    self.note_end();
                    let is_open = self.transactions.open_since().is_some();
                    let error = is_open.then(|| "Reached EOF before reading EXEC for MULTI".to_owned());
                    return Some(self.ended(self.last_at, error));
                }
                Err(error) => {
                    let is_format_error = matches!(error.fault, Fault::Start(_));
                    let text = match error.fault {
                        Fault::NumberCut if self.transactions.open_since().is_some() => {
                            Some("Reached EOF before reading EXEC for MULTI".to_owned())
                        }
                        Fault::Start(_) | Fault::NumberCut => None,
                        fault => Some(fault.to_string()),
                    };
                    let Outcome::Read(analysis) = self.ended(error.offset, text) else { return None };
                    return Some(Outcome::Read(Analysis { is_format_error, ..analysis }));
                }
            }
        }
    }

    /// Marks all records so far as valid, unless a transaction is open.
    fn note_end(&mut self) {
        if self.transactions.open_since().is_none() {
            self.ok_up_to = self.reader.offset();
        }
    }

    fn ended(&self, at: u64, error: Option<String>) -> Outcome {
        Outcome::Read(Analysis {
            error: error.map(|why| format!("0x{at:16x}: {why}")),
            is_format_error: false,
            ok_up_to: self.ok_up_to,
            line: 1 + self.reader.lines(),
        })
    }
}
