//! Which writes survive if a server with an append-only file is killed (`kill -9`). The test kills
//! the server at a random instant, or the server kills itself just before or after a system call on
//! a file. Then the test restarts the server, and compares its data with the replies that clients
//! received before the kill.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pantala_tests::server::READY_MAX;
use pantala_tests::{Backend, Client, Random, Reply, Server, for_each_backend};
use rustix::process::Signal;
use tempfile::TempDir;

const WRITERS: usize = 4;

/// Number of elements of a list that no client changes. A list of this length is encoded in several
/// steps.
const LARGE: i64 = 10_000;

/// With `everysec`, a kill may lose only writes that were acknowledged at most this long before it.
/// A slow disk or host makes this time longer: [`CALLS_MAX`] times [`longest_delay`] is added.
const PERIOD: Duration = Duration::from_secs(1);

/// Maximum number of system calls in a row in which the thread that writes the append-only file
/// waits for the disk without writing effects. A rewrite of the append-only file has the most: it
/// syncs the increments, the manifest, the base and the directory.
const CALLS_MAX: u32 = 10;

/// A value of `appendfsync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Always,
    EverySecond,
}

impl Policy {
    fn name(self) -> &'static str {
        match self {
            Policy::Always => "always",
            Policy::EverySecond => "everysec",
        }
    }
}

/// Increasing numbers that a client has received, each with the time of the reply.
#[derive(Default)]
struct Seen(Mutex<Vec<(u64, Instant)>>);

impl Seen {
    fn note(&self, number: u64) {
        let mut seen = self.0.lock().expect("no client has panicked");
        if seen.last().is_none_or(|(last, _)| *last < number) {
            seen.push((number, Instant::now()));
        }
    }

    /// Returns the last number seen until `until`, or 0.
    fn until(&self, until: Instant) -> u64 {
        let seen = self.0.lock().expect("no client has panicked");
        seen.iter().take_while(|(_, at)| *at <= until).last().map_or(0, |(number, _)| *number)
    }

    /// Returns when the first number above `number` was seen.
    fn first_above(&self, number: u64) -> Option<Instant> {
        let seen = self.0.lock().expect("no client has panicked");
        seen.iter().find(|(seen, _)| *seen > number).map(|(_, at)| *at)
    }

    fn last_at(&self) -> Option<Instant> {
        self.0.lock().expect("no client has panicked").last().map(|(_, at)| *at)
    }
}

/// The numbers that one writer has sent, and those that the writer and its reader have received.
#[derive(Default)]
struct Observed {
    /// The last number sent.
    sent: AtomicU64,
    acknowledged: Seen,
    /// The values that a reader has seen.
    read: Seen,
}

/// Runs writers and readers until the server is killed. Each writer appends increasing numbers to
/// its own list (`list:n` for the writer n), starting after `base[n]`. After each append it stores
/// the number under the keys `a:n` and `b:n` in a transaction. For each writer, a reader polls
/// `b:n`.
fn write_numbers(server: &Server, observed: &[Observed], base: &[u64], is_over: &AtomicBool) {
    std::thread::scope(|scope| {
        for (writer, (observed, base)) in observed.iter().zip(base).enumerate() {
            let port = server.port();
            scope.spawn(move || {
                let Ok(mut client) = Client::try_tcp(port) else { return };
                for number in base + 1.. {
                    observed.sent.store(number, Relaxed);
                    let commands = [
                        format!("RPUSH list:{writer} {number}"),
                        "MULTI".to_owned(),
                        format!("SET a:{writer} {number}"),
                        format!("SET b:{writer} {number}"),
                        "EXEC".to_owned(),
                    ];
                    let bytes: Vec<u8> = commands
                        .iter()
                        .flat_map(|command| {
                            let words: Vec<_> = command.split(' ').collect();
                            pantala_tests::client::encode(&words)
                        })
                        .collect();
                    if client.try_send_raw(&bytes).is_err() {
                        return;
                    }
                    for _ in &commands {
                        match client.try_receive() {
                            Ok((Reply::Error(error), _)) => panic!("{error}"),
                            Ok(_) => {}
                            Err(_) => return,
                        }
                    }
                    observed.acknowledged.note(number);
                }
            });
            scope.spawn(move || {
                let Ok(mut client) = Client::try_tcp(port) else { return };
                while !is_over.load(Relaxed) {
                    if client.try_send_raw(format!("GET b:{writer}\r\n").as_bytes()).is_err() {
                        return;
                    }
                    let Ok((reply, _)) = client.try_receive() else { return };
                    if reply != Reply::Null {
                        observed.read.note(reply.text().parse().expect("a number"));
                    }
                }
            });
        }
    });
}

