//! Numbers of the configuration: sizes with a unit, percentages, and octal numbers.

use pantala_base::number::parse_i64;
pub use pantala_base::number::parse_memory;

const KB: u64 = 1024;
const MB: u64 = 1024 * KB;
const GB: u64 = 1024 * MB;

/// Returns the number before `%`, or `None` if `text` isn't a percentage of at least 0.
pub fn parse_percent(text: &[u8]) -> Option<i64> {
    parse_i64(text.strip_suffix(b"%")?).filter(|percent| *percent >= 0)
}

/// Parses octal digits with an optional sign. As in C's `strtoll`, text without digits is zero.
pub fn parse_octal(text: &[u8]) -> Option<i128> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    let mut value = 0i128;
    for byte in digits {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 8)?;
        value = value.saturating_mul(8).saturating_add(i128::from(digit));
    }
    Some(if negative { -value } else { value })
}

/// Formats `bytes` in the largest unit that divides the number, as `CONFIG REWRITE` does.
pub fn format_memory(bytes: i128) -> String {
    for (unit, name) in [(GB, "gb"), (MB, "mb"), (KB, "kb")] {
        if bytes != 0 && bytes % i128::from(unit) == 0 {
            return format!("{}{name}", bytes / i128::from(unit));
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formatted_memory_parses_to_the_same_value() {
        for bytes in [0u64, 1, 1023, 1024, 1536, 1 << 20, 3 << 20, 1 << 30, (1 << 30) + 1024, u64::MAX] {
            assert_eq!(parse_memory(format_memory(i128::from(bytes)).as_bytes()), Some(bytes));
        }
        assert_eq!(format_memory(1 << 30), "1gb");
        assert_eq!(format_memory(1000), "1000");
    }

    #[test]
    fn octal_and_percent() {
        assert_eq!(parse_octal(b"777"), Some(0o777));
        assert_eq!(parse_octal(b"-7"), Some(-7));
        assert_eq!(parse_octal(b""), Some(0));
        assert_eq!(parse_octal(b"888"), None);
        assert_eq!(parse_octal(b"7 "), None);
        assert_eq!(parse_percent(b"5%"), Some(5));
        assert_eq!(parse_percent(b"-5%"), None);
        assert_eq!(parse_percent(b"5"), None);
        assert_eq!(parse_percent(b"%"), None);
    }
}
