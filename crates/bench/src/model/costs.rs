//! The costs that the model uses: measured, fitted or assumed.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::lines::{self, Row};

/// The prefixes of an input's source. They distinguish measured, fitted and assumed inputs.
const KINDS: [&str; 3] = ["measured: ", "fitted: ", "assumed: "];
/// The measured time of the engine includes copying a value of up to this size, in bytes.
const VALUE_BYTES_OF_ENGINE: f64 = 64.0;

/// All costs. The file `costs.json` in this folder has this form.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Costs {
    pub(super) host: String,
    pub(super) engine: Engine,
    pub(super) line: Line,
    /// Time for which a worker spins at a held shard before it leaves a request there, in ns.
    pub(super) spin_ns: Input,
    /// Time to copy one byte beyond [`VALUE_BYTES_OF_ENGINE`] while the shard is held, in ns.
    pub(super) copy_ns_per_byte: Input,
    pub(super) message: Message,
    pub(super) owner: Owner,
    pub(super) file: FileCosts,
    pub(super) workloads: Vec<Load>,
}

/// A number and its source.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Input {
    pub(super) value: f64,
    /// The source of the number. It starts with one of [`KINDS`].
    pub(super) source: String,
}

/// Costs of the engine without sockets.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Engine {
    /// Time of one operation on one worker, in ns.
    pub(super) operation_ns: Input,
    /// The part of `operation_ns` during which the shard is held, in ns.
    pub(super) held_ns: Input,
    /// Throughput of two workers divided by the throughput of one.
    pub(super) ratios: Vec<Ratio>,
    pub(super) source: String,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Ratio {
    /// The distribution of the keys: `uniform`, or `zipf` and the exponent.
    pub(super) keys: String,
    pub(super) shards: u32,
    pub(super) ratio: f64,
    /// Whether the model's constants were fitted to this row. That the model agrees with a fitted
    /// row proves nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) fitted: bool,
}

impl Ratio {
    /// Returns the Zipf exponent of the keys, or 0 if they are uniform.
    pub(super) fn exponent(&self) -> f64 {
        self.keys.strip_prefix("zipf ").and_then(|text| text.parse().ok()).unwrap_or(0.0)
    }
}

/// Costs of transferring a cache line that another core wrote last.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Line {
    /// Transfer time between the cores of the measured host, in ns.
    pub(super) here_ns: Input,
    /// Transfer time on the modelled machine, in ns.
    pub(super) there_ns: Input,
    /// Share of a transfer that a prefetch hides, from 0 to 1. A prefetch loads the lines of a
    /// key's entry and the line of a shard's gate (the word that shows whether the shard is held)
    /// while the previous command runs.
    pub(super) hidden: Input,
    /// Size of a worker's own cache, in bytes. An entry leaves this cache when the worker has
    /// loaded this many other bytes, or when another core writes the entry.
    pub(super) own_cache_bytes: Input,
}

/// Costs of a request left at a held shard, and of its reply.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Message {
    /// Time to create a request and to read its reply, in ns.
    pub(super) request_ns: Input,
    /// Number of cache-line transfers that a request costs its sender. The transfers follow one
    /// another. The worker that runs the request pays for the same number.
    pub(super) lines: Input,
}

/// Measurements of `--execution owner`, including sockets and clients.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Owner {
    pub(super) source: String,
    pub(super) workers: u32,
    pub(super) shards: u32,
    pub(super) rows: Vec<OwnerRow>,
}

/// One workload with `--execution owner` and with `inline`. Each ratio is `owner` divided by
/// `inline`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct OwnerRow {
    /// The name of a workload in this file.
    pub(super) workload: String,
    /// CPU time of the server per operation with `inline`, in µs.
    pub(super) inline_us: f64,
    /// CPU time of the generator per operation, in µs. The generator shared the cores with the
    /// server.
    pub(super) client_us: f64,
    /// Ratio of the server's CPU times per operation.
    pub(super) cpu: f64,
    /// Ratio of the throughputs.
    pub(super) rate: f64,
    /// Whether the model's constants were fitted to `cpu`; see [`Ratio::fitted`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) fitted: bool,
}

