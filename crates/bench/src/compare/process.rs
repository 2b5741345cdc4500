//! Processes that a comparison starts. They are bound to CPUs, observed through `/proc`, and
//! signalled by ID.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::panic;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// Maximum time from SIGTERM to the end of a server. After this time the server is killed.
const END_MAX: Duration = Duration::from_secs(10);
/// Interval at which the wait checks whether a server has ended.
const END_CHECK: Duration = Duration::from_millis(10);
/// Number of bytes of a failed server's output that are shown.
const LOG_TAIL_BYTES: usize = 600;
/// Unit of the times in `/proc/PID/stat`. It is the same on every Linux that Rust supports.
const TICK_NS: u64 = 10_000_000;

/// Maximum number of times that the panic hook tries to lock [`RUNNING`].
const PANIC_CHECKS_MAX: u32 = 1000;

/// The running process groups, by the IDs of their first processes. A panic kills them
/// ([`kill_at_panic`]).
static RUNNING: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// Installs a panic hook that kills all started processes. A release build aborts without running
/// destructors. Without the hook, processes suspended by SIGSTOP would then remain forever.
pub(super) fn kill_at_panic() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        kill_all();
        before(info);
    }));
}

fn kill_all() {
    for _ in 0..PANIC_CHECKS_MAX {
        let running = match RUNNING.try_lock() {
            Ok(running) => running,
            // The set is valid even if another thread panicked while it held the lock.
            Err(TryLockError::Poisoned(running)) => running.into_inner(),
            // Another thread holds the lock for a moment, to add or remove a process. The panicking
            // thread itself doesn't hold the lock.
            Err(TryLockError::WouldBlock) => {
                thread::sleep(Duration::from_millis(1));
                continue;
            }
        };
        for group in running.iter().copied().filter_map(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        return;
    }
}

/// A server's process and its children. Dropping the value kills them.
pub(super) struct Process {
    child: Child,
    log: PathBuf,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts `words` in the folder `dir` on `cpus`, or on all CPUs if `cpus` is empty. The output
    /// is written to the file `log` in that folder.
    pub(super) fn start(words: &[String], dir: &Path, cpus: &[usize]) -> io::Result<Self> {
        let with_path =
            |what: &Path, error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", what.display()));
        let log = dir.join("log");
        let output = File::create(&log).map_err(|error| with_path(&log, error))?;
        let errors = output.try_clone()?;
        let (program, arguments) = words.split_first().ok_or_else(|| io::Error::other("an empty command"))?;
        let mut command = Command::new(program);
        // A separate process group ensures that Ctrl-C reaches only pantala-bench, which then stops
        // the server.
        command.args(arguments).current_dir(dir).process_group(0);
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        // A child inherits the CPU affinity of the thread that starts it. A separate thread starts
        // the child, so that the caller's affinity stays the same.
        let child = thread::scope(|scope| {
            let start = || {
                if !cpus.is_empty() {
                    pantala_base::cpus::run_on(cpus)?;
                }
                command.spawn().map_err(|error| with_path(Path::new(program), error))
            };
            scope.spawn(start).join().unwrap_or_else(|_| Err(io::Error::other("the starting thread panicked")))
        })?;
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner).insert(Pid::from_child(&child).as_raw_pid());
        Ok(Self { child, log, ended: None })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the exit status, if the process has ended.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            self.ended = Some(status);
            // This also kills the children of the process.
            self.signal(Signal::KILL);
            self.leave();
        }
        self.ended
    }

    /// Returns the last lines of the process's output, joined to one line.
    pub(super) fn last_output(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text[text.len().saturating_sub(LOG_TAIL_BYTES)..]).into_owned();
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        if lines.is_empty() {
            "it printed nothing".to_owned()
        } else {
            lines[lines.len().saturating_sub(4)..].join(" | ")
        }
    }

    /// Suspends or resumes the process group.
    pub(super) fn pause(&self, pause: bool) {
        if self.ended.is_none() {
            self.signal(if pause { Signal::STOP } else { Signal::CONT });
        }
    }

    fn signal(&self, signal: Signal) {
        // The error is ignored: the signal fails only if the group has already ended.
        let _ = kill_process_group(Pid::from_child(&self.child), signal);
    }

    /// Sends SIGTERM, and resumes the process so that it can handle the signal. [`Process::finish`]
    /// waits until the process has ended.
    pub(super) fn terminate(&mut self) {
        if self.ended().is_none() {
            self.signal(Signal::TERM);
            self.signal(Signal::CONT);
        }
    }

    /// Waits until the process has ended. Kills it after [`END_MAX`].
    pub(super) fn finish(&mut self) {
        let begin = Instant::now();
        while self.ended().is_none() && begin.elapsed() < END_MAX {
            thread::sleep(END_CHECK);
        }
        self.kill();
    }

    fn kill(&mut self) {
        if self.ended().is_none() {
            self.signal(Signal::KILL);
            self.ended = self.child.wait().ok();
            self.leave();
        }
    }

    /// Removes the process from [`RUNNING`], because the kernel may soon give its ID to another
    /// process.
    fn leave(&self) {
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner).remove(&Pid::from_child(&self.child).as_raw_pid());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The counters of a set of processes and their descendants at one time.
#[derive(Clone, Debug, Default)]
pub(super) struct Usage {
    /// Counters of running threads, by process ID and thread ID.
    threads: BTreeMap<(u32, u32), Counters>,
    /// CPU time of children that have ended and were waited for.
    reaped_ns: u64,
    /// Bytes that the kernel has written to disks or will write, including those of ended children.
    written_bytes: u64,
}

