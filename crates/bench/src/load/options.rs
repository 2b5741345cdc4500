//! The options of `pantala-bench load`. Their names are those of memtier_benchmark.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use pantala_resp::split_line;

use super::control::{Login, Target, resolve};
use super::data::Sizes;
use super::keys::{Pattern, Range, STDDEV_RANGES_MAX};
use super::link::Tls;
use super::plan::{Amount, CommandPlan, Plan};
use super::template::{DATA, EXPIRY, KEY, find};

/// Maximum number of threads.
const THREADS_MAX: u32 = 1024;
/// Maximum number of clients of all threads.
const CLIENTS_MAX: u64 = 1_000_000;
/// Maximum depth of a pipeline.
const PIPELINE_MAX: u32 = 1_000_000;
/// Maximum size of a value in bytes.
const DATA_BYTES_MAX: u64 = 512 << 20;
/// Maximum number of consecutive operations of one command.
const WEIGHT_MAX: u32 = 1_000_000_000;
/// Maximum number of commands in one load.
const COMMANDS_MAX: usize = 64;
/// Default time without a reply after which a run fails, in seconds.
const STALL_SECONDS: u64 = 30;

/// Explanation of the output, which is shown below the options.
pub(crate) const RESULTS: &str = "\
Results:
  Only requests whose reply is not an error count as operations. If requests fail, the rates are
  lower than what was sent: a table of zeros means that no request succeeded, not that the server
  was slow. The last line then has the number of error replies, requests without a reply and lost
  connections, with some of the errors' texts, and the exit code is 1.
  hits/s and misses/s count GETs and other reads of one key: load the keys first (--ratio 1:0).";

