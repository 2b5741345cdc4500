//! A `DUMP` payload: a value, followed by the RDB version and a checksum.

use pantala_base::crc64::crc64;

use super::VERSION;

/// Size of the version, in bytes.
const VERSION_BYTES: usize = 2;
/// Size of the checksum, in bytes.
const CHECKSUM_BYTES: usize = 8;

/// Appends the RDB version and the checksum to a value.
pub fn seal(payload: &mut Vec<u8>) {
    payload.extend_from_slice(&VERSION.to_le_bytes());
    let checksum = crc64(0, payload);
    payload.extend_from_slice(&checksum.to_le_bytes());
}

/// Returns whether the version is supported and the checksum is correct. With `skips_checksum`, any
/// checksum counts as correct.
#[must_use]
pub fn is_sealed(payload: &[u8], skips_checksum: bool) -> bool {
    let Some((sealed, checksum)) = payload.split_last_chunk::<CHECKSUM_BYTES>() else { return false };
    let Some((_, version)) = sealed.split_last_chunk::<VERSION_BYTES>() else { return false };
    u16::from_le_bytes(*version) <= VERSION && (skips_checksum || crc64(0, sealed) == u64::from_le_bytes(*checksum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sealed_payloads_are_accepted() {
        let mut payload = vec![0, 1, b'a'];
        seal(&mut payload);
        assert!(is_sealed(&payload, false));
        for at in 0..payload.len() {
            let mut other = payload.clone();
            other[at] ^= 1;
            assert!(!is_sealed(&other, false));
            assert!(!is_sealed(&payload[..at], false));
        }
        let mut newer = vec![0, 1, b'a', VERSION as u8 + 1, 0];
        let checksum = crc64(0, &newer);
        newer.extend_from_slice(&checksum.to_le_bytes());
        assert!(!is_sealed(&newer, true));
    }
}