/// Counters of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counters {
    cpu_ns: u64,
    /// Time in the run queue (ready to run, without a CPU).
    wait_ns: u64,
    /// Context switches in which the thread began to wait.
    voluntary: u64,
    /// Context switches in which the kernel took the CPU from the thread.
    involuntary: u64,
}

/// The difference of two [`Usage`]s.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spent {
    pub(super) cpu_s: f64,
    /// Time during which threads were ready to run but had no CPU.
    pub(super) wait_s: f64,
    /// CPU time of the busiest thread.
    pub(super) busiest_s: f64,
    /// Time on a CPU plus time in the run queue, of the thread for which this sum is highest.
    pub(super) wanting_s: f64,
    /// Number of times that a thread released its CPU to wait.
    pub(super) voluntary: u64,
    /// Number of times that the kernel took the CPU from a thread that was still running.
    pub(super) involuntary: u64,
    /// Bytes written to files. Bytes that are still in the page cache count too, but not those of a
    /// file system in memory.
    pub(super) written_bytes: u64,
}

impl Usage {
    /// Reads the counters of the processes `roots` and their descendants. The counters of a process
    /// that has ended are zero.
    pub(super) fn now(roots: &[u32]) -> Self {
        let mut usage = Self::default();
        for pid in family(roots) {
            if let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) {
                // Fields 16 and 17 are the user and system time of the children that were waited
                // for.
                usage.reaped_ns += (stat_field(&stat, 16) + stat_field(&stat, 17)) * TICK_NS;
            }
            // When a process waits for a child that has ended, the kernel adds the child's I/O
            // counters to those of the process.
            let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
            usage.written_bytes += status_number(&io, "write_bytes:");
            for thread in numbers_in(&format!("/proc/{pid}/task")) {
                if let Some((cpu_ns, wait_ns)) = thread_times(pid, thread) {
                    let status = fs::read_to_string(format!("/proc/{pid}/task/{thread}/status")).unwrap_or_default();
                    let [voluntary, involuntary] = switches(&status);
                    usage.threads.insert((pid, thread), Counters { cpu_ns, wait_ns, voluntary, involuntary });
                }
            }
        }
        usage
    }

    pub(super) fn since(&self, before: &Self) -> Spent {
        let mut spent = Spent {
            cpu_s: self.reaped_ns.saturating_sub(before.reaped_ns) as f64 / 1e9,
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
            ..Spent::default()
        };
        for (thread, now) in &self.threads {
            let before = before.threads.get(thread).copied().unwrap_or_default();
            let cpu_s = now.cpu_ns.saturating_sub(before.cpu_ns) as f64 / 1e9;
            spent.cpu_s += cpu_s;
            let wait_s = now.wait_ns.saturating_sub(before.wait_ns) as f64 / 1e9;
            spent.wait_s += wait_s;
            spent.voluntary += now.voluntary.saturating_sub(before.voluntary);
            spent.involuntary += now.involuntary.saturating_sub(before.involuntary);
            spent.busiest_s = spent.busiest_s.max(cpu_s);
            spent.wanting_s = spent.wanting_s.max(cpu_s + wait_s);
        }
        spent
    }
}

