//! Simulates the path of effects to the append-only file: the journal's thread, the writer thread
//! and the disk. An *effect* is a change in the form of a command. The *unwritten* effects are
//! those that workers have recorded and the writer has not written yet.
//!
//! Workers record effects at a constant rate. The journal's thread collects them once a millisecond
//! (an *epoch*), merges them, and delivers them to the log. The writer thread takes a *batch* of up
//! to [`BATCH_BYTES`] from the log, copies it to a buffer, and waits for the disk. So the CPU time
//! of the writer and the time of the disk add up. Once a second the writer also syncs the file.
//! While more than [`UNWRITTEN_BYTES_MAX`] bytes are unwritten, replies to writes wait, so workers
//! record nothing until [`CAUGHT_UP_BYTES`] remain.
//!
//! The simulation has no random numbers. The two threads have a core each. It does not model
//! rewrites of the file, the commands that a worker still runs when replies start to wait, and the
//! bandwidth of memory.

/// Minimum time between two deliveries by the journal's thread (`EPOCH_TIME` in
/// `crates/engine/src/effect/journal.rs`), in ns.
const EPOCH_NS: f64 = 1e6;
/// Maximum size of a batch, as in `crates/server/src/aof/writer.rs`.
const BATCH_BYTES: f64 = (8 << 20) as f64;
/// Minimum size of a batch that bypasses the page cache (`DIRECT_BYTES_MIN` in
/// `crates/runtime/src/file.rs`).
const DIRECT_BYTES_MIN: f64 = (256 << 10) as f64;
/// Size of unwritten effects above which replies to writes wait (`crates/server/src/aof/gate.rs`).
const UNWRITTEN_BYTES_MAX: f64 = (256 << 20) as f64;
/// Size of unwritten effects at which the waiting replies are sent (same file).
const CAUGHT_UP_BYTES: f64 = UNWRITTEN_BYTES_MAX - (24 << 20) as f64;
/// Interval between two syncs, in ns.
const SYNC_INTERVAL_NS: f64 = 1e9;
/// Simulated time before the measured time, in ns. During this time the unwritten effects reach
/// their limit, unless the disk is slower than the workers by a few percent only.
const WARM_UP_NS: f64 = 10e9;
/// Simulated and measured time, in ns.
const MEASURED_NS: f64 = 20e9;

/// A disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Disk {
    /// Time to write a byte, in ns. It is 0 if the disk is infinitely fast.
    pub(super) ns_per_byte: f64,
    /// Time of a sync, in ns.
    pub(super) sync_ns: f64,
    /// Additional time before each batch (`DEBUG AOF-FLUSH-SLEEP`), in ns.
    pub(super) pause_ns: f64,
}

/// The parameters of a simulation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene {
    /// Operations per second of all workers while no reply waits.
    pub(super) operations_per_s: f64,
    /// Number of bytes that an operation adds to the file.
    pub(super) effect_bytes: f64,
    /// CPU time of the journal's thread for an epoch, in ns.
    pub(super) epoch_ns: f64,
    /// CPU time of the journal's thread for an operation, in ns.
    pub(super) merge_ns: f64,
    /// CPU time of the writer for a batch, in ns.
    pub(super) batch_ns: f64,
    /// CPU time of the writer for a byte that bypasses the page cache, in ns.
    pub(super) direct_ns_per_byte: f64,
    /// CPU time of the writer for a byte that goes through the page cache, in ns. The disk writes
    /// such bytes at the next sync, or before the next write that bypasses the page cache.
    pub(super) cached_ns_per_byte: f64,
    pub(super) disk: Disk,
}

/// The result of a simulation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    /// Operations per second of the workers if no reply waited.
    pub(super) offered_per_s: f64,
    /// Operations per second whose effects were written.
    pub(super) operations_per_s: f64,
    /// Share of the time in which the journal's thread works.
    pub(super) journal: f64,
    /// Share of the time in which the writer works.
    pub(super) writer: f64,
    /// Share of the time in which the writer waits for the disk, including syncs.
    pub(super) disk: f64,
    /// Share of the time in which replies to writes wait.
    pub(super) shut: f64,
    /// Maximum size of the unwritten effects, in bytes.
    pub(super) unwritten_bytes: f64,
    /// Number of epochs per second.
    pub(super) epochs_per_s: f64,
}

impl Outcome {
    /// Returns the CPU time of the journal's thread per operation, in µs.
    pub(super) fn journal_us(&self) -> f64 {
        self.journal * 1e6 / self.operations_per_s
    }

    /// Returns the CPU time of the writer per operation, in µs.
    pub(super) fn writer_us(&self) -> f64 {
        self.writer * 1e6 / self.operations_per_s
    }
}

/// The current task of one of the two threads, and its end.
#[derive(Clone, Copy)]
struct Task {
    until_ns: f64,
    /// Number of bytes that the thread passes on at that time.
    bytes: f64,
}

impl Task {
    /// The thread waits for an event.
    const ASLEEP: Self = Self { until_ns: f64::INFINITY, bytes: 0.0 };
}

