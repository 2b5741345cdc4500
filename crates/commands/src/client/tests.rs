//! Tests of `CLIENT` on a fake host, which stands for the server process.

use std::sync::atomic::Ordering::Relaxed;

use pantala_engine::client::{Durability, ReplyMode};

use crate::testing_host::{LocalTest, START_MS};

const SYNTAX: &str = "-ERR syntax error|";
const BAD_NAME: &str = "-ERR Client names cannot contain spaces, newlines or special characters.|";

#[test]
fn names_are_printable() {
    let mut test = LocalTest::new();
    test.expect(&[
        ("CLIENT ID", ":1|"),
        ("CLIENT GETNAME", "$-1|"),
        ("CLIENT SETNAME a!~", "+OK|"),
        ("CLIENT GETNAME", "$3|a!~|"),
        ("CLIENT SETNAME a\nb", BAD_NAME),
        ("CLIENT GETNAME", "$3|a!~|"),
        ("CLIENT SETNAME ''", "+OK|"),
        ("CLIENT GETNAME", "$-1|"),
        ("CLIENT SETINFO LIB-NAME redis-py", "+OK|"),
        ("CLIENT SETINFO lib-ver 1.2", "+OK|"),
        ("CLIENT SETINFO lib-ver a\tb", "-ERR lib-ver cannot contain spaces, newlines or special characters.|"),
        ("CLIENT SETINFO foo a", "-ERR Unrecognized option 'foo'|"),
    ]);
    for bad in [&b"a b"[..], b"\x7f", b"\x80", b"\0", b" "] {
        assert_eq!(
            test.raw(&[b"CLIENT", b"SETNAME", bad]),
            format!("{}\r\n", &BAD_NAME[..BAD_NAME.len() - 1]).into_bytes()
        );
    }
    let names = test.session.client.names();
    assert_eq!((names.library.as_slice(), names.library_version.as_slice()), (&b"redis-py"[..], &b"1.2"[..]));
}

#[test]
fn reply_modes() {
    let mut test = LocalTest::new();
    let mut mode = |command: &str, reply: &str| {
        test.expect(&[(command, reply)]);
        test.session.reply_mode
    };
    assert_eq!(mode("CLIENT REPLY SKIP", ""), ReplyMode::SkipNext);
    assert_eq!(mode("CLIENT REPLY on", "+OK|"), ReplyMode::On);
    assert_eq!(mode("CLIENT REPLY off", ""), ReplyMode::Off);
    assert_eq!(mode("CLIENT REPLY skip", ""), ReplyMode::Off);
    assert_eq!(mode("CLIENT REPLY foo", SYNTAX), ReplyMode::Off);
    assert_eq!(mode("CLIENT REPLY ON", "+OK|"), ReplyMode::On);
}

#[test]
fn no_evict_and_no_touch_are_switches() {
    let mut test = LocalTest::new();
    test.expect(&[("CLIENT NO-EVICT on", "+OK|"), ("CLIENT NO-TOUCH ON", "+OK|"), ("CLIENT NO-EVICT x", SYNTAX)]);
    assert!(test.session.client.no_evict.load(Relaxed) && test.session.client.no_touch.load(Relaxed));
    test.expect(&[("CLIENT NO-EVICT off", "+OK|"), ("CLIENT NO-TOUCH off", "+OK|"), ("CLIENT NO-TOUCH ''", SYNTAX)]);
    assert!(!test.session.client.no_evict.load(Relaxed) && !test.session.client.no_touch.load(Relaxed));
}

#[test]
fn durability_is_counted() {
    let mut test = LocalTest::new();
    for (command, durability, asks) in [
        ("CLIENT DURABILITY always", Durability::Always, Some(true)),
        ("CLIENT DURABILITY ALWAYS", Durability::Always, None),
        ("CLIENT DURABILITY everysec", Durability::EverySecond, Some(false)),
        ("CLIENT DURABILITY default", Durability::Default, None),
        ("CLIENT DURABILITY always", Durability::Always, Some(true)),
        ("RESET", Durability::Default, Some(false)),
        ("RESET", Durability::Default, None),
    ] {
        assert!(test.run(command).starts_with('+'), "{command}");
        assert_eq!(test.session.durability, durability);
        let recorded: Vec<String> = asks.map(|asks| format!("asks for always: {asks}")).into_iter().collect();
        assert_eq!(test.take_calls(), recorded, "{command}");
    }
    test.expect(&[("CLIENT DURABILITY no", SYNTAX)]);
}