/// Returns how long a thread was on a CPU and in the run queue, in nanoseconds. Without scheduler
/// statistics, the time in the run queue is 0, and the time on a CPU is a multiple of [`TICK_NS`].
fn thread_times(pid: u32, thread: u32) -> Option<(u64, u64)> {
    if let Ok(text) = fs::read_to_string(format!("/proc/{pid}/task/{thread}/schedstat")) {
        let mut words = text.split_whitespace().map(str::parse);
        if let (Some(Ok(cpu_ns)), Some(Ok(wait_ns))) = (words.next(), words.next()) {
            return Some((cpu_ns, wait_ns));
        }
    }
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{thread}/stat")).ok()?;
    Some(((stat_field(&stat, 14) + stat_field(&stat, 15)) * TICK_NS, 0))
}

/// Returns the field `number` of a `stat` line as a number, or 0 if it is missing. As in proc(5),
/// fields are numbered from 1; `number` is at least 3.
fn stat_field(stat: &str, number: usize) -> u64 {
    stat_word(stat, number).parse().unwrap_or_default()
}

/// Returns the field `number` of a `stat` line, or an empty string if it is missing. As in proc(5),
/// fields are numbered from 1; `number` is at least 3. The search starts after field 2, which is in
/// parentheses and may contain any text.
pub(super) fn stat_word(stat: &str, number: usize) -> &str {
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    rest.split_whitespace().nth(number.saturating_sub(3)).unwrap_or_default()
}

fn numbers_in(folder: &str) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the numbers of voluntary and involuntary context switches in a thread's `status`.
fn switches(status: &str) -> [u64; 2] {
    ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"].map(|name| status_number(status, name))
}

/// Returns the IDs of all threads of `roots` and their descendants.
pub(super) fn threads_of(roots: &[u32]) -> Vec<u32> {
    family(roots).iter().flat_map(|pid| numbers_in(&format!("/proc/{pid}/task"))).collect()
}