/// Options of the load generator.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Host name or address
    #[arg(short, long, default_value = "127.0.0.1")]
    server: String,
    /// TCP port
    #[arg(short, long, default_value_t = 6379)]
    port: u16,
    /// Unix socket, instead of server and port
    #[arg(short = 'S', long, conflicts_with_all = ["server", "port", "cluster_mode"])]
    unix_socket: Option<PathBuf>,
    /// Number of threads
    #[arg(short, long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=i64::from(THREADS_MAX)))]
    threads: u32,
    /// Number of clients per thread
    #[arg(short, long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    clients: u32,
    /// Maximum requests in flight on a connection
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(PIPELINE_MAX)))]
    pipeline: u32,
    /// Ratio of SETs to GETs [default: 1:10]
    #[arg(long, value_name = "SET:GET", value_parser = pair_of::<u32>, conflicts_with = "command")]
    ratio: Option<(u32, u32)>,
    /// Size of a value, bytes
    #[arg(short, long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(0..=DATA_BYTES_MAX))]
    data_size: u64,
    /// Size of a value, bytes, uniformly distributed from MIN to MAX
    #[arg(long, value_name = "MIN-MAX", value_parser = range_of, conflicts_with = "data_size")]
    data_size_range: Option<(u64, u64)>,
    /// Fill values with random bytes instead of x
    #[arg(short = 'R', long)]
    random_data: bool,
    /// Prefix of every key
    #[arg(long, default_value = "memtier-")]
    key_prefix: String,
    /// Lowest key number
    #[arg(long, default_value_t = 0)]
    key_minimum: u64,
    /// Highest key number
    #[arg(long, default_value_t = 10_000_000)]
    key_maximum: u64,
    /// Key patterns of SETs and GETs: R uniform, S sequential, P sequential with a part of the keys
    /// for each client, G Gaussian, Z Zipf [default: R:R]
    #[arg(long, value_name = "SET:GET", value_parser = pair_of::<Pattern>, conflicts_with = "command")]
    key_pattern: Option<(Pattern, Pattern)>,
    /// Standard deviation of pattern G, at most ten times the number of keys [default: a sixth of
    /// the range]
    #[arg(long)]
    key_stddev: Option<f64>,
    /// Median of pattern G [default: the middle of the range]
    #[arg(long)]
    key_median: Option<f64>,
    /// Exponent of pattern Z [default: 1]
    #[arg(long)]
    zipf_exp: Option<f64>,
    /// Number of requests of each client. `allkeys` stands for the number of keys in the range, or
    /// in the client's part of the range if every pattern is P [default: 10000]
    #[arg(short = 'n', long, value_name = "N|allkeys", conflicts_with = "test_time")]
    requests: Option<String>,
    /// Seconds to run, instead of a number of requests
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    test_time: Option<u64>,
    /// Operations per second of each client. Latency then counts from the time when an operation
    /// was due. (In memtier_benchmark the rate applies to each connection, and in cluster mode a
    /// client has one connection to every node.)
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    rate_limiting: Option<u64>,
    /// Follow the cluster's slots. Each client then has a connection to every node, and each
    /// connection has its own pipeline
    #[arg(long)]
    cluster_mode: bool,
    /// Give each client its own sequence of random keys. Use this option for results that you
    /// publish. Otherwise all clients request the same keys at the same time, which makes every
    /// server look faster
    #[arg(long)]
    distinct_client_seed: bool,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 12345)]
    seed: u64,
    /// Password, or USER:PASSWORD
    #[arg(short, long)]
    pub(super) authenticate: Option<String>,
    /// Number of the database
    #[arg(long, default_value_t = 0)]
    select_db: u32,
    /// Encrypt connections
    #[arg(long, requires = "cacert", conflicts_with = "unix_socket")]
    tls: bool,
    /// File with the client's certificate
    #[arg(long, requires = "tls", requires = "key")]
    cert: Option<PathBuf>,
    /// File with the client's key
    #[arg(long, requires = "tls", requires = "cert")]
    key: Option<PathBuf>,
    /// File with the certificate of the authority that signed the server's certificate
    #[arg(long, requires = "tls")]
    cacert: Option<PathBuf>,
    /// Name that the server's certificate must contain [default: the value of --server]
    #[arg(long, requires = "tls")]
    sni: Option<String>,
    /// A command to send instead of SET and GET; repeat the option for several, which take turns
    ///
    /// Placeholders are replaced in each operation:
    ///
    ///   __key__       the next key of the command's pattern
    ///   __same_key__  the last key once more
    ///   __random__    a number from --key-minimum to --key-maximum
    ///   __data__      a value of --data-size bytes
    ///   __expiry__    seconds from --expiry-range
    ///
    /// 1. A cache: --command 'SET __key__ __data__ EX __expiry__' --command 'GET __key__'
    ///    --expiry-range 60-3600
    /// 2. Nine reads for each write: add --command-ratio 1 --command-ratio 9
    /// 3. A word ; starts another request of the same operation, which is timed and counted as one:
    ///    --command 'MULTI ; INCR __key__ ; EXEC'
    #[arg(long, verbatim_doc_comment)]
    command: Vec<String>,
    /// Number of consecutive operations of the command at the same position, before the next
    /// command's turn
    #[arg(long, requires = "command", value_parser = clap::value_parser!(u32).range(1..=i64::from(WEIGHT_MAX)))]
    command_ratio: Vec<u32>,
    /// Key pattern of the command at the same position
    #[arg(long, requires = "command")]
    command_key_pattern: Vec<Pattern>,
    /// TTL of each SET in seconds, and value of __expiry__ in a command, uniformly distributed from
    /// MIN to MAX
    #[arg(long, value_name = "MIN-MAX", value_parser = range_of)]
    expiry_range: Option<(u64, u64)>,
    /// Fail if the server does not reply for this many seconds
    #[arg(long, default_value_t = STALL_SECONDS, value_parser = clap::value_parser!(u64).range(1..))]
    stall_time: u64,
    /// CPUs to pin the threads to, in turn (0,2-3)
    #[arg(long, value_parser = pantala_base::cpus::parse)]
    cpus: Option<pantala_base::cpus::List>,
    /// File for results as JSON
    #[arg(long)]
    pub(super) json_out_file: Option<PathBuf>,
    /// File for latency percentiles in HdrHistogram's text format, in milliseconds
    #[arg(long)]
    pub(super) hdr_file: Option<PathBuf>,
}

