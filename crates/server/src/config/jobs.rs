//! Commands that read or write files, which one thread runs one after another.
//!
//! Any number of clients can have such a command at the same time, and the disk may hang. With a
//! thread for each command there would be as many threads. They would also compete: a change of
//! `dir` makes all other changes of `dir` start again ([`super::NotSet::Outdated`]).

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    /// Whether a thread runs the jobs. It exists while there are any.
    has_thread: bool,
}

/// The queue of jobs.
#[derive(Default)]
pub struct Jobs {
    state: Mutex<State>,
}

impl Jobs {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job. If no thread runs the jobs, calls `start`, which must start a thread that calls
    /// [`Jobs::run`].
    ///
    /// # Errors
    /// The error of `start`. The job is dropped.
    pub fn push(&self, job: Job, start: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut state = self.lock();
        if !state.has_thread {
            start()?;
            state.has_thread = true;
        }
        state.waiting.push_back(job);
        Ok(())
    }

    /// Runs jobs until none is left.
    pub fn run(&self) {
        while let Some(job) = self.next() {
            job();
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        let job = state.waiting.pop_front();
        state.has_thread = job.is_some();
        job
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, mpsc};

    #[test]
    fn one_thread_runs_all_jobs_in_order() {
        let jobs = Arc::new(Jobs::default());
        let (done, order) = mpsc::channel();
        let held = Arc::new(Mutex::new(()));
        let hold = held.lock().expect("nobody has it");
        let mut threads = Vec::new();
        for number in 0..3 {
            let (done, held) = (done.clone(), Arc::clone(&held));
            let job = move || {
                drop(held.lock().expect("no panic"));
                done.send(number).expect("the test waits");
            };
            let start = || {
                let jobs = Arc::clone(&jobs);
                threads.push(std::thread::spawn(move || jobs.run()));
                Ok(())
            };
            jobs.push(Box::new(job), start).expect("a thread starts");
        }
        drop(hold);
        assert_eq!(threads.len(), 1);
        assert_eq!(order.iter().take(3).collect::<Vec<_>>(), [0, 1, 2]);
        threads.drain(..).for_each(|thread| thread.join().expect("no panic"));
        // The thread has ended, so the next job needs another one, which can't start.
        let failed = jobs.push(Box::new(|| panic!("it was dropped")), || Err(io::ErrorKind::OutOfMemory.into()));
        assert!(failed.is_err() && jobs.lock().waiting.is_empty());
    }
}
