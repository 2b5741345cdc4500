//! Functions as commands see them. The libraries themselves are the server's.

use std::sync::Arc;

/// A function of a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionFacts {
    /// Its name.
    pub name: Vec<u8>,
    /// What it says of itself.
    pub description: Option<Vec<u8>>,
    /// Names of its flags.
    pub flags: Vec<&'static str>,
}

/// A library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryFacts {
    /// Its name.
    pub name: Vec<u8>,
    /// Its text.
    pub text: Arc<[u8]>,
    /// What it has registered.
    pub functions: Vec<FunctionFacts>,
}

/// A function that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningFacts {
    /// Its name.
    pub name: Vec<u8>,
    /// The arguments of the command that called it, with the command's name.
    pub command: Vec<Vec<u8>>,
    /// How long it has run, ms.
    pub runs_ms: i64,
}

/// What `FUNCTION RESTORE` does with libraries that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestorePolicy {
    /// They stay, and one of the same name is an error.
    Append,
    /// Those of the same name are replaced.
    Replace,
    /// They go.
    Flush,
}

/// What commands need of the server for functions. The server implements it; tests may.
pub trait Functions {
    /// `FUNCTION LOAD`: the name of the library. The error is the whole error reply.
    fn load(&self, text: &[u8], replace: bool) -> Result<Vec<u8>, Vec<u8>>;
    /// All libraries, by name.
    fn libraries(&self) -> Vec<LibraryFacts>;
    /// How many libraries and functions there are.
    fn counts(&self) -> (usize, usize);
    /// Removes a library; `false` if there is none with this name. The error is the whole error reply.
    fn delete(&self, name: &[u8]) -> Result<bool, Vec<u8>>;
    /// Removes all libraries. The error is the whole error reply.
    fn flush(&self) -> Result<(), Vec<u8>>;
    /// Loads all of these, or none. `trouble` is what is wrong behind them: the error if they themselves are right. The error is the whole error
    /// reply.
    fn restore(&self, texts: &[Vec<u8>], trouble: Option<&str>, policy: RestorePolicy) -> Result<(), Vec<u8>>;
    /// The function that has run longest; `None`: none runs. The error is the whole error reply: a script does.
    fn running(&self) -> Result<Option<RunningFacts>, &'static str>;
    /// `FUNCTION KILL`. The error is the whole error reply.
    fn kill(&self) -> Result<(), &'static str>;
}
