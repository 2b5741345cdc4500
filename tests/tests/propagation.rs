//! The commands that are propagated to replicas and to the append-only file. They must be the same
//! as those of redis-server, and in an order in which every prefix of the stream is consistent.

mod cuts;
mod deletions;

use std::collections::HashMap;
use std::time::Duration;

use pantala_tests::effects::{
    Effect, EffectStream, delete_expired, difference, different_deadline, digest, replay, show_effect,
};
use pantala_tests::waiting::{eventually, waiting};
use pantala_tests::{Backend, Client, Random, Reply, Server, differential, for_each_backend, generator};

/// One scenario per line: commands separated by `;;`, words by spaces. Escapes are `\n`, `\s` (a
/// space) and `\x..` (a byte in hexadecimal). A command after `@wait` is sent by another
/// connection, which blocks while the next commands run. `@sleep n` waits n milliseconds. Words
/// that start with `any:` are not compared, because each server may choose another word.
const SCENES: &str = include_str!("propagation/scenes.txt");

/// Unix times in ms that differ from the present by less than this are shown as `<ms>`.
const NOW_SLACK_MS: i64 = 1_000_000_000;

/// Default number of commands of a replayed stream. `PANTALA_EFFECT_COMMANDS` overrides it.
const COMMANDS: usize = 20_000;

fn commands() -> usize {
    std::env::var("PANTALA_EFFECT_COMMANDS").map_or(COMMANDS, |text| text.trim().parse().expect("a number"))
}

fn words_of(command: &str) -> Vec<Vec<u8>> {
    command.split(' ').filter(|word| !word.is_empty()).map(unescaped).collect()
}

/// Returns the bytes of a word after unescaping.
fn unescaped(word: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), word.as_bytes());
    while let Some((&first, tail)) = rest.split_first() {
        let (byte, tail) = match (first, tail) {
            (b'\\', [b'n', tail @ ..]) => (b'\n', tail),
            (b'\\', [b's', tail @ ..]) => (b' ', tail),
            (b'\\', [b'x', high, low, tail @ ..]) => {
                let digits = [*high, *low];
                let digits = std::str::from_utf8(&digits).expect("ASCII");
                (u8::from_str_radix(digits, 16).expect("hexadecimal"), tail)
            }
            _ => (first, tail),
        };
        bytes.push(byte);
        rest = tail;
    }
    bytes
}

/// Runs a scenario and returns the effects that it propagates.
fn play(scene: &str, server: &Server, client: &mut Client, stream: &mut EffectStream) -> Vec<Effect> {
    let mut others = Vec::new();
    for command in scene.split(" ;; ") {
        if let Some(ms) = command.strip_prefix("@sleep ") {
            std::thread::sleep(Duration::from_millis(ms.parse().expect("milliseconds")));
        } else if let Some(command) = command.strip_prefix("@wait ") {
            others.push(waiting(server, command, others.len() + 1));
        } else {
            client.command(&words_of(command));
        }
    }
    others.iter_mut().for_each(|other| _ = other.receive());
    stream.take(client)
}

/// Formats an effect. The current time, IDs based on it and words that start with `any:` become
/// placeholders, and the command's name is in upper case.
fn normalized(effect: &Effect, now_ms: i64) -> String {
    let is_now = |text: &str| text.parse::<i64>().is_ok_and(|ms| (ms - now_ms).abs() < NOW_SLACK_MS);
    let shown = effect.iter().enumerate().map(|(index, word)| {
        let text = String::from_utf8_lossy(word);
        match text.split_once('-') {
            _ if index == 0 => text.to_uppercase(),
            // IDs are replaced as a whole, because the sequence number depends on whether two
            // entries are added in the same millisecond.
            Some((ms, _)) if is_now(ms) => "<id>".into(),
            _ if is_now(&text) => "<ms>".into(),
            _ if text.starts_with("any:") => "<any>".into(),
            _ => text.into_owned(),
        }
    });
    shown.collect::<Vec<_>>().join(" ")
}

fn now_ms() -> i64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

/// Returns the effects that each scenario propagates on a server.
fn played(server: &Server) -> Vec<Vec<String>> {
    let (mut client, mut stream) = (server.connect(), EffectStream::attach(server));
    client.call("SET first 1");
    stream.take(&mut client);
    let scenes = SCENES.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    scenes
        .map(|scene| {
            let effects = play(scene, server, &mut client, &mut stream);
            effects.iter().map(|effect| normalized(effect, now_ms())).collect()
        })
        .collect()
}

