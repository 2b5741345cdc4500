//! The `ACL` commands that client libraries send. The tests cover the subjects of the ACL tests of
//! redis-py, go-redis and Jedis, with RESP2 and RESP3. Each reply must equal that of redis-server.

use std::time::Duration;

use pantala_tests::transcript::{assert_as, assert_as_redis};
use pantala_tests::waiting::{eventually, first_served};
use pantala_tests::{Backend, Client, Reply, Server, for_each_backend};

/// Commands of the libraries' tests whose replies contain neither times nor random text.
const CALLS: &[&str] = &[
    "ACL WHOAMI",
    "ACL LIST",
    "ACL USERS",
    "ACL GETUSER default",
    "ACL GETUSER nobody",
    "ACL CAT",
    "ACL CAT testcategory",
    "ACL DELUSER lib",
    // A user without rules, and a user after `reset`.
    "ACL SETUSER lib",
    "ACL GETUSER lib",
    "ACL SETUSER lib reset off",
    "ACL LIST",
    "ACL SETUSER lib reset on nopass",
    "ACL GETUSER lib",
    // Passwords are added and removed, as text and as hashes.
    "ACL SETUSER lib reset on >pass1 >pass2",
    "ACL SETUSER lib <pass2",
    "ACL GETUSER lib",
    "ACL SETUSER lib <pass2",
    "ACL SETUSER lib #5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8",
    "ACL GETUSER lib",
    "ACL SETUSER lib !5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8",
    "ACL SETUSER lib #5e88",
    "ACL SETUSER lib #5E884898DA28047151D0E56F8DC6292773603D0D6AABBDD62A11EF721D1542D8",
    "ACL SETUSER lib resetpass",
    "ACL GETUSER lib",
    // Categories, commands, keys, channels and selectors, set at once and in several calls.
    "ACL SETUSER lib reset on >pass1 +@set +@hash -@geo +get +mget -hset ~cache:* ~objects:* &message:*",
    "ACL GETUSER lib",
    "ACL SETUSER lib +@list +mset ~more:* %R~read:* %W~write:* (%RW~both:* +get)",
    "ACL GETUSER lib",
    "ACL SETUSER lib (+set ~a) (-@all +@read ~b &c)",
    "ACL GETUSER lib",
    "ACL SETUSER lib clearselectors resetkeys resetchannels",
    "ACL GETUSER lib",
    "ACL SETUSER lib reset +@all ~* -@string +incr -debug +debug|digest",
    "ACL GETUSER lib",
    "ACL LIST",
    // Rules without a prefix are errors, and change nothing.
    "ACL SETUSER lib list",
    "ACL SETUSER lib get",
    "ACL SETUSER lib +nosuch",
    "ACL SETUSER lib +@nosuch",
    "ACL GETUSER lib",
    // Dry runs: they check whether a user may run a command, without running it.
    "ACL SETUSER lib reset nopass allkeys allchannels +set -get",
    "ACL DRYRUN lib SET key value",
    "ACL DRYRUN lib set key value",
    "ACL DRYRUN lib GET key",
    "ACL DRYRUN lib SET key",
    "ACL DRYRUN lib nosuch key",
    "ACL DRYRUN nobody GET key",
    "ACL SETUSER lib reset nopass ~a* +@all",
    "ACL DRYRUN lib GET b",
    "ACL DRYRUN lib PUBLISH c m",
    "ACL DELUSER lib nobody",
    "ACL DELUSER lib",
    "ACL USERS",
    "ACL GENPASS 0",
    "ACL GENPASS 4097",
    "ACL GENPASS x",
    "ACL HELP more",
];

/// Names of users that are not text, or that look like other parts of a rule.
const NAMES: &[&[u8]] = &[
    b"\xff\xfe\x01library",
    b"\x80",
    // White space in Latin-1, and a terminal's control sequence.
    b"\x85\xa0",
    b"\x1b[31m",
    "na\u{ef}ve\u{2003}name".as_bytes(),
    b"\"'\\",
    b"#name",
    b">password",
    b"on",
    b"",
];

/// Names that contain white space or NUL.
const NAMES_REJECTED: &[&[u8]] =
    &[b" ", b"with space", b"\0", b"with\0null", b"a\tb", b"a\r", b"a\nuser b on nopass +@all", b"a\x0b", b"a\x0c"];

