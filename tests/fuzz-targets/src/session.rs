//! Arbitrary bytes received by a connection without a socket. The first bytes of the input
//! determine how the rest is split, and which parsed commands have to wait. In each case the
//! connection must return the same commands and the same error, send all replies, and never panic.
//!
//! The first bytes are choices, which are used repeatedly. The rest is the received stream.

use pantala_resp::ProtocolError;
use pantala_session::testing::{Outcome, drive};

const CHOICES: usize = 16;

/// Number of choices that the input determines. After these choices, the largest choice is always
/// made: some sequences of choices would never deliver the rest of the input.
const FREE_CHOICES_MAX: usize = 20_000;

/// Returns whether the error depends on how the bytes are split. As in Redis, a line above the
/// limit is accepted if the whole line is received at once.
fn depends_on_pieces(outcome: &Outcome) -> bool {
    use ProtocolError::{TooBigBulkCount, TooBigCount, TooBigInline};
    matches!(outcome.error, Some(TooBigInline | TooBigCount | TooBigBulkCount))
}

/// Runs the target on one input, and panics on a defect.
pub fn run(data: &[u8]) {
    let Some((choices, stream)) = data.split_at_checked(CHOICES) else { return };
    let mut next = 0;
    let pieces = drive(stream, &mut |bound| {
        next += 1;
        if next > FREE_CHOICES_MAX {
            return bound - 1;
        }
        // The choices are used again and again. Adding the number of the pass makes each pass
        // different.
        let choice = usize::from(choices[next % CHOICES]).wrapping_add(next / CHOICES);
        choice % bound
    });
    let whole = drive(stream, &mut |bound| bound - 1);
    if depends_on_pieces(&pieces) && whole != pieces {
        assert!(whole.commands.starts_with(&pieces.commands));
    } else {
        assert_eq!(whole, pieces);
    }
}
