//! CRC16 (XMODEM: polynomial 0x1021, initial value 0, no reflection) and the slot of a key, as in
//! Redis Cluster.

use crate::limits::SLOTS;

const POLYNOMIAL: u16 = 0x1021;
/// Bytes per step of the main loop.
const SLICE_LEN: usize = 8;

/// `TABLES[k][b]`: the checksum of byte `b` followed by `k` zero bytes. The tables take 4 KiB,
/// which stay in the L1 cache.
static TABLES: [[u16; 256]; SLICE_LEN] = build_tables();

const fn build_tables() -> [[u16; 256]; SLICE_LEN] {
    let mut tables = [[0u16; 256]; SLICE_LEN];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 != 0 { (crc << 1) ^ POLYNOMIAL } else { crc << 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut slice = 1;
    while slice < SLICE_LEN {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[slice - 1][byte];
            tables[slice][byte] = (before << 8) ^ tables[0][(before >> 8) as usize];
            byte += 1;
        }
        slice += 1;
    }
    tables
}

/// Returns the CRC16/XMODEM of `bytes`.
///
/// Processes eight bytes per step ("slicing by eight"). The eight table reads of a step are
/// independent of each other, so a step takes about the time of two dependent reads instead of
/// eight.
#[inline]
pub fn crc16(bytes: &[u8]) -> u16 {
    let mut crc = 0u16;
    let (slices, mut rest) = bytes.as_chunks::<SLICE_LEN>();
    for slice in slices {
        crc = TABLES[7][usize::from(slice[0] ^ (crc >> 8) as u8)]
            ^ TABLES[6][usize::from(slice[1] ^ crc as u8)]
            ^ TABLES[5][usize::from(slice[2])]
            ^ TABLES[4][usize::from(slice[3])]
            ^ TABLES[3][usize::from(slice[4])]
            ^ TABLES[2][usize::from(slice[5])]
            ^ TABLES[1][usize::from(slice[6])]
            ^ TABLES[0][usize::from(slice[7])];
    }
    if let [a, b, c, d, tail @ ..] = rest {
        crc = TABLES[3][usize::from(a ^ (crc >> 8) as u8)]
            ^ TABLES[2][usize::from(b ^ crc as u8)]
            ^ TABLES[1][usize::from(*c)]
            ^ TABLES[0][usize::from(*d)];
        rest = tail;
    }
    for byte in rest {
        crc = (crc << 8) ^ TABLES[0][usize::from(byte ^ (crc >> 8) as u8)];
    }
    crc
}

/// Returns the slot of `key`, in `0..SLOTS`: the checksum of its [`hash_tag`], modulo `SLOTS`.
#[inline]
pub fn key_slot(key: &[u8]) -> u16 {
    crc16(hash_tag(key)) & (SLOTS as u16 - 1)
}

/// Returns the part of `key` that decides its slot: the bytes between the first `{` and the next
/// `}` if there are any, otherwise the whole key.
#[inline]
pub fn hash_tag(key: &[u8]) -> &[u8] {
    if !has_open_brace(key) {
        return key;
    }
    let Some(open) = key.iter().position(|&byte| byte == b'{') else {
        return key;
    };
    let inside = &key[open + 1..];
    match inside.iter().position(|&byte| byte == b'}') {
        Some(len) if len > 0 => &inside[..len],
        _ => key,
    }
}

/// Returns whether `key` contains a `{`. Reads eight bytes at a time, because every command with
/// keys calls this function and most keys have no brace.
#[inline]
fn has_open_brace(key: &[u8]) -> bool {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let (words, rest) = key.as_chunks::<8>();
    // At a brace, the byte of `differs` is zero. Subtracting one from a zero byte sets its high
    // bit.
    let in_word = |word: &[u8; 8]| {
        let differs = u64::from_le_bytes(*word) ^ (EACH * b'{' as u64);
        differs.wrapping_sub(EACH) & !differs & (EACH << 7) != 0
    };
    words.iter().any(in_word) || rest.contains(&b'{')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Computes the checksum bit by bit, from the definition.
    fn crc16_plain(bytes: &[u8]) -> u16 {
        bytes.iter().fold(0, |crc, &byte| {
            (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
                if crc & 0x8000 != 0 { (crc << 1) ^ POLYNOMIAL } else { crc << 1 }
            })
        })
    }

    #[test]
    fn check_value_of_the_standard() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(crc16(b""), 0);
    }

    #[test]
    fn slices_equal_the_definition() {
        let seed = 16;
        println!("seed {seed}");
        let mut random = Random::from_seed(seed);
        for len in 0..200 {
            for _ in 0..20 {
                let mut bytes = vec![0; len];
                random.fill(&mut bytes);
                assert_eq!(crc16(&bytes), crc16_plain(&bytes), "{bytes:?}");
            }
        }
    }

    #[test]
    fn hash_tags() {
        for (key, tag) in [
            ("foo", "foo"),
            ("{user1000}.following", "user1000"),
            ("foo{}{bar}", "foo{}{bar}"),
            ("foo{{bar}}zap", "{bar"),
            ("foo{bar}{zap}", "bar"),
            ("foo{bar", "foo{bar"),
            ("foo}bar{x}", "x"),
            ("{", "{"),
            ("{}", "{}"),
            ("}{", "}{"),
            ("", ""),
        ] {
            assert_eq!(hash_tag(key.as_bytes()), tag.as_bytes(), "{key}");
        }
    }

    #[test]
    fn a_brace_is_found_anywhere() {
        let seed = 17;
        println!("seed {seed}");
        let mut random = Random::from_seed(seed);
        for len in 0..40 {
            for _ in 0..200 {
                let mut key = vec![0; len];
                random.fill(&mut key);
                // Bytes below 128 become `z`, `{` or `|`, the brace and its neighbors. The others
                // have the high bit, which the search by words must ignore.
                key.iter_mut().filter(|byte| **byte < 128).for_each(|byte| *byte = b'z' + *byte % 3);
                assert_eq!(has_open_brace(&key), key.contains(&b'{'), "{key:?}");
            }
        }
    }

    #[test]
    fn slots_equal_those_of_redis() {
        // Expected slots from `CLUSTER KEYSLOT` of redis-server 7.0.15.
        for (key, slot) in
            [("foo", 12_182), ("bar", 5_061), ("hello", 866), ("{foo}.x", 12_182), ("", 0), ("somekey", 11_058)]
        {
            assert_eq!(key_slot(key.as_bytes()), slot, "{key}");
        }
    }
}