/// Sorts the words of each text, because the order of a user's commands differs between processes
/// of redis-server.
fn with_sorted_words(reply: Reply) -> Reply {
    let all = |replies: Vec<Reply>| replies.into_iter().map(with_sorted_words).collect();
    match reply {
        Reply::Bulk(bytes) => {
            let mut words: Vec<&[u8]> = bytes.split(|byte| *byte == b' ').collect();
            words.sort_unstable();
            Reply::Bulk(words.join(&b' '))
        }
        Reply::Array(replies) => Reply::Array(all(replies)),
        Reply::Map(replies) => Reply::Map(all(replies)),
        Reply::Set(replies) => Reply::Set(all(replies)),
        other => other,
    }
}

#[test]
fn replies_to_client_libraries_are_those_of_redis() {
    assert_as_redis(&[], |server, version| {
        let mut client = server.connect();
        client.call(&format!("HELLO {version}"));
        let mut lines: Vec<String> =
            CALLS.iter().map(|words| format!("{words}: {:?}", with_sorted_words(client.call(words)))).collect();
        // The categories are not compared as a whole, because Pantala's also contain commands of
        // later versions of Redis.
        for (category, command) in [("read", "get"), ("write", "set"), ("scripting", "eval"), ("admin", "acl|setuser")]
        {
            let commands = client.call(&format!("ACL CAT {category}"));
            lines.push(format!("{command}: {}", commands.elements().contains(&Reply::bulk(command))));
        }
        lines.push(format!("{:?}", topics(&client.call("ACL HELP"))));
        lines
    });
}

/// Returns the types and first words of the lines of a help text, sorted. The other words are
/// Pantala's own.
fn topics(help: &Reply) -> Vec<(&'static str, String)> {
    let topic = |line: &Reply| (line.kind(), line.text().split(' ').next().unwrap_or_default().to_owned());
    let mut topics: Vec<_> = help.elements().iter().map(topic).collect();
    topics.sort();
    topics.dedup();
    topics
}

/// As in Jedis's tests of binary arguments, a name may contain all bytes except white space and
/// NUL. The name is the same in all replies, in the log, and after saving and loading the ACL file.
#[test]
fn names_of_users_are_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = ["redis.acl", "pantala.acl"].map(|name| folder.path().join(name).display().to_string());
    for file in &files {
        std::fs::write(file, "").expect("written");
    }
    let Some(reference) = Server::redis(&["--aclfile", &files[0]]) else { return };
    assert_as(&reference, &["--aclfile", &files[1]], |server, version| {
        let mut admin = server.connect();
        admin.call(&format!("HELLO {version}"));
        let mut lines = Vec::new();
        let all = || NAMES.iter().chain(NAMES_REJECTED).copied();
        for name in all() {
            let mut own = server.connect();
            own.call(&format!("HELLO {version}"));
            let mut add = |what: &str, reply: &Reply| lines.push(format!("{} {what}: {reply:?}", name.escape_ascii()));
            add("set", &admin.command(&[&b"ACL"[..], b"SETUSER", name, b"on", b">password", b"+acl", b"~a"]));
            add("rules", &admin.command(&[&b"ACL"[..], b"GETUSER", name]));
            add("dry run", &admin.command(&[&b"ACL"[..], b"DRYRUN", name, b"GET", b"a"]));
            add("wrong password", &own.command(&[&b"AUTH"[..], name, b"wrong"]));
            add("login", &own.command(&[&b"AUTH"[..], name, b"password"]));
            add("who", &own.call("ACL WHOAMI"));
            add("denial", &own.call("GET a"));
            let log = admin.call("ACL LOG 1");
            for field in ["reason", "object", "username"] {
                add(field, log.elements()[0].field(field).expect("a field"));
            }
        }
        for words in ["ACL USERS", "ACL LIST", "ACL SAVE", "ACL LOAD", "ACL USERS", "ACL LIST"] {
            lines.push(format!("{words}: {:?}", admin.call(words)));
        }
        let path = admin.call("CONFIG GET aclfile").elements()[1].text();
        lines.push(std::fs::read(path).expect("read").escape_ascii().to_string());
        for name in all() {
            lines.push(format!("deleted: {:?}", admin.command(&[&b"ACL"[..], b"DELUSER", name])));
        }
        lines.push(format!("ACL SAVE: {:?}", admin.call("ACL SAVE")));
        lines
    });
}