impl Options {
    /// Returns the plan that the options describe, or an error in them.
    pub(super) fn plan(&self) -> Result<Plan, String> {
        let clients = u64::from(self.threads) * u64::from(self.clients);
        if clients > CLIENTS_MAX {
            return Err(format!("{clients} clients: at most {CLIENTS_MAX}"));
        }
        let sizes = self.data_size_range.unwrap_or((self.data_size, self.data_size));
        if sizes.1 > DATA_BYTES_MAX {
            return Err(format!("--data-size-range: a value has at most {DATA_BYTES_MAX} bytes"));
        }
        let expiry_seconds = self.expiry_range.unwrap_or((1, 1));
        if expiry_seconds.0 == 0 {
            return Err("--expiry-range: the TTL must be at least 1 second".into());
        }
        let commands = self.commands()?;
        self.reject_unused(&commands)?;
        let plan = Plan {
            target: match &self.unix_socket {
                Some(path) => Target::Unix(path.clone()),
                None => Target::Tcp(resolve(&self.server, self.port).map_err(|error| format!("--server: {error}"))?),
            },
            login: Login { tls: self.tls()?, ..self.login() },
            threads: self.threads,
            clients: clients as u32,
            pipeline: self.pipeline,
            commands,
            hand_over: false,
            prefix: self.key_prefix.clone(),
            range: self.range()?,
            sizes: Sizes { minimum: sizes.0, maximum: sizes.1 },
            random_data: self.random_data,
            expiry_seconds,
            amount: self.amount()?,
            rate_per_s: self.rate_limiting.map(|rate| rate.saturating_mul(clients)),
            cluster: self.cluster_mode,
            distinct_client_seed: self.distinct_client_seed,
            seed: self.seed,
            cpus: self.cpus.clone().unwrap_or_default().0,
            stall_max: Duration::from_secs(self.stall_time),
        };
        plan.templates()?;
        Ok(plan)
    }

    /// Rejects options that would have no effect.
    fn reject_unused(&self, commands: &[CommandPlan]) -> Result<(), String> {
        let draws = |pattern| commands.iter().any(|command| command.pattern == pattern);
        let mut words = commands.iter().flat_map(|command| &command.words);
        let expires = words.any(|word| find(word, EXPIRY.as_bytes()).is_some());
        for (option, given, used, missing) in [
            ("--key-stddev", self.key_stddev.is_some(), draws(Pattern::Gaussian), "no command has key pattern G"),
            ("--key-median", self.key_median.is_some(), draws(Pattern::Gaussian), "no command has key pattern G"),
            ("--zipf-exp", self.zipf_exp.is_some(), draws(Pattern::Zipf), "no command has key pattern Z"),
            (
                "--expiry-range",
                self.expiry_range.is_some(),
                expires,
                "there is no SET, and no --command has __expiry__",
            ),
        ] {
            if given && !used {
                return Err(format!("{option} has no effect: {missing}"));
            }
        }
        if expires && self.expiry_range.is_none() {
            return Err(format!("--command with {EXPIRY}: --expiry-range has to say how long"));
        }
        Ok(())
    }

    fn login(&self) -> Login {
        let (user, password) = match self.authenticate.as_deref().map(|text| (text.split_once(':'), text)) {
            Some((Some((user, password)), _)) => (Some(user.to_owned()), Some(password.to_owned())),
            Some((None, password)) => (None, Some(password.to_owned())),
            None => (None, None),
        };
        Login { tls: None, user: user.filter(|user| !user.is_empty()), password, database: self.select_db }
    }

    fn tls(&self) -> Result<Option<Tls>, String> {
        if !self.tls {
            return Ok(None);
        }
        let files = [&self.cacert, &self.cert, &self.key].map(Clone::clone);
        Tls::new(files, self.sni.as_ref().unwrap_or(&self.server)).map(Some)
    }