/// Costs of SETs while the append-only file is written. All CPU times include system calls.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct FileCosts {
    /// CPU time of a worker for a pipelined SET without the file, in ns.
    pub(super) set_ns: Input,
    /// The same for each byte of the value.
    pub(super) set_ns_per_byte: Input,
    /// CPU time of a worker to record an effect, in ns.
    pub(super) record_ns: Input,
    /// The same for each byte of the value: the worker copies the command to its own buffer.
    pub(super) record_ns_per_byte: Input,
    /// CPU time of the journal's thread for an epoch, in ns.
    pub(super) epoch_ns: Input,
    /// CPU time of the journal's thread for an effect of a single worker, in ns.
    pub(super) merge_ns: Input,
    /// The same for each byte of the effect.
    pub(super) merge_ns_per_byte: Input,
    /// Additional CPU time of the journal's thread for an effect for each doubling of the number of
    /// workers, in ns.
    pub(super) doubling_ns: Input,
    /// The same for each byte of the effect.
    pub(super) doubling_ns_per_byte: Input,
    /// CPU time of the writer for a batch, in ns.
    pub(super) batch_ns: Input,
    /// CPU time of the writer for a byte that bypasses the page cache, in ns.
    pub(super) direct_ns_per_byte: Input,
    /// CPU time of the writer for a byte that goes through the page cache, in ns.
    pub(super) cached_ns_per_byte: Input,
    /// Bandwidth of the measured host's disk, in MB/s.
    pub(super) here_mb_per_s: Input,
    /// Bandwidth of the modelled machine's disk, in MB/s.
    pub(super) there_mb_per_s: Input,
    /// Time of a sync on both machines, in ms.
    pub(super) sync_ms: Input,
    pub(super) rows: Vec<FileRow>,
}

/// Measurements of SETs while the append-only file is written.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct FileRow {
    pub(super) workers: u32,
    pub(super) value_bytes: f64,
    /// Delay before each write to the file (`DEBUG AOF-FLUSH-SLEEP`), in ms.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) delay_ms: f64,
    /// Number of CPUs of the server, without the time that other processes used.
    pub(super) cpus: f64,
    /// CPU time of the clients per operation, in µs.
    pub(super) client_us: f64,
    /// Whether the clients share the server's CPUs. If not, they have one CPU.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) shares_cpus: bool,
    pub(super) operations_per_s: f64,
    /// CPU times per operation of the workers, the journal's thread and the writer, in µs.
    pub(super) workers_us: f64,
    pub(super) journal_us: f64,
    pub(super) writer_us: f64,
    /// Whether the model's constants were fitted to this row; see [`Ratio::fitted`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) fitted: bool,
}

impl FileCosts {
    /// Returns the CPU time of a worker for a SET, in µs.
    pub(super) fn worker_us(&self, value_bytes: f64) -> f64 {
        let each_ns = self.set_ns.value + self.record_ns.value;
        let byte_ns = self.set_ns_per_byte.value + self.record_ns_per_byte.value;
        (each_ns + value_bytes * byte_ns) / 1000.0
    }

    /// Returns the CPU time of the journal's thread for an effect, in ns.
    pub(super) fn merge_ns(&self, workers: u32, effect_bytes: f64) -> f64 {
        let doubling_ns = self.doubling_ns.value + effect_bytes * self.doubling_ns_per_byte.value;
        let single_ns = self.merge_ns.value + effect_bytes * self.merge_ns_per_byte.value;
        single_ns + f64::from(workers).log2() * doubling_ns
    }
}

/// The cost of one workload on one worker, including sockets.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Load {
    pub(super) name: String,
    /// CPU time of the server per operation, in µs. If the workload is not modelled, this is
    /// `None`, and `source` contains the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cpu_us: Option<f64>,
    pub(super) source: String,
    pub(super) keys: u64,
    /// Zipf exponent, or 0 for uniform keys.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) zipf: f64,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub(super) keys_per_operation: u32,
    pub(super) value_bytes: f64,
    /// Number of bytes that an operation sends over the network, in both directions together.
    pub(super) bytes: f64,
    /// Number of connections, if it does not depend on the number of the generator's threads. No
    /// more workers than this have work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) connections: Option<u32>,
    /// Whether the server writes an append-only file. `cpu_us` then includes the CPU time of the
    /// journal's thread and of the writer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) appends: bool,
    pub(super) commands: Vec<Share>,
}

/// A command of a workload, with its weight.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Share {
    /// The name of a row of `lines.txt`.
    pub(super) line: String,
    pub(super) weight: f64,
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_one(count: &u32) -> bool {
    *count == 1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

/// The cache lines that a workload's commands write and that another worker may have written last.
/// The values are means per key of an operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Written {
    /// Number of written lines of the shard.
    pub(super) shard: f64,
    /// Share of the operations that write the key's entry.
    pub(super) writes: f64,
    /// Number of lines of the entry.
    pub(super) entry: f64,
}

impl Load {
    /// Returns the lines that the workload's commands write. `rows` is the table of lines per
    /// command.
    pub(super) fn written(&self, rows: &[Row]) -> Written {
        let all: f64 = self.commands.iter().map(|share| share.weight).sum();
        let mut written = Written { shard: 0.0, writes: 0.0, entry: lines::of_entry(self.value_bytes) };
        for Share { line, weight } in &self.commands {
            let Some(row) = rows.iter().find(|row| row.command == line) else { continue };
            written.shard += row.shard * weight / all;
            written.writes += row.entry_lines(self.value_bytes) / written.entry * weight / all;
        }
        written
    }

