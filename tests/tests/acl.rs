//! Users and permissions: rules, logins, and permission checks. Permissions are checked in every
//! way in which a command can run: in a pipeline, a transaction or a script, after it was blocked,
//! and after it waited for a shard (a part of the key space that one worker holds at a time).

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pantala_tests::client::encode;
use pantala_tests::server::{free_port, pantala_with_file, run_to_exit};
use pantala_tests::waiting::eventually;
use pantala_tests::{Backend, Client, Reply, Server, for_each_backend};

const SERVER_ARGS: [&str; 4] = ["--workers", "3", "--shards", "8"];
const PATIENCE: Duration = Duration::from_secs(20);

fn start(backend: Backend, more: &[&str]) -> Server {
    Server::pantala(backend, &[&SERVER_ARGS, more].concat())
}

/// Returns a connection of the administrator.
fn admin(server: &Server) -> Client {
    server.connect()
}

/// Returns a connection that has logged in as `name`, a user created with these rules.
fn user(server: &Server, name: &str, rules: &str) -> Client {
    let words: Vec<&str> = ["ACL", "SETUSER", name, "reset", "on", ">pw"].into_iter().chain(rules.split(' ')).collect();
    assert_eq!(admin(server).command(&words), Reply::ok(), "{rules}");
    let mut client = server.connect();
    assert_eq!(client.command(&["AUTH", name, "pw"]), Reply::ok());
    client
}

fn set_user(admin: &mut Client, words: &str) {
    assert_eq!(admin.call(&format!("ACL SETUSER {words}")), Reply::ok(), "{words}");
}

#[track_caller]
fn assert_denied(reply: &Reply) {
    assert!(reply.is_error() && reply.text().contains("NOPERM"), "{reply:?}");
}

#[track_caller]
fn assert_key_denied(reply: &Reply) {
    assert_eq!(reply.text(), "NOPERM this user has no permissions to access one of the keys used as arguments");
}

/// Returns the entries of `ACL LOG`: reason, context, object, user, count.
fn log(admin: &mut Client) -> Vec<(String, String, String, String, String)> {
    let entries = admin.call("ACL LOG 100");
    let fields = |entry: &Reply| {
        let items = entry.elements();
        let field = |name: &str| {
            let at = items.iter().position(|item| *item == Reply::bulk(name)).expect("a field of an entry");
            items[at + 1].text()
        };
        (field("reason"), field("context"), field("object"), field("username"), field("count"))
    };
    entries.elements().iter().map(fields).collect()
}

fn entry(
    reason: &str,
    context: &str,
    object: &str,
    name: &str,
    count: u32,
) -> (String, String, String, String, String) {
    (reason.into(), context.into(), object.into(), name.into(), count.to_string())
}

/// `ACL LIST` describes a user's permissions by the categories that fit best, with single commands
/// as exceptions. Commands that Redis 7.0 lacks, such as `CLIENT DURABILITY`, must not influence
/// which categories fit. With the rules of this test, one more command in `@connection` would make
/// a difference.
#[test]
fn commands_of_pantala_do_not_change_categories() {
    const RULES: &str = "c +asking +auth +command +echo +hello +ping +quit +readonly +readwrite +reset +select";
    let check = |server: &Server| {
        let mut admin = admin(server);
        set_user(&mut admin, RULES);
        let lines = admin.call("ACL LIST");
        let line = lines.elements().iter().map(Reply::text).find(|line| line.starts_with("user c ")).expect("the user");
        assert!(line.contains(" -@all +@connection ") && line.contains(" -client|id"), "{line}");
    };
    check(&start(Backend::all()[0], &[]));
    if let Some(redis) = Server::redis(&[]) {
        check(&redis);
    }
}

/// A user's name may be any bytes without spaces and NUL. It is shown unchanged.
#[test]
fn names_of_users_need_not_be_utf_8() {
    const NAME: &[u8] = b"caf\xe9";
    let check = |server: &Server| {
        let mut admin = admin(server);
        assert_eq!(admin.command(&[b"ACL".as_slice(), b"SETUSER", NAME, b"on", b">pw", b"+client|info"]), Reply::ok());
        let mut client = server.connect();
        assert_eq!(client.command(&[b"AUTH".as_slice(), NAME, b"pw"]), Reply::ok());
        assert!(client.call("PING").text().starts_with("NOPERM"));
        let is_shown =
            |bytes: &[u8]| bytes.windows(NAME.len() + 7).any(|part| part == [b" user=", NAME, b" "].concat());
        let Reply::Bulk(line) = client.call("CLIENT INFO") else { panic!("a line") };
        assert!(is_shown(&line), "{}", line.escape_ascii());
        let log = admin.call("ACL LOG 1");
        let fields = log.elements()[0].elements();
        let at = fields.iter().position(|field| *field == Reply::bulk("client-info")).expect("the field");
        let Reply::Bulk(info) = &fields[at + 1] else { panic!("a line") };
        assert!(is_shown(info), "{}", info.escape_ascii());
    };
    check(&start(Backend::all()[0], &[]));
    if let Some(redis) = Server::redis(&[]) {
        check(&redis);
    }
}