    fn range(&self) -> Result<Range, String> {
        let (minimum, maximum) = (self.key_minimum, self.key_maximum);
        if minimum > maximum {
            return Err(format!("--key-minimum {minimum} is above --key-maximum {maximum}"));
        }
        if maximum - minimum == u64::MAX {
            return Err("--key-maximum: the range has too many keys to count".into());
        }
        let median = self.key_median.unwrap_or(minimum as f64 + (maximum - minimum) as f64 / 2.0);
        if !(minimum as f64..=maximum as f64).contains(&median) {
            return Err(format!("--key-median {median} lies outside the keys {minimum} to {maximum}"));
        }
        let stddev = self.key_stddev.unwrap_or(((maximum - minimum) as f64 / 6.0).max(f64::MIN_POSITIVE));
        let stddev_max = ((maximum - minimum) as f64 + 1.0) * STDDEV_RANGES_MAX;
        if !(stddev > 0.0 && stddev <= stddev_max) {
            return Err(format!("--key-stddev: above 0, and at most {stddev_max}, ten times the number of keys"));
        }
        let zipf_exponent = self.zipf_exp.unwrap_or(1.0);
        if !(zipf_exponent.is_finite() && zipf_exponent > 0.0) {
            return Err("--zipf-exp must be above 0".into());
        }
        Ok(Range { minimum, maximum, median, stddev, zipf_exponent })
    }

    fn amount(&self) -> Result<Amount, String> {
        match (self.requests.as_deref(), self.test_time) {
            (_, Some(seconds)) => Ok(Amount::Time(Duration::from_secs(seconds))),
            (None, None) => Ok(Amount::Requests(10_000)),
            (Some("allkeys"), None) => Ok(Amount::AllKeys),
            (Some(text), None) => match text.parse() {
                Ok(requests) if requests > 0 => Ok(Amount::Requests(requests)),
                _ => Err(format!("--requests '{text}' is neither a number above 0 nor allkeys")),
            },
        }
    }

    fn commands(&self) -> Result<Vec<CommandPlan>, String> {
        if self.command.is_empty() {
            return self.set_and_get();
        }
        if self.command.len() > COMMANDS_MAX {
            return Err(format!("--command can be given at most {COMMANDS_MAX} times"));
        }
        if self.command_ratio.len() > self.command.len() || self.command_key_pattern.len() > self.command.len() {
            return Err("more --command-ratio or --command-key-pattern than --command".into());
        }
        let plan = |(index, text): (usize, &String)| {
            let mut line = text.clone().into_bytes();
            let mut ranges = Vec::new();
            split_line(&mut line, &mut ranges).map_err(|_| format!("--command '{text}': unbalanced quotes"))?;
            let arguments = pantala_resp::Args::new(&line, &ranges);
            let words: Vec<Vec<u8>> = arguments.iter().map(<[u8]>::to_vec).collect();
            let Some(first) = words.first() else { return Err("--command is empty".to_owned()) };
            Ok(CommandPlan {
                name: String::from_utf8_lossy(first).to_uppercase(),
                pattern: self.command_key_pattern.get(index).copied().unwrap_or(Pattern::Uniform),
                weight: self.command_ratio.get(index).copied().unwrap_or(1),
                words,
            })
        };
        self.command.iter().enumerate().map(plan).collect()
    }

    fn set_and_get(&self) -> Result<Vec<CommandPlan>, String> {
        let set = match self.expiry_range {
            Some(_) => format!("SETEX {KEY} {EXPIRY} {DATA}"),
            None => format!("SET {KEY} {DATA}"),
        };
        let (sets, gets) = self.ratio.unwrap_or((1, 10));
        let (set_pattern, get_pattern) = self.key_pattern.unwrap_or((Pattern::Uniform, Pattern::Uniform));
        let commands = [
            CommandPlan::new("SET", &set, set_pattern, sets),
            CommandPlan::new("GET", &format!("GET {KEY}"), get_pattern, gets),
        ];
        let commands: Vec<_> = commands.into_iter().filter(|command| command.weight > 0).collect();
        if commands.is_empty() {
            return Err("--ratio 0:0 leaves nothing to do".into());
        }
        Ok(commands)
    }
}

/// Parses `A:B`.
fn pair_of<T: std::str::FromStr>(text: &str) -> Result<(T, T), String>
where
    T::Err: std::fmt::Display,
{
    let (first, second) = text.split_once(':').ok_or_else(|| format!("'{text}' isn't of the form A:B"))?;
    let read = |text: &str| text.parse().map_err(|error| format!("'{text}': {error}"));
    Ok((read(first)?, read(second)?))
}

