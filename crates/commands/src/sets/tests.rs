//! Tests of the set commands. The expected replies were compared with those of redis-server 7.0.15.

use std::collections::BTreeSet;

use pantala_resp::Version;

use crate::errors::WRONG_TYPE;
use crate::testing::TestServer;

fn sorted(mut members: Vec<String>) -> Vec<String> {
    members.sort();
    members
}

#[test]
fn members_are_added_and_removed() {
    let wrong = format!("-{WRONG_TYPE}");
    let mut server = TestServer::new(3);
    server.expect(&[
        ("SADD s 3 1 2 1", ":3"),
        ("OBJECT ENCODING s", "intset"),
        ("SMEMBERS s", "*3 1 2 3"),
        ("SISMEMBER s 2", ":1"),
        ("SISMEMBER s 02", ":0"),
        ("SISMEMBER missing 2", ":0"),
        ("SMISMEMBER s 1 x 3", "*3 :1 :0 :1"),
        ("SMISMEMBER missing 1 x", "*2 :0 :0"),
        ("SCARD s", ":3"),
        ("SADD s x", ":1"),
        ("OBJECT ENCODING s", "hashtable"),
        ("TYPE s", "+set"),
        ("SREM s x y 1", ":2"),
        ("OBJECT ENCODING s", "hashtable"),
        ("SREM s 2 3", ":2"),
        ("EXISTS s", ":0"),
        ("SREM s 2", ":0"),
        ("SMEMBERS s", "*0"),
        ("SET str v", "+OK"),
        ("SADD str a", &wrong),
        ("SMEMBERS str", &wrong),
        ("SPOP str 0", &wrong),
        ("SPOP str -1", "-ERR value is out of range, must be positive"),
    ]);
    server.check_counts(1, 0);
    for value in 0..512 {
        server.run(&format!("SADD big {value}"));
    }
    server.expect(&[("OBJECT ENCODING big", "intset"), ("SADD big 512", ":1"), ("OBJECT ENCODING big", "hashtable")]);
    server.expect(&[("COPY big other", ":1"), ("SCARD other", ":513"), ("DEL big other", ":2")]);
    assert_eq!(server.heap_bytes(), 0);
    server.session.version = Version::Resp3;
    server.expect(&[
        ("SADD s a", ":1"),
        ("SMEMBERS s", "~1 a"),
        ("SMEMBERS missing", "~0"),
        ("SRANDMEMBER s 5", "*1 a"),
        ("SPOP s 1", "~1 a"),
    ]);
}

#[test]
fn smove_moves_a_member() {
    let wrong = format!("-{WRONG_TYPE}");
    let mut server = TestServer::new(3);
    server.expect(&[
        ("SADD a 1 x", ":2"),
        ("SET str v", "+OK"),
        ("SMOVE missing str 1", ":0"),
        ("SMOVE a str 1", &wrong),
        ("SMOVE a str missing", &wrong),
        ("SMOVE str a 1", &wrong),
        ("SMOVE a b missing", ":0"),
        ("SMOVE a a 1", ":1"),
        ("SMOVE a a missing", ":0"),
        ("SMOVE a b 1", ":1"),
        ("OBJECT ENCODING b", "intset"),
        ("SMOVE a b x", ":1"),
        ("EXISTS a", ":0"),
        ("OBJECT ENCODING b", "hashtable"),
        ("SADD a x", ":1"),
        ("SMOVE a b x", ":1"),
        ("SCARD b", ":2"),
    ]);
    server.check_counts(2, 0);
}

#[test]
fn random_members() {
    let mut server = TestServer::new(1);
    server.expect(&[
        ("SPOP missing", "$-1"),
        ("SPOP missing 3", "*0"),
        ("SPOP missing 3 x", "-ERR syntax error"),
        ("SRANDMEMBER missing", "$-1"),
        ("SRANDMEMBER missing 3", "*0"),
        ("SRANDMEMBER missing 3 x", "-ERR syntax error"),
        ("SRANDMEMBER missing x", "-ERR value is not an integer or out of range"),
        ("SADD s 1 2 3", ":3"),
        ("SPOP s 0", "*0"),
        ("SRANDMEMBER s 0", "*0"),
        ("SRANDMEMBER s 5", "*3 1 2 3"),
        ("SRANDMEMBER s -67108865", "-ERR value is out of range"),
        ("SPOP s 3", "*3 1 2 3"),
        ("EXISTS s", ":0"),
    ]);
    for prefix in ["", "m", "a_long_member_"] {
        for value in 0..1000 {
            server.run(&format!("SADD s {prefix}{value}"));
        }
        for (count, len) in [(10, 10), (999, 999), (1000, 1000), (2000, 1000)] {
            let picks = server.list(&format!("SRANDMEMBER s {count}"));
            assert_eq!(picks.len(), len);
            assert_eq!(picks.into_iter().collect::<BTreeSet<_>>().len(), len);
        }
        assert_eq!(server.list("SRANDMEMBER s -3000").len(), 3000);
        let mut taken = server.list("SPOP s 600");
        taken.push(server.run("SPOP s"));
        taken.extend(server.list("SPOP s 500"));
        let expected: BTreeSet<String> = (0..1000).map(|value| format!("{prefix}{value}")).collect();
        assert_eq!(taken.len(), 1000);
        assert_eq!(taken.into_iter().collect::<BTreeSet<_>>(), expected);
        server.check_counts(0, 0);
        assert_eq!(server.heap_bytes(), 0);
    }
}

