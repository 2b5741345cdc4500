//! The wire protocol, compared byte for byte with redis-server. The tests cover protocol errors and
//! whether they close the connection, requests in pieces, inline commands, and long pipelines.

use std::time::Duration;

use pantala_tests::client::{encode, encode_into};
use pantala_tests::reply::show;
use pantala_tests::{Random, Reply, Server, for_each_backend};

/// Maximum wait for the server to close the connection.
const CLOSE_MAX: Duration = Duration::from_secs(20);

/// The server's behaviour after the input of a case.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    /// Closes the connection.
    Closes,
    /// Waits for more input until the client closes.
    Waits,
}

use Then::{Closes, Waits};

/// Sends `input` on a new connection and returns all bytes received until the connection ends. If
/// the server should wait, the client closes its sending side.
fn outcome(server: &Server, input: &[u8], then: Then) -> Vec<u8> {
    let mut client = server.connect();
    // The error is ignored: the server may close the connection before it has received a long
    // input.
    let _ = client.try_send_raw(input);
    if then == Waits {
        client.close_write();
    }
    if !client.ends_within(CLOSE_MAX) {
        panic!("sent {}: the connection doesn't end", show(input));
    }
    client.read_to_end()
}

/// Runs `body` with Pantala on each backend and with redis-server. All servers are started with
/// `args`.
fn beside_reference(args: &[&str], body: impl Fn(&Server, &Server)) {
    for_each_backend(|backend| {
        let Some(reference) = Server::redis(args) else { return };
        let mut all = vec!["--workers", "2", "--shards", "8"];
        all.extend_from_slice(args);
        let mut subject = Server::pantala(backend, &all);
        body(&subject, &reference);
        subject.assert_sound();
    });
}

fn compare(subject: &Server, reference: &Server, input: &[u8], then: Then) {
    let right = outcome(reference, input, then);
    let given = outcome(subject, input, then);
    assert!(given == right, "sent {} ({then:?})\n  gives   {}\n  must be {}", show(input), show(&given), show(&right));
}

