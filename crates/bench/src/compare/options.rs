//! The options of `pantala-bench compare`, and their validation.

use std::path::{Path, PathBuf};

use clap::Args;
use pantala_resp::split_line;

use super::peers::{Kind, Spec};
use super::presets::Preset;
use super::topology::{self, Split};
use super::workloads::{Measured, Workload};
use pantala_base::cpus::{List, allowed};
use pantala_base::topology::Topology;

/// Maximum number of processes of a cluster, and of shards of Pantala.
const SHARDS_MAX: u64 = 1024;
/// Maximum number of rounds.
const ROUNDS_MAX: u64 = 1000;
/// Maximum length of one measurement, in seconds.
const SECONDS_MAX: u64 = 3600;
/// Maximum of `--scale`.
pub(super) const SCALE_MAX: f64 = 100.0;
/// Maximum of `--rate-limiting`, in operations per second.
const RATE_MAX: u64 = 1_000_000_000;
/// Maximum number of peers in a comparison.
const PEERS_MAX: usize = 32;
/// Default number of shards of Pantala and of processes of a Redis cluster, without a preset.
const SHARDS: u64 = 40;
/// Default length of one measurement without a preset, in seconds.
const SECONDS: u64 = 5;
/// Default workloads.
const WORKLOADS: &[&str] = &["dragonfly-get1", "dragonfly-get30", "dragonfly-set1", "dragonfly-set30"];
/// Default workloads of a sweep.
const SWEPT: &[&str] = &["dragonfly-get1", "dragonfly-set1", "elasticache", "enterprise", "mixed-types"];

/// Options of a comparison.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// A server to compare; repeat the option for each: redis, redis-cluster (of --shards
    /// processes), redis-cluster:N, pantala, dragonfly, floor, or 'name=command with {port} and
    /// {dir}' [default: redis-cluster and pantala]
    #[arg(long)]
    peer: Vec<String>,
    /// Name of the peer that the tables' ratios refer to; repeat the option for several.
    /// results.json contains the ratios of every pair [default: the first peer]
    #[arg(long, value_name = "NAME")]
    against: Vec<String>,
    /// Number of shards of Pantala, and of processes of the Redis cluster [default: 40, or the
    /// preset's]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=SHARDS_MAX))]
    shards: Option<u64>,
    /// A named workload; repeat the option for several. `--workload list` lists them [default: the
    /// four of Dragonfly; with --rate-sweep two of these, elasticache, enterprise and mixed-types]
    #[arg(long)]
    workload: Vec<String>,
    /// A published set-up: dragonfly-2022, redis-2022, elasticache-7.1 or enterprise-200m. The
    /// preset sets the workloads. It also sets the peers, the shards, the seconds of a measurement
    /// and the CPUs, if no other option sets them. CPUs are divided by the host's topology. The
    /// host's settings are checked before the run
    #[arg(long, value_name = "NAME", value_parser = Preset::named, conflicts_with = "workload")]
    preset: Option<&'static Preset>,
    /// Number of rounds. In each round every peer is measured once, in turn. The workloads memory-…
    /// have no rounds: their peers are filled once
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=ROUNDS_MAX))]
    rounds: u64,
    /// Seconds of one measurement, for workloads that run for a time [default: 5, or the preset's]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX))]
    test_time: Option<u64>,
    /// Operations per second of all clients together, the same for every peer. Latency then counts
    /// from the time when an operation was due [default: no limit]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=RATE_MAX))]
    rate_limiting: Option<u64>,
    /// After the rounds without a rate, also drive every peer at 5, 10, 20, 40, 60, 80 and 95% of
    /// the slowest peer's peak, and at the peer's own peak; latency counts as with --rate-limiting
    #[arg(long, conflicts_with = "rate_limiting")]
    rate_sweep: bool,
    /// Factor for the number of a workload's keys, above 0 and at most 100. For workloads about
    /// connections the factor also applies to the number of connections
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// CPUs of the servers, such as 0,2-3 [default: any]
    #[arg(long, value_parser = pantala_base::cpus::parse)]
    server_cpus: Option<List>,
    /// CPUs of the load generator, with one thread on each [default: any, one thread per CPU]
    #[arg(long, value_parser = pantala_base::cpus::parse)]
    client_cpus: Option<List>,
    /// Folder for report.html, report.md and results.json; created if missing
    #[arg(long, default_value = "pantala-compare")]
    out: PathBuf,
    /// Folder for the servers' files during the run [default: the folder for temporary files]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// First port to use. With this option, a port in use is an error [default: free ports]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1024..=40_000))]
    pub(super) port: Option<u16>,
    /// The pantala executable [default: beside this executable, then on the search path]
    #[arg(long)]
    pantala: Option<PathBuf>,
    /// The redis-server executable [default: on the search path]
    #[arg(long)]
    redis_server: Option<PathBuf>,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 12345)]
    pub(super) seed: u64,
}