#[test]
fn spop_of_most_members_rebuilds_the_set() {
    let mut server = TestServer::new(1);
    for (taken, encoding) in [("499", "hashtable"), ("500", "intset")] {
        for value in 0..600 {
            server.run(&format!("SADD s {value}"));
        }
        server.expect(&[("OBJECT ENCODING s", "hashtable")]);
        let gone = server.list(&format!("SPOP s {taken}"));
        server.expect(&[("OBJECT ENCODING s", encoding)]);
        let mut all = server.list("SMEMBERS s");
        all.extend(gone);
        assert_eq!(all.into_iter().collect::<BTreeSet<_>>().len(), 600);
        server.expect(&[("DEL s", ":1")]);
        assert_eq!(server.heap_bytes(), 0);
    }
}

#[test]
fn algebra_between_shards() {
    let wrong = format!("-{WRONG_TYPE}");
    let mut server = TestServer::new(40);
    server.expect(&[
        ("SADD a 1 2 3 x", ":4"),
        ("SADD b 2 3 4", ":3"),
        ("SADD c 3 x y", ":3"),
        ("SET str v", "+OK"),
        ("SINTER a b c", "*1 3"),
        ("SINTER a missing", "*0"),
        ("SINTER a missing str", &wrong),
        ("SUNION a str", &wrong),
        ("SDIFF str a", &wrong),
        ("SINTERSTORE str a b", ":2"),
        ("SMEMBERS str", "*2 2 3"),
        ("OBJECT ENCODING str", "intset"),
        ("SDIFFSTORE str a b", ":2"),
        ("OBJECT ENCODING str", "hashtable"),
        ("SUNIONSTORE a a b", ":5"),
        ("SINTERSTORE a a missing", ":0"),
        ("EXISTS a", ":0"),
        ("SDIFF missing b", "*0"),
        ("SDIFF b b", "*0"),
        ("SINTERCARD 2 b c", ":1"),
        ("SINTERCARD 1 b LIMIT 2", ":2"),
        ("SINTERCARD 1 b LIMIT 0", ":3"),
        ("SINTERCARD 0 b", "-ERR numkeys should be greater than 0"),
        ("SINTERCARD x b", "-ERR numkeys should be greater than 0"),
        ("SINTERCARD 3 b c", "-ERR Number of keys can't be greater than number of args"),
        ("SINTERCARD 1 b LIMIT -1", "-ERR LIMIT can't be negative"),
        ("SINTERCARD 1 b LIMIT", "-ERR syntax error"),
        ("SINTERCARD 1 b OTHER 1", "-ERR syntax error"),
    ]);
    assert_eq!(sorted(server.list("SUNION b c")), ["2", "3", "4", "x", "y"]);
    assert_eq!(sorted(server.list("SDIFF c b")), ["x", "y"]);
    server.check_counts(3, 0);
}

#[test]
fn sscan_returns_all_members() {
    let mut server = TestServer::new(1);
    server.expect(&[
        ("SSCAN missing 0", "*2 0 *0"),
        ("SADD s 2 1", ":2"),
        ("SSCAN s 0", "*2 0 *2 1 2"),
        ("SSCAN s 0 MATCH 2", "*2 0 *1 2"),
        ("SSCAN s x", "-ERR invalid cursor"),
        ("SSCAN s 0 NOVALUES", "-ERR syntax error"),
    ]);
    for value in 0..1000 {
        server.run(&format!("SADD big m{value}"));
    }
    let (mut cursor, mut members) = ("0".to_owned(), BTreeSet::new());
    loop {
        let page = server.run(&format!("SSCAN big {cursor}"));
        let words: Vec<&str> = page.split(' ').collect();
        members.extend(words[3..].iter().map(|&member| member.to_owned()));
        cursor = words[1].to_owned();
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(members.len(), 1000);
}
