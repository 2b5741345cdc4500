//! Function libraries. All workers share one immutable table of libraries. Every change replaces
//! the whole table, so no worker sees part of a library or of a `FUNCTION RESTORE`.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use pantala_resp::words_of;

use crate::shebang::{self, Flags};

/// Error for an invalid name of a library. As in Redis, also for an invalid name of a function.
pub(crate) const WRONG_NAME: &str =
    "Library names can only contain letters, numbers, or underscores(_) and must be at least one character long";

/// Error for two functions of one library with the same name.
pub(crate) const IN_LIBRARY: &str = "Function already exists in the library";

/// A function of a library.
#[derive(Debug)]
pub struct Function {
    /// The name as registered.
    pub name: Box<[u8]>,
    /// The description given on registration.
    pub description: Option<Box<[u8]>>,
    /// The declared flags.
    pub flags: Flags,
    /// Whether the function has used undeclared keys. If so, its later calls hold all shards.
    is_wide: AtomicBool,
}

impl Function {
    pub(crate) fn new(name: &[u8], description: Option<&[u8]>, flags: Flags) -> Self {
        Function { name: name.into(), description: description.map(Box::from), flags, is_wide: AtomicBool::new(false) }
    }

    /// Returns whether the function is known to use undeclared keys.
    pub fn is_wide(&self) -> bool {
        self.is_wide.load(Relaxed)
    }

    /// Records that the function uses undeclared keys.
    pub fn set_wide(&self) {
        self.is_wide.store(true, Relaxed);
    }
}

/// A library.
#[derive(Debug)]
pub struct Library {
    /// Unique number, assigned by each load.
    pub id: u64,
    /// The name.
    pub name: Box<[u8]>,
    /// The whole text.
    pub text: Arc<[u8]>,
    /// Registered functions in order of registration, at least one.
    pub functions: Vec<Function>,
    code_from: usize,
}

impl Library {
    /// Returns the code, without the first line.
    pub fn code(&self) -> &[u8] {
        &self.text[self.code_from..]
    }

    fn bytes(&self) -> usize {
        let of = |function: &Function| {
            size_of::<Function>() + function.name.len() + function.description.as_ref().map_or(0, |text| text.len())
        };
        size_of::<Self>() + self.name.len() + self.text.len() + self.functions.iter().map(of).sum::<usize>()
    }
}

/// A parsed library whose code has not run.
#[derive(Debug)]
pub struct Draft {
    id: u64,
    name: Box<[u8]>,
    text: Arc<[u8]>,
    code_from: usize,
}

impl Draft {
    /// Parses the first line of a library.
    ///
    /// # Errors
    /// Returns the error text, without a code, if the line is invalid.
    pub fn new(text: &[u8]) -> Result<Self, Vec<u8>> {
        // Each draft has its own number, even if another draft has the same name.
        static LAST_ID: AtomicU64 = AtomicU64::new(0);
        let (name, code_from) = first_line(text)?;
        Ok(Draft { id: LAST_ID.fetch_add(1, Relaxed) + 1, name: name.into(), text: text.into(), code_from })
    }

    /// Returns the number of the library.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Returns the code.
    pub fn code(&self) -> &[u8] {
        &self.text[self.code_from..]
    }

    /// Returns the library with its registered functions.
    pub fn with(self, functions: Vec<Function>) -> Library {
        Library { id: self.id, name: self.name, text: self.text, functions, code_from: self.code_from }
    }
}

/// Returns whether a library or function may have this name.
pub(crate) fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

/// Parses the first line of a library. Returns the name and the start of the code.
fn first_line(text: &[u8]) -> Result<(Vec<u8>, usize), Vec<u8>> {
    if !text.starts_with(b"#!") {
        return Err(b"Missing library metadata".to_vec());
    }
    let invalid = || b"Invalid library metadata".to_vec();
    let line = shebang::first_line(text).ok_or_else(invalid)?;
    let words = words_of(line).map_err(|_| invalid())?;
    let mut words = words.iter().map(Vec::as_slice);
    let engine = words.next().ok_or_else(invalid)?;
    let mut name = None;
    for word in words {
        match word.split_at_checked(5) {
            Some((key, _)) if key.eq_ignore_ascii_case(b"name=") && name.is_some() => {
                return Err(b"Invalid metadata value, name argument was given multiple times".to_vec());
            }
            Some((key, value)) if key.eq_ignore_ascii_case(b"name=") => name = Some(value.to_vec()),
            _ => return Err([b"Invalid metadata value given: ", word].concat()),
        }
    }
    let name = name.ok_or_else(|| b"Library name was not given".to_vec())?;
    if !is_name(&name) {
        return Err(WRONG_NAME.as_bytes().to_vec());
    }
    let engine = engine.get(2..).unwrap_or_default();
    if !engine.eq_ignore_ascii_case(b"lua") {
        return Err([b"Engine '", engine, b"' not found"].concat());
    }
    Ok((name, line.len()))
}

