//! Publish and subscribe: replies compared with redis-server, order, output limits, and subscribers
//! on every worker.

use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use pantala_tests::client::encode;
use pantala_tests::transcript::assert_as_redis;
use pantala_tests::{Backend, Client, Reply, Server, for_each_backend, for_each_form};

const PATIENCE: Duration = Duration::from_secs(20);

const SERVER_ARGS: [&str; 4] = ["--workers", "3", "--shards", "8"];

fn start(backend: Backend) -> Server {
    Server::pantala(backend, &SERVER_ARGS)
}

/// Waits until the channel has exactly this number of subscribers.
fn await_listeners(client: &mut Client, channel: &str, count: usize) {
    let deadline = Instant::now() + PATIENCE;
    let wanted = Reply::Array(vec![Reply::bulk(channel), Reply::Integer(count as i64)]);
    while client.call(&format!("PUBSUB NUMSUB {channel}")) != wanted {
        assert!(Instant::now() < deadline, "{channel} does not get {count} subscribers");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A step of a session: the client, the command that it sends (or an empty text), and the number of
/// replies and messages that it then receives.
type Step = (usize, &'static str, usize);

/// Runs a script with three clients and returns all bytes that they receive.
fn transcript(server: &Server, version: u8, script: &[Step]) -> Vec<String> {
    let mut clients: Vec<Client> = (0..3).map(|_| server.connect()).collect();
    let mut transcript = Vec::new();
    if version == 3 {
        for client in &mut clients {
            client.call("HELLO 3");
        }
    }
    for (client, command, count) in script {
        let client = &mut clients[*client];
        if !command.is_empty() {
            client.send(&command.split(' ').collect::<Vec<_>>());
        }
        for _ in 0..*count {
            transcript.push(format!("{command}: {}", client.receive_raw().1.escape_ascii()));
        }
    }
    transcript
}

#[test]
fn replies_are_those_of_redis() {
    const SCRIPT: &[Step] = &[
        (0, "SUBSCRIBE a b a", 3),
        (0, "PSUBSCRIBE a* [", 2),
        (0, "SSUBSCRIBE s", 1),
        (0, "PING", 1),
        (0, "PING hello", 1),
        (1, "UNSUBSCRIBE", 1),
        (1, "PUNSUBSCRIBE nothing", 1),
        (1, "SUNSUBSCRIBE", 1),
        (1, "PUBLISH a one", 1),
        (0, "", 2),
        (1, "PUBLISH b two", 1),
        (0, "", 1),
        (1, "SPUBLISH s three", 1),
        (0, "", 1),
        (1, "SPUBLISH a nobody", 1),
        (1, "PUBLISH s nobody", 1),
        (2, "PSUBSCRIBE ?", 1),
        (1, "PUBLISH a four", 1),
        (0, "", 2),
        (2, "", 1),
        (1, "PUBSUB NUMSUB a b c", 1),
        (1, "PUBSUB NUMPAT", 1),
        (1, "PUBSUB CHANNELS a*", 1),
        (1, "PUBSUB SHARDCHANNELS", 1),
        (1, "PUBSUB SHARDNUMSUB s", 1),
        (1, "PUBSUB CHANNELS x y", 1),
        (1, "PUBSUB NUMPAT x", 1),
        (1, "PUBSUB nonsense", 1),
        (1, "PUBSUB", 1),
        (1, "SUBSCRIBE", 1),
        (1, "PUBLISH a", 1),
        (0, "UNSUBSCRIBE a zzz", 2),
        (0, "PUNSUBSCRIBE a*", 1),
        (0, "UNSUBSCRIBE", 1),
        (0, "SUNSUBSCRIBE s", 1),
        (0, "PUNSUBSCRIBE", 1),
        (0, "PING", 1),
        (2, "RESET", 1),
        (2, "PING", 1),
    ];
    assert_as_redis(&SERVER_ARGS, |server, version| transcript(server, version, SCRIPT));
}

#[test]
fn shard_channels_are_those_of_redis() {
    const SCRIPT: &[Step] = &[
        // One of the two subscribers of a channel unsubscribes.
        (0, "SSUBSCRIBE one", 1),
        (1, "SSUBSCRIBE one", 1),
        (2, "SPUBLISH one both", 1),
        (0, "", 1),
        (1, "", 1),
        (2, "PUBSUB SHARDNUMSUB one abc def", 1),
        (2, "PUBSUB SHARDCHANNELS", 1),
        (1, "SUNSUBSCRIBE one", 1),
        (2, "SPUBLISH one first", 1),
        (0, "", 1),
        // A subscriber of two channels unsubscribes from one of them.
        (0, "SSUBSCRIBE two", 1),
        (0, "SUNSUBSCRIBE one", 1),
        (2, "SPUBLISH one nobody", 1),
        (2, "SPUBLISH two still", 1),
        (0, "", 1),
        (2, "PUBSUB SHARDNUMSUB one two", 1),
        (2, "PUBSUB SHARDCHANNELS", 1),
        (0, "SUNSUBSCRIBE", 1),
        (0, "SUNSUBSCRIBE", 1),
        // Several subscriptions of a client to the same channel count once.
        (0, "SSUBSCRIBE one one one", 3),
        (0, "SSUBSCRIBE one", 1),
        (2, "SPUBLISH one once", 1),
        (0, "", 1),
        (0, "SUNSUBSCRIBE one one", 2),
        (2, "SPUBLISH one nobody", 1),
        // `SUNSUBSCRIBE` of channels that a client isn't subscribed to: first without any
        // subscription, then with a subscription to another channel.
        (0, "SUNSUBSCRIBE foo", 1),
        (0, "SUNSUBSCRIBE bar quux", 2),
        (0, "SSUBSCRIBE one", 1),
        (0, "SUNSUBSCRIBE foo", 1),
        // Channels and shard channels of the same name are independent, with two clients and with
        // one.
        (1, "SUBSCRIBE one", 1),
        (2, "SPUBLISH one shard", 1),
        (0, "", 1),
        (2, "PUBLISH one plain", 1),
        (1, "", 1),
        (2, "PUBSUB SHARDNUMSUB one", 1),
        (2, "PUBSUB NUMSUB one", 1),
        (2, "PUBSUB SHARDCHANNELS", 1),
        (2, "PUBSUB CHANNELS", 1),
        (0, "SUBSCRIBE one", 1),
        (0, "PSUBSCRIBE o*", 1),
        (2, "SPUBLISH one shard", 1),
        (0, "", 1),
        (2, "PUBLISH one plain", 1),
        (0, "", 2),
        (1, "", 1),
        (0, "UNSUBSCRIBE", 1),
        (0, "SUNSUBSCRIBE one", 1),
        (2, "SPUBLISH one nobody", 1),
        (0, "PUNSUBSCRIBE", 1),
        (0, "PING", 1),
    ];
    assert_as_redis(&SERVER_ARGS, |server, version| transcript(server, version, SCRIPT));
}

/// With replies off, confirmations and messages are still sent.
#[test]
fn listeners_without_replies_are_those_of_redis() {
    const SCRIPT: &[Step] = &[
        (0, "CLIENT REPLY OFF", 0),
        (0, "PING", 0),
        (0, "SSUBSCRIBE one", 1),
        (0, "SSUBSCRIBE", 0),
        (0, "SUBSCRIBE one two", 2),
        (1, "SPUBLISH one hello", 1),
        (0, "", 1),
        (1, "PUBLISH two hello", 1),
        (0, "", 1),
        (0, "PING", 0),
        (0, "UNSUBSCRIBE two one", 2),
        (0, "SUNSUBSCRIBE one", 1),
        (0, "SPUBLISH one nobody", 0),
        (0, "SUNSUBSCRIBE", 1),
        (0, "CLIENT REPLY ON", 1),
        (0, "CLIENT REPLY SKIP", 0),
        (0, "SSUBSCRIBE one", 1),
        (0, "PING", 1),
        (1, "SPUBLISH one hello", 1),
        (0, "", 1),
        // The publisher's replies are off, but its messages are still delivered. (The publisher
        // first unsubscribes, because a subscriber may not publish in RESP2.)
        (0, "SUNSUBSCRIBE one", 1),
        (2, "SSUBSCRIBE one", 1),
        (0, "CLIENT REPLY OFF", 0),
        (0, "SPUBLISH one quiet", 0),
        (2, "", 1),
        (0, "CLIENT REPLY ON", 1),
        // The same commands in transactions.
        (0, "CLIENT REPLY OFF", 0),
        (0, "MULTI", 0),
        (0, "SUBSCRIBE a b", 0),
        (0, "GET nothing", 0),
        (0, "PSUBSCRIBE p*", 0),
        (0, "SSUBSCRIBE refused", 0),
        (0, "UNSUBSCRIBE b", 0),
        (0, "EXEC", 4),
        (1, "PUBLISH a hello", 1),
        (0, "", 1),
        (0, "UNSUBSCRIBE", 1),
        (0, "PUNSUBSCRIBE", 1),
        (0, "CLIENT REPLY ON", 1),
        (0, "MULTI", 1),
        (0, "PING", 1),
        (0, "EXEC", 1),
        (0, "CLIENT REPLY OFF", 0),
        (0, "PING", 0),
        (0, "CLIENT REPLY ON", 1),
    ];
    assert_as_redis(&SERVER_ARGS, |server, version| transcript(server, version, SCRIPT));
}

/// Redis unsubscribes from the channels in random order, so the test compares only the decreasing
/// counts, and the channels as a set.
#[test]
fn unsubscribing_all_shard_channels_is_as_in_redis() {
    assert_as_redis(&SERVER_ARGS, |server, version| {
        let (mut listener, mut publisher) = (server.connect(), server.connect());
        listener.call(&format!("HELLO {version}"));
        listener.send(&["SSUBSCRIBE", "one", "two", "three"]);
        (0..3).for_each(|_| drop(listener.receive()));
        listener.call("SUBSCRIBE kept");
        listener.send(&["SUNSUBSCRIBE"]);
        let left: Vec<Reply> = (0..3).map(|_| listener.receive()).collect();
        let mut names: Vec<String> = left.iter().map(|reply| reply.elements()[1].text()).collect();
        names.sort();
        let mut lines: Vec<String> =
            left.iter().map(|reply| format!("{:?} {:?}", reply.elements()[0], reply.elements()[2])).collect();
        lines.extend(names);
        for channel in ["one", "two", "three"] {
            lines.push(format!("{:?}", publisher.call(&format!("SPUBLISH {channel} nobody"))));
        }
        lines.push(format!("{:?}", publisher.call("PUBSUB SHARDCHANNELS")));
        lines.push(format!("{:?}", publisher.call("PUBLISH kept on")));
        lines.push(format!("{:?}", listener.receive()));
        lines
    });
}

#[test]
fn a_subscriber_with_resp2_may_only_subscribe() {
    let refused = |server: &Server, command: &str, version: u8| {
        let mut client = server.connect();
        client.call(&format!("HELLO {version}"));
        client.call("SUBSCRIBE a");
        client.call(command).text()
    };
    let redis = Server::redis(&[]);
    for_each_backend(|backend| {
        let server = start(backend);
        for command in ["GET a", "CLIENT LIST", "HELLO 3", "PUBLISH a b", "SELECT 1"] {
            let text = refused(&server, command, 2);
            assert!(text.contains("are allowed in this context"), "{command}: {text}");
            if let Some(redis) = &redis {
                assert_eq!(text, refused(redis, command, 2));
            }
        }
        assert_eq!(refused(&server, "ECHO free", 3), "free");
    });
}

/// Calls every command and subcommand, with the minimum number of arguments, as a subscriber.
#[test]
fn commands_denied_to_subscribers_are_those_of_redis() {
    const ALLOWED: [&str; 9] = [
        "ping",
        "psubscribe",
        "punsubscribe",
        "quit",
        "reset",
        "ssubscribe",
        "subscribe",
        "sunsubscribe",
        "unsubscribe",
    ];
    let Some(reference) = Server::redis(&[]) else { return };
    let entries = reference.connect().call("COMMAND");
    let all = entries.elements().iter().flat_map(|entry| std::iter::once(entry).chain(entry.elements()[9].elements()));
    let calls = all.map(|entry| {
        let fields = entry.elements();
        let mut call: Vec<String> = fields[0].text().split('|').map(str::to_owned).collect();
        call.resize(fields[1].integer().unsigned_abs() as usize, "x".into());
        (fields[0].text(), call)
    });
    let mut calls: Vec<(String, Vec<String>)> = calls.filter(|(name, _)| !ALLOWED.contains(&name.as_str())).collect();
    for subcommand in ["sleep", "Digest", "nosuch"] {
        calls.push(("debug".into(), vec!["DEBUG".into(), subcommand.into()]));
        calls.push(("debug".into(), vec!["DEBUG".into(), subcommand.into(), "0".into()]));
    }
    for_each_backend(|backend| {
        let server = start(backend);
        let names: Vec<String> = server.connect().call("COMMAND LIST").elements().iter().map(Reply::text).collect();
        let (mut given, mut right) = (server.connect(), reference.connect());
        assert_eq!(given.call("SUBSCRIBE a"), right.call("SUBSCRIBE a"));
        for (_, call) in calls.iter().filter(|(name, _)| names.contains(name)) {
            assert_eq!(given.command(call), right.command(call), "{call:?}");
        }
    });
}

/// Commands that subscribers and monitors may not call are also rejected in a pipeline. With
/// `--execution owner`, this includes consecutive commands on one key, which are sent to the key's
/// worker together.
#[test]
fn subscribers_and_monitors_may_not_read_in_a_pipeline() {
    for_each_backend(|backend| {
        for execution in ["inline", "owner"] {
            let server = Server::pantala(backend, &[&SERVER_ARGS[..], &["--execution", execution]].concat());
            for (first, why) in [("SUBSCRIBE a", "are allowed in this context"), ("MONITOR", "ERR Replica can't")] {
                let mut client = server.connect();
                client.call(first);
                for reply in client.pipeline(&["a", "b", "c"].map(|key| vec!["GET", key])) {
                    assert!(reply.text().contains(why), "{execution}, {first}: {reply:?}");
                }
            }
        }
    });
}

/// A script publishes many short and long messages before its worker delivers the first one, on
/// channels with and without patterns. Subscribers receive the same messages as from redis-server.
#[test]
fn messages_of_a_long_script_arrive_as_from_redis() {
    const SCRIPT: &str = "for i = 1, 40000 do \
        local long = i % 997 == 0 and string.rep('x', 6000) or '' \
        redis.call('PUBLISH', i % 1000 < 900 and 'a' or 'b' .. i % 3, i .. long) \
        if i % 5 == 0 then redis.call('SPUBLISH', 'a', i) redis.call('PUBLISH', 'a', '') end \
        if i % 1001 == 0 then redis.call('PUBLISH', 'nobody' .. string.rep('y', i % 5000), i) end end \
        return redis.call('PUBLISH', 'a', 'end')";
    assert_as_redis(&["--client-output-buffer-limit", "pubsub 0 0 0"], |server, version| {
        let subscriptions: [(&[&str], usize); 3] = [
            (&["SUBSCRIBE a b0", "SSUBSCRIBE a"], 3),
            (&["PSUBSCRIBE b* a z?", "SUBSCRIBE a"], 4),
            (&["SUBSCRIBE b1 a"], 2),
        ];
        let mut listeners: Vec<Client> = subscriptions.iter().map(|_| server.connect()).collect();
        for (listener, (commands, replies)) in listeners.iter_mut().zip(subscriptions) {
            listener.call(&format!("HELLO {version}"));
            commands.iter().for_each(|words| listener.send(&words.split(' ').collect::<Vec<_>>()));
            (0..replies).for_each(|_| drop(listener.receive()));
        }
        let mut publisher = server.connect();
        let mut lines = vec![format!("{:?}", publisher.command(&["EVAL", SCRIPT, "0"]))];
        publisher.call("PUBLISH a last");
        for listener in &mut listeners {
            while !lines.last().expect("one was added").contains("last") {
                lines.push(listener.receive_raw().1.escape_ascii().to_string());
            }
            lines.push(String::new());
        }
        lines
    });
}

/// A client is a monitor and a subscriber. A message that a script publishes arrives between the
/// monitor's lines about the script's commands, in the right order.
#[test]
fn messages_of_a_long_script_do_not_overtake_others() {
    const MESSAGES: usize = 30_000;
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "1", "--client-output-buffer-limit", "pubsub 0 0 0"]);
        let mut listener = server.connect();
        listener.call("HELLO 3");
        listener.call("SUBSCRIBE c");
        assert_eq!(listener.call("MONITOR"), Reply::ok());
        let script = "for i = 1, ARGV[1] do redis.call('PUBLISH', 'c', i) redis.call('PUBLISH', 'c', '') end return 1";
        let mut publisher = server.connect();
        assert_eq!(publisher.command(&["EVAL", script, "0", &MESSAGES.to_string()]), Reply::Integer(1));
        let mut seen = (0, 0);
        while seen != (2 * MESSAGES, 2 * MESSAGES) {
            let (_, bytes) = listener.receive_raw();
            if bytes.starts_with(b">") {
                seen.1 += 1;
            } else if bytes.windows(4).any(|part| part == b" lua") {
                seen.0 += 1;
            }
            assert!(seen.0.abs_diff(seen.1) <= 1, "{} lines and {} messages", seen.0, seen.1);
        }
    });
}

