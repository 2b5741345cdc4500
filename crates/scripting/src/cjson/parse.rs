//! Decodes JSON to Lua values.

use pantala_base::hexadecimal::{self, Hexadecimal};

use crate::lua::{Raise, Stack};

/// A token and its position.
struct Token<'t> {
    kind: Kind<'t>,
    at: usize,
}

enum Kind<'t> {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    Text(Vec<u8>),
    Number(f64),
    Boolean(bool),
    Null,
    Colon,
    Comma,
    End,
    Error(&'t str),
}

impl Kind<'_> {
    /// Returns the name that Redis's library gives to the token.
    fn name(&self) -> &str {
        match self {
            Kind::ObjectBegin => "T_OBJ_BEGIN",
            Kind::ObjectEnd => "T_OBJ_END",
            Kind::ArrayBegin => "T_ARR_BEGIN",
            Kind::ArrayEnd => "T_ARR_END",
            Kind::Text(_) => "T_STRING",
            Kind::Number(_) => "T_NUMBER",
            Kind::Boolean(_) => "T_BOOLEAN",
            Kind::Null => "T_NULL",
            Kind::Colon => "T_COLON",
            Kind::Comma => "T_COMMA",
            Kind::End => "T_END",
            Kind::Error(why) => why,
        }
    }
}

struct Parser<'p> {
    stack: Stack<'p>,
    text: &'p [u8],
    at: usize,
    depth: i32,
    depth_max: i32,
    /// Whether to accept numbers that JSON does not allow.
    takes_invalid: bool,
}

/// Decodes a text, and pushes the value that it encodes.
pub(super) fn decode<'p>(stack: Stack<'p>, text: &'p [u8], depth_max: i32, takes_invalid: bool) -> Result<(), Raise> {
    if text.len() >= 2 && (text[0] == 0 || text[1] == 0) {
        return Err(stack.error("JSON parser does not support UTF-16 or UTF-32"));
    }
    let mut parser = Parser { stack, text, at: 0, depth: 0, depth_max, takes_invalid };
    let token = parser.next();
    parser.value(token)?;
    match parser.next() {
        Token { kind: Kind::End, .. } => Ok(()),
        token => Err(parser.unexpected("the end", &token)),
    }
}

