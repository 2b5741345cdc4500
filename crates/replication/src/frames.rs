//! Compressed flows: a flow's bytes in frames, each of which is compressed on its own.
//!
//! ```text
//! length in the frame    4 bytes, little-endian
//! length of the bytes    4 bytes, little-endian; the same length means that they aren't compressed
//! the bytes              an LZ4 block, or the bytes themselves
//! ```

use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};

/// Maximum number of bytes of a frame, before compression.
const FRAME_BYTES_MAX: usize = 64 * 1024;

/// Bytes of the two lengths.
const HEADER_BYTES: usize = 8;

/// Returns bytes of a flow in frames.
#[must_use]
pub fn to_frames(bytes: &[u8]) -> Vec<u8> {
    let mut frames = Vec::with_capacity(bytes.len() / 2 + HEADER_BYTES);
    for chunk in bytes.chunks(FRAME_BYTES_MAX) {
        let start = frames.len() + HEADER_BYTES;
        frames.resize(start + get_maximum_output_size(chunk.len()), 0);
        let len = match compress_into(chunk, &mut frames[start..]) {
            Ok(len) if len < chunk.len() => len,
            _ => {
                frames[start..start + chunk.len()].copy_from_slice(chunk);
                chunk.len()
            }
        };
        frames.truncate(start + len);
        frames[start - HEADER_BYTES..start - 4].copy_from_slice(&(len as u32).to_le_bytes());
        frames[start - 4..start].copy_from_slice(&(chunk.len() as u32).to_le_bytes());
    }
    frames
}

/// Reads the bytes of a flow from its frames.
#[derive(Debug, Default)]
pub struct FrameReader {
    /// The start of a frame whose end hasn't been received.
    pending: Vec<u8>,
}

impl FrameReader {
    /// Appends the bytes of all complete frames to `into`.
    ///
    /// # Errors
    /// A frame is invalid. Returns the reason for the log.
    pub fn feed(&mut self, received: &[u8], into: &mut Vec<u8>) -> Result<(), String> {
        self.pending.extend_from_slice(received);
        let mut at = 0;
        while let Some((header, rest)) = self.pending[at..].split_first_chunk::<HEADER_BYTES>() {
            let length = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| header[at + byte])) as usize;
            let (len, bytes) = (length(0), length(4));
            // A compressed frame is never longer than its bytes.
            if len == 0 || len > bytes || bytes > FRAME_BYTES_MAX {
                return Err(format!("a compressed frame of {len} bytes for {bytes} bytes"));
            }
            let Some(data) = rest.get(..len) else { break };
            let start = into.len();
            into.resize(start + bytes, 0);
            if len == bytes {
                into[start..].copy_from_slice(data);
            } else {
                let read = decompress_into(data, &mut into[start..]).map_err(|error| error.to_string())?;
                if read != bytes {
                    return Err(format!("a compressed frame has {read} bytes instead of {bytes}"));
                }
            }
            at += HEADER_BYTES + len;
        }
        self.pending.drain(..at);
        Ok(())
    }

    /// Returns whether the last frame is complete.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        self.pending.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use pantala_base::Random;

    use super::*;

    fn read(frames: &[u8], piece: usize) -> Result<(Vec<u8>, bool), String> {
        let (mut reader, mut into) = (FrameReader::default(), Vec::new());
        for part in frames.chunks(piece) {
            reader.feed(part, &mut into)?;
        }
        Ok((into, reader.is_at_end()))
    }

    #[test]
    fn frames_return_their_bytes() {
        let mut random = Random::from_seed(1);
        let noise: Vec<u8> = (0..3 * FRAME_BYTES_MAX + 17).map(|_| random.next_u64() as u8).collect();
        let text = b"key:1 value key:2 value ".repeat(20_000);
        for bytes in [&[][..], b"x", &text, &noise, &noise[..FRAME_BYTES_MAX], &text[..FRAME_BYTES_MAX + 1]] {
            let frames = to_frames(bytes);
            for piece in [1013, 1 << 20] {
                assert_eq!(read(&frames, piece), Ok((bytes.to_vec(), true)));
            }
        }
        assert_eq!(read(&to_frames(&text[..500]), 1), Ok((text[..500].to_vec(), true)));
        assert!(to_frames(&text).len() < text.len() / 20);
        assert_eq!(to_frames(&noise).len(), noise.len() + 4 * HEADER_BYTES, "stored, because it doesn't shrink");
    }

    #[test]
    fn invalid_frames_are_rejected() {
        let frame = |len: u32, bytes: u32, data: &[u8]| [&len.to_le_bytes(), &bytes.to_le_bytes(), data].concat();
        let over = FRAME_BYTES_MAX as u32 + 1;
        for (len, bytes) in [(0, 0), (0, 5), (6, 5), (over, over), (5, over), (u32::MAX, u32::MAX), (1, u32::MAX)] {
            let error = read(&frame(len, bytes, b"xxxxxx"), 100).expect_err("a wrong length");
            assert!(error.starts_with("a compressed frame of"), "{error}");
        }
        let whole = to_frames(&b"some text some text some text".repeat(9));
        assert_eq!(read(&whole[..whole.len() - 1], 7).map(|(_, is_at_end)| is_at_end), Ok(false));
        // Every damage is detected or changes the bytes only within the frame.
        for at in HEADER_BYTES..whole.len() {
            for flip in [1, 0x80, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] ^= flip;
                if let Ok((bytes, _)) = read(&damaged, 1000) {
                    assert!(bytes.len() == 29 * 9 || bytes.is_empty());
                }
            }
        }
        assert!(read(&frame(3, 1000, b"\xf0\xff\xff"), 100).is_err());
    }
}
