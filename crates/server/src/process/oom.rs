//! The score of the process for the kernel's out-of-memory killer (`oom_score_adj`).

use crate::config::host::reason;
use crate::config::{OomScore, ProcessSettings, Refusal};
use std::io;
use std::sync::{Mutex, PoisonError};

const FILE: &str = "/proc/self/oom_score_adj";

/// Maximum absolute value of the score that the kernel accepts.
const SCORE_MAX: i32 = 1000;

/// The score before the first change; `None` while the score is unchanged.
static BEFORE: Mutex<Option<i32>> = Mutex::new(None);

/// Sets the score that the settings define for the server's role (primary or replica). With
/// `oom-score-adj no`, restores the original score if the server has changed it. Returns whether
/// this succeeded. The log has the reason for a failure.
pub fn adjust_oom_score(settings: &ProcessSettings, is_replica: bool) -> bool {
    let mut before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner);
    let value = settings.oom_score_values[usize::from(is_replica)];
    let score = match (settings.oom_score, *before) {
        (OomScore::Inherited, None) => return true,
        (OomScore::Inherited, Some(score)) => {
            *before = None;
            score
        }
        (OomScore::Relative | OomScore::Absolute, known) => {
            let base = match known.map_or_else(read, Ok) {
                Ok(base) => base,
                Err(error) => {
                    tracing::warn!("Unable to read oom_score_adj: {}", reason(&error));
                    return false;
                }
            };
            *before = Some(base);
            if settings.oom_score == OomScore::Relative { base.saturating_add(value) } else { value }
        }
    };
    let score = score.clamp(-SCORE_MAX, SCORE_MAX);
    let written = std::fs::write(FILE, format!("{score}\n"));
    written.inspect_err(|error| tracing::warn!("Unable to write oom_score_adj: {}", reason(error))).is_ok()
}

/// Applies a change of the settings of the score, and then calls `others` to apply the other
/// changes. If `others` fails, restores the old score.
///
/// # Errors
/// The kernel rejects the score, or `others` fails.
pub fn change_oom_score(
    old: &ProcessSettings,
    new: &ProcessSettings,
    is_replica: bool,
    others: impl FnOnce() -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let directive = if old.oom_score != new.oom_score {
        "oom-score-adj"
    } else if old.oom_score_values != new.oom_score_values {
        "oom-score-adj-values"
    } else {
        return others();
    };
    if !adjust_oom_score(new, is_replica) {
        let reason = "Failed to set current oom_score_adj. Check server logs.";
        return Err(Refusal { directive, reason: reason.to_owned() });
    }
    others().inspect_err(|_| {
        // The result is ignored, because the error of `others` is reported.
        adjust_oom_score(old, is_replica);
    })
}

fn read() -> io::Result<i32> {
    std::fs::read_to_string(FILE)?.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}
