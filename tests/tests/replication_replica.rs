//! Pantala as a replica of redis-server: it has the same dataset, continues after a broken link,
//! and treats its clients as Redis's replicas do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pantala_tests::effects::wait_for_expiry;
use pantala_tests::following::{PRIMARY, assert_same, follow, info, wait_for_link, wait_until_applied};
use pantala_tests::generator::Generator;
use pantala_tests::waiting::{PATIENCE, eventually, waiting};
use pantala_tests::{Backend, Client, Random, Reply, Server, for_each_backend};

/// Number of random commands that a primary runs while the replica follows it.
const COMMANDS: usize = 6_000;

const READ_ONLY: &str = "READONLY You can't write against a read only replica.";

/// Arguments of a replica.
const REPLICA: [&str; 4] = ["--workers", "2", "--shards", "12"];

fn now_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

/// Stops the writers of a scenario when it is dropped, so that they also stop if the scenario
/// fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn error(text: &str) -> Reply {
    Reply::Error(text.to_owned())
}

/// Sends random commands of all types and ignores the replies. Leaves out two kinds of commands:
/// - `CONFIG`: it would change the limits of encodings on one server only. Replica and primary must
///   use the same encodings, because a listpack loses the sign of the score -0.
/// - `BITFIELD … OVERFLOW FAIL`: redis-server 7.0 does not propagate this command if its only
///   change is a longer string.
fn write_randomly(server: &Server, seed: u64, commands: usize) {
    let mut generator = Generator::new(seed, now_s());
    let mut clients: Vec<Client> = (0..pantala_tests::generator::CONNECTIONS).map(|_| server.connect()).collect();
    for _ in 0..commands {
        let step = generator.step();
        let is = |at: usize, word: &[u8]| step.args[at].eq_ignore_ascii_case(word);
        let is_unsafe = is(0, b"BITFIELD") && (0..step.args.len()).any(|at| is(at, b"FAIL"));
        if !is(0, b"CONFIG") && !is_unsafe {
            clients[step.connection].command(&step.args);
        }
    }
}

/// Increments several keys, in transactions and scripts. If the replica applies a command twice or
/// not at all, the datasets differ.
fn count(server: &Server, is_over: &AtomicBool, number: usize) {
    let mut client = server.connect();
    let mut round = 0;
    while !is_over.load(Ordering::Relaxed) {
        round += 1;
        client.call(&format!("SELECT {}", round % 3));
        client.call(&format!("INCR count:{number}"));
        client.call("MULTI");
        client.call(&format!("INCR a:{}", round % 7));
        client.call(&format!("RPUSH list:{number} {round}"));
        client.call("EXEC");
        client.command(&["EVAL", "redis.call('incr', KEYS[1]) redis.call('incr', KEYS[2])", "2", "x", "y"]);
        client.call(&format!("SET t:{number}:{round} 1 PX {}", round % 50 + 1));
    }
}

/// A replica applies its primary's commands without the permissions of its default user.
#[test]
fn a_replica_with_a_restricted_default_user_follows() {
    for_each_backend(|backend| {
        let primary = Server::pantala(backend, &REPLICA);
        let replica = Server::pantala(backend, &REPLICA);
        follow(&replica, &primary);
        let mut client = replica.connect();
        assert_eq!(client.call("ACL SETUSER default resetkeys -@all +ping +info +debug +acl"), Reply::ok());
        for number in 0..50 {
            primary.connect().call(&format!("MSET a:{number} 1 b:{number} 2"));
            primary.connect().call(&format!("SET c:{number} 3"));
        }
        wait_until_applied(&replica, &primary);
        assert_same(&replica, &primary);
    });
}