struct Simulation {
    scene: Scene,
    now_ns: f64,
    /// Bytes that workers have recorded and the journal's thread has not collected.
    recorded: f64,
    /// Bytes in the log that the writer has not read.
    logged: f64,
    journal: Task,
    writer: Task,
    synced_ns: f64,
    /// Bytes in the page cache that are not on disk.
    cached: f64,
    is_shut: bool,
    outcome: Outcome,
    written: f64,
}

/// Simulates [`MEASURED_NS`] after [`WARM_UP_NS`].
pub(super) fn simulate(scene: &Scene) -> Outcome {
    let mut simulation = Simulation {
        scene: *scene,
        now_ns: 0.0,
        recorded: 0.0,
        logged: 0.0,
        journal: Task { until_ns: EPOCH_NS, bytes: 0.0 },
        writer: Task::ASLEEP,
        synced_ns: 0.0,
        cached: 0.0,
        is_shut: false,
        outcome: Outcome::default(),
        written: 0.0,
    };
    simulation.run_until(WARM_UP_NS);
    (simulation.outcome, simulation.written) = (Outcome::default(), 0.0);
    let began_ns = simulation.now_ns;
    simulation.run_until(WARM_UP_NS + MEASURED_NS);
    let (elapsed_ns, sum) = (simulation.now_ns - began_ns, simulation.outcome);
    Outcome {
        offered_per_s: scene.operations_per_s,
        operations_per_s: simulation.written / scene.effect_bytes / elapsed_ns * 1e9,
        journal: sum.journal / elapsed_ns,
        writer: sum.writer / elapsed_ns,
        disk: sum.disk / elapsed_ns,
        shut: sum.shut / elapsed_ns,
        unwritten_bytes: sum.unwritten_bytes,
        epochs_per_s: sum.epochs_per_s / elapsed_ns * 1e9,
    }
}

impl Simulation {
    fn run_until(&mut self, end_ns: f64) {
        while self.now_ns < end_ns {
            let next_ns = self.journal.until_ns.min(self.writer.until_ns);
            let elapsed_ns = next_ns - self.now_ns;
            self.now_ns = next_ns;
            if self.is_shut {
                self.outcome.shut += elapsed_ns;
            } else {
                // If the limit is reached within this time, nothing is recorded in the rest of it.
                let offered = elapsed_ns * self.scene.operations_per_s / 1e9 * self.scene.effect_bytes;
                let recorded = offered.min((UNWRITTEN_BYTES_MAX - self.unwritten()).max(0.0));
                self.recorded += recorded;
                self.outcome.shut += if offered > 0.0 { elapsed_ns * (1.0 - recorded / offered) } else { 0.0 };
            }
            let unwritten = self.unwritten();
            self.outcome.unwritten_bytes = self.outcome.unwritten_bytes.max(unwritten);
            self.is_shut |= unwritten >= UNWRITTEN_BYTES_MAX;
            if self.journal.until_ns <= next_ns {
                self.journal_event();
            }
            if self.writer.until_ns <= next_ns {
                self.written += self.writer.bytes;
                self.writer = Task::ASLEEP;
            }
            if self.writer.until_ns == f64::INFINITY && self.logged > 0.0 {
                self.write();
            }
            self.is_shut &= self.unwritten() > CAUGHT_UP_BYTES;
        }
    }

    fn unwritten(&self) -> f64 {
        self.recorded + self.journal.bytes + self.logged + self.writer.bytes
    }

    /// Ends an epoch, or delivers the bytes of the epoch that has ended.
    fn journal_event(&mut self) {
        if self.journal.bytes > 0.0 || self.recorded == 0.0 {
            self.logged += self.journal.bytes;
            self.journal = Task { until_ns: self.now_ns + EPOCH_NS, bytes: 0.0 };
            return;
        }
        let bytes = std::mem::take(&mut self.recorded);
        let work_ns = self.scene.epoch_ns + bytes / self.scene.effect_bytes * self.scene.merge_ns;
        self.journal = Task { until_ns: self.now_ns + work_ns, bytes };
        self.outcome.journal += work_ns;
        self.outcome.epochs_per_s += 1.0;
    }

