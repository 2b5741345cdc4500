//! Blocking `XREAD` and `XREADGROUP`. The tests also run on redis-server, to check that they
//! describe Redis's behaviour.

use std::time::{Duration, Instant};

use pantala_tests::waiting::{PATIENCE, play, wait_until_blocked, waiting};
use pantala_tests::{Backend, Client, Reply, Server};

/// Time for which a test checks that a client receives nothing.
const QUIET: Duration = Duration::from_millis(60);

/// Returns the text of a reply, with its aggregates flattened.
fn words(reply: &Reply) -> String {
    match reply {
        Reply::Array(elements) | Reply::Map(elements) => elements.iter().map(words).collect::<Vec<_>>().join(" "),
        Reply::Null => "null".to_owned(),
        Reply::Error(text) => format!("error {text}"),
        other => other.text(),
    }
}

#[test]
fn an_entry_wakes_all_readers_and_one_consumer_of_each_group() {
    play(|server| {
        let mut writer = server.connect();
        for group in ["g", "h"] {
            assert_eq!(writer.call(&format!("XGROUP CREATE s {group} $ MKSTREAM")), Reply::ok());
        }
        let mut readers: Vec<Client> =
            (1..=2).map(|count| waiting(server, "XREAD BLOCK 0 STREAMS s $", count)).collect();
        let mut first = waiting(server, "XREADGROUP GROUP g one BLOCK 0 STREAMS s >", 3);
        let mut second = waiting(server, "XREADGROUP GROUP g two BLOCK 0 STREAMS s >", 4);
        let mut other = waiting(server, "XREADGROUP GROUP h one COUNT 5 BLOCK 0 NOACK STREAMS s >", 5);
        assert_eq!(writer.call("XADD s 1-1 f a").text(), "1-1");
        for client in readers.iter_mut().chain([&mut first, &mut other]) {
            assert_eq!(words(&client.receive()), "s 1-1 f a");
        }
        assert!(!second.has_reply_within(QUIET), "a blocked reader has received something");
        wait_until_blocked(&mut writer, 1);
        writer.call("XADD s 2-1 f b");
        assert_eq!(words(&second.receive()), "s 2-1 f b");
        assert_eq!(words(&writer.call("XPENDING s g")), "2 1-1 2-1 one 1 two 1");
        assert_eq!(words(&writer.call("XPENDING s h")), "0 null null null");
        wait_until_blocked(&mut writer, 0);
    });
}

/// Each key of `XREAD` has its own ID. `$`, the last ID of the stream, is determined when the
/// client blocks.
#[test]
fn a_reader_of_several_streams_waits_for_entries_after_their_ids() {
    play(|server| {
        let mut writer = server.connect();
        writer.call("XADD a 5-0 f v");
        let mut client = waiting(server, "XREAD COUNT 2 BLOCK 0 STREAMS a b a 5 $ 9", 1);
        writer.call("XADD b 1-0 f v");
        assert_eq!(words(&client.receive()), "b 1-0 f v");
        let mut client = waiting(server, "XREAD BLOCK 0 STREAMS a b 7 $", 1);
        writer.call("XADD a 6-0 f v");
        assert!(!client.has_reply_within(QUIET), "woken by an entry before its id");
        writer.call("XADD a 8-0 f v");
        assert_eq!(words(&client.receive()), "a 8-0 f v");
        // A key of another type doesn't wake the client. The client waits until the key becomes a
        // stream.
        let mut client = waiting(server, "XREAD BLOCK 0 STREAMS c 0", 1);
        writer.call("SET c string");
        writer.call("DEL c");
        writer.call("RENAME a c");
        assert_eq!(words(&client.receive()), "c 5-0 f v 6-0 f v 8-0 f v");
    });
}

#[test]
fn a_woken_reader_gets_a_map_in_resp3() {
    play(|server| {
        let mut client = server.connect();
        client.set_read_timeout(PATIENCE);
        client.call("HELLO 3");
        client.send(&["XREAD", "BLOCK", "0", "STREAMS", "s", "$"]);
        let mut writer = server.connect();
        wait_until_blocked(&mut writer, 1);
        writer.call("XADD s 1-0 f v");
        let reply = client.receive();
        assert!(matches!(reply, Reply::Map(_)), "{reply:?}");
        assert_eq!(words(&reply), "s 1-0 f v");
    });
}