#[test]
fn a_replica_of_redis_holds_what_its_primary_holds() {
    let test = "a_replica_of_redis_holds_what_its_primary_holds";
    let announced = Random::seed(test);
    for_each_backend(|backend| {
        let Some(primary) = Server::redis(&PRIMARY) else { return };
        let seed = Random::seed_of(announced, &format!("{test} on {}", backend.name()));
        write_randomly(&primary, seed, COMMANDS);
        let mut replica = Server::pantala(backend, &REPLICA);
        replica.connect().call("SET own 1");
        follow(&replica, &primary);
        assert_same(&replica, &primary);
        assert_eq!(replica.connect().call("GET own"), Reply::Null, "its own keys are deleted");
        write_randomly(&primary, seed + 1, COMMANDS);
        let mut client = primary.connect();
        for words in ["SELECT 2", "FLUSHDB", "SELECT 0", "SET a 1", "SWAPDB 0 1", "FUNCTION FLUSH"] {
            client.call(words);
        }
        let function = "function_name='f', callback=function() return 7 end, flags={'no-writes'}";
        client.command(&["FUNCTION", "LOAD", &format!("#!lua name=lib\nredis.register_function{{{function}}}")]);
        assert_same(&replica, &primary);
        assert_eq!(replica.connect().call("FCALL f 0"), Reply::Integer(7));
        assert_eq!(info(&primary, "stats", "sync_full"), "1");
        client.call("FLUSHALL");
        assert_same(&replica, &primary);
        replica.assert_sound();
    });
}

#[test]
fn a_lost_link_resumes_at_its_offset() {
    for_each_backend(|backend| {
        let Some(primary) = Server::redis(&PRIMARY) else { return };
        let mut replica = Server::pantala(backend, &REPLICA);
        follow(&replica, &primary);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (primary, is_over) = (&primary, &is_over);
            let _end = End(is_over);
            (0..3).for_each(|number| _ = scope.spawn(move || count(primary, is_over, number)));
            for round in 0..8 {
                let links = info(primary, "stats", "sync_partial_ok");
                let (server, kind) = if round % 2 == 0 { (&replica, "master") } else { (primary, "replica") };
                let mut client = server.connect();
                eventually("there is a link to close", || {
                    client.call(&format!("CLIENT KILL TYPE {kind}")) == Reply::Integer(1)
                });
                eventually("the link is up again", || info(primary, "stats", "sync_partial_ok") != links);
            }
        });
        wait_for_expiry(&primary);
        assert_same(&replica, &primary);
        assert_eq!(info(&primary, "stats", "sync_full"), "1", "all others were partial");
        replica.assert_sound();
    });
}

#[test]
fn a_primary_that_restarts_empty_is_followed_again() {
    for_each_backend(|backend| {
        let Some(primary) = Server::redis(&PRIMARY) else { return };
        let replica = Server::pantala(backend, &REPLICA);
        primary.connect().call("SET a 1");
        follow(&replica, &primary);
        wait_until_applied(&replica, &primary);
        let id = info(&replica, "replication", "master_replid");
        // The primary restarts, so the connection breaks without a reply.
        let mut client = primary.connect();
        client.send(&["DEBUG", "RESTART"]);
        client.read_to_end();
        eventually("another history is followed", || {
            info(&replica, "replication", "master_link_status") == "up"
                && info(&replica, "replication", "master_replid") != id
        });
        primary.connect().call("SET b 2");
        assert_same(&replica, &primary);
        let mut client = replica.connect();
        assert_eq!((client.call("GET a"), client.call("GET b")), (Reply::Null, Reply::bulk("2")));
    });
}