#[test]
fn protocol_errors_and_odd_requests() {
    let long = |byte: u8, len: usize| vec![byte; len];
    let mut cases: Vec<(Vec<u8>, Then)> = [
        ("*a\r\n", Closes),
        ("*-\r\n", Closes),
        ("*+1\r\n", Closes),
        ("* 1\r\n", Closes),
        ("*1 \r\n", Closes),
        ("*01\r\n$4\r\nPING\r\n", Closes),
        ("*2147483648\r\n", Closes),
        ("*9223372036854775808\r\n", Closes),
        ("*1048577\r\n", Waits),
        ("*2147483647\r\n", Waits),
        ("*-1\r\n", Waits),
        ("*-99\r\n", Waits),
        ("*0\r\n", Waits),
        ("*\r\n", Closes),
        ("*0\r\n*1\r\n$4\r\nPING\r\n", Waits),
        ("*-1\r\nPING\r\n", Waits),
        ("*1\r\n:1\r\n", Closes),
        ("*1\r\nPING\r\n", Closes),
        ("*1\r\n\r\n", Closes),
        ("*1\r\n\n\r\n", Closes),
        // Redis searches for the end of the line with `strchr`, which stops at a NUL byte. It
        // doesn't find the end, and waits for more input.
        ("*1\r\n\0\r\n", Waits),
        ("*1\r\n\"x\r\n", Closes),
        ("*1\r\n\\x\r\n", Closes),
        ("*1\r\n*1\r\n$4\r\nPING\r\n", Closes),
        ("*1\r\n$x\r\n", Closes),
        ("*1\r\n$\r\n", Closes),
        ("*1\r\n$-1\r\n", Closes),
        ("*1\r\n$-2\r\n", Closes),
        ("*1\r\n$+4\r\nPING\r\n", Closes),
        ("*1\r\n$04\r\nPING\r\n", Closes),
        ("*1\r\n$ 4\r\nPING\r\n", Closes),
        ("*1\r\n$536870913\r\n", Closes),
        ("*1\r\n$536870912\r\n", Waits),
        ("*1\r\n$9223372036854775808\r\n", Closes),
        ("*2\r\n$4\r\nPING\r\n$x\r\n", Closes),
        ("*2\r\n$4\r\nECHO\r\n:3\r\n", Closes),
        // Redis doesn't check that the two bytes after a bulk string are a line end.
        ("*1\r\n$4\r\nPINGxx", Waits),
        ("*1\r\n$4\r\nPINGxx*1\r\n$4\r\nPING\r\n", Waits),
        // A carriage return ends a length. The next byte is skipped without a check.
        ("*1\rx$4\rxPING\r\n", Waits),
        ("*1\n$4\nPING\n", Waits),
        ("*1\r\n$0\r\n\r\n", Waits),
        ("*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", Waits),
        ("*3\r\n$3\r\nSET\r\n$1\r\na\r\n$2\r\n\r\n\r\n*2\r\n$3\r\nGET\r\n$1\r\na\r\n", Waits),
        ("PING\r\n", Waits),
        ("PING\n", Waits),
        ("\r\n", Waits),
        ("\n", Waits),
        ("   \r\n", Waits),
        ("\t\r\nPING\r\n", Waits),
        ("  PING  \r\n", Waits),
        ("\r\n\r\nPING\r\n\r\nPING\r\n", Waits),
        ("ping hello\r\n", Waits),
        ("PING \"hello world\"\r\n", Waits),
        ("PING 'hello world'\r\n", Waits),
        ("PING \"a\\x41\\n\\r\\t\\b\\a\\\\\\\"q\"\r\n", Waits),
        ("PING \"\\xzz\\q\"\r\n", Waits),
        ("PING 'it\\'s \\n'\r\n", Waits),
        ("PING \"\"\r\n", Waits),
        ("PING ''\r\n", Waits),
        ("PING a\"b\"\r\n", Waits),
        ("\"PING\"\r\n", Waits),
        ("'PI''NG'\r\n", Closes),
        ("PING \"a\"b\r\n", Closes),
        ("PING \"abc\r\n", Closes),
        ("PING 'abc\r\n", Closes),
        ("PING \"abc\\\"\r\n", Closes),
        ("PING \"abc\\\r\n", Closes),
        ("PING abc\\\r\n", Waits),
        ("SET k \"a b\"\r\nGET k\r\n", Waits),
        ("nosuch a b c\r\n", Waits),
        ("nosuch 'a b' \"c\\n\"\r\n", Waits),
        ("QUIT\r\n", Closes),
        ("QUIT\r\nPING\r\n", Closes),
        ("PING\r\nQUIT\r\n", Closes),
        ("*1\r\n$4\r\nquit\r\n*1\r\n$4\r\nPING\r\n", Closes),
        ("PING\r\n*1\r\n$4\r\nPING\r\nPING\r\n*x\r\nPING\r\n", Closes),
        ("CLIENT REPLY OFF\r\nPING\r\nPING\r\nCLIENT REPLY ON\r\nPING\r\n", Waits),
        ("CLIENT REPLY SKIP\r\nPING\r\nPING\r\n", Waits),
        ("CLIENT REPLY SKIP\r\nCLIENT REPLY SKIP\r\nPING\r\nPING\r\n", Waits),
        ("CLIENT REPLY OFF\r\nCLIENT REPLY SKIP\r\nPING\r\nCLIENT REPLY ON\r\n", Waits),
        // In these transactions, replies are off for some commands, so the array has fewer elements
        // than its header says.
        ("MULTI\r\nSET a 1\r\nDEL b\r\nCLIENT REPLY OFF\r\nEXEC\r\nCLIENT REPLY ON\r\nPING\r\n", Waits),
        ("MULTI\r\nCLIENT REPLY OFF\r\nSET a 1\r\nGET a\r\nEXEC\r\nPING\r\nCLIENT REPLY ON\r\nPING\r\n", Waits),
        ("MULTI\r\nSET a 1\r\nCLIENT REPLY OFF\r\nNOSUCH\r\nEXEC\r\nCLIENT REPLY ON\r\nPING\r\n", Waits),
        ("MULTI\r\nCLIENT REPLY OFF\r\nGET a\r\nCLIENT REPLY ON\r\nGET a\r\nEXEC\r\nPING\r\n", Waits),
        ("MULTI\r\nSET a 1\r\nCLIENT REPLY SKIP\r\nGET a\r\nEXEC\r\nPING\r\nPING\r\n", Waits),
        ("MULTI\r\nCLIENT REPLY SKIP\r\nCLIENT REPLY SKIP\r\nEXEC\r\nPING\r\nPING\r\n", Waits),
        ("MULTI\r\nCLIENT REPLY OFF\r\nSUBSCRIBE c\r\nGET a\r\nEXEC\r\nPING\r\n", Waits),
        ("CLIENT REPLY OFF\r\nMULTI\r\nGET a\r\nCLIENT REPLY ON\r\nGET a\r\nEXEC\r\nPING\r\n", Waits),
        ("MULTI\r\nGET a\r\nCLIENT REPLY ON\r\nGET a\r\nCLIENT REPLY SKIP\r\nEXEC\r\nPING\r\nPING\r\n", Waits),
        ("MULTI\r\nGET a\r\nCLIENT REPLY SKIP\r\nEXEC\r\nEXEC\r\nPING\r\n", Waits),
        // The server closes the connection after it has sent an error or the reply to QUIT. With
        // replies off, it sends neither of them, and doesn't close the connection.
        ("CLIENT REPLY OFF\r\n*x\r\n", Waits),
        ("CLIENT REPLY OFF\r\nQUIT\r\n", Waits),
        ("HELLO 3\r\n*x\r\n", Closes),
        ("GET / HTTP/1.1\r\n", Waits),
        ("POST / HTTP/1.1\r\nHost: x\r\n\r\n", Closes),
        ("Host: example\r\nPING\r\n", Closes),
    ]
    .iter()
    .map(|(text, then)| (text.as_bytes().to_vec(), *then))
    .collect();
    // These lines have 64 KiB and more, and no line end.
    cases.push((long(b'a', 65_536), Waits));
    cases.push((long(b'a', 70_000), Closes));
    cases.push(([b"*".as_slice(), &long(b'1', 70_000)].concat(), Closes));
    cases.push(([b"*1\r\n$".as_slice(), &long(b'1', 70_000)].concat(), Closes));
    cases.push(([b"PING ".as_slice(), &long(b'a', 60_000), b"\r\n"].concat(), Waits));
    cases.push((b"PING \0\x01\xff\r\n".to_vec(), Waits));
    cases.push((b"*1\r\n\xff\r\n".to_vec(), Closes));
    cases.push((b"\0\r\n".to_vec(), Waits));

    beside_reference(&[], |subject, reference| {
        for (input, then) in &cases {
            if input.starts_with(b"HELLO") {
                // HELLO's reply contains values that differ between servers, so only the bytes
                // after it are compared.
                let tail = |bytes: Vec<u8>| bytes[bytes.len().saturating_sub(50)..].to_vec();
                let (right, given) = (outcome(reference, input, *then), outcome(subject, input, *then));
                assert_eq!(show(&tail(given)), show(&tail(right)));
                continue;
            }
            compare(subject, reference, input, *then);
        }
        assert_eq!(subject.connect().call("PING"), Reply::Simple("PONG".into()), "the server still runs");
    });
}