#[test]
fn users_log_in_and_are_shown() {
    for_each_backend(|backend| {
        let server = start(backend, &[]);
        let mut admin = admin(&server);
        assert_eq!(admin.call("ACL WHOAMI"), Reply::bulk("default"));
        let mut alice = user(&server, "alice", "+@all ~* &*");
        assert_eq!(alice.call("ACL WHOAMI"), Reply::bulk("alice"));
        assert!(alice.call("CLIENT INFO").text().contains(" user=alice "));
        assert!(admin.call("CLIENT LIST").text().contains(" user=default "));
        for wrong in ["AUTH alice no", "AUTH nobody pw", "HELLO 3 AUTH alice no", "AUTH alice PW"] {
            assert!(alice.call(wrong).text().starts_with("WRONGPASS "), "{wrong}");
            assert_eq!(alice.call("ACL WHOAMI"), Reply::bulk("alice"), "a failed login keeps the session");
        }
        set_user(&mut admin, "alice off");
        assert!(admin.call("AUTH alice pw").text().starts_with("WRONGPASS "), "the user is off");
        assert_eq!(alice.call("SET k v"), Reply::ok(), "a logged-in session continues");
        assert_eq!(alice.call("RESET").text(), "RESET");
        assert_eq!(alice.call("ACL WHOAMI"), Reply::bulk("default"));
        set_user(&mut admin, "alice on");
        assert_eq!(alice.call("HELLO 2 AUTH alice pw").elements()[1], Reply::bulk("redis"));
        assert_eq!(alice.call("ACL WHOAMI"), Reply::bulk("alice"));
        assert_eq!(admin.call("CLIENT KILL USER alice"), Reply::Integer(1));
        assert!(alice.ends_within(PATIENCE));
        assert!(admin.call("CLIENT KILL USER bob").text().contains("No such user 'bob'"));
    });
}

#[test]
fn a_password_of_the_default_user_locks_new_connections() {
    let server = start(Backend::Epoll, &[]);
    let mut admin = admin(&server);
    assert_eq!(admin.call("CONFIG SET requirepass secret"), Reply::ok());
    assert_eq!(admin.call("SET k v"), Reply::ok(), "an existing connection stays logged in");
    let mut client = server.connect();
    assert_eq!(client.call("GET k").text(), "NOAUTH Authentication required.");
    assert_eq!(client.pipeline(&[vec!["GET", "k"], vec!["AUTH", "secret"], vec!["GET", "k"]])[2], Reply::bulk("v"));
    set_user(&mut admin, "default off");
    assert_eq!(server.connect().call("GET k").text(), "NOAUTH Authentication required.");
    set_user(&mut admin, "default on nopass");
    assert_eq!(server.connect().call("GET k"), Reply::bulk("v"));
    // Once the default user needs no password, all clients that haven't logged in act as this user.
    set_user(&mut admin, "default resetpass >x");
    let mut waiting = server.connect();
    assert!(waiting.call("GET k").is_error());
    set_user(&mut admin, "default nopass -get");
    assert_denied(&waiting.call("GET k"));
    assert_eq!(waiting.call("STRLEN k"), Reply::Integer(1));
}

#[test]
fn commands_keys_and_channels_are_checked() {
    for_each_backend(|backend| {
        let server = start(backend, &[]);
        let mut bob = user(&server, "bob", "+@all -incr -@dangerous +sort +migrate %R~r* %W~w* ~k* &c*");
        assert_eq!(bob.call("INCR k").text(), "NOPERM this user has no permissions to run the 'incr' command");
        assert_eq!(
            bob.call("CONFIG GET maxmemory").text(),
            "NOPERM this user has no permissions to run the 'config|get' command"
        );
        for allowed in ["SET k v", "GET k", "SET w v", "GET r", "COPY r w", "EXISTS w", "DEL w k", "SSUBSCRIBE c1"] {
            let reply = bob.call(allowed);
            assert!(!reply.is_error(), "{allowed}: {reply:?}");
            if allowed.starts_with("SSUB") {
                assert_eq!(bob.call("RESET").text(), "RESET");
                assert_eq!(bob.call("AUTH bob pw"), Reply::ok());
            }
        }
        for denied in [
            "SET r v",
            "GET w",
            "SET x v",
            "MSET k v x v",
            "DEL k x",
            "COPY w k",
            "SET w v GET",
            "GETDEL r",
            "EVAL return 1 x",
            "RENAME k x",
            "SORT k STORE x",
            "SORT k STORE GET STORE x",
            "PFMERGE x",
            "GEORADIUS k 1 1 1 m STORE k STORE x",
            "XREADGROUP COUNT 1 GROUP STREAMS k STREAMS x >",
            "OBJECT FREQ x",
            "MIGRATE 127.0.0.1 1 x 0 1",
            "XREAD STREAMS k x 0 0",
            "BLPOP k x 1",
            "LMPOP 2 k x LEFT",
            "BITOP NOT k x",
        ] {
            let reply = bob.call(denied);
            if denied.starts_with("EVAL") {
                assert!(reply.is_error());
            } else if denied.starts_with("MIGRATE") {
                assert_denied(&reply);
            } else {
                assert_key_denied(&reply);
            }
        }
        for denied in ["PUBLISH d m", "SUBSCRIBE c1 d", "PSUBSCRIBE c1*", "SPUBLISH d m"] {
            let reply = bob.call(denied).text();
            assert_eq!(reply, "NOPERM this user has no permissions to access one of the channels used as arguments");
        }
        assert_eq!(bob.call("PUBLISH c1 m"), Reply::Integer(0));
    });
}

