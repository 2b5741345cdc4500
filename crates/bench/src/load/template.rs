//! Templates of requests. A template is compiled once, and then writes each request by copying
//! bytes.
//!
//! An operation is one request, or several requests separated by the word `;`. A template contains
//! the requests in RESP, with gaps for the variable parts: keys, values, TTLs and random numbers.
//!
//! Writing an argument with a key takes three copies: `$len\r\nprefix`, which depends only on the
//! number of digits of the key, then the digits, and then the rest of the argument.

use pantala_base::number::{INTEGER_LEN_MAX, digits_u64, write_u64_before};
use pantala_base::{Random, key_slot};

use super::data::Data;

/// The placeholder of a key in `--command`.
pub(crate) const KEY: &str = "__key__";
/// The placeholder that repeats the key that was written last.
pub(crate) const SAME_KEY: &str = "__same_key__";
/// The placeholder of a value in `--command`.
pub(crate) const DATA: &str = "__data__";
/// The placeholder of a TTL in seconds, which is drawn from `--expiry-range`.
pub(crate) const EXPIRY: &str = "__expiry__";
/// The placeholder of a random number from the minimum to the maximum key. The number has no
/// prefix, and does not depend on the command's key pattern.
pub(crate) const RANDOM: &str = "__random__";
/// The word that separates two requests of one operation.
pub(crate) const SEPARATOR: &str = ";";

/// The template of one command.
#[derive(Debug)]
pub(crate) struct Template {
    pieces: Vec<Piece>,
    /// Number of replies to one operation.
    pub(crate) replies: u32,
    /// Number of keys in one operation.
    pub(crate) keys: u32,
    /// Whether a null reply counts as a miss, and any other reply as a hit.
    pub(crate) reads: bool,
    /// The bytes before and after the digits of the first key in its argument. These bytes and the
    /// digits determine the slot.
    around_key: Option<(Vec<u8>, Vec<u8>)>,
}

#[derive(Debug)]
enum Piece {
    Fixed(Box<[u8]>),
    /// A key. `heads` contains, for each number of digits, the bytes before the key's digits.
    /// `tail` contains the bytes after the digits.
    Key {
        heads: Box<[Box<[u8]>; INTEGER_LEN_MAX + 1]>,
        tail: Box<[u8]>,
        /// Whether to repeat the last key instead of drawing a new one.
        is_same: bool,
    },
    Data {
        before: Box<[u8]>,
        after: Box<[u8]>,
    },
    Number {
        before: Box<[u8]>,
        after: Box<[u8]>,
        drawn: fn(&Data, &mut Random) -> u64,
    },
}

impl Template {
    /// Compiles `words`. Every `__key__` becomes `prefix` followed by a number.
    pub(crate) fn compile(words: &[Vec<u8>], prefix: &[u8]) -> Result<Self, String> {
        let mut template = Self { pieces: Vec::new(), replies: 0, keys: 0, reads: false, around_key: None };
        let mut fixed = Vec::new();
        for request in words.split(|word| word == SEPARATOR.as_bytes()) {
            let Some(name) = request.first() else { return Err("a request without a command".into()) };
            template.reads = template.replies == 0 && is_read(name);
            template.replies += 1;
            fixed.extend_from_slice(format!("*{}\r\n", request.len()).as_bytes());
            for word in request {
                template.argument(word, prefix, &mut fixed)?;
            }
        }
        if !fixed.is_empty() {
            template.pieces.push(Piece::Fixed(fixed.into()));
        }
        Ok(template)
    }