/// Treatment of existing libraries when libraries are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Existing libraries stay. Adding a library with the name of an existing one is an error.
    Kept,
    /// An added library replaces the existing one with the same name.
    Replaced,
    /// All existing libraries are removed first.
    Flushed,
}

/// An immutable table of all libraries.
#[derive(Clone, Default)]
pub struct Table {
    /// Libraries by name.
    libraries: BTreeMap<Box<[u8]>, Arc<Library>>,
    /// Library and index of each function, by the function's name in lower case.
    functions: HashMap<Box<[u8]>, (Arc<Library>, usize)>,
    bytes: usize,
}

impl Table {
    /// Returns the libraries, sorted by name.
    pub fn libraries(&self) -> impl ExactSizeIterator<Item = &Arc<Library>> {
        self.libraries.values()
    }

    /// Returns the library with this name.
    pub fn library(&self, name: &[u8]) -> Option<&Arc<Library>> {
        self.libraries.get(name)
    }

    /// Returns the library and index of the function with this name. Case is ignored.
    pub fn function(&self, name: &[u8]) -> Option<(Arc<Library>, usize)> {
        self.functions.get(name.to_ascii_lowercase().as_slice()).cloned()
    }

    /// Returns the number of functions.
    pub fn functions(&self) -> usize {
        self.functions.len()
    }

    /// Returns the memory usage in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a library.
    ///
    /// # Errors
    /// Returns the error text if another library has a function with the same name.
    fn add(&mut self, library: Arc<Library>) -> Result<(), Vec<u8>> {
        for function in &library.functions {
            if self.functions.contains_key(function.name.to_ascii_lowercase().as_slice()) {
                return Err([b"Function ", &*function.name, b" already exists"].concat());
            }
        }
        for (index, function) in library.functions.iter().enumerate() {
            self.functions.insert(function.name.to_ascii_lowercase().into(), (Arc::clone(&library), index));
        }
        self.bytes += library.bytes();
        self.libraries.insert(library.name.clone(), library);
        Ok(())
    }

    /// Removes a library. Returns `false` if no library has this name.
    fn remove(&mut self, name: &[u8]) -> bool {
        let Some(library) = self.libraries.remove(name) else { return false };
        self.functions.retain(|_, (of, _)| of.id != library.id);
        self.bytes -= library.bytes();
        true
    }
}

/// All libraries of the server.
#[derive(Default)]
pub struct Libraries {
    table: RwLock<Arc<Table>>,
    /// Number of table replacements. When this number has changed, a state drops its loaded
    /// libraries that no longer exist.
    generation: AtomicU64,
    /// Held while a new table is built. The value says whether the table is final, that is, whether
    /// changes are rejected.
    changing: Mutex<bool>,
}

impl Libraries {
    /// Returns the current table.
    pub fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the number of table replacements.
    pub fn generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }

    /// Adds all of these libraries, or none.
    ///
    /// # Errors
    /// Returns the error text if a library or a function already exists. In that text, `quote` is
    /// written before and after the name of a library.
    pub fn add(&self, added: &[Arc<Library>], existing: Existing, quote: &str) -> Result<(), Vec<u8>> {
        self.change(|table| {
            if existing == Existing::Flushed {
                *table = Table::default();
            }
            for library in added {
                match existing {
                    Existing::Kept if table.library(&library.name).is_some() => {
                        return Err(already_exists(&library.name, quote));
                    }
                    Existing::Kept => {}
                    Existing::Replaced | Existing::Flushed => _ = table.remove(&library.name),
                }
            }
            added.iter().try_for_each(|library| table.add(Arc::clone(library)))
        })
    }

    /// Removes a library. Returns `false` if no library has this name.
    ///
    /// # Errors
    /// Returns the error text if the table is final.
    pub fn remove(&self, name: &[u8]) -> Result<bool, Vec<u8>> {
        let mut is_removed = false;
        self.change(|table| {
            is_removed = table.remove(name);
            Ok(())
        })?;
        Ok(is_removed)
    }

    /// Removes all libraries.
    ///
    /// # Errors
    /// Returns the error text if the table is final.
    pub fn flush(&self) -> Result<(), Vec<u8>> {
        self.change(|table| {
            *table = Table::default();
            Ok(())
        })
    }

    /// Makes the table final, so that all changes are rejected, or allows changes again. The table
    /// is final while the last snapshot is written, because that snapshot would not contain later
    /// changes.
    pub fn set_final(&self, is_final: bool) {
        *self.changing.lock().unwrap_or_else(PoisonError::into_inner) = is_final;
    }

    /// Replaces the table by a changed copy, unless the change fails or the table is final.
    fn change(&self, change: impl FnOnce(&mut Table) -> Result<(), Vec<u8>>) -> Result<(), Vec<u8>> {
        let is_final = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        if *is_final {
            return Err(b"The server is shutting down".to_vec());
        }
        let mut table = Table::clone(&self.table());
        change(&mut table)?;
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
        self.generation.fetch_add(1, Relaxed);
        Ok(())
    }
}

