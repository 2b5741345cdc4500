//! Measures the throughput of single-key commands while a client runs MSET over all shards without
//! pause.
//!
//! Starts and fills a server, and then alternates two phases. In the first phase, clients run only
//! GET and SET of single keys. In the second phase, one more client runs `MSET` of 100 keys over
//! all shards without pause, and another client checks that a reply to `MGET` never contains values
//! of two different MSETs. Prints the ratio of the throughputs of the two phases within a round.
//!
//! ```text
//! cargo run --release -p pantala-benches --example mset_interference [-- --server PATH --port N
//!     --shards N --workers N --execution inline|owner --rounds N --seconds N --connections N
//!     --pipeline N --check-every-us N --unatomic]
//! ```
//!
//! With `--unatomic`, the client sends 100 pipelined SETs instead of each MSET. The checker *must*
//! then find violations, which shows that it can find them. The exit status is 0 on success, and 1
//! after a violation or an error.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pantala_base::limits::SLOTS;
use pantala_base::{Random, key_slot};
use pantala_resp::value::{Value, parse_reply, reply_len};

const KEYS: u64 = 100_000;
const MSET_KEYS: usize = 100;
const VALUE_BYTES: usize = 64;
const SEED: u64 = 0x5eed;
const START_WAIT: Duration = Duration::from_secs(10);
/// Timeout for a reply, so that a server that hangs causes an error.
const REPLY_WAIT: Duration = Duration::from_secs(10);

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

struct Settings {
    server: String,
    port: u16,
    shards: u32,
    workers: u32,
    execution: String,
    rounds: usize,
    phase: Duration,
    connections: u64,
    pipeline: usize,
    check_every: Duration,
    is_unatomic: bool,
}

impl Settings {
    fn from_args() -> Fallible<Self> {
        let mut settings = Settings {
            server: "target/release/pantala".into(),
            port: 0,
            shards: 40,
            workers: 2,
            execution: "inline".into(),
            rounds: 7,
            phase: Duration::from_secs(2),
            connections: 8,
            pipeline: 16,
            check_every: Duration::from_micros(500),
            is_unatomic: false,
        };
        let mut args = std::env::args().skip(1);
        while let Some(name) = args.next() {
            if name == "--unatomic" {
                settings.is_unatomic = true;
                continue;
            }
            let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
            match name.as_str() {
                "--server" => settings.server = value,
                "--port" => settings.port = value.parse()?,
                "--shards" => settings.shards = value.parse()?,
                "--workers" => settings.workers = value.parse()?,
                "--execution" => settings.execution = value,
                "--rounds" => settings.rounds = value.parse::<usize>()?.max(1),
                "--seconds" => settings.phase = Duration::from_secs_f64(value.parse::<f64>()?.clamp(0.1, 60.0)),
                "--connections" => settings.connections = value.parse::<u64>()?.clamp(1, 256),
                "--pipeline" => settings.pipeline = value.parse::<usize>()?.clamp(1, 1024),
                "--check-every-us" => settings.check_every = Duration::from_micros(value.parse()?),
                _ => return Err(format!("unknown option {name}").into()),
            }
        }
        if settings.port == 0 {
            settings.port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        }
        Ok(settings)
    }
}

/// The server process, which is killed when the value is dropped.
struct Server(Child);

impl Server {
    fn start(settings: &Settings) -> Fallible<Self> {
        let child = Command::new(&settings.server)
            .args(["--port", &settings.port.to_string()])
            .args(["--shards", &settings.shards.to_string()])
            .args(["--workers", &settings.workers.to_string()])
            .args(["--execution", &settings.execution])
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("{}: {error}", settings.server))?;
        let server = Server(child);
        let deadline = Instant::now() + START_WAIT;
        loop {
            match Connection::open(settings.port).and_then(|mut connection| connection.ask(&[b"PING"])) {
                Ok(_) => return Ok(server),
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server may have ended by itself, in which case the measurement has already failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A blocking client.
struct Connection {
    stream: TcpStream,
    output: Vec<u8>,
    input: Vec<u8>,
}

impl Connection {
    fn open(port: u16) -> Fallible<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_WAIT))?;
        Ok(Connection { stream, output: Vec::new(), input: Vec::new() })
    }

    fn push(&mut self, words: &[&[u8]]) {
        // Writing to a vector can't fail.
        let _ = write!(self.output, "*{}\r\n", words.len());
        for word in words {
            let _ = write!(self.output, "${}\r\n", word.len());
            self.output.extend_from_slice(word);
            self.output.extend_from_slice(b"\r\n");
        }
    }

