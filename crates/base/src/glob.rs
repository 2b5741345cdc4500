//! Glob patterns as Redis 7.0 matches them (`KEYS`, `SCAN … MATCH`, `CONFIG GET`, `PSUBSCRIBE`).
//!
//! | pattern | matches |
//! | --- | --- |
//! | `*` | any run of bytes, including none |
//! | `?` | one byte |
//! | `[abc]`, `[a-z]`, `[^a]` | a *class*: one byte that is listed, in the range, or not listed |
//! | `\x` | the byte `x` itself, also inside a class |
//!
//! Corner cases that clients can see are the same as in Redis:
//!
//! - An unclosed class extends to the end of the pattern.
//! - `[]` matches nothing, and `[^]` matches any byte.
//! - The bounds of a range may be in either order.
//! - Ranges compare bytes as *signed*, so `[a-\xff]` is the range from 0xff through 0 to `a`.
//! - `ignore_case` doesn't apply to an escaped byte in a class.
//! - Only the empty pattern matches the empty text; `*` does not.
//!
//! Every element but `*` matches exactly one byte, so after a mismatch it suffices to retry with
//! the *last* `*` matching one more byte. The loop therefore needs two saved positions, no
//! recursion, and at most `text × pattern` steps. (Redis recurses at each star, and stops the
//! exponential case with a flag.)
//!
//! A pattern with more than [`STARS_MAX`] stars matches nothing, as in Debian's redis-server 7.0.15
//! with the fix of CVE-2024-31228, which bounds Redis's recursion.

/// Maximum number of stars in a pattern. A run of stars counts once; a star at the end of the
/// pattern doesn't count.
pub const STARS_MAX: usize = 1000;

/// Returns whether `text` matches `pattern`. With `ignore_case`, A-Z and a-z are equal.
pub fn matches(pattern: &[u8], text: &[u8], ignore_case: bool) -> bool {
    if text.is_empty() {
        return pattern.is_empty();
    }
    let (mut p, mut t) = (0, 0);
    // The positions for a retry: just after the last star in the pattern, and the start of the text
    // against which the rest of the pattern was last tried.
    let mut retry: Option<(usize, usize)> = None;
    let mut stars = 0;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            while pattern.get(p) == Some(&b'*') {
                p += 1;
            }
            if p == pattern.len() {
                return true;
            }
            stars += 1;
            if stars > STARS_MAX {
                return false;
            }
            retry = Some((p, t));
            continue;
        }
        let step = if p < pattern.len() { match_one(&pattern[p..], text[t], ignore_case) } else { None };
        match (step, &mut retry) {
            (Some(len), _) => {
                p += len;
                t += 1;
            }
            (None, Some((after_star, from))) => {
                *from += 1;
                (p, t) = (*after_star, *from);
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

/// Matches one byte of text against the first element of `pattern`, which isn't a star. Returns the
/// length of the element if the byte matches.
#[inline]
fn match_one(pattern: &[u8], byte: u8, ignore_case: bool) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'[', ..] => match_class(pattern, byte, ignore_case),
        [b'\\', literal, ..] => equal(*literal, byte, ignore_case).then_some(2),
        [literal, ..] => equal(*literal, byte, ignore_case).then_some(1),
        [] => None,
    }
}

#[inline]
fn equal(a: u8, b: u8, ignore_case: bool) -> bool {
    a == b || (ignore_case && a.eq_ignore_ascii_case(&b))
}

/// Matches one byte against the class at the start of `pattern`. Returns the length of the class if
/// the byte matches.
fn match_class(pattern: &[u8], byte: u8, ignore_case: bool) -> Option<usize> {
    let mut at = 1;
    let negated = pattern.get(at) == Some(&b'^');
    if negated {
        at += 1;
    }
    let mut found = false;
    loop {
        match &pattern[at..] {
            [] => break,
            [b'\\', escaped, ..] => {
                found |= *escaped == byte;
                at += 2;
            }
            [b']', ..] => {
                at += 1;
                break;
            }
            [start, b'-', end, ..] => {
                found |= in_range(*start, *end, byte, ignore_case);
                at += 3;
            }
            [single, ..] => {
                found |= equal(*single, byte, ignore_case);
                at += 1;
            }
        }
    }
    (found != negated).then_some(at)
}

