//! Integers of any width at any bit offset of a string (`BITFIELD`).

/// The policy for a number that the field can't hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// Keeps the lowest bits.
    #[default]
    Wrap,
    /// Stores the nearest number that the field can hold.
    Saturate,
    /// Changes nothing.
    Fail,
}

/// The type of a field: its width and signedness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    signed: bool,
    /// 1 to 64 if signed, 1 to 63 otherwise, so that a value always fits in an `i64`.
    bits: u32,
}

/// The effect of a change on a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldChange {
    /// The former value.
    pub before: i64,
    /// The new value.
    pub after: i64,
}

impl Field {
    /// Parses a type such as `i16` or `u8`. A zero byte ends the text, as in Redis.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Field> {
        let text = text.split(|&byte| byte == 0).next()?;
        let (signed, digits) = match text {
            [b'i', digits @ ..] => (true, digits),
            [b'u', digits @ ..] => (false, digits),
            _ => return None,
        };
        let bits = u32::try_from(crate::parse_i64(digits)?).ok()?;
        let bits_max = if signed { 64 } else { 63 };
        (1..=bits_max).contains(&bits).then_some(Field { signed, bits })
    }

    /// Returns the width of the field in bits.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.bits
    }

    /// Returns the value of the field at a bit offset. Bits after the end of the string are 0.
    #[must_use]
    pub fn get(self, bytes: &[u8], offset: u64) -> i64 {
        // Shifts the field's bits to the top, and then down again, with sign extension if the field
        // is signed.
        let top = (read_window(bytes, offset) << (offset & 7) >> 64) as u64;
        let spare = 64 - self.bits;
        if self.signed { (top as i64) >> spare } else { (top >> spare) as i64 }
    }

    /// Sets the field to `value`. Returns `None`, with nothing changed, if the field can't hold
    /// `value` and `overflow` is [`Overflow::Fail`].
    ///
    /// The string must contain the whole field: see [`Field::end_byte`].
    pub fn set(self, bytes: &mut [u8], offset: u64, value: i64, overflow: Overflow) -> Option<FieldChange> {
        let before = self.get(bytes, offset);
        self.change(bytes, offset, before, value, 0, overflow)
    }

    /// Adds `by` to the field. See [`Field::set`] for overflow and the length of the string.
    pub fn increment(self, bytes: &mut [u8], offset: u64, by: i64, overflow: Overflow) -> Option<FieldChange> {
        let before = self.get(bytes, offset);
        self.change(bytes, offset, before, before, by, overflow)
    }

    /// Returns the index of the last byte of a field at this bit offset.
    #[must_use]
    pub fn end_byte(self, offset: u64) -> u64 {
        offset.saturating_add(u64::from(self.bits) - 1) >> 3
    }

    fn change(
        self,
        bytes: &mut [u8],
        offset: u64,
        before: i64,
        value: i64,
        by: i64,
        overflow: Overflow,
    ) -> Option<FieldChange> {
        let after = match (self.fits(value, by), overflow) {
            (Ok(after), _) => after,
            (Err(_), Overflow::Fail) => return None,
            (Err(nearest), Overflow::Saturate) => nearest,
            (Err(_), Overflow::Wrap) => self.wrap(value.wrapping_add(by)),
        };
        write_window(bytes, offset, self.bits, after as u64);
        Some(FieldChange { before, after })
    }

    /// Returns `value + by` if the field can hold this sum. Otherwise returns `Err` with the limit
    /// to which Redis saturates.
    fn fits(self, value: i64, by: i64) -> Result<i64, i64> {
        if self.signed { self.fits_signed(value, by) } else { self.fits_unsigned(value, by) }
    }

    fn fits_signed(self, value: i64, by: i64) -> Result<i64, i64> {
        let max = i64::MAX >> (64 - self.bits);
        let min = -max - 1;
        // If `value` itself is outside the limits, these distances may overflow and wrap. Redis
        // compares the wrapped distances, so a value far below the minimum saturates to the
        // maximum.
        let (room_up, room_down) = (max.wrapping_sub(value), min.wrapping_sub(value));
        let narrow = self.bits < 64;
        if value > max || (narrow && by > room_up) || (value >= 0 && by > 0 && by > room_up) {
            return Err(max);
        }
        if value < min || (narrow && by < room_down) || (value < 0 && by < 0 && by < room_down) {
            return Err(min);
        }
        Ok(value.wrapping_add(by))
    }

    fn fits_unsigned(self, value: i64, by: i64) -> Result<i64, i64> {
        let max = u64::MAX >> (64 - self.bits);
        let (value, max_signed) = (value as u64, max as i64);
        let (room_up, room_down) = (max.wrapping_sub(value) as i64, value.wrapping_neg() as i64);
        if value > max || (by > 0 && by > room_up) {
            return Err(max_signed);
        }
        if by < 0 && by < room_down {
            return Err(0);
        }
        Ok(value.wrapping_add(by as u64) as i64)
    }

    /// Returns the value that the field has when it stores the lowest bits of `value`.
    fn wrap(self, value: i64) -> i64 {
        let spare = 64 - self.bits;
        if self.signed { value << spare >> spare } else { ((value as u64) << spare >> spare) as i64 }
    }
}

/// Maximum number of bytes that a 64-bit field touches: 9, because a field may start inside a byte.
const WINDOW_BYTES: usize = 9;

/// Returns the nine bytes from the byte that contains bit `offset` on, as the upper 72 bits of the
/// result. Bytes after the end of the string count as zero.
fn read_window(bytes: &[u8], offset: u64) -> u128 {
    let mut window = [0; 16];
    if let Some(found) = usize::try_from(offset >> 3).ok().and_then(|start| bytes.get(start..)) {
        let found = &found[..found.len().min(WINDOW_BYTES)];
        window[..found.len()].copy_from_slice(found);
    }
    u128::from_be_bytes(window)
}

/// Stores the lowest `bits` of a value at a bit offset. Drops bits after the end of the string.
fn write_window(bytes: &mut [u8], offset: u64, bits: u32, value: u64) {
    let shift = 128 - (offset & 7) as u32 - bits;
    let mask = u128::from(u64::MAX >> (64 - bits)) << shift;
    let window = read_window(bytes, offset) & !mask | (u128::from(value) << shift & mask);
    if let Some(found) = usize::try_from(offset >> 3).ok().and_then(|start| bytes.get_mut(start..)) {
        let len = found.len().min(WINDOW_BYTES);
        found[..len].copy_from_slice(&window.to_be_bytes()[..len]);
    }
}
