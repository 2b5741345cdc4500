//! Computes deadlines from the expiry arguments of `SET`, `EXPIRE` and related commands.

use pantala_resp::Reply;

/// The unit of an expiry argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Seconds,
    Milliseconds,
}

impl Unit {
    /// Converts `number` of this unit to ms; `None` on overflow.
    fn ms(self, number: i64) -> Option<i64> {
        match self {
            Unit::Seconds => number.checked_mul(1000),
            Unit::Milliseconds => Some(number),
        }
    }
}

/// The time that an expiry argument is relative to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    /// The time at which the command runs.
    Now,
    /// The Unix epoch.
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

/// Returns the deadline (Unix time, ms) for `SET … EX` and similar options; `None` if the number
/// isn't positive or overflows.
pub(crate) fn new_expiry_ms(number: i64, unit: Unit, base: Base, now_ms: i64) -> Option<i64> {
    if number <= 0 {
        return None;
    }
    unit.ms(number)?.checked_add(base.ms(now_ms))
}

/// Returns the deadline (Unix time, ms) for `EXPIRE` and its variants; `None` on overflow. The
/// deadline may have passed, in which case the caller deletes the key.
pub(crate) fn requested_expiry_ms(number: i64, unit: Unit, base: Base, now_ms: i64) -> Option<i64> {
    unit.ms(number)?.checked_add(base.ms(now_ms))
}

/// Replies that the expire time is invalid. `command` is the full command name in lower case.
pub(crate) fn invalid_expire(command: &str, reply: &mut Reply<'_>) {
    reply.error(&format!("ERR invalid expire time in '{command}' command"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiries_at_and_beyond_the_limits() {
        let max = i64::MAX;
        assert_eq!(new_expiry_ms(1, Unit::Seconds, Base::Now, 500), Some(1500));
        assert_eq!(new_expiry_ms(7, Unit::Milliseconds, Base::Epoch, 500), Some(7));
        assert_eq!(new_expiry_ms(0, Unit::Seconds, Base::Epoch, 500), None);
        assert_eq!(new_expiry_ms(max - 500, Unit::Milliseconds, Base::Now, 500), Some(max));
        assert_eq!(new_expiry_ms(max - 499, Unit::Milliseconds, Base::Now, 500), None);
        assert_eq!(new_expiry_ms(max / 1000, Unit::Seconds, Base::Epoch, 500), Some(max / 1000 * 1000));
        assert_eq!(new_expiry_ms(max / 1000 + 1, Unit::Seconds, Base::Epoch, 500), None);
        assert_eq!(requested_expiry_ms(-1, Unit::Seconds, Base::Now, 500), Some(-500));
        assert_eq!(requested_expiry_ms(i64::MIN / 1000 - 1, Unit::Seconds, Base::Epoch, 0), None);
    }
}
