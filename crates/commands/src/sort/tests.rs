//! Tests of `SORT`. The expected replies were compared with those of redis-server 7.0.15.

use crate::errors::WRONG_TYPE;
use crate::testing::TestServer;

fn server() -> TestServer {
    let mut server = TestServer::new(7);
    server.run("RPUSH list 3 1 10 2");
    server.run("MSET w_1 4 w_2 3 w_3 2 w_10 1 t_1 d t_2 c t_3 b n 5");
    for element in [1, 2, 3, 10] {
        server.run(&format!("HSET h_{element} weight {} name n{element}", 20 - element));
    }
    server
}

#[test]
fn sort_orders_elements() {
    let mut server = server();
    server.expect(&[
        ("SORT list", "*4 1 2 3 10"),
        ("SORT list ASC", "*4 1 2 3 10"),
        ("SORT list DESC", "*4 10 3 2 1"),
        ("SORT list ALPHA", "*4 1 10 2 3"),
        ("SORT_RO list DESC ALPHA", "*4 3 2 10 1"),
        ("SORT list BY w_*", "*4 10 3 2 1"),
        ("SORT list BY h_*->weight", "*4 10 3 2 1"),
        ("SORT list BY t_* ALPHA", "*4 10 3 2 1"),
        ("SORT list BY t_* ALPHA DESC", "*4 1 2 3 10"),
        ("SORT list BY nosort", "*4 3 1 10 2"),
        ("SORT list BY nosort DESC", "*4 2 10 1 3"),
        ("SORT list BY nosort DESC LIMIT 1 2", "*2 10 1"),
        ("SORT list BY nosort DESC LIMIT 3 9", "*1 3"),
        ("SORT list BY nosort DESC LIMIT 4 9", "*0"),
        ("SORT list BY nosort LIMIT 1 2", "*2 1 10"),
        ("SORT list BY nosort LIMIT 4 1", "*0"),
        ("SORT list BY nosort LIMIT 0 0", "*0"),
        ("SORT list BY missing_*", "*4 1 10 2 3"),
        ("SORT missing", "*0"),
        ("SORT missing BY nosort GET #", "*0"),
    ]);
}

#[test]
fn sorted_sets_keep_their_order() {
    let mut server = server();
    server.expect(&[
        ("ZADD zset 4 1 3 2 2 3 1 10", ":4"),
        ("SORT zset", "*4 1 2 3 10"),
        ("SORT zset BY nosort", "*4 10 3 2 1"),
        ("SORT zset BY nosort DESC LIMIT 1 2", "*2 2 3"),
        ("SORT zset BY nosort DESC LIMIT 3 9", "*1 10"),
        ("SORT zset BY nosort DESC LIMIT 4 9", "*0"),
        ("SORT zset BY nosort LIMIT 1 2", "*2 3 2"),
        ("SORT zset BY nosort LIMIT 4 1", "*0"),
        ("SORT zset BY nosort LIMIT 0 1 GET t_*", "*1 $-1"),
        ("SORT zset BY nosort STORE to", ":4"),
        ("LRANGE to 0 -1", "*4 10 3 2 1"),
    ]);
}

/// `LIMIT` without sorting splits a set into parts, with `ASC` and with `DESC`.
#[test]
fn parts_of_an_unsorted_set() {
    let mut server = server();
    server.run(&(0..1000).fold("SADD set".to_owned(), |command, member| format!("{command} m{member}")));
    for direction in ["ASC", "DESC"] {
        let all = server.list(&format!("SORT set BY nosort {direction}"));
        let mut parts = Vec::new();
        for start in [0, 300, 600, 900, 1200] {
            parts.extend(server.list(&format!("SORT set BY nosort {direction} LIMIT {start} 300")));
        }
        assert_eq!((all.len(), parts), (1000, all));
    }
}