#[test]
fn limits_before_authentication() {
    beside_reference(&["--requirepass", "secret"], |subject, reference| {
        for (input, then) in [
            ("*11\r\n", Closes),
            ("*10\r\n", Waits),
            ("*1\r\n$16385\r\n", Closes),
            ("*1\r\n$16384\r\n", Waits),
            ("PING\r\nGET a\r\nNOSUCH\r\nGET\r\n", Waits),
            ("AUTH wrong\r\nPING\r\nAUTH secret\r\nPING\r\n", Waits),
            (
                "AUTH\r\nAUTH a b c\r\nAUTH default wrong\r\nAUTH nobody secret\r\nAUTH default secret\r\nPING\r\n",
                Waits,
            ),
            ("HELLO\r\nHELLO 3\r\nHELLO 3 AUTH default wrong\r\nPING\r\n", Waits),
            ("RESET\r\nQUIT\r\n", Closes),
            ("AUTH secret\r\nRESET\r\nPING\r\n", Waits),
            ("AUTH secret\r\n*11\r\n", Waits),
        ] {
            compare(subject, reference, input.as_bytes(), then);
        }
    });
}

/// Returns commands of every form as one stream of bytes, and the offsets of their ends.
fn sample() -> (Vec<u8>, Vec<usize>) {
    let mut bytes = Vec::new();
    let mut ends = Vec::new();
    for raw in [
        encode(&["SET", "key", "value"]),
        encode(&["GET", "key"]),
        b"PING \"a b\\x00\"\r\n".to_vec(),
        encode(&[b"ECHO".as_slice(), b"\r\n$3\r\n*1\r\n\0\xff"]),
        b"\r\n".to_vec(),
        encode(&["MSET", "a", "1", "b", "", "c", "3"]),
        b"*0\r\n".to_vec(),
        encode(&["MGET", "a", "b", "c", "nosuch"]),
        b"get key\n".to_vec(),
    ] {
        bytes.extend_from_slice(&raw);
        ends.push(bytes.len());
    }
    (bytes, ends)
}

