//! Libraries of functions that the server knows: shared by all workers as one table that is never changed, only replaced whole. So nobody
//! ever sees half a library, or half of what `FUNCTION RESTORE` brings.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use pantala_resp::words_of;

use crate::shebang::{self, Flags};

/// What a name that isn't one is answered: of functions too, as in Redis.
pub(crate) const WRONG_NAME: &str =
    "Library names can only contain letters, numbers, or underscores(_) and must be at least one character long";

/// What an existing function of the same library is answered.
pub(crate) const IN_LIBRARY: &str = "Function already exists in the library";

/// A function of a library.
#[derive(Debug)]
pub struct Function {
    /// Its name, as it was registered.
    pub name: Box<[u8]>,
    /// What it says of itself.
    pub description: Option<Box<[u8]>>,
    /// What it may do.
    pub flags: Flags,
    /// It was seen to use keys that it hadn't declared.
    is_wide: AtomicBool,
}

impl Function {
    pub(crate) fn new(name: &[u8], description: Option<&[u8]>, flags: Flags) -> Self {
        Function { name: name.into(), description: description.map(Box::from), flags, is_wide: AtomicBool::new(false) }
    }

    /// Whether it is known to use keys that it doesn't declare.
    pub fn is_wide(&self) -> bool {
        self.is_wide.load(Relaxed)
    }

    /// Remembers that it uses keys that it doesn't declare.
    pub fn set_wide(&self) {
        self.is_wide.store(true, Relaxed);
    }
}

/// A library.
#[derive(Debug)]
pub struct Library {
    /// Its number: no two that were ever loaded have the same.
    pub id: u64,
    /// Its name.
    pub name: Box<[u8]>,
    /// All of its text.
    pub text: Arc<[u8]>,
    /// What it has registered, in that order; at least one.
    pub functions: Vec<Function>,
    code_from: usize,
}

impl Library {
    /// Its code, without the first line.
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

/// What a library's text says before it has run.
#[derive(Debug)]
pub struct Draft {
    id: u64,
    name: Box<[u8]>,
    text: Arc<[u8]>,
    code_from: usize,
}

impl Draft {
    /// Reads the first line of a library.
    ///
    /// # Errors
    /// It isn't one: the error's text, without a code.
    pub fn new(text: &[u8]) -> Result<Self, Vec<u8>> {
        // No two drafts are the same, though two may become libraries of one name.
        static LAST_ID: AtomicU64 = AtomicU64::new(0);
        let (name, code_from) = first_line(text)?;
        Ok(Draft { id: LAST_ID.fetch_add(1, Relaxed) + 1, name: name.into(), text: text.into(), code_from })
    }

    /// Its number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Its code.
    pub fn code(&self) -> &[u8] {
        &self.text[self.code_from..]
    }

    /// The library, with what running it has registered.
    pub fn with(self, functions: Vec<Function>) -> Library {
        Library { id: self.id, name: self.name, text: self.text, functions, code_from: self.code_from }
    }
}

/// Whether a library or a function may be called so.
pub(crate) fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

/// The name in a library's first line, and where its code begins.
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

/// What becomes of libraries that are there when others are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// They stay: one of the same name is an error.
    Kept,
    /// One of the same name goes.
    Replaced,
    /// All go.
    Flushed,
}

/// All libraries at one moment.
#[derive(Clone, Default)]
pub struct Table {
    /// By name.
    libraries: BTreeMap<Box<[u8]>, Arc<Library>>,
    /// By name in lower case: the library, and which of its functions.
    functions: HashMap<Box<[u8]>, (Arc<Library>, usize)>,
    bytes: usize,
}

impl Table {
    /// The libraries, by name.
    pub fn libraries(&self) -> impl ExactSizeIterator<Item = &Arc<Library>> {
        self.libraries.values()
    }

    /// The library of that name.
    pub fn library(&self, name: &[u8]) -> Option<&Arc<Library>> {
        self.libraries.get(name)
    }

    /// The function of that name, in any case: its library, and which of its functions.
    pub fn function(&self, name: &[u8]) -> Option<(Arc<Library>, usize)> {
        self.functions.get(name.to_ascii_lowercase().as_slice()).cloned()
    }

