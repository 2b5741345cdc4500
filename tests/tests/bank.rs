//! A bank: concurrent clients move money between accounts (numbers) and coins between purses
//! (lists), by many kinds of commands. A client that reads all accounts or purses at one moment
//! must find the initial sum. A reader of the stream of effects must find the initial sum after
//! each *unit* (the effects of a transaction, or a single effect). The server's threads pause at
//! critical moments (`DEBUG FAULT`, in builds with debug assertions).
//!
//! | variable | meaning |
//! | --- | --- |
//! | `PANTALA_HISTORY_S` | seconds that `the_bank_for_long` runs (default 600) |

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pantala_tests::concurrent::{Body, run_for};
use pantala_tests::effects::{Effect, show_effect};
use pantala_tests::replica::Replica;
use pantala_tests::{Backend, Client, Random, Reply, Server, for_each_backend};

/// Duration of the test on each kind of server.
const RUN: Duration = Duration::from_millis(1500);
/// Maximum time until a violated invariant is detected.
const NOTICE_MAX: Duration = Duration::from_secs(30);

const ACCOUNTS: usize = 8;
const BALANCE: i64 = 100;
const PURSES: usize = 4;
const COINS: usize = 3;

fn account(number: usize) -> String {
    format!("account:{number}")
}

fn purse(number: usize) -> String {
    format!("purse:{number}")
}

/// Moves 1 from the account `from` to the account `to`.
const TRANSFER: &str = "redis.call('DECR', from) redis.call('INCR', to) return 1";

/// A function that moves money from one account to another.
type Move = fn(&mut Client, &str, &str, &mut Random) -> Reply;

fn by_incr(client: &mut Client, from: &str, to: &str, _: &mut Random) -> Reply {
    client.send_raw(b"MULTI\r\n");
    client.send(&["DECR", from]);
    client.send(&["INCR", to]);
    client.send_raw(b"EXEC\r\n");
    (0..4).map(|_| client.receive()).last().expect("four replies")
}

/// Watches both accounts and returns their balances.
fn watched(client: &mut Client, from: &str, to: &str) -> Option<(i64, i64)> {
    client.command(&["WATCH", from, to]);
    let both = client.command(&["MGET", from, to]);
    let balance = |reply: &Reply| match reply {
        Reply::Null => None,
        reply => reply.text().parse::<i64>().ok(),
    };
    Some((balance(&both.elements()[0])?, balance(&both.elements()[1])?))
}

fn by_watch(client: &mut Client, from: &str, to: &str, _: &mut Random) -> Reply {
    let Some((had, has)) = watched(client, from, to) else { return client.call("UNWATCH") };
    client.call("MULTI");
    client.command(&["SET", from, &(had - 1).to_string()]);
    client.command(&["SET", to, &(has + 1).to_string()]);
    client.call("EXEC")
}

fn by_mset(client: &mut Client, from: &str, to: &str, _: &mut Random) -> Reply {
    let Some((had, has)) = watched(client, from, to) else { return client.call("UNWATCH") };
    client.call("MULTI");
    client.command(&["MSET", from, &(had - 1).to_string(), to, &(has + 1).to_string()]);
    client.call("EXEC")
}

fn by_script(client: &mut Client, from: &str, to: &str, _: &mut Random) -> Reply {
    client.command(&["EVAL", &format!("local from, to = KEYS[1], KEYS[2] {TRANSFER}"), "2", from, to])
}

fn by_undeclared_script(client: &mut Client, from: &str, to: &str, _: &mut Random) -> Reply {
    client.command(&["EVAL", &format!("local from, to = ARGV[1], ARGV[2] {TRANSFER}"), "0", from, to])
}

/// Transfers with a script that the server hasn't cached. The script declares only one of its two
/// keys. When the script uses the other key, it is rolled back and rerun.
fn by_new_script(client: &mut Client, from: &str, to: &str, random: &mut Random) -> Reply {
    let script = format!("local from, to = KEYS[1], ARGV[1] {TRANSFER} -- {}", random.next_u64());
    client.command(&["EVAL", &script, "1", from, to])
}

/// Exchanges the names of two accounts.
fn by_rename(client: &mut Client, from: &str, to: &str, random: &mut Random) -> Reply {
    let between = format!("between:{}", random.next_u64());
    client.call("MULTI");
    for [one, other] in [[from, &between], [to, from], [&between, to]] {
        client.command(&["RENAME", one, other]);
    }
    client.call("EXEC")
}

const MOVES: [Move; 7] = [by_incr, by_watch, by_mset, by_script, by_undeclared_script, by_new_script, by_rename];

