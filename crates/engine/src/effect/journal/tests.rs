//! Tests of the journal with its thread.

use std::time::Instant;

use super::*;

/// Maximum time for the thread to end an epoch.
const EPOCH_MAX: Duration = Duration::from_secs(20);

/// A worker counts pending bytes, and then calls the reader's warning. Before that call the reader
/// has read these bytes and sleeps. The reader must be woken, or it would not see the warning.
#[test]
fn a_late_warning_is_followed_by_a_wake() {
    let (journal, tuning) = (Journal::new(1), Tuning::default());
    let events = Arc::new(Mutex::new(Vec::new()));
    let noting = |event: &'static str| -> Wake {
        let events = Arc::clone(&events);
        Arc::new(move || lock(&events).push(event))
    };
    let bound = Arc::new(AtomicU64::new(u64::MAX));
    let joined = journal.join(&tuning, (Which::Effects, Start::Now), bound, noting("wake")).expect("a thread");
    let mut reader = joined.expect("now is always held");
    let since = Instant::now();
    while reader.position().is_none() {
        assert!(since.elapsed() < EPOCH_MAX, "no epoch ends");
        std::thread::sleep(EPOCH_TIME);
    }
    assert_eq!(reader.read(usize::MAX, &mut Vec::new()), Ahead::Nothing);
    reader.warn_beyond(HANDED_OVER_BYTES_MAX, &noting("warning"));
    lock(&events).clear();
    journal.warn(HANDED_OVER_BYTES_MAX);
    assert!(lock(&events).is_empty(), "it is not too far behind");
    journal.warn(HANDED_OVER_BYTES_MAX + 1);
    assert_eq!(*lock(&events), ["warning", "wake"]);
    journal.leave(&tuning, &reader);
    journal.warn(HANDED_OVER_BYTES_MAX + 1);
    assert_eq!(lock(&events).len(), 2, "nobody is warned of a reader that has left");
}
