//! Tests of the hash commands. The expected replies were compared with those of redis-server
//! 7.0.15.

use std::sync::atomic::Ordering::Relaxed;

use pantala_engine::executor::Executor;
use pantala_engine::expire::ActiveExpiry;
use pantala_resp::Version;

use crate::testing::TestServer;

#[test]
fn fields_are_set_read_and_deleted() {
    let mut server = TestServer::new(3);
    server.expect(&[
        ("HSET h a 1 b 2", ":2"),
        ("HSET h a 3 c 4", ":1"),
        ("HSET h a", "-ERR wrong number of arguments for 'hset' command"),
        ("HMSET h a 3 b", "-ERR wrong number of arguments for 'hmset' command"),
        ("HMSET h d x", "+OK"),
        ("HSETNX h d y", ":0"),
        ("HSETNX h e y", ":1"),
        ("HGET h a", "3"),
        ("HGET h missing", "$-1"),
        ("HGET missing a", "$-1"),
        ("HMGET h a missing e", "*3 3 $-1 y"),
        ("HMGET missing a b", "*2 $-1 $-1"),
        ("HGETALL h", "*10 a 3 b 2 c 4 d x e y"),
        ("HKEYS h", "*5 a b c d e"),
        ("HVALS h", "*5 3 2 4 x y"),
        ("HGETALL missing", "*0"),
        ("HLEN h", ":5"),
        ("HEXISTS h a", ":1"),
        ("HEXISTS h z", ":0"),
        ("HSTRLEN h d", ":1"),
        ("HSTRLEN h z", ":0"),
        ("TYPE h", "+hash"),
        ("OBJECT ENCODING h", "listpack"),
        ("HDEL h a a z", ":1"),
        ("HDEL h b c d e", ":4"),
        ("EXISTS h", ":0"),
        ("HDEL h a", ":0"),
        ("SET s v", "+OK"),
        ("HSET s a 1", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("HGETALL s", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("HSETNX s a 1", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
    ]);
    server.check_counts(1, 0);
    assert_eq!(server.heap_bytes(), 0);
}

#[test]
fn encoding_changes_at_redis_limits() {
    let mut server = TestServer::new(1);
    let long = "x".repeat(65);
    server.expect(&[
        ("HSET h a 1", ":1"),
        (&format!("HSET h b {}", &long[1..]), ":1"),
        ("OBJECT ENCODING h", "listpack"),
        (&format!("HSETNX h a {long}"), ":0"),
        ("OBJECT ENCODING h", "listpack"),
        (&format!("HSET h {long} 1"), ":1"),
        ("OBJECT ENCODING h", "hashtable"),
        (&format!("HDEL h {long}"), ":1"),
        ("OBJECT ENCODING h", "hashtable"),
        ("HGET h a", "1"),
        ("COPY h g", ":1"),
        ("HLEN g", ":2"),
        ("DEL h", ":1"),
    ]);
    for field in 0..512 {
        server.run(&format!("HSET n {field} v"));
    }
    server.expect(&[("OBJECT ENCODING n", "listpack"), ("HSET n 512 v", ":1"), ("OBJECT ENCODING n", "hashtable")]);
    server.expect(&[("DEL n g", ":2")]);
    assert_eq!(server.heap_bytes(), 0);
}

#[test]
fn fields_are_incremented() {
    let mut server = TestServer::new(1);
    server.expect(&[
        ("HINCRBY h n 5", ":5"),
        ("HINCRBY h n -7", ":-2"),
        ("HINCRBY h n x", "-ERR value is not an integer or out of range"),
        ("HSET h s text max 9223372036854775807", ":2"),
        ("HINCRBY h s 1", "-ERR hash value is not an integer"),
        ("HINCRBY h max 1", "-ERR increment or decrement would overflow"),
        ("HINCRBYFLOAT h n 0.5", "-1.5"),
        ("HINCRBYFLOAT h f 3.0e3", "3000"),
        ("HINCRBYFLOAT h s 1", "-ERR hash value is not a float"),
        ("HINCRBYFLOAT h f x", "-ERR value is not a valid float"),
        ("HINCRBYFLOAT h f inf", "-ERR value is NaN or Infinity"),
        ("HINCRBYFLOAT new f inf", "-ERR value is NaN or Infinity"),
        ("EXISTS new", ":0"),
    ]);
    server.check_counts(1, 0);
}

#[test]
fn random_fields() {
    let mut server = TestServer::new(1);
    server.expect(&[
        ("HRANDFIELD missing", "$-1"),
        ("HRANDFIELD missing 3", "*0"),
        ("HSET h a 1 b 2 c 3", ":3"),
        ("HRANDFIELD h 0", "*0"),
        ("HRANDFIELD h 5", "*3 a b c"),
        ("HRANDFIELD h 3 WITHVALUES", "*6 a 1 b 2 c 3"),
        ("HRANDFIELD h 3 VALUES", "-ERR syntax error"),
        ("HRANDFIELD h 3 WITHVALUES x", "-ERR syntax error"),
        ("HRANDFIELD h x", "-ERR value is not an integer or out of range"),
        (
            "HRANDFIELD h -9223372036854775808",
            "-ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        ),
        ("HRANDFIELD h -9223372036854775807 WITHVALUES", "-ERR value is out of range"),
        ("HRANDFIELD h -67108865", "-ERR value is out of range"),
    ]);
    for (count, len) in [("2", 2), ("-7", 7)] {
        let picks = server.list(&format!("HRANDFIELD h {count}"));
        assert_eq!(picks.len(), len);
        assert!(picks.iter().all(|field| ["a", "b", "c"].contains(&field.as_str())), "{picks:?}");
    }
    for field in 0..1000 {
        server.run(&format!("HSET big f{field} v{field}"));
    }
    for (count, len) in [(1, 1), (999, 999), (1000, 1000), (2000, 1000), (-30, 30)] {
        let picks = server.list(&format!("HRANDFIELD big {count} WITHVALUES"));
        assert_eq!(picks.len(), 2 * len);
        assert!(picks.chunks(2).all(|pair| pair[0][1..] == pair[1][1..]));
    }
    server.session.version = Version::Resp3;
    server.expect(&[("HRANDFIELD h 3 WITHVALUES", "*3 *2 a 1 *2 b 2 *2 c 3"), ("HGETALL missing", "%0")]);
}

#[test]
fn hscan_returns_all_fields() {
    let mut server = TestServer::new(1);
    server.expect(&[
        ("HSCAN missing 0", "*2 0 *0"),
        ("HSCAN missing x", "-ERR invalid cursor"),
        ("HSCAN missing 0 COUNT x", "*2 0 *0"),
        ("HSET h a 1 b 2", ":2"),
        ("HSCAN h 0", "*2 0 *4 a 1 b 2"),
        ("HSCAN h 0 MATCH b*", "*2 0 *2 b 2"),
        ("HSCAN h 0 NOVALUES", "*2 0 *2 a b"),
        ("HSCAN h 0 COUNT 0", "-ERR syntax error"),
        ("HSCAN h 0 COUNT", "-ERR syntax error"),
        ("HSCAN h 0 TYPE hash", "-ERR syntax error"),
    ]);
    for field in 0..1000 {
        server.run(&format!("HSET big f{field} v{field}"));
    }
    let (mut cursor, mut fields, mut pages) = ("0".to_owned(), std::collections::BTreeSet::new(), 0);
    loop {
        let page = server.run(&format!("HSCAN big {cursor} COUNT 50 NOVALUES"));
        let words: Vec<&str> = page.split(' ').collect();
        fields.extend(words[3..].iter().map(|&field| field.to_owned()));
        cursor = words[1].to_owned();
        pages += 1;
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(fields.len(), 1000);
    assert!((5..40).contains(&pages), "{pages}");
}

// Redis 7.0 lacks the following commands, so their expected replies follow the documentation of
// Redis 7.4 and 8.0.

#[test]
fn fields_expire() {
    let mut server = TestServer::new(1);
    server.expect(&[
        ("HSET h a 1 b 2 c 3", ":3"),
        ("HEXPIRE h 10 FIELDS 2 a missing", "*2 :1 :-2"),
        ("OBJECT ENCODING h", "listpackex"),
        ("HTTL h FIELDS 3 a b missing", "*3 :10 :-1 :-2"),
        ("HPTTL h FIELDS 1 a", "*1 :10000"),
        ("HEXPIRE h 20 NX FIELDS 2 a b", "*2 :0 :1"),
        ("HEXPIRE h 5 XX FIELDS 2 a c", "*2 :1 :0"),
        ("HEXPIRE h 4 GT FIELDS 2 a c", "*2 :0 :0"),
        ("HEXPIRE h 6 GT FIELDS 1 a", "*1 :1"),
        ("HEXPIRE h 7 LT FIELDS 2 a c", "*2 :0 :1"),
        ("HPEXPIRE h 1500 lt FIELDS 1 a", "*1 :1"),
        ("HTTL h FIELDS 1 a", "*1 :2"),
        ("HPERSIST h FIELDS 3 b b missing", "*3 :1 :-1 :-2"),
        ("HGETALL h", "*6 a 1 b 2 c 3"),
    ]);
    server.now_ms += 1499;
    server.expect(&[("HGET h a", "1"), ("HPTTL h FIELDS 1 a", "*1 :1")]);
    server.now_ms += 1;
    server.expect(&[
        ("HGET h a", "$-1"),
        ("HLEN h", ":2"),
        ("HTTL h FIELDS 1 a", "*1 :-2"),
        ("HSETNX h a new", ":1"),
        ("HTTL h FIELDS 1 a", "*1 :-1"),
        ("HDEL h a", ":1"),
        ("HPERSIST h FIELDS 1 c", "*1 :1"),
        ("HEXPIRE h 1 FIELDS 2 b c", "*2 :1 :1"),
    ]);
    server.check_counts(1, 0);
    server.now_ms += 1000;
    // Deleting the last field deletes the key.
    server.expect(&[("HGETALL h", "*0"), ("EXISTS h", ":0"), ("HEXPIRE h 1 FIELDS 1 b", "*1 :-2")]);
    server.check_counts(0, 0);
    assert_eq!(server.heap_bytes(), 0);
}

#[test]
fn expired_fields_are_invisible() {
    let mut server = TestServer::new(2);
    server.expect(&[
        ("HSET h_1 a 9 b 2", ":2"),
        ("HSET h_2 a 1", ":1"),
        ("HSET all a 1", ":1"),
        ("HSET right b 2", ":1"),
        ("HEXPIRE right 100 FIELDS 1 b", "*1 :1"),
        ("RPUSH list 1 2", ":2"),
        ("HPEXPIRE h_1 5 FIELDS 1 a", "*1 :1"),
        ("HPEXPIRE all 5 FIELDS 1 a", "*1 :1"),
        ("SORT list BY h_*->a GET h_*->a", "*2 1 9"),
    ]);
    server.now_ms += 5;
    server.expect(&[("SORT list BY h_*->a GET h_*->a", "*2 $-1 1"), ("DUMP all", "$-1"), ("HGET h_1 b", "2")]);
    server.expect(&[("HSET h_1 a 9", ":1"), ("HPEXPIRE h_1 5 FIELDS 1 a", "*1 :1")]);
    server.now_ms += 5;
    assert_eq!(server.run("DUMP h_1"), server.run("DUMP right"));
}

#[test]
fn a_command_on_named_fields_expires_a_bounded_number_of_others() {
    let mut server = TestServer::new(1);
    for field in 0..5000 {
        server.run(&format!("HSET h {field} 1"));
        server.run(&format!("HPEXPIRE h {} FIELDS 1 {field}", 5 + field % 3));
    }
    server.expect(&[("HSET h stays 7", ":1")]);
    let mut heap_bytes = server.heap_bytes();
    server.now_ms += 10;
    for (command, reply) in [
        ("HGET h 4999", "$-1"),
        ("HMGET h 4998 stays 4997", "*3 $-1 7 $-1"),
        ("HEXISTS h 4996", ":0"),
        ("HSTRLEN h 4995", ":0"),
        ("HINCRBY h 4994 2", ":2"),
        ("HTTL h FIELDS 2 4993 stays", "*2 :-2 :-1"),
        ("HDEL h 4992 4991", ":0"),
        ("HSETNX h 4990 1", ":1"),
        ("HSET h 4989 1 4988 1", ":2"),
    ] {
        server.expect(&[(command, reply)]);
        let left = server.heap_bytes();
        assert!(left > 0 && left < heap_bytes, "{command} deleted nothing");
        assert!(left > heap_bytes / 2, "{command} deleted too much");
        heap_bytes = left;
    }
    server.expect(&[("HLEN h", ":5"), ("HGET h 4994", "2"), ("HTTL h FIELDS 1 4988", "*1 :-1")]);
}

/// A hash whose last field has expired is deleted before a command sets another field. The new hash
/// therefore doesn't inherit the TTL of the key.
#[test]
fn the_last_expired_field_deletes_the_key_first() {
    for command in ["HSET h b 2", "HSETNX h b 2", "HINCRBY h b 2", "HINCRBYFLOAT h b 2"] {
        let mut server = TestServer::new(1);
        server.expect(&[("HSET h a 1", ":1"), ("PEXPIRE h 100000", ":1"), ("HPEXPIRE h 5 FIELDS 1 a", "*1 :1")]);
        server.now_ms += 5;
        server.run(command);
        server.expect(&[("HGETALL h", "*2 b 2"), ("PTTL h", ":-1")]);
    }
    let mut server = TestServer::new(1);
    server.expect(&[("HSET h a 1 b 2", ":2"), ("PEXPIRE h 100000", ":1"), ("HPEXPIRE h 5 FIELDS 1 a", "*1 :1")]);
    server.now_ms += 5;
    server.expect(&[("HSET h a 3", ":1"), ("HGETALL h", "*4 b 2 a 3"), ("PTTL h", ":99995")]);
}

#[test]
fn a_pause_hides_no_deadline_of_other_fields() {
    let mut server = TestServer::new(1);
    server.expect(&[
        ("HSET h a 1 b 2 c 3", ":3"),
        ("HPEXPIRE h 5 FIELDS 1 a", "*1 :1"),
        ("HPEXPIRE h 100 FIELDS 1 b", "*1 :1"),
    ]);
    server.now_ms += 5;
    server.keyspace.tuning.paused_until_ms.store(server.now_ms + 1, Relaxed);
    server.expect(&[
        ("HPTTL h FIELDS 4 a b c missing", "*4 :-2 :95 :-1 :-2"),
        ("HPTTL h FIELDS 1 b", "*1 :95"),
        ("HTTL h FIELDS 2 b a", "*2 :1 :-2"),
    ]);
}

#[test]
fn a_pause_keeps_expired_fields_but_hides_them() {
    let mut server = TestServer::new(1);
    server.expect(&[("HSET h a 1 b 2", ":2"), ("HPEXPIRE h 5 FIELDS 1 a", "*1 :1")]);
    server.now_ms += 5;
    server.keyspace.tuning.paused_until_ms.store(server.now_ms + 1, Relaxed);
    let heap_bytes = server.heap_bytes();
    server.expect(&[
        ("HGET h a", "$-1"),
        ("HGET h b", "2"),
        ("HMGET h b a b c", "*4 2 $-1 2 $-1"),
        ("HEXISTS h a", ":0"),
        ("HLEN h", ":1"),
        ("HSCAN h 0", "*2 0 *2 b 2"),
        ("HGETALL h", "*2 b 2"),
        ("HTTL h FIELDS 2 a b", "*2 :-2 :-1"),
    ]);
    assert_eq!(server.heap_bytes(), heap_bytes);
    server.now_ms += 1;
    server.expect(&[("HGET h a", "$-1")]);
    assert!(server.heap_bytes() < heap_bytes);
}

#[test]
fn replacing_a_value_clears_its_expiry() {
    let mut server = TestServer::new(3);
    server.expect(&[
        ("HSET h n 1 f 1.5 s x", ":3"),
        ("HEXPIRE h 100 FIELDS 3 n f s", "*3 :1 :1 :1"),
        // Updating a value keeps its field's expiry; replacing a value removes it.
        ("HINCRBY h n 2", ":3"),
        ("HINCRBYFLOAT h f 1", "2.5"),
        ("HTTL h FIELDS 2 n f", "*2 :100 :100"),
        ("HSET h s y", ":0"),
        ("HTTL h FIELDS 1 s", "*1 :-1"),
        ("HDEL h n", ":1"),
        ("HSET h n 1", ":1"),
        ("HTTL h FIELDS 1 n", "*1 :-1"),
        // Copying or renaming a hash keeps the expiries of its fields.
        ("COPY h copy", ":1"),
        ("RENAME h moved", "+OK"),
        ("HTTL copy FIELDS 2 f s", "*2 :100 :-1"),
        ("HTTL moved FIELDS 2 f s", "*2 :100 :-1"),
        ("SET h v", "+OK"),
    ]);
    server.run(&format!("HSET copy long {}", "x".repeat(65)));
    server.expect(&[
        ("OBJECT ENCODING copy", "hashtable"),
        ("HTTL copy FIELDS 1 f", "*1 :100"),
        // A deadline in the past deletes the field immediately.
        ("HPEXPIREAT copy 1 FIELDS 2 f s", "*2 :2 :2"),
        ("HEXPIRE copy 0 FIELDS 1 n", "*1 :2"),
        ("HKEYS copy", "*1 long"),
        ("HEXPIREAT copy 1 FIELDS 1 long", "*1 :2"),
        ("EXISTS copy", ":0"),
        ("DEL moved h", ":2"),
    ]);
    server.check_counts(0, 0);
    assert_eq!(server.heap_bytes(), 0);
}

#[test]
fn invalid_times_and_fields_are_errors() {
    const MISSING: &str = "-ERR Mandatory argument FIELDS is missing or not at the right position";
    const COUNT: &str = "-ERR The `numfields` parameter must match the number of arguments";
    const WRONG: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";
    let mut server = TestServer::new(1);
    server.expect(&[
        ("HSET h a 1", ":1"),
        ("SET s v", "+OK"),
        ("HEXPIRE s x FIELDS 1 a", WRONG),
        ("HPERSIST s FIELDS 0 a", WRONG),
        ("HTTL s FIELDS 0 a", WRONG),
        ("HEXPIRE h x FIELDS 1 a", "-ERR value is not an integer or out of range"),
        ("HEXPIRE h -1 FIELDS 1 a", "-ERR invalid expire time, must be >= 0"),
        ("HEXPIRE h 9223372036854775807 FIELDS 1 a", "-ERR invalid expire time in 'hexpire' command"),
        ("HPEXPIREAT h 70368744177664 FIELDS 1 a", "-ERR invalid expire time in 'hpexpireat' command"),
        ("HPEXPIREAT h 70368744177663 FIELDS 1 a", "*1 :1"),
        ("HPEXPIRETIME h FIELDS 1 a", "*1 :70368744177663"),
        ("HEXPIRETIME h FIELDS 1 a", "*1 :70368744178"),
        ("HEXPIRE h 1 NX NX FIELDS 1 a", MISSING),
        ("HEXPIRE h 1 FIELD 1 a", MISSING),
        ("HEXPIRE h 1 FIELDS 0 a", "-ERR Parameter `numFields` should be greater than 0"),
        ("HEXPIRE h 1 FIELDS 2 a", COUNT),
        ("HEXPIRE h 1 NX FIELDS 1", "-ERR The `numfields` parameter must match the number of arguments"),
        ("HTTL h NX 1 a", MISSING),
        ("HTTL h FIELDS x a", "-ERR Number of fields must be a positive integer"),
        ("HTTL missing FIELDS 2 a", COUNT),
        ("HTTL missing FIELDS 2 a b", "*2 :-2 :-2"),
        ("HPERSIST missing FIELDS 1 a", "*1 :-2"),
        ("HPERSIST h FIELDS 2 a", COUNT),
    ]);
    server.check_counts(2, 0);
}

#[test]
fn fields_are_read_and_removed() {
    let mut server = TestServer::new(1);
    server.expect(&[
        ("HGETDEL h FIELDS 2 a b", "*2 $-1 $-1"),
        ("HSET h a 1 b 2 c 3", ":3"),
        ("HGETDEL h FIELDS 3 a missing a", "*3 1 $-1 $-1"),
        ("HGETDEL h FIELDS 1 missing", "*1 $-1"),
        ("HGETALL h", "*4 b 2 c 3"),
        ("HGETDEL h FIELDS 2 b c", "*2 2 3"),
        ("EXISTS h", ":0"),
    ]);
    server.check_counts(0, 0);
    assert_eq!(server.heap_bytes(), 0);
}

#[test]
fn fields_are_read_and_their_expiry_changes() {
    let mut server = TestServer::new(1);
    server.expect(&[
        ("HGETEX h FIELDS 2 a b", "*2 $-1 $-1"),
        ("HGETEX h EX 10 FIELDS 1 a", "*1 $-1"),
        ("HSET h a 1 b 2 c 3", ":3"),
        ("HGETEX h EX 10 FIELDS 2 a missing", "*2 1 $-1"),
        ("HGETEX h px 2500 FIELDS 1 b", "*1 2"),
        ("HPTTL h FIELDS 3 a b c", "*3 :10000 :2500 :-1"),
        ("HGETEX h FIELDS 1 a", "*1 1"),
        ("HPTTL h FIELDS 1 a", "*1 :10000"),
        ("HGETEX h PERSIST FIELDS 2 a c", "*2 1 3"),
        ("HPTTL h FIELDS 2 a c", "*2 :-1 :-1"),
        ("HGETEX h PXAT 70368744177663 FIELDS 1 a", "*1 1"),
        ("HPEXPIRETIME h FIELDS 1 a", "*1 :70368744177663"),
        // A deadline that has passed deletes the fields after they were read.
        ("HGETEX h EXAT 1 FIELDS 2 a b", "*2 1 2"),
        ("HGETALL h", "*2 c 3"),
        ("HGETEX h PX 0 FIELDS 1 c", "*1 3"),
        ("EXISTS h", ":0"),
    ]);
    server.check_counts(0, 0);
    assert_eq!(server.heap_bytes(), 0);
}

#[test]
fn fields_are_set_with_their_expiry() {
    let mut server = TestServer::new(1);
    server.expect(&[
        ("HSETEX h FXX FIELDS 1 a 1", ":0"),
        ("EXISTS h", ":0"),
        ("HSETEX h FNX EX 10 FIELDS 2 a 1 b 2", ":1"),
        ("HSETEX h FNX FIELDS 2 b 3 c 3", ":0"),
        ("HSETEX h FXX FIELDS 2 b 3 c 3", ":0"),
        ("HGETALL h", "*4 a 1 b 2"),
        ("HSETEX h KEEPTTL FXX FIELDS 1 a 5", ":1"),
        ("HSETEX h FIELDS 1 b 6", ":1"),
        ("HPTTL h FIELDS 2 a b", "*2 :10000 :-1"),
        ("HSETEX h KEEPTTL FIELDS 1 n 7", ":1"),
        ("HGETALL h", "*6 a 5 b 6 n 7"),
        // The last of two values for one field counts.
        ("HSETEX h PX 500 FIELDS 2 n 8 n 9", ":1"),
        ("HGET h n", "9"),
    ]);
    server.now_ms += 500;
    server.expect(&[
        ("HSETEX h FXX FIELDS 1 n 1", ":0"),
        ("HSETEX h FNX FIELDS 1 n 1", ":1"),
        // A deadline that has passed deletes the fields.
        ("HSETEX h PXAT 1 FIELDS 2 a 1 x 1", ":1"),
        ("HGETALL h", "*4 b 6 n 1"),
        ("HSETEX new EX 0 FIELDS 1 a 1", ":1"),
        ("EXISTS new", ":0"),
        ("DEL h", ":1"),
    ]);
    server.check_counts(0, 0);
    assert_eq!(server.heap_bytes(), 0);
}

#[test]
fn invalid_options_of_combined_commands_are_errors() {
    const MISSING: &str = "-ERR Mandatory argument FIELDS is missing or not at the right position";
    const COUNT: &str = "-ERR The `numfields` parameter must match the number of arguments";
    const NUMBER: &str = "-ERR Number of fields must be a positive integer";
    const WRONG: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";
    const ARITY: &str = "-ERR wrong number of arguments for 'hsetex' command";
    const ONE_TIME: &str = "-ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified";
    const ONE_CONDITION: &str = "-ERR Only one of FXX or FNX arguments can be specified";
    let mut server = TestServer::new(1);
    server.expect(&[
        ("SET s v", "+OK"),
        ("HGETDEL s x 1 a", WRONG),
        ("HGETDEL h x 1 a", MISSING),
        ("HGETDEL h FIELDS 0 a", NUMBER),
        ("HGETDEL h FIELDS 2 a", COUNT),
        ("HGETEX s x 1 a", WRONG),
        ("HGETEX h EX 1 a b", MISSING),
        ("HGETEX h EX -1 FIELDS 1 a", "-ERR invalid expire time, must be >= 0"),
        ("HGETEX h PXAT 70368744177664 FIELDS 1 a", "-ERR invalid expire time in 'hgetex' command"),
        ("HGETEX h EX 1 PERSIST FIELDS 1 a", MISSING),
        ("HGETEX h FIELDS x a", NUMBER),
        ("HGETEX h EX 1 FIELDS 1", COUNT),
        // The options are checked before the type.
        ("HSETEX s FIELDS x a 1", "-ERR invalid number of fields"),
        ("HSETEX s FIELDS 1 a 1", WRONG),
        ("HSETEX s FIELDS 2 a 1", ARITY),
        ("HSETEX s FIELDS 1 a 1 b", ARITY),
        ("HSETEX s EX 1 FIELDS 1 a", ARITY),
        ("HSETEX s FNX FNX FIELDS 1 a 1", ONE_CONDITION),
        ("HSETEX s EX 1 KEEPTTL FIELDS 1 a 1", ONE_TIME),
        ("HSETEX s EX 1 PX 1 FIELDS 1 a 1", ONE_TIME),
        ("HSETEX s EX x FIELDS 1 a 1", "-ERR value is not an integer or out of range"),
        ("HSETEX s PX -1 FIELDS 1 a 1", "-ERR invalid expire time, must be >= 0"),
        ("HSETEX s EX 9223372036854775807 FIELDS 1 a 1", "-ERR invalid expire time in 'hsetex' command"),
        ("HSETEX s KEEPTTL FNX KEEPTTL PX", ONE_TIME),
        ("HSETEX s FNX PX 1 x 1", "-ERR unknown argument: x"),
    ]);
    server.check_counts(1, 0);
}

#[test]
fn fields_expire_in_the_background() {
    let mut server = TestServer::new(4);
    for number in 0..300 {
        server.run(&format!("HSET h{number} a 1 b 2"));
        server.run(&format!("HPEXPIRE h{number} {} FIELDS 1 a", 10 + number % 2 * 1000));
    }
    for field in 0..3000 {
        server.run(&format!("HSET big {field} v"));
        server.run(&format!("HPEXPIRE big 10 FIELDS 1 {field}"));
    }
    server.expect(&[("RENAME h0 renamed", "+OK"), ("DEL h2", ":1"), ("SWAPDB 0 1", "+OK")]);
    let watched = |server: &TestServer| -> u64 {
        let timed_hashes_of = |shard| server.keyspace.database_stats_of_shard(shard).map(|db| db.timed_hashes.get());
        (0..4).flat_map(timed_hashes_of).sum()
    };
    assert!((300..=302).contains(&watched(&server)), "{}", watched(&server));
    server.now_ms += 10;
    let mut expiry = ActiveExpiry::default();
    for _ in 0..200 {
        expiry.turn(&mut Executor::new(&server.keyspace, 0), 0, server.now_ms);
    }
    let heap_bytes = server.heap_bytes();
    // Every second hash still has a field with an expiry, so the active expiry still watches that
    // hash. The other hashes lost their last expiry, or were deleted.
    server.session.db = 1;
    server.check_counts(299, 0);
    server.expect(&[("EXISTS big", ":0"), ("HKEYS renamed", "*1 b"), ("HKEYS h1", "*2 a b"), ("HKEYS h4", "*1 b")]);
    assert_eq!(server.heap_bytes(), heap_bytes, "a command found an expired field");
    assert_eq!(watched(&server), 150);
    server.expect(&[("FLUSHALL", "+OK")]);
    assert_eq!((watched(&server), server.heap_bytes()), (0, 0));
}
