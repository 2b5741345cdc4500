//! The named workloads. Some are published together with their parameters, and the others are our
//! own (see `table`).

mod published;
mod table;

use std::fmt;

pub(crate) use self::published::ALL as PUBLISHED;
pub(crate) use self::table::ALL;

/// A workload: commands with weights, keys, sizes and clients.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    /// The publication of the parameters. Empty for our own workloads.
    pub(crate) source: &'static str,
    /// Our choices for parameters that the source does not specify.
    pub(crate) ours: &'static str,
    pub(crate) commands: &'static [Command],
    pub(crate) measured: Measured,
    /// Steps that load the keys.
    pub(crate) fill: &'static [Step],
    /// Unmeasured steps before each round.
    pub(crate) before: &'static [Step],
    /// Unmeasured steps after each round.
    pub(crate) after: &'static [Step],
    /// How many numbers the workload has. Keys or members are formed from these numbers.
    pub(crate) numbers: u64,
    pub(crate) key_prefix: &'static str,
    pub(crate) key_minimum: u64,
    pub(crate) data_bytes: u64,
    pub(crate) clients: Clients,
    pub(crate) pipeline: u32,
    pub(crate) zipf_exponent: f64,
    pub(crate) needs: Needs,
    /// Latency limit of the published workload, in microseconds. It is compared with p99.
    pub(crate) latency_max_us: Option<f64>,
}

#[derive(Debug)]
pub(crate) struct Command {
    /// The text of the command, in the syntax of [`expanded`].
    pub(crate) text: &'static str,
    /// The key pattern, in the notation of `--key-pattern`.
    pub(crate) pattern: &'static str,
    pub(crate) weight: u32,
}

/// The measured operations, and the condition that ends the measurement. A workload has
/// [`Workload::numbers`] *numbers*, from which keys or members are formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measured {
    /// Commands, for the time `--test-time`.
    Time,
    /// Commands with the pattern `P`, with one operation for each number.
    EachNumber,
    /// Commands, with one operation for each group of this many numbers.
    EveryNumbers(u64),
    /// Commands, with this many operations in total.
    Operations(u64),
    /// Hand-overs of elements to blocked clients, for the time `--test-time`.
    HandOvers,
    /// One snapshot in the background. Each key counts as an operation.
    Saves,
    /// A restart of the server, which loads its dataset. Each key counts as an operation.
    Loads,
    /// Resident memory after the filling, without rounds. The fields are the name of the counted
    /// items, and how many items each number creates.
    Resident(&'static str, u64),
}