    fn argument(&mut self, word: &[u8], prefix: &[u8], fixed: &mut Vec<u8>) -> Result<(), String> {
        let found = [KEY, SAME_KEY, DATA, EXPIRY, RANDOM].map(|name| find(word, name.as_bytes()).map(|at| (name, at)));
        let mut found = found.into_iter().flatten();
        let Some((name, at)) = found.next() else {
            fixed.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            fixed.extend_from_slice(word);
            fixed.extend_from_slice(b"\r\n");
            return Ok(());
        };
        let (before, after) = (&word[..at], &word[at + name.len()..]);
        if found.next().is_some() || find(after, name.as_bytes()).is_some() {
            return Err(format!("'{}' contains more than one placeholder", word.escape_ascii()));
        }
        if !fixed.is_empty() {
            self.pieces.push(Piece::Fixed(std::mem::take(fixed).into()));
        }
        self.pieces.push(match name {
            KEY | SAME_KEY => {
                let is_same = name == SAME_KEY;
                if is_same && self.keys == 0 {
                    return Err(format!("'{}' precedes the first {KEY}", word.escape_ascii()));
                }
                self.keys += u32::from(!is_same);
                let before = [before, prefix].concat();
                self.around_key.get_or_insert_with(|| (before.clone(), after.to_vec()));
                let heads = std::array::from_fn(|digits| {
                    let mut head = format!("${}\r\n", before.len() + digits + after.len()).into_bytes();
                    head.extend_from_slice(&before);
                    head.into_boxed_slice()
                });
                Piece::Key { heads: Box::new(heads), tail: [after, b"\r\n"].concat().into(), is_same }
            }
            DATA => Piece::Data { before: before.into(), after: after.into() },
            EXPIRY => Piece::Number { before: before.into(), after: after.into(), drawn: Data::expiry },
            _ => Piece::Number { before: before.into(), after: after.into(), drawn: Data::number },
        });
        Ok(())
    }

    /// Appends the operation on `first_key`. `next_key` draws the further keys.
    #[inline]
    pub(crate) fn write(
        &self,
        out: &mut Vec<u8>,
        first_key: u64,
        random: &mut Random,
        data: &Data,
        mut next_key: impl FnMut(&mut Random) -> u64,
    ) {
        let (mut key, mut same_key) = (Some(first_key), first_key);
        for piece in &self.pieces {
            match piece {
                Piece::Fixed(bytes) => out.extend_from_slice(bytes),
                Piece::Key { heads, tail, is_same } => {
                    let number = match is_same {
                        true => same_key,
                        false => key.take().unwrap_or_else(|| next_key(random)),
                    };
                    same_key = number;
                    out.extend_from_slice(&heads[digits_u64(number)]);
                    write_number(out, number);
                    out.extend_from_slice(tail);
                }
                Piece::Data { before, after } => data.write(out, before, after, random),
                Piece::Number { before, after, drawn } => {
                    let number = drawn(data, random);
                    let len = before.len() + digits_u64(number) + after.len();
                    out.push(b'$');
                    write_number(out, len as u64);
                    out.extend_from_slice(b"\r\n");
                    out.extend_from_slice(before);
                    write_number(out, number);
                    out.extend_from_slice(after);
                    out.extend_from_slice(b"\r\n");
                }
            }
        }
    }

    /// Returns the slot of the operation on `key`, or `None` if the operation has no key. `scratch`
    /// is a reusable buffer for the key.
    pub(crate) fn slot(&self, key: u64, scratch: &mut Vec<u8>) -> Option<u16> {
        let (before, after) = self.around_key.as_ref()?;
        scratch.clear();
        scratch.extend_from_slice(before);
        write_number(scratch, key);
        scratch.extend_from_slice(after);
        Some(key_slot(scratch))
    }
}

/// Appends `number` in decimal.
#[inline]
pub(super) fn write_number(out: &mut Vec<u8>, number: u64) {
    let mut room = [0; INTEGER_LEN_MAX];
    let at = write_u64_before(&mut room, INTEGER_LEN_MAX, number);
    out.extend_from_slice(&room[at..]);
}

/// Returns the position of `name` in `text`.
pub(super) fn find(text: &[u8], name: &[u8]) -> Option<usize> {
    text.windows(name.len()).position(|window| window == name)
}