/// Measures the delays of the host and its disk until `is_over` is set: repeatedly sleeps, and then
/// writes and syncs a small file in `dir`. Returns the longest time of a round, without the time
/// for which the thread should sleep.
fn longest_delay(dir: &Path, is_over: &AtomicBool) -> Duration {
    const PAUSE: Duration = Duration::from_millis(20);
    let mut file = File::create(dir.join("probe")).expect("created");
    let mut longest = Duration::ZERO;
    while !is_over.load(Relaxed) {
        let began = Instant::now();
        std::thread::sleep(PAUSE);
        file.write_all(b"probe").and_then(|()| file.sync_data()).expect("synced");
        longest = longest.max(began.elapsed() - PAUSE);
    }
    longest
}

/// Servers that are killed one after the other, with the same files.
struct Campaign {
    backend: Backend,
    policy: Policy,
    more: &'static [&'static str],
    random: Random,
    dir: TempDir,
    /// The length of each writer's list after the last restart.
    base: Vec<u64>,
}

impl Campaign {
    fn new(backend: Backend, seed: u64, policy: Policy, more: &'static [&'static str]) -> Campaign {
        let dir = tempfile::Builder::new().prefix("pantala-kills-").tempdir().expect("a folder for the files");
        let campaign = Campaign { backend, policy, more, random: Random::from_seed(seed), dir, base: vec![0; WRITERS] };
        let server = campaign.start();
        let fill = format!("for i = 1, {LARGE} do redis.call('RPUSH', KEYS[1], 'element ' .. i) end");
        let mut client = server.connect();
        client.command(&["EVAL", &fill, "1", "large"]);
        sync(&mut client);
        server.kill();
        campaign
    }

    fn start(&self) -> Server {
        let dir = self.dir.path().to_str().expect("a UTF-8 path");
        let mut args = vec!["--dir", dir, "--save", "", "--appendonly", "yes", "--workers", "3"];
        args.extend(["--appendfsync", self.policy.name()]);
        args.extend_from_slice(self.more);
        Server::pantala(self.backend, &args)
    }

    /// Returns the maximum lifetime of the next server. With `everysec`, two thirds of the servers
    /// live long enough that the first writes must survive.
    fn lifetime(&mut self) -> Duration {
        if self.policy == Policy::Always || self.random.one_in(3) {
            Duration::from_millis(20 + self.random.below(150) as u64)
        } else {
            PERIOD + Duration::from_millis(200 + self.random.below(1500) as u64)
        }
    }

    /// Starts a server, kills it at a random moment, restarts it and checks its data. Returns how
    /// long before the kill the first lost write was acknowledged.
    ///
    /// # Errors
    /// The data violates a rule.
    fn kill_once(&mut self) -> Result<Duration, String> {
        let lifetime = self.lifetime();
        let rewrites = self.random.one_in(2);
        // In half of the rounds the server may kill itself earlier, at an operation on a file.
        let kill_permille = if self.random.one_in(2) { 0 } else { [2, 20, 200][self.random.below(3)] };
        let rewrite = if rewrites { "BGREWRITEAOF\r\n" } else { "" };
        let orders = format!("DEBUG FAULT kill-at-disk {kill_permille}\r\n{rewrite}");
        self.kill_after("", &orders, lifetime)
    }

    /// Does the same as [`Campaign::kill_once`], but kills the server after `lifetime`. A client
    /// sends the commands `first` when the server has started, and the commands `orders` after half
    /// of `lifetime`.
    fn kill_after(&mut self, first: &str, orders: &str, lifetime: Duration) -> Result<Duration, String> {
        let mut server = self.start();
        let observed: Vec<Observed> = (0..WRITERS).map(|_| Observed::default()).collect();
        let is_over = AtomicBool::new(false);
        let mut killed_at = Instant::now();
        let mut client = server.connect();
        for line in first.lines() {
            assert_eq!(client.call(line), Reply::ok(), "{line}");
        }
        let delay = std::thread::scope(|scope| {
            scope.spawn(|| write_numbers(&server, &observed, &self.base, &is_over));
            let probe = scope.spawn(|| longest_delay(self.dir.path(), &is_over));
            std::thread::sleep(lifetime / 2);
            // The replies are not awaited, because the server may be killed before it sends them.
            let _ = client.try_send_raw(orders.as_bytes());
            std::thread::sleep(lifetime / 2);
            killed_at = Instant::now();
            server.signal(Signal::KILL);
            is_over.store(true, Relaxed);
            probe.join().expect("the disk can be measured")
        });
        server.wait_exit(READY_MAX);
        // If the server killed itself, it died at about the time of its last reply.
        let replied_at = observed.iter().filter_map(|observed| observed.acknowledged.last_at()).max();
        let killed_at = killed_at.min(replied_at.unwrap_or(killed_at));
        let kept_until = match self.policy {
            Policy::Always => Some(killed_at),
            // This is `None` if the host booted less than this duration before the kill.
            Policy::EverySecond => killed_at.checked_sub(PERIOD + CALLS_MAX * delay),
        };
        self.check(&observed, killed_at, kept_until)
            .map_err(|violation| format!("{violation}\nlongest delay of the host {delay:?}\n{}", server.log()))
    }

    /// Restarts the server and checks its data:
    ///
    /// - the list that no client changes is complete;
    /// - each writer's list has a prefix of the numbers that the writer has sent;
    /// - both values of each writer's transactions are of the same transaction;
    /// - the two values are the last number of the list, or the number before it if the server was
    ///   killed between the append and the transaction;
    /// - the two values are at least the last number that was acknowledged to the writer, or read
    ///   by the reader, until `kept_until`.
    ///
    /// Returns how long before `killed_at` the first lost write was acknowledged.
    fn check(
        &mut self,
        observed: &[Observed],
        killed_at: Instant,
        kept_until: Option<Instant>,
    ) -> Result<Duration, String> {
        let server = self.start();
        let mut client = server.connect();
        let large = client.call("LLEN large").integer();
        if large != LARGE {
            return Err(format!("a list that no client changes has {large} elements: {}", server.log()));
        }
        let mut lost = Duration::ZERO;
        for (writer, (base, observed)) in self.base.iter_mut().zip(observed).enumerate() {
            let mut value = |name: &str| -> u64 {
                let reply = client.call(&format!("GET {name}:{writer}"));
                if reply == Reply::Null { 0 } else { reply.text().parse().expect("a number") }
            };
            let (a, b) = (value("a"), value("b"));
            let list: Vec<u64> = client
                .call(&format!("LRANGE list:{writer} 0 -1"))
                .elements()
                .iter()
                .map(|element| element.text().parse().expect("a number"))
                .collect();
            let (last, sent) = (list.len() as u64, observed.sent.load(Relaxed));
            let kept = |seen: &Seen| kept_until.map_or(0, |until| seen.until(until));
            let (acknowledged, read) = (kept(&observed.acknowledged), kept(&observed.read));
            let rules = [
                (list.iter().copied().eq(1..=last), "a prefix of the list is kept"),
                (a == b, "transactions are whole"),
                (a <= last && last <= a + 1, "writes are kept in order"),
                (last <= sent.max(*base), "only sent writes are kept"),
                (a >= acknowledged, "acknowledged writes are kept"),
                (b >= read, "read writes are kept"),
            ];
            if let Some((_, rule)) = rules.iter().find(|(holds, _)| !holds) {
                return Err(format!(
                    "not true: {rule}: writer {writer}: list {last}, a {a}, b {b}, sent {sent}, acknowledged \
                     {acknowledged}, read {read}\n{}",
                    server.log()
                ));
            }
            if let Some(at) = observed.acknowledged.first_above(a) {
                lost = lost.max(killed_at.saturating_duration_since(at));
            }
            *base = last;
        }
        // If the server was killed between a writer's push and the transaction that follows it, the
        // list is one number ahead of the keys. Sets the keys to the list's number for the next
        // round.
        for (writer, base) in self.base.iter().enumerate() {
            assert_eq!(client.call(&format!("MSET a:{writer} {base} b:{writer} {base}")), Reply::ok());
        }
        sync(&mut client);
        server.kill();
        Ok(lost)
    }
}

