//! The reader of RDB files: bytes in, pieces out.

use pantala_base::crc64::crc64;
use pantala_types::rdb_value::{self, Dialect, Extent, VERSION_NEWEST, extent};

use super::{CHECKSUM_BYTES, Entry, Error, Fault, HEADER_BYTES, MAGIC_REDIS, MAGIC_VALKEY};
use super::{VERSION_OF_VALKEY, VERSION_OLDEST, VERSION_WITH_CHECKSUM, opcode};

/// The letters of module names. A module's number encodes its name with 6 bits per letter, which
/// are an index into this list.
const MODULE_LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
/// Number of letters in a module's name.
const MODULE_NAME_LEN: usize = 9;
/// Number of the low bits of a module's number that hold the version of its encoding. The bits
/// above hold its name.
const MODULE_VERSION_BITS: u32 = 10;

/// A piece of a file.
#[derive(Clone, Copy, Debug)]
pub enum Piece<'a> {
    /// An auxiliary field: name and value.
    Aux(&'a [u8], &'a [u8]),
    /// The text of a function library.
    Function(&'a [u8]),
    /// The number of the database of the entries that follow.
    Database(u32),
    /// A key with its value.
    Entry(Entry<'a>),
    /// The end of the file. The checksum is valid, or was not to be verified. Contains the
    /// checksum: 0 if none was written (`rdbchecksum no`), `None` if the file's version has no
    /// checksums.
    End(Option<u64>),
}

/// The result of [`Reader::next_piece`].
#[derive(Clone, Copy, Debug)]
pub enum Next<'a> {
    /// A piece and its offset, bytes from the start of the file.
    Piece(u64, Piece<'a>),
    /// More input is needed ([`Reader::feed`] or [`Reader::end_input`]).
    NeedsInput,
}

/// The item that starts at the first unread byte. It borrows nothing, so that the reader can be
/// changed before the item becomes a [`Piece`].
enum Found {
    Header {
        dialect: Dialect,
        version: u32,
    },
    /// An ignored hint, or an attribute of the next entry, which is now stored.
    Nothing,
    /// Name and value, in the reader's own buffers.
    Aux,
    Function,
    Database(u32),
    Entry {
        kind: u8,
        body: std::ops::Range<usize>,
    },
    /// The end. Contains the checksum that follows, if the file's version has one.
    End(Option<u64>),
}

/// The reason why no piece was found.
enum Stop {
    /// At least this many unread bytes are needed.
    Needs(u64),
    Bad(Fault),
}

impl From<rdb_value::Error> for Stop {
    fn from(error: rdb_value::Error) -> Self {
        match error {
            rdb_value::Error::Truncated => Stop::Needs(0),
            error => Stop::Bad(error.into()),
        }
    }
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Stop::Bad(fault)
    }
}

/// Attributes in front of an entry.
#[derive(Clone, Copy, Default)]
struct Attributes {
    /// Offset of the first attribute.
    offset: Option<u64>,
    expire_at_ms: Option<i64>,
    idle_s: Option<u64>,
    frequency: Option<u8>,
}

/// A state machine that reads a file. It must not be used after an error.
pub struct Reader {
    /// Input of which the first `at` bytes are consumed.
    buffer: Vec<u8>,
    at: usize,
    /// Offset of the buffer in the file.
    base: u64,
    /// The file's length in bytes, if it is known.
    file_bytes: Option<u64>,
    is_input_over: bool,
    /// Number of unread bytes that must be present for the next attempt.
    wanted: u64,
    /// CRC64 of the part of the file that ends at `checked` in the buffer.
    checksum: u64,
    checked: usize,
    checks: bool,
    string_bytes_max: u64,
    databases: u32,
    header: Option<(Dialect, u32)>,
    db: u32,
    attributes: Attributes,
    /// Key of an entry, name of an auxiliary field, or text of a library.
    text: Vec<u8>,
    /// Value of an auxiliary field.
    other: Vec<u8>,
}