#[test]
fn credentials_are_those_of_the_settings() {
    let Some(primary) = Server::redis(&[&PRIMARY[..], &["--requirepass", "secret"]].concat()) else { return };
    let replica = Server::pantala(Backend::all()[0], &["--masterauth", "wrong"]);
    let mut client = replica.connect();
    client.call(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    eventually("the password is rejected", || replica.log().contains("Unable to AUTH to MASTER: -WRONGPASS"));
    assert_eq!(info(&replica, "replication", "master_link_status"), "down");
    client.call("CONFIG SET masterauth secret");
    wait_for_link(&replica);
    let mut admin = primary.connect();
    admin.call("AUTH secret");
    admin.call("ACL SETUSER syncer on >other +psync +replconf +ping");
    client.call("CONFIG SET masteruser syncer masterauth other");
    client.call("CLIENT KILL TYPE master");
    eventually("the user has changed", || admin.call("CLIENT LIST TYPE replica").text().contains("user=syncer"));
}

#[test]
fn clients_of_a_replica_may_not_write() {
    for_each_backend(|backend| {
        let Some(primary) = Server::redis(&PRIMARY) else { return };
        let mut replica = Server::pantala(backend, &REPLICA);
        let mut client = replica.connect();
        client.call("SET before 1");
        primary.connect().call("SET a 1");
        let reference = Server::redis(&[]).expect("redis-server is installed");
        let is_same = |words: &[&str]| {
            let (given, right) = (replica.connect().command(words), reference.connect().command(words));
            assert_eq!(given, right, "{words:?}");
            given
        };
        follow(&replica, &primary);
        follow(&reference, &primary);
        wait_until_applied(&replica, &primary);
        for words in [
            &["SET", "a", "2"][..],
            &["DEL", "a"],
            &["BLPOP", "l", "0"],
            &["FLUSHALL"],
            &["EVAL", "return redis.pcall('set', 'a', 2)", "0"],
            &["EVAL", "#!lua\nreturn redis.call('set', 'a', 2)", "0"],
            &["EVAL", "return redis.call('get', 'a')", "0"],
            &["EVAL", "#!lua flags=no-writes\nreturn redis.call('get', 'a')", "0"],
            &["EVAL_RO", "return redis.call('get', 'a')", "0"],
            &["FUNCTION", "FLUSH"],
            &["PUBLISH", "channel", "message"],
            &["GET", "a"],
            &["XREAD", "STREAMS", "s", "0"],
            &["GETEX", "a"],
            &["PFCOUNT", "h"],
            &["SORT", "l"],
            &["SORT_RO", "l"],
        ] {
            is_same(words);
        }
        assert_eq!(client.call("SET a 2"), error(READ_ONLY));
        // In a pipeline of reads and writes, only the writes are rejected.
        let pipeline: Vec<Vec<&str>> =
            ["GET a", "SET a 2", "GET a", "INCR a", "GET a"].map(|it| it.split(' ').collect()).into();
        let one = Reply::bulk("1");
        let replies = [one.clone(), error(READ_ONLY), one.clone(), error(READ_ONLY), one];
        assert_eq!(client.pipeline(&pipeline), replies);
        // A transaction is rejected when a write is queued. If the write was queued before the
        // server became a replica, EXEC is rejected.
        client.call("MULTI");
        assert_eq!(client.call("INCR a"), error(READ_ONLY));
        assert!(client.call("EXEC").text().starts_with("EXECABORT"));
        client.call("REPLICAOF NO ONE");
        client.call("MULTI");
        client.call("INCR a");
        follow(&replica, &primary);
        let aborted = format!("EXECABORT Transaction discarded because of: {READ_ONLY}");
        assert_eq!(client.call("EXEC"), error(&aborted));
        // With `replica-read-only no`, a replica accepts writes of clients. The next full sync
        // would discard these writes.
        client.call("CONFIG SET replica-read-only no");
        assert_eq!(client.call("SET local 1"), Reply::ok());
        client.call("CONFIG SET replica-read-only yes");
        assert_eq!(client.call("SET local 2"), error(READ_ONLY));
        assert_eq!(client.call("GET local"), Reply::bulk("1"));
        assert_same_role(&mut client);
        replica.assert_sound();
    });
}

fn assert_same_role(client: &mut Client) {
    let hello = client.call("HELLO 2");
    let words: Vec<String> =
        hello.elements().iter().filter(|it| matches!(it, Reply::Bulk(_))).map(Reply::text).collect();
    let at = words.iter().position(|word| word == "role").expect("a role");
    assert_eq!(words[at + 1], "replica");
}

#[test]
fn keys_expire_when_the_primary_says_so() {
    for_each_backend(|backend| {
        let Some(primary) = Server::redis(&PRIMARY) else { return };
        let replica = Server::pantala(backend, &REPLICA);
        follow(&replica, &primary);
        let (mut client, mut writer) = (replica.connect(), primary.connect());
        writer.call("DEBUG SET-ACTIVE-EXPIRE 0");
        writer.call("SET short 1 PX 30");
        writer.call("RPUSH list a");
        writer.call("PEXPIRE list 30");
        writer.call("SADD set a b");
        writer.call("PEXPIRE set 30");
        wait_until_applied(&replica, &primary);
        eventually("the keys have expired", || client.call("EXISTS short list set") == Reply::Integer(0));
        let nothing = ["GET short", "TTL short", "TYPE list", "LRANGE list 0 -1", "SMEMBERS set", "SUNION set none"];
        for words in nothing {
            let reply = client.call(words);
            let is_nothing = match &reply {
                Reply::Array(all) => all.is_empty(),
                reply => matches!(reply, Reply::Null | Reply::Integer(-2)) || reply.text() == "none",
            };
            assert!(is_nothing, "{words}: {reply:?}");
        }
        assert_eq!(client.call("SCAN 0 COUNT 1000").elements()[1].elements().len(), 0);
        assert_eq!(client.call("DBSIZE"), Reply::Integer(3), "they are hidden, not deleted");
        // On the primary, active expiry is off. So the expired keys are deleted when commands
        // access them, and these deletions are propagated to the replica.
        writer.call("PERSIST none");
        eventually("the primary's clock has reached the time of each key", || {
            writer.call("EXISTS short list set") == Reply::Integer(0)
        });
        assert_same(&replica, &primary);
        assert_eq!(client.call("DBSIZE"), Reply::Integer(0));
    });
}

/// After an idle time, a write is sent to the replica at once. The test takes the shortest time of
/// many rounds, because a busy host delays some of them.
#[test]
fn a_write_after_a_pause_reaches_the_replica_at_once() {
    const ROUNDS: usize = 100;
    const PAUSE: Duration = Duration::from_millis(5);
    // Minimum time between two sends of the stream.
    const SPACING: Duration = Duration::from_millis(1);
    for_each_backend(|backend| {
        let (primary, replica) = (Server::pantala(backend, &PRIMARY), Server::pantala(backend, &REPLICA));
        follow(&replica, &primary);
        let (mut writer, mut reader) = (primary.connect(), replica.connect());
        let round = |number: usize| {
            std::thread::sleep(PAUSE);
            assert_eq!(writer.call(&format!("SET key {number}")), Reply::ok());
            let began = Instant::now();
            while reader.call("GET key") != Reply::bulk(number.to_string()) {
                assert!(began.elapsed() < PATIENCE, "the write does not arrive");
            }
            began.elapsed()
        };
        let shortest = (0..ROUNDS).map(round).min();
        assert!(shortest < Some(SPACING), "{shortest:?}");
    });
}

/// A command that fails on the replica is logged, and the stream continues.
#[test]
fn a_command_that_fails_does_not_end_the_link() {
    for_each_backend(|backend| {
        let primary = Server::pantala(backend, &PRIMARY);
        let replica = Server::pantala(backend, &REPLICA);
        follow(&replica, &primary);
        let mut writer = primary.connect();
        assert_eq!(writer.call("DEBUG REPLICATE fake-command-1 a"), Reply::ok());
        assert_eq!(writer.call("SET key value"), Reply::ok());
        wait_until_applied(&replica, &primary);
        eventually("the later command has arrived", || replica.connect().call("GET key").text() == "value");
        let log = replica.log();
        assert_eq!(log.matches("== CRITICAL ==").count(), 1, "{log}");
        assert!(log.contains("fake-command-1"), "{log}");
    });
}

/// On a writable replica, a key whose TTL was set by a client of the replica expires, even without
/// access. A key whose TTL came from the primary doesn't expire there, even if a client of the
/// replica has modified the key.
#[test]
fn a_writable_replica_expires_its_own_keys() {
    for_each_backend(|backend| {
        let Some(primary) = Server::redis(&PRIMARY) else { return };
        let mut replica = Server::pantala(backend, &[&REPLICA[..], &["--appendonly", "yes"]].concat());
        let reference = Server::redis(&[]).expect("redis-server is installed");
        let mut writer = primary.connect();
        writer.call("DEBUG SET-ACTIVE-EXPIRE 0");
        writer.call("SET loaded 1 PX 300");
        for server in [&replica, &reference] {
            server.connect().call("CONFIG SET replica-read-only no");
            server.connect().call("CONFIG SET notify-keyspace-events Ex");
            follow(server, &primary);
        }
        let mut events: Vec<Client> = [&replica, &reference].map(Server::connect).into();
        events.iter_mut().for_each(|client| _ = client.call("PSUBSCRIBE __keyevent@*__:expired"));
        let both = |words: &str| {
            let replies = [&replica, &reference].map(|server| server.connect().call(words));
            assert_eq!(replies[0], replies[1], "{words}");
            replies[0].clone()
        };
        writer.call("SET theirs 1 PX 300");
        writer.call("SET shared 1");
        wait_until_applied(&replica, &primary);
        wait_until_applied(&reference, &primary);
        let written = [
            "SET own 1 PX 300",
            "SET text x",
            "PEXPIRE text 300",
            "RPUSH list a",
            "PEXPIRE list 300",
            "SET kept 1 PX 300",
            "PERSIST kept",
            "SET again 1 PX 300",
            "SET again 1",
            "SET long 1 EX 1000",
            "PEXPIRE shared 300",
            "SET copied 1 PX 300",
            "COPY copied copy",
            "SET moved 1 PX 300",
            "RENAME moved renamed",
            "GETEX text PX 300",
            "EVAL redis.call('set',KEYS[1],1,'PX',300) 1 script",
        ];
        written.iter().for_each(|words| _ = both(words));
        assert_eq!(both("DBSIZE"), Reply::Integer(13));
        // Keys with a TTL from the primary, from its snapshot or its stream, stay until the primary
        // deletes them.
        eventually("the replica's own keys are deleted", || {
            let left = [&replica, &reference].map(|server| server.connect().call("DBSIZE"));
            left == [Reply::Integer(5), Reply::Integer(5)]
        });
        let mut names = Vec::new();
        for client in &mut events {
            let mut keys: Vec<String> = (0..8).map(|_| client.receive().elements()[3].text()).collect();
            keys.sort();
            names.push(keys);
        }
        assert_eq!(names[0], names[1]);
        // As in Redis, a client's write on the replica deletes an expired key of the primary.
        assert_eq!(both("APPEND theirs 2"), Reply::Integer(1));
        assert_eq!(both("EXISTS loaded kept again long theirs"), Reply::Integer(4));
        assert_eq!(both("MGET kept again long theirs").elements().len(), 4);
        assert_eq!(info(&replica, "stats", "unexpected_error_replies"), "0", "{}", replica.log());
        replica.assert_sound();
    });
}

/// `replica-refuse-empty-primary`: a primary that restarts without its data isn't followed.
#[test]
fn an_empty_primary_is_refused_if_the_settings_say_so() {
    let Some(primary) = Server::redis(&PRIMARY) else { return };
    let replica = Server::pantala(Backend::all()[0], &["--replica-refuse-empty-primary", "yes"]);
    // The replica has no keys yet, so it follows the empty primary.
    follow(&replica, &primary);
    primary.connect().call("SET a 1");
    wait_until_applied(&replica, &primary);
    // The primary empties its dataset without a restart, which is accepted.
    primary.connect().call("FLUSHALL");
    wait_until_applied(&replica, &primary);
    primary.connect().call("SET a 1");
    wait_until_applied(&replica, &primary);
    let mut client = primary.connect();
    client.send(&["DEBUG", "RESTART"]);
    client.read_to_end();
    let refused = "MASTER has another history and no keys, this replica has 1";
    eventually("the primary is rejected", || replica.log().contains(refused));
    assert_eq!(info(&replica, "replication", "master_link_status"), "down");
    assert_eq!(replica.connect().call("GET a"), Reply::bulk("1"));
    // Once the restarted primary has keys, it is followed like any other primary.
    primary.connect().call("SET b 1");
    wait_for_link(&replica);
    assert_eq!(replica.connect().call("MGET a b"), Reply::Array(vec![Reply::Null, Reply::bulk("1")]));
    // If the setting is off, the replica also follows an empty primary.
    assert_eq!(replica.connect().call("CONFIG SET replica-refuse-empty-primary no"), Reply::ok());
    let mut client = primary.connect();
    client.send(&["DEBUG", "RESTART"]);
    client.read_to_end();
    eventually("the dataset is deleted", || replica.connect().call("DBSIZE") == Reply::Integer(0));
}

#[test]
fn stale_data_is_served_as_the_settings_say() {
    for_each_backend(|backend| {
        let Some(primary) = Server::redis(&PRIMARY) else { return };
        let replica = Server::pantala(backend, &REPLICA);
        primary.connect().call("SET a 1");
        follow(&replica, &primary);
        let mut client = replica.connect();
        primary.kill();
        eventually("the link is down", || info(&replica, "replication", "master_link_status") == "down");
        assert_eq!(client.call("GET a"), Reply::bulk("1"));
        client.call("CONFIG SET replica-serve-stale-data no");
        let stale = "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.";
        assert_eq!(client.call("GET a"), error(stale));
        assert_eq!(client.call("PING"), error(stale), "as in Redis");
        assert!(client.call("INFO replication").text().contains("role:slave"));
        client.call("MULTI");
        assert_eq!(client.call("GET a"), error(stale));
        assert!(client.call("EXEC").text().starts_with("EXECABORT"));
        // A script without a shebang line is rejected only when it runs.
        let eval = |client: &mut Client, text: &str| client.command(&["EVAL", text, "0"]);
        let sha = client.call("SCRIPT LOAD return(1)").text();
        assert_eq!(eval(&mut client, "return 1"), error(stale));
        assert_eq!(client.command(&["EVAL_RO", "return 1", "0"]), error(stale));
        assert_eq!(client.command(&["EVALSHA", &sha, "0"]), error(stale));
        client.call("MULTI");
        assert_eq!(eval(&mut client, "return 1"), Reply::Simple("QUEUED".to_owned()));
        assert_eq!(client.call("EXEC"), Reply::Array(vec![error(stale)]));
        let writing = "#!lua flags=allow-stale,no-writes\nreturn redis.pcall('SET', 'a', '2')";
        assert_eq!(eval(&mut client, writing), error("ERR Can not execute the command on a stale replica"));
        assert_eq!(client.call("REPLICAOF NO ONE"), Reply::ok());
        assert_eq!(client.call("GET a"), Reply::bulk("1"));
        // The flags of a queued script count, not those of `EVAL`.
        client.call("MULTI");
        assert_eq!(eval(&mut client, "#!lua flags=no-writes\nreturn 1"), Reply::Simple("QUEUED".to_owned()));
        assert_eq!(replica.connect().call("REPLICAOF 127.0.0.1 1"), Reply::ok());
        assert_eq!(client.call("EXEC").text(), format!("EXECABORT Transaction discarded because of: {stale}"));
    });
}

#[test]
fn a_promoted_replica_has_its_own_history() {
    for_each_backend(|backend| {
        let Some(primary) = Server::redis(&PRIMARY) else { return };
        let replica = Server::pantala(backend, &REPLICA);
        primary.connect().call("SET a 1");
        follow(&replica, &primary);
        wait_until_applied(&replica, &primary);
        let mut client = replica.connect();
        let (id, offset) =
            (info(&primary, "replication", "master_replid"), info(&replica, "replication", "slave_repl_offset"));
        assert_eq!(info(&replica, "replication", "master_replid"), id);
        assert_eq!(
            client.call(&format!("REPLICAOF 127.0.0.1 {}", primary.port())).text(),
            "OK Already connected to specified master"
        );
        assert_eq!(client.call("SLAVEOF no one"), Reply::ok());
        assert_eq!(info(&replica, "replication", "role"), "master");
        assert_eq!(info(&replica, "replication", "master_replid2"), id);
        let second: u64 = info(&replica, "replication", "second_repl_offset").parse().expect("a number");
        assert!(second > offset.parse().expect("a number"));
        assert_ne!(info(&replica, "replication", "master_replid"), id);
        assert_eq!(client.call("INCR a"), Reply::Integer(2));
        assert_eq!(client.call("REPLICAOF NO ONE"), Reply::ok());
        for (words, reply) in
            [("REPLICAOF a x", "ERR Invalid master port"), ("REPLICAOF a 65536", "ERR Invalid master port")]
        {
            assert_eq!(client.call(words), error(reply));
        }
        // The replica no longer applies the stream of its former primary.
        primary.connect().call("SET a 100");
        assert_eq!(client.call("GET a"), Reply::bulk("2"));
    });
}

#[test]
fn blocked_clients_are_disconnected_from_a_new_replica() {
    for_each_backend(|backend| {
        let Some(primary) = Server::redis(&PRIMARY) else { return };
        let replica = Server::pantala(backend, &REPLICA);
        let mut blocked = [waiting(&replica, "BLPOP l 0", 1), waiting(&replica, "XREAD BLOCK 0 STREAMS s $", 2)];
        follow(&replica, &primary);
        for client in &mut blocked {
            let reply = client.receive().text();
            assert!(
                reply.starts_with("UNBLOCKED force unblock from blocking operation, instance state changed"),
                "{reply}"
            );
            assert!(client.read_to_end().is_empty());
        }
    });
}

/// Number of accounts of the bank.
const ACCOUNTS: usize = 6;

#[test]
fn no_reader_of_a_replica_sees_half_a_transaction() {
    let seed = Random::seed("no_reader_of_a_replica_sees_half_a_transaction");
    for_each_backend(|backend| {
        let Some(primary) = Server::redis(&PRIMARY) else { return };
        let mut replica = Server::pantala(backend, &["--workers", "3", "--shards", "7"]);
        let mut client = replica.connect();
        for fault in ["pause-taking", "pause-holding", "pause-replying"] {
            // In a build without debug assertions, the command replies with an error, and threads
            // don't pause.
            client.call(&format!("DEBUG FAULT {fault} 20"));
        }
        let all: Vec<String> = (0..ACCOUNTS).map(|number| format!("account:{number}")).collect();
        all.iter().for_each(|account| _ = primary.connect().command(&["SET", account, "100"]));
        follow(&replica, &primary);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for writer in 0..3 {
                let (primary, all, is_over) = (&primary, &all, &is_over);
                scope.spawn(move || {
                    let (mut client, mut random) = (primary.connect(), Random::from_seed(seed + writer));
                    while !is_over.load(Ordering::Relaxed) {
                        let (from, to) = (random.pick(all).as_str(), random.pick(all).as_str());
                        if random.one_in(2) {
                            client.call("MULTI");
                            client.command(&["DECR", from]);
                            client.command(&["INCR", to]);
                            client.call("EXEC");
                        } else {
                            let script = "redis.call('DECR', KEYS[1]) redis.call('INCR', KEYS[2])";
                            client.command(&["EVAL", script, "2", from, to]);
                        }
                    }
                });
            }
            let _end = End(&is_over);
            let words: Vec<&str> = std::iter::once("MGET").chain(all.iter().map(String::as_str)).collect();
            for _ in 0..2000 {
                let replies = client.command(&words);
                let sum: i64 = replies.elements().iter().map(|it| it.text().parse::<i64>().expect("a number")).sum();
                assert_eq!(sum, 100 * ACCOUNTS as i64, "PANTALA_SEED={seed}");
            }
        });
        assert_same(&replica, &primary);
        replica.assert_sound();
    });
}