/// Waits until the client's writes are on disk.
fn sync(client: &mut Client) {
    assert_eq!(client.call("WAITAOF 1 0 0").elements()[0].integer(), 1);
}

/// Kills servers of a campaign, and checks the data after each kill.
fn crash(backend: Backend, seed: u64, kills: usize, policy: Policy, more: &'static [&'static str]) {
    let mut campaign = Campaign::new(backend, seed, policy, more);
    let mut lost = Duration::ZERO;
    for kill in 0..kills {
        match campaign.kill_once() {
            Ok(age) => lost = lost.max(age),
            Err(violation) => panic!("seed {seed}, kill {kill}, {policy:?}: {violation}"),
        }
    }
    eprintln!("{kills} kills, {policy:?}: lost writes were acknowledged at most {lost:?} before the kill");
}

#[test]
fn acknowledged_and_read_writes_survive_kills() {
    for_each_backend(|backend| {
        let seed = Random::seed("acknowledged_and_read_writes_survive_kills");
        crash(backend, seed, 5, Policy::Always, &[]);
        crash(backend, seed + 1, 2, Policy::Always, &["--execution", "owner"]);
        crash(backend, seed + 2, 2, Policy::Always, &["--aof-use-rdb-preamble", "no"]);
    });
}

#[test]
fn everysec_loses_at_most_a_second_in_kills() {
    for_each_backend(|backend| {
        let seed = Random::seed("everysec_loses_at_most_a_second_in_kills");
        crash(backend, seed, 3, Policy::EverySecond, &[]);
        crash(backend, seed + 1, 1, Policy::EverySecond, &["--execution", "owner"]);
    });
}