/// The validated options.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) peers: Vec<Spec>,
    /// Names of the peers that ratios refer to. If the list is empty, ratios refer to the first
    /// peer that takes part.
    pub(super) against: Vec<String>,
    pub(super) workloads: Vec<&'static Workload>,
    pub(super) preset: Option<&'static Preset>,
    pub(super) shards: u64,
    pub(super) rounds: u64,
    /// Length of one measurement, in seconds.
    pub(super) seconds: u64,
    pub(super) rate: Rate,
    pub(super) scale: f64,
    /// CPUs of the servers. If empty, the servers may run on any CPU.
    pub(super) server_cpus: Vec<usize>,
    pub(super) client_cpus: Vec<usize>,
    pub(super) threads: u32,
    /// Notes on how a preset divided the CPUs.
    pub(super) placement: Vec<String>,
    pub(super) out: PathBuf,
    pub(super) dir: PathBuf,
}

/// The rates at which peers are driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rate {
    /// As many operations as the clients can send.
    Unlimited,
    /// Operations per second of all clients together.
    Fixed(u64),
    /// First no limit, then the rates of a sweep (see [`super::sweep`]).
    Sweep,
}

impl Rate {
    /// Returns the rate of all rounds, if there is only one rate.
    pub(super) fn fixed(self) -> Option<u64> {
        match self {
            Self::Fixed(rate_per_s) => Some(rate_per_s),
            Self::Unlimited | Self::Sweep => None,
        }
    }
}

impl Options {
    /// Returns whether to list the workloads and then exit.
    pub(super) fn lists(&self) -> bool {
        self.workload.iter().any(|name| name == "list")
    }

