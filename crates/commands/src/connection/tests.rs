//! Tests of the connection commands on a fake host, which stands for the server process.

use std::sync::atomic::Ordering::Relaxed;

use pantala_engine::client::ReplyMode;
use pantala_resp::Version;

use crate::testing_host::LocalTest;

const HELLO2: &str = "*14|$6|server|$5|redis|$7|version|$6|7.0.15|$5|proto|:2|$2|id|:1|$4|mode|$10|standalone|$4|role|$6|master|$7|modules|*0|";
const HELLO3: &str = "%7|$6|server|$5|redis|$7|version|$6|7.0.15|$5|proto|:3|$2|id|:1|$4|mode|$10|standalone|$4|role|$6|master|$7|modules|*0|";
const WRONG: &str = "-WRONGPASS invalid username-password pair or user is disabled.|";

#[test]
fn commands_with_simple_replies() {
    let mut test = LocalTest::new();
    test.expect(&[
        ("PING", "+PONG|"),
        ("PING hi", "$2|hi|"),
        ("PING ''", "$0||"),
        ("PING a b", "-ERR wrong number of arguments for 'ping' command|"),
        ("ECHO hi", "$2|hi|"),
        ("ECHO", "-ERR wrong number of arguments for 'echo' command|"),
    ]);
    assert!(!test.session.close_after_reply);
    test.expect(&[("QUIT", "+OK|")]);
    assert!(test.session.close_after_reply);
}

#[test]
fn select_rejects_invalid_databases() {
    let mut test = LocalTest::new();
    test.expect(&[("SELECT 15", "+OK|")]);
    assert_eq!((test.session.db, test.session.client.db.load(std::sync::atomic::Ordering::Relaxed)), (15, 15));
    test.expect(&[
        ("SELECT 16", "-ERR DB index is out of range|"),
        ("SELECT -1", "-ERR DB index is out of range|"),
        ("SELECT x", "-ERR value is not an integer or out of range|"),
        ("SELECT 99999999999", "-ERR value is out of range, value must between -2147483648 and 2147483647|"),
    ]);
    assert_eq!(test.session.db, 15);
}

#[test]
fn auth_without_a_password() {
    let mut test = LocalTest::new();
    test.expect(&[
        (
            "AUTH x",
            "-ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?|",
        ),
        ("AUTH default x", "+OK|"),
        ("AUTH other x", WRONG),
        ("AUTH a b c", "-ERR syntax error|"),
    ]);
}

#[test]
fn auth_with_a_password() {
    let mut test = LocalTest::with_password(b"secret");
    test.expect(&[("AUTH wrong", WRONG), ("AUTH other secret", WRONG), ("AUTH default Secret", WRONG)]);
    assert!(!test.session.is_authenticated());
    test.expect(&[("AUTH secret", "+OK|")]);
    assert!(test.session.is_authenticated());
    // A later failed login doesn't log the client out; `RESET` does.
    test.expect(&[("AUTH wrong", WRONG)]);
    assert!(test.session.is_authenticated());
    test.expect(&[("RESET", "+RESET|"), ("AUTH default secret", "+OK|")]);
    assert!(test.session.is_authenticated());
    test.expect(&[("RESET", "+RESET|")]);
    assert!(!test.session.is_authenticated());
}

#[test]
fn hello_switches_the_protocol_version() {
    let mut test = LocalTest::new();
    test.expect(&[("HELLO", HELLO2), ("HELLO 3", HELLO3), ("HELLO", HELLO3), ("CLIENT GETNAME", "_|")]);
    assert_eq!(test.session.version, Version::Resp3);
    test.expect(&[
        ("HELLO 2 SETNAME me", HELLO2),
        ("CLIENT GETNAME", "$2|me|"),
        ("HELLO 2 setname you AUTH default any", HELLO2),
        ("CLIENT GETNAME", "$3|you|"),
        ("HELLO 2 SETNAME ''", HELLO2),
        ("CLIENT GETNAME", "$-1|"),
    ]);
}

#[test]
fn a_failed_hello_changes_nothing() {
    let mut test = LocalTest::new();
    test.expect(&[
        ("HELLO 1", "-NOPROTO unsupported protocol version|"),
        ("HELLO 4", "-NOPROTO unsupported protocol version|"),
        ("HELLO x", "-ERR Protocol version is not an integer or out of range|"),
        ("HELLO ''", "-ERR Protocol version is not an integer or out of range|"),
        ("HELLO 3 FOO", "-ERR Syntax error in HELLO option 'FOO'|"),
        ("HELLO 3 SETNAME", "-ERR Syntax error in HELLO option 'SETNAME'|"),
        ("HELLO 3 AUTH default", "-ERR Syntax error in HELLO option 'AUTH'|"),
        ("HELLO 3 SETNAME a\tb", "-ERR Client names cannot contain spaces, newlines or special characters.|"),
        ("HELLO 3 SETNAME a AUTH other x", WRONG),
        ("CLIENT GETNAME", "$-1|"),
    ]);
    assert_eq!(test.session.version, Version::Resp2);
}

#[test]
fn hello_authenticates() {
    let mut test = LocalTest::with_password(b"secret");
    let unauthenticated = "-NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time|";
    test.expect(&[("HELLO 3", unauthenticated), ("HELLO 3 AUTH default wrong", WRONG)]);
    assert!(!test.session.is_authenticated() && test.session.version == Version::Resp2);
    test.expect(&[("HELLO 3 AUTH default secret", HELLO3)]);
    assert!(test.session.is_authenticated());
}

#[test]
fn reset_logs_out_at_its_time() {
    let mut test = LocalTest::with_password(b"secret");
    let since_ms = |test: &LocalTest| test.session.client.unauthenticated_since_ms.load(Relaxed);
    let connected_ms = test.session.client.created_ms;
    assert_eq!(since_ms(&test), connected_ms);
    // `RESET` records a logout only if the client was authenticated.
    test.now_ms += 1000;
    test.expect(&[("RESET", "+RESET|")]);
    assert_eq!(since_ms(&test), connected_ms);
    test.expect(&[("AUTH secret", "+OK|")]);
    assert_eq!(since_ms(&test), 0);
    test.now_ms += 1000;
    test.expect(&[("RESET", "+RESET|")]);
    let logged_out_ms = test.now_ms;
    test.now_ms += 1000;
    test.expect(&[("RESET", "+RESET|")]);
    assert_eq!(since_ms(&test), logged_out_ms);
    assert!(!test.session.is_authenticated());
}

#[test]
fn reset_restores_a_new_session() {
    let mut test = LocalTest::new();
    test.expect(&[
        ("HELLO 3 SETNAME me", HELLO3),
        ("SELECT 3", "+OK|"),
        ("CLIENT NO-TOUCH on", "+OK|"),
        ("CLIENT NO-EVICT on", "+OK|"),
        ("CLIENT REPLY off", ""),
        ("RESET", "+RESET|"),
        ("CLIENT GETNAME", "$-1|"),
    ]);
    let session = &test.session;
    assert_eq!((session.db, session.version, session.reply_mode), (0, Version::Resp2, ReplyMode::On));
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    // NO-EVICT survives RESET in Redis 7.0.
    assert!(!session.client.no_touch.load(relaxed) && session.client.no_evict.load(relaxed));
}
