//! Replies here were compared with redis-server 7.0.15's.

use pantala_resp::Version;

use crate::testing::TestServer;

#[test]
fn fields_are_set_read_and_removed() {
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
    server.check_figures(1, 0);
    assert_eq!(server.heap_bytes(), 0);
}

#[test]
fn a_hash_becomes_a_table_where_redis_says() {
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
fn fields_count() {
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
    server.check_figures(1, 0);
}

#[test]
fn fields_at_random() {
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
fn a_scan_shows_all_fields() {
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