/// Returns the error for a name that is taken.
pub fn already_exists(name: &[u8], quote: &str) -> Vec<u8> {
    [b"Library ", quote.as_bytes(), name, quote.as_bytes(), b" already exists"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(name: &str, functions: &[&str]) -> Arc<Library> {
        let draft = Draft::new(format!("#!lua name={name}\n").as_bytes()).expect("a valid first line");
        let of = |name: &&str| Function::new(name.as_bytes(), None, Flags::empty());
        Arc::new(draft.with(functions.iter().map(of).collect()))
    }

    fn error(text: &str) -> String {
        String::from_utf8(Draft::new(text.as_bytes()).expect_err("invalid")).expect("text")
    }

    #[test]
    fn first_lines_are_parsed() {
        let draft = Draft::new(b"#!LUA  NAME=a_1 \ncode").expect("valid");
        assert_eq!((draft.name(), draft.code()), (&b"a_1"[..], &b"\ncode"[..]));
        assert_eq!(error("return 1"), "Missing library metadata");
        assert_eq!(error("#!lua name=a"), "Invalid library metadata");
        assert_eq!(error("#!lua name=a\0\n"), "Invalid library metadata");
        assert_eq!(error("#!lua \"name=a\n"), "Invalid library metadata");
        assert_eq!(error("#!lua\n"), "Library name was not given");
        assert_eq!(error("#!lua name=a name=b\n"), "Invalid metadata value, name argument was given multiple times");
        assert_eq!(error("#!lua name=a b\n"), "Invalid metadata value given: b");
        assert_eq!(error("#!js name=a\n"), "Engine 'js' not found");
        assert_eq!(error("#!lua name=\n"), WRONG_NAME);
        assert_eq!(error("#!js name=a-b\n"), WRONG_NAME);
    }

    #[test]
    fn libraries_are_added_atomically() {
        let libraries = Libraries::default();
        libraries.add(&[library("a", &["f", "g"])], Existing::Kept, "'").expect("no conflict");
        let (found, index) = libraries.table().function(b"G").expect("found ignoring case");
        assert_eq!((&*found.name, index, libraries.table().functions()), (&b"a"[..], 1, 2));
        let taken = libraries.add(&[library("b", &["h"]), library("c", &["F"])], Existing::Kept, "'");
        assert_eq!(taken, Err(b"Function F already exists".to_vec()));
        assert_eq!(
            libraries.add(&[library("a", &["h"])], Existing::Kept, "'"),
            Err(b"Library 'a' already exists".to_vec())
        );
        assert_eq!((libraries.table().libraries().len(), libraries.generation()), (1, 1));
        libraries.add(&[library("a", &["h"]), library("c", &["f"])], Existing::Replaced, "").expect("a is replaced");
        assert!(libraries.table().function(b"g").is_none());
        let table = libraries.table();
        assert_eq!([libraries.remove(b"a"), libraries.remove(b"a")], [Ok(true), Ok(false)]);
        assert!(table.function(b"h").is_some(), "a table never changes");
        libraries.add(&[library("d", &["x"])], Existing::Flushed, "").expect("no conflict");
        assert_eq!(libraries.table().libraries().len(), 1);
        libraries.flush().expect("a table that may change");
        assert_eq!((libraries.table().functions(), libraries.table().bytes()), (0, 0));
        libraries.set_final(true);
        let rejected = Err(b"The server is shutting down".to_vec());
        assert_eq!(libraries.add(&[library("e", &["y"])], Existing::Replaced, ""), rejected);
        assert_eq!((libraries.flush(), libraries.remove(b"e")), (rejected.clone(), rejected.map(|()| false)));
        libraries.set_final(false);
        libraries.add(&[library("e", &["y"])], Existing::Kept, "").expect("a table that may change again");
    }
}