impl Reader {
    /// Returns a reader of a file of `file_bytes` bytes (if known), for a server with this many
    /// databases. A string longer than `string_bytes_max` is an error. With `checks`, the checksum
    /// must be valid (`rdbchecksum`).
    #[must_use]
    pub fn new(file_bytes: Option<u64>, databases: u32, string_bytes_max: u64, checks: bool) -> Self {
        Reader {
            buffer: Vec::new(),
            at: 0,
            base: 0,
            file_bytes,
            is_input_over: false,
            wanted: HEADER_BYTES as u64,
            checksum: 0,
            checked: 0,
            checks,
            string_bytes_max,
            databases,
            header: None,
            db: 0,
            attributes: Attributes::default(),
            text: Vec::new(),
            other: Vec::new(),
        }
    }

    /// Adds the next bytes of the file.
    ///
    /// # Errors
    /// [`Fault::OutOfMemory`].
    pub fn feed(&mut self, input: &[u8]) -> Result<(), Error> {
        self.add_to_checksum();
        self.base += self.at as u64;
        self.buffer.drain(..self.at);
        (self.at, self.checked) = (0, 0);
        self.buffer.try_reserve(input.len()).map_err(|_| self.failed(Fault::OutOfMemory))?;
        self.buffer.extend_from_slice(input);
        Ok(())
    }

    /// Notes that the file has no more bytes.
    pub fn end_input(&mut self) {
        self.is_input_over = true;
    }

