//! Inline commands: a line of words, as typed into a terminal. `redis.conf` has the same grammar.
//!
//! Words are separated by whitespace. `"…"` supports the escapes `\n \r \t \b \a \xHH`; `\` before
//! any other byte stands for that byte. `'…'` supports only `\'`. A quote may open inside a word
//! (`a"b"` is `ab`), but only whitespace or the end of the line may follow a closing quote. A NUL
//! byte ends the line, as in C.

use crate::args::ArgRange;

/// An unclosed quote, or a closing quote followed by something other than whitespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnbalancedQuotes;

/// Appends `word` to `line` in double quotes; [`split_line`] restores the same bytes.
pub fn quote(line: &mut Vec<u8>, word: &[u8]) {
    line.push(b'"');
    for &byte in word {
        match byte {
            b'\\' | b'"' => line.extend([b'\\', byte]),
            b'\n' => line.extend(b"\\n"),
            b'\r' => line.extend(b"\\r"),
            b'\t' => line.extend(b"\\t"),
            0x07 => line.extend(b"\\a"),
            0x08 => line.extend(b"\\b"),
            b' '..=b'~' => line.push(byte),
            _ => line.extend(format!("\\x{byte:02x}").into_bytes()),
        }
    }
    line.push(b'"');
}

/// Splits `line` into words and removes quotes and escapes *in place*, which is possible because
/// unquoting never makes a word longer. Appends one range per word.
///
/// # Errors
///
/// Returns [`UnbalancedQuotes`]; `line` and `words` are then unchanged.
pub fn split_line(line: &mut [u8], words: &mut Vec<ArgRange>) -> Result<(), UnbalancedQuotes> {
    let words_before = words.len();
    // An error may be found after earlier words were unquoted. So if there are quotes, a copy is
    // kept to restore the line.
    let unchanged = line.iter().any(|byte| matches!(byte, b'"' | b'\'')).then(|| line.to_vec());
    let mut at = 0;
    loop {
        while is_space(byte_at(line, at)) {
            at += 1;
        }
        if byte_at(line, at) == 0 {
            return Ok(());
        }
        match take_word(line, at) {
            Some((len, next)) => {
                words.push(ArgRange::new(at, len));
                at = next;
            }
            None => {
                words.truncate(words_before);
                if let Some(unchanged) = unchanged {
                    line.copy_from_slice(&unchanged);
                }
                return Err(UnbalancedQuotes);
            }
        }
    }
}

/// Returns the words of `line`, split and unquoted as [`split_line`] does.
///
/// # Errors
///
/// Returns [`UnbalancedQuotes`] as [`split_line`] does.
pub fn words_of(line: &[u8]) -> Result<Vec<Vec<u8>>, UnbalancedQuotes> {
    let (mut unquoted, mut ranges) = (line.to_vec(), Vec::new());
    split_line(&mut unquoted, &mut ranges)?;
    Ok(ranges.iter().map(|range| range.of(&unquoted).to_vec()).collect())
}

/// The kind of quotes around the read position.
#[derive(Clone, Copy)]
enum Within {
    Plain,
    Double,
    Single,
}

/// Unquotes the word at `start` in place. Returns its new length and the position after the quoted
/// word, or `None` if the quotes are unbalanced.
fn take_word(line: &mut [u8], start: usize) -> Option<(usize, usize)> {
    let (mut read, mut write) = (start, start);
    let mut within = Within::Plain;
    loop {
        let byte = byte_at(line, read);
        let (literal, taken) = match (within, byte) {
            // Vertical tab and form feed are skipped between words, but don't end an unquoted word.
            (Within::Plain, b' ' | b'\n' | b'\r' | b'\t' | 0) => return Some((write - start, read)),
            (Within::Plain, b'"') => {
                within = Within::Double;
                read += 1;
                continue;
            }
            (Within::Plain, b'\'') => {
                within = Within::Single;
                read += 1;
                continue;
            }
            (Within::Double | Within::Single, 0) => return None,
            (Within::Double, b'"') | (Within::Single, b'\'') => {
                let next = byte_at(line, read + 1);
                return (next == 0 || is_space(next)).then_some((write - start, read + 1));
            }
            (Within::Double, b'\\') => escape(line, read),
            (Within::Single, b'\\') if byte_at(line, read + 1) == b'\'' => (b'\'', 2),
            _ => (byte, 1),
        };
        line[write] = literal;
        write += 1;
        read += taken;
    }
}

/// Returns the byte that the escape at `at` stands for, and the escape's length.
fn escape(line: &[u8], at: usize) -> (u8, usize) {
    let hex = |offset| char::from(byte_at(line, at + offset)).to_digit(16);
    match byte_at(line, at + 1) {
        0 => (b'\\', 1),
        b'x' => match (hex(2), hex(3)) {
            (Some(high), Some(low)) => ((high * 16 + low) as u8, 4),
            _ => (b'x', 2),
        },
        b'n' => (b'\n', 2),
        b'r' => (b'\r', 2),
        b't' => (b'\t', 2),
        b'b' => (0x08, 2),
        b'a' => (0x07, 2),
        other => (other, 2),
    }
}

/// Returns the byte at `at`, or 0 past the end.
#[inline]
fn byte_at(line: &[u8], at: usize) -> u8 {
    line.get(at).copied().unwrap_or(0)
}

/// Returns whether C's `isspace` accepts the byte.
#[inline]
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(line: &[u8]) -> Option<Vec<Vec<u8>>> {
        let before = line;
        let mut line = line.to_vec();
        let mut words = vec![ArgRange::new(0, 0)];
        let result = split_line(&mut line, &mut words);
        if result.is_err() {
            assert_eq!(words.len(), 1, "an error appended words");
            assert_eq!(line, before, "an error changed the line");
        }
        result.ok()?;
        Some(words[1..].iter().map(|word| word.of(&line).to_vec()).collect())
    }

    #[test]
    fn lines_split_as_in_redis() {
        let cases: &[(&[u8], &[&[u8]])] = &[
            (b"", &[]),
            (b"  \t\x0b ", &[]),
            (b"a  b\tc", &[b"a", b"b", b"c"]),
            (b"a\rb", &[b"a", b"b"]),
            (b"\x0ba\x0bb\x0c", &[b"a\x0bb\x0c"]),
            (b"\"\"", &[b""]),
            (b"'' \"\" x", &[b"", b"", b"x"]),
            (b"\"a\\x41\\n\\\"\\\\\\z\\xg1\\x4\" b", &[b"aA\n\"\\zxg1x4", b"b"]),
            (b"\"\\r\\t\\b\\a\"\x0bb", &[b"\r\t\x08\x07", b"b"]),
            (b"'a\\'b\\n\"'", &[b"a'b\\n\""]),
            (b"a\"b c\" d'e f'", &[b"ab c", b"de f"]),
            (b"a\\x41", &[b"a\\x41"]),
            (b"a\0b", &[b"a"]),
            (b"\"\\xfF\\x00\"", &[b"\xff\0"]),
        ];
        for (line, words) in cases {
            assert_eq!(split(line).unwrap(), *words, "{}", line.escape_ascii());
        }
    }

    #[test]
    fn unbalanced_quotes_are_errors() {
        for line in
            [&b"\""[..], b"'", b"a \"b", b"\"a\"b", b"'a'b", b"'a''b'", b"\"a\\\"", b"\"a\\", b"\"a\0\"", b"'a\\'"]
        {
            assert_eq!(split(line), None, "{}", line.escape_ascii());
        }
    }
}