/// Tests for CVE-2023-41053: `SORT_RO` must read only keys that the user may read. The command
/// reads the sorted key, and the keys that match the patterns of `BY` and `GET`.
#[test]
fn sort_ro_reads_only_permitted_keys() {
    const BY_DENIED: &str = "BY option of SORT denied due to insufficient ACL permissions";
    const GET_DENIED: &str = "GET option of SORT denied due to insufficient ACL permissions";
    for_each_backend(|backend| {
        let server = start(backend, &[]);
        let mut admin = admin(&server);
        for write in ["RPUSH k1 2 1", "RPUSH secret 2 1", "MSET kw1 5 kw2 4 secret1 one secret2 two"] {
            assert!(!admin.call(write).is_error());
        }
        let list = |items: &[&str]| Reply::Array(items.iter().copied().map(Reply::bulk).collect());
        // `SORT_RO` must not read `secret`: `%W` permits only writing, and the selector only `GET`.
        for rules in ["+@all %R~k*", "+@all ~k* %W~secret* (+get ~secret*)", "(+@all ~k*) +sort_ro %W~*"] {
            let mut sam = user(&server, "sam", rules);
            assert_eq!(sam.call("SORT_RO k1"), list(&["1", "2"]), "{rules}");
            assert_eq!(sam.call("SORT_RO k1 DESC LIMIT 0 1"), list(&["2"]), "{rules}");
            assert_eq!(sam.call("SORT_RO k1 BY nosort"), list(&["2", "1"]), "{rules}");
            for options in ["", " BY nosort", " GET #", " LIMIT 0 1", " DESC ALPHA", " BY k* GET k*"] {
                let call = format!("SORT_RO secret{options}");
                assert_key_denied(&sam.call(&call));
                let script = ["EVAL", "return redis.call(unpack(ARGV))", "0"];
                let words: Vec<&str> = script.into_iter().chain(call.split(' ')).collect();
                let reply = sam.command(&words);
                assert!(
                    reply.is_error() && reply.text().contains("can't access at least one of the keys"),
                    "{reply:?}"
                );
                let words: Vec<&str> = ["ACL", "DRYRUN", "sam"].into_iter().chain(call.split(' ')).collect();
                assert!(admin.command(&words).text().contains("no permissions"), "{rules}: {call}");
            }
            // The patterns of BY and GET may match any key, so both options need access to all
            // keys. As in Redis 7.0, even `GET #` needs it.
            for (options, denied) in [
                ("BY secret*", BY_DENIED),
                ("BY kw*", BY_DENIED),
                ("BY nosort GET secret*", GET_DENIED),
                ("GET #", GET_DENIED),
                ("GET kw*", GET_DENIED),
            ] {
                let call = format!("SORT_RO k1 {options}");
                let reply = sam.call(&call);
                assert!(reply.is_error() && reply.text().contains(denied), "{rules}: {call}: {reply:?}");
                assert_eq!(sam.call("MULTI"), Reply::ok());
                assert_eq!(sam.call(&call).text(), "QUEUED");
                let replies = sam.call("EXEC");
                let reply = &replies.elements()[0];
                assert!(reply.is_error() && reply.text().contains(denied), "{rules}: {call}: {reply:?}");
            }
        }
        let mut sue = user(&server, "sue", "+@all %R~*");
        assert_eq!(sue.call("SORT_RO k1 BY kw* GET secret*"), list(&["two", "one"]));
        assert_key_denied(&sue.call("SORT k1 BY kw* STORE secret"));
    });
}

