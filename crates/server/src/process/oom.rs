//! The rank of the process for the kernel's out-of-memory killer.

use crate::config::host::reason;
use crate::config::{OomScore, ProcessSettings, Refusal};
use std::io;
use std::sync::{Mutex, PoisonError};

const FILE: &str = "/proc/self/oom_score_adj";

/// Highest and lowest rank that the kernel accepts, as a distance from 0.
const SCORE_MAX: i32 = 1000;

/// The rank before the first change; `None` while it is in force.
static BEFORE: Mutex<Option<i32>> = Mutex::new(None);

/// Sets the rank that the settings have for a primary or a replica, or restores the one before.
/// Returns whether the kernel accepts it; otherwise the log says why not.
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

/// Applies a change of the settings, and then what else they change. If that fails, the rank is
/// restored.
///
/// # Errors
/// The kernel rejects the rank; or those of `others`.
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
        // The reply is the error of the others.
        adjust_oom_score(old, is_replica);
    })
}

fn read() -> io::Result<i32> {
    std::fs::read_to_string(FILE)?.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}