impl Parser<'_> {
    fn unexpected(&self, wanted: &str, found: &Token<'_>) -> Raise {
        let text = format!("Expected {wanted} but found {} at character {}", found.kind.name(), found.at + 1);
        self.stack.error(&text)
    }

    fn value(&mut self, token: Token<'_>) -> Result<(), Raise> {
        if self.stack.memory().is_full() {
            return Err(self.stack.error("not enough memory"));
        }
        match token.kind {
            Kind::Text(text) => self.stack.push_bytes(&text),
            Kind::Number(number) => self.stack.push_number(number),
            Kind::Boolean(value) => self.stack.push_boolean(value),
            Kind::Null => self.stack.push_light_userdata(std::ptr::null_mut()),
            Kind::ObjectBegin => self.object()?,
            Kind::ArrayBegin => self.array()?,
            _ => return Err(self.unexpected("value", &token)),
        }
        Ok(())
    }

    fn descend(&mut self) -> Result<(), Raise> {
        self.depth += 1;
        if self.depth > self.depth_max || !self.stack.room(6) {
            let text = format!("Found too many nested data structures ({}) at character {}", self.depth, self.at);
            return Err(self.stack.error(&text));
        }
        Ok(())
    }

    fn object(&mut self) -> Result<(), Raise> {
        self.descend()?;
        self.stack.new_table(0, 0);
        let mut token = self.next();
        if matches!(token.kind, Kind::ObjectEnd) {
            self.depth -= 1;
            return Ok(());
        }
        loop {
            let Kind::Text(key) = &token.kind else { return Err(self.unexpected("object key string", &token)) };
            self.stack.push_bytes(key);
            let colon = self.next();
            if !matches!(colon.kind, Kind::Colon) {
                return Err(self.unexpected("colon", &colon));
            }
            let value = self.next();
            self.value(value)?;
            self.stack.raw_set(-3);
            let separator = self.next();
            match separator.kind {
                Kind::ObjectEnd => break,
                Kind::Comma => token = self.next(),
                _ => return Err(self.unexpected("comma or object end", &separator)),
            }
        }
        self.depth -= 1;
        Ok(())
    }

    fn array(&mut self) -> Result<(), Raise> {
        self.descend()?;
        self.stack.new_table(0, 0);
        let mut token = self.next();
        if matches!(token.kind, Kind::ArrayEnd) {
            self.depth -= 1;
            return Ok(());
        }
        for index in 1.. {
            self.value(token)?;
            self.stack.set_raw_element(-2, index);
            let separator = self.next();
            match separator.kind {
                Kind::ArrayEnd => break,
                Kind::Comma => token = self.next(),
                _ => return Err(self.unexpected("comma or array end", &separator)),
            }
        }
        self.depth -= 1;
        Ok(())
    }

    fn peek(&self, ahead: usize) -> u8 {
        self.text.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn next(&mut self) -> Token<'static> {
        while matches!(self.peek(0), b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
        let at = self.at;
        let one = |parser: &mut Self, kind| {
            parser.at += 1;
            kind
        };
        let kind = match self.peek(0) {
            b'{' => one(self, Kind::ObjectBegin),
            b'}' => one(self, Kind::ObjectEnd),
            b'[' => one(self, Kind::ArrayBegin),
            b']' => one(self, Kind::ArrayEnd),
            b',' => one(self, Kind::Comma),
            b':' => one(self, Kind::Colon),
            b'"' => return self.string(),
            b'-' | b'0'..=b'9' => {
                if !self.takes_invalid && self.is_invalid_number() {
                    Kind::Error("invalid number")
                } else {
                    self.number()
                }
            }
            // As in C, a NUL byte ends the text.
            0 => Kind::End,
            _ if self.word(b"true") => Kind::Boolean(true),
            _ if self.word(b"false") => Kind::Boolean(false),
            _ if self.word(b"null") => Kind::Null,
            b'+' | b'i' | b'I' | b'n' | b'N' if self.takes_invalid && self.is_invalid_number() => self.number(),
            _ => Kind::Error("invalid token"),
        };
        Token { kind, at }
    }

    fn word(&mut self, word: &[u8]) -> bool {
        let is_it = self.text[self.at..].starts_with(word);
        if is_it {
            self.at += word.len();
        }
        is_it
    }

    /// Returns whether the text continues with a number that C accepts and JSON does not.
    fn is_invalid_number(&self) -> bool {
        if self.peek(0) == b'+' {
            return true;
        }
        let sign = usize::from(self.peek(0) == b'-');
        let (first, second) = (self.peek(sign), self.peek(sign + 1).to_ascii_lowercase());
        match first {
            b'0' => second == b'x' || second.is_ascii_digit(),
            b'1'..=b'9' => false,
            _ => {
                let rest = &self.text[self.at + sign..];
                rest.len() >= 3 && [&b"inf"[..], b"nan"].iter().any(|word| rest[..3].eq_ignore_ascii_case(word))
            }
        }
    }

    /// Parses a number as C's `strtod` does.
    fn number(&mut self) -> Kind<'static> {
        let rest = &self.text[self.at..];
        match strtod(rest) {
            Some((number, len)) => {
                self.at += len;
                Kind::Number(number)
            }
            None => Kind::Error("invalid number"),
        }
    }

    fn string(&mut self) -> Token<'static> {
        let begin = self.at;
        self.at += 1;
        let mut text = Vec::new();
        loop {
            let at = self.at;
            let Some(&byte @ 1..) = self.text.get(at) else {
                return Token { kind: Kind::Error("unexpected end of string"), at };
            };
            self.at += 1;
            match byte {
                b'"' => return Token { kind: Kind::Text(text), at: begin },
                b'\\' => {
                    let escaped = match self.peek(0) {
                        b'"' => b'"',
                        b'\\' => b'\\',
                        b'/' => b'/',
                        b'b' => 0x08,
                        b't' => b'\t',
                        b'n' => b'\n',
                        b'f' => 0x0c,
                        b'r' => b'\r',
                        b'u' => {
                            let Some(len) = self.unicode(&mut text) else {
                                return Token { kind: Kind::Error("invalid unicode escape code"), at };
                            };
                            self.at += len;
                            continue;
                        }
                        _ => return Token { kind: Kind::Error("invalid escape code"), at },
                    };
                    text.push(escaped);
                    self.at += 1;
                }
                _ => text.push(byte),
            }
        }
    }

    /// Parses the four hexadecimal digits at `at`.
    fn code_unit(&self, at: usize) -> Option<u32> {
        let digits = self.text.get(at..at + 4)?;
        digits.iter().try_fold(0, |code, &digit| Some(code << 4 | char::from(digit).to_digit(16)?))
    }

    /// Parses a code point and appends it to `text`. The code point is written as `\uXXXX`, or as a
    /// surrogate pair of two such escapes. Returns the length after the backslash, or `None` if the
    /// escape is invalid.
    fn unicode(&self, text: &mut Vec<u8>) -> Option<usize> {
        let (mut code, mut len) = (self.code_unit(self.at + 1)?, 5);
        if code & 0xf800 == 0xd800 {
            let is_pair = code & 0x400 == 0 && self.text.get(self.at + 5..self.at + 7) == Some(b"\\u");
            let low = if is_pair { self.code_unit(self.at + 7)? } else { 0 };
            if low & 0xfc00 != 0xdc00 {
                return None;
            }
            code = ((code & 0x3ff) << 10 | low & 0x3ff) + 0x1_0000;
            len = 11;
        }
        let mut room = [0; 4];
        text.extend_from_slice(char::from_u32(code)?.encode_utf8(&mut room).as_bytes());
        Some(len)
    }
}