#[test]
fn pipelines_stop_where_a_permission_is_revoked() {
    for_each_backend(|backend| {
        let server = start(backend, &[]);
        // Carol is unrestricted at first, so permission checks are skipped.
        let mut carol = user(&server, "carol", "+@all ~* &*");
        let set = |value: &str| vec!["SET".to_owned(), "k".to_owned(), value.to_owned()];
        let rules = |rule: &str| ["ACL", "SETUSER", "carol", rule].map(str::to_owned).to_vec();
        let replies = carol.pipeline(&[set("1"), set("2"), rules("-set"), set("3"), set("4"), rules("+set"), set("5")]);
        assert_eq!((&replies[1], &replies[2]), (&Reply::ok(), &Reply::ok()));
        assert_denied(&replies[3]);
        assert_denied(&replies[4]);
        assert_eq!(replies[6], Reply::ok());
        // Another connection revokes the permission. Once that connection has received the reply,
        // the change applies on all workers.
        let mut others: Vec<Client> = (0..6)
            .map(|_| {
                let mut client = server.connect();
                assert_eq!(client.call("AUTH carol pw"), Reply::ok());
                assert_eq!(client.call("SET k x"), Reply::ok());
                client
            })
            .collect();
        let mut admin = admin(&server);
        for rule in ["-set", "resetkeys"] {
            set_user(&mut admin, &format!("carol {rule}"));
            for client in &mut others {
                assert_denied(&client.call("SET k y"));
                assert_denied(&client.pipeline(&[set("y"), set("z")])[1]);
            }
            set_user(&mut admin, "carol +set allkeys");
            for client in &mut others {
                assert_eq!(client.call("SET k x"), Reply::ok());
            }
        }
    });
}

#[test]
fn transactions_are_checked_when_queued_and_when_run() {
    let server = start(Backend::Epoll, &[]);
    let mut admin = admin(&server);
    let mut dan = user(&server, "dan", "+@all ~k*");
    for command in ["MULTI", "SET k v"] {
        assert!(!dan.call(command).is_error());
    }
    assert_key_denied(&dan.call("SET x v"));
    assert!(dan.call("EXEC").text().starts_with("EXECABORT "));
    for rules in ["+@all ~k*", "+@all allkeys allchannels"] {
        set_user(&mut admin, &format!("dan resetkeys resetchannels {rules}"));
        for command in ["MULTI", "SET k 1", "INCR k", "GET k"] {
            assert!(!dan.call(command).is_error(), "{command}");
        }
        set_user(&mut admin, "dan -incr");
        let replies = dan.call("EXEC");
        assert_eq!(replies.elements()[0], Reply::ok());
        let denied = replies.elements()[1].text();
        assert!(denied.starts_with("NOPERM ACLs rules changed between the moment"), "{denied}");
        assert!(denied.ends_with("no permission to execute the command or subcommand"), "{denied}");
        assert_eq!(replies.elements()[2], Reply::bulk("1"));
        set_user(&mut admin, "dan resetkeys ~k*");
    }
    assert!(log(&mut admin).contains(&entry("command", "multi", "incr", "dan", 2)), "{:?}", log(&mut admin));
    // A login within a transaction applies to the commands after it.
    set_user(&mut admin, "dan +@all");
    for command in ["MULTI", "SET k 1", "AUTH default x", "SET x 1"] {
        assert_eq!(dan.call(command).is_error(), command == "SET x 1", "{command}");
    }
    dan.call("DISCARD");
}

/// Duration of the script of [`hold_all_shards`] in ms. Changing a rule takes less time, even on a
/// busy host.
const HELD_MS: u64 = 2000;

/// Starts a script that holds all shards for [`HELD_MS`]. The script is running when this function
/// returns, and the returned client receives the script's reply.
fn hold_all_shards(server: &Server) -> Client {
    const SCRIPT: &str = "local function now() local t = redis.call('time') return t[1] * 1000 + t[2] / 1000 end \
         local stop = now() + tonumber(ARGV[1]) while now() < stop do redis.call('get', 'x') end";
    let mut holder = server.connect();
    holder.send(&["EVAL", SCRIPT, "0", &HELD_MS.to_string()]);
    eventually("the script holds all shards", || {
        let mut probe = server.connect();
        probe.set_read_timeout(Duration::from_millis(200));
        probe.send(&["EXISTS", "probe"]);
        probe.try_receive().is_err()
    });
    holder
}