/// A consumer is blocked on a group. The group is deleted, alone or with its stream. No entry can
/// arrive any more, so the consumer receives an error.
#[test]
fn a_consumer_gets_an_error_when_its_stream_or_group_is_deleted() {
    const KEY_DELETED: &str = "error UNBLOCKED the stream key no longer exists";
    const GROUP_DELETED: &str = "error NOGROUP the consumer group this client was blocked on no longer exists";
    play(|server| {
        let mut writer = server.connect();
        for (change, said) in [
            ("DEL s", KEY_DELETED),
            ("SET s v", KEY_DELETED),
            ("RENAME s t", KEY_DELETED),
            ("FLUSHALL", KEY_DELETED),
            ("PEXPIRE s 1", KEY_DELETED),
            ("XGROUP DESTROY s g", GROUP_DELETED),
            ("RENAME other s", GROUP_DELETED),
        ] {
            writer.call("FLUSHALL");
            writer.call("XADD other 1-1 f v");
            writer.call("XGROUP CREATE s g $ MKSTREAM");
            let mut reader = waiting(server, "XREAD BLOCK 0 STREAMS s 5-5", 1);
            let mut client = waiting(server, "XREADGROUP GROUP g one BLOCK 0 STREAMS s >", 2);
            writer.call(change);
            assert_eq!(words(&client.receive()), said, "{change}");
            // `XREAD` without a group stays blocked until a new stream with that name has entries.
            wait_until_blocked(&mut writer, 1);
            writer.call("DEL s");
            writer.call("XADD s 5-6 f v");
            assert_eq!(words(&reader.receive()), "s 5-6 f v", "{change}");
        }
    });
}

#[test]
fn reads_time_out_and_history_never_blocks() {
    play(|server| {
        let mut client = server.connect();
        client.set_read_timeout(PATIENCE);
        client.call("XGROUP CREATE s g $ MKSTREAM");
        for command in ["XREAD BLOCK 30 STREAMS s $", "XREADGROUP GROUP g one BLOCK 30 STREAMS s >"] {
            let began = Instant::now();
            assert_eq!(words(&client.call(command)), "null", "{command}");
            assert!(began.elapsed() >= Duration::from_millis(29), "{:?}", began.elapsed());
        }
        assert_eq!(words(&client.call("XREADGROUP GROUP g one BLOCK 0 STREAMS s 0")), "s ");
        assert_eq!(words(&client.call("XREAD BLOCK -1 STREAMS s $")), "error ERR timeout is negative");
        // All of these commands have ended, so no client is blocked.
        wait_until_blocked(&mut client, 0);
        assert_eq!(words(&client.call("XADD s 1-1 f v")), "1-1");
        let mut unblocked = waiting(server, "XREAD BLOCK 0 STREAMS s $", 1);
        unblocked.send(&["PING"]);
        let clients = client.call("CLIENT LIST").text();
        let line = clients.lines().find(|line| line.contains("cmd=xread ")).expect("it is listed");
        let id = line.strip_prefix("id=").and_then(|rest| rest.split(' ').next()).expect("it has an id");
        assert_eq!(client.call(&format!("CLIENT UNBLOCK {id} ERROR")).integer(), 1);
        assert_eq!(words(&unblocked.receive()), "error UNBLOCKED client unblocked via CLIENT UNBLOCK");
        assert_eq!(unblocked.receive().text(), "PONG");
    });
}

/// The ID `+` of Redis 7.4 stands for the last entry. If there is none, the client waits for the
/// first entry to arrive. redis-server 7.0 doesn't support `+`, so this test doesn't run on it.
#[test]
fn the_last_entry_or_the_first_to_arrive() {
    for &backend in Backend::all() {
        let server = Server::pantala(backend, &["--workers", "3", "--shards", "12"]);
        let mut writer = server.connect();
        writer.set_read_timeout(PATIENCE);
        writer.call("XADD s 1-1 f a");
        writer.call("XADD s 2-1 f b");
        assert_eq!(words(&writer.call("XREAD BLOCK 0 STREAMS s +")), "s 2-1 f b");
        assert_eq!(words(&writer.call("XREAD COUNT 5 BLOCK 0 STREAMS none s + +")), "s 2-1 f b");
        writer.call("XDEL s 2-1");
        assert_eq!(words(&writer.call("XREAD BLOCK 0 STREAMS s +")), "s 1-1 f a");
        writer.call("XDEL s 1-1");
        assert_eq!(words(&writer.call("XREAD BLOCK 10 STREAMS s none + +")), "null");
        let mut of_none = waiting(&server, "XREAD BLOCK 0 STREAMS none +", 1);
        let mut of_emptied = waiting(&server, "XREAD BLOCK 0 STREAMS s +", 2);
        writer.call("XADD s 3-1 f c");
        assert_eq!(words(&of_emptied.receive()), "s 3-1 f c");
        writer.call("XADD none 0-1 f d");
        assert_eq!(words(&of_none.receive()), "none 0-1 f d");
        let said = words(&writer.call("XREADGROUP GROUP g c STREAMS s +"));
        assert!(said.starts_with("error "), "{said}");
    }
}