/// A client publishes and unsubscribes in one write. It receives the messages first, and then the
/// reply to the unsubscription.
#[test]
fn a_client_that_unsubscribes_receives_earlier_messages() {
    let play = |server: &Server| {
        for (listens, commands) in [
            ("SUBSCRIBE c", ["PUBLISH c payload", "UNSUBSCRIBE c"]),
            ("SUBSCRIBE c", ["PUBLISH c payload", "UNSUBSCRIBE"]),
            ("SUBSCRIBE c", ["PUBLISH c payload", "RESET"]),
            ("SUBSCRIBE c", ["PUBLISH c payload", "QUIT"]),
            ("PSUBSCRIBE c*", ["PUBLISH c payload", "PUNSUBSCRIBE c*"]),
            ("SSUBSCRIBE c", ["SPUBLISH c payload", "SUNSUBSCRIBE c"]),
            ("MONITOR", ["ECHO payload", "RESET"]),
        ] {
            for round in 0..20 {
                let mut client = server.connect();
                client.call("HELLO 3");
                client.call(listens);
                let words = commands.map(|command| command.split(' ').collect::<Vec<_>>());
                client.send_together(&words);
                // The client receives the message and the reply to PUBLISH, in either order. Then
                // it receives the reply to the command that unsubscribes (RESET and QUIT reply with
                // one word).
                let replies: Vec<String> = (0..3).map(|_| format!("{:?}", client.receive())).collect();
                let has_payload = |reply: &String| {
                    reply.contains("payload") || reply.contains(&format!("{:?}", b"payload").replace(['[', ']'], ""))
                };
                // A monitor receives the text twice: in the line that shows the ECHO, and in the
                // reply to ECHO.
                let wanted = if listens == "MONITOR" { 2 } else { 1 };
                let count = replies[..2].iter().filter(|reply| has_payload(reply)).count();
                assert_eq!(count, wanted, "{listens}, {commands:?}, round {round}: {replies:?}");
                assert!(!has_payload(&replies[2]), "{listens}, {commands:?}, round {round}: {replies:?}");
            }
        }
    };
    if let Some(reference) = Server::redis(&[]) {
        play(&reference);
    }
    for_each_form(|backend, execution| {
        play(&Server::pantala(backend, &["--workers", "2", "--execution", execution]));
    });
}

