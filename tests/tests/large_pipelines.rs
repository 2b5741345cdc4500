//! Pipelines with long replies. The server runs only some commands of such a pipeline at a time,
//! and serves other clients in between. The tests check memory usage, the order of replies,
//! fairness to other clients, and the release of pending output when the client closes its
//! connection.

use pantala_tests::client::{encode, encode_into};
use pantala_tests::waiting::eventually;
use pantala_tests::{Backend, Client, Reply, Server, for_each_backend};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// A number of bytes that the sockets of both sides of a connection can't buffer.
const STUCK_BYTES: usize = 16 * MIB;

/// Returns the number after `name` in the output of `INFO`.
fn info(client: &mut Client, name: &str) -> usize {
    let text = client.call("INFO everything").text();
    let value = text.lines().find_map(|line| line.split_once(name)).expect("INFO has it").1;
    let digits: String = value.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

/// Returns a number from the line of the named client in `CLIENT LIST`, or `None` if the client is
/// closed.
fn listed(client: &mut Client, name: &str, field: &str) -> Option<usize> {
    listed_fields(client, name, [field]).map(|[value]| value)
}

/// Returns several numbers like [`listed`], read at the same instant.
fn listed_fields<const N: usize>(client: &mut Client, name: &str, fields: [&str; N]) -> Option<[usize; N]> {
    let list = client.call("CLIENT LIST").text();
    let line = list.lines().find(|line| line.contains(&format!(" name={name} ")))?;
    Some(fields.map(|field| {
        let value = line.split(' ').find_map(|word| word.strip_prefix(field)?.strip_prefix('='));
        value.expect("the field exists").parse().expect("a number")
    }))
}

fn named(server: &Server, name: &str) -> Client {
    let mut client = server.connect();
    assert_eq!(client.command(&["CLIENT", "SETNAME", name]), Reply::ok());
    client
}

/// Waits until the key exists.
fn wait_for(client: &mut Client, key: &str) {
    eventually("the pipeline has run", || client.command(&["EXISTS", key]) == Reply::Integer(1));
}

/// A pipeline with long replies runs in several turns, whether or not its client reads. Commands of
/// other connections of the same worker therefore run before the pipeline ends.
#[test]
fn other_clients_run_between_the_pieces_of_a_pipeline() {
    const COMMANDS: i64 = 200;
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "1"]);
        let mut other = server.connect();
        assert_eq!(other.command(&["SET", "big", &"x".repeat(MIB / 4)]), Reply::ok());
        let mut requests = Vec::new();
        for _ in 0..COMMANDS {
            encode_into(&mut requests, &["GET", "big"]);
            encode_into(&mut requests, &["INCR", "count"]);
        }
        let mut between = 0;
        // On a busy host, this test may be suspended until a pipeline has ended, so it tries
        // several pipelines.
        eventually("a count is seen while the pipeline runs", || {
            assert_eq!(other.command(&["SET", "count", "0"]), Reply::ok());
            let mut client = server.connect();
            client.send_raw(&requests);
            eventually("the pipeline has run", || {
                let count: i64 = other.call("GET count").text().parse().expect("a number");
                between += usize::from(0 < count && count < COMMANDS);
                count == COMMANDS
            });
            between > 0
        });
        server.assert_sound();
    });
}

/// The first replies of a pipeline with long replies arrive before its last command has run.
#[test]
fn replies_are_sent_before_the_pipeline_has_run() {
    const COMMANDS: i64 = 200;
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "1"]);
        let mut other = server.connect();
        let value = "x".repeat(MIB);
        assert_eq!(other.command(&["SET", "big", &value]), Reply::ok());
        let mut requests = Vec::new();
        for _ in 0..COMMANDS {
            encode_into(&mut requests, &["GET", "big"]);
            encode_into(&mut requests, &["INCR", "count"]);
        }
        // On a busy host, this test may be suspended until a pipeline has ended, so it tries
        // several pipelines.
        eventually("a reply arrives while the pipeline runs", || {
            assert_eq!(other.call("SET count 0"), Reply::ok());
            let mut client = server.connect();
            client.send_raw(&requests);
            assert!(client.receive() == Reply::bulk(&value));
            let has_run: i64 = other.call("GET count").text().parse().expect("a number");
            eventually("the pipeline has run", || other.call("GET count") == Reply::bulk(COMMANDS.to_string()));
            has_run < COMMANDS
        });
    });
}