/// Returns whether a command reads one key, and replies with null if this key is missing.
fn is_read(name: &[u8]) -> bool {
    ["get", "getex", "getdel", "hget", "lindex", "zscore"].iter().any(|read| name.eq_ignore_ascii_case(read.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::data::Sizes;

    fn words(text: &str) -> Vec<Vec<u8>> {
        text.split(' ').map(|word| word.as_bytes().to_vec()).collect()
    }

    fn written(text: &str, key: u64) -> String {
        let template = Template::compile(&words(text), b"key:").unwrap();
        let mut out = Vec::new();
        let mut next = key;
        let data = Data::new(Sizes { minimum: 3, maximum: 3 }, (60, 60), (42, 42), false, 1);
        template.write(&mut out, key, &mut Random::from_seed(1), &data, |_| {
            next += 1;
            next
        });
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn requests_are_resp() {
        assert_eq!(written("GET __key__", 7), "*2\r\n$3\r\nGET\r\n$5\r\nkey:7\r\n");
        assert_eq!(written("GET __key__", 1234567), "*2\r\n$3\r\nGET\r\n$11\r\nkey:1234567\r\n");
        assert_eq!(written("SET __key__ __data__", 0), "*3\r\n$3\r\nSET\r\n$5\r\nkey:0\r\n$3\r\nxxx\r\n");
        assert_eq!(
            written("SETEX __key__ __expiry__ __data__", 12),
            "*4\r\n$5\r\nSETEX\r\n$6\r\nkey:12\r\n$2\r\n60\r\n$3\r\nxxx\r\n"
        );
        assert_eq!(written("PING", 5), "*1\r\n$4\r\nPING\r\n");
        assert_eq!(
            written("SET k-{__key__}:a <__data__>", 9),
            "*3\r\n$3\r\nSET\r\n$11\r\nk-{key:9}:a\r\n$5\r\n<xxx>\r\n"
        );
        assert_eq!(written("GET __key__", u64::MAX), "*2\r\n$3\r\nGET\r\n$24\r\nkey:18446744073709551615\r\n");
    }

    #[test]
    fn several_keys_and_requests() {
        assert_eq!(written("MGET __key__ __key__", 1), "*3\r\n$4\r\nMGET\r\n$5\r\nkey:1\r\n$5\r\nkey:2\r\n");
        let template = Template::compile(&words("MULTI ; DEL __key__ ; EXEC"), b"").unwrap();
        assert_eq!((template.replies, template.keys, template.reads), (3, 1, false));
        assert!(Template::compile(&words("get __key__"), b"").unwrap().reads);
    }

    #[test]
    fn a_key_is_written_again() {
        let zadd = "*4\r\n$4\r\nZADD\r\n$1\r\nz\r\n$5\r\nkey:7\r\n$6\r\nmkey:7\r\n";
        assert_eq!(written("ZADD z __key__ m__same_key__", 7), zadd);
        // Each placeholder repeats the key that was written last.
        let twice = written("MSET __key__ __same_key__ __key__ __same_key__", 7);
        assert_eq!(twice.matches("key:7").count(), 2, "{twice}");
        assert_eq!(twice.matches("key:8").count(), 2, "{twice}");
        let template = Template::compile(&words("ZADD z __key__ m__same_key__"), b"").unwrap();
        assert_eq!(template.keys, 1);
        assert!(Template::compile(&words("GET __same_key__"), b"").unwrap_err().contains("precedes the first"));
    }

    #[test]
    fn a_random_number_has_no_prefix() {
        let zadd = "*4\r\n$4\r\nZADD\r\n$1\r\nz\r\n$2\r\n42\r\n$6\r\nmkey:7\r\n";
        assert_eq!(written("ZADD z __random__ m__key__", 7), zadd);
        assert_eq!(written("GET <__random__07>", 7), "*2\r\n$3\r\nGET\r\n$6\r\n<4207>\r\n");
    }

    #[test]
    fn hash_tags_determine_slots() {
        let mut scratch = Vec::new();
        let plain = Template::compile(&words("GET __key__"), b"key:").unwrap();
        assert_eq!(plain.slot(5, &mut scratch), Some(key_slot(b"key:5")));
        let tagged = Template::compile(&words("GET {__key__}:x"), b"key:").unwrap();
        assert_eq!(tagged.slot(5, &mut scratch), Some(key_slot(b"key:5")));
        assert_eq!(Template::compile(&words("PING"), b"").unwrap().slot(5, &mut scratch), None);
    }

    #[test]
    fn wrong_commands_are_rejected() {
        assert!(Template::compile(&words("SET __key__ __key____data__"), b"").unwrap_err().contains("placeholder"));
        assert!(Template::compile(&words("SET __key____key__ x"), b"").unwrap_err().contains("placeholder"));
        assert!(Template::compile(&[], b"").is_err());
        assert!(Template::compile(&words("GET a ;"), b"").is_err());
    }
}