/// Subscribers on every worker receive a connection's messages in order, and after the connection's
/// earlier writes have taken effect.
#[test]
fn messages_keep_their_order() {
    const MESSAGES: usize = 3000;
    for_each_backend(|backend| {
        let server = start(backend);
        let mut listeners: Vec<Client> = (0..6).map(|_| server.connect()).collect();
        for listener in &mut listeners {
            listener.call("SUBSCRIBE news");
        }
        let mut publisher = server.connect();
        await_listeners(&mut publisher, "news", 6);
        let mut reader = server.connect();
        let requests: Vec<u8> = (0..MESSAGES)
            .flat_map(|number| {
                let number = number.to_string();
                [encode(&["SET", "last", &number]), encode(&["PUBLISH", "news", &number])].concat()
            })
            .collect();
        publisher.send_raw(&requests);
        for number in 0..MESSAGES {
            for listener in &mut listeners {
                let expected = ["message", "news", &number.to_string()].map(Reply::bulk).to_vec();
                assert_eq!(listener.receive(), Reply::Array(expected));
            }
            if number % 100 == 0 {
                let last: usize = reader.call("GET last").text().parse().expect("a number");
                assert!(last >= number, "message {number} was received before its write: {last}");
            }
        }
        for _ in 0..MESSAGES {
            assert_eq!(publisher.receive(), Reply::ok());
            assert_eq!(publisher.receive(), Reply::Integer(6));
        }
    });
}