/// Parses the number at the start of a text: decimal, hexadecimal, `inf` or `nan`. Returns the
/// number and the length of its text.
fn strtod(text: &[u8]) -> Option<(f64, usize)> {
    let is_negative = text.first() == Some(&b'-');
    let sign = usize::from(is_negative || text.first() == Some(&b'+'));
    let rest = &text[sign..];
    let signed = |number: f64| if is_negative { -number } else { number };
    let begins = |word: &[u8]| rest.len() >= word.len() && rest[..word.len()].eq_ignore_ascii_case(word);
    if begins(b"infinity") {
        return Some((signed(f64::INFINITY), sign + 8));
    }
    if begins(b"inf") {
        return Some((signed(f64::INFINITY), sign + 3));
    }
    if begins(b"nan") {
        return Some((signed(f64::NAN), sign + 3 + remark_len(&rest[3..])));
    }
    if begins(b"0x")
        && let Some(Hexadecimal { value, len, .. }) = hexadecimal::read(&rest[2..])
    {
        return Some((signed(value), sign + 2 + len));
    }
    let digits_at = |at: usize| rest.get(at..).map_or(0, |rest| rest.iter().take_while(|b| b.is_ascii_digit()).count());
    let whole = digits_at(0);
    let mut len = whole;
    let mut decimals = 0;
    if rest.get(len) == Some(&b'.') {
        decimals = digits_at(len + 1);
        if whole + decimals > 0 {
            len += 1 + decimals;
        }
    }
    if whole + decimals == 0 {
        return None;
    }
    if matches!(rest.get(len), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(rest.get(len + 1), Some(b'+' | b'-')));
        let digits = digits_at(len + 1 + sign);
        if digits > 0 {
            len += 1 + sign + digits;
        }
    }
    let number = std::str::from_utf8(&rest[..len]).ok()?.parse().ok()?;
    Some((signed(number), sign + len))
}

/// Returns the length of the suffix after `nan`: letters, digits and underscores in parentheses.
fn remark_len(text: &[u8]) -> usize {
    let Some(inside) = text.strip_prefix(b"(") else { return 0 };
    let len = inside.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
    if inside.get(len) == Some(&b')') { len + 2 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::strtod;

    #[test]
    fn numbers_parse_as_by_strtod() {
        for (text, number, len) in [
            ("-0x1p3", -8.0, 6),
            ("0X1.8P+1,", 3.0, 8),
            ("0x1p-", 1.0, 3),
            ("0xp1", 0.0, 1),
            ("0x.p1", 0.0, 1),
            ("0x1p99999999999999999999", f64::INFINITY, 24),
            ("0x1.7fffffffffffffffp-1074", f64::from_bits(1), 26),
        ] {
            assert_eq!(strtod(text.as_bytes()), Some((number, len)), "{text}");
        }
    }
}