    pub(super) fn setup(&self) -> Result<Setup, String> {
        if !(self.scale > 0.0 && self.scale <= SCALE_MAX) {
            return Err(format!("--scale {}: must be above 0 and at most {SCALE_MAX}", self.scale));
        }
        let default = |given: &[String], others: &[&str]| {
            if given.is_empty() { others.iter().map(ToString::to_string).collect() } else { given.to_vec() }
        };
        let split = self.split()?;
        let shards = self.shards_on(split.server.len());
        let mut names =
            default(&self.peer, self.preset.map_or(&["redis-cluster", "pantala"][..], |preset| preset.peers));
        if self.peer.is_empty() && program(None, "dragonfly", None).is_none() {
            names.retain(|name| name != "dragonfly");
        }
        if names.len() > PEERS_MAX {
            return Err(format!("{} peers are given, but at most {PEERS_MAX} can be compared", names.len()));
        }
        let peers =
            names.iter().map(|text| self.spec(text, shards, split.server.len())).collect::<Result<Vec<_>, _>>()?;
        if let Some(twice) =
            peers.iter().enumerate().find(|(at, peer)| peers[..*at].iter().any(|p| p.name == peer.name))
        {
            return Err(format!("two peers have the name '{}'; --peer 'name=command' sets another", twice.1.name));
        }
        if let Some(nobody) = self.against.iter().find(|name| peers.iter().all(|peer| peer.name != **name)) {
            let names: Vec<&str> = peers.iter().map(|peer| peer.name.as_str()).collect();
            return Err(format!("--against {nobody}: no peer of this run; {} are", names.join(", ")));
        }
        let others = match (self.preset, self.rate_sweep) {
            (Some(preset), _) => preset.workloads,
            (None, true) => SWEPT,
            (None, false) => WORKLOADS,
        };
        let workloads: Vec<&'static Workload> =
            default(&self.workload, others).iter().map(|name| Workload::named(name)).collect::<Result<_, _>>()?;
        if let Some(driven) = workloads.iter().find(|workload| self.rate_limiting.is_some() && !workload.has_rate()) {
            return Err(format!("--rate-limiting has no effect on {}", driven.name));
        }
        if let Some(driven) = workloads.iter().find(|workload| workload.measured != Measured::Time && self.rate_sweep) {
            return Err(format!("--rate-sweep needs workloads that run for a time: {} doesn't", driven.name));
        }
        let rate = match self.rate_limiting {
            _ if self.rate_sweep => Rate::Sweep,
            Some(rate_per_s) => Rate::Fixed(rate_per_s),
            None => Rate::Unlimited,
        };
        let threads = if split.client.is_empty() { available_cpus() } else { split.client.len() };
        Ok(Setup {
            peers,
            against: self.against.clone(),
            workloads,
            preset: self.preset,
            shards,
            rounds: self.rounds,
            seconds: self.test_time.or(self.preset.map(|preset| preset.seconds)).unwrap_or(SECONDS),
            rate,
            scale: self.scale,
            server_cpus: split.server,
            client_cpus: split.client,
            threads: threads as u32,
            placement: split.notes,
            out: self.out.clone(),
            dir: self.dir.clone().unwrap_or_else(std::env::temp_dir),
        })
    }

    /// Returns the CPUs of the servers and those of the generator. Without a preset, these are the
    /// CPUs of the options; an empty list stands for any CPU. With a preset, the CPUs are divided
    /// according to the host's topology if no option is given. If one option is given, the other
    /// side gets all remaining CPUs.
    fn split(&self) -> Result<Split, String> {
        let given = |list: &Option<List>| list.clone().map(|list| list.0);
        let (server, client) = (given(&self.server_cpus), given(&self.client_cpus));
        let Some(preset) = self.preset else {
            let [server, client] = [server, client].map(Option::unwrap_or_default);
            return Ok(Split { server, client, notes: Vec::new() });
        };
        let all = allowed();
        let rest = |taken: &[usize]| all.iter().copied().filter(|cpu| !taken.contains(cpu)).collect::<Vec<_>>();
        let (server, client) = match (server, client) {
            (None, None) => {
                return Ok(topology::split(&Topology::of_host(&all), preset.server_cpus));
            }
            (Some(server), None) => (server.clone(), rest(&server)),
            (None, Some(client)) => (rest(&client), client),
            (Some(server), Some(client)) => (server, client),
        };
        if server.is_empty() || client.is_empty() || server.iter().any(|cpu| client.contains(cpu)) {
            return Err("a preset needs different CPUs for servers and generator: --server-cpus, --client-cpus".into());
        }
        Ok(Split { server, client, notes: Vec::new() })
    }

    /// Returns the number of shards, or of processes of a cluster, for servers on `cpus` CPUs.
    fn shards_on(&self, cpus: usize) -> u64 {
        self.shards.or(self.preset.map(|preset| preset.shards_on(cpus))).unwrap_or(SHARDS)
    }

    /// Returns the path of `perf`, if it is installed.
    pub(super) fn perf() -> Option<PathBuf> {
        program(None, "perf", None)
    }

    /// Returns the peer that `text` describes. The peer gets `shards` shards or processes, and runs
    /// on `cpus` CPUs. If `cpus` is 0, the peer may use all CPUs.
    fn spec(&self, text: &str, shards: u64, cpus: usize) -> Result<Spec, String> {
        let threads = if cpus == 0 { available_cpus() } else { cpus };
        let kind = match text {
            "pantala" => Kind::Pantala { program: self.pantala_program()?, shards },
            "redis" => Kind::Redis { program: self.redis_program()? },
            "redis-cluster" => Kind::RedisCluster { program: self.redis_program()?, nodes: shards },
            "dragonfly" => Kind::Command(dragonfly(threads)?),
            "floor" => Kind::Floor { threads },
            _ => return self.other_spec(text),
        };
        Ok(Spec { name: text.to_owned(), kind })
    }