#[test]
fn limit_selects_a_range() {
    let mut server = server();
    for (limit, reply) in [
        ("1 2", "*2 2 3"),
        ("0 -1", "*4 1 2 3 10"),
        ("2 -5", "*2 3 10"),
        ("-3 2", "*2 1 2"),
        ("3 10", "*1 10"),
        ("4 1", "*0"),
        ("100 -1", "*0"),
        ("0 0", "*0"),
        ("9223372036854775807 9223372036854775807", "*0"),
        ("-9223372036854775808 9223372036854775807", "*4 1 2 3 10"),
    ] {
        assert_eq!(server.run(&format!("SORT list LIMIT {limit}")), reply, "{limit}");
    }
}

#[test]
fn by_and_get_refer_to_other_keys() {
    let mut server = server();
    server.expect(&[
        ("SORT list GET t_*", "*4 d c b $-1"),
        ("SORT list LIMIT 0 2 GET # GET h_*->name GET t_*", "*6 1 n1 d 2 n2 c"),
        ("SORT list LIMIT 0 2 GET nostar GET h_*->missing", "*4 $-1 $-1 $-1 $-1"),
        ("SORT list LIMIT 0 1 GET h_*", "*1 $-1"),
        ("SORT list LIMIT 0 1 GET t_*->name", "*1 $-1"),
        ("SORT list LIMIT 0 1 GET h_*->", "*1 $-1"),
        ("SORT list GET w_* BY nosort LIMIT 0 2", "*2 2 4"),
    ]);
}

#[test]
fn store_writes_a_list() {
    let mut server = server();
    server.expect(&[
        ("SORT list STORE to", ":4"),
        ("LRANGE to 0 -1", "*4 1 2 3 10"),
        ("SORT list GET t_* STORE to", ":4"),
        ("LRANGE to 0 -1", "*4 d c b $0"),
        ("EXPIRE to 100", ":1"),
        ("SORT list BY nosort STORE list", ":4"),
        ("SORT list LIMIT 1 1 STORE to", ":1"),
        ("TTL to", ":-1"),
        ("SORT missing STORE to", ":0"),
        ("EXISTS to", ":0"),
        ("SORT missing STORE to", ":0"),
        ("SADD set b a c", ":3"),
        ("SORT set BY nosort STORE to", ":3"),
        ("LRANGE to 0 -1", "*3 a b c"),
        ("SORT_RO list STORE to", "-ERR syntax error"),
    ]);
    server.check_counts(15, 0);
}

#[test]
fn errors_change_nothing() {
    let mut server = server();
    let wrong_type = format!("-{WRONG_TYPE}");
    let not_a_score = "-ERR One or more scores can't be converted into double";
    let not_an_integer = "-ERR value is not an integer or out of range";
    server.expect(&[
        ("SORT n", &wrong_type),
        ("SORT h_1", &wrong_type),
        ("SORT n NONSENSE", "-ERR syntax error"),
        ("SORT list LIMIT 1", "-ERR syntax error"),
        ("SORT list LIMIT a 1", not_an_integer),
        ("SORT list BY", "-ERR syntax error"),
        ("SORT list GET", "-ERR syntax error"),
        ("SORT list STORE", "-ERR syntax error"),
        ("RPUSH words a b", ":2"),
        ("SORT words", not_a_score),
        ("SORT words STORE n", not_a_score),
        ("GET n", "5"),
        ("SORT list BY t_*", not_a_score),
    ]);
}

#[test]
fn numbers_parse_as_by_strtod() {
    let mut server = TestServer::new(3);
    for text in [&b" 5"[..], b"0x10", b"", b"1e2", b"-inf", b"7\0seven", b"+.5"] {
        server.raw(&[b"RPUSH", b"odd", text]);
    }
    assert_eq!(server.run("SORT odd"), "*7 -inf $0 +.5  5 7\\x00seven 0x10 1e2");
    for text in [&b" "[..], b"nan", b"1e400", b"5e-324", b"5 ", b"1-"] {
        server.run("DEL odd");
        server.raw(&[b"RPUSH", b"odd", text]);
        assert!(server.run("SORT odd").starts_with("-ERR One or more scores"), "{}", text.escape_ascii());
    }
}