    /// Returns the time for which an operation holds the shard of each key, in ns.
    pub(super) fn held_ns(&self, costs: &Costs) -> f64 {
        let copied = (self.value_bytes - VALUE_BYTES_OF_ENGINE).max(0.0);
        costs.engine.held_ns.value + copied * costs.copy_ns_per_byte.value
    }
}

impl Costs {
    /// Returns the built-in costs.
    pub(super) fn built_in() -> io::Result<Self> {
        Self::parse(include_str!("costs.json"))
    }

    /// Reads the costs from a file.
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        Self::parse(&text)
    }

    /// Writes the costs to a file that [`Costs::read`] can read.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(path, text + "\n")
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    }

    fn parse(text: &str) -> io::Result<Self> {
        let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidData, format!("costs: {why}"));
        let costs: Self = serde_json::from_str(text).map_err(|error| wrong(&error.to_string()))?;
        for (name, input) in costs.inputs() {
            if !KINDS.iter().any(|kind| input.source.starts_with(kind)) {
                return Err(wrong(&format!("{name}: its source begins with none of {}", KINDS.join(", "))));
            }
            if !(input.value >= 0.0 && input.value.is_finite()) {
                return Err(wrong(&format!("{name}: below 0")));
            }
        }
        let (held_ns, rows) = (costs.engine.held_ns.value, lines::rows());
        if held_ns <= 0.0 || held_ns > costs.engine.operation_ns.value || costs.line.hidden.value > 1.0 {
            return Err(wrong("held_ns or hidden: out of range"));
        }
        for load in &costs.workloads {
            let name = &load.name;
            let is_sound = load.keys > 0 && load.keys_per_operation > 0 && load.zipf >= 0.0 && load.value_bytes >= 0.0;
            if !is_sound
                || load.commands.is_empty()
                || load.commands.iter().any(|share| share.weight.is_nan() || share.weight <= 0.0)
            {
                return Err(wrong(&format!("{name}: out of range")));
            }
            if let Some(share) = load.commands.iter().find(|share| rows.iter().all(|row| row.command != share.line)) {
                return Err(wrong(&format!("{name}: '{}' isn't in lines.txt", share.line)));
            }
        }
        let is_sound =
            |workers: u32, shards: u32| (1..=super::simulate::WORKERS_MAX as u32).contains(&workers) && shards > 0;
        if costs.engine.ratios.iter().any(|ratio| ratio.shards == 0)
            || !is_sound(costs.owner.workers, costs.owner.shards)
        {
            return Err(wrong("shards or workers of a measured row: out of range"));
        }
        if let Some(load) =
            costs.workloads.iter().find(|load| load.cpu_us.is_some_and(|cpu_us| cpu_us.is_nan() || cpu_us <= 0.0))
        {
            return Err(wrong(&format!("{}: cpu_us is not above 0", load.name)));
        }
        if costs.file.rows.iter().any(|row| {
            let FileRow { cpus, operations_per_s, workers_us, client_us, .. } = *row;
            let is_positive = [cpus, operations_per_s, workers_us, client_us].iter().all(|&value| value > 0.0);
            !is_positive || !is_sound(row.workers, 1)
        }) {
            return Err(wrong("file: a measured row is out of range"));
        }
        if let Some(row) = costs.owner.rows.iter().find(|row| costs.load(&row.workload).is_none()) {
            return Err(wrong(&format!("owner: no workload '{}'", row.workload)));
        }
        Ok(costs)
    }

    /// Returns the workload named `name`.
    pub(super) fn load(&self, name: &str) -> Option<&Load> {
        self.workloads.iter().find(|load| load.name == name)
    }

    /// Returns all inputs that don't belong to a workload, with their names.
    pub(super) fn inputs(&self) -> [(&'static str, &Input); 25] {
        let Costs { engine, line, message, file, .. } = self;
        [
            ("engine operation, ns", &engine.operation_ns),
            ("part of it with the shard held, ns", &engine.held_ns),
            ("line transfer on the measured host, ns", &line.here_ns),
            ("line transfer on the modelled one, ns", &line.there_ns),
            ("part that a prefetch hides", &line.hidden),
            ("own cache of a worker, bytes", &line.own_cache_bytes),
            ("spinning before a request is left, ns", &self.spin_ns),
            ("copying a byte with the shard held, ns", &self.copy_ns_per_byte),
            ("request and reply, ns", &message.request_ns),
            ("dependent transfers of it, on each side", &message.lines),
            ("SET without the file, ns", &file.set_ns),
            ("the same for a byte of the value, ns", &file.set_ns_per_byte),
            ("recording an effect, ns", &file.record_ns),
            ("the same for a byte of the value, ns", &file.record_ns_per_byte),
            ("journal's thread, epoch, ns", &file.epoch_ns),
            ("merging an effect of one worker, ns", &file.merge_ns),
            ("the same for a byte of the effect, ns", &file.merge_ns_per_byte),
            ("added for each doubling of workers, ns", &file.doubling_ns),
            ("the same for a byte of the effect, ns", &file.doubling_ns_per_byte),
            ("writer, batch, ns", &file.batch_ns),
            ("writer, byte past the page cache, ns", &file.direct_ns_per_byte),
            ("writer, byte through the page cache, ns", &file.cached_ns_per_byte),
            ("disk of the measured host, MB/s", &file.here_mb_per_s),
            ("disk of the modelled one, MB/s", &file.there_mb_per_s),
            ("sync, ms", &file.sync_ms),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_costs_are_sound_and_name_known_workloads() {
        let costs = Costs::built_in().unwrap();
        for load in &costs.workloads {
            assert!(load.cpu_us.is_some() || load.source.starts_with("not modelled: "), "{}", load.name);
        }
        let names: Vec<&str> = costs.workloads.iter().map(|load| load.name.as_str()).collect();
        let modelled = crate::compare::modelled_workloads().filter(|(_, why_not)| why_not.is_none());
        assert_eq!(names, modelled.map(|(name, _)| name).collect::<Vec<_>>());
        assert!(costs.engine.ratios.iter().any(|row| !row.fitted), "nothing is left to test the model with");
        assert_eq!(costs.engine.ratios[0].exponent(), 0.0);
        assert_eq!(costs.engine.ratios.last().unwrap().exponent(), 0.99);
    }

    #[test]
    fn options_out_of_range_are_rejected() {
        let sound = serde_json::to_string(&Costs::built_in().unwrap()).unwrap();
        Costs::parse(&sound).unwrap();
        let refused = |from: &str, to: &str, expected: &str| {
            assert!(sound.contains(from), "{from}");
            let error = Costs::parse(&sound.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(expected), "{to}: {error}");
        };
        refused("\"held_ns\":{\"value\":", "\"held_ns\":{\"value\":1000", "held_ns");
        refused("\"hidden\":{\"value\":0", "\"hidden\":{\"value\":7", "hidden");
        refused("\"spin_ns\":{\"value\":", "\"spin_ns\":{\"value\":-", "spinning");
        refused("\"source\":\"fitted: ", "\"source\":\"surely ", "source");
        refused("\"line\":\"GET\"", "\"line\":\"GETS\"", "GETS");
        refused("\"shards\":", "\"shards\":0,\"was\":", "measured row");
        refused("\"cpu_us\":", "\"cpu_us\":-", "cpu_us");
        refused("\"workload\":\"dragonfly-get1\"", "\"workload\":\"x\"", "no workload 'x'");
        assert!(Costs::parse("{}").is_err());
    }

    #[test]
    fn costs_are_written_as_they_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("costs.json");
        let mut costs = Costs::built_in().unwrap();
        costs.workloads[0].cpu_us = Some(12.25);
        costs.write(&path).unwrap();
        let back = Costs::read(&path).unwrap();
        assert_eq!(serde_json::to_string(&back).unwrap(), serde_json::to_string(&costs).unwrap());
        // The file in the repository has exactly the form that `write` produces. A new version then
        // differs only where a value has changed.
        Costs::built_in().unwrap().write(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), include_str!("costs.json"));
        assert!(costs.write(&folder.path().join("no/such")).is_err());
    }

    #[test]
    fn written_lines_are_the_mean_of_the_commands() {
        let rows = lines::rows();
        let mut load = Costs::built_in().unwrap().load("dragonfly-set1").unwrap().clone();
        let set = load.written(&rows);
        assert_eq!((set.shard, set.writes, set.entry), (1.0, 1.0, 5.0));
        load.commands.push(Share { line: "GET".to_owned(), weight: 3.0 });
        let mixed = load.written(&rows);
        assert_eq!((mixed.shard, mixed.writes), (1.0, 0.25));
        load.commands = vec![Share { line: "SET of a new key".to_owned(), weight: 1.0 }];
        assert!(load.written(&rows).shard > set.shard);
    }

    #[test]
    fn large_values_hold_their_shard_longer() {
        let costs = Costs::built_in().unwrap();
        let held_ns = |name: &str| costs.load(name).unwrap().held_ns(&costs);
        assert!(held_ns("mixed-types") == costs.engine.held_ns.value);
        assert!(held_ns("big-values") > held_ns("dragonfly-get1") + 1000.0);
    }
}
