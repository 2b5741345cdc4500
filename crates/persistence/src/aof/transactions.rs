//! Finds the transactions in a file. A file that ends within a transaction is cut before
//! the transaction, because a transaction is applied as a whole or not at all.

/// The relation of a command to transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A command outside of transactions.
    Alone,
    /// `MULTI`: a transaction starts.
    Start,
    /// A command of a transaction.
    Within,
    /// `EXEC`: the transaction is complete.
    End,
    /// `MULTI` within a transaction.
    UnexpectedMulti,
    /// `EXEC` outside of transactions.
    UnexpectedExec,
}

/// The transaction in progress, see the head of this module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Transactions {
    started_at: Option<u64>,
}

impl Transactions {
    /// Notes the command with this name at this offset, and returns its relation to transactions.
    pub fn note(&mut self, offset: u64, name: &[u8]) -> Found {
        let is = |word: &[u8]| name.eq_ignore_ascii_case(word);
        match self.started_at {
            None if is(b"multi") => {
                self.started_at = Some(offset);
                Found::Start
            }
            None if is(b"exec") => Found::UnexpectedExec,
            None => Found::Alone,
            Some(_) if is(b"multi") => Found::UnexpectedMulti,
            Some(_) if is(b"exec") => {
                self.started_at = None;
                Found::End
            }
            Some(_) => Found::Within,
        }
    }

    /// Returns the offset of the unfinished transaction, if any.
    #[must_use]
    pub fn open_since(&self) -> Option<u64> {
        self.started_at
    }
}
