//! Tests that compare `LongDouble` with C's `long double`, with `f64` and with itself.

use super::*;
use crate::testing::{Random, float_text};

fn parse(text: &str) -> Option<LongDouble> {
    LongDouble::parse(text.as_bytes())
}

fn human(text: &str) -> String {
    String::from_utf8(parse(text).unwrap_or_else(|| panic!("{text} is a number")).to_human()).unwrap()
}

fn sum(a: &str, b: &str) -> Option<String> {
    let sum = parse(a).unwrap().checked_add(parse(b).unwrap())?;
    Some(String::from_utf8(sum.to_human()).unwrap())
}

/// Returns the number as `significand × 2^exponent` in hexadecimal, a form that represents every
/// finite number exactly.
fn hexadecimal(number: LongDouble) -> String {
    format!("{}{:#x}p{}", if number.negative { "-" } else { "" }, number.significand, number.exponent)
}

/// The expected values come from the C compiler's `long double` and `"%.17Lf"`.
#[test]
fn known_texts() {
    for (text, expected) in [
        ("3.0", "3"),
        ("10.50", "10.5"),
        ("0.1", "0.1"),
        ("5.0e3", "5000"),
        ("-0", "0"),
        ("-1e-30", "0"),
        ("-0.5", "-0.5"),
        ("1e-17", "0.00000000000000001"),
        ("5e-18", "0"), // The nearest `LongDouble` is slightly below 5e-18, so this isn't a tie.
        ("5.01e-18", "0.00000000000000001"),
        ("4.9e-18", "0"),
        ("18446744073709551615", "18446744073709551615"),
        ("18446744073709551617", "18446744073709551616"),
        ("18446744073709551619", "18446744073709551620"),
        ("36893488147419103231", "36893488147419103232"),
        ("0x1.8p1", "3"),
        ("0X.8", "0.5"),
        ("0x8.", "8"),
        ("+0x10", "16"),
        ("1.", "1"),
        (".5", "0.5"),
        ("INF", "inf"),
        ("-iNFiNiTy", "-inf"),
        ("0e99999999999999999999", "0"),
        ("0x0p-99999999999999999999", "0"),
        ("1e30", "1000000000000000000024696061952"),
        // Ties of the seventeenth decimal round to the even digit.
        ("0.000003814697265625", "0.00000381469726562"),
        ("0.000011444091796875", "0.00001144409179688"),
        ("0.999999999999999999", "1"),
        ("9007199254740993.5", "9007199254740993.5"),
    ] {
        assert_eq!(human(text), expected, "{text}");
    }
}

#[test]
fn invalid_floats() {
    for text in [
        "",
        "+",
        "-",
        ".",
        "-.",
        "e5",
        ".e5",
        "1e",
        "1e+",
        "1e5.0",
        "1 ",
        " 1",
        "\t1",
        "1\0",
        "\0",
        "1,5",
        "1_000",
        "--1",
        "+-1",
        "0x",
        "0x.",
        "0xp1",
        "0x1p",
        "0x1p+",
        "0x1g",
        "0x1e+1",
        "nan",
        "-NaN",
        "nan(1)",
        "in",
        "infi",
        "infinit",
        "infinityy",
        "1f",
        "1L",
        "0b1",
        "1.2.3",
    ] {
        assert_eq!(parse(text), None, "{text:?}");
    }
}

#[test]
fn the_largest_number_and_one_past() {
    let largest = parse("0xf.fffffffffffffffp16380").unwrap();
    assert_eq!((largest.significand, largest.exponent), (u64::MAX, EXPONENT_MAX));
    assert_eq!(largest.to_human().len(), 4933);
    assert_eq!(LongDouble::parse(&largest.to_human()), Some(largest));
    assert_eq!(parse("1.18973149535723176502e4932").unwrap().exponent, EXPONENT_MAX);
    for text in ["0x1p16384", "0xf.fffffffffffffff8p16380", "1.19e4932", "1e4933", "1e99999999999", "0x1p99999999999"] {
        assert_eq!(parse(text), None, "{text}");
    }
    // Half a unit above the maximum rounds to infinity. Slightly less than half a unit above the
    // maximum rounds to the maximum.
    assert_eq!(parse("0xf.fffffffffffffff7fp16380"), Some(largest));
    assert_eq!(largest.checked_add(parse("0x1p16319").unwrap()), None);
    assert_eq!(largest.checked_add(parse("0x1p16318").unwrap()), Some(largest));
    assert_eq!(largest.checked_add(largest), None);
}