/// A transaction or script may deliver its messages before it ends. A client that reads the changed
/// keys after such a message must see all changes.
#[test]
fn a_message_of_a_transaction_implies_that_it_has_run() {
    const ROUNDS: usize = 200;
    const SCRIPT: &str =
        "redis.call('PUBLISH', 'news', ARGV[1]) for _, key in ipairs(KEYS) do redis.call('SET', key, ARGV[1]) end";
    // These keys are probably in several shards, so that some changes are made later than others.
    const KEYS: [&str; 4] = ["a", "b", "c", "d"];
    for_each_form(|backend, execution| {
        let server = Server::pantala(backend, &[&SERVER_ARGS[..], &["--execution", execution]].concat());
        for fault in ["pause-holding 500", "every-key-hot 1000"] {
            if server.connect().call(&format!("DEBUG FAULT {fault}")) != Reply::ok() {
                eprintln!("SKIPPED: {fault}: this build lacks fault injection");
            }
        }
        let (mut publisher, mut listener, mut reader) = (server.connect(), server.connect(), server.connect());
        listener.call("SUBSCRIBE news");
        for round in 0..ROUNDS {
            let number = round.to_string();
            // With the fault `every-key-hot`, these reads publish the values of the former round,
            // as if the keys were hot. The first read of each key takes the key's shard.
            for key in KEYS.iter().chain(&KEYS) {
                reader.call(&format!("GET {key}"));
            }
            let replies = if round % 2 == 0 {
                let sets = KEYS.map(|key| vec!["SET", key, &number]);
                let transaction = [&[vec!["MULTI"], vec!["PUBLISH", "news", &number]], &sets[..], &[vec!["EXEC"]]];
                publisher.send_together(&transaction.concat());
                3 + KEYS.len()
            } else {
                publisher.send(&[&["EVAL", SCRIPT, "4"], &KEYS[..], &[&number]].concat());
                1
            };
            assert_eq!(listener.receive(), Reply::Array(["message", "news", &number].map(Reply::bulk).to_vec()));
            // Reads in reverse order of the writes.
            for key in KEYS.iter().rev() {
                assert_eq!(reader.call(&format!("GET {key}")), Reply::bulk(&number), "round {round}");
            }
            for _ in 0..replies {
                publisher.receive();
            }
        }
    });
}

