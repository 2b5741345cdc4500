//! Functions and their libraries, as commands see them. The server owns the libraries.

use std::sync::Arc;

/// A function of a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionInfo {
    /// Name of the function.
    pub name: Vec<u8>,
    /// Description of the function.
    pub description: Option<Vec<u8>>,
    /// Names of the flags.
    pub flags: Vec<&'static str>,
}

/// A library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryInfo {
    /// Name of the library.
    pub name: Vec<u8>,
    /// Text of the library.
    pub text: Arc<[u8]>,
    /// Functions that the library has registered.
    pub functions: Vec<FunctionInfo>,
}

/// A running function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningFunction {
    /// Name of the function.
    pub name: Vec<u8>,
    /// Arguments of the command that called the function, including the command's name.
    pub command: Vec<Vec<u8>>,
    /// Time since the start of the call, ms.
    pub runs_ms: i64,
}

/// How `FUNCTION RESTORE` treats existing libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestorePolicy {
    /// Keeps all existing libraries. A restored library with the name of an existing one is an
    /// error.
    Append,
    /// Replaces existing libraries that have the name of a restored one.
    Replace,
    /// Deletes all existing libraries.
    Flush,
}

/// Permission to change the function libraries. A handler receives one within
/// [`LocalContext::change_libraries`](crate::client::LocalContext::change_libraries), after which
/// its command is propagated. So a handler cannot change the libraries without an effect:
///
/// ```compile_fail,E0061
/// use pantala_engine::client::LocalContext;
///
/// fn flush(context: &mut LocalContext<'_>) {
///     let _ = context.host.functions().flush();
/// }
/// ```
#[derive(Debug)]
pub struct LibraryChange(pub(super) ());

impl LibraryChange {
    /// Returns the permission to load libraries from a file or a primary. Such changes are not
    /// propagated.
    pub const fn loaded() -> Self {
        LibraryChange(())
    }
}

/// The server's interface for commands on functions. Implemented by the server, and by tests.
pub trait Functions {
    /// Runs `FUNCTION LOAD`. Returns the name of the library. The error is the complete error
    /// reply.
    fn load(&self, text: &[u8], replace: bool, change: &LibraryChange) -> Result<Vec<u8>, Vec<u8>>;
    /// Returns all libraries, sorted by name.
    fn libraries(&self) -> Vec<LibraryInfo>;
    /// Returns the numbers of libraries and functions.
    fn counts(&self) -> (usize, usize);
    /// Removes a library. Returns `false` if there is none with this name. The error is the
    /// complete error reply.
    fn delete(&self, name: &[u8], change: &LibraryChange) -> Result<bool, Vec<u8>>;
    /// Removes all libraries. The error is the complete error reply.
    fn flush(&self, change: &LibraryChange) -> Result<(), Vec<u8>>;
    /// Loads all these libraries, or none. The payload may be invalid after these libraries;
    /// `trouble` is then the error. Returns the error of the first library that cannot be loaded,
    /// or otherwise `trouble`. The returned error is the complete error reply.
    fn restore(
        &self,
        texts: &[Vec<u8>],
        trouble: Option<&str>,
        policy: RestorePolicy,
        change: &LibraryChange,
    ) -> Result<(), Vec<u8>>;
    /// Returns the function that has been running longest, or `None` if none is running. Returns
    /// the complete error reply if a script is running instead.
    fn running(&self) -> Result<Option<RunningFunction>, &'static str>;
    /// Runs `FUNCTION KILL`. The error is the complete error reply.
    fn kill(&self) -> Result<(), &'static str>;
}