#[test]
fn truncated_at_each_byte() {
    beside_reference(&[], |subject, reference| {
        let (bytes, _) = sample();
        for cut in 0..bytes.len() {
            compare(subject, reference, &bytes[..cut], Waits);
        }
    });
}

#[test]
fn split_at_each_byte_and_byte_by_byte() {
    beside_reference(&[], |subject, reference| {
        let (bytes, _) = sample();
        let whole = outcome(reference, &bytes, Waits);
        let pieces = |pieces: &[&[u8]]| {
            let mut client = subject.connect();
            for piece in pieces {
                client.send_raw(piece);
                // The server usually reads this piece before the next one is sent.
                std::thread::sleep(Duration::from_micros(300));
            }
            client.close_write();
            client.read_to_end()
        };
        for cut in 1..bytes.len() {
            assert_eq!(show(&pieces(&[&bytes[..cut], &bytes[cut..]])), show(&whole), "split at {cut}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(show(&pieces(&single)), show(&whole), "byte by byte");
    });
}

#[test]
fn large_values_in_random_pieces() {
    let seed = Random::seed("large_values_in_random_pieces");
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "2", "--shards", "8"]);
        let mut random = Random::from_seed(seed);
        for len in [1, 16_383, 16_384, 65_536, 100_000, 1 << 20, (5 << 20) + 3] {
            let value = random.bytes(len);
            let mut bytes = encode(&[b"SET".as_slice(), b"big", &value]);
            encode_into(&mut bytes, &["GET", "big"]);
            let mut client = server.connect();
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let (piece, after) = rest.split_at((random.below(len / 3 + 2) + 1).min(rest.len()));
                client.send_raw(piece);
                rest = after;
            }
            assert_eq!(client.receive(), Reply::ok());
            assert!(client.receive() == Reply::Bulk(value), "a value of {len} bytes was changed");
        }
    });
}

#[test]
fn half_closed_clients_get_their_replies() {
    beside_reference(&[], |subject, reference| {
        let mut input = encode(&["SET", "big", &"x".repeat(100_000)]);
        for _ in 0..20 {
            encode_into(&mut input, &["INCR", "n"]);
            encode_into(&mut input, &["ECHO", "hello"]);
        }
        compare(subject, reference, &input, Waits);
        assert_eq!(subject.connect().call("GET n"), Reply::bulk("20"));
    });
}