#[test]
fn commands_are_propagated_as_redis_propagates_them() {
    let Some(reference) = Server::redis(&[]) else { return };
    let right = played(&reference);
    for_each_backend(|backend| {
        let mut subject = Server::pantala(backend, &["--workers", "2", "--shards", "8"]);
        let given = played(&subject);
        let scenes = SCENES.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let different: Vec<String> = scenes
            .zip(given.iter().zip(&right))
            .filter(|(_, (given, right))| given != right)
            .map(|(scene, (given, right))| format!("{scene}\n    propagates {given:?}\n    must be    {right:?}"))
            .collect();
        assert!(different.is_empty(), "{}", different.join("\n"));
        subject.assert_sound();
    });
}

#[test]
fn a_string_that_only_grew_is_propagated() {
    for_each_backend(|backend| {
        let mut subject = Server::pantala(backend, &["--workers", "2"]);
        let (mut client, mut stream) = (subject.connect(), EffectStream::attach(&subject));
        client.call("SET marked 1");
        stream.take(&mut client);
        // The increment overflows and is rejected. Nevertheless, the key exists afterwards.
        let command = "BITFIELD grown OVERFLOW FAIL INCRBY u8 80 300";
        assert_eq!(client.call(command).elements(), [Reply::Null]);
        assert_eq!(client.call("STRLEN grown"), Reply::Integer(11));
        client.call(command);
        let effects: Vec<String> = stream.take(&mut client).iter().map(show_effect).collect();
        assert_eq!(effects, [command], "the first call alone changed the key");
        subject.assert_sound();
    });
}

/// If a command finds expired fields, an `HDEL` of these fields is propagated before the command,
/// even if the command itself then fails and isn't propagated.
#[test]
fn expired_fields_are_propagated_before_the_command() {
    for_each_backend(|backend| {
        let mut subject = Server::pantala(backend, &["--workers", "2"]);
        let (mut client, mut stream) = (subject.connect(), EffectStream::attach(&subject));
        assert_eq!(client.call("DEBUG SET-ACTIVE-EXPIRE 0"), Reply::ok());
        let setup = "DEL h ;; HSET h a 1 n x ;; PEXPIRE h 100000 ;; HPEXPIRE h 1 FIELDS 1 a ;; @sleep 5";
        for (command, expected) in [
            ("HINCRBY h n 1", &["HDEL h a"][..]),
            ("HINCRBYFLOAT h n 1", &["HDEL h a"]),
            ("HSETNX h n 1", &["HDEL h a"]),
            ("HDEL h a", &["HDEL h a"]),
            ("HGET h a", &["HDEL h a"]),
            ("HDEL h n ;; HSET h b 1", &["MULTI", "HDEL h a", "HDEL h n", "EXEC", "HSET h b 1"]),
        ] {
            play(setup, &subject, &mut client, &mut stream);
            let effects = play(command, &subject, &mut client, &mut stream);
            assert_eq!(effects.iter().map(show_effect).collect::<Vec<_>>(), expected, "{command}");
        }
        // Since the key's last field has expired, the key is deleted. So the command creates a new
        // key, which has no TTL.
        let setup = "DEL h ;; HSET h a 1 ;; PEXPIRE h 100000 ;; HPEXPIRE h 1 FIELDS 1 a ;; @sleep 5";
        play(setup, &subject, &mut client, &mut stream);
        let effects = play("HSET h b 1", &subject, &mut client, &mut stream);
        let shown: Vec<String> = effects.iter().map(show_effect).collect();
        assert_eq!(shown, ["MULTI", "HDEL h a", "HSET h b 1", "EXEC"]);
        assert_eq!(client.call("PTTL h"), Reply::Integer(-1));
        subject.assert_sound();
    });
}