#[test]
fn commands_that_waited_for_shards_are_checked_when_they_run() {
    let server = start(Backend::Epoll, &[]);
    let mut admin = admin(&server);
    for calls in [&["SET waited 1"][..], &["MULTI", "SET waited 1", "EXEC"], &["MSET waited 1 other 2"]] {
        // Retries until a rule change completes while the script still holds all shards. If the
        // script ended earlier, the commands may have run before the change.
        for attempt in 0.. {
            let mut eve = user(&server, "eve", "+@all allkeys allchannels");
            // `began` is before the start of the script, so the script ends at least HELD_MS after
            // `began`.
            let began = Instant::now();
            let mut holder = hold_all_shards(&server);
            eve.send_together(&calls.iter().map(|call| call.split(' ').collect()).collect::<Vec<_>>());
            std::thread::sleep(Duration::from_millis(300));
            set_user(&mut admin, "eve -set -mset");
            let is_early = began.elapsed() < Duration::from_millis(HELD_MS);
            let _ = holder.receive();
            let replies: Vec<Reply> = calls.iter().map(|_| eve.receive()).collect();
            let last = replies.last().expect("a reply").clone();
            if is_early {
                match &last {
                    // The client's worker had already queued all commands, and EXEC waited for its
                    // shards.
                    Reply::Array(items) => assert_denied(&items[0]),
                    Reply::Error(text) if text.starts_with("EXECABORT") => {}
                    error => assert_denied(error),
                }
                assert_eq!(admin.call("EXISTS waited"), Reply::Integer(0), "{calls:?}: {replies:?}");
                break;
            }
            assert!(attempt < 20, "{calls:?} never waits");
            admin.call("DEL waited other");
        }
    }
}

#[test]
fn scripts_and_functions_are_checked_call_by_call() {
    for_each_backend(|backend| {
        let server = start(backend, &[]);
        let mut admin = admin(&server);
        let library =
            "#!lua name=l\nredis.register_function('f', function(keys) return redis.call('set', keys[1], 'v') end)";
        assert!(!admin.command(&["FUNCTION", "LOAD", library]).is_error());
        let mut fay = user(&server, "fay", "+@all -incr ~k* &c");
        let eval = |script: &str| ["EVAL".to_owned(), script.to_owned(), "0".to_owned()];
        for (script, part) in [
            ("return redis.call('incr', 'k')", "The user executing the script can't run this command or subcommand"),
            ("return redis.call('set', 'x', 'v')", "can't access at least one of the keys mentioned"),
            ("return redis.call('publish', 'd', 'v')", "can't publish to the channel mentioned in the command"),
            ("return redis.pcall('get', 'x')", "can't access at least one of the keys mentioned"),
            ("return redis.call('sort', 'k', 'by', 'w*')", "BY option of SORT denied"),
        ] {
            let reply = fay.command(&eval(script));
            assert!(reply.is_error() && reply.text().contains(part), "{script}: {reply:?}");
        }
        assert_eq!(fay.command(&eval("return redis.call('set', 'k', 'v')")), Reply::ok());
        assert_eq!(fay.call("FCALL f 1 k"), Reply::ok());
        assert_key_denied(&fay.call("FCALL f 1 x"));
        assert_eq!(fay.command(&eval("return redis.acl_check_cmd('set', 'k', 'v')")), Reply::Integer(1));
        assert_eq!(fay.command(&eval("return redis.acl_check_cmd('set', 'x', 'v')")), Reply::Null);
        assert_eq!(fay.command(&eval("return redis.acl_check_cmd('incr', 'k')")), Reply::Null);
        assert_eq!(fay.command(&eval("return redis.acl_check_cmd('set')")), Reply::Integer(1));
        assert!(fay.command(&eval("return redis.acl_check_cmd('nosuch')")).is_error());
        assert!(log(&mut admin).contains(&entry("command", "lua", "incr", "fay", 1)), "{:?}", log(&mut admin));
        // A script in a transaction is checked when it runs. Here, the permission was revoked after
        // the script was queued.
        for command in [vec!["MULTI"], vec!["EVAL", "return redis.call('set', 'k', 'v')", "0"]] {
            assert!(!fay.command(&command).is_error());
        }
        set_user(&mut admin, "fay -set");
        assert!(fay.call("EXEC").elements()[0].text().contains("can't run this command"));
    });
}

#[test]
fn blocked_clients_are_checked_when_they_are_served() {
    for_each_backend(|backend| {
        let server = start(backend, &[]);
        let mut admin = admin(&server);
        for (command, revoke) in [
            ("BLPOP list 0", "-blpop"),
            ("BLMOVE list other LEFT LEFT 0", "resetkeys ~list"),
            ("BLPOP list 0", "resetkeys"),
        ] {
            let mut gil = user(&server, "gil", "+@all allkeys");
            gil.send(&command.split(' ').collect::<Vec<_>>());
            eventually("it blocks", || admin.call("INFO clients").text().contains("blocked_clients:1"));
            set_user(&mut admin, &format!("gil {revoke}"));
            assert_eq!(admin.call("RPUSH list a"), Reply::Integer(1));
            assert_denied(&gil.receive());
            assert_eq!(admin.call("LLEN list"), Reply::Integer(1), "{command}: nothing was taken");
            assert_eq!(admin.call("DEL list other"), Reply::Integer(1));
            assert_eq!(gil.call("PING").text(), "PONG");
        }
        // A change that revokes no permission of the blocked client leaves it blocked.
        let mut gil = user(&server, "gil", "+@all ~list");
        gil.send(&["BLPOP", "list", "0"]);
        eventually("it blocks", || admin.call("INFO clients").text().contains("blocked_clients:1"));
        set_user(&mut admin, "someone on");
        assert_eq!(admin.call("RPUSH list a"), Reply::Integer(1));
        assert_eq!(gil.receive(), Reply::Array(vec![Reply::bulk("list"), Reply::bulk("a")]));
    });
}