#[test]
fn the_primary_of_the_configuration_is_followed() {
    let Some(primary) = Server::redis(&PRIMARY) else { return };
    primary.connect().call("SET a 1");
    let port = primary.port();
    let (replica, folder) = pantala_tests::server::pantala_with_file(
        &format!("replicaof 127.0.0.1 {port}\nreplica-priority 7\n"),
        &["--enable-debug-command", "yes"],
    );
    wait_for_link(&replica);
    let mut client = replica.connect();
    assert_eq!(client.call("GET a"), Reply::bulk("1"));
    assert_eq!(client.call("CONFIG GET replicaof").elements()[1], Reply::bulk(format!("127.0.0.1 {port}")));
    assert_eq!(info(&replica, "replication", "slave_priority"), "7");
    let text = || {
        let file = std::fs::read_dir(folder.path()).expect("a folder").flatten().next().expect("the file");
        std::fs::read_to_string(file.path()).expect("text")
    };
    client.call("REPLICAOF NO ONE");
    assert_eq!(client.call("CONFIG REWRITE"), Reply::ok());
    assert!(!text().contains("replicaof"), "{}", text());
    client.call(&format!("REPLICAOF 127.0.0.1 {port}"));
    assert_eq!(client.call("CONFIG REWRITE"), Reply::ok());
    assert!(text().contains(&format!("replicaof 127.0.0.1 {port}")), "{}", text());
}