    /// Sends the commands in `output`, and waits for `replies` replies. Fails if one of them is an
    /// error. The replies stay in `input`.
    fn exchange(&mut self, replies: usize) -> Fallible<()> {
        self.stream.write_all(&self.output)?;
        self.output.clear();
        self.input.clear();
        let (mut at, mut seen) = (0, 0);
        let mut chunk = [0; 16 * 1024];
        while seen < replies {
            let len = self.stream.read(&mut chunk)?;
            if len == 0 {
                return Err("the server closed the connection".into());
            }
            self.input.extend_from_slice(&chunk[..len]);
            while let Some(reply_len) = reply_len(&self.input[at..])? {
                if self.input[at] == b'-' {
                    return Err(String::from_utf8_lossy(&self.input[at..at + reply_len]).into());
                }
                at += reply_len;
                seen += 1;
            }
        }
        Ok(())
    }

    fn ask(&mut self, words: &[&[u8]]) -> Fallible<Value> {
        self.push(words);
        self.exchange(1)?;
        Ok(parse_reply(&self.input)?.ok_or("half a reply")?.0)
    }
}

fn single_key(index: u64) -> Vec<u8> {
    format!("key:{index:012}").into_bytes()
}

/// Returns keys for MSET that are distributed evenly over the shards. A shard is a contiguous range
/// of slots.
fn spread_keys(shards: u32) -> Vec<Vec<u8>> {
    let shard = |key: &[u8]| usize::from(key_slot(key)) * shards as usize / SLOTS;
    let mut left = vec![0; shards as usize];
    for index in 0..MSET_KEYS {
        left[index % shards as usize] += 1;
    }
    let candidates = (0..u64::MAX).map(|index| format!("many:{index}").into_bytes());
    candidates
        .filter(|key| {
            let room = &mut left[shard(key)];
            let fits = *room > 0;
            *room -= usize::from(fits);
            fits
        })
        .take(MSET_KEYS)
        .collect()
}

/// The state that all clients of a phase share.
struct Phase<'a> {
    settings: &'a Settings,
    many: &'a [Vec<u8>],
    stop: AtomicBool,
    operations: AtomicU64,
    msets: AtomicU64,
    checks: AtomicU64,
    /// Number of checks that saw values of more than one MSET.
    violations: AtomicU64,
}

impl Phase<'_> {
    fn runs(&self) -> bool {
        !self.stop.load(Relaxed)
    }

    /// Runs pipelined GETs and SETs of single keys, in a ratio of 1:1.
    fn run_singles(&self, mut connection: Connection, mut random: Random) -> Fallible<()> {
        let value = [b'v'; VALUE_BYTES];
        while self.runs() {
            for _ in 0..self.settings.pipeline {
                let key = single_key(random.below(KEYS));
                if random.below(2) == 0 {
                    connection.push(&[b"GET", &key]);
                } else {
                    connection.push(&[b"SET", &key, &value]);
                }
            }
            connection.exchange(self.settings.pipeline)?;
            self.operations.fetch_add(self.settings.pipeline as u64, Relaxed);
        }
        Ok(())
    }

    /// Runs MSET of all keys repeatedly, each time with a new value.
    fn run_msets(&self, mut connection: Connection) -> Fallible<()> {
        let mut count = 0;
        while self.runs() {
            count += 1;
            write_many(&mut connection, self.many, count, self.settings.is_unatomic)?;
            self.msets.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    fn run_checks(&self, mut connection: Connection) -> Fallible<()> {
        let mut words: Vec<&[u8]> = vec![b"MGET"];
        words.extend(self.many.iter().map(Vec::as_slice));
        while self.runs() {
            let Value::Array(values) = connection.ask(&words)? else { return Err("MGET answers an array".into()) };
            if values.len() != self.many.len() || !values.iter().all(|value| matches!(value, Value::Bulk(_))) {
                return Err("MGET lost a key".into());
            }
            self.checks.fetch_add(1, Relaxed);
            if values.windows(2).any(|pair| pair[0] != pair[1]) {
                self.violations.fetch_add(1, Relaxed);
            }
            std::thread::sleep(self.settings.check_every);
        }
        Ok(())
    }
}

fn write_many(connection: &mut Connection, many: &[Vec<u8>], count: u64, is_unatomic: bool) -> Fallible<()> {
    let value = format!("{count:0VALUE_BYTES$}").into_bytes();
    if is_unatomic {
        for key in many {
            connection.push(&[b"SET", key, &value]);
        }
        return connection.exchange(many.len());
    }
    let mut words: Vec<&[u8]> = vec![b"MSET"];
    words.extend(many.iter().flat_map(|key| [key.as_slice(), &value]));
    connection.push(&words);
    connection.exchange(1)
}

fn load(settings: &Settings, many: &[Vec<u8>]) -> Fallible<()> {
    const BATCH: u64 = 1_000;
    let mut connection = Connection::open(settings.port)?;
    for first in (0..KEYS).step_by(BATCH as usize) {
        for index in first..first + BATCH {
            connection.push(&[b"SET", &single_key(index), &[b'v'; VALUE_BYTES]]);
        }
        connection.exchange(BATCH as usize)?;
    }
    write_many(&mut connection, many, 0, false)
}

/// The results of one phase.
struct Measurements {
    per_second: f64,
    msets_per_second: f64,
    checks: u64,
    violations: u64,
}

fn run_phase(settings: &Settings, many: &[Vec<u8>], round: usize, with_msets: bool) -> Fallible<Measurements> {
    let phase = Phase {
        settings,
        many,
        stop: AtomicBool::new(false),
        operations: AtomicU64::new(0),
        msets: AtomicU64::new(0),
        checks: AtomicU64::new(0),
        violations: AtomicU64::new(0),
    };
    let phase = &phase;
    let elapsed = std::thread::scope(|scope| -> Fallible<Duration> {
        let mut threads = Vec::new();
        for number in 0..settings.connections {
            let connection = Connection::open(settings.port)?;
            let random = Random::from_seed(SEED ^ (round as u64 * settings.connections + number));
            threads.push(scope.spawn(move || phase.run_singles(connection, random)));
        }
        if with_msets {
            let (writer, checker) = (Connection::open(settings.port)?, Connection::open(settings.port)?);
            threads.push(scope.spawn(move || phase.run_msets(writer)));
            threads.push(scope.spawn(move || phase.run_checks(checker)));
        }
        let began = Instant::now();
        std::thread::sleep(settings.phase);
        phase.stop.store(true, Relaxed);
        for thread in threads {
            thread.join().map_err(|_| "a client thread panicked")??;
        }
        // The time ends with the last reply, because operations are counted when their replies
        // arrive.
        Ok(began.elapsed())
    })?;
    let per_second = |count: &AtomicU64| count.load(Relaxed) as f64 / elapsed.as_secs_f64();
    Ok(Measurements {
        per_second: per_second(&phase.operations),
        msets_per_second: per_second(&phase.msets),
        checks: phase.checks.load(Relaxed),
        violations: phase.violations.load(Relaxed),
    })
}

/// Returns the minimum, the median and the maximum.
fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[0], values[values.len() / 2], values[values.len() - 1])
}