    /// How many functions there are.
    pub fn functions(&self) -> usize {
        self.functions.len()
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a library.
    ///
    /// # Errors
    /// One of its functions is another library's: the error's text.
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

    /// Takes a library out; `false`: there is none of that name.
    fn remove(&mut self, name: &[u8]) -> bool {
        let Some(library) = self.libraries.remove(name) else { return false };
        self.functions.retain(|_, (of, _)| of.id != library.id);
        self.bytes -= library.bytes();
        true
    }
}

/// See the head of this module.
#[derive(Default)]
pub struct Libraries {
    table: RwLock<Arc<Table>>,
    /// Counts the tables that there were: a state that has loaded under another count drops what isn't there any more.
    generation: AtomicU64,
    /// Held by who makes a new table.
    changing: Mutex<()>,
}

impl Libraries {
    /// All libraries as of now.
    pub fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// How often they have changed.
    pub fn generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }

    /// Adds libraries, all or none.
    ///
    /// # Errors
    /// One of them, or a function of one, is there already: the error's text. `quote` stands around the name of a library.
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

    /// Takes a library out; `false`: there is none of that name.
    pub fn remove(&self, name: &[u8]) -> bool {
        self.change(|table| if table.remove(name) { Ok(()) } else { Err(Vec::new()) }).is_ok()
    }

    /// Takes all libraries out.
    pub fn flush(&self) {
        let _ = self.change(|table| {
            *table = Table::default();
            Ok(())
        });
    }

    /// Puts a changed table in place of the one that is there, unless the change fails.
    fn change(&self, change: impl FnOnce(&mut Table) -> Result<(), Vec<u8>>) -> Result<(), Vec<u8>> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut table = Table::clone(&self.table());
        change(&mut table)?;
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
        self.generation.fetch_add(1, Relaxed);
        Ok(())
    }
}

/// The error for a library whose name is taken.
pub fn already_exists(name: &[u8], quote: &str) -> Vec<u8> {
    [b"Library ", quote.as_bytes(), name, quote.as_bytes(), b" already exists"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(name: &str, functions: &[&str]) -> Arc<Library> {
        let draft = Draft::new(format!("#!lua name={name}\n").as_bytes()).expect("a right first line");
        let of = |name: &&str| Function::new(name.as_bytes(), None, Flags::empty());
        Arc::new(draft.with(functions.iter().map(of).collect()))
    }

    fn error(text: &str) -> String {
        String::from_utf8(Draft::new(text.as_bytes()).expect_err("wrong")).expect("text")
    }

    #[test]
    fn first_lines() {
        let draft = Draft::new(b"#!LUA  NAME=a_1 \ncode").expect("right");
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
    fn all_are_added_or_none() {
        let libraries = Libraries::default();
        libraries.add(&[library("a", &["f", "g"])], Existing::Kept, "'").expect("nothing there yet");
        let (found, index) = libraries.table().function(b"G").expect("in any case");
        assert_eq!((&*found.name, index, libraries.table().functions()), (&b"a"[..], 1, 2));
        let taken = libraries.add(&[library("b", &["h"]), library("c", &["F"])], Existing::Kept, "'");
        assert_eq!(taken, Err(b"Function F already exists".to_vec()));
        assert_eq!(
            libraries.add(&[library("a", &["h"])], Existing::Kept, "'"),
            Err(b"Library 'a' already exists".to_vec())
        );
        assert_eq!((libraries.table().libraries().len(), libraries.generation()), (1, 1));
        libraries.add(&[library("a", &["h"]), library("c", &["f"])], Existing::Replaced, "").expect("a goes");
        assert!(libraries.table().function(b"g").is_none());
        let table = libraries.table();
        assert!(libraries.remove(b"a") && !libraries.remove(b"a"));
        assert!(table.function(b"h").is_some(), "who has a table keeps it");
        libraries.add(&[library("d", &["x"])], Existing::Flushed, "").expect("nothing there");
        assert_eq!(libraries.table().libraries().len(), 1);
        libraries.flush();
        assert_eq!((libraries.table().functions(), libraries.table().bytes()), (0, 0));
    }
}
