//! Tests of the list commands. The expected replies were compared with those of redis-server
//! 7.0.15.

use crate::testing::TestServer;

#[test]
fn push_and_pop_at_both_ends() {
    let mut server = TestServer::new(3);
    server.expect(&[
        ("RPUSH l a b", ":2"),
        ("LPUSH l 1 2", ":4"),
        ("LRANGE l 0 -1", "*4 2 1 a b"),
        ("LPUSHX l x", ":5"),
        ("RPUSHX none x", ":0"),
        ("EXISTS none", ":0"),
        ("LPOP l", "x"),
        ("RPOP l", "b"),
        ("LPOP l 0", "*0"),
        ("LPOP none 0", "*-1"),
        ("LPOP none", "$-1"),
        ("LPOP l -1", "-ERR value is out of range, must be positive"),
        ("LPOP l x", "-ERR value is out of range, must be positive"),
        ("LPOP l 1 2", "-ERR wrong number of arguments for 'lpop' command"),
        ("RPOP l 9223372036854775807", "*3 a 1 2"),
        ("EXISTS l", ":0"),
        ("SET s v", "+OK"),
        ("LPUSH s v", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("LPOP s", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("OBJECT ENCODING none", "$-1"),
    ]);
    server.check_counts(1, 0);
    assert_eq!(server.heap_bytes(), 0);
}

#[test]
fn elements_are_read_and_changed() {
    let mut server = TestServer::new(2);
    server.expect(&[
        ("RPUSH l a b c b a", ":5"),
        ("LLEN l", ":5"),
        ("LINDEX l -1", "a"),
        ("LINDEX l 5", "$-1"),
        ("LINDEX none x", "$-1"),
        ("LINDEX l x", "-ERR value is not an integer or out of range"),
        ("LSET l 1 B", "+OK"),
        ("LSET l -6 B", "-ERR index out of range"),
        ("LSET none x B", "-ERR no such key"),
        ("LINSERT l BEFORE c 3", ":6"),
        ("LINSERT l AFTER a 4", ":7"),
        ("LINSERT l AFTER nothere 4", ":-1"),
        ("LINSERT none AFTER a 4", ":0"),
        ("LINSERT l BESIDE a 4", "-ERR syntax error"),
        ("LRANGE l 0 -1", "*7 a 4 B 3 c b a"),
        ("LPOS l a", ":0"),
        ("LPOS l a RANK -1", ":6"),
        ("LPOS l a COUNT 0", "*2 :0 :6"),
        ("LPOS l a COUNT 1 RANK 2", "*1 :6"),
        ("LPOS l a MAXLEN 3 RANK -1 COUNT 0", "*1 :6"),
        ("LPOS l a RANK -9223372036854775808", ":6"),
        ("LPOS l a RANK -9223372036854775808 COUNT 1", "*2 :6 :0"),
        ("LPOS l x", "$-1"),
        ("LPOS l x COUNT 1", "*0"),
        ("LPOS none x COUNT 1", "*0"),
        ("LPOS l a COUNT 9223372036854775807", "*2 :0 :6"),
        ("LPOS l a COUNT 9223372036854775807 MAXLEN 9223372036854775807 RANK -1", "*2 :6 :0"),
        ("LPOS l a RANK 9223372036854775807 COUNT 9223372036854775807", "*0"),
        ("LPOS l a MAXLEN 9223372036854775807 RANK 2", ":6"),
        ("LPOS l a MAXLEN -1", "-ERR MAXLEN can't be negative"),
        ("LPOS l x COUNT -1", "-ERR COUNT can't be negative"),
        ("LREM l -1 a", ":1"),
        ("LREM l 0 x", ":0"),
        ("LTRIM l 1 2", "+OK"),
        ("LRANGE l -100 100", "*2 4 B"),
        ("LTRIM l 5 2", "+OK"),
        ("EXISTS l", ":0"),
    ]);
    server.check_counts(0, 0);
}

#[test]
fn elements_move_between_lists() {
    let mut server = TestServer::new(5);
    server.expect(&[
        ("RPUSH a 1 2 3", ":3"),
        ("LMOVE a b LEFT RIGHT", "1"),
        ("RPOPLPUSH a b", "3"),
        ("LRANGE b 0 -1", "*2 3 1"),
        ("RPOPLPUSH b b", "1"),
        ("LRANGE b 0 -1", "*2 1 3"),
        ("LMOVE a a LEFT RIGHT", "2"),
        ("LRANGE a 0 -1", "*1 2"),
        ("LMOVE none b LEFT LEFT", "$-1"),
        ("LMOVE a b UP LEFT", "-ERR syntax error"),
        ("SET s v", "+OK"),
        ("LMOVE a s LEFT LEFT", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("LMOVE none s LEFT LEFT", "$-1"),
        ("LLEN a", ":1"),
        ("LMPOP 2 none b LEFT COUNT 5", "*2 b *2 1 3"),
        ("LMPOP 2 none b LEFT", "*-1"),
        ("LMPOP 0 a LEFT", "-ERR numkeys should be greater than 0"),
        ("LMPOP 1 a LEFT COUNT 0", "-ERR count should be greater than 0"),
        ("LMPOP 1 a LEFT COUNT", "-ERR syntax error"),
        ("LMPOP 3 a LEFT", "-ERR syntax error"),
        ("LMPOP 1 s LEFT", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
    ]);
    server.check_counts(2, 0);
}

/// A long list does not fit in its dictionary entry, so it uses other memory too. All of it is
/// counted, and released when the list is deleted.
#[test]
fn memory_of_a_long_list_is_accounted() {
    let mut server = TestServer::new(1);
    for number in 0..2000 {
        server.expect(&[(&format!("RPUSH l element:{number}"), &format!(":{}", number + 1))]);
    }
    assert!(server.heap_bytes() > 28_000);
    server.expect(&[
        ("OBJECT ENCODING l", "quicklist"),
        ("COPY l m", ":1"),
        ("RENAME m n", "+OK"),
        ("LINDEX n 1234", "element:1234"),
        ("DEL n", ":1"),
        ("LTRIM l 1000 1009", "+OK"),
        ("LLEN l", ":10"),
        ("LPOP l 10", "*10 element:1000 element:1001 element:1002 element:1003 element:1004 element:1005 element:1006 element:1007 element:1008 element:1009"),
    ]);
    server.check_counts(0, 0);
    assert_eq!(server.heap_bytes(), 0);
}
