//! Attacks by values: payloads of `RESTORE`, snapshots, streams, and scripts that fail.

use std::fs;
use std::path::Path;

use pantala_tests::following::info;
use pantala_tests::server::{free_port, run_to_exit};
use pantala_tests::waiting::eventually;
use pantala_tests::{Backend, Client, Reply, Server, for_each_backend};

use super::super::dump::sealed;

/// Bytes of the ID 1-1 in a list of pending entries.
const ID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1];

/// Returns an encoded stream with a group and two consumers. The second consumer has one pending
/// entry.
fn stream(client: &mut Client) -> Vec<u8> {
    for command in [
        "DEL stream",
        "XADD stream 1-1 f v",
        "XGROUP CREATE stream group 0",
        "XGROUP CREATECONSUMER stream group first",
        "XREADGROUP GROUP group second STREAMS stream >",
    ] {
        assert!(!client.call(command).is_error(), "{command}");
    }
    let Reply::Bulk(payload) = client.call("DUMP stream") else { panic!("no payload") };
    // Removes the version and the checksum.
    let value = payload[..payload.len() - 10].to_vec();
    assert!(value.ends_with(&[&[1], &ID[..]].concat()), "{}", value.escape_ascii());
    value
}

/// Returns streams in which consumers and the group disagree on the pending entry: two consumers
/// have the entry, one has it twice, no consumer has it, or the group does not have it.
fn inconsistent_streams(valid: &[u8]) -> Vec<Vec<u8>> {
    let (head, seen_bytes) = (&valid[..valid.len() - 1 - ID.len()], 8);
    let name = b"\x06second";
    let first = head.len() - seen_bytes - name.len();
    // The number of the first consumer's pending entries is in front of the second consumer's name.
    assert!(head[first..].starts_with(name) && head[first - 1] == 0, "{}", valid.escape_ascii());
    let mut other = ID;
    other[15] = 2;
    vec![
        [&head[..first - 1], &[1], &ID, &head[first..], &[1], &ID].concat(),
        [head, &[2], &ID, &ID].concat(),
        [head, &[0]].concat(),
        [head, &[1], &other].concat(),
    ]
}

/// Writes a snapshot of one key, without a checksum.
fn write_snapshot(folder: &Path, value: &[u8]) {
    let file = [b"REDIS0010\xfe\0", &value[..1], b"\x06stream", &value[1..], b"\xff", &[0; 8]].concat();
    fs::write(folder.join("dump.rdb"), file).expect("written");
}

/// CVE-2026-66373 and CVE-2026-63639: a stream whose pending entry has two owners. Deleting both
/// owners would free the entry twice.
#[test]
fn pending_entries_have_one_owner() {
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &[]);
        let mut client = server.connect();
        let valid = stream(&mut client);
        let restore = |client: &mut Client, value: &[u8]| {
            client.command(&[b"RESTORE".as_slice(), b"stream", b"0", &sealed(value), b"REPLACE"])
        };
        for value in inconsistent_streams(&valid) {
            assert_eq!(restore(&mut client, &value).text(), "ERR Bad data format", "{}", value.escape_ascii());
        }
        assert_eq!(restore(&mut client, &valid), Reply::ok());
        assert_eq!(client.call("XGROUP DELCONSUMER stream group first"), Reply::Integer(0));
        assert_eq!(client.call("XGROUP DELCONSUMER stream group second"), Reply::Integer(1));
        server.assert_sound();
    });
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().display().to_string();
    let valid = stream(&mut Server::pantala(Backend::Epoll, &[]).connect());
    for value in inconsistent_streams(&valid) {
        write_snapshot(folder.path(), &value);
        let exit = run_to_exit(&["--port", &free_port().to_string(), "--dir", &dir], b"");
        assert_eq!(exit.status.code(), Some(1), "{}: {}", value.escape_ascii(), exit.output);
    }
    write_snapshot(folder.path(), &valid);
    let server = Server::pantala(Backend::Epoll, &["--dir", &dir]);
    assert_eq!(server.connect().call("XLEN stream"), Reply::Integer(1));
}