/// Returns the fields of an entry of `ACL LOG` that the libraries read.
fn entries(admin: &mut Client, count: &str) -> Vec<[String; 5]> {
    let reply = admin.call(&format!("ACL LOG {count}"));
    let field = |entry: &Reply, name: &str| {
        let items = entry.elements();
        let at = items.iter().position(|item| *item == Reply::bulk(name)).unwrap_or_else(|| panic!("no {name}"));
        items[at + 1].clone()
    };
    let entry = |entry: &Reply| {
        assert!(field(entry, "age-seconds").text().parse::<f64>().is_ok_and(|age| age >= 0.0), "{entry:?}");
        let client = field(entry, "client-info").text();
        assert!(client.starts_with("id=") && client.contains(" addr=") && client.contains(" cmd="), "{client}");
        ["count", "reason", "context", "object", "username"].map(|name| field(entry, name).text())
    };
    reply.elements().iter().map(entry).collect()
}

#[test]
fn the_log_combines_similar_entries() {
    for_each_backend(|backend| {
        for version in [2, 3] {
            let server = Server::pantala(backend, &[]);
            let mut admin = server.connect();
            let mut user = server.connect();
            for client in [&mut admin, &mut user] {
                client.call(&format!("HELLO {version}"));
            }
            let rules = "ACL SETUSER lib on >foo +set +eval +multi +exec ~object:1234";
            assert_eq!(admin.call(rules), Reply::ok());
            assert_eq!(user.call("AUTH lib foo"), Reply::ok());
            for _ in 0..10 {
                assert!(user.call("GET foo").text().starts_with("NOPERM "));
            }
            assert!(user.call("SET other 1").text().starts_with("NOPERM "));
            assert_eq!(user.call("SET object:1234 1"), Reply::ok());
            assert_eq!(user.call("MULTI"), Reply::ok());
            assert!(user.call("INCR foo").text().starts_with("NOPERM "));
            assert!(user.call("EXEC").text().starts_with("EXECABORT "));
            let script = "return redis.pcall('get', 'object:1234')";
            assert!(user.command(&["EVAL", script, "0"]).is_error());
            let all = [
                ["1", "command", "lua", "get", "lib"],
                ["1", "command", "multi", "incr", "lib"],
                ["1", "key", "toplevel", "other", "lib"],
                ["10", "command", "toplevel", "get", "lib"],
            ];
            assert_eq!(entries(&mut admin, "10"), all);
            assert_eq!(entries(&mut admin, "2"), all[..2]);
            assert_eq!(admin.call("ACL LOG RESET"), Reply::ok());
            assert!(entries(&mut admin, "10").is_empty());
        }
    });
}

#[test]
fn logins_follow_the_state_of_the_user() {
    let server = Server::pantala(Backend::Epoll, &[]);
    let mut admin = server.connect();
    let mut set = |rules: &str| assert_eq!(admin.call(&format!("ACL SETUSER lib {rules}")), Reply::ok(), "{rules}");
    let login = |password: &str| {
        let mut client = server.connect();
        (client.call(&format!("AUTH lib {password}")), client)
    };
    #[track_caller]
    fn assert_rejected((reply, _): (Reply, Client)) {
        assert!(reply.text().starts_with("WRONGPASS "), "{reply:?}");
    }
    assert_rejected(login("secret"));
    set(">secret");
    assert_rejected(login("secret"));
    set("on +acl");
    let (reply, mut client) = login("secret");
    assert_eq!((reply, client.call("ACL WHOAMI").text()), (Reply::ok(), "lib".to_owned()));
    assert_rejected(login("wrong-password"));
    // A library may send an empty password, which is a wrong one here.
    assert_rejected(login(""));
    // Permissions change while the client is connected.
    assert!(client.call("SET foo bar").text().ends_with("has no permissions to run the 'set' command"));
    set("+SET");
    assert!(client.call("SET foo bar").text().contains("no permissions to access one of the keys"));
    set("allcommands ~foo:* ~bar:*");
    for (key, is_allowed) in [("foo:1", true), ("bar:2", true), ("zap:3", false)] {
        assert_eq!(client.call(&format!("SET {key} a")) == Reply::ok(), is_allowed, "{key}");
    }
    set("-ping");
    assert_eq!(client.call("INCR foo:counter"), Reply::Integer(1));
    assert!(client.call("PING").text().ends_with("has no permissions to run the 'ping' command"));
    set("<secret");
    assert_rejected(login("secret"));
    set("nopass");
    assert_eq!(login("any").0, Reply::ok());
    assert_eq!(login("").0, Reply::ok());
    assert_eq!(admin.call("ACL DELUSER lib"), Reply::Integer(1));
    assert_rejected(login("any"));
}

