//! Compares `DEBUG DIGEST` and `DEBUG DIGEST-VALUE` with redis-server, for every type.

use pantala_tests::{Client, Reply, Server, for_each_backend};

/// Length of the text that replaces `LONG` in a command. A text of this length doesn't fit into a
/// list's node.
const LONG_BYTES: usize = 9000;

/// Commands that create a value of the named type or encoding, under the key `k`.
const VALUES: &[(&str, &[&str])] = &[
    ("string", &["SET k value"]),
    ("short string", &["SETRANGE k 0 x"]),
    ("integer", &["SET k 12345"]),
    ("negative integer", &["SET k -9223372036854775808"]),
    ("changed string", &["SET k abc", "APPEND k def"]),
    ("list", &["RPUSH k a b 12 -7 a"]),
    ("list of many nodes", &["RPUSH k LONG LONG LONG a LONG"]),
    ("set of integers", &["SADD k 3 -1 70000 5000000000"]),
    ("set", &["SADD k a b 12 c"]),
    ("large set", &["SADD k a b 12 LONG"]),
    ("hash", &["HSET k f v g 12 12 g"]),
    ("large hash", &["HSET k f v g LONG 12 g"]),
    ("sorted set", &["ZADD k 1 a -2.5 12 inf c 0.1 d 1e300 e"]),
    ("large sorted set", &["ZADD k 1 a 0.30000000000000004 12 -inf LONG"]),
    ("stream", &["XADD k 1-1 f v g 12", "XADD k 1-2 f w g LONG", "XADD k 7-0 other -5", "XDEL k 1-2"]),
    ("emptied stream", &["XADD k 5-5 f v", "XDEL k 5-5"]),
    ("stream with a group", &["XADD k 1-1 f v", "XGROUP CREATE k g 0", "XREADGROUP GROUP g c STREAMS k >"]),
    ("string with an expiry", &["SET k value EX 1000"]),
];

fn both(one: &mut Client, two: &mut Client, command: &str) {
    let (given, right) = (one.call(command), two.call(command));
    assert!(!matches!(right, Reply::Error(_)), "{command}: {right:?}");
    assert_eq!(given, right, "{command}");
}

#[test]
fn digests_are_those_of_redis() {
    let Some(reference) = Server::redis(&[]) else { return };
    let mut right = reference.connect();
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "2", "--shards", "8"]);
        let mut client = server.connect();
        right.call("FLUSHALL");
        right.call("SELECT 0");
        both(&mut client, &mut right, "DEBUG DIGEST");
        for (number, (what, commands)) in VALUES.iter().enumerate() {
            eprintln!("{what}");
            for command in *commands {
                both(&mut client, &mut right, &command.replace("LONG", &"x".repeat(LONG_BYTES)));
            }
            both(&mut client, &mut right, "DEBUG DIGEST-VALUE k");
            both(&mut client, &mut right, "DEBUG DIGEST");
            both(&mut client, &mut right, &format!("RENAME k kept:{number}"));
            // The number of a database with keys is part of the digest.
            if number % 3 == 2 {
                both(&mut client, &mut right, &format!("SELECT {}", number * 2 % 16));
            }
        }
        both(&mut client, &mut right, "SELECT 0");
        both(&mut client, &mut right, "DEBUG DIGEST");
        both(&mut client, &mut right, "DEBUG DIGEST-VALUE kept:0 nosuch kept:1");
        both(&mut client, &mut right, "DEBUG DIGEST-VALUE");
        let before = client.call("DEBUG DIGEST");
        both(&mut client, &mut right, "SET kept:0 other");
        assert_ne!(client.call("DEBUG DIGEST"), before, "another value has another digest");
    });
}
