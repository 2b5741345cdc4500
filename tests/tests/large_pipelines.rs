//! Pipelines whose replies are long together: their memory, their order, what other clients notice of them, and what is left when their client goes.

use pantala_tests::client::{encode, encode_into};
use pantala_tests::waiting::eventually;
use pantala_tests::{Backend, Client, Reply, Server, for_each_backend};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// More than the sockets of a connection take by themselves, on both sides.
const STUCK_BYTES: usize = 16 * MIB;

/// The number after `name` in what `INFO` says.
fn info(client: &mut Client, name: &str) -> usize {
    let text = client.call("INFO everything").text();
    let value = text.lines().find_map(|line| line.split_once(name)).expect("INFO has it").1;
    let digits: String = value.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

/// A number in the line of `CLIENT LIST` of the client of that name, or `None` where it is gone.
fn listed(client: &mut Client, name: &str, field: &str) -> Option<usize> {
    let list = client.call("CLIENT LIST").text();
    let line = list.lines().find(|line| line.contains(&format!(" name={name} ")))?;
    let value = line.split(' ').find_map(|word| word.strip_prefix(field)?.strip_prefix('='));
    Some(value.expect("the field is there").parse().expect("a number"))
}

fn named(server: &Server, name: &str) -> Client {
    let mut client = server.connect();
    assert_eq!(client.command(&["CLIENT", "SETNAME", name]), Reply::ok());
    client
}

/// Waits until a key is there.
fn wait_for(client: &mut Client, key: &str) {
    eventually("the pipeline has run", || client.command(&["EXISTS", key]) == Reply::Integer(1));
}

/// Commands of other connections of the same worker run between those of a pipeline with long replies, whether or not its client reads. Such a pipeline as one turn would be over
/// before any of them.
#[test]
fn other_clients_run_between_the_pieces() {
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
        // A host may have the test stand still while the server runs: another pipeline is another chance.
        eventually("a number between is seen", || {
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

/// What isn't read takes the memory of its replies once, and a little that the allocator adds; it comes in order when it is read. It is counted once.
#[test]
fn replies_that_wait_are_there_once_and_in_order() {
    const KEYS: usize = 4;
    const TOTAL_BYTES: usize = 40 * MIB;
    // mimalloc gives a value of 1 MiB and its header up to two blocks of 64 KiB more than it needs, and kernels back all of that where they have huge pages.
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
            // Until the clock of the server has counted all.
            let least = TOTAL_BYTES - STUCK_BYTES;
            eventually("it is counted", || listed(&mut other, "silent", "omem").is_some_and(|bytes| bytes >= least));
            let field = |other: &mut Client, field: &str| listed(other, "silent", field).expect("it is there");
            let (pending, total) = (field(&mut other, "omem"), field(&mut other, "tot-mem"));
            let pieces = field(&mut other, "oll");
            assert!(pending < TOTAL_BYTES + count * 16, "{pending} bytes wait");
            assert!((pending..pending + 2 * MIB).contains(&total), "{pending} bytes wait, {total} in all");
            assert!((least / (2 * MIB)..=TOTAL_BYTES / (60 * KIB)).contains(&pieces), "{pieces} pieces");
            let counted = info(&mut other, "used_memory:") - used;
            // With what the shards had not told of the values before.
            assert!((pending..pending + 8 * MIB).contains(&counted), "{pending} bytes wait, {counted} are counted");
            let taken = (server.peak_resident_bytes() as usize).saturating_sub(resident);
            assert!(taken < most(TOTAL_BYTES), "{taken} bytes for {count} of {value_bytes}");
            for number in 0..count {
                assert!(client.receive() == Reply::bulk(value(number % KEYS)), "reply {number}");
            }
            assert_eq!(client.receive(), Reply::ok());
            assert_eq!(client.call("PING").text(), "PONG");
            eventually("nothing waits", || listed(&mut other, "silent", "oll") == Some(0));
            server.assert_sound();
        }
    });
}

/// Short and long replies, errors and transactions keep their order across pieces, on several workers and whoever runs the commands.
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

/// The hard limit holds for output in pieces, and what stands behind the reply that was too much isn't run.
#[test]
fn output_in_pieces_is_limited() {
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
        eventually("it is closed", || match listed(&mut other, "silent", "omem") {
            Some(bytes) => {
                assert!(bytes <= LIMIT_BYTES + 2 * MIB, "{bytes} bytes wait");
                false
            }
            None => true,
        });
        assert_eq!(other.call("EXISTS after"), Reply::Integer(0));
    }
}

/// A client that goes leaves its output to be freed turn by turn.
#[test]
fn output_of_a_closed_client_is_freed_in_steps() {
    const COMMANDS: usize = 200;
    // Less than half of those that it takes, 4 MiB each.
    const TURNS_MIN: usize = 20;
    // The server's clock makes few turns meanwhile.
    const ASKED_MAX: usize = 100;
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "1"]);
        let mut other = server.connect();
        assert_eq!(other.command(&["SET", "big", &"x".repeat(MIB)]), Reply::ok());
        let used = info(&mut other, "used_memory:");
        let mut client = named(&server, "silent");
        client.send_raw(&[encode(&["GET", "big"]).repeat(COMMANDS), encode(&["SET", "done", "1"])].concat());
        wait_for(&mut other, "done");
        let (before, mut asked) = (info(&mut other, "turns="), 1);
        drop(client);
        eventually("its output has been freed", || {
            // Each question is a turn, or two.
            asked += 1;
            assert!(asked < ASKED_MAX, "the server sleeps");
            info(&mut other, "turns=") >= before + 2 * asked + TURNS_MIN
        });
        eventually("it isn't counted", || info(&mut other, "used_memory:") < used + 4 * MIB);
        server.assert_sound();
    });
}
