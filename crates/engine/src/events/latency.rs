//! `LATENCY`: events of each kind that took at least `latency-monitor-threshold`.
//!
//! Each worker writes to its own list. The only exceptions are `expire-del` events, which all
//! workers write to the list of worker 0. So a worker rarely contends for a list's lock. `LATENCY`
//! commands merge the lists, and do not stop other work. Recording the duration of a command needs
//! no additional clock reading, because commands are timed for `SLOWLOG` and `INFO commandstats`
//! anyway.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::events::Events;

/// A command with the flag `fast`.
pub const FAST_COMMAND: &str = "fast-command";
/// Any other command.
pub const COMMAND: &str = "command";
/// One turn of active expiry.
pub const EXPIRE_CYCLE: &str = "expire-cycle";
/// The deletion of an expired key.
pub const EXPIRE_DEL: &str = "expire-del";
/// The evictions of one command, or of one turn (iteration of a worker's event loop).
pub const EVICTION_CYCLE: &str = "eviction-cycle";
/// The deletion of an evicted key.
pub const EVICTION_DEL: &str = "eviction-del";

/// Maximum number of samples for each kind of event, as in Redis.
pub const SAMPLES_MAX: usize = 160;

/// The longest event of one second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Unix time in seconds.
    pub at_s: i64,
    /// Duration of the longest event in that second, ms.
    pub latency_ms: u64,
}

/// The events of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// Kind of event.
    pub event: &'static str,
    /// Duration of the longest event since the last reset, ms.
    pub max_ms: u64,
    /// Samples by ascending time, at least one and at most [`SAMPLES_MAX`], one per second.
    pub samples: VecDeque<Sample>,
}

impl Series {
    /// Returns the latest sample.
    pub fn latest(&self) -> Sample {
        *self.samples.back().expect("a series begins with a sample")
    }

    fn note(&mut self, sample: Sample) {
        self.max_ms = self.max_ms.max(sample.latency_ms);
        match self.samples.back_mut() {
            // If the clock was set back, the event counts for the latest second, so that the
            // samples stay in order.
            Some(last) if last.at_s >= sample.at_s => last.latency_ms = last.latency_ms.max(sample.latency_ms),
            _ => self.samples.push_back(sample),
        }
        if self.samples.len() > SAMPLES_MAX {
            self.samples.pop_front();
        }
    }

    /// Merges another series into this one.
    fn merge(&mut self, other: &Series) {
        let mut by_second = BTreeMap::new();
        for sample in self.samples.iter().chain(&other.samples) {
            let longest = by_second.entry(sample.at_s).or_insert(0);
            *longest = sample.latency_ms.max(*longest);
        }
        let past = by_second.len().saturating_sub(SAMPLES_MAX);
        self.samples = by_second.into_iter().skip(past).map(|(at_s, latency_ms)| Sample { at_s, latency_ms }).collect();
        self.max_ms = self.max_ms.max(other.max_ms);
    }
}

/// The lists of all workers. See the head of this module.
pub struct LatencyMonitor {
    /// The series of each worker. There are few kinds of events, so a list suffices.
    lists: Box<[Mutex<Vec<Series>>]>,
}

impl LatencyMonitor {
    /// Returns a monitor without events.
    pub(crate) fn new(workers: usize) -> Self {
        LatencyMonitor { lists: (0..workers).map(|_| Mutex::default()).collect() }
    }

    #[cold]
    fn note(&self, worker: u32, event: &'static str, at_s: i64, latency_ms: u64) {
        let mut list = self.list(worker as usize);
        let sample = Sample { at_s, latency_ms };
        match list.iter_mut().find(|series| series.event == event) {
            Some(series) => series.note(sample),
            None => list.push(Series { event, max_ms: latency_ms, samples: VecDeque::from([sample]) }),
        }
    }