/// Moves a coin from one purse to another. May block briefly if the first purse is empty.
fn move_coin(client: &mut Client, random: &mut Random) {
    let (from, to) = (purse(random.below(PURSES)), purse(random.below(PURSES)));
    match random.below(3) {
        0 => client.command(&["BLMOVE", &from, &to, "LEFT", "RIGHT", "0.01"]),
        1 => client.command(&["LMOVE", &from, &to, "RIGHT", "LEFT"]),
        _ => client.command(&["BRPOPLPUSH", &from, &to, "0.01"]),
    };
}

/// Reads all accounts at one moment, by one of several atomic commands.
fn balances(client: &mut Client, random: &mut Random) -> Reply {
    let all: Vec<String> = (0..ACCOUNTS).map(account).collect();
    let over = |words: &[&str]| {
        words.iter().map(|word| (*word).to_owned()).chain(all.iter().cloned()).collect::<Vec<String>>()
    };
    match random.below(4) {
        0 => client.command(&over(&["MGET"])),
        1 => {
            let count = ACCOUNTS.to_string();
            client.command(&over(&["EVAL", "return redis.call('MGET', unpack(KEYS))", &count]))
        }
        2 => client.command(&over(&["EVAL", "return redis.call('MGET', unpack(ARGV))", "0"])),
        _ => {
            client.call("MULTI");
            for key in &all {
                client.command(&["GET", key]);
            }
            client.call("EXEC")
        }
    }
}

fn coins(client: &mut Client) -> i64 {
    client.call("MULTI");
    for number in 0..PURSES {
        client.command(&["LLEN", &purse(number)]);
    }
    client.call("EXEC").elements().iter().map(Reply::integer).sum()
}

/// Runs the bank. Fails if a sum is wrong.
fn run(server: &Server, limit: Duration, seed: u64) -> Result<(), String> {
    let mut client = server.connect();
    for number in 0..ACCOUNTS {
        client.command(&["SET", &account(number), &BALANCE.to_string()]);
    }
    for coin in 0..COINS {
        client.command(&["RPUSH", &purse(0), &coin.to_string()]);
    }
    let (moved, counted) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let mut bodies: Vec<Body> = Vec::new();
    for (number, by) in MOVES.into_iter().enumerate() {
        let (mut client, mut random) = (server.connect(), Random::from_seed(seed + number as u64));
        let moved = &moved;
        bodies.push(Box::new(move || {
            let from = random.below(ACCOUNTS);
            let to = (from + 1 + random.below(ACCOUNTS - 1)) % ACCOUNTS;
            match by(&mut client, &account(from), &account(to), &mut random) {
                Reply::Error(why) => return Err(format!("way {number}: {why}")),
                Reply::Null => {}
                _ => _ = moved.fetch_add(1, Ordering::Relaxed),
            }
            Ok(())
        }));
    }
    for number in 0..2 {
        let (mut client, mut random) = (server.connect(), Random::from_seed(seed + 100 + number));
        bodies.push(Box::new(move || {
            move_coin(&mut client, &mut random);
            Ok(())
        }));
        let (mut client, mut random) = (server.connect(), Random::from_seed(seed + 200 + number));
        let counted = &counted;
        bodies.push(Box::new(move || {
            let seen = balances(&mut client, &mut random);
            let balance =
                |reply: &Reply| if *reply == Reply::Null { 0 } else { reply.text().parse::<i64>().unwrap_or(0) };
            let sum: i64 = seen.elements().iter().map(balance).sum();
            let right = ACCOUNTS as i64 * BALANCE;
            if sum != right {
                return Err(format!("{sum} instead of {right} in all accounts: {seen:?}"));
            }
            let coins = coins(&mut client);
            counted.fetch_add(1, Ordering::Relaxed);
            if coins == COINS as i64 { Ok(()) } else { Err(format!("{coins} instead of {COINS} coins")) }
        }));
    }
    run_for(limit, bodies)?;
    let (moved, counted) = (moved.into_inner(), counted.into_inner());
    eprintln!("   {moved} transfers, counted {counted} times");
    assert!(moved >= 50 && counted >= 10, "{moved} transfers, counted {counted} times: too few to prove anything");
    Ok(())
}

/// The balances of all accounts and purses according to the stream of effects.
#[derive(Default)]
struct Books {
    accounts: HashMap<String, i64>,
    purses: HashMap<String, i64>,
    /// Whether all accounts and purses have been filled. Only then are the sums checked.
    is_open: bool,
}