/// Messages are published in one write, on alternating and on equal channels. Subscribers of
/// channels and of patterns receive them in the same order as from redis-server.
#[test]
fn messages_of_one_write_keep_their_order() {
    const CHANNELS: [&str; 12] = ["a", "a", "a", "b", "a", "b", "b", "c", "c", "a", "a", "c"];
    let received = |server: &Server| -> Vec<Vec<Vec<u8>>> {
        // A subscription, the protocol version, and the number of messages.
        let listeners =
            [("SUBSCRIBE a", 2, 6), ("SUBSCRIBE a b", 3, 9), ("PSUBSCRIBE c*", 2, 3), ("SUBSCRIBE a c", 2, 9)];
        let mut clients: Vec<(Client, usize)> = listeners
            .iter()
            .map(|(command, version, count)| {
                let mut client = server.connect();
                client.call(&format!("HELLO {version}"));
                client.call(command);
                for _ in 2..command.split(' ').count() {
                    client.receive();
                }
                (client, *count)
            })
            .collect();
        let mut publisher = server.connect();
        let requests = (0..).zip(CHANNELS).flat_map(|(at, channel)| encode(&["PUBLISH", channel, &at.to_string()]));
        publisher.send_raw(&requests.collect::<Vec<u8>>());
        let mut received: Vec<Vec<Vec<u8>>> =
            clients.iter_mut().map(|(client, count)| (0..*count).map(|_| client.receive_raw().1).collect()).collect();
        received.push(CHANNELS.iter().map(|_| publisher.receive_raw().1).collect());
        received
    };
    let Some(redis) = Server::redis(&[]) else { return };
    let expected = received(&redis);
    for_each_backend(|backend| {
        let server = start(backend);
        for _ in 0..10 {
            assert_eq!(received(&server), expected);
            let mut client = server.connect();
            ["a", "b", "c"].iter().for_each(|channel| await_listeners(&mut client, channel, 0));
            let deadline = Instant::now() + PATIENCE;
            while client.call("PUBSUB NUMPAT") != Reply::Integer(0) {
                assert!(Instant::now() < deadline, "a pattern still has subscribers");
            }
        }
    });
}

/// All subscribers of a channel, and of patterns that match it, receive the messages of all
/// publishers in the same order.
#[test]
fn all_subscribers_receive_a_channel_in_one_order() {
    const PUBLISHERS: usize = 4;
    const MESSAGES: usize = 4000;
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "4"]);
        let mut listeners: Vec<Client> = (0..8).map(|_| server.connect()).collect();
        for (number, listener) in listeners.iter_mut().enumerate() {
            listener.call(if number % 2 == 0 { "SUBSCRIBE news" } else { "PSUBSCRIBE ne*" });
        }
        await_listeners(&mut server.connect(), "news", 4);
        let received: Vec<Vec<String>> = std::thread::scope(|scope| {
            for publisher in 0..PUBLISHERS {
                let mut client = server.connect();
                scope.spawn(move || {
                    for part in (0..MESSAGES).collect::<Vec<_>>().chunks(20) {
                        let publish = |number| encode(&["PUBLISH", "news", &format!("{publisher} {number}")]);
                        client.send_raw(&part.iter().flat_map(publish).collect::<Vec<u8>>());
                        part.iter().for_each(|_| assert_eq!(client.receive(), Reply::Integer(8)));
                    }
                });
            }
            let threads: Vec<_> = listeners
                .iter_mut()
                .map(|listener| {
                    scope.spawn(|| {
                        let text = |reply| match reply {
                            Reply::Array(parts) => parts.last().expect("a message has a text").text(),
                            other => panic!("{other:?}"),
                        };
                        (0..PUBLISHERS * MESSAGES).map(|_| text(listener.receive())).collect()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("a listener")).collect()
        });
        for (number, other) in received.iter().enumerate() {
            let differs = received[0].iter().zip(other).position(|(one, two)| one != two);
            assert_eq!(differs, None, "listener {number} received a different order");
        }
    });
}