/// The clock is set forward or back by an hour while the server writes.
#[test]
fn everysec_loses_at_most_a_second_after_a_jump_of_the_clock() {
    let seed = Random::seed("everysec_loses_at_most_a_second_after_a_jump_of_the_clock");
    for_each_backend(|backend| {
        let mut campaign = Campaign::new(backend, seed, Policy::EverySecond, &[]);
        for by_ms in ["3600000", "-3600000"] {
            // A release build has no jumps, and replies with an error.
            let orders = format!("DEBUG CLOCK-JUMP {by_ms}\r\nBGREWRITEAOF\r\n");
            // The jump comes after half of the lifetime. The other half is longer than `PERIOD`, so
            // some of the writes after the jump must survive.
            let outcome = campaign.kill_after("", &orders, 5 * PERIOD / 2);
            outcome.unwrap_or_else(|violation| panic!("seed {seed}, {by_ms}: {violation}"));
        }
    });
}

/// With each of these injected faults, the check must find that a rule is violated.
#[test]
fn the_check_finds_violations() {
    let seed = Random::seed("the_check_finds_violations");
    for (policy, fault, lifetime, rule) in [
        // Nothing is written any more, so the writes of several seconds are lost.
        (Policy::EverySecond, "stuck-disk 1000", 5 * PERIOD, "acknowledged writes are kept"),
        (Policy::EverySecond, "lost-effect 300", PERIOD / 2, "not true"),
        (Policy::Always, "lost-effect 300", PERIOD / 2, "not true"),
    ] {
        let mut campaign = Campaign::new(Backend::Epoll, seed, policy, &[]);
        if campaign.start().connect().call("DEBUG FAULT pause-taking 0") != Reply::ok() {
            eprintln!("this build injects no faults");
            return;
        }
        let outcome = campaign.kill_after(&format!("DEBUG FAULT {fault}"), "", lifetime);
        let violation = outcome.expect_err(fault);
        assert!(violation.contains(rule), "{fault}: {violation}");
    }
}

#[test]
#[ignore = "minutes: .ci/nightly runs it"]
fn acknowledged_writes_survive_many_kills() {
    let seed = Random::seed("acknowledged_writes_survive_many_kills");
    for_each_backend(|backend| {
        crash(backend, seed, kills() / 6, Policy::Always, &[]);
        crash(backend, seed + 1, kills() / 6, Policy::Always, &["--execution", "owner"]);
        crash(backend, seed + 2, kills() / 6, Policy::Always, &["--aof-use-rdb-preamble", "no"]);
    });
}

/// Has a fifth as many kills as the test with `always`, because the servers live longer.
#[test]
#[ignore = "minutes: .ci/nightly runs it"]
fn everysec_loses_at_most_a_second_in_many_kills() {
    let seed = Random::seed("everysec_loses_at_most_a_second_in_many_kills");
    for_each_backend(|backend| {
        crash(backend, seed, kills() / 20, Policy::EverySecond, &[]);
        crash(backend, seed + 1, kills() / 20, Policy::EverySecond, &["--execution", "owner"]);
    });
}

/// Returns the number of kills of the long runs.
fn kills() -> usize {
    std::env::var("PANTALA_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(500)
}