/// Replicas of Redis 7.4 don't know these commands of Redis 8.0, so commands of Redis 7.4 are
/// propagated.
#[test]
fn later_commands_on_fields_are_propagated_as_earlier_ones() {
    for_each_backend(|backend| {
        let mut subject = Server::pantala(backend, &["--workers", "2"]);
        let (mut client, mut stream) = (subject.connect(), EffectStream::attach(&subject));
        client.call("SET first 1");
        stream.take(&mut client);
        for (command, expected) in [
            ("HSETEX h FNX FIELDS 2 a 1 b 2", &["HSET h a 1 b 2"][..]),
            ("HSETEX h FNX FIELDS 1 a 1", &[]),
            (
                "HSETEX h PXAT 4102444800123 FIELDS 2 a 1 c 3",
                &["MULTI", "HSET h a 1 c 3", "HPEXPIREAT h 4102444800123 FIELDS 2 a c", "EXEC"],
            ),
            (
                "HSETEX h KEEPTTL FIELDS 2 a 5 b 6",
                &["MULTI", "HSET h a 5 b 6", "HPEXPIREAT h 4102444800123 FIELDS 1 a", "EXEC"],
            ),
            ("HGETEX h FIELDS 1 a", &[]),
            ("HGETEX h PXAT 4102444800124 FIELDS 2 b x", &["HPEXPIREAT h 4102444800124 FIELDS 1 b"]),
            ("HGETEX h PERSIST FIELDS 3 a b x", &["HPERSIST h FIELDS 2 a b"]),
            ("HGETEX h EX 0 FIELDS 2 b x", &["HDEL h b"]),
            ("HGETDEL h FIELDS 2 c x", &["HDEL h c"]),
            ("HGETDEL h FIELDS 1 x", &[]),
            ("HSETEX h EX 0 FIELDS 1 a 1", &["HDEL h a"]),
        ] {
            let effects = play(command, &subject, &mut client, &mut stream);
            assert_eq!(effects.iter().map(show_effect).collect::<Vec<_>>(), expected, "{command}");
        }
        assert_eq!(client.call("EXISTS h"), Reply::Integer(0));
        subject.assert_sound();
    });
}

/// Maximum number of times that the digests of two servers are compared. The servers count as
/// different if every comparison fails.
const DIGESTS_MAX: usize = 3;

/// Replays a stream to a new redis-server, if it is installed, and to a new Pantala. Asserts that
/// both have the server's dataset.
fn assert_rebuilds(effects: &[Effect], server: &Server, backend: Backend) {
    let mut copies = vec![("pantala", Server::pantala(backend, &["--workers", "2"]))];
    copies.extend(Server::redis(&[]).map(|reference| ("redis-server", reference)));
    for (name, copy) in &copies {
        copy_limits(server, copy);
        replay(effects, copy);
        let count = effects.len();
        // One comparison is not enough, because a key that expires between the two digests is in
        // only one of them.
        let is_equal = (0..DIGESTS_MAX).any(|_| digest(copy) == digest(server));
        assert!(is_equal, "{name}, from {count} effects: {}", difference(server, copy, effects));
        assert_eq!(different_deadline(server, copy), None, "{name}, from {count} effects");
    }
}

/// Sets the limits of encodings in a copy to those of the server. The limits determine which sorted
/// sets are listpacks. Server and copy must have the same listpacks, because a listpack loses the
/// sign of the score -0, as in Redis.
fn copy_limits(server: &Server, copy: &Server) {
    for (limit, _) in generator::LIMITS_AT_FIRST {
        let value = server.connect().call(&format!("CONFIG GET {limit}")).elements()[1].text();
        assert_eq!(copy.connect().call(&format!("CONFIG SET {limit} {value}")), Reply::ok());
    }
}

#[test]
fn the_stream_of_random_commands_rebuilds_the_dataset() {
    let test = "the_stream_of_random_commands_rebuilds_the_dataset";
    let announced = Random::seed(test);
    for_each_backend(|backend| {
        let Some(reference) = Server::redis(&[]) else { return };
        let mut subject = Server::pantala(backend, &["--workers", "2", "--shards", "12"]);
        let mut stream = EffectStream::attach(&subject);
        let name = format!("{test} on {}", backend.name());
        differential::compare(&subject, &reference, announced, &name, commands());
        let mut client = subject.connect();
        delete_expired(&mut client);
        let effects = stream.take(&mut client);
        assert!(effects.len() > commands() / 10, "{} effects", effects.len());
        assert_rebuilds(&effects, &subject, backend);
        subject.assert_sound();
    });
}

/// Number of clients that write at the same time, each with a pipeline over all shards.
const WRITERS: usize = 6;

/// Minimum number of commands in a writer's pipeline.
const PIPELINE: usize = 24;