#[test]
fn subscriptions_of_disconnected_clients_are_removed() {
    const CHANNELS: usize = 100_000;
    for_each_backend(|backend| {
        let mut server = start(backend);
        let mut client = server.connect();
        let channels: Vec<String> = (0..CHANNELS).map(|number| format!("channel:{number}")).collect();
        // The last two subscribers disconnect without reading their confirmations.
        for reads in [true, false, false] {
            let mut listener = server.connect();
            let words: Vec<&str> = std::iter::once("SUBSCRIBE").chain(channels.iter().map(String::as_str)).collect();
            listener.send(&words);
            listener.send(&["PSUBSCRIBE", "p*"]);
            listener.send(&["SSUBSCRIBE", "shard"]);
            if reads {
                (0..channels.len() + 2).for_each(|_| drop(listener.receive()));
            }
        }
        let deadline = Instant::now() + PATIENCE;
        let nothing = Reply::Array(Vec::new());
        while client.call("PUBSUB CHANNELS") != nothing
            || client.call("PUBSUB NUMPAT") != Reply::Integer(0)
            || client.call("PUBSUB SHARDCHANNELS") != nothing
        {
            let left = client.call("PUBSUB CHANNELS");
            assert!(Instant::now() < deadline, "{} channels still exist", left.elements().len());
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(client.call("PUBLISH channel:1 x"), Reply::Integer(0));
        server.assert_sound();
    });
}

/// Unsubscribing a client from very many patterns is quick, by any form of the command and by
/// disconnecting. No other client is delayed, not even on the same worker.
#[test]
fn very_many_patterns_are_unsubscribed_quickly() {
    const PATTERNS: usize = 100_000;
    /// Patterns per command.
    const TOGETHER: usize = 1000;
    /// Maximum CPU time. Even a debug build needs much less, but unsubscriptions that each scan all
    /// patterns would need much more.
    const SOON: Duration = Duration::from_secs(5);
    let patterns: Vec<String> = (0..PATTERNS).map(|number| format!("pattern:{number}:*")).collect();
    let exchange = |client: &mut Client, verb: &str, together: usize| {
        for part in patterns.chunks(TOGETHER) {
            let command =
                |names: &[String]| encode(&[&[verb], &*names.iter().map(String::as_str).collect::<Vec<_>>()].concat());
            client.send_raw(&part.chunks(together).flat_map(command).collect::<Vec<u8>>());
            part.iter().for_each(|_| drop(client.receive_raw()));
        }
    };
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "1"]);
        let mut other = server.connect();
        for way in ["one by one", "together", "all", "close"] {
            let mut listener = server.connect();
            let before = server.cpu_time();
            exchange(&mut listener, "PSUBSCRIBE", TOGETHER);
            let subscribed = server.cpu_time() - before;
            assert_eq!(other.call("PUBSUB NUMPAT"), Reply::Integer(PATTERNS as i64));
            assert_eq!(other.call("PUBLISH pattern:7:x y"), Reply::Integer(1));
            assert_eq!(listener.receive().elements()[1].text(), "pattern:7:*");
            let before = server.cpu_time();
            match way {
                "one by one" => exchange(&mut listener, "PUNSUBSCRIBE", 1),
                "together" => exchange(&mut listener, "PUNSUBSCRIBE", TOGETHER),
                "all" => {
                    listener.send(&["PUNSUBSCRIBE"]);
                    (0..PATTERNS).for_each(|_| drop(listener.receive_raw()));
                }
                _ => drop(listener),
            }
            while other.call("PUBSUB NUMPAT") != Reply::Integer(0) {
                assert!(server.cpu_time() - before < SOON, "{way}: unsubscribing takes too long");
            }
            let left = server.cpu_time() - before;
            println!("{backend:?}: {PATTERNS} patterns in {subscribed:?}, left {way} in {left:?}");
            assert!(subscribed < SOON && left < SOON, "{way}: {subscribed:?} to subscribe, {left:?} to unsubscribe");
        }
        server.assert_sound();
    });
}

/// A subscriber that doesn't read is closed at the limit of its class. Other subscribers receive
/// all messages.
#[test]
fn a_silent_listener_is_closed_at_its_limit() {
    for_each_backend(|backend| {
        let args = ["--workers", "2", "--client-output-buffer-limit", "pubsub 4mb 0 0"];
        let mut server = Server::pantala(backend, &args);
        let (mut silent, mut good, mut publisher) = (server.connect(), server.connect(), server.connect());
        silent.call("SUBSCRIBE news");
        good.call("SUBSCRIBE news");
        await_listeners(&mut publisher, "news", 2);
        let payload = "x".repeat(1 << 20);
        for number in 0..40 {
            assert!(!publisher.command(&["PUBLISH", "news", &payload]).is_error());
            let Reply::Array(parts) = good.receive() else { panic!("no message {number}") };
            assert_eq!(parts[2].text().len(), payload.len());
        }
        await_listeners(&mut publisher, "news", 1);
        server.assert_sound();
    });
}

#[test]
fn client_list_shows_subscriptions() {
    for_each_backend(|backend| {
        let server = start(backend);
        let (mut listener, mut client) = (server.connect(), server.connect());
        listener.call("CLIENT SETNAME ear");
        listener.send(&["SUBSCRIBE", "a", "b"]);
        (0..2).for_each(|_| drop(listener.receive()));
        listener.call("PSUBSCRIBE p");
        listener.call("SSUBSCRIBE s");
        let list = client.call("CLIENT LIST TYPE pubsub").text();
        assert_eq!(list.lines().count(), 1, "{list}");
        assert!(
            list.contains("name=ear") && list.contains(" flags=P ") && list.contains(" sub=2 psub=1 ssub=1 "),
            "{list}"
        );
        assert_eq!(client.call("CLIENT KILL TYPE pubsub"), Reply::Integer(1));
        assert!(listener.ends_within(PATIENCE));
    });
}