/// CVE-2026-25243: payloads of old types and of packed types with invalid lengths or scores, and
/// strings with invalid lengths.
#[test]
fn values_with_invalid_lengths_and_scores_are_rejected() {
    let mut server = Server::pantala(Backend::Epoll, &[]);
    let mut client = server.connect();
    for (value, is_valid) in [
        // Zipmaps: one field; a length above the end; a length that overflows; a field twice; an
        // unused byte too many.
        (&b"\x09\x07\x01\x01a\x01\0b\xff"[..], true),
        (b"\x09\x07\x01\x09a\x01\0b\xff", false),
        (b"\x09\x0b\x01\xfe\xff\xff\xff\xffa\x01\0b\xff", false),
        (b"\x09\x0c\x02\x01a\x01\0b\x01a\x01\0b\xff", false),
        (b"\x09\x07\x01\x01a\x01\x09b\xff", false),
        // Sorted sets with a score as text: a number, and two texts that aren't numbers.
        (b"\x11\x0f\x0f\0\0\0\x02\0\x81a\x02\x831.5\x04\xff", true),
        (b"\x11\x0f\x0f\0\0\0\x02\0\x81a\x02\x83nan\x04\xff", false),
        (b"\x11\x0f\x0f\0\0\0\x02\0\x81a\x02\x83abc\x04\xff", false),
        // Strings: three bytes; lengths that overflow, without and with compression (LZF).
        (b"\0\x03abc", true),
        (b"\0\x81\xff\xff\xff\xff\xff\xff\xff\xffabc", false),
        (b"\0\x81\x7f\xff\xff\xff\xff\xff\xff\xffabc", false),
        (b"\0\xc3\x03\x81\xff\xff\xff\xff\xff\xff\xff\xffabc", false),
        (b"\0\xc3\x81\xff\xff\xff\xff\xff\xff\xff\xff\x03abc", false),
    ] {
        let payload = sealed(value);
        let reply = client.command(&[b"RESTORE".as_slice(), b"key", b"0", &payload, b"REPLACE"]);
        assert_eq!(reply == Reply::ok(), is_valid, "{}: {reply:?}", value.escape_ascii());
    }
    server.assert_sound();
}