/// Unread replies are in memory once (plus a little overhead of the allocator), are counted once,
/// and arrive in order.
#[test]
fn pending_replies_take_memory_once_and_keep_their_order() {
    const KEYS: usize = 4;
    const TOTAL_BYTES: usize = 40 * MIB;
    // Maximum resident memory for this many bytes of replies. mimalloc may round a value of 1 MiB
    // and its header up by two blocks of 64 KiB (an eighth). With huge pages, the rounded size is
    // resident.
    let most = |bytes: usize| bytes + bytes / 6 + 8 * MIB;
    for_each_backend(|backend| {
        for value_bytes in [MIB, 64 * KIB, 3000] {
            let mut server = Server::pantala(backend, &["--workers", "1"]);
            let mut other = server.connect();
            let value = |key: usize| ((b'a' + key as u8) as char).to_string().repeat(value_bytes);
            for key in 0..KEYS {
                assert_eq!(other.command(&["SET", &format!("key:{key}"), &value(key)]), Reply::ok());
            }
            let count = TOTAL_BYTES / value_bytes;
            let mut requests = Vec::new();
            for number in 0..count {
                encode_into(&mut requests, &["GET", &format!("key:{}", number % KEYS)]);
            }
            encode_into(&mut requests, &["SET", "done", "1"]);
            let mut client = named(&server, "silent");
            let (resident, used) = (server.resident_bytes() as usize, info(&mut other, "used_memory:"));
            client.send_raw(&requests);
            wait_for(&mut other, "done");
            // The kernel holds the rest of the output. The counters may differ for a moment,
            // because the server's periodic work updates them one after another.
            let least = TOTAL_BYTES - STUCK_BYTES;
            eventually("the output is counted once in each field", || {
                let [pending, total, pieces] =
                    listed_fields(&mut other, "silent", ["omem", "tot-mem", "oll"]).expect("the client is connected");
                let counted = info(&mut other, "used_memory:").saturating_sub(used);
                // `used_memory` may also change because shards report earlier changes of their
                // memory late.
                (least..TOTAL_BYTES + count * 16).contains(&pending)
                    && (pending..pending + 2 * MIB).contains(&total)
                    && (least / (2 * MIB)..=TOTAL_BYTES / (60 * KIB)).contains(&pieces)
                    && (pending..pending + 8 * MIB).contains(&counted)
            });
            let taken = (server.peak_resident_bytes() as usize).saturating_sub(resident);
            assert!(taken < most(TOTAL_BYTES), "{taken} bytes for {count} of {value_bytes}");
            for number in 0..count {
                assert!(client.receive() == Reply::bulk(value(number % KEYS)), "reply {number}");
            }
            assert_eq!(client.receive(), Reply::ok());
            assert_eq!(client.call("PING").text(), "PONG");
            eventually("no output is pending", || listed(&mut other, "silent", "oll") == Some(0));
            server.assert_sound();
        }
    });
}