    /// Starts to write a batch.
    fn write(&mut self) {
        let Scene { batch_ns, direct_ns_per_byte, cached_ns_per_byte, disk, .. } = self.scene;
        let bytes = self.logged.min(BATCH_BYTES);
        self.logged -= bytes;
        let is_sync_due = self.now_ns >= self.synced_ns + SYNC_INTERVAL_NS;
        let is_direct = bytes >= DIRECT_BYTES_MIN;
        let work_ns = batch_ns + bytes * if is_direct { direct_ns_per_byte } else { cached_ns_per_byte };
        self.cached += if is_direct { 0.0 } else { bytes };
        let mut disk_bytes = if is_direct { bytes } else { 0.0 };
        if is_direct || is_sync_due {
            disk_bytes += std::mem::take(&mut self.cached);
        }
        let mut disk_ns = disk.pause_ns + disk_bytes * disk.ns_per_byte;
        if is_sync_due {
            disk_ns += disk.sync_ns;
            self.synced_ns = self.now_ns + work_ns + disk_ns;
        }
        self.writer = Task { until_ns: self.now_ns + work_ns + disk_ns, bytes };
        self.outcome.writer += work_ns;
        self.outcome.disk += disk_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a scene in which an effect has 1,000 bytes. The writer runs for 500 ns for each, and
    /// the disk takes as long.
    fn scene(operations_per_s: f64) -> Scene {
        Scene {
            operations_per_s,
            effect_bytes: 1000.0,
            epoch_ns: 0.0,
            merge_ns: 0.0,
            batch_ns: 0.0,
            direct_ns_per_byte: 0.5,
            cached_ns_per_byte: 0.5,
            disk: Disk { ns_per_byte: 0.5, sync_ns: 0.0, pause_ns: 0.0 },
        }
    }

    #[track_caller]
    fn assert_near(value: f64, wanted: f64, within: f64) {
        assert!((value / wanted - 1.0).abs() <= within, "{value} is not {wanted} ± {within}");
    }

    #[test]
    fn a_fast_disk_does_not_limit_the_workers() {
        let outcome = simulate(&scene(500_000.0));
        assert_near(outcome.operations_per_s, 500_000.0, 0.01);
        assert_eq!(outcome.shut, 0.0);
        assert_near(outcome.writer, 0.25, 0.01);
        assert_near(outcome.disk, 0.25, 0.01);
        assert!(outcome.unwritten_bytes < 2e6, "{outcome:?}");
    }

    /// The writer does not run while it waits for the disk. So both times limit the throughput.
    #[test]
    fn a_slow_disk_limits_the_workers_and_memory_stays_bounded() {
        let mut slow = scene(5_000_000.0);
        for (ns_per_byte, wanted) in [(0.5, 1e6), (9.5, 1e5)] {
            slow.disk.ns_per_byte = ns_per_byte;
            let outcome = simulate(&slow);
            assert_near(outcome.operations_per_s, wanted, 0.01);
            assert_near(outcome.writer + outcome.disk, 1.0, 0.01);
            assert_near(outcome.shut, 1.0 - wanted / 5e6, 0.02);
            assert_near(outcome.unwritten_bytes, UNWRITTEN_BYTES_MAX, 1e-6);
        }
    }

    #[test]
    fn with_an_infinitely_fast_disk_the_writer_limits_the_workers() {
        let mut fast = scene(5_000_000.0);
        fast.disk.ns_per_byte = 0.0;
        let outcome = simulate(&fast);
        assert_near(outcome.operations_per_s, 2e6, 0.01);
        assert_near(outcome.writer, 1.0, 0.01);
        assert_eq!(outcome.disk, 0.0);
    }

    #[test]
    fn the_journal_limits_the_workers_if_merging_is_slow() {
        let mut scene = scene(5_000_000.0);
        scene.merge_ns = 2000.0;
        let outcome = simulate(&scene);
        assert_near(outcome.operations_per_s, 500_000.0, 0.02);
        assert!(outcome.journal > 0.98 && outcome.writer + outcome.disk < 0.6, "{outcome:?}");
    }

    /// Unwritten effects stay in memory during a sync. So a sync delays no reply unless the disk is
    /// always busy.
    #[test]
    fn a_sync_costs_throughput_only_if_the_disk_is_saturated() {
        for (offered, wanted) in [(500_000.0, 500_000.0), (5_000_000.0, 1e6 / 1.2)] {
            let mut scene = scene(offered);
            scene.disk.sync_ns = 0.2e9;
            let outcome = simulate(&scene);
            assert_near(outcome.operations_per_s, wanted, 0.03);
            assert_eq!(outcome.shut > 0.0, wanted < offered, "{outcome:?}");
        }
    }

    /// With 100 bytes per µs a batch has less than 256 KiB. So its bytes go through the page cache,
    /// and the disk writes them at the next sync.
    #[test]
    fn cached_bytes_are_written_at_the_sync() {
        let mut scene = scene(100_000.0);
        (scene.cached_ns_per_byte, scene.disk.ns_per_byte) = (2.0, 0.5);
        let outcome = simulate(&scene);
        assert_near(outcome.operations_per_s, 100_000.0, 0.01);
        assert_near(outcome.disk, 0.05, 0.05);
        // A batch after a sync is large, and bypasses the page cache.
        assert_near(outcome.writer, 0.2, 0.1);
    }

    #[test]
    fn a_pause_before_each_batch_counts_as_time_of_the_disk() {
        let mut paused = scene(1_000_000.0);
        paused.disk.pause_ns = 40e6;
        let outcome = simulate(&paused);
        // Batches have their full size.
        let batch_ns = 40e6 + BATCH_BYTES;
        assert_near(outcome.operations_per_s, BATCH_BYTES / 1000.0 / batch_ns * 1e9, 0.02);
    }
}