/// While clients subscribe, the count in the reply to `PUBLISH` is at least the number of confirmed
/// subscriptions, and at most the number of requested ones. A subscriber that has received one
/// message receives every later message.
#[test]
fn publish_counts_confirmed_subscribers() {
    const LISTENERS: usize = 60;
    for_each_backend(|backend| {
        let server = start(backend);
        let (requested, confirmed) = (AtomicI64::new(0), AtomicI64::new(0));
        std::thread::scope(|scope| {
            let listeners: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        let listen = |_| {
                            let mut client = server.connect();
                            requested.fetch_add(1, SeqCst);
                            client.call("SUBSCRIBE news");
                            confirmed.fetch_add(1, SeqCst);
                            client
                        };
                        (0..LISTENERS / 3).map(listen).collect::<Vec<Client>>()
                    })
                })
                .collect();
            let mut publisher = server.connect();
            let (mut number, mut last) = (0, 0);
            while last < LISTENERS as i64 {
                let least = confirmed.load(SeqCst);
                let count = publisher.command(&["PUBLISH", "news", &number.to_string()]).integer();
                let most = requested.load(SeqCst);
                assert!((least.max(last)..=most).contains(&count), "{count} of {least} to {most}, {last} before");
                (number, last) = (number + 1, count);
            }
            for mut client in listeners.into_iter().flat_map(|thread| thread.join().expect("they listen")) {
                let mut received = Vec::new();
                while received.last() != Some(&(number - 1)) {
                    received.push(client.receive().elements()[2].text().parse::<i64>().expect("a number"));
                }
                assert!(received.windows(2).all(|two| two[0] + 1 == two[1]), "{received:?}");
            }
        });
    });
}

/// Runs a pipeline and returns all bytes of its replies.
fn replies(client: &mut Client, commands: &[&str], count: usize) -> Vec<String> {
    let bytes: Vec<u8> = commands.iter().flat_map(|command| encode(&command.split(' ').collect::<Vec<_>>())).collect();
    client
        .exchange(&bytes, count)
        .into_iter()
        .map(|(_, raw)| String::from_utf8_lossy(&raw).replace("\r\n", " "))
        .collect()
}

/// The messages that a transaction publishes to its own client follow the reply to EXEC, as in
/// Redis since 7.2. Redis 7.0 writes these messages into the reply.
#[test]
fn a_transaction_that_unsubscribes_receives_its_own_messages() {
    const PUBLISH: &str = "PUBLISH c x";
    const SCRIPT: &str = "EVAL return(redis.call('publish','c','x')) 0";
    for_each_backend(|backend| {
        let server = start(backend);
        server.connect().call("CONFIG SET notify-keyspace-events KEA");
        let message = "$7 message $1 c $1 x ";
        for (listen, publish, leave, message) in [
            ("SUBSCRIBE c", PUBLISH, "UNSUBSCRIBE c", message),
            ("SUBSCRIBE c", PUBLISH, "UNSUBSCRIBE", message),
            ("SUBSCRIBE c", SCRIPT, "UNSUBSCRIBE c", message),
            ("PSUBSCRIBE c*", PUBLISH, "PUNSUBSCRIBE c*", "$8 pmessage $2 c* $1 c $1 x "),
            ("SUBSCRIBE __keyspace@0__:k", "SET k v", "UNSUBSCRIBE", "$7 message $16 __keyspace@0__:k $3 set "),
        ] {
            for version in [2, 3] {
                let mut client = server.connect();
                client.call(&format!("HELLO {version}"));
                let commands = ["MULTI", listen, publish, leave, "EXEC", "PING"];
                let got = replies(&mut client, &commands, commands.len() + 1);
                assert!(got[4].starts_with("*3 ") && !got[4].contains("message"), "{commands:?}: {got:?}");
                let parts = if message.contains("pmessage") { 4 } else { 3 };
                let kind = if version == 2 { '*' } else { '>' };
                assert_eq!(got[5..], [format!("{kind}{parts} {message}"), "+PONG ".to_owned()], "{commands:?}");
            }
        }
        // A transaction may not subscribe to a shard channel, but may unsubscribe from one.
        let mut client = server.connect();
        client.call("HELLO 3");
        let commands = ["SSUBSCRIBE c", "MULTI", "SPUBLISH c x", "SUNSUBSCRIBE c", "EXEC", "PING"];
        let got = replies(&mut client, &commands, 7);
        assert_eq!(got[4..], ["*2 :1 >3 $12 sunsubscribe $1 c :0 ", ">3 $8 smessage $1 c $1 x ", "+PONG "]);
        // With replies off, confirmations and messages are still sent, because they aren't replies.
        let commands =
            ["CLIENT REPLY OFF", "MULTI", "SUBSCRIBE c", PUBLISH, "UNSUBSCRIBE c", "EXEC", "CLIENT REPLY ON"];
        let got = replies(&mut client, &commands, 4);
        assert_eq!(got[2..], [">3 $7 message $1 c $1 x ", "+OK "]);
    });
}

/// If the messages of a transaction to its own client exceed the client's limit, the transaction
/// runs to its end before the client is closed.
#[test]
fn a_transaction_whose_messages_exceed_the_limit_runs_to_its_end() {
    for_each_backend(|backend| {
        let server = start(backend);
        let mut other = server.connect();
        other.command(&["CONFIG", "SET", "client-output-buffer-limit", "pubsub 65536 0 0"]);
        let mut client = server.connect();
        let (payload, counted) = ("x".repeat(50_000), "INCR n");
        let publish = format!("PUBLISH c {payload}");
        let commands =
            ["MULTI", "SUBSCRIBE c", &publish, &publish, &publish, "UNSUBSCRIBE c", "SUBSCRIBE d", counted, "EXEC"];
        let bytes: Vec<u8> =
            commands.iter().flat_map(|command| encode(&command.split(' ').collect::<Vec<_>>())).collect();
        client.send_raw(&bytes);
        assert!(client.ends_within(PATIENCE));
        assert_eq!(other.call("GET n"), Reply::bulk("1"));
    });
}

