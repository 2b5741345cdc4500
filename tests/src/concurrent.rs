//! Runs concurrent clients, each in a thread, until a deadline or until one of them detects a
//! violation.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The step that a client repeats. An error is a violation.
pub type Body<'a> = Box<dyn FnMut() -> Result<(), String> + Send + 'a>;

/// Runs every body repeatedly, in its own thread, until `limit` has passed.
///
/// # Errors
/// The first error of a body. The other bodies then stop.
///
/// # Panics
/// If a body panics.
pub fn run_for(limit: Duration, bodies: Vec<Body<'_>>) -> Result<(), String> {
    let deadline = Instant::now() + limit;
    let stop = AtomicBool::new(false);
    let first = Mutex::new(None);
    std::thread::scope(|scope| {
        for mut body in bodies {
            let (stop, first) = (&stop, &first);
            scope.spawn(move || {
                // A body that panics doesn't set `stop`, so the other bodies run until the
                // deadline.
                while !stop.load(Ordering::Relaxed) && Instant::now() < deadline {
                    if let Err(text) = body() {
                        stop.store(true, Ordering::Relaxed);
                        first.lock().expect("no panic under this lock").get_or_insert(text);
                    }
                }
            });
        }
    });
    first.into_inner().expect("no panic under this lock").map_or(Ok(()), Err)
}