/// An unmeasured step. Its text has the syntax of [`expanded`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// Runs the command once for each number, on many clients.
    Each(&'static str),
    /// Runs the command once for each number, on one client, in ascending order.
    InOrder(&'static str),
    /// Runs the command once for each group of this many numbers, on many clients.
    Every(u64, &'static str),
    /// Runs the command once.
    Once(&'static str),
    /// Runs a command and checks its reply, which is an integer or an array that starts with an
    /// integer. The integer must be the number of keys multiplied by this count. In a cluster, the
    /// replies of all nodes are added up first.
    Count(&'static str, u64),
}

impl Step {
    /// Returns the text of the step's command.
    pub(crate) fn text(&self) -> &'static str {
        match self {
            Self::Each(text) | Self::InOrder(text) | Self::Every(_, text) | Self::Once(text) | Self::Count(text, _) => {
                text
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clients {
    /// One client on one thread.
    One,
    PerThread(u32),
    /// Number of clients of all threads together.
    Total(u32),
    /// Numbers of clients of all threads together: `one` for a single server, and another one for a
    /// cluster, in which each client has a connection to every node.
    Servers {
        one: u32,
        cluster: u32,
    },
    /// Number of connections of all threads together. It is multiplied by the scale. In a cluster
    /// it is divided by the number of nodes.
    Connections(u32),
}

impl fmt::Display for Clients {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Clients::One => out.write_str("1 client"),
            Clients::PerThread(clients) => write!(out, "{clients} clients per thread"),
            Clients::Total(clients) => write!(out, "{clients} clients"),
            Clients::Servers { one, cluster } => write!(out, "{one} clients ({cluster} of a cluster)"),
            Clients::Connections(connections) => write!(out, "{connections} connections"),
        }
    }
}

/// A feature that a peer must support for a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    Nothing,
    /// Cluster mode. A peer without cluster mode is driven as a single server.
    ClusterMode,
    /// An append-only file, synced as the directive `appendfsync` says.
    AppendOnlyFile(Appendfsync),
    /// Commands on keys of several slots, which a Redis cluster rejects.
    SeveralSlots,
    /// One key. All commands use this key, and its members are formed from the numbers. A cluster
    /// takes no part, because only the process that owns the key would have work.
    OneKey,
}

/// A value of the directive `appendfsync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Appendfsync {
    Always,
    Everysec,
}

impl Appendfsync {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Everysec => "everysec",
        }
    }
}

impl Workload {
    /// Returns the workload called `name`.
    pub(crate) fn named(name: &str) -> Result<&'static Workload, String> {
        let all = || ALL.iter().chain(PUBLISHED);
        all().find(|workload| workload.name == name).ok_or_else(|| {
            let names: Vec<&str> = all().map(|workload| workload.name).collect();
            format!("no workload '{name}': {}", names.join(", "))
        })
    }

    /// Returns how many numbers the workload has at `scale`.
    pub(crate) fn numbers_at(&self, scale: f64) -> u64 {
        ((self.numbers as f64 * scale).round() as u64).max(1)
    }

    /// Returns how many of the generator's `threads` threads drive the workload.
    pub(crate) fn threads_of(&self, threads: u32) -> u32 {
        if self.clients == Clients::One || self.measured == Measured::HandOvers { 1 } else { threads }
    }

    /// Returns the number of clients of all threads at `scale`, for a peer with `nodes` nodes.
    /// Every client connects to each node.
    pub(crate) fn clients_at(&self, scale: f64, threads: u32, nodes: u32) -> u32 {
        let threads = self.threads_of(threads);
        match self.clients {
            Clients::One => 1,
            Clients::PerThread(clients) => clients.saturating_mul(threads),
            Clients::Total(clients) => clients.max(threads),
            Clients::Servers { one, cluster } => if nodes > 1 { cluster } else { one }.max(threads),
            Clients::Connections(all) => {
                let all = (f64::from(all) * scale).round() as u32;
                (all / nodes.max(1)).max(threads)
            }
        }
    }

    /// Returns the number of operations in flight per connection. For hand-overs it is at most half
    /// of `clients`, so that enough blocked clients wait for the elements that are pushed together.
    pub(crate) fn pipeline_of(&self, clients: u32) -> u32 {
        if self.measured == Measured::HandOvers { self.pipeline.min(clients / 2).max(1) } else { self.pipeline }
    }

    /// Returns whether a step of the workload checks a count. Such a check detects a server that
    /// replies to every command but stores nothing.
    pub(crate) fn is_counted(&self) -> bool {
        let mut steps = self.fill.iter().chain(self.before).chain(self.after);
        steps.any(|step| matches!(step, Step::Count(..)))
    }

    /// Describes the workload's size.
    pub(crate) fn shape(&self) -> String {
        let Self { numbers: keys, data_bytes, pipeline, clients, .. } = self;
        match self.measured {
            Measured::Resident(what, each) => format!("{} {what}", keys * each),
            Measured::Saves | Measured::Loads => format!("{keys} keys, {data_bytes} bytes"),
            _ => format!("{keys} keys, {data_bytes} bytes, pipeline {pipeline}, {clients}"),
        }
    }

    /// Returns whether the workload can be driven at a fixed rate.
    pub(crate) fn has_rate(&self) -> bool {
        !matches!(self.measured, Measured::HandOvers | Measured::Saves | Measured::Loads | Measured::Resident(..))
    }

    /// Returns whether the server writes files during the rounds.
    pub(crate) fn writes_files(&self) -> bool {
        let appends = matches!(self.needs, Needs::AppendOnlyFile(_)) && self.measured != Measured::Loads;
        appends || self.measured == Measured::Saves
    }

    /// Returns the reason why `model` doesn't predict the workload's performance. Returns `None` if
    /// `model` predicts it.
    pub(crate) fn unmodelled(&self) -> Option<&'static str> {
        match (self.measured, self.needs) {
            (Measured::Resident(..), _) => Some("memory, without a load"),
            (Measured::Saves | Measured::Loads, _) => Some("no commands"),
            (_, Needs::AppendOnlyFile(Appendfsync::Always)) => Some("replies that wait for syncs are missing"),
            (_, Needs::OneKey) => Some("all commands use one key, so one shard does all the work"),
            (Measured::Operations(_), _) => Some("one command at a time"),
            _ => None,
        }
    }
}