#[test]
fn lines_have_the_fields_of_redis_in_order() {
    let mut test = LocalTest::new();
    test.add(1002);
    test.session.client.names().name = b"me".to_vec();
    test.session.client.query_capacity_bytes.store(100, Relaxed);
    test.session.client.query_free_bytes.store(60, Relaxed);
    test.session.client.query_bytes.store(40, Relaxed);
    test.now_ms = START_MS + 2_999;
    let line = test.run("CLIENT INFO");
    let total_bytes = size_of::<pantala_engine::client::Client>() + 100;
    let expected = format!(
        "id=1 addr=127.0.0.1:1001 laddr=127.0.0.1:6379 fd=9 name=me age=2 idle=2 flags=N db=0 sub=0 psub=0 ssub=0 multi=-1 \
         qbuf=40 qbuf-free=60 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem=0 tot-mem={total_bytes} events=r \
         cmd=client|info user=default redir=-1 resp=2\n"
    );
    assert_eq!(line, format!("${}|{expected}|", expected.len()));
    let ids = |list: &str| -> Vec<String> {
        let ids = list.lines().filter_map(|line| line.split("id=").nth(1)?.split(' ').next().map(str::to_owned));
        ids.collect()
    };
    assert_eq!(ids(&test.run("CLIENT LIST")), ["1", "2"]);
    assert_eq!(ids(&test.run("CLIENT LIST TYPE Normal")), ["1", "2"]);
    assert_eq!(ids(&test.run("CLIENT LIST ID 2 1 7 -1 2")), ["2", "1", "2"]);
    test.expect(&[
        ("CLIENT LIST TYPE replica", "$0||"),
        ("CLIENT LIST TYPE slave", "$0||"),
        ("CLIENT LIST TYPE foo", "-ERR Unknown client type 'foo'|"),
        ("CLIENT LIST ID x", "-ERR Invalid client ID|"),
        ("CLIENT LIST ID", SYNTAX),
        ("CLIENT LIST TYPE normal x", SYNTAX),
        ("CLIENT LIST foo", SYNTAX),
    ]);
}

#[test]
fn flags_of_a_client() {
    let mut test = LocalTest::new();
    test.expect(&[("CLIENT NO-EVICT on", "+OK|"), ("CLIENT NO-TOUCH on", "+OK|")]);
    assert!(test.run("CLIENT INFO").contains(" flags=eT "));
}

#[test]
fn kill_by_address() {
    let mut test = LocalTest::new();
    let other = test.add(1002);
    test.expect(&[
        ("CLIENT KILL 127.0.0.1:1003", "-ERR No such client|"),
        ("CLIENT KILL ID", "-ERR No such client|"),
        ("CLIENT KILL 127.0.0.1:1002", "+OK|"),
        // The killed client is still in the table of clients, but it can't be killed again.
        ("CLIENT KILL 127.0.0.1:1002", "-ERR No such client|"),
    ]);
    assert!(other.killed.load(Relaxed));
    assert!(!test.run("CLIENT LIST").contains("id=2"));
    assert!(!test.session.close_after_reply);
    test.expect(&[("CLIENT KILL 127.0.0.1:1001", "+OK|")]);
    assert!(test.session.close_after_reply && !test.session.client.killed.load(Relaxed));
}

#[test]
fn kill_by_filters() {
    let mut test = LocalTest::new();
    let others: Vec<_> = (1002..1006).map(|port| test.add(port)).collect();
    test.now_ms = START_MS + 10_000;
    test.expect(&[
        ("CLIENT KILL ID 2 ADDR 127.0.0.1:1003", ":0|"),
        ("CLIENT KILL TYPE replica SKIPME no", ":0|"),
        ("CLIENT KILL LADDR 127.0.0.1:1 SKIPME no", ":0|"),
        ("CLIENT KILL MAXAGE 11 USER default", ":0|"),
    ]);
    assert!(!others.iter().any(|client| client.killed.load(Relaxed)));
}