/// Returns the next commands of a writer. Some are `SET own:<writer>:<key> <number>`, with
/// increasing numbers.
fn pipeline(random: &mut Random, writer: usize, number: &mut u64) -> Vec<Vec<String>> {
    let words = |text: String| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let mut all = Vec::new();
    while all.len() < PIPELINE {
        let (one, other) = (random.below(20), random.below(20));
        *number += 1;
        let own = format!("SET own:{writer}:{} {number}", random.below(7));
        match random.below(12) {
            0 => all.push(words(format!("APPEND s{one} {writer}.{number},"))),
            1 => all.push(words(format!("RPUSH l{one} {writer}.{number}"))),
            2 => all.push(words(format!("LMOVE l{one} l{other} LEFT RIGHT"))),
            3 => all.push(words(format!("MSET s{one} {number} s{other} {number}"))),
            4 => all.push(words(format!("RENAME s{one} s{other}"))),
            5 => all.push(words(format!("SET s{one} {number} PX {}", random.below(30) + 1))),
            6 => all.push(words(format!("SPOP set{one} 2"))),
            7 => all.push(words(format!("SADD set{one} {writer} {number} {other}"))),
            8 => {
                let script = "redis.call('append',KEYS[1],ARGV[1])return(redis.call('append','s'..ARGV[2],ARGV[1]))";
                all.push(words(format!("EVAL {script} 1 s{one} <{number}> {other}")));
            }
            9 => {
                let pair = [format!("SET pair:{writer}:a {number}"), format!("SET pair:{writer}:b {number}")];
                all.push(words("MULTI".into()));
                all.extend(pair.map(words));
                all.push(words("EXEC".into()));
            }
            10 => all.push(words(format!("BLPOP l{one} l{other} 0.001"))),
            _ => all.push(words(own)),
        }
    }
    all
}

fn writer_random(seed: u64, writer: usize) -> Random {
    Random::from_seed(seed.wrapping_mul(WRITERS as u64).wrapping_add(writer as u64))
}

/// Runs writers at the same time until each has sent `pipelines` pipelines.
fn write_together(server: &Server, seed: u64, pipelines: usize) {
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            scope.spawn(move || {
                let mut random = writer_random(seed, writer);
                let (mut client, mut number) = (server.connect(), 0);
                for _ in 0..pipelines {
                    let commands = pipeline(&mut random, writer, &mut number);
                    let replies = client.pipeline(&commands);
                    assert!(!replies.iter().any(|reply| matches!(reply, Reply::Error(text) if is_unexpected(text))));
                }
            });
        }
    });
}

fn is_unexpected(error: &str) -> bool {
    !error.contains("no such key")
}

/// Returns the first violation of the order that must hold in every prefix of a stream. A writer's
/// `own:` keys must be set in the order in which the writer sent the commands. (With `--execution
/// owner`, only commands on the same key keep their order.) The two keys of a `pair:` must be set
/// to the same value, within one `MULTI` and `EXEC`.
fn wrong_order(effects: &[Effect], is_owner: bool) -> Option<String> {
    let mut latest: HashMap<String, u64> = HashMap::new();
    let mut pairs: HashMap<String, String> = HashMap::new();
    let mut is_open = false;
    for (at, effect) in effects.iter().enumerate() {
        let text: Vec<String> = effect.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        match text.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            ["MULTI"] => is_open = true,
            ["EXEC"] => {
                is_open = false;
                if let Some(writer) = pairs.drain().next() {
                    return Some(format!("effect {at}, EXEC, ends a transaction with half of a pair: {writer:?}"));
                }
            }
            ["SET", key, value] if key.starts_with("own:") => {
                let writer = if is_owner { key } else { key.split(':').nth(1).unwrap_or_default() }.to_owned();
                let number = value.parse().expect("a number");
                let before = latest.insert(writer, number).unwrap_or(0);
                if before >= number {
                    return Some(format!("effect {at}, {}, follows {before}", show_effect(effect)));
                }
            }
            ["SET", key, value] if key.starts_with("pair:") => {
                if !is_open {
                    return Some(format!("effect {at}, {}, lacks its MULTI", show_effect(effect)));
                }
                let writer = key.split(':').nth(1).unwrap_or_default().to_owned();
                if key.ends_with(":a") {
                    pairs.insert(writer, (*value).to_owned());
                } else if pairs.remove(&writer).as_deref() != Some(*value) {
                    return Some(format!("effect {at}, {}, lacks the other key of its pair", show_effect(effect)));
                }
            }
            _ => {}
        }
    }
    None
}

