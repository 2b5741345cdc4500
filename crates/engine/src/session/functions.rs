//! Functions as commands see them. The server owns the libraries.

use std::sync::Arc;

/// A function of a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionFacts {
    /// Its name.
    pub name: Vec<u8>,
    /// Its description.
    pub description: Option<Vec<u8>>,
    /// The names of its flags.
    pub flags: Vec<&'static str>,
}

/// A library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryFacts {
    /// Its name.
    pub name: Vec<u8>,
    /// Its text.
    pub text: Arc<[u8]>,
    /// The functions it has registered.
    pub functions: Vec<FunctionFacts>,
}

/// A running function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningFacts {
    /// Its name.
    pub name: Vec<u8>,
    /// The arguments of the command that called it, with the command's name.
    pub command: Vec<Vec<u8>>,
    /// How long it has run, ms.
    pub runs_ms: i64,
}

/// How `FUNCTION RESTORE` treats existing libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestorePolicy {
    /// Keeps them; one of the same name is an error.
    Append,
    /// Replaces those of the same name.
    Replace,
    /// Deletes them.
    Flush,
}

/// What commands need of the server for functions. The server implements it; tests may.
pub trait Functions {
    /// Runs `FUNCTION LOAD`. Returns the name of the library. The error is the whole error reply.
    fn load(&self, text: &[u8], replace: bool) -> Result<Vec<u8>, Vec<u8>>;
    /// Returns all libraries, by name.
    fn libraries(&self) -> Vec<LibraryFacts>;
    /// Returns the numbers of libraries and functions.
    fn counts(&self) -> (usize, usize);
    /// Removes a library. Returns `false` if there is none with this name. The error is the whole
    /// error reply.
    fn delete(&self, name: &[u8]) -> Result<bool, Vec<u8>>;
    /// Removes all libraries. The error is the whole error reply.
    fn flush(&self) -> Result<(), Vec<u8>>;
    /// Loads all of these libraries, or none. `trouble` is an error found behind them, which is
    /// returned if the libraries themselves have none. The error is the whole error reply.
    fn restore(&self, texts: &[Vec<u8>], trouble: Option<&str>, policy: RestorePolicy) -> Result<(), Vec<u8>>;
    /// Returns the function that has run longest, or `None`. The error is the whole error reply: a
    /// script runs instead.
    fn running(&self) -> Result<Option<RunningFacts>, &'static str>;
    /// Runs `FUNCTION KILL`. The error is the whole error reply.
    fn kill(&self) -> Result<(), &'static str>;
}