#[test]
fn the_smallest_number_and_one_below() {
    let smallest = parse("0x1p-16445").unwrap();
    assert_eq!((smallest.significand, smallest.exponent), (1, EXPONENT_MIN));
    assert_eq!(parse("3.6451995318824746025e-4951"), Some(smallest));
    assert_eq!(parse("1.83e-4951"), Some(smallest), "more than half rounds up");
    for text in ["0x1p-16446", "1.82e-4951", "1e-4951", "1e-99999999999", "0x1p-99999999999"] {
        assert_eq!(parse(text), None, "{text}");
    }
    assert_eq!(parse("0x1.8p-16445").unwrap().significand, 2, "a tie goes to the even one");
    // A carry leads from the largest subnormal to the smallest normal number.
    let normal = parse("0x1p-16382").unwrap();
    assert_eq!((normal.significand, normal.exponent), (1 << 63, EXPONENT_MIN));
    assert_eq!(parse("0x0.ffffffffffffffffp-16382"), Some(normal));
    assert_eq!(parse("0x0.fffffffffffffffep-16382").unwrap().checked_add(smallest), Some(normal));
}

#[test]
fn the_longest_text_and_one_past() {
    let mut text = vec![b'0'; LONG_DOUBLE_CHARS_MAX - 1];
    text[LONG_DOUBLE_CHARS_MAX - 2] = b'7';
    assert_eq!(LongDouble::parse(&text), Some(LongDouble::from(7)));
    text.insert(0, b'0');
    assert_eq!(LongDouble::parse(&text), None);
}

#[test]
fn the_last_of_many_digits_breaks_a_tie() {
    // 2^200 + 2^136 is halfway between two numbers, of which 2^200 is even.
    let (tie, above) = (
        "1606938044258990275629074378272922849168826893285325497434112",
        "1606938044258990275629074378272922849168826893285325497434113",
    );
    assert_eq!(parse(tie), parse("0x1p200"));
    assert_eq!(parse(above), parse("0x1.0000000000000002p200"));
    // 2^64 + 1, a tie, plus a last digit far behind the decimal point. Because of its decimals,
    // parsing divides by a power of five. For the integers above, it does not divide.
    let mut tie = b"18446744073709551617.".to_vec();
    tie.resize(LONG_DOUBLE_CHARS_MAX - 2, b'0');
    tie.push(b'1');
    assert_eq!(LongDouble::parse(&tie).unwrap().to_human(), b"18446744073709551618");
}

#[test]
fn sums() {
    for (a, b, expected) in [
        ("10.50", "0.1", Some("10.6")),
        ("5.0e3", "2.0e2", Some("5200")),
        ("0.1", "0.2", Some("0.3")),
        ("1", "-1", Some("0")),
        ("-0", "-0", Some("0")),
        ("9223372036854775807", "1", Some("9223372036854775808")),
        ("18446744073709551615", "0.5", Some("18446744073709551616")),
        ("18446744073709551614", "0.5", Some("18446744073709551614")),
        ("18446744073709551616", "-0.25", Some("18446744073709551616")),
        ("18446744073709551616", "-0.75", Some("18446744073709551615")),
        // Numbers near 1.5 × 2^64 differ by 2. The subtrahend, 1 + 2^-63, is slightly more than
        // half of this distance. So its bit 2^-63 decides the rounding, although the result has no
        // room for this bit.
        ("0x18000000000000000", "-0x1.0000000000000002p0", Some("27670116110564327422")),
        ("0x18000000000000000", "-1", Some("27670116110564327424")),
        ("1e4932", "1e4932", None),
        ("inf", "1", None),
        ("inf", "-inf", None),
        ("1", "-inf", None),
        ("1e30", "1e-4940", Some("1000000000000000000024696061952")),
    ] {
        assert_eq!(sum(a, b).as_deref(), expected, "{a} + {b}");
        assert_eq!(sum(b, a).as_deref(), expected, "{b} + {a}");
    }
}