#[test]
fn subscribers_who_lose_a_channel_are_disconnected() {
    for_each_backend(|backend| {
        let server = start(backend, &[]);
        let mut admin = admin(&server);
        for (command, keeps) in [("SUBSCRIBE a1", "&a1 &p*"), ("PSUBSCRIBE p*", "&p*"), ("SSUBSCRIBE s", "&s &a*")] {
            let mut subscribers: Vec<Client> = (0..3)
                .map(|_| {
                    let mut client = user(&server, "hal", "+@all &a* &a1 &p* &s");
                    client.send(&command.split(' ').collect::<Vec<_>>());
                    let _ = client.receive();
                    client
                })
                .collect();
            let mut ida = user(&server, "ida", "+@all &a1 &p* &s");
            ida.send(&command.split(' ').collect::<Vec<_>>());
            let _ = ida.receive();
            set_user(&mut admin, &format!("hal resetchannels {keeps}"));
            assert!(subscribers[0].is_open_after(Duration::from_millis(50)), "{command} is still allowed");
            set_user(&mut admin, "hal resetchannels &q");
            assert!(!admin.call("CLIENT LIST").text().contains("user=hal"), "disconnected before the reply");
            for client in &mut subscribers {
                assert!(client.ends_within(PATIENCE), "{command}");
            }
            assert!(ida.is_open_after(Duration::from_millis(10)), "another user");
        }
    });
}