/// Returns whether `byte` lies between `start` and `end`, in either order, compared as C's signed
/// `char`.
fn in_range(start: u8, end: u8, byte: u8, ignore_case: bool) -> bool {
    let (start, end) = (start as i8, end as i8);
    let (low, high) = (start.min(end), start.max(end));
    if ignore_case {
        // Redis orders the bounds before it converts them to lower case: `[Z-a]` becomes the empty
        // range from z to a.
        let lower = |c: i8| (c as u8).to_ascii_lowercase() as i8;
        (lower(low)..=lower(high)).contains(&lower(byte as i8))
    } else {
        (low..=high).contains(&(byte as i8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn stars_are_bounded() {
        let text = [b'a'; 3 * STARS_MAX];
        assert!(matches(&b"*a".repeat(STARS_MAX), &text, false));
        assert!(!matches(&b"*a".repeat(STARS_MAX + 1), &text, false));
        // A run of stars counts once, and the star at the end doesn't count.
        assert!(matches(&[b"**a".repeat(STARS_MAX), b"*".to_vec()].concat(), &text, false));
    }

    #[test]
    fn documented_forms() {
        for (pattern, text, expected) in [
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h*llo", "hllo", true),
            ("h*llo", "heeeello", true),
            ("h[ae]llo", "hello", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("h[b-a]llo", "hbllo", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("*a*b*c*", "xxaxxbxxcxx", true),
            ("*a*b*c*", "xxaxxcxxbxx", false),
            ("a**", "a", true),
            ("", "", true),
            ("*", "", false),
            ("", "a", false),
            ("a", "ab", false),
            ("ab", "a", false),
            ("[", "[", false),
            ("[^", "x", true),
            ("[abc", "b", true),
            ("[]", "]", false),
            ("[^]", "x", true),
            ("[a-]", "a", true),
            ("[a-]", "-", false),
            ("[\\]]", "]", true),
            ("a\\", "a\\", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes(), false), expected, "{pattern} {text}");
        }
        assert!(matches(b"HeLLo[A-Z]", b"hEllOq", true));
        assert!(!matches(b"[\\A]", b"a", true));
        assert!(matches(b"[a-\xff]", b"\0", false));
    }

    #[test]
    fn many_stars_do_not_take_exponential_time() {
        let pattern = b"a*".repeat(STARS_MAX);
        let text = vec![b'a'; 4_000];
        let mut failing = pattern.clone();
        failing.push(b'b');
        assert!(matches(&pattern, &text, false));
        assert!(!matches(&failing, &text, false));
    }

    /// Matches by the definition: a star matches nothing, or one byte followed by the same star.
    fn plain(pattern: &[u8], text: &[u8], ignore_case: bool) -> bool {
        match (pattern, text) {
            ([], rest) => rest.is_empty(),
            ([b'*', rest @ ..], _) => {
                plain(rest, text, ignore_case) || (!text.is_empty() && plain(pattern, &text[1..], ignore_case))
            }
            (_, []) => false,
            (_, [byte, left @ ..]) => {
                match_one(pattern, *byte, ignore_case).is_some_and(|len| plain(&pattern[len..], left, ignore_case))
            }
        }
    }

    #[test]
    fn equals_the_recursive_definition() {
        let seed = 0x610b;
        println!("seed {seed}");
        let mut random = Random::from_seed(seed);
        let alphabet = b"abAB*?[]^-\\*";
        for _ in 0..300_000 {
            let mut draw = |max| -> Vec<u8> {
                let len = random.below(max);
                (0..len).map(|_| alphabet[random.below(alphabet.len() as u64) as usize]).collect()
            };
            let (pattern, text) = (draw(8), draw(7));
            for ignore_case in [false, true] {
                let expected = if text.is_empty() { pattern.is_empty() } else { plain(&pattern, &text, ignore_case) };
                assert_eq!(matches(&pattern, &text, ignore_case), expected, "{pattern:?} {text:?} {ignore_case}");
            }
        }
    }
}
