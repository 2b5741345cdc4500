//! The effects of the campaign, and the check that the loaded effects equal them. The effects of a
//! unit are derived from its number and its *life* (the run of the server that has committed the
//! unit).

use pantala_base::Random;
use pantala_persistence::aof::scan::Runner;
use pantala_persistence::aof::{Found, Transactions};
use pantala_persistence::rdb::{Attributes, Next, Piece, Reader, Sink, Version, Writer};
use pantala_resp::Args;
use pantala_types::rdb_value::ValueRef;
use pantala_types::rdb_value::payload::is_sealed;

/// Start of the key of a base's first entry. It is followed by the number of the base's last unit,
/// and by that of the life that has committed this unit.
const START: &str = "start ";

/// The key of a base's last entry.
const END: &[u8] = b"end";

/// A command's key and value.
type Effect = (Vec<u8>, Vec<u8>);

/// Returns the effects of a unit. Two or more effects form a transaction. `number` is the unit's
/// number, counted from 1. `life` is the number of the server's run that has committed the unit.
fn effects(number: u64, life: u32) -> Vec<Effect> {
    let mut random = Random::from_seed(number << 32 | u64::from(life));
    let count = if random.below(5) == 0 { 2 + random.below(3) } else { 1 };
    let effect = |index| {
        let len = if random.below(12) == 0 { random.below(1500) } else { random.below(40) };
        let mut value = vec![0; len as usize];
        random.fill(&mut value);
        (format!("{number}.{index}").into_bytes(), value)
    };
    (0..count).map(effect).collect()
}

/// Appends a command.
pub fn encode(out: &mut Vec<u8>, words: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends a unit as the stream contains it. Some units contain a command that only replicas need.
pub fn encode_unit(out: &mut Vec<u8>, number: u64, life: u32) {
    let effects = effects(number, life);
    if number.is_multiple_of(7) {
        encode(out, &[b"PING"]);
    }
    if effects.len() > 1 {
        encode(out, &[b"MULTI"]);
    }
    effects.iter().for_each(|(key, value)| encode(out, &[b"SET", key, value]));
    if effects.len() > 1 {
        encode(out, &[b"EXEC"]);
    }
}

/// The value of the entry whose key has this index in the base of all units up to `number`.
fn entry(number: u64, index: u64) -> Vec<u8> {
    let mut random = Random::from_seed(number << 8 | index);
    let mut value = vec![0; random.below(200) as usize];
    random.fill(&mut value);
    value
}

/// Returns the number of entries of a base without those that mark its start and its end.
fn entries(number: u64) -> u64 {
    number * 37 % 6
}

/// The bytes of an RDB file.
#[derive(Default)]
pub struct Bytes(pub Vec<u8>);

impl Sink for Bytes {
    fn take(&mut self, chunk: &mut Vec<u8>) -> bool {
        self.0.append(chunk);
        true
    }
}

/// Returns a base that represents all units up to `number`, as an RDB file. The run `life` has
/// committed the last of these units. A base of commands is translated from this file.
pub fn base(number: u64, life: u32) -> Vec<u8> {
    let mut out = Bytes::default();
    let mut writer = Writer::new(Version::Redis7_0, false, true, &mut out);
    writer.aux(b"number", number.to_string().as_bytes());
    writer.aux(b"life", life.to_string().as_bytes());
    writer.select(0);
    let mut add = |key: &[u8], value: &[u8]| writer.entry(key, ValueRef::String(value), Attributes::default());
    add(format!("{START}{number} {life}").as_bytes(), b"");
    (0..entries(number)).for_each(|index| add(index.to_string().as_bytes(), &entry(number, index)));
    add(END, b"");
    assert!(writer.finish(), "all bytes are taken");
    out.0
}

/// Reads an RDB file. `field` is called with each auxiliary field.
///
/// # Errors
/// The file is incomplete or damaged.
pub fn read_rdb(bytes: &[u8], mut field: impl FnMut(&[u8], &[u8])) -> Result<(), String> {
    let mut reader = Reader::new(Some(bytes.len() as u64), 16, 1 << 20, true);
    let failed = |error| format!("{error}");
    reader.feed(bytes).map_err(failed)?;
    reader.end_input();
    loop {
        match reader.next_piece().map_err(failed)? {
            Next::NeedsInput => return Err("no end".to_owned()),
            Next::Piece(_, Piece::End(_)) => break,
            Next::Piece(_, Piece::Aux(name, value)) => field(name, value),
            Next::Piece(..) => {}
        }
    }
    if reader.offset() == bytes.len() as u64 { Ok(()) } else { Err("bytes after the end".to_owned()) }
}

/// The dataset that files are loaded into.
pub struct Loaded<'h> {
    /// For each unit, the life that has committed it.
    history: &'h [u32],
    /// The number of the last loaded unit.
    pub number: u64,
    /// Whether a base has started and not ended.
    pub is_in_base: bool,
    /// The number of entries of this base that have been loaded.
    entries: u64,
    transactions: Transactions,
    queued: Vec<Effect>,
}

