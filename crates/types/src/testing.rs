//! Random numbers for tests: a small, seeded generator that prints its seed, so that a failure can
//! be replayed.

/// A SplitMix64 generator. `PANTALA_SEED` replays a run.
pub struct Random {
    state: u64,
}

#[allow(dead_code)] // The integration tests include this file too, and no test uses all of it.
impl Random {
    /// Returns a generator and prints its seed: the one in `PANTALA_SEED`, or a new one.
    pub fn with_printed_seed(test: &str) -> Random {
        let seed = match std::env::var("PANTALA_SEED") {
            Ok(text) => text.parse().expect("PANTALA_SEED is a number"),
            Err(_) => {
                std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_nanos()
                    as u64
            }
        };
        println!("{test}: PANTALA_SEED={seed}");
        Random { state: seed }
    }

    /// Returns the next 64 random bits.
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number in `0..bound` (with a negligible bias).
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns a number in `low..=high`.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        low.wrapping_add(self.below((high.wrapping_sub(low) as u64).saturating_add(1)) as i64)
    }

    /// Returns true once in `n` calls on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns one of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Returns `low..=high` random bytes.
    pub fn bytes(&mut self, low: usize, high: usize) -> Vec<u8> {
        let len = self.between(low as i64, high as i64);
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// Returns `low..=high` characters from `alphabet`.
    pub fn text(&mut self, alphabet: &[u8], low: usize, high: usize) -> Vec<u8> {
        let len = self.between(low as i64, high as i64);
        (0..len).map(|_| self.pick(alphabet)).collect()
    }
}

/// Returns a text that is a floating-point number or resembles one. Corner cases are frequent.
#[allow(dead_code)]
pub fn float_text(random: &mut Random) -> Vec<u8> {
    let mut text = match random.below(16) {
        0 => random.between(-1000, 1000).to_string(),
        1 => (random.next() as i64 >> random.below(64)).to_string(),
        2 => digits(random, 20) + "." + &digits(random, 25),
        3 => format!("{}e{}", digits(random, 20), random.between(-40, 40)),
        4 => format!("{}.{}e{}", digits(random, 25), digits(random, 25), random.between(-5000, 5000)),
        5 => format!(
            "{}.{}E{:+}",
            digits(random, 3),
            digits(random, 30),
            random.pick(&[4932, 4931, 4933, -4932, -4931, -4950, -4951, -4949])
        ),
        6 | 7 => binary_fraction(random),
        8 => tie(random),
        9 | 10 => hexadecimal(random),
        11 => format!("{}", f64::from_bits(random.next())),
        12 => format!("{:e}", f64::from_bits(random.next())),
        13 => format!("0.{}{}", "0".repeat(random.below(22) as usize), digits(random, 22)),
        14 if random.one_in(8) => digits(random, 600) + "." + &digits(random, 600),
        14 => random
            .pick(&[
                "inf",
                "-INF",
                "infinity",
                "+Infinity",
                "nan",
                "NaN(1)",
                "-nan",
                "infinit",
                "",
                ".",
                "e5",
                "0x",
                "0x.p1",
                "1e",
                "1e+",
                "0e999999999999",
                "0x0p-99999999999",
                "1e99999999999999999999",
                "1e-99999999999999999999",
            ])
            .to_owned(),
        _ => format!(
            "{}{}",
            digits(random, 19),
            random.pick(&["", ".", ".5", ".25", "e0", "e1", "e-1", "00000000000000000000", ".00000"])
        ),
    }
    .into_bytes();
    if random.one_in(4) {
        text.insert(0, random.pick(b"-+-- "));
    }
    if random.one_in(30) {
        let at = random.below(text.len() as u64 + 1) as usize;
        text.insert(at, random.pick(b"0123456789.eE+-xXpPabfinf \t\0_'"));
    }
    text
}

/// Returns 1 to `len_max` digits.
fn digits(random: &mut Random, len_max: usize) -> String {
    String::from_utf8(random.text(b"0123456789", 1, len_max)).expect("ASCII")
}

/// Returns a multiple of a power of two (2^-30 to 1) in decimal, with all its digits. Rounding it
/// to 17 decimals is often exact or a tie.
fn binary_fraction(random: &mut Random) -> String {
    let bits = random.below(31);
    let numerator = random.next() >> random.below(64);
    let whole = numerator >> bits;
    let mut rest = u128::from(numerator & ((1 << bits) - 1));
    let mut text = whole.to_string() + ".";
    for _ in 0..bits {
        rest *= 10;
        text += &(rest >> bits).to_string();
        rest &= (1 << bits) - 1;
    }
    text
}

/// Returns an integer halfway between two 64-bit significands, or an adjacent integer. A small
/// fraction or an exponent may follow.
fn tie(random: &mut Random) -> String {
    let shift = 1 + random.below(50);
    let half = 1u128 << (shift - 1);
    let value = (u128::from(random.next() | 1 << 63) << shift) + half;
    let beside = random.between(-1, 1);
    let text = value.wrapping_add_signed(i128::from(beside)).to_string();
    match random.below(3) {
        0 => format!("{text}.{}1", "0".repeat(random.below(40) as usize)),
        1 => format!("{text}e-{}", random.below(60)),
        _ => text,
    }
}

fn hexadecimal(random: &mut Random) -> String {
    let len_max = if random.one_in(4) { 60 } else { 18 };
    let mut hex =
        |low: usize| String::from_utf8(random.text(b"0123456789abcdefABCDEF08", low, len_max)).expect("ASCII");
    let (whole, fraction) = (hex(0), hex(0));
    let power = match random.below(4) {
        0 => String::new(),
        1 => format!("p{}", random.between(-80, 80)),
        2 => format!("P{:+}", random.between(-17_000, 17_000)),
        _ => format!("p{}", random.pick(&[-16_445, -16_446, -16_447, -16_500, 16_383, 16_384, 16_320, 16_300])),
    };
    let point = if random.one_in(3) { "" } else { "." };
    format!("{}{whole}{point}{fraction}{power}", random.pick(&["0x", "0X"]))
}