/// A rule change revokes a permission while a pipeline of reads runs on another worker. No read of
/// the pipeline returns a value that was written after the change was acknowledged.
#[test]
fn a_revoked_client_reads_nothing_that_is_written_later() {
    const ROUNDS: usize = 60;
    const READS: usize = 500;
    const AUTH_REPLY: &str = "+OK\r\n";
    for_each_backend(|backend| {
        let server = start(backend, &[]);
        let mut admin = admin(&server);
        for round in 0..ROUNDS {
            let change = ["ACL SETUSER ned resetkeys", "ACL SETUSER ned -get", "ACL DELUSER ned"][round % 3];
            assert_eq!(admin.call("SET x earlier"), Reply::ok());
            user(&server, "ned", "+@all allkeys");
            let ned = TcpStream::connect(("127.0.0.1", server.port())).expect("it accepts");
            (&ned).write_all(&encode(&["AUTH", "ned", "pw"])).expect("it reads");
            let reads = encode(&["GET", "x"]).repeat(READS);
            let has_read = AtomicBool::new(false);
            let replies = std::thread::scope(|scope| {
                scope.spawn(|| while (&ned).write_all(&reads).is_ok() {});
                let reader = scope.spawn(|| {
                    let (mut replies, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
                    // Both an error and the end of the stream mean that the server has closed the
                    // connection.
                    while let Ok(bytes @ 1..) = (&ned).read(&mut buffer) {
                        replies.extend_from_slice(&buffer[..bytes]);
                        has_read.store(replies.len() > AUTH_REPLY.len(), Ordering::Relaxed);
                    }
                    replies
                });
                eventually("the login and the first reads are over", || has_read.load(Ordering::Relaxed));
                assert!(!admin.call(change).is_error());
                assert_eq!(admin.call("SET x later"), Reply::ok());
                std::thread::sleep(Duration::from_millis(20));
                let _ = ned.shutdown(Shutdown::Both);
                reader.join().expect("the reader ends")
            });
            let has = |value: &[u8]| replies.windows(value.len()).any(|bytes| bytes == value);
            assert!(has(b"earlier"), "{change}: nothing was read before the change");
            assert!(!has(b"later"), "{change}: read after the change");
        }
    });
}

#[test]
fn deleted_users_are_disconnected() {
    for_each_backend(|backend| {
        let server = start(backend, &[]);
        let mut admin = admin(&server);
        let mut clients: Vec<Client> = (0..6).map(|_| user(&server, "jon", "+@all allkeys allchannels")).collect();
        clients[0].send(&["BLPOP", "list", "0"]);
        clients[1].send(&["MONITOR"]);
        assert_eq!(admin.call("ACL DELUSER nobody"), Reply::Integer(0));
        assert_eq!(admin.call("ACL DELUSER jon nobody"), Reply::Integer(1));
        assert!(!admin.call("CLIENT LIST").text().contains("user=jon"));
        for client in &mut clients {
            assert!(client.ends_within(PATIENCE));
        }
        assert_eq!(admin.call("RPUSH list a"), Reply::Integer(1));
        assert_eq!(admin.call("LLEN list"), Reply::Integer(1));
        assert_eq!(admin.call("ACL DELUSER default").text(), "ERR The 'default' user cannot be removed");
        // A client that deletes its own user receives the reply before its connection is closed.
        let mut kim = user(&server, "kim", "+@all allkeys allchannels");
        let replies = kim.exchange(&pantala_tests::client::encode(&["ACL", "DELUSER", "kim"]), 1);
        assert_eq!(replies[0].0, Reply::Integer(1));
        assert!(kim.ends_within(PATIENCE));
    });
}

#[test]
fn denied_calls_are_logged() {
    let server = start(Backend::Epoll, &["--acllog-max-len", "3"]);
    let mut admin = admin(&server);
    let mut lea = user(&server, "lea", "+@all -incr ~k &c");
    for command in ["INCR k", "INCR k", "GET x", "PUBLISH d m", "AUTH lea no", "AUTH lea no"] {
        assert!(lea.call(command).is_error(), "{command}");
    }
    let wanted = [
        entry("auth", "toplevel", "AUTH", "lea", 2),
        entry("channel", "toplevel", "d", "lea", 1),
        entry("key", "toplevel", "x", "lea", 1),
    ];
    assert_eq!(log(&mut admin), wanted);
    assert_eq!(admin.call("ACL LOG 1").elements().len(), 1);
    let latest = admin.call("ACL LOG 1");
    assert!(latest.elements()[0].elements().last().expect("fields").text().contains(" user=lea "), "{latest:?}");
    assert_eq!(admin.call("ACL LOG -1"), Reply::Array(Vec::new()));
    assert_eq!(admin.call("CONFIG SET acllog-max-len 1"), Reply::ok());
    assert!(lea.call("GET y").is_error());
    assert_eq!(log(&mut admin), [entry("key", "toplevel", "y", "lea", 1)]);
    assert_eq!(admin.call("ACL LOG RESET"), Reply::ok());
    assert_eq!(log(&mut admin), []);
    assert!(admin.call("ACL LOG many").is_error());
}

/// If a command is denied at `EXEC`, the entry of `ACL LOG` shows the client in the state within
/// the transaction (`flags=x`, `multi=3`), as in Redis.
#[test]
fn the_log_shows_the_transaction_of_a_denied_command() {
    let check = |server: &Server| {
        let mut admin = server.connect();
        let mut lea = user(server, "lea", "+@all ~*");
        for command in ["MULTI", "SET k 1", "INCR k", "GET k"] {
            assert!(!lea.call(command).is_error(), "{command}");
        }
        assert_eq!(admin.call("ACL SETUSER lea -incr"), Reply::ok());
        let replies = lea.call("EXEC");
        assert!(replies.elements()[1].text().starts_with("NOPERM "), "{replies:?}");
        let latest = admin.call("ACL LOG 1");
        let info = latest.elements()[0].elements().last().expect("fields").text();
        assert!(info.contains(" flags=x ") && info.contains(" multi=3 "), "{info}");
        let info = lea.call("CLIENT INFO").text();
        assert!(info.contains(" flags=N ") && info.contains(" multi=-1 "), "{info}");
    };
    for_each_backend(|backend| check(&Server::pantala(backend, &[])));
    if let Some(redis) = Server::redis(&[]) {
        check(&redis);
    }
}

#[test]
fn users_of_the_configuration() {
    let hash = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
    let text = format!(
        "acl-pubsub-default allchannels\nuser default on #{hash} ~* &* +@all\nuser nan on >pw (+get ~x*) (+set ~y*)\n\
         user ole on nopass sanitize-payload resetchannels -@all +save +replicaof\n"
    );
    let (server, folder) = pantala_with_file(&text, &["--workers", "1"]);
    let mut client = server.connect();
    assert_eq!(client.call("PING").text(), "NOAUTH Authentication required.");
    assert_eq!(client.call("AUTH nan pw"), Reply::ok());
    assert_eq!(client.call("SET y1 v"), Reply::ok());
    assert_key_denied(&client.call("GET y1"));
    assert_eq!(client.call("AUTH secret"), Reply::ok());
    let listed =
        |client: &mut Client| -> Vec<String> { client.call("ACL LIST").elements().iter().map(Reply::text).collect() };
    let users = listed(&mut client);
    assert_eq!(users[0], format!("user default on sanitize-payload #{hash} ~* &* +@all"));
    assert!(users[1].contains("&* -@all (~x* &* -@all +get) (~y* &* -@all +set)"), "{users:?}");
    assert_eq!(users[2], "user ole on nopass sanitize-payload resetchannels -@all +replicaof +save");
    assert_eq!(client.call("ACL SETUSER pia on ~a\"b +get"), Reply::ok());
    assert_eq!(client.call("ACL DELUSER ole"), Reply::Integer(1));
    let users = listed(&mut client);
    assert_eq!(client.call("CONFIG REWRITE"), Reply::ok());
    let rewritten = std::fs::read_to_string(folder.path().join("pantala.conf")).expect("the file");
    assert!(!rewritten.contains("user ole") && rewritten.contains("user pia on"), "{rewritten}");
    drop(server);
    let elsewhere: String =
        rewritten.lines().filter(|line| !line.starts_with("dir ")).map(|line| format!("{line}\n")).collect();
    let (server, _folder) = pantala_with_file(&elsewhere, &["--workers", "1"]);
    let mut client = server.connect();
    assert_eq!(client.call("AUTH secret"), Reply::ok());
    assert_eq!(listed(&mut client), users, "{rewritten}");
    for (wrong, part) in [
        ("user a on +nosuch", "Error loading ACL rule '+nosuch' for the user named 'a'"),
        ("user a on\nuser a off", "Duplicate user found"),
        ("user a nonsense", "rule 1: Syntax error"),
        ("user a (+get", "Unmatched parenthesis"),
        ("user a <hunter2", "does not exist"),
    ] {
        let exit = run_to_exit(&["-"], format!("port {}\n{wrong}\n", free_port()).as_bytes());
        assert!(!exit.status.success() && exit.output.contains(part), "{wrong}: {}", exit.output);
        assert!(!exit.output.contains("hunter2"), "{}", exit.output);
    }
}

/// Clients of several workers save at the same time. Each save succeeds, and the file always has
/// all users.
#[test]
fn saves_at_the_same_time_do_not_tear_the_file() {
    const SAVES: usize = 50;
    const USERS: usize = 100;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("users.acl");
    let lines: String = (0..USERS).map(|number| format!("user u{number} on nopass +get\n")).collect();
    std::fs::write(&path, format!("user default on nopass +@all ~* &*\n{lines}")).expect("written");
    let server = start(Backend::all()[0], &["--aclfile", path.to_str().expect("a path")]);
    let savers_left = AtomicUsize::new(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = server.connect();
                let failed = (0..SAVES).map(|_| client.call("ACL SAVE")).find(|reply| *reply != Reply::ok());
                savers_left.fetch_sub(1, Ordering::Relaxed);
                assert_eq!(failed, None);
            });
        }
        while savers_left.load(Ordering::Relaxed) > 0 {
            let text = std::fs::read_to_string(&path).expect("the file");
            assert_eq!(text.lines().count(), USERS + 1, "{text}");
        }
    });
}