/// Parses `MIN-MAX`.
fn range_of(text: &str) -> Result<(u64, u64), String> {
    let wrong = || format!("'{text}' isn't of the form MIN-MAX with MIN not above MAX");
    let (minimum, maximum) = text.split_once('-').ok_or_else(wrong)?;
    let (minimum, maximum) = (minimum.parse().map_err(|_| wrong())?, maximum.parse().map_err(|_| wrong())?);
    if minimum <= maximum { Ok((minimum, maximum)) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::super::client::{Client, Next};
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn plan(text: &str) -> Result<Plan, String> {
        let words = std::iter::once("load").chain(text.split('|').filter(|word| !word.is_empty()));
        Line::try_parse_from(words).map_err(|error| error.to_string())?.options.plan()
    }

    #[test]
    fn defaults_are_memtiers() {
        let plan = plan("").unwrap();
        assert_eq!((plan.threads, plan.clients, plan.pipeline, plan.rate_per_s), (4, 200, 1, None));
        assert_eq!((plan.amount, plan.sizes.maximum, plan.range.count()), (Amount::Requests(10_000), 32, 10_000_001));
        let weights: Vec<_> = plan.commands.iter().map(|command| (command.name.as_str(), command.weight)).collect();
        assert_eq!(weights, [("SET", 1), ("GET", 10)]);
    }

    #[test]
    fn a_rate_is_of_each_client() {
        assert_eq!(plan("--threads|2|--clients|3|--rate-limiting|10").unwrap().rate_per_s, Some(60));
    }

    #[test]
    fn wrong_options_are_reported() {
        for (options, expected) in [
            ("--ratio|0:0", "nothing to do"),
            ("--ratio|1", "A:B"),
            ("--key-pattern|R:X", "no key pattern"),
            ("--key-minimum|5|--key-maximum|4", "above --key-maximum"),
            ("--key-maximum|18446744073709551615", "too many keys"),
            ("--key-pattern|G:R|--key-stddev|0", "--key-stddev: above 0"),
            ("--key-pattern|G:R|--key-stddev|1e300", "at most 100000010, ten times"),
            ("--key-pattern|G:R|--key-stddev|NaN", "--key-stddev"),
            ("--key-stddev|5|--key-pattern|R:Z", "--key-stddev has no effect: no command has key pattern G"),
            ("--key-median|5", "--key-median has no effect"),
            ("--zipf-exp|1.2|--command|GET __key__|--command-key-pattern|G", "--zipf-exp has no effect"),
            ("--zipf-exp|1.2|--key-pattern|Z:R|--ratio|0:1", "--zipf-exp has no effect"),
            ("--ratio|1:1|--command|PING", "cannot be used"),
            ("--key-pattern|R:R|--command|PING", "cannot be used"),
            ("--expiry-range|1-2|--command|SET __key__ __data__", "--expiry-range has no effect"),
            ("--expiry-range|1-2|--ratio|0:1", "--expiry-range has no effect"),
            ("--command|SETEX __key__ __expiry__ __data__", "--expiry-range has to say how long"),
            ("--key-median|99999999", "--key-median"),
            ("--key-pattern|R:Z|--zipf-exp|0", "--zipf-exp must"),
            ("--requests|x", "allkeys"),
            ("--requests|0", "above 0"),
            ("--requests|5|--test-time|5", "cannot be used"),
            ("--data-size-range|9-3", "MIN-MAX"),
            ("--data-size-range|1-999999999999", "at most"),
            ("--expiry-range|0-3", "at least 1"),
            ("--threads|0", "0 is not in"),
            ("--threads|1024|--clients|1000", "clients: at most"),
            ("--pipeline|0", "0 is not in"),
            ("--command|SET \"a", "quotes"),
            ("--command|", "empty"),
            ("--command-ratio|3", "--command"),
            ("--command|PING|--command-ratio|3|--command-ratio|4", "more --command-ratio"),
            ("--command|MGET __key__ __key__|--cluster-mode", "in cluster mode"),
            ("--unix-socket|/x|--cluster-mode", "cannot be used"),
            ("--server|no.such.host.invalid", "has no address"),
            ("--cpus|x", "'x'"),
        ] {
            let line = if options == "--command|" { vec!["load", "--command", ""] } else { vec![] };
            let error = if line.is_empty() {
                plan(options).unwrap_err()
            } else {
                Line::try_parse_from(line).unwrap().options.plan().unwrap_err()
            };
            assert!(error.contains(expected), "{options}: {error}");
        }
    }

    #[test]
    fn commands_are_split_as_in_redis_cli() {
        let plan =
            plan("--command|hset __key__ \"a b\" __data__|--command|PING|--command-ratio|3|--command-key-pattern|Z")
                .unwrap();
        assert_eq!(plan.commands[0].words[2], b"a b");
        assert_eq!((plan.commands[0].weight, plan.commands[1].weight), (3, 1));
        assert_eq!((plan.commands[0].pattern, plan.commands[1].pattern), (Pattern::Zipf, Pattern::Uniform));
        assert_eq!(plan.commands[0].name, "HSET");
    }

    #[test]
    fn options_with_an_effect_are_taken() {
        for options in [
            "--key-pattern|R:G|--key-stddev|5|--key-median|7",
            "--key-stddev|5|--command|GET __key__|--command-key-pattern|G",
            "--key-pattern|Z:R|--zipf-exp|1.2",
            "--expiry-range|1-2|--ratio|1:0",
            "--expiry-range|1-2|--command|SET __key__ __data__ EX __expiry__",
            "--key-pattern|G:R|--key-stddev|100000010",
        ] {
            plan(options).unwrap_or_else(|why| panic!("{options}: {why}"));
        }
    }

    /// Returns the keys that each client draws, by client.
    fn keys_of_clients(plan: &Plan) -> Vec<Vec<u64>> {
        let draw_all = |client| {
            let mut client = Client::new(plan, client, 0);
            let mut keys = Vec::new();
            while let Next::Operation(operation) = client.draw(0) {
                keys.push(operation.key);
            }
            keys
        };
        (0..u64::from(plan.clients)).map(draw_all).collect()
    }

    #[test]
    fn allkeys_requests_each_key() {
        let all = |pattern: &str, clients: u32| {
            let options = "--requests|allkeys|--key-minimum|1|--key-maximum|1003|--ratio|1:0|--key-pattern";
            let mut plan = plan(&format!("{options}|{pattern}:{pattern}")).unwrap();
            plan.clients = clients;
            let keys = keys_of_clients(&plan);
            assert_eq!(plan.requests(), Some(keys.iter().map(Vec::len).sum::<usize>() as u64), "{pattern} {clients}");
            keys
        };
        let range: Vec<u64> = (1..=1003).collect();
        for clients in [1, 7, 200, 1003, 2000] {
            let mut keys = all("P", clients).concat();
            keys.sort_unstable();
            assert_eq!(keys, range, "P, {clients} clients: each key once");
        }
        for clients in [1, 7, 200] {
            assert!(all("S", clients).iter().all(|keys| *keys == range), "S, {clients} clients: each asks for all");
            assert!(all("R", clients).iter().all(|keys| keys.len() == 1003));
        }
        for (all, clients) in [(0, 3), (7, 1), (7, 3), (2, 5)] {
            let mut plan = plan("--command|PING").unwrap();
            (plan.amount, plan.clients) = (Amount::Shared(all), clients);
            assert_eq!((plan.requests(), keys_of_clients(&plan).concat().len()), (Some(all), all as usize));
        }
        // A client's number of requests is its part of the keys only if all patterns are P.
        assert_eq!(plan("--requests|allkeys|--key-maximum|99|--key-pattern|P:R").unwrap().requests_of(3), Some(100));
        assert_eq!(plan("--test-time|3").unwrap().requests(), None);
    }

    #[test]
    fn logins_are_read() {
        let login = |text: &str| plan(text).unwrap().login;
        assert_eq!(login("--authenticate|secret").password.unwrap(), "secret");
        let both = login("-a|me:se:cret|--select-db|3");
        assert_eq!((both.user.unwrap().as_str(), both.password.unwrap().as_str(), both.database), ("me", "se:cret", 3));
    }
}
