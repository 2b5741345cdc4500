//! Tests of the journal with its thread.

use std::time::Instant;

use super::*;
use crate::effect::log::Ahead;

/// Returns a journal of one worker with a reader that has started, and the events of that reader.
fn with_reader() -> (Journal, Tuning, Reader, Events) {
    let (journal, tuning, events) = (Journal::new(1), Tuning::default(), Events::default());
    let bound = Arc::new(AtomicU64::new(u64::MAX));
    let joined = journal.join(&tuning, (Which::Effects, Start::Now), bound, events.noting("wake"));
    let mut reader = joined.expect("a thread").expect("now is always held");
    let since = Instant::now();
    while reader.position().is_none() {
        assert!(since.elapsed() < EPOCH_MAX, "no epoch ends");
        std::thread::sleep(EPOCH_TIME);
    }
    assert_eq!(reader.read(usize::MAX, &mut Vec::new()), Ahead::Nothing);
    events.take();
    (journal, tuning, reader, events)
}

/// The calls of a reader's callbacks.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<&'static str>>>);

impl Events {
    fn noting(&self, event: &'static str) -> Wake {
        let events = self.clone();
        Arc::new(move || lock(&events.0).push(event))
    }

    fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut lock(&self.0))
    }
}

/// Maximum time for the thread to end an epoch.
const EPOCH_MAX: Duration = Duration::from_secs(20);

/// A worker counts pending bytes, and then calls the reader's warning. Before that call the reader
/// has read these bytes and sleeps. The reader must be woken, or it would not see the warning.
#[test]
fn a_late_warning_is_followed_by_a_wake() {
    let (journal, tuning, reader, events) = with_reader();
    reader.warn_beyond(HANDED_OVER_BYTES_MAX, &events.noting("warning"));
    journal.warn(HANDED_OVER_BYTES_MAX);
    assert!(events.take().is_empty(), "it is not too far behind");
    journal.warn(HANDED_OVER_BYTES_MAX + 1);
    assert_eq!(events.take(), ["warning", "wake"]);
    journal.leave(&tuning, &reader);
    journal.warn(HANDED_OVER_BYTES_MAX + 1);
    assert!(events.take().is_empty(), "nobody is warned of a reader that has left");
}

/// While an eager reader sleeps, it is the one that is woken to end the epoch. While it is awake,
/// the journal's thread ends the epoch, unless the reader does so first.
#[test]
fn an_eager_reader_ends_epochs_when_it_is_woken() {
    let (journal, tuning, mut reader, events) = with_reader();
    let read = |reader: &mut Reader| reader.read_through(usize::MAX, &mut Vec::new());
    let before = read(&mut reader).1.expect("everything was read");
    assert!(!reader.may_sleep(), "only eager readers are woken for the end of an epoch");
    reader.set_eager(true);
    assert!(reader.may_sleep());
    journal.demand();
    assert_eq!(events.take(), ["wake"]);
    assert!(!reader.may_sleep(), "an epoch must end");
    journal.shared.request_epoch_end();
    assert!(events.take().is_empty(), "it was woken before");
    std::thread::sleep(EPOCH_TIME * 5);
    assert_eq!(lock(&journal.shared.control).logs.of(Which::Effects).read_before(reader.id), Some(before));
    reader.end_epoch();
    assert!(events.take().is_empty(), "it is awake");
    assert!(read(&mut reader).1.is_some_and(|now| now > before));

    let before = read(&mut reader).1.expect("everything was read");
    journal.demand();
    let since = Instant::now();
    while events.take() != ["wake"] {
        assert!(since.elapsed() < EPOCH_MAX, "the journal's thread ends no epoch");
        std::thread::sleep(EPOCH_TIME);
    }
    assert!(!reader.may_sleep(), "there is an epoch to read");
    assert!(read(&mut reader).1.is_some_and(|now| now > before));
    assert!(reader.may_sleep());
    reader.set_eager(false);
    journal.demand();
    std::thread::sleep(EPOCH_TIME * 5);
    assert!(events.take().is_empty(), "the thread has taken over");
    journal.leave(&tuning, &reader);
}