    /// Parses `redis-cluster:N`, or `name=command`.
    fn other_spec(&self, text: &str) -> Result<Spec, String> {
        if let Some(nodes) = text.strip_prefix("redis-cluster:") {
            let nodes = nodes.parse().ok().filter(|nodes| (1..=SHARDS_MAX).contains(nodes));
            let nodes = nodes.ok_or_else(|| format!("--peer {text}: a cluster has 1 to {SHARDS_MAX} processes"))?;
            return Ok(Spec {
                name: text.to_owned(),
                kind: Kind::RedisCluster { program: self.redis_program()?, nodes },
            });
        }
        let unknown = || {
            format!(
                "--peer '{text}' is none of redis, redis-cluster, redis-cluster:N, pantala, dragonfly, floor and 'name=command with {{port}} and {{dir}}'"
            )
        };
        let (name, command) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(unknown)?;
        let mut line = command.as_bytes().to_vec();
        let mut ranges = Vec::new();
        split_line(&mut line, &mut ranges).map_err(|_| format!("--peer '{text}': unbalanced quotes"))?;
        let words = pantala_resp::Args::new(&line, &ranges);
        let words: Vec<String> = words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        if words.is_empty() || !command.contains("{port}") {
            return Err(format!("--peer '{text}': the command must contain {{port}}"));
        }
        // The server runs in another folder, where a relative path would not resolve.
        let program = std::path::absolute(&words[0]).ok().filter(|path| words[0].contains('/') && path.is_file());
        let words = match program {
            Some(path) => std::iter::once(path.display().to_string()).chain(words.into_iter().skip(1)).collect(),
            None => words,
        };
        Ok(Spec { name: name.to_owned(), kind: Kind::Command(words) })
    }

    fn redis_program(&self) -> Result<PathBuf, String> {
        program(self.redis_server.as_deref(), "redis-server", None).ok_or_else(|| {
            "redis-server is not installed: on Debian and Ubuntu the package redis-server has it (or --redis-server PATH)".to_owned()
        })
    }

    fn pantala_program(&self) -> Result<PathBuf, String> {
        let here = std::env::current_exe().ok().and_then(|path| path.parent().map(Path::to_path_buf));
        program(self.pantala.as_deref(), "pantala", here).ok_or_else(|| {
            "no pantala executable beside this one or on the search path: cargo build --release -p pantala (or --pantala PATH)".to_owned()
        })
    }
}

/// Returns the command line of Dragonfly with `threads` threads. Dragonfly writes no snapshots.
fn dragonfly(threads: usize) -> Result<Vec<String>, String> {
    let program = program(None, "dragonfly", None)
        .ok_or("dragonfly is not on the search path: its releases have an executable for each architecture")?;
    let threads = threads.to_string();
    let words = ["--port", "{port}", "--dir", "{dir}", "--dbfilename=", "--proactor_threads", &threads];
    Ok(std::iter::once(program.display().to_string()).chain(words.map(str::to_owned)).collect())
}

