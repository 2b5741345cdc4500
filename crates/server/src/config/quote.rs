//! Splits a configuration line into words with Redis's quotes and escapes, and quotes words.

pub use pantala_resp::quote;
use pantala_resp::words_of;

/// Splits `line` into words. Returns `None` if a quote isn't closed, or if the closing quote isn't
/// followed by white space. The grammar is that of inline commands: see
/// [`pantala_resp::split_line`].
pub fn split(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    words_of(line).ok()
}

/// Returns `line` without the white space that Redis trims from both ends of a line.
pub fn trim(line: &[u8]) -> &[u8] {
    let kept = |byte: &u8| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
    let start = line.iter().position(kept).unwrap_or(line.len());
    let end = line.iter().rposition(kept).map_or(start, |last| last + 1);
    &line[start..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use pantala_base::random::Random;

    fn words(line: &str) -> Option<Vec<String>> {
        Some(split(line.as_bytes())?.into_iter().map(|word| String::from_utf8_lossy(&word).into_owned()).collect())
    }

    #[test]
    fn words_quotes_and_escapes() {
        for (line, expected) in [
            ("", Some(vec![])),
            (" \t ", Some(vec![])),
            ("port 6379", Some(vec!["port", "6379"])),
            ("a  b\tc", Some(vec!["a", "b", "c"])),
            (r#"save """#, Some(vec!["save", ""])),
            (r#"a "b c" 'd e'"#, Some(vec!["a", "b c", "d e"])),
            (r#"a"b c""#, Some(vec!["ab c"])),
            (r#""\x41\n\"\q""#, Some(vec!["A\n\"q"])),
            (r#""\x4g""#, Some(vec!["x4g"])),
            (r#"'it\'s' '\n'"#, Some(vec!["it's", "\\n"])),
            (r#"a "b"#, None),
            (r#"a "b\"#, None),
            ("a 'b", None),
            (r#""a"b"#, None),
            (r#"'a'b"#, None),
            (r#"""""#, None),
        ] {
            let expected: Option<Vec<String>> =
                expected.map(|list: Vec<&str>| list.into_iter().map(String::from).collect());
            assert_eq!(words(line), expected, "{line}");
        }
    }

    #[test]
    fn quoting_round_trips() {
        let seed = 0x7175_6f74;
        println!("seed {seed}");
        let mut random = Random::from_seed(seed);
        for _ in 0..2_000 {
            let list: Vec<Vec<u8>> =
                (0..random.below(4)).map(|_| (0..random.below(9)).map(|_| random.next_u64() as u8).collect()).collect();
            let mut line = Vec::new();
            for word in &list {
                quote(&mut line, word);
                line.push(b' ');
            }
            assert_eq!(split(&line), Some(list), "{line:?}");
        }
    }

    #[test]
    fn trimming_keeps_inner_space() {
        assert_eq!(trim(b" \t a b\r\n"), b"a b");
        assert_eq!(trim(b" \r"), b"");
    }
}