    /// Returns the offset of the next piece, bytes from the start of the file.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.base + self.at as u64
    }

    /// Returns the file's dialect and version, once they have been read.
    #[must_use]
    pub fn version(&self) -> Option<(Dialect, u32)> {
        self.header
    }

    /// Reads the next piece. Must not be called after [`Piece::End`].
    ///
    /// # Errors
    /// The file is invalid at the offset of the error.
    pub fn next_piece(&mut self) -> Result<Next<'_>, Error> {
        let (found, start) = loop {
            let unread = (self.buffer.len() - self.at) as u64;
            if unread < self.wanted && !self.is_input_over {
                return Ok(Next::NeedsInput);
            }
            let start = self.at;
            match self.find() {
                Err(Stop::Bad(fault)) => return Err(self.failed(fault)),
                Err(Stop::Needs(least)) => self.want(least, unread)?,
                Ok((found, len)) => {
                    (self.at, self.wanted) = (start + len, 1);
                    if !self.take(&found)? {
                        break (found, start);
                    }
                }
            }
        };
        Ok(Next::Piece(self.base + start as u64, self.piece(found, start)))
    }

    /// Sets the number of unread bytes that must be present for the next attempt to read a piece:
    /// at least `least`. `unread` bytes are present now.
    fn want(&mut self, least: u64, unread: u64) -> Result<(), Error> {
        let left = self.file_bytes.map_or(u64::MAX, |bytes| bytes.saturating_sub(self.offset()));
        if self.is_input_over || least > left || unread >= left {
            return Err(self.failed(Fault::Truncated));
        }
        // Waits for at least twice as many bytes as now. If the reader searched for the end of a
        // long entry after each small input, reading the entry would take quadratic time.
        self.wanted = least.max(unread.saturating_mul(2)).max(unread + 1).min(left);
        Ok(())
    }

    /// Stores the found item. Returns whether it is an item for the reader itself, for which no
    /// piece is returned.
    fn take(&mut self, found: &Found) -> Result<bool, Error> {
        match *found {
            Found::Header { dialect, version } => self.header = Some((dialect, version)),
            Found::Nothing => {}
            Found::Database(db) => {
                self.db = db;
                return Ok(false);
            }
            Found::End(None) => return Ok(false),
            Found::End(Some(file)) => {
                // The checksum covers all consumed bytes except itself.
                self.at -= CHECKSUM_BYTES;
                self.add_to_checksum();
                self.at += CHECKSUM_BYTES;
                self.checked = self.at;
                if self.checks && file != 0 && file != self.checksum {
                    self.at -= CHECKSUM_BYTES;
                    return Err(self.failed(Fault::Checksum(self.checksum, file)));
                }
                return Ok(false);
            }
            Found::Aux | Found::Function | Found::Entry { .. } => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the item that was found at `start` as a piece.
    fn piece(&mut self, found: Found, start: usize) -> Piece<'_> {
        match found {
            Found::Aux => Piece::Aux(&self.text, &self.other),
            Found::Function => Piece::Function(&self.text),
            Found::Database(db) => Piece::Database(db),
            Found::Entry { kind, body } => {
                let attributes = std::mem::take(&mut self.attributes);
                Piece::Entry(Entry {
                    offset: attributes.offset.unwrap_or(self.base + start as u64),
                    db: self.db,
                    key: &self.text,
                    kind,
                    dialect: self.dialect(),
                    body_offset: self.base + body.start as u64,
                    body: &self.buffer[body],
                    expire_at_ms: attributes.expire_at_ms,
                    idle_s: attributes.idle_s,
                    frequency: attributes.frequency,
                })
            }
            // `Header` and `Nothing` never reach this method ([`Self::take`]).
            Found::End(checksum) => Piece::End(checksum),
            Found::Header { .. } | Found::Nothing => Piece::End(None),
        }
    }

    fn dialect(&self) -> Dialect {
        self.header.map_or(Dialect::Redis, |(dialect, _)| dialect)
    }

    fn failed(&self, fault: Fault) -> Error {
        let offset = match fault {
            // Truncation is reported at the offset of the first missing byte.
            Fault::Truncated => (self.base + self.buffer.len() as u64).max(self.file_bytes.unwrap_or(0)),
            _ => self.offset(),
        };
        Error { offset, fault }
    }

    fn add_to_checksum(&mut self) {
        if self.checks {
            self.checksum = crc64(self.checksum, &self.buffer[self.checked..self.at]);
        }
        self.checked = self.at;
    }

    /// Returns the item that starts at the first unread byte, and its length in bytes.
    fn find(&mut self) -> Result<(Found, usize), Stop> {
        if self.header.is_none() {
            return self.find_header();
        }
        let unread = &self.buffer[self.at..];
        let mut input = rdb_value::Reader::new(unread, self.string_bytes_max);
        let first = input.byte()?;
        let offset = self.base + self.at as u64;
        let found = match first {
            opcode::EXPIRE_MS => {
                self.attributes.expire_at_ms = Some(i64::from_le_bytes(input.array()?));
                self.attributes.offset.get_or_insert(offset);
                Found::Nothing
            }
            opcode::EXPIRE_S => {
                let at_s = i64::from(i32::from_le_bytes(input.array()?));
                self.attributes.expire_at_ms = Some(at_s * 1000);
                self.attributes.offset.get_or_insert(offset);
                Found::Nothing
            }
            opcode::IDLE => {
                self.attributes.idle_s = Some(input.length()?);
                self.attributes.offset.get_or_insert(offset);
                Found::Nothing
            }
            opcode::FREQUENCY => {
                self.attributes.frequency = Some(input.byte()?);
                self.attributes.offset.get_or_insert(offset);
                Found::Nothing
            }
            opcode::AUX => {
                copy(&mut self.text, &mut input)?;
                copy(&mut self.other, &mut input)?;
                Found::Aux
            }
            opcode::FUNCTION => {
                copy(&mut self.text, &mut input)?;
                Found::Function
            }
            opcode::FUNCTION_PRE_GA => {
                library_of_old(&mut self.text, &mut input)?;
                Found::Function
            }
            opcode::SELECT_DB => match input.length()? {
                number if number < u64::from(self.databases) => Found::Database(number as u32),
                number => return Err(Fault::Database(number).into()),
            },
            opcode::RESIZE_DB => {
                input.length()?;
                input.length()?;
                Found::Nothing
            }
            opcode::SLOT_INFO => {
                (0..3).try_for_each(|_| input.length().map(drop))?;
                Found::Nothing
            }
            opcode::SLOT_IMPORT if self.dialect() == Dialect::Valkey => {
                return Err(Fault::Corrupt("a slot is being imported").into());
            }
            opcode::MODULE_AUX => return Err(Fault::Module(module_name(input.length()?)).into()),
            opcode::END => {
                let has_checksum = self.header.is_none_or(|(_, version)| version >= VERSION_WITH_CHECKSUM);
                Found::End(if has_checksum { Some(u64::from_le_bytes(input.array()?)) } else { None })
            }
            kind => {
                copy(&mut self.text, &mut input)?;
                if kind == rdb_value::kind::MODULE {
                    return Err(Fault::Module(module_name(input.length()?)).into());
                }
                if kind == rdb_value::kind::MODULE_PRE_GA {
                    return Err(Fault::Module("of a release candidate of Redis 4.0".to_owned()).into());
                }
                let head = input.position();
                let len = match extent(kind, self.dialect(), &unread[head..], self.string_bytes_max)? {
                    Extent::Whole(len) => len,
                    Extent::AtLeast(len) => return Err(Stop::Needs(len.saturating_add(head as u64))),
                };
                let body = self.at + head..self.at + head + len;
                return Ok((Found::Entry { kind, body }, head + len));
            }
        };
        Ok((found, input.position()))
    }

    fn find_header(&self) -> Result<(Found, usize), Stop> {
        let unread = &self.buffer[self.at..];
        let Some(header) = unread.get(..HEADER_BYTES) else {
            // Fewer bytes than a header are present. If they are the start of a magic, the file may
            // be a truncated RDB file. Otherwise it is no RDB file.
            let has_started = MAGIC_REDIS.starts_with(&unread[..unread.len().min(MAGIC_REDIS.len())])
                || MAGIC_VALKEY.starts_with(&unread[..unread.len().min(MAGIC_VALKEY.len())]);
            return Err(if has_started { Stop::Needs(HEADER_BYTES as u64) } else { Fault::Signature.into() });
        };
        let (dialect, digits) = if let Some(digits) = header.strip_prefix(MAGIC_REDIS) {
            (Dialect::Redis, digits)
        } else if let Some(digits) = header.strip_prefix(MAGIC_VALKEY) {
            (Dialect::Valkey, digits)
        } else {
            return Err(Fault::Signature.into());
        };
        let text = String::from_utf8_lossy(digits);
        let version = text.bytes().all(|digit| digit.is_ascii_digit()).then(|| text.parse::<u32>().ok()).flatten();
        let is_known = |version: &u32| match dialect {
            Dialect::Redis => (VERSION_OLDEST..=u32::from(VERSION_NEWEST)).contains(version),
            Dialect::Valkey => *version == VERSION_OF_VALKEY,
        };
        let Some(version) = version.filter(is_known) else { return Err(Fault::Version(text.into_owned()).into()) };
        Ok((Found::Header { dialect, version }, HEADER_BYTES))
    }
}

/// Copies a string.
fn copy(to: &mut Vec<u8>, input: &mut rdb_value::Reader<'_>) -> Result<(), Stop> {
    let string = input.string()?;
    to.clear();
    to.try_reserve(string.len()).map_err(|_| Fault::OutOfMemory)?;
    to.extend_from_slice(&string);
    Ok(())
}

/// Converts a library of the old form to a text of the current form. In the old form, the name, the
/// engine and an optional description precede the code.
fn library_of_old(to: &mut Vec<u8>, input: &mut rdb_value::Reader<'_>) -> Result<(), Stop> {
    let (name, engine) = (input.string()?, input.string()?);
    if input.length()? > 0 {
        input.string()?;
    }
    let code = input.string()?;
    *to = [b"#!", &*engine, b" name=", &name, b"\n", &code].concat();
    Ok(())
}

/// Returns the name of a module from its number.
fn module_name(number: u64) -> String {
    let letter = |place: usize| {
        let shift = MODULE_VERSION_BITS as usize + 6 * (MODULE_NAME_LEN - 1 - place);
        char::from(MODULE_LETTERS[(number >> shift & 0x3f) as usize])
    };
    (0..MODULE_NAME_LEN).map(letter).collect()
}