#[test]
fn pantala_follows_pantala_and_is_followed() {
    let test = "pantala_follows_pantala_and_is_followed";
    let announced = Random::seed(test);
    for_each_backend(|backend| {
        let seed = Random::seed_of(announced, &format!("{test} on {}", backend.name()));
        // The backlog must hold all writes until a link is up again, even on a loaded host.
        let primary = Server::pantala(backend, &[&PRIMARY[..], &["--repl-backlog-size", "64mb"]].concat());
        let mut replica = Server::pantala(backend, &[&REPLICA[..], &PRIMARY].concat());
        let below = Server::redis(&[]);
        write_randomly(&primary, seed, COMMANDS / 4);
        follow(&replica, &primary);
        below.iter().for_each(|below| follow(below, &replica));
        assert_same(&replica, &primary);
        primary.connect().call("FLUSHALL");
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (primary, is_over) = (&primary, &is_over);
            let _end = End(is_over);
            (0..3).for_each(|number| _ = scope.spawn(move || count(primary, is_over, number)));
            for round in 0..4 {
                let links = info(primary, "stats", "sync_partial_ok");
                let (server, kind) = if round % 2 == 0 { (&replica, "master") } else { (primary, "replica") };
                let mut client = server.connect();
                eventually("there is a link to close", || {
                    client.call(&format!("CLIENT KILL TYPE {kind}")) == Reply::Integer(1)
                });
                eventually("the link is up again", || info(primary, "stats", "sync_partial_ok") != links);
            }
        });
        wait_for_expiry(&primary);
        assert_same(&replica, &primary);
        assert_eq!(info(&primary, "stats", "sync_full"), "1");
        let mut client = primary.connect();
        client.call("SET last 1");
        assert_eq!(client.call("WAIT 1 10000"), Reply::Integer(1), "the replica acknowledges when asked");
        assert_eq!(replica.connect().call("GET last"), Reply::bulk("1"));
        let role = replica.connect().call("ROLE");
        let words: Vec<String> = role.elements()[..2].iter().map(Reply::text).collect();
        assert_eq!((words[0].as_str(), words[1].as_str()), ("slave", "127.0.0.1"));
        if let Some(below) = below {
            let last = || below.connect().call("GET last");
            eventually("the replica's replica has it too", || last() == Reply::bulk("1"));
            assert_eq!(below.connect().call("DEBUG DIGEST"), primary.connect().call("DEBUG DIGEST"));
        }
        replica.assert_sound();
    });
}

/// Several clients send `REPLICAOF` at the same time. At the end, the role and the setting
/// `replicaof` are those of the same command: the one that took effect last.
#[test]
fn concurrent_changes_of_the_role_leave_one_primary() {
    const ROUNDS: usize = 300;
    let server = Server::pantala(Backend::all()[0], &["--workers", "2"]);
    let barrier = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        let change = |port: usize| {
            let mut client = server.connect();
            for round in 0..ROUNDS {
                barrier.wait();
                // No process listens on these ports.
                client.call(&format!("REPLICAOF 127.0.0.1 {}", 2 * round + port));
                barrier.wait();
                let set = client.call("CONFIG GET replicaof").elements()[1].text();
                let follows = info(&server, "replication", "master_port");
                assert_eq!(set, format!("127.0.0.1 {follows}"), "round {round}");
                barrier.wait();
            }
        };
        scope.spawn(move || change(1));
        change(2);
    });
}