    /// Returns one series for each kind of event, merged from all workers and sorted by name.
    pub fn series(&self) -> Vec<Series> {
        let mut all: BTreeMap<&'static str, Series> = BTreeMap::new();
        for worker in 0..self.lists.len() {
            for series in self.list(worker).iter() {
                all.entry(series.event).and_modify(|same| same.merge(series)).or_insert_with(|| series.clone());
            }
        }
        all.into_values().collect()
    }

    /// Removes the kinds of events whose name satisfies `is`. Returns their number.
    pub fn reset(&self, is: impl Fn(&str) -> bool) -> usize {
        let mut forgotten = BTreeSet::new();
        for worker in 0..self.lists.len() {
            self.list(worker).retain(|series| {
                let is_removed = is(series.event);
                if is_removed {
                    forgotten.insert(series.event);
                }
                !is_removed
            });
        }
        forgotten.len()
    }

    fn list(&self, worker: usize) -> MutexGuard<'_, Vec<Series>> {
        // After a panic the list is still valid, because it is valid after each step.
        self.lists[worker].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Events {
    /// Records an event of `worker` that started at `began_ms` (Unix time) and took `took`, if this
    /// duration reaches `latency-monitor-threshold`.
    #[inline]
    pub fn note_latency(&self, worker: u32, event: &'static str, began_ms: i64, took: Duration) {
        let (threshold_ms, took_ms) = (self.tuning.latency_threshold_ms.load(Relaxed), took.as_millis() as u64);
        if threshold_ms > 0 && took_ms >= threshold_ms {
            self.latency().note(worker, event, (began_ms + took_ms as i64) / 1000, took_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(series: &Series) -> Vec<(i64, u64)> {
        series.samples.iter().map(|sample| (sample.at_s, sample.latency_ms)).collect()
    }

    #[test]
    fn a_second_has_one_sample_over_all_workers() {
        let monitor = LatencyMonitor::new(3);
        for (worker, event, at_s, latency_ms) in [
            (0, COMMAND, 10, 5),
            (0, COMMAND, 10, 3),
            (2, COMMAND, 10, 7),
            (1, COMMAND, 9, 20),
            (1, EXPIRE_CYCLE, 11, 1),
        ] {
            monitor.note(worker, event, at_s, latency_ms);
        }
        let all = monitor.series();
        assert_eq!(all.iter().map(|series| series.event).collect::<Vec<_>>(), [COMMAND, EXPIRE_CYCLE]);
        assert_eq!((samples(&all[0]), all[0].max_ms), (vec![(9, 20), (10, 7)], 20));
        assert_eq!(all[0].latest(), Sample { at_s: 10, latency_ms: 7 });
        assert_eq!(monitor.reset(|event| event == "nosuch"), 0);
        assert_eq!(monitor.reset(|event| event == COMMAND), 1);
        assert_eq!(monitor.series().len(), 1);
    }

    #[test]
    fn the_number_of_samples_is_bounded() {
        let monitor = LatencyMonitor::new(2);
        let kept = |monitor: &LatencyMonitor| samples(&monitor.series()[0]);
        for at_s in 0..SAMPLES_MAX as i64 {
            monitor.note(0, COMMAND, at_s, 1);
        }
        assert_eq!((kept(&monitor).len(), kept(&monitor)[0].0), (SAMPLES_MAX, 0));
        monitor.note(0, COMMAND, SAMPLES_MAX as i64, 1);
        assert_eq!((kept(&monitor).len(), kept(&monitor)[0].0), (SAMPLES_MAX, 1));
        // The merged series of two workers also has at most `SAMPLES_MAX` samples.
        monitor.note(1, COMMAND, SAMPLES_MAX as i64 + 1, 1);
        assert_eq!((kept(&monitor).len(), kept(&monitor)[0].0), (SAMPLES_MAX, 2));
        // After the clock was set back, an event counts for the latest second.
        monitor.note(1, COMMAND, 0, 9);
        assert_eq!(kept(&monitor).last(), Some(&(SAMPLES_MAX as i64 + 1, 9)));
    }
}