/// A transaction's keys are checked again when `EXEC` runs it. In this test, the permission for a
/// key is revoked after the command was queued.
#[test]
fn keys_of_a_transaction_are_checked_when_it_runs() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "3", "--shards", "8"]);
        let mut admin = server.connect();
        assert_eq!(admin.call("SET secret 1"), Reply::ok());
        assert_eq!(admin.call("ACL SETUSER lib on nopass +@all ~*"), Reply::ok());
        let mut client = server.connect();
        assert_eq!(client.call("AUTH lib x"), Reply::ok());
        for command in ["MULTI", "GET secret", "SET open 1", "EVAL return(redis.call('get',KEYS[1])) 1 secret"] {
            assert!(!client.call(command).is_error(), "{command}");
        }
        assert_eq!(admin.call("ACL SETUSER lib resetkeys ~open"), Reply::ok());
        let replies = client.call("EXEC");
        let replies = replies.elements();
        assert!(replies[0].text().starts_with("NOPERM ") && replies[2].text().starts_with("NOPERM "), "{replies:?}");
        assert_eq!(replies[1], Reply::ok());
    });
}

/// A script that reads an undeclared key is rolled back and reruns with all shards. It does not
/// rerun if its user was deleted or may no longer run scripts.
#[test]
fn a_script_does_not_rerun_without_permission() {
    const SCRIPT: &str = "for _ = 1, 2e8 do end redis.call('SET', 'leak', redis.call('GET', 'secret'))";
    const BESIDE_A_SCRIPT: Duration = Duration::from_millis(50);
    // Number of attempts. On a busy host, the script may end before the user is changed.
    const ATTEMPTS: usize = 4;
    let is_refused = |server: &Server, change: &str, attempt: usize| {
        let mut admins: Vec<Client> = (0..3).map(|_| server.connect()).collect();
        assert_eq!(admins[0].call("ACL SETUSER lib on nopass +@all ~*"), Reply::ok());
        admins[0].call("DEL leak");
        let mut client = server.connect();
        assert_eq!(client.call("AUTH lib x"), Reply::ok());
        // Once a script has needed all shards, it starts with all of them. Each attempt therefore
        // uses a new script.
        client.send(&["EVAL", &format!("{SCRIPT} -- {change} {attempt}"), "0"]);
        let served = first_served(&mut admins, BESIDE_A_SCRIPT);
        let admin = &mut admins[served];
        eventually("the script runs", || admin.call("CLIENT LIST").text().contains(" cmd=eval user=lib "));
        assert!(!admin.call(change).is_error());
        assert_eq!(admin.call("SET secret new"), Reply::ok());
        let reply = client.try_receive();
        let is_refused = !matches!(&reply, Ok((reply, _)) if !reply.is_error());
        assert!(!is_refused || admin.call("EXISTS leak") == Reply::Integer(0), "{change}: {reply:?}");
        is_refused
    };
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "3", "--shards", "8"]);
        for change in ["ACL SETUSER lib -eval", "ACL DELUSER lib"] {
            assert!((0..ATTEMPTS).any(|attempt| is_refused(&server, change, attempt)), "{change}");
        }
    });
}

/// As in Redis 7.0, a user who may not read a key still sees the key's name in invalidations and in
/// the replies of commands without a key.
#[test]
fn names_of_keys_are_visible() {
    for_each_backend(|backend| {
        let servers = [Some(Server::pantala(backend, &[])), Server::redis(&[])];
        for server in servers.iter().flatten() {
            let mut admin = server.connect();
            assert_eq!(admin.call("ACL SETUSER lib on nopass +@all ~open"), Reply::ok());
            let mut client = server.connect();
            for command in ["AUTH lib x", "HELLO 3", "CLIENT TRACKING on BCAST"] {
                assert!(!client.call(command).is_error(), "{command}");
            }
            assert_eq!(admin.call("SET secret 1"), Reply::ok());
            let invalidated = Reply::Array(vec![Reply::bulk("secret")]);
            assert_eq!(client.receive(), Reply::Push(vec![Reply::bulk("invalidate"), invalidated]));
            assert_eq!(client.call("RANDOMKEY").text(), "secret");
            assert!(client.call("GET secret").text().starts_with("NOPERM "));
        }
    });
}