/// Expands the text of a command. `[3 a{at} b]` becomes three copies of `a{at} b`, in which `{at}`
/// is 00, 01 and 02. A `;` at the end is removed.
pub(crate) fn expanded(text: &str) -> String {
    let group = text.split_once('[').and_then(|(before, rest)| {
        let (group, after) = rest.split_once(']')?;
        let (times, words) = group.split_once(' ')?;
        Some((before, times.parse::<u32>().ok()?, words, after))
    });
    let Some((before, times, words, after)) = group else { return text.to_owned() };
    let repeated: Vec<String> = (0..times).map(|at| words.replace("{at}", &format!("{at:02}"))).collect();
    let whole = format!("{before}{}{}", repeated.join(" "), expanded(after));
    whole.strip_suffix(" ;").map(str::to_owned).unwrap_or(whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::keys::Pattern;
    use crate::load::template::{KEY, Template};

    #[test]
    fn every_workload_is_consistent() {
        let all = || ALL.iter().chain(PUBLISHED);
        let mut names: Vec<&str> = all().map(|workload| workload.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len() + PUBLISHED.len(), "two workloads have the same name");
        let compile = |text: &str, prefix: &str| {
            let words: Vec<Vec<u8>> = expanded(text).split(' ').map(|word| word.as_bytes().to_vec()).collect();
            Template::compile(&words, prefix.as_bytes()).unwrap_or_else(|why| panic!("{text}: {why}"))
        };
        for workload in all() {
            let name = workload.name;
            assert!(!workload.source.is_empty() || !workload.ours.is_empty(), "{name}");
            for command in workload.commands {
                let template = compile(command.text, workload.key_prefix);
                let pattern = command.pattern.parse::<Pattern>().unwrap();
                if workload.measured == Measured::Time && workload.needs != Needs::OneKey {
                    let several = template.keys > 1 || template.replies > 1;
                    assert_eq!(several, workload.needs == Needs::SeveralSlots, "{name}");
                }
                assert!(workload.measured != Measured::EachNumber || pattern == Pattern::Parallel, "{name}");
            }
            let is_resident = matches!(workload.measured, Measured::Resident(..));
            let has_commands = !is_resident && !matches!(workload.measured, Measured::Saves | Measured::Loads);
            assert_eq!(workload.commands.is_empty(), !has_commands, "{name}");
            assert!(
                !is_resident || workload.is_counted() && workload.before.len() + workload.after.len() == 0,
                "{name}"
            );
            let steps = || workload.fill.iter().chain(workload.before).chain(workload.after);
            for step in steps() {
                let template = compile(step.text(), workload.key_prefix);
                match step {
                    Step::Each(_) => assert!(template.keys <= 1, "{name}: {step:?}"),
                    Step::InOrder(_) => assert_eq!(template.keys, 1, "{name}: {step:?}"),
                    Step::Every(numbers, _) => assert!(template.keys == 0 && *numbers > 0, "{name}: {step:?}"),
                    Step::Once(_) | Step::Count(..) => {
                        assert_eq!((template.keys, template.replies), (0, 1), "{name}: {step:?}");
                    }
                }
            }
            let fills = steps().filter(|step| matches!(step, Step::Each(_) | Step::InOrder(_) | Step::Every(..)));
            let texts = workload.commands.iter().map(|command| command.text).chain(fills.map(Step::text));
            let mut keys: Vec<&str> = texts.map(key_of).collect();
            keys.dedup();
            let is_one = keys.len() == 1 && !keys[0].contains(KEY) && !keys[0].contains("{at}");
            assert_eq!(is_one, workload.needs == Needs::OneKey, "{name}: {keys:?}");
        }
    }

    /// Returns the first key in the text of a command, which may start with a repeated group.
    fn key_of(text: &'static str) -> &'static str {
        let words: Vec<&str> = text.split(' ').skip(usize::from(text.starts_with('['))).collect();
        if words[0] == "XREADGROUP" { words[words.len() - 2] } else { words[1] }
    }

    #[test]
    fn groups_are_repeated() {
        assert_eq!(expanded("GET __key__"), "GET __key__");
        assert_eq!(expanded("RPUSH l [3 a{at} b] c"), "RPUSH l a00 b a01 b a02 b c");
        assert_eq!(expanded("MULTI ; [2 SET a 1 ;] EXEC"), "MULTI ; SET a 1 ; SET a 1 ; EXEC");
        assert_eq!(expanded("[2 XADD s{at} * a b ;]"), "XADD s00 * a b ; XADD s01 * a b");
        assert_eq!(expanded("[2 a] [1 b]"), "a a b");
        assert_eq!(expanded("SET [x 1]"), "SET [x 1]");
    }

    /// Shards and partitions (parts of a shard) are contiguous ranges of slots. The two sets of a
    /// union are in different halves of the slots. If the numbers of shards and partitions are
    /// even, the two sets are therefore in different shards and partitions.
    #[test]
    fn unions_span_shards() {
        use pantala_base::{key_slot, limits::SLOTS};
        for workload in ALL.iter().filter(|workload| workload.name.contains("unionstore")) {
            let words: Vec<&str> = workload.commands[0].text.rsplit(' ').take(2).collect();
            assert_eq!(words, ["second", "first"]);
            let [second, first] = [words[0], words[1]].map(|word| usize::from(key_slot(word.as_bytes())));
            assert!(second < SLOTS / 2 && first >= SLOTS / 2, "{first} {second}");
        }
    }

    #[test]
    fn shapes_are_readable() {
        let shape = |name: &str| Workload::named(name).unwrap().shape();
        assert_eq!(shape("dragonfly-get30"), "1000000 keys, 256 bytes, pipeline 30, 30 clients per thread");
        assert_eq!(shape("sunionstore"), "500000 keys, 256 bytes, pipeline 1, 1 client");
        assert!(ALL.iter().all(|workload| !workload.shape().contains('(')));
        assert!(shape("2022-get1").ends_with("1650 clients (48 of a cluster)"));
    }

    #[test]
    fn published_parameters() {
        let parameters = |name: &str| {
            let w = Workload::named(name).unwrap();
            (w.numbers, w.data_bytes, w.pipeline, w.clients)
        };
        assert_eq!(parameters("dragonfly-get30"), (1_000_000, 256, 30, Clients::PerThread(30)));
        assert_eq!(parameters("dragonfly-set1"), (1_000_000, 256, 1, Clients::PerThread(30)));
        assert_eq!(parameters("elasticache"), (3_000_000, 512, 1, Clients::Total(500)));
        assert_eq!(parameters("enterprise"), (10_000_000, 100, 9, Clients::PerThread(50)));
        assert_eq!(parameters("aof"), (20_000, 10_240, 25, Clients::Total(50)));
        assert_eq!(parameters("flash"), (2_000_000, 500, 11, Clients::Total(20)));
        assert_eq!(parameters("2022-set30"), (1_000_000, 256, 30, Clients::Servers { one: 1_650, cluster: 48 }));
        assert_eq!(parameters("enterprise-node"), (10_000_000, 100, 9, Clients::Connections(1_800)));
        let elasticache = Workload::named("elasticache").unwrap();
        let most = elasticache.numbers_at(super::super::options::SCALE_MAX);
        for key in [elasticache.key_minimum, elasticache.key_minimum + most - 1] {
            assert_eq!(format!("{}{key}", elasticache.key_prefix).len(), 16);
        }
        assert!(Workload::named("x").unwrap_err().contains("hot-key"));
    }

    #[test]
    fn scaling() {
        let many = Workload::named("many-connections").unwrap();
        assert_eq!(
            (many.numbers_at(0.5), many.clients_at(0.5, 2, 1), many.clients_at(1.0, 2, 40)),
            (50_000, 5_000, 250)
        );
        assert_eq!(many.clients_at(0.00001, 2, 40), 2);
        let both = Workload::named("2022-get1").unwrap();
        assert_eq!([1, 40].map(|nodes| both.clients_at(0.5, 24, nodes)), [1_650, 48]);
        assert_eq!(both.clients_at(0.5, 64, 40), 64);
        let get = Workload::named("dragonfly-get1").unwrap();
        assert_eq!((get.numbers_at(1e-9), get.clients_at(0.1, 2, 40), get.pipeline_of(60)), (1, 60, 1));
        let union = Workload::named("sunionstore").unwrap();
        assert_eq!((union.numbers_at(0.1), union.clients_at(0.1, 2, 1), union.threads_of(2)), (50_000, 1, 1));
        let blpop = Workload::named("blpop").unwrap();
        assert_eq!((blpop.clients_at(1.0, 2, 1), blpop.clients_at(0.05, 2, 1), blpop.threads_of(2)), (1_000, 50, 1));
        assert_eq!([1_000, 50, 1].map(|clients| blpop.pipeline_of(clients)), [64, 25, 1]);
    }
}