impl<'h> Loaded<'h> {
    /// Returns an empty dataset.
    pub fn new(history: &'h [u32]) -> Self {
        Loaded {
            history,
            number: 0,
            is_in_base: false,
            entries: 0,
            transactions: Transactions::default(),
            queued: Vec::new(),
        }
    }

    /// Starts the next file.
    pub fn start_file(&mut self) {
        self.transactions = Transactions::default();
    }

    fn add(&mut self, found: &[Effect]) -> Result<(), String> {
        let Some(life) = self.history.get(self.number as usize) else {
            return Err(format!("a unit behind the last one, {}", self.number));
        };
        self.number += 1;
        if effects(self.number, *life) != found {
            let key = found[0].0.escape_ascii().to_string();
            return Err(format!("not unit {} of life {life} but {} effects from {key}", self.number, found.len()));
        }
        Ok(())
    }

    /// Loads a base that is an RDB file.
    pub fn load_rdb_base(&mut self, bytes: &[u8]) -> Result<(), String> {
        let (mut number, mut life) = (None, None);
        let note = |name: &[u8], value: &[u8]| match name {
            b"number" => number = Some(value.to_vec()),
            b"life" => life = Some(value.to_vec()),
            _ => {}
        };
        read_rdb(bytes, note)?;
        self.set_base(&number.ok_or("no number")?, &life.ok_or("no life")?)
    }

    /// Loads an entry of a base of commands.
    fn restore(&mut self, key: &[u8], payload: &[u8]) -> Result<(), String> {
        if !is_sealed(payload, false) {
            return Err("a damaged payload".to_owned());
        }
        if let Some(start) = key.strip_prefix(START.as_bytes()) {
            let mut words = start.split(|byte| *byte == b' ');
            let (number, life) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            (self.is_in_base, self.entries) = (true, 0);
            return self.set_base(number, life);
        }
        if !self.is_in_base {
            return Err(format!("an entry outside of a base: {}", key.escape_ascii()));
        }
        if key == END {
            self.is_in_base = false;
            let wanted = entries(self.number);
            return if self.entries == wanted { Ok(()) } else { Err(format!("{} of {wanted} entries", self.entries)) };
        }
        let value = entry(self.number, self.entries);
        // The value is in the payload as it is: integers and compressed strings are not random.
        if key != self.entries.to_string().as_bytes()
            || !payload.windows(value.len().max(1)).any(|part| part == value) && !value.is_empty()
        {
            return Err(format!("not entry {} of base {}", self.entries, self.number));
        }
        self.entries += 1;
        Ok(())
    }

    fn set_base(&mut self, number: &[u8], life: &[u8]) -> Result<(), String> {
        let word = |word: &[u8]| String::from_utf8_lossy(word).parse::<u64>().map_err(|_| "not a number".to_owned());
        let base_life = word(life)?;
        self.number = word(number)?;
        let right = self.number.checked_sub(1).map(|last| self.history.get(last as usize).copied());
        match right {
            Some(life) if life.map(u64::from) != Some(base_life) => Err(format!("a stale base {}", self.number)),
            _ => Ok(()),
        }
    }
}

impl Runner for Loaded<'_> {
    type Error = String;

    fn run(&mut self, offset: u64, args: &Args<'_>) -> Result<(), String> {
        let name = args.at(0);
        match self.transactions.note(offset, name) {
            Found::Alone if name == b"SELECT" => Ok(()),
            Found::Alone if name == b"RESTORE" => self.restore(args.at(1), args.at(3)),
            Found::Alone if name == b"SET" => self.add(&[(args.at(1).to_vec(), args.at(2).to_vec())]),
            Found::Start => Ok(()),
            Found::Within => {
                self.queued.push((args.at(1).to_vec(), args.at(2).to_vec()));
                Ok(())
            }
            Found::End => {
                let queued = std::mem::take(&mut self.queued);
                self.add(&queued)
            }
            _ => Err(format!("unexpected {}", name.escape_ascii())),
        }
    }

    fn open_since(&self) -> Option<u64> {
        self.transactions.open_since()
    }
}