/// A client runs `ACL LOAD`. The file replaces the client's own user, denies it a channel, or omits
/// it. In each case, as in Redis 7.0, the client receives the reply, and then its connection is
/// closed.
#[test]
fn a_client_may_load_a_file_that_replaces_its_own_user() {
    const OTHERS: &str = "user default on nopass ~* &* +@all\n";
    const BEFORE: &str = "user lib on nopass +@all ~* &*\n";
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("users.acl");
    let args = ["--aclfile", path.to_str().expect("UTF-8")];
    for_each_backend(|backend| {
        for after in [BEFORE, "user lib on nopass +@all ~* resetchannels\n", ""] {
            let run = |server: &Server| {
                let mut client = server.connect();
                for command in ["AUTH lib x", "HELLO 3", "SUBSCRIBE channel"] {
                    assert!(!client.call(command).is_error(), "{command}");
                }
                std::fs::write(&path, format!("{OTHERS}{after}")).expect("written");
                client.send(&["ACL", "LOAD"]);
                let rest = client.read_to_end();
                assert_eq!(server.connect().call("PING").text(), "PONG");
                std::fs::write(&path, format!("{OTHERS}{BEFORE}")).expect("written");
                rest
            };
            std::fs::write(&path, format!("{OTHERS}{BEFORE}")).expect("written");
            let mut server = Server::pantala(backend, &args);
            assert_eq!(run(&server), b"+OK\r\n", "{after}");
            server.assert_sound();
            if let Some(redis) = Server::redis(&args) {
                assert_eq!(run(&redis), b"+OK\r\n", "redis-server: {after}");
            }
        }
    });
}

/// ACL files that are malformed in one line: nothing changes, and the error names the line.
#[test]
fn malformed_files_change_nothing() {
    const VALID: &str = "user default on nopass ~* &* +@all\nuser keep on nopass +get\n";
    let many_selectors = format!("user a on {}", "(+get ~a) ".repeat(2000));
    let long_name = format!("user {} on", "n".repeat(100_000));
    let many_users: String = (0..20_000).map(|number| format!("user u{number} on nopass +get ~a{number}\n")).collect();
    for_each_backend(|backend| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("users.acl");
        std::fs::write(&path, VALID).expect("written");
        let mut server = Server::pantala(backend, &["--aclfile", path.to_str().expect("UTF-8")]);
        let mut admin = server.connect();
        let before = admin.call("ACL LIST");
        for line in [
            &b"user"[..],
            b"user ",
            b"USER a on",
            b"junk",
            b"\xef\xbb\xbfuser a on",
            b"user a on \0 +get",
            b"user a\0b on",
            b"user a on\tnopass",
            b"user \"a b\" on",
            b"user a on (+get",
            b"user a on +get)",
            b"user a on ((+get))",
            b"user a on %X~a",
            b"user a on %",
            b"user a on #abc",
            b"user a on <absent",
            b"user a on +@nosuch",
            b"user a on +nosuch",
            b"user a on +get|x|y",
            b"user a on +config|get|x",
            b"user a on allkeys ~a",
            b"user a on allchannels &a",
            b"user a on\nuser a off",
        ] {
            // `line` is appended after the two lines of `VALID`, so the invalid line is the third.
            // The last case has two lines, and its second line is invalid.
            let file = [VALID.as_bytes(), line, b"\nuser last on nopass +@all\n"].concat();
            std::fs::write(&path, file).expect("written");
            let error = admin.call("ACL LOAD").text();
            let number = if line.ends_with(b"off") { 4 } else { 3 };
            let names = [":{}:", ":{} ", "line {}."].map(|form| form.replace("{}", &number.to_string()));
            let is_named = names.iter().any(|name| error.contains(name));
            assert!(error.starts_with("ERR ") && is_named, "{}: {error}", line.escape_ascii());
            assert_eq!(admin.call("ACL LIST"), before, "{}", line.escape_ascii());
        }
        for (more, count) in [(many_selectors.as_str(), 1), (&long_name, 1), (&many_users, 20_000), ("\n\n", 0)] {
            std::fs::write(&path, format!("{VALID}{more}\n")).expect("written");
            assert_eq!(admin.call("ACL LOAD"), Reply::ok());
            assert_eq!(admin.call("ACL USERS").elements().len(), 2 + count);
        }
        server.assert_sound();
    });
}
