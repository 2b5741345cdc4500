//! Times to live as clients say them.

use pantala_resp::Reply;

/// What a time is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Seconds,
    Milliseconds,
}

impl Unit {
    /// `number` of this unit, in ms.
    fn ms(self, number: i64) -> Option<i64> {
        match self {
            Unit::Seconds => number.checked_mul(1000),
            Unit::Milliseconds => Some(number),
        }
    }
}

/// What a time is counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    /// The command's own time.
    Now,
    /// 1970.
    Epoch,
}

impl Base {
    pub(crate) fn ms(self, now_ms: i64) -> i64 {
        match self {
            Base::Now => now_ms,
            Base::Epoch => 0,
        }
    }
}

/// The expiry (unix time, ms) that `SET … EX` and the like give a key; `None` when the number isn't positive or
/// overflows.
pub(crate) fn new_expiry_ms(number: i64, unit: Unit, base: Base, now_ms: i64) -> Option<i64> {
    if number <= 0 {
        return None;
    }
    unit.ms(number)?.checked_add(base.ms(now_ms))
}

/// The expiry (unix time, ms) that `EXPIRE` and the like ask for: it may be in the past, which removes the key. `None`
/// when it overflows.
pub(crate) fn asked_expiry_ms(number: i64, unit: Unit, base: Base, now_ms: i64) -> Option<i64> {
    unit.ms(number)?.checked_add(base.ms(now_ms))
}

/// Replies that the time makes no sense. `command`: its full name, lower case.
pub(crate) fn invalid_expire(command: &str, reply: &mut Reply<'_>) {
    reply.error(&format!("ERR invalid expire time in '{command}' command"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_expiries() {
        let max = i64::MAX;
        assert_eq!(new_expiry_ms(1, Unit::Seconds, Base::Now, 500), Some(1500));
        assert_eq!(new_expiry_ms(7, Unit::Milliseconds, Base::Epoch, 500), Some(7));
        assert_eq!(new_expiry_ms(0, Unit::Seconds, Base::Epoch, 500), None);
        assert_eq!(new_expiry_ms(max - 500, Unit::Milliseconds, Base::Now, 500), Some(max));
        assert_eq!(new_expiry_ms(max - 499, Unit::Milliseconds, Base::Now, 500), None);
        assert_eq!(new_expiry_ms(max / 1000, Unit::Seconds, Base::Epoch, 500), Some(max / 1000 * 1000));
        assert_eq!(new_expiry_ms(max / 1000 + 1, Unit::Seconds, Base::Epoch, 500), None);
        assert_eq!(asked_expiry_ms(-1, Unit::Seconds, Base::Now, 500), Some(-500));
        assert_eq!(asked_expiry_ms(i64::MIN / 1000 - 1, Unit::Seconds, Base::Epoch, 0), None);
    }
}
