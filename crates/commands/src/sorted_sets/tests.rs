//! Tests of the sorted set commands. The expected replies were compared with those of redis-server
//! 7.0.15.

use crate::testing::TestServer;

#[test]
fn zadd_obeys_its_conditions() {
    let mut server = TestServer::new(3);
    server.expect(&[
        ("ZADD z 1 a 2 b", ":2"),
        ("ZADD z CH 1 a 3 b 4 c", ":2"),
        ("ZADD z NX 9 a 9 d", ":1"),
        ("ZADD z XX CH 10 a 10 nosuch", ":1"),
        ("ZADD z GT CH 5 a 11 d", ":1"),
        ("ZADD z LT INCR 1 a", "$-1"),
        ("ZADD z INCR 1.5 a", "11.5"),
        ("ZADD z XX INCR 1 nosuch", "$-1"),
        ("ZINCRBY z -0.5 a", "11"),
        ("ZRANGE z 0 -1 WITHSCORES", "*8 b 3 c 4 a 11 d 11"),
        ("ZADD z XX NX 1 a", "-ERR XX and NX options at the same time are not compatible"),
        ("ZADD z GT LT 1 a", "-ERR GT, LT, and/or NX options at the same time are not compatible"),
        ("ZADD z INCR 1 a 2 b", "-ERR INCR option supports a single increment-element pair"),
        ("ZADD z 1 a 2", "-ERR syntax error"),
        ("ZADD z 1 a x b", "-ERR value is not a valid float"),
        ("ZADD z nan a", "-ERR value is not a valid float"),
        ("ZADD z inf i", ":1"),
        ("ZADD z INCR -inf i", "-ERR resulting score is not a number (NaN)"),
        ("ZSCORE z i", "inf"),
        ("ZADD missing XX 1 a", ":0"),
        ("EXISTS missing", ":0"),
        ("SET s v", "+OK"),
        ("ZADD s 1 a", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("ZREM z a b c d nosuch", ":4"),
        ("ZREM z i", ":1"),
        ("EXISTS z", ":0"),
    ]);
    server.check_counts(1, 0);
}

/// Tests sets with short members and with long ones, because the two are stored differently.
#[test]
fn ranges_in_both_representations() {
    for long in ["", &"x".repeat(70)] {
        let mut server = TestServer::new(2);
        for (score, member) in [("-inf", "a"), ("1", "b"), ("1", "c"), ("2.5", "d"), ("+inf", "e")] {
            server.run(&format!("ZADD z {score} {member}{long}"));
        }
        let mut expect = |command: &str, members: &str| {
            let found = server.list(command);
            let wanted: Vec<String> = members.chars().map(|member| format!("{member}{long}")).collect();
            assert_eq!(found, wanted, "{command}");
        };
        expect("ZRANGE z 0 -1", "abcde");
        expect("ZRANGE z -2 100 REV", "ba");
        expect("ZREVRANGE z 0 1", "ed");
        expect("ZRANGE z 3 1", "");
        expect("ZRANGEBYSCORE z 1 2.5", "bcd");
        expect("ZRANGEBYSCORE z (1 +inf", "de");
        expect("ZRANGEBYSCORE z -inf +inf LIMIT 1 2", "bc");
        expect("ZRANGEBYSCORE z -inf +inf LIMIT -1 2", "");
        expect("ZRANGEBYSCORE z -inf +inf LIMIT 1 -1", "bcde");
        expect("ZREVRANGEBYSCORE z +inf (1 LIMIT 1 5", "d");
        expect("ZRANGE z +inf 1 BYSCORE REV", "edcb");
        assert_eq!(server.run("ZRANGE z nosuch 3 BYSCORE"), "-ERR min or max is not a float");
        assert_eq!(server.run("ZCOUNT z (1 +inf"), ":2");
        assert_eq!(server.run(&format!("ZRANK z d{long}")), ":3");
        assert_eq!(server.run(&format!("ZREVRANK z d{long} WITHSCORE")), "*2 :1 2.5");
        assert_eq!(server.run(&format!("zrank z d{long} withscore")), "*2 :3 2.5");
        assert_eq!(server.run("ZRANK z nosuch WITHSCORE"), "*-1");
        assert_eq!(server.run("ZREVRANK nosuch a WITHSCORE"), "*-1");
        // The following errors are those in the source code of Redis 7.2.
        assert_eq!(server.run("ZRANK nosuch a extra"), "-ERR syntax error");
        let too_many = |name| format!("-ERR wrong number of arguments for '{name}' command");
        assert_eq!(server.run("ZRANK nosuch a WITHSCORE extra"), too_many("zrank"));
        assert_eq!(server.run("zREVRANK z a extra extra"), too_many("zrevrank"));
        assert_eq!(server.run("ZRANK z nosuch"), "$-1");
        assert_eq!(server.run("ZRANK z a WITHSCORES"), "-ERR syntax error");
        assert_eq!(server.run("ZREMRANGEBYSCORE z (1 2.5"), ":1");
        assert_eq!(server.run("ZREMRANGEBYRANK z 0 0"), ":1");
        assert_eq!(server.run("ZCARD z"), ":3");
        assert_eq!(server.run("ZRANGESTORE to z 1 2"), ":2");
        assert_eq!(server.run("ZRANGESTORE to z 7 9"), ":0");
        assert_eq!(server.run("EXISTS to"), ":0");
        assert_eq!(server.run("ZREMRANGEBYRANK z 0 -1"), ":3");
        server.check_counts(0, 0);
        assert_eq!(server.heap_bytes(), 0);
    }
}

#[test]
fn pops_from_both_ends() {
    let mut server = TestServer::new(4);
    server.expect(&[
        ("ZADD z 1 a 2 b 3 c 4 d 5 e", ":5"),
        ("ZPOPMIN z", "*2 a 1"),
        ("ZPOPMAX z 2", "*4 e 5 d 4"),
        ("ZPOPMIN z 0", "*0"),
        ("ZPOPMIN z -1", "-ERR value is out of range, must be positive"),
        ("ZPOPMIN missing 3", "*0"),
        ("ZMPOP 2 missing z MAX COUNT 9", "*2 z *2 *2 c 3 *2 b 2"),
        ("ZMPOP 2 missing z MIN", "*-1"),
        ("ZMPOP 0 z MIN", "-ERR numkeys should be greater than 0"),
        ("ZMPOP 1 z MIN COUNT 0", "-ERR count should be greater than 0"),
        ("ZMPOP 1 z MIN COUNT 1 COUNT 1", "-ERR syntax error"),
        ("ZMPOP 3 z MIN", "-ERR syntax error"),
    ]);
    server.check_counts(0, 0);
}

#[test]
fn unions_intersections_and_differences() {
    let mut server = TestServer::new(7);
    server.expect(&[
        ("ZADD a 1 x 2 y 3 z", ":3"),
        ("ZADD b 10 y 20 z 30 w", ":3"),
        ("SADD s x z 5", ":3"),
        ("ZUNION 2 a b WITHSCORES", "*8 x 1 y 12 z 23 w 30"),
        ("ZUNION 2 a s WITHSCORES AGGREGATE MAX", "*8 5 1 x 1 y 2 z 3"),
        ("ZINTER 2 a b WEIGHTS 2 0.5 WITHSCORES", "*4 y 9 z 16"),
        ("ZINTER 3 a b s", "*1 z"),
        ("ZINTERCARD 2 a b", ":2"),
        ("ZINTERCARD 2 a b LIMIT 1", ":1"),
        ("ZDIFF 2 a b", "*1 x"),
        ("ZDIFFSTORE to 2 a s", ":1"),
        ("ZRANGE to 0 -1 WITHSCORES", "*2 y 2"),
        ("ZUNIONSTORE a 2 a b", ":4"),
        ("ZINTERSTORE to 2 a missing", ":0"),
        ("EXISTS to", ":0"),
        ("SET string v", "+OK"),
        ("ZUNION 2 a string nonsense", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("ZUNION 0 a", "-ERR at least 1 input key is needed for 'zunion' command"),
        ("ZUNION 3 a b", "-ERR syntax error"),
        ("ZUNION 1 a WEIGHTS x", "-ERR weight value is not a float"),
        ("ZDIFF 1 a WEIGHTS 1", "-ERR syntax error"),
        ("ZINTERCARD 1 a LIMIT -1", "-ERR LIMIT can't be negative"),
    ]);
}

#[test]
fn encoding_changes_at_the_limits() {
    let mut server = TestServer::new(1);
    for index in 0..128 {
        server.run(&format!("ZADD z {index} m{index}"));
    }
    assert_eq!(server.run("OBJECT ENCODING z"), "listpack");
    server.run("ZADD z 128 m128");
    assert_eq!(server.run("OBJECT ENCODING z"), "skiplist");
    server.run("ZREMRANGEBYRANK z 0 100");
    assert_eq!(server.run("OBJECT ENCODING z"), "skiplist", "a skiplist never becomes a listpack again");
    server.run("ZRANGESTORE y z 0 -1");
    assert_eq!(server.run("OBJECT ENCODING y"), "listpack");
    assert_eq!(server.run("ZRANGE y 0 1 WITHSCORES"), "*4 m101 101 m102 102");
}

#[test]
fn random_members_of_a_listpack() {
    let mut server = TestServer::new(1);
    for index in 0..100 {
        server.run(&format!("ZADD z {index} {index}"));
    }
    assert_eq!(server.run("OBJECT ENCODING z"), "listpack");
    for count in [1, 50, 99] {
        let pairs = server.list(&format!("ZRANDMEMBER z {count} WITHSCORES"));
        let members: std::collections::HashSet<_> = pairs.iter().step_by(2).collect();
        assert_eq!(members.len(), count);
        assert!(pairs.chunks(2).all(|pair| pair[0] == pair[1]), "{pairs:?}");
    }
    let pairs = server.list("ZRANDMEMBER z -5000 WITHSCORES");
    assert_eq!(pairs.len(), 10_000);
    assert!(pairs.chunks(2).all(|pair| pair[0] == pair[1]));
    assert_eq!(pairs.iter().collect::<std::collections::HashSet<_>>().len(), 100, "each member is picked");
}

#[test]
fn random_members_and_zscan() {
    let mut server = TestServer::new(1);
    for index in 0..1000 {
        server.run(&format!("ZADD z {index} m{index}"));
    }
    assert_eq!(server.list("ZRANDMEMBER z 10").len(), 10);
    assert_eq!(server.list("ZRANDMEMBER z -2000 WITHSCORES").len(), 4000);
    assert_eq!(server.list("ZRANDMEMBER z 5000").len(), 1000);
    assert_eq!(server.run("ZRANDMEMBER z 0"), "*0");
    assert_eq!(server.run("ZRANDMEMBER missing"), "$-1");
    assert_eq!(server.run("ZRANDMEMBER z -9223372036854775807"), "-ERR value is out of range");
    let mut seen = std::collections::HashSet::new();
    let mut cursor = "0".to_owned();
    loop {
        let page = server.list(&format!("ZSCAN z {cursor} COUNT 20 MATCH m*"));
        seen.extend(page[2..].iter().step_by(2).cloned());
        cursor.clone_from(&page[0]);
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(seen.len(), 1000);
}