/// Short and long replies, errors and transactions keep their order across pieces, on several
/// workers and in both modes of execution.
#[test]
fn mixed_replies_keep_their_order() {
    for_each_backend(|backend| {
        for execution in ["inline", "owner"] {
            let args = ["--workers", "2", "--shards", "8", "--execution", execution];
            let mut server = Server::pantala(backend, &args);
            let mut client = server.connect();
            let values: Vec<String> = [10, 70 * KIB, 1000, 700 * KIB, 64 * KIB, MIB, 30 * KIB]
                .iter()
                .enumerate()
                .map(|(key, bytes)| ((b'a' + key as u8) as char).to_string().repeat(*bytes))
                .collect();
            for (key, value) in values.iter().enumerate() {
                assert_eq!(client.command(&["SET", &format!("key:{key}"), value]), Reply::ok());
            }
            let (mut requests, mut expected) = (Vec::new(), Vec::new());
            for number in 0..60_usize {
                let key = number * 5 % values.len();
                let (name, value) = (format!("key:{key}"), Reply::bulk(values[key].as_str()));
                encode_into(&mut requests, &["GET", &name]);
                expected.push(value.clone());
                encode_into(&mut requests, &["INCR", "count"]);
                expected.push(Reply::Integer(number as i64 + 1));
                if number % 10 == 0 {
                    requests.extend_from_slice(b"GET key:0\r\n");
                    expected.push(Reply::bulk(values[0].as_str()));
                    for words in [&["MULTI"][..], &["GET", &name], &["GET", &name], &["EXEC"]] {
                        encode_into(&mut requests, words);
                    }
                    expected.extend([Reply::ok(), Reply::Simple("QUEUED".into()), Reply::Simple("QUEUED".into())]);
                    expected.push(Reply::Array(vec![value.clone(), value]));
                }
            }
            client.send_raw(&requests);
            for (number, expected) in expected.iter().enumerate() {
                assert!(client.receive() == *expected, "{execution}, reply {number}");
            }
            server.assert_sound();
        }
    });
}

/// The hard limit also applies to output that is sent in pieces. Once a reply exceeds the limit,
/// later commands don't run.
#[test]
fn the_hard_limit_applies_to_output_in_pieces() {
    const LIMIT_BYTES: usize = 32 * MIB;
    const COMMANDS: usize = 100;
    let limit = format!("normal {LIMIT_BYTES} 0 0");
    let args = ["--client-output-buffer-limit", &limit];
    let pantala = |backend: &Backend| Server::pantala(*backend, &[&args[..], &["--workers", "1"]].concat());
    for server in Backend::all().iter().map(pantala).chain(Server::redis(&args)) {
        let mut other = server.connect();
        assert_eq!(other.command(&["SET", "big", &"x".repeat(MIB)]), Reply::ok());
        let mut client = named(&server, "silent");
        let requests = [encode(&["GET", "big"]).repeat(COMMANDS), encode(&["SET", "after", "1"])].concat();
        client.send_raw(&requests);
        eventually("the client is closed", || match listed(&mut other, "silent", "omem") {
            Some(bytes) => {
                assert!(bytes <= LIMIT_BYTES + 2 * MIB, "{bytes} bytes are pending");
                false
            }
            None => true,
        });
        assert_eq!(other.call("EXISTS after"), Reply::Integer(0));
    }
}

/// The output of a closed client is freed over several turns (iterations of the event loop).
#[test]
fn output_of_a_closed_client_is_freed_over_several_turns() {
    const COMMANDS: usize = 200;
    // Each turn frees 4 MiB, so 200 MiB need more than twice this number of turns.
    const TURNS_MIN: usize = 20;
    // Maximum number of polls. Ticks of the server's clock also cause turns, but only a few in the
    // time of so few polls.
    const POLLS_MAX: usize = 100;
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "1"]);
        let mut other = server.connect();
        assert_eq!(other.command(&["SET", "big", &"x".repeat(MIB)]), Reply::ok());
        let used = info(&mut other, "used_memory:");
        let mut client = named(&server, "silent");
        client.send_raw(&[encode(&["GET", "big"]).repeat(COMMANDS), encode(&["SET", "done", "1"])].concat());
        wait_for(&mut other, "done");
        let (before, mut polls) = (info(&mut other, "turns="), 1);
        drop(client);
        eventually("the output has been freed", || {
            // A poll itself causes one or two turns, which are subtracted below.
            polls += 1;
            assert!(polls < POLLS_MAX, "the server makes no turns");
            info(&mut other, "turns=") >= before + 2 * polls + TURNS_MIN
        });
        eventually("the output is no longer counted", || info(&mut other, "used_memory:") < used + 4 * MIB);
        server.assert_sound();
    });
}