fn run() -> Fallible<u64> {
    let settings = Settings::from_args()?;
    let many = spread_keys(settings.shards);
    let _server = Server::start(&settings)?;
    load(&settings, &many)?;
    println!(
        "GET/SET 1:1 of {KEYS} keys, {VALUE_BYTES}-byte values, {} connections, pipeline {}; --shards {} --workers {} --execution {}; {} rounds of 2 x {:?}",
        settings.connections,
        settings.pipeline,
        settings.shards,
        settings.workers,
        settings.execution,
        settings.rounds,
        settings.phase
    );
    println!(
        "{:>5} {:>14} {:>14} {:>7} {:>9} {:>8} {:>10}",
        "round", "alone op/s", "beside op/s", "ratio", "MSET/s", "checks", "violations"
    );
    let mut rounds = Vec::new();
    for round in 0..settings.rounds {
        let alone = run_phase(&settings, &many, round, false)?;
        let beside = run_phase(&settings, &many, round, true)?;
        println!(
            "{round:>5} {:>14.0} {:>14.0} {:>7.3} {:>9.0} {:>8} {:>10}",
            alone.per_second,
            beside.per_second,
            beside.per_second / alone.per_second,
            beside.msets_per_second,
            beside.checks,
            beside.violations
        );
        rounds.push((alone, beside));
    }
    let (least, middle, most) =
        spread(rounds.iter().map(|(alone, beside)| beside.per_second / alone.per_second).collect());
    let msets = spread(rounds.iter().map(|(_, beside)| beside.msets_per_second).collect()).1;
    let checks: u64 = rounds.iter().map(|(_, beside)| beside.checks).sum();
    let violations: u64 = rounds.iter().map(|(_, beside)| beside.violations).sum();
    println!("throughput beside MSET / alone: {middle:.3} ({least:.3} to {most:.3}); goal: at least 0.5");
    println!("{msets:.0} MSET/s of {MSET_KEYS} keys; {checks} checks, {violations} violations of atomicity");
    if checks == 0 {
        return Err("no check was made: nothing is said about atomicity".into());
    }
    Ok(violations)
}

fn main() -> ExitCode {
    match run() {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("mset_interference: {error}");
            ExitCode::FAILURE
        }
    }
}