#[test]
fn a_hundred_thousand_commands_in_one_write() {
    const COMMANDS: usize = 100_000;
    let seed = Random::seed("a_hundred_thousand_commands_in_one_write");
    beside_reference(&[], |subject, reference| {
        let mut random = Random::from_seed(seed);
        let mut bytes = Vec::new();
        for number in 0..COMMANDS {
            let key = format!("key:{}", random.below(1000));
            match random.below(5) {
                0 => encode_into(&mut bytes, &["SET", &key, &number.to_string()]),
                1 => encode_into(&mut bytes, &["INCR", &key]),
                2 => bytes.extend_from_slice(format!("append {key} \"1\"\r\n").as_bytes()),
                3 => encode_into(&mut bytes, &["MGET", &key, "key:1", "key:2"]),
                _ => encode_into(&mut bytes, &["GET", &key]),
            }
        }
        encode_into(&mut bytes, &["ECHO", "the end"]);
        let all = |server: &Server| {
            let mut client = server.connect();
            assert_eq!(client.call("FLUSHALL"), Reply::ok());
            client.exchange_until(&bytes, b"the end")
        };
        let (given, right) = (all(subject), all(reference));
        assert_eq!(given.len(), right.len(), "number of replies");
        for (index, (given, right)) in given.iter().zip(&right).enumerate() {
            assert!(given.1 == right.1, "reply {index}: gives {}, must be {}", show(&given.1), show(&right.1));
        }
    });
}

/// The server caches which command belongs to a name and a number of arguments. Two calls of
/// different subcommands may have the same name and number of arguments. The cache must distinguish
/// them by the second word.
#[test]
fn subcommands_of_one_name_and_arity_are_distinguished() {
    beside_reference(&[], |subject, reference| {
        let mut input = Vec::new();
        let calls = [
            "SET k v",
            "XADD s 1-1 a b",
            "XGROUP CREATE s g 0",
            "OBJECT ENCODING k",
            "OBJECT REFCOUNT k",
            "OBJECT FREQ k",
            "object encoding k",
            "XINFO STREAM s",
            "XINFO GROUPS s",
            "XINFO STREAM s",
            "XGROUP DESTROY s g",
            "XGROUP DESTROY s g",
            "XINFO GROUPS s",
            "GET k",
            "GET",
            "GET k k",
            "get k",
        ];
        for call in calls {
            encode_into(&mut input, &call.split(' ').collect::<Vec<_>>());
        }
        compare(subject, reference, &input, Waits);
        // Each call is also sent alone, so that no other call is in the same window (batch of
        // pipelined commands).
        let (mut given, mut right) = (subject.connect(), reference.connect());
        for call in calls.iter().filter(|call| call.contains(' ')) {
            assert_eq!(given.call(call), right.call(call), "{call}");
        }
    });
}

/// In valid requests, bytes are changed, removed and inserted. The replies are the same as those of
/// Redis.
#[test]
fn damaged_requests() {
    const ROUNDS: usize = 1500;
    let seed = Random::seed("damaged_requests");
    beside_reference(&[], |subject, reference| {
        let mut random = Random::from_seed(seed);
        let (bytes, ends) = sample();
        for round in 0..ROUNDS {
            let mut input = bytes[..*random.pick(&ends)].to_vec();
            for _ in 0..random.below(3) + 1 {
                let at = random.below(input.len());
                let byte = *random.pick(b"\r\n*$0123 -+\"'\\\0ax\xff");
                match random.below(3) {
                    0 => input[at] = byte,
                    1 => input.insert(at, byte),
                    _ => drop(input.remove(at)),
                }
                if input.is_empty() {
                    input.push(byte);
                }
            }
            let (right, given) = (outcome(reference, &input, Waits), outcome(subject, &input, Waits));
            assert!(
                given == right,
                "PANTALA_SEED={seed}, round {round}: sent {}\n  gives   {}\n  must be {}",
                show(&input),
                show(&given),
                show(&right)
            );
        }
    });
}