/// Arguments of a server with few shards, so that its workers often need the same shard at the same
/// time.
const CROWDED: [&str; 4] = ["--workers", "4", "--shards", "5"];

#[test]
fn concurrent_writers_are_propagated_in_an_order_that_holds_at_every_cut() {
    let seed = Random::seed("concurrent_writers_are_propagated_in_an_order_that_holds_at_every_cut");
    for_each_backend(|backend| {
        for execution in ["inline", "owner"] {
            let mut server = Server::pantala(backend, &[&CROWDED[..], &["--execution", execution]].concat());
            let mut client = server.connect();
            for fault in ["pause-taking", "pause-holding", "pause-replying"] {
                client.call(&format!("DEBUG FAULT {fault} 20"));
            }
            let mut stream = EffectStream::attach(&server);
            write_together(&server, seed, 40);
            // The test waits until all keys with a TTL have expired, so that no key expires while
            // the digests are compared. Each deletion is an effect.
            eventually("all keys with a TTL expire", || client.call("INFO keyspace").text().contains("expires=0"));
            let effects = stream.take(&mut client);
            let wrong = wrong_order(&effects, execution == "owner");
            assert_eq!(wrong, None, "PANTALA_SEED={seed}, {execution}");
            assert_rebuilds(&effects, &server, backend);
            server.assert_sound();
        }
    });
}

#[test]
fn faults_of_propagation_are_detected() {
    /// Maximum number of attempts to detect a fault. `forgotten-clock` is detected in about one
    /// attempt of twenty. An attempt takes a tenth of a second.
    const ATTEMPTS_MAX: u64 = 300;
    const CONTROL_ATTEMPTS: u64 = 2;
    let seed = Random::seed("faults_of_propagation_are_detected");
    let server = Server::pantala(Backend::all()[0], &CROWDED);
    let mut client = server.connect();
    if client.call("DEBUG FAULT lost-effect 0").is_error() {
        // Without debug assertions, a build has no faults to inject.
        return;
    }
    let faults = [("lost-effect", 20), ("verbatim-form", 1000), ("unordered-effects", 1000), ("forgotten-clock", 1000)];
    // Also checks that nothing is detected without a fault.
    for (fault, permille) in faults.into_iter().chain([("lost-effect", 0)]) {
        let attempts = if permille > 0 { ATTEMPTS_MAX } else { CONTROL_ATTEMPTS };
        let is_noticed = (0..attempts).any(|attempt| {
            client.call("FLUSHALL");
            client.call("DEBUG FAULT pause-replying 50");
            let mut stream = EffectStream::attach(&server);
            client.call(&format!("DEBUG FAULT {fault} {permille}"));
            write_together(&server, seed.wrapping_add(attempt), 10);
            client.call(&format!("DEBUG FAULT {fault} 0"));
            eventually("all keys with a TTL expire", || client.call("INFO keyspace").text().contains("expires=0"));
            let effects = stream.take(&mut client);
            let copy = Server::pantala(Backend::all()[0], &[]);
            wrong_order(&effects, false).is_some() || is_refused(&effects, &copy) || digest(&copy) != digest(&server)
        });
        assert_eq!(is_noticed, permille > 0, "{fault} at {permille} permille (PANTALA_SEED={seed})");
    }
}

/// Replays effects and returns whether one of them has an error reply.
fn is_refused(effects: &[Effect], copy: &Server) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| replay(effects, copy))).is_err()
}

#[test]
fn a_follower_that_leaves_ends_the_recording() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "2"]);
        let mut client = server.connect();
        for round in 0..3 {
            let mut first = EffectStream::attach(&server);
            let mut second = EffectStream::attach(&server);
            client.call(&format!("SET round {round}"));
            let expected: Effect = vec![b"SET".to_vec(), b"round".to_vec(), round.to_string().into_bytes()];
            assert_eq!(first.take(&mut client).last(), Some(&expected));
            drop(first);
            client.call("SELECT 1");
            client.call("SET other 1");
            client.call("SELECT 0");
            let seen = second.take(&mut client);
            assert!(seen.contains(&vec![b"SELECT".to_vec(), b"1".to_vec()]), "{seen:?}");
        }
    });
}