#[test]
fn kill_skips_itself_by_default() {
    let mut test = LocalTest::new();
    let others: Vec<_> = (1002..1006).map(|port| test.add(port)).collect();
    test.now_ms = START_MS + 10_000;
    let killed = || others.iter().map(|client| client.killed.load(Relaxed)).collect::<Vec<_>>();
    let mut count = |command: &[&str]| {
        let words: Vec<&[u8]> = command.iter().map(|word| word.as_bytes()).collect();
        String::from_utf8_lossy(&test.raw(&words)).trim().to_owned()
    };
    assert_eq!(count(&["CLIENT", "KILL", "ID", "3", "TYPE", "normal"]), ":1");
    assert_eq!(killed(), [false, true, false, false]);
    assert_eq!(count(&["CLIENT", "KILL", "ID", "1", "SKIPME", "yes"]), ":0");
    assert_eq!(count(&["CLIENT", "KILL", "MAXAGE", "10", "USER", "default", "LADDR", "127.0.0.1:6379"]), ":3");
    assert_eq!(killed(), [true; 4]);
    assert_eq!(count(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no"]), ":1");
    assert!(test.session.close_after_reply);
}

#[test]
fn kill_rejects_invalid_options() {
    let mut test = LocalTest::new();
    test.add(1002);
    let no_id = "-ERR client-id should be greater than 0|";
    test.expect(&[
        ("CLIENT KILL ID 0 SKIPME no", no_id),
        ("CLIENT KILL ID x SKIPME no", no_id),
        ("CLIENT KILL MAXAGE 0 SKIPME no", "-ERR maxage should be greater than 0|"),
        ("CLIENT KILL TYPE foo SKIPME no", "-ERR Unknown client type 'foo'|"),
        ("CLIENT KILL USER foo SKIPME no", "-ERR No such user 'foo'|"),
        ("CLIENT KILL SKIPME maybe", SYNTAX),
        ("CLIENT KILL SKIPME no ID", SYNTAX),
        ("CLIENT KILL FOO x", SYNTAX),
    ]);
    assert!(!test.session.close_after_reply);
    assert_eq!(test.host.clients.all().iter().filter(|client| client.killed.load(Relaxed)).count(), 0);
}

#[test]
fn unblock_without_a_blocked_client() {
    LocalTest::new().expect(&[
        ("CLIENT UNBLOCK 1", ":0|"),
        ("CLIENT UNBLOCK 1 timeout", ":0|"),
        ("CLIENT UNBLOCK 1 ERROR", ":0|"),
        ("CLIENT UNBLOCK x", "-ERR value is not an integer or out of range|"),
        ("CLIENT UNBLOCK x foo", "-ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR|"),
        (
            "CLIENT UNBLOCK 1 2 3",
            "-ERR unknown subcommand or wrong number of arguments for 'UNBLOCK'. Try CLIENT HELP.|",
        ),
    ]);
}

#[test]
fn pauses_combine() {
    let mut test = LocalTest::new();
    let mut paused = |command: &str, reply: &str| {
        test.expect(&[(command, reply)]);
        let tuning = &test.keyspace.tuning;
        (tuning.paused_until_ms.load(Relaxed), tuning.pause_all.load(Relaxed))
    };
    assert_eq!(paused("CLIENT PAUSE 100 write", "+OK|"), (START_MS + 100, false));
    assert_eq!(paused("CLIENT PAUSE 50 ALL", "+OK|"), (START_MS + 100, true));
    assert_eq!(paused("CLIENT PAUSE 200 WRITE", "+OK|"), (START_MS + 200, true));
    assert_eq!(paused("CLIENT UNPAUSE", "+OK|"), (0, false));
    assert_eq!(paused("CLIENT PAUSE 0", "+OK|").0, 0);
    assert_eq!(paused("CLIENT PAUSE 7 WRITE", "+OK|"), (START_MS + 7, false));
    let longest = i64::MAX - START_MS;
    assert_eq!(paused(&format!("CLIENT PAUSE {longest}"), "+OK|"), (i64::MAX - 1, true));
    let beyond = format!("CLIENT PAUSE {}", longest + 1);
    assert_eq!(paused(&beyond, "+OK|").0, i64::MAX - 1);
}

#[test]
fn pause_rejects_invalid_arguments() {
    LocalTest::new().expect(&[
        ("CLIENT PAUSE x", "-ERR timeout is not an integer or out of range|"),
        ("CLIENT PAUSE -1", "-ERR timeout is negative|"),
        ("CLIENT PAUSE x foo", "-ERR CLIENT PAUSE mode must be WRITE or ALL|"),
        ("CLIENT PAUSE 1 a b", "-ERR unknown subcommand or wrong number of arguments for 'PAUSE'. Try CLIENT HELP.|"),
    ]);
}