#[test]
fn integers_are_exact() {
    let mut random = Random::with_printed_seed("longdouble integers");
    for _ in 0..2_000 {
        let integer = random.next() as i64 >> random.below(64);
        assert_eq!(LongDouble::from(integer).to_human(), integer.to_string().as_bytes());
        assert_eq!(parse(&integer.to_string()), Some(LongDouble::from(integer)));
    }
}

/// Parses the full decimal expansion of an `f64`, which must result in that `f64`. Compares the
/// formatted text with the standard library's, which rounds to 17 decimals too.
#[test]
fn f64_agree() {
    let mut random = Random::with_printed_seed("longdouble f64");
    for round in 0..2_000 {
        let mut number = f64::from_bits(random.next());
        if round % 2 == 0 {
            number = (random.next() >> 11) as f64 / (1u64 << random.below(64)) as f64;
        }
        if !number.is_finite() || number == 0.0 {
            continue;
        }
        let exact = parse(&format!("{number:.1080}")).unwrap();
        let scale = if exact.exponent < -1000 { (exact.exponent + 1000, -1000) } else { (0, exact.exponent) };
        let back = exact.significand as f64 * 2f64.powi(scale.1) * 2f64.powi(scale.0);
        assert_eq!(if exact.negative { -back } else { back }, number);
        let rounded = format!("{number:.17}");
        let expected = rounded.trim_end_matches('0').trim_end_matches('.');
        assert_eq!(exact.to_human(), if expected == "-0" { "0" } else { expected }.as_bytes());
    }
}

/// Every parsed number is canonical, and its hexadecimal form parses to the same number.
#[test]
fn random_texts_round_trip() {
    let mut random = Random::with_printed_seed("longdouble texts");
    let mut numbers = 0;
    for _ in 0..4_000 {
        let text = float_text(&mut random);
        let Some(number) = LongDouble::parse(&text) else {
            continue;
        };
        if number.is_infinite() {
            continue;
        }
        numbers += 1;
        assert!(number.significand >> 63 == 1 || number.exponent == EXPONENT_MIN, "{number:?}");
        assert_eq!(parse(&hexadecimal(number)), Some(number), "{number:?}");
        assert_eq!(number.checked_add(LongDouble { negative: !number.negative, ..number }), Some(LongDouble::ZERO));
    }
    assert!(numbers > 2_000, "{numbers}");
}

/// `short_decimal` and `long_decimal` agree on all numbers that `short_decimal` supports.
#[test]
fn short_and_long_paths_agree() {
    let mut random = Random::with_printed_seed("longdouble paths");
    for _ in 0..20_000 {
        let digits = random.next() >> random.below(63) | 1;
        let digits = (digits % 10u64.pow(19)).to_string().into_bytes();
        let power = random.between(-27, 27) as i32;
        let short = parse::short_decimal(false, digits.iter().copied(), power);
        assert_eq!(short, parse::long_decimal(false, digits.iter().copied(), power), "{digits:?} {power}");
    }
}

#[test]
fn seconds_convert_to_milliseconds_rounded_up() {
    let ms = |text: &str| LongDouble::parse(text.as_bytes()).unwrap().seconds_to_ms();
    assert_eq!(ms("0"), Some(0));
    assert_eq!(ms("1"), Some(1000));
    assert_eq!(ms("0.5"), Some(500));
    assert_eq!(ms("0.0001"), Some(1));
    assert_eq!(ms("1e-300"), Some(1));
    assert_eq!(ms("-0.0001"), Some(0));
    // The magnitude of the parsed number is slightly less than 0.001. The product's magnitude is
    // thus slightly less than 1, and the product rounds up to 0, as in C.
    assert_eq!(ms("-0.001"), Some(0));
    assert_eq!(ms("-0.5"), Some(-500));
    assert_eq!(ms("-7.5"), Some(-7500));
    assert_eq!(ms("1.0005"), Some(1001));
    assert_eq!(ms("9223372036854775"), Some(9_223_372_036_854_775_000));
    assert_eq!(ms("9223372036854775.807"), Some(i64::MAX));
    assert_eq!(ms("9223372036854775.808"), None);
    assert_eq!(ms("92233720368547758000"), None);
    assert_eq!(ms("inf"), None);
    assert_eq!(ms("1e4932"), None);
}