#[test]
fn acl_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("users.acl");
    let file = path.to_str().expect("a path").to_owned();
    std::fs::write(&path, "user quin on >pw +@all ~*\nuser default on nopass +@all ~* &*\n").expect("written");
    let server = start(Backend::Epoll, &["--aclfile", &file]);
    let mut admin = admin(&server);
    let mut quin = server.connect();
    assert_eq!(quin.call("AUTH quin pw"), Reply::ok());
    set_user(&mut admin, "rob on nopass +get");
    assert_eq!(admin.call("ACL SAVE"), Reply::ok());
    let saved = std::fs::read_to_string(&path).expect("the file");
    assert!(saved.contains("user rob on nopass resetchannels -@all +get\n"), "{saved}");
    assert!(!saved.contains(">pw"), "{saved}");
    // The file is applied as a whole or not at all, and the error names the line.
    std::fs::write(&path, "user sam on +get\nuser tim on +nosuch\n").expect("written");
    let before = admin.call("ACL LIST");
    let error = admin.call("ACL LOAD").text();
    assert!(error.contains(":2: Error in applying operation '+nosuch'"), "{error}");
    assert_eq!(admin.call("ACL LIST"), before);
    assert_eq!(quin.call("SET k v"), Reply::ok());
    std::fs::write(&path, "user sam on +get\n").expect("written");
    assert_eq!(admin.call("ACL LOAD"), Reply::ok());
    assert!(quin.ends_within(PATIENCE), "its user no longer exists");
    assert_eq!(admin.call("ACL USERS").elements().len(), 2);
    std::fs::remove_file(&path).expect("removed");
    assert!(admin.call("ACL LOAD").text().contains("No such file or directory"));
    let exit = run_to_exit(&["--port", &free_port().to_string(), "--aclfile", &file], b"");
    assert!(!exit.status.success() && exit.output.contains("Error loading ACLs, opening file"), "{}", exit.output);
    let without = start(Backend::Epoll, &[]);
    let mut client = without.connect();
    for command in ["ACL LOAD", "ACL SAVE"] {
        assert!(client.call(command).text().contains("not configured to use an ACL file"), "{command}");
    }
}
