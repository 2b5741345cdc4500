//! Clients that write at the same time: random commands of all types on shared keys.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Random, Reply, Server};

/// Number of keys of each type. There are few keys, so that writers collide.
const KEYS: usize = 40;

/// Number of different members. Lists and streams are trimmed to about this length, too.
const MEMBERS: usize = 64;

/// Minimum number of commands that a writer sends in one write.
const PIPELINE: usize = 100;

/// Number of databases that writers select.
const DATABASES: usize = 3;

/// A script that appends to two strings, so that its effects are one unit of the stream.
const APPEND_TO_BOTH: &str = "redis.call('append',KEYS[1],ARGV[1])return(redis.call('append',KEYS[2],ARGV[1]))";

/// Runs `writers` clients, which write until `is_over` is set and pause while `rests` is set.
///
/// # Panics
/// If a command fails with an unexpected error.
pub fn write_until(server: &Server, seed: u64, writers: usize, is_over: &AtomicBool, rests: &AtomicBool) {
    std::thread::scope(|scope| {
        for writer in 0..writers {
            scope.spawn(move || {
                let mut random = Random::from_seed(Random::seed_of(seed, &format!("writer {writer}")));
                let mut client = server.connect();
                while !is_over.load(Ordering::Relaxed) {
                    if rests.load(Ordering::Relaxed) {
                        std::thread::sleep(std::time::Duration::from_millis(5));
                        continue;
                    }
                    let commands = pipeline(&mut random);
                    for (reply, command) in client.pipeline(&commands).iter().zip(&commands) {
                        let is_expected = |text: &str| text.contains("no such key");
                        let is_wrong = matches!(reply, Reply::Error(text) if !is_expected(text));
                        assert!(!is_wrong, "{command:?} got the reply {reply:?}");
                    }
                }
            });
        }
    });
}

fn pipeline(random: &mut Random) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    while all.len() < PIPELINE {
        if random.one_in(25) {
            all.push(vec!["MULTI".to_owned()]);
            for _ in 0..2 + random.below(3) {
                all.push(command(random));
            }
            all.push(vec!["EXEC".to_owned()]);
        } else {
            all.push(command(random));
        }
    }
    all
}

fn command(random: &mut Random) -> Vec<String> {
    let one = random.below(KEYS);
    let other = (one + 1 + random.below(KEYS - 1)) % KEYS;
    // Slow commands are rare, so that the clients produce many effects per second.
    let is_rare = random.one_in(8);
    let (member, number) = (random.below(MEMBERS), random.below(100_000));
    let text = match random.below(46) {
        0..4 => format!("SET s{one} {number}"),
        4 => format!("APPEND s{one} {number},"),
        5 => format!("MSET s{one} {number} s{other} {member}"),
        6 => format!("SETRANGE s{one} {member} {number}"),
        7 => format!("SET s{one} {number} PX {}", member + 1),
        8 => format!("GETDEL s{one}"),
        9 => format!("SETBIT bits{one} {member} {}", number % 2),
        10 => format!("INCRBY n{one} {number}"),
        11 => format!("INCRBYFLOAT float{one} {number}.25"),
        12 => format!("DEL n{one} n{other}"),
        13 => format!("RENAME s{one} s{other}"),
        14 => format!("PEXPIRE h{one} {}", member + 50),
        15 => format!("PFADD hll{one} {number} {member}"),
        16..19 => format!("RPUSH l{one} {number} {member}"),
        19 => format!("LPUSH l{one} {number}"),
        20 => format!("LMOVE l{one} l{other} LEFT RIGHT"),
        21 => format!("LTRIM l{one} 0 {MEMBERS}"),
        22 => format!("BLPOP l{one} l{other} 0.001"),
        23 => format!("LINSERT l{one} BEFORE {member} {number}"),
        24 => format!("LREM l{one} 1 {member}"),
        25 | 26 => format!("SADD set{one} {member} {}", random.below(MEMBERS)),
        27 => format!("SPOP set{one} {}", 1 + member % 5),
        28 => format!("SMOVE set{one} set{other} {member}"),
        29 if is_rare => format!("SINTERSTORE set{one} set{other} set{}", random.below(KEYS)),
        30 | 31 => format!("HSET h{one} {member} {number} f{member} {other}"),
        32 => format!("HINCRBYFLOAT h{one} float{member} 0.5"),
        33 => format!("HDEL h{one} {member} {other}"),
        34 | 35 => format!("ZADD z{one} {number} {member} {other} m{member}"),
        36 => format!("ZINCRBY z{one} {number} {member}"),
        37 => format!("ZPOPMIN z{one} {}", 1 + member % 3),
        38 if is_rare => format!("ZUNIONSTORE z{one} 2 z{one} z{other} AGGREGATE MAX"),
        39 => format!("XADD x{one} MAXLEN ~ {MEMBERS} * field {number}"),
        40 => format!("XTRIM x{one} MAXLEN {}", member % 50),
        41 if is_rare => format!("SORT l{one} ALPHA LIMIT 0 20 STORE l{other}"),
        42 => format!("SELECT {}", random.below(DATABASES)),
        43 if is_rare => format!("COPY h{one} h{other} REPLACE"),
        44 => {
            let words = ["EVAL", APPEND_TO_BOTH, "2", &format!("s{one}"), &format!("s{other}"), &format!("{number}")];
            return words.map(str::to_owned).to_vec();
        }
        _ if random.one_in(1000) => "FLUSHDB".to_owned(),
        _ => format!("UNLINK s{one} l{other}"),
    };
    text.split(' ').map(str::to_owned).collect()
}
