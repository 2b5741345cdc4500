//! The queue of the writer threads of the append-only file for its files.
//!
//! If the file is turned off and on again, a former [writer thread](super::writer) may still be
//! ending when the next one starts. The threads use the files one after another, in the order of
//! their starts. A thread that waits may leave the queue.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::inbox::Inbox;
use super::state::lock;

/// The queue: the inboxes of the threads. The first thread may use the files.
#[derive(Default)]
pub(super) struct Queue {
    inboxes: Mutex<VecDeque<Arc<Inbox>>>,
    /// Notified when a thread has left.
    left: Condvar,
}

impl Queue {
    /// Adds the thread that owns `inbox` at the end. The thread is woken when it becomes the first.
    pub(super) fn enter(self: &Arc<Self>, inbox: &Arc<Inbox>) -> Queued {
        lock(&self.inboxes).push_back(Arc::clone(inbox));
        Queued { queue: Arc::clone(self), inbox: Arc::clone(inbox) }
    }

    /// Waits until all threads have left. Called at the end of the process, when each of them has
    /// been ordered to stop.
    pub(super) fn wait_until_empty(&self) {
        let inboxes = lock(&self.inboxes);
        drop(self.left.wait_while(inboxes, |inboxes| !inboxes.is_empty()).unwrap_or_else(PoisonError::into_inner));
    }
}

/// A thread's place in the [`Queue`]. The thread leaves the queue when this value is dropped.
pub(super) struct Queued {
    queue: Arc<Queue>,
    inbox: Arc<Inbox>,
}

impl Queued {
    /// Returns whether the thread is the first, which may use the files.
    pub(super) fn is_first(&self) -> bool {
        lock(&self.queue.inboxes).front().is_some_and(|first| Arc::ptr_eq(first, &self.inbox))
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        let first = {
            let mut inboxes = lock(&self.queue.inboxes);
            inboxes.retain(|inbox| !Arc::ptr_eq(inbox, &self.inbox));
            self.queue.left.notify_all();
            inboxes.front().cloned()
        };
        // The first thread may call `is_first` while it locks its inbox. So this thread must not
        // lock that inbox while it locks the queue.
        if let Some(first) = first {
            first.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn is_woken(inbox: &Inbox) -> bool {
        let began = Instant::now();
        inbox.wait(Some(began + Duration::from_secs(60)));
        began.elapsed() < Duration::from_secs(60)
    }

    #[test]
    fn threads_use_the_files_in_the_order_of_their_starts() {
        let queue = Arc::new(Queue::default());
        let inboxes = [(); 4].map(|()| Arc::new(Inbox::default()));
        let [ending, leaving, second, third] = inboxes.each_ref().map(|inbox| queue.enter(inbox));
        let first = |of: &[&Queued]| of.iter().map(|queued| queued.is_first()).collect::<Vec<_>>();
        assert_eq!(first(&[&ending, &leaving, &second, &third]), [true, false, false, false]);
        drop(leaving);
        assert_eq!(first(&[&ending, &second, &third]), [true, false, false]);
        drop(ending);
        assert!(is_woken(&inboxes[2]));
        assert_eq!(first(&[&second, &third]), [true, false]);
        let last = queue.enter(&Arc::new(Inbox::default()));
        assert_eq!(first(&[&second, &third, &last]), [true, false, false]);
        drop(second);
        assert!(is_woken(&inboxes[3]));
        assert_eq!(first(&[&third, &last]), [true, false]);
        drop(third);
        assert!(last.is_first());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                queue.wait_until_empty();
                assert!(lock(&queue.inboxes).is_empty());
            });
            std::thread::sleep(Duration::from_millis(20));
            drop(last);
        });
    }
}