/// Once a client has received the confirmation of its subscription, every later command of any
/// connection takes the subscription into account, on all workers.
#[test]
fn confirmed_subscriptions_are_seen_everywhere() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "4", "--shards", "8"]);
        let mut others: Vec<Client> = (0..8).map(|_| server.connect()).collect();
        let mut subscribers: Vec<Client> = (0..8).map(|_| server.connect()).collect();
        for round in 0..50 {
            let channel = format!("c{round}");
            for (count, subscriber) in (1..).zip(&mut subscribers) {
                subscriber.command(&["SUBSCRIBE", &channel]);
                let other = &mut others[(round + count) % 8];
                assert_eq!(other.command(&["PUBLISH", &channel, "m"]), Reply::Integer(count as i64), "{channel}");
                let other = &mut others[(round + 3 * count) % 8];
                let numsub = other.command(&["PUBSUB", "NUMSUB", &channel]);
                assert_eq!(numsub.elements()[1], Reply::Integer(count as i64), "{channel}");
                assert_eq!(other.command(&["PUBSUB", "CHANNELS", &channel]).elements().len(), 1);
                let listed = other.command(&["CLIENT", "LIST", "TYPE", "PUBSUB"]).text();
                let subscribed = format!(" sub={} ", round + 1);
                assert_eq!(listed.matches(&subscribed).count(), count, "{channel}: {listed}");
                // The subscriber must receive the message that was published above.
                assert_eq!(subscriber.receive().elements()[2].text(), "m");
            }
            for (earlier, subscriber) in subscribers.iter_mut().rev().enumerate() {
                (0..earlier).for_each(|_| assert_eq!(subscriber.receive().elements()[2].text(), "m"));
            }
        }
    });
}

/// A subscription doesn't receive messages that were published before it. This also holds for
/// messages that its own connection published, in the same pipeline or transaction.
#[test]
fn a_subscription_receives_no_earlier_message_of_its_connection() {
    for_each_backend(|backend| {
        // With one worker, the message for the other subscriber is already queued in that worker's
        // mailbox when the client subscribes.
        let server = Server::pantala(backend, &["--workers", "1"]);
        let (mut other, mut publisher) = (server.connect(), server.connect());
        other.call("SUBSCRIBE c");
        let words = |commands: &[&str]| -> Vec<Vec<String>> {
            commands.iter().map(|command| command.split(' ').map(str::to_owned).collect()).collect()
        };
        let message = |text: &str| Reply::Array(["message", "c", text].map(Reply::bulk).to_vec());
        for (commands, replies) in [
            (&["PUBLISH c early", "SUBSCRIBE c"][..], 2),
            (&["MULTI", "PUBLISH c early", "SUBSCRIBE c", "EXEC"], 4),
            (&["PUBLISH c early", "MULTI", "SUBSCRIBE c", "EXEC"], 4),
        ] {
            let mut client = server.connect();
            client.send_together(&words(commands));
            (0..replies).for_each(|_| _ = client.receive());
            publisher.call("PUBLISH c late");
            assert_eq!(client.receive(), message("late"), "{commands:?}");
            assert_eq!([other.receive(), other.receive()], ["early", "late"].map(message));
        }
    });
}

/// A pipeline consists of a script, a `SUBSCRIBE` and another script. The client receives the
/// replies to all three, and the message that each script publishes.
#[test]
fn a_subscription_between_two_scripts_of_a_pipeline() {
    const SCRIPT: &str = "redis.call('publish', 'c', ARGV[1])
        local now = function() local time = redis.call('time') return time[1] * 1000000 + time[2] end
        local ends = now() + 5000
        repeat until now() > ends
        return ARGV[1]";
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "1"]);
        let mut client = server.connect();
        client.call("HELLO 3");
        client.call("SUBSCRIBE c");
        let words = |words: &[&str]| -> Vec<String> { words.iter().map(|&word| word.to_owned()).collect() };
        let message = |text: &str| Reply::Push(["message", "c", text].map(Reply::bulk).to_vec());
        let subscribed = Reply::Push(vec![Reply::bulk("subscribe"), Reply::bulk("d"), Reply::Integer(2)]);
        let expected = [Reply::bulk("first"), message("first"), subscribed, Reply::bulk("second"), message("second")];
        for round in 0..5 {
            client.send_together(&[
                words(&["EVAL", SCRIPT, "0", "first"]),
                words(&["SUBSCRIBE", "d"]),
                words(&["EVAL", SCRIPT, "0", "second"]),
            ]);
            let received = expected.each_ref().map(|_| client.receive());
            assert!(expected.iter().all(|reply| received.contains(reply)), "round {round}: {received:?}");
        }
    });
}

/// Commands that arrive on several connections of one worker run in the order in which they arrive.
/// Tests of client libraries depend on this order: they send a command on one connection, and
/// another command on a second connection before they have read the first reply.
#[test]
fn commands_of_one_workers_connections_run_in_order() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "3", "--packed-connections", "8"]);
        let (mut first, mut second) = (server.connect(), server.connect());
        first.call("HELLO 3");
        for number in 0..300 {
            first.send_raw(format!("SUBSCRIBE c{number}\r\n").as_bytes());
            assert_eq!(second.call(&format!("PUBLISH c{number} x")), Reply::Integer(1), "PUBLISH {number}");
            first.receive();
            first.receive();
            first.send_raw(format!("SET k{number} x\r\n").as_bytes());
            assert_eq!(second.call(&format!("GET k{number}")), Reply::bulk("x"), "GET {number}");
            first.receive();
        }
    });
}