/// Returns `roots` and all their descendants.
fn family(roots: &[u32]) -> Vec<u32> {
    let mut found = roots.to_vec();
    let mut at = 0;
    while let Some(&pid) = found.get(at) {
        at += 1;
        for thread in numbers_in(&format!("/proc/{pid}/task")) {
            let children = fs::read_to_string(format!("/proc/{pid}/task/{thread}/children")).unwrap_or_default();
            found.extend(children.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
        }
    }
    found
}

/// Returns the current resident memory of `roots` and their descendants, and the sum of their
/// peaks, in bytes.
pub(super) fn resident_bytes(roots: &[u32]) -> (u64, u64) {
    let of = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        (status_bytes(&status, "VmRSS:"), status_bytes(&status, "VmHWM:"))
    };
    family(roots).iter().map(of).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

fn status_bytes(status: &str, name: &str) -> u64 {
    status_number(status, name) * 1024
}

/// Returns the number after `name` in a `status` or `io` file, or 0 if `name` is missing.
fn status_number(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
    line.split_whitespace().next().and_then(|word| word.parse::<u64>().ok()).unwrap_or_default()
}

/// Each test that starts a process holds this lock, because a panic in one test kills the processes
/// of all tests.
#[cfg(test)]
pub(super) static ALONE: Mutex<()> = Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn fields_are_counted_behind_the_name() {
        let stat = "12 (a) b (c) S 1 12 12 0 -1 4194560 1 2 3 4 70 30 5 6 20 0";
        assert_eq!((stat_field(stat, 14), stat_field(stat, 15), stat_field(stat, 17)), (70, 30, 6));
        assert_eq!(stat_field(stat, 99), 0);
        assert_eq!(status_bytes("VmPeak:\t 9 kB\nVmRSS:\t    12 kB\n", "VmRSS:"), 12 * 1024);
        let status = "Threads:\t1\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t545\n";
        assert_eq!((switches(status), switches("Threads:\t1\n")), ([150, 545], [0, 0]));
    }

    #[test]
    fn differences_are_by_thread() {
        let usage = |threads: &[(u32, [u64; 4])], reaped_ns| Usage {
            threads: threads
                .iter()
                .map(|(thread, [cpu_ms, wait_ms, voluntary, involuntary])| {
                    let (cpu_ns, wait_ns) = (cpu_ms * 1_000_000, wait_ms * 1_000_000);
                    let (voluntary, involuntary) = (*voluntary, *involuntary);
                    ((1, *thread), Counters { cpu_ns, wait_ns, voluntary, involuntary })
                })
                .collect(),
            reaped_ns,
            written_bytes: reaped_ns / 1_000_000,
        };
        let before = usage(&[(1, [5_000, 1_000, 70, 5]), (2, [7_000, 0, 9, 9])], 0);
        let after = usage(&[(1, [6_000, 2_500, 90, 5]), (3, [2_000, 0, 3, 4])], 500_000_000);
        let expected = Spent {
            cpu_s: 3.5,
            wait_s: 1.5,
            busiest_s: 2.0,
            wanting_s: 2.5,
            voluntary: 23,
            involuntary: 4,
            written_bytes: 500,
        };
        assert_eq!(after.since(&before), expected);
    }

    #[test]
    fn a_panic_ends_what_runs() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        let mut process = Process::start(&words("sleep 600"), dir.path(), &[]).unwrap();
        process.pause(true);
        kill_at_panic();
        let panicked = thread::spawn(|| panic!("on purpose")).join();
        // Removes the hook that this test installed.
        let _ = panic::take_hook();
        assert!(panicked.is_err());
        let begin = Instant::now();
        while process.ended().is_none() {
            assert!(begin.elapsed() < Duration::from_secs(60), "it still runs");
            thread::sleep(Duration::from_millis(5));
        }
        let id = process.id() as i32;
        assert!(!RUNNING.lock().unwrap().contains(&id), "its id may be another's by now");
    }

    #[test]
    fn child_processes_are_counted_and_end_with_their_parent() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        let script = "while :; do :; done & echo started; wait";
        let mut process = Process::start(&["sh".into(), "-c".into(), script.into()], dir.path(), &[]).unwrap();
        let before = Usage::now(&[process.id()]);
        let begin = Instant::now();
        while Usage::now(&[process.id()]).since(&before).cpu_s < 0.05 {
            assert!(begin.elapsed() < Duration::from_secs(60), "the shell's child uses no CPU");
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(process.last_output(), "started");
        assert!(resident_bytes(&[process.id()]).0 > 0);
        let group = family(&[process.id()]);
        assert!(group.len() >= 2, "{group:?}");
        process.pause(true);
        process.terminate();
        process.finish();
        assert!(process.ended().is_some());
        // Nothing in this test waits for the orphaned child, so it may remain as a zombie.
        let alive = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z"));
        let begin = Instant::now();
        while group.iter().any(alive) {
            assert!(begin.elapsed() < Duration::from_secs(60), "{group:?} still run");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_missing_program_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let error = Process::start(&words("/no/such/program -x"), dir.path(), &[]).err().unwrap();
        assert!(error.to_string().starts_with("/no/such/program: "), "{error}");
    }
}