impl Books {
    /// Applies a unit of the stream, and checks the sums.
    fn enter(&mut self, unit: &[Effect]) -> Result<(), String> {
        for effect in unit {
            let words: Vec<String> = effect.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
            self.enter_one(&words).ok_or_else(|| format!("{} is not a command of the bank", show_effect(effect)))?;
        }
        let held = self.accounts.iter().filter(|(name, _)| name.starts_with("account:"));
        let (money, coins): (i64, i64) = (held.map(|(_, balance)| balance).sum(), self.purses.values().sum());
        let is_right = money == ACCOUNTS as i64 * BALANCE && coins == COINS as i64;
        if self.is_open && !is_right {
            let unit: Vec<String> = unit.iter().map(show_effect).collect();
            return Err(format!("{money} in all accounts and {coins} coins after {unit:?}"));
        }
        self.is_open |= is_right;
        Ok(())
    }

    fn enter_one(&mut self, words: &[String]) -> Option<()> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut add = |purse: &str, coins: i64| *self.purses.entry(purse.to_owned()).or_default() += coins;
        match words.as_slice() {
            ["SELECT" | "PING", ..] | ["SET", "__marker__", _] => {}
            ["SET", name, balance] => _ = self.accounts.insert((*name).to_owned(), balance.parse().ok()?),
            ["MSET", pairs @ ..] => {
                for pair in pairs.chunks(2) {
                    self.accounts.insert(pair[0].to_owned(), pair[1].parse().ok()?);
                }
            }
            ["INCR", name] => *self.accounts.get_mut(*name)? += 1,
            ["DECR", name] => *self.accounts.get_mut(*name)? -= 1,
            ["RENAME", from, to] => {
                let balance = self.accounts.remove(*from)?;
                self.accounts.insert((*to).to_owned(), balance);
            }
            ["RPUSH", purse, _] => add(purse, 1),
            ["LMOVE", from, to, _, _] | ["RPOPLPUSH", from, to] => {
                add(from, -1);
                add(to, 1);
            }
            _ => return None,
        }
        Some(())
    }
}

/// Starts a server and injects these faults. Also returns whether this build supports faults.
fn start(backend: Backend, execution: &str, faults: &[(&str, u32)]) -> (Server, bool) {
    let server = Server::pantala(backend, &["--workers", "5", "--shards", "40", "--execution", execution]);
    let mut client = server.connect();
    let has_faults = faults
        .iter()
        .all(|(fault, permille)| client.command(&["DEBUG", "FAULT", fault, &permille.to_string()]) == Reply::ok());
    (server, has_faults)
}

const RACES: [(&str, u32); 4] =
    [("pause-taking", 20), ("pause-holding", 20), ("pause-replying", 20), ("every-key-hot", 300)];

fn on_every_server(each: Duration, seed: u64) {
    for_each_backend(|backend| {
        for execution in ["inline", "owner"] {
            eprintln!("-- execution {execution}");
            let (mut server, _) = start(backend, execution, &RACES);
            for is_followed in [false, true] {
                assert_eq!(server.connect().call("FLUSHALL"), Reply::ok());
                let replica = is_followed.then(|| {
                    let (mut books, copy) = (Books::default(), Server::pantala(backend, &["--workers", "2"]));
                    Replica::attach(&server, vec![copy], Box::new(move |unit| books.enter(unit)))
                });
                let ran = run(&server, each / 2, seed);
                let followed = replica.map_or(Ok(0), |replica| replica.finish(&server));
                if let Err(text) = ran.and(followed) {
                    panic!("backend {}, execution {execution}: {text}", backend.name());
                }
            }
            server.assert_sound();
        }
    });
}

#[test]
fn the_bank_keeps_its_sum() {
    on_every_server(RUN, Random::seed("the_bank_keeps_its_sum"));
    for broken in ["torn-exec", "blind-exec", "kept-undo"] {
        let (server, has_faults) = start(Backend::all()[0], "inline", &[(broken, 500)]);
        if has_faults {
            assert!(run(&server, NOTICE_MAX, 1).is_err(), "{broken} isn't detected: the test can't fail");
        } else {
            eprintln!("SKIPPED: {broken}: this build has no faults");
        }
    }
}

#[test]
#[ignore = "runs for ten minutes: .ci/nightly"]
fn the_bank_for_long() {
    let seconds = std::env::var("PANTALA_HISTORY_S").map_or(600, |text| text.parse().expect("a number of seconds"));
    let mut servers = 0;
    for_each_backend(|_| servers += 2);
    on_every_server(Duration::from_secs(seconds) / servers, Random::seed("the_bank_for_long"));
}