/// Returns the path of the executable `name`. If `given` is set, only `given` is checked. If not,
/// the folder `first` and then the search path are searched.
fn program(given: Option<&Path>, name: &str, first: Option<PathBuf>) -> Option<PathBuf> {
    if let Some(path) = given {
        return std::path::absolute(path).ok().filter(|path| path.is_file());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    first.into_iter().chain(std::env::split_paths(&path)).map(|folder| folder.join(name)).find(|file| file.is_file())
}

fn available_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn setup(text: &str) -> Result<Setup, String> {
        let words = std::iter::once("compare").chain(text.split('|').filter(|word| !word.is_empty()));
        Line::try_parse_from(words).map_err(|error| error.to_string())?.options.setup()
    }

    #[test]
    fn peers_are_read() {
        let setup =
            setup("--peer|floor|--peer|x=/bin/sh -c 'a b' {port} {dir}|--server-cpus|0,1|--client-cpus|1").unwrap();
        assert!(matches!(setup.peers[0].kind, Kind::Floor { threads: 2 }));
        let Kind::Command(words) = &setup.peers[1].kind else { panic!("{:?}", setup.peers[1]) };
        assert_eq!(words, &["/bin/sh", "-c", "a b", "{port}", "{dir}"]);
        assert_eq!((setup.peers[1].name.as_str(), setup.threads, setup.workloads.len()), ("x", 1, 4));
    }

    #[test]
    fn a_sweep_has_workloads_of_its_own() {
        let names = |options: &str| {
            let setup = setup(options).unwrap();
            (setup.rate, setup.workloads.iter().map(|workload| workload.name).collect::<Vec<_>>())
        };
        assert_eq!(names("--peer|floor|--rate-sweep"), (Rate::Sweep, SWEPT.to_vec()));
        assert_eq!(names("--peer|floor|--rate-sweep|--workload|flash"), (Rate::Sweep, vec!["flash"]));
        assert_eq!(names("--peer|floor|--rate-limiting|7").0.fixed(), Some(7));
        assert_eq!(names("--peer|floor"), (Rate::Unlimited, WORKLOADS.to_vec()));
    }

    #[test]
    fn options_override_a_preset() {
        let default = setup("--peer|floor|--preset|enterprise-200m").unwrap();
        assert_eq!((default.seconds, default.workloads[0].name), (60, "enterprise-node"));
        assert!(default.shards <= 10 && !default.server_cpus.is_empty());
        assert_eq!(default.threads as usize, default.client_cpus.len());
        let options =
            "--peer|floor|--preset|enterprise-200m|--shards|3|--test-time|2|--server-cpus|4,5|--client-cpus|0";
        let given = setup(options).unwrap();
        assert_eq!((given.shards, given.seconds, given.server_cpus, given.client_cpus), (3, 2, vec![4, 5], vec![0]));
        let none = setup("--peer|floor").unwrap();
        assert_eq!((none.shards, none.seconds, none.server_cpus, none.preset.is_none()), (40, 5, vec![], true));
    }

    #[test]
    fn wrong_options_are_reported() {
        for (options, expected) in [
            ("--peer|nobody", "name=command"),
            ("--peer|x=server", "{port}"),
            ("--peer|x=server '{port}", "quotes"),
            ("--peer|floor|--peer|floor", "two peers"),
            ("--peer|redis-cluster:0", "1 to"),
            ("--peer|floor|--against|redis", "--against redis: no peer of this run; floor"),
            ("--peer|redis|--redis-server|/no/such", "the package redis-server"),
            ("--peer|pantala|--pantala|/no/such", "cargo build"),
            ("--peer|floor|--workload|x", "no workload 'x'"),
            ("--peer|floor|--scale|0", "--scale"),
            ("--peer|floor|--rounds|0", "0 is not in"),
            ("--peer|floor|--rate-limiting|0", "0 is not in"),
            ("--peer|floor|--rate-limiting|9|--workload|hset|--workload|blpop", "no effect on blpop"),
            ("--peer|floor|--rate-limiting|9|--workload|memory-zset", "no effect on memory-zset"),
            ("--peer|floor|--server-cpus|x", "'x'"),
            ("--peer|floor|--rate-sweep|--rate-limiting|9", "cannot be used with"),
            ("--peer|floor|--rate-sweep|--workload|xack", "run for a time: xack doesn't"),
            ("--peer|floor|--preset|x", "no preset 'x': dragonfly-2022"),
            ("--peer|floor|--preset|redis-2022|--workload|hset", "cannot be used with"),
            ("--peer|floor|--preset|redis-2022|--server-cpus|0|--client-cpus|0-1", "different CPUs"),
        ] {
            let error = setup(options).unwrap_err();
            assert!(error.contains(expected), "{options}: {error}");
        }
    }
}