/// A defect without a CVE number, which Redis 8.10.1 fixed: a snapshot names a slot above 16383.
#[test]
fn slots_of_a_snapshot_index_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().display().to_string();
    let write = |slot: &[u8]| {
        let file = [b"REDIS0012\xf4", slot, slot, slot, b"\xfe\0\0\x01a\x01b\xff", &[0; 8]].concat();
        fs::write(folder.path().join("dump.rdb"), file).expect("written");
    };
    // 16384, 65535 and 2^31 - 1.
    for slot in [&[0x80, 0, 0, 0x40, 0][..], &[0x80, 0, 0, 0xff, 0xff], &[0x80, 0x7f, 0xff, 0xff, 0xff]] {
        write(slot);
        for cluster in ["no", "yes"] {
            let mut server = Server::pantala(Backend::Epoll, &["--dir", &dir, "--cluster-enabled", cluster]);
            assert_eq!(server.connect().call("GET a").text(), "b");
            server.assert_sound();
        }
    }
    write(&[0x81, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    let exit = run_to_exit(&["--port", &free_port().to_string(), "--dir", &dir], b"");
    assert_eq!(exit.status.code(), Some(1), "{}", exit.output);
}

/// CVE-2022-33105: the search for the first or last ID of a stream must not leak memory.
#[test]
fn first_and_last_ids_of_streams_leak_no_memory() {
    /// Number of searches. In vulnerable versions of Redis, each search leaked at least a hundred
    /// bytes.
    const ROUNDS: usize = 20_000;
    const GROWTH_MAX: u64 = 1 << 20;
    let server = Server::pantala(Backend::Epoll, &["--workers", "1"]);
    let mut client = server.connect();
    let used = |server: &Server| info(server, "memory", "used_memory").parse::<u64>().expect("a number");
    let mut run = |first: usize| {
        let commands: Vec<Vec<String>> = (first..first + ROUNDS)
            .flat_map(|number| {
                let trim =
                    if number % 2 == 0 { "XTRIM stream MAXLEN 3".into() } else { format!("XDEL stream {number}-2") };
                [format!("XADD stream {number}-1 field value"), format!("XADD stream {number}-2 field value"), trim]
            })
            .map(|command| command.split(' ').map(str::to_owned).collect())
            .collect();
        assert!(client.pipeline(&commands).iter().all(|reply| !reply.is_error()));
        client.call("XTRIM stream MAXLEN 3");
    };
    run(1);
    let before = used(&server);
    run(1 + ROUNDS);
    // The client's buffers are freed some time after a large pipeline.
    eventually("the memory is freed", || used(&server) < before + GROWTH_MAX);
}

/// CVE-2025-62507: a command with more IDs than fit in a fixed number of bytes. Redis overran the
/// stack in `XACKDEL`. Pantala doesn't have this command, so the test uses others.
#[test]
fn commands_take_very_many_ids() {
    const IDS: usize = 20_000;
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &[]);
        let mut client = server.connect();
        let adds: Vec<Vec<String>> =
            (1..=IDS).map(|ms| format!("XADD s {ms}-0 f v").split(' ').map(str::to_owned).collect()).collect();
        client.pipeline(&adds);
        assert_eq!(client.call("XGROUP CREATE s g 0"), Reply::ok());
        client.call("XREADGROUP GROUP g one STREAMS s >");
        let with_ids = |head: &str| -> Vec<String> {
            head.split(' ').map(str::to_owned).chain((1..=IDS).map(|ms| format!("{ms}-0"))).collect()
        };
        assert_eq!(client.command(&with_ids("XCLAIM s g two 0")).elements().len(), IDS);
        for command in ["XACK s g", "XDEL s"] {
            assert_eq!(client.command(&with_ids(command)), Reply::Integer(IDS as i64), "{command}");
        }
        assert!(client.command(&with_ids("XACKDEL s g KEEPREF IDS 1")).text().starts_with("ERR unknown command"));
        server.assert_sound();
    });
}

/// CVE-2022-24736: Redis puts a function around a script's text. This script ends the function
/// early, so the rest of the text runs while the script is loaded. The rest raises an error that is
/// not a text, and Redis used the text of the error without a check. The test also covers a defect
/// without a CVE number, which Valkey 9.0.8 fixed: the server reads a field of the error, and the
/// error's metatable raises another error.
#[test]
fn errors_without_text_get_replies() {
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &[]);
        let mut client = server.connect();
        for error in [
            "nil",
            "{}",
            "true",
            "12",
            "function() end",
            "{err = {}}",
            "{err = false}",
            "setmetatable({}, {})",
            "setmetatable({}, {__index = function() error('x') end})",
            "setmetatable({}, {__tostring = function() error('x') end})",
        ] {
            for script in [format!("end error({error}) do"), format!("end error({error}) function f()")] {
                assert!(client.command(&["SCRIPT", "LOAD", &script]).is_error(), "{script}");
                assert!(client.command(&["EVAL", &script, "0"]).is_error(), "{script}");
            }
            assert!(client.command(&["EVAL", &format!("error({error})"), "0"]).is_error(), "{error}");
            let library = format!("#!lua name=l\nerror({error})");
            assert!(client.command(&["FUNCTION", "LOAD", &library]).is_error(), "{library}");
        }
        assert_eq!(client.call("PING").text(), "PONG");
        server.assert_sound();
    });
}

/// CVE-2021-32672: the protocol of Lua's debugger read beyond its input. Pantala has no such
/// debugger.
#[test]
fn there_is_no_debugger() {
    let mut server = Server::pantala(Backend::Epoll, &[]);
    let mut client = server.connect();
    for mode in ["YES", "SYNC"] {
        assert!(client.call(&format!("SCRIPT DEBUG {mode}")).is_error(), "{mode}");
        assert_eq!(client.command(&["EVAL", "return 'not debugged'", "0"]).text(), "not debugged");
        client.send_raw(b"*1\r\n$4294967295\r\n");
        client.read_to_end();
        client = server.connect();
    }
    server.assert_sound();
}
