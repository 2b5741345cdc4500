//! CRC64 with Jones' polynomial: the footer of `DUMP` payloads and of RDB files.
//!
//! The CRC processes the lowest bit of each byte first ("reflected"), and starts at 0. One step
//! processes eight bytes with eight tables (16 KiB) whose reads are independent of each other.

/// Jones' polynomial, `0xad93d23594c935a9`, with its bits in reverse order.
const POLYNOMIAL_REFLECTED: u64 = 0x95ac_9329_ac4b_c9b5;

/// `TABLES[n][byte]`: the contribution of `byte` when `n` more bytes follow it in the same step.
static TABLES: [[u64; 256]; 8] = tables();

const fn tables() -> [[u64; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL_REFLECTED } else { crc >> 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut more = 1;
    while more < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[more - 1][byte];
            tables[more][byte] = tables[0][before as usize & 0xff] ^ before >> 8;
            byte += 1;
        }
        more += 1;
    }
    tables
}

/// Returns the checksum of the preceding bytes and `bytes` together. `crc` is the checksum of the
/// preceding bytes, 0 if there are none.
#[must_use]
pub fn crc64(crc: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let crc = words.iter().fold(crc, |crc, word| {
        let mixed = crc ^ u64::from_le_bytes(*word);
        let bytes = mixed.to_le_bytes();
        (0..8).fold(0, |sum, at| sum ^ TABLES[7 - at][bytes[at] as usize])
    });
    rest.iter().fold(crc, |crc, &byte| TABLES[0][(crc as u8 ^ byte) as usize] ^ crc >> 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_value() {
        assert_eq!(crc64(0, b"123456789"), 0xe9c6_d914_c4b8_d9ca);
        assert_eq!(crc64(0, b""), 0);
    }

    #[test]
    fn pieces_make_the_whole() {
        let bytes: Vec<u8> = (0..100u8).map(|n| n.wrapping_mul(37) ^ 0x5a).collect();
        let whole = bytes.iter().fold(0, |crc, &byte| crc64(crc, &[byte]));
        for cut in 0..bytes.len() {
            assert_eq!(crc64(crc64(0, &bytes[..cut]), &bytes[cut..]), whole, "cut at {cut}");
        }
    }
}
