//! Tests of the stream commands. The expected replies were compared with those of redis-server
//! 7.0.15.

use crate::testing::TestServer;

const WRONG_TYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";
const INVALID_ID: &str = "-ERR Invalid stream ID specified as stream command argument";

#[test]
fn xadd_and_ids() {
    let mut server = TestServer::new(3);
    server.expect(&[
        ("XADD s 1-1 f v", "1-1"),
        ("XADD s 1-1 f v", "-ERR The ID specified in XADD is equal or smaller than the target stream top item"),
        ("XADD s 0-0 f v", "-ERR The ID specified in XADD must be greater than 0-0"),
        ("XADD s 1-* f v", "1-2"),
        ("XADD s * f v", "1700000000000-0"),
        ("XADD s * f v", "1700000000000-1"),
        ("XADD s 1700000000001 f v", "1700000000001-0"),
        ("XADD s x f v", INVALID_ID),
        ("XADD s * f", "-ERR wrong number of arguments for 'xadd' command"),
        ("XADD s * f v g", "-ERR wrong number of arguments for 'xadd' command"),
        ("XADD none NOMKSTREAM * f v", "$-1"),
        ("EXISTS none", ":0"),
        ("XLEN s", ":5"),
        ("XLEN none", ":0"),
        ("XADD s 18446744073709551615-18446744073709551615 f v", "18446744073709551615-18446744073709551615"),
        ("XADD s * f v", "-ERR The stream has exhausted the last possible ID, unable to add more items"),
        ("SET string v", "+OK"),
        ("XADD string * f v", WRONG_TYPE),
        ("XLEN string", WRONG_TYPE),
        ("TYPE s", "+stream"),
        ("OBJECT ENCODING s", "stream"),
    ]);
    server.check_counts(2, 0);
}

/// A command that fails doesn't create a key.
#[test]
fn a_failed_xadd_creates_no_stream() {
    let mut server = TestServer::new(1);
    server.expect(&[
        ("XADD s 0-0 f v", "-ERR The ID specified in XADD must be greater than 0-0"),
        ("XADD s MAXLEN 1 LIMIT 1 1-1 f v", "-ERR syntax error, LIMIT cannot be used without the special ~ option"),
        ("XADD s LIMIT 1 1-1 f v", "-ERR syntax error, LIMIT cannot be used without specifying a trimming strategy"),
        ("XADD s MAXLEN -1 1-1 f v", "-ERR The MAXLEN argument must be >= 0."),
        (
            "XADD s MAXLEN 1 MINID 1 1-1 f v",
            "-ERR syntax error, MAXLEN and MINID options at the same time are not compatible",
        ),
        ("XGROUP CREATE s g x MKSTREAM", INVALID_ID),
        ("EXISTS s", ":0"),
    ]);
    server.check_counts(0, 0);
    assert_eq!(server.heap_bytes(), 0);
}

#[test]
fn ranges_deletion_and_trimming() {
    let mut server = TestServer::new(2);
    for ms in 1..=5 {
        server.run(&format!("XADD s {ms}-0 f {ms}"));
    }
    server.expect(&[
        ("XRANGE s - + COUNT 1", "*1 *2 1-0 *2 f 1"),
        ("XRANGE s (1-0 2", "*1 *2 2-0 *2 f 2"),
        ("XRANGE s 3 (4-0", "*1 *2 3-0 *2 f 3"),
        ("XREVRANGE s + - COUNT 2", "*2 *2 5-0 *2 f 5 *2 4-0 *2 f 4"),
        ("XRANGE s (18446744073709551615-18446744073709551615 +", "-ERR invalid start ID for the interval"),
        ("XRANGE s - (0-0", "-ERR invalid end ID for the interval"),
        ("XRANGE s - + COUNT 0", "*-1"),
        ("XRANGE none - + COUNT 0", "*0"),
        ("XDEL s 1 3 9", ":2"),
        ("XDEL s 2 x", INVALID_ID),
        ("XLEN s", ":3"),
        ("XTRIM s MAXLEN 2", ":1"),
        ("XTRIM s MINID = 5", ":1"),
        ("XRANGE s - +", "*1 *2 5-0 *2 f 5"),
        ("XTRIM s", "-ERR wrong number of arguments for 'xtrim' command"),
        ("XTRIM s MAXLEN ~ 0", ":1"),
        ("EXISTS s", ":1"),
        ("XSETID s 4-0", "+OK"),
        ("XADD s 4-* f again", "4-1"),
        ("XSETID s 3-0", "-ERR The ID specified in XSETID is smaller than the target stream top item"),
        ("XSETID none 3-0", "-ERR no such key"),
    ]);
    server.check_counts(1, 0);
}

#[test]
fn group_entries_are_delivered_and_acknowledged() {
    let mut server = TestServer::new(2);
    server.expect(&[
        (
            "XGROUP CREATE s g $",
            "-ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM option to create an empty stream automatically.",
        ),
        ("XGROUP CREATE s g $ MKSTREAM", "+OK"),
        ("XGROUP CREATE s g $", "-BUSYGROUP Consumer Group name already exists"),
        ("XADD s 1-0 f a", "1-0"),
        ("XADD s 2-0 f b", "2-0"),
        ("XREADGROUP GROUP g one COUNT 1 STREAMS s >", "*1 *2 s *1 *2 1-0 *2 f a"),
        ("XREADGROUP GROUP g two STREAMS s >", "*1 *2 s *1 *2 2-0 *2 f b"),
        ("XREADGROUP GROUP g two STREAMS s >", "*-1"),
        ("XREADGROUP GROUP g one STREAMS s 0", "*1 *2 s *1 *2 1-0 *2 f a"),
        ("XPENDING s g", "*4 :2 1-0 2-0 *2 *2 one 1 *2 two 1"),
        ("XPENDING s g - + 10", "*2 *4 1-0 one :0 :2 *4 2-0 two :0 :1"),
        ("XPENDING s g - + 10 two", "*1 *4 2-0 two :0 :1"),
        ("XCLAIM s g two 0 1-0 JUSTID", "*1 1-0"),
        ("XDEL s 1-0", ":1"),
        ("XREADGROUP GROUP g two STREAMS s 0", "*1 *2 s *2 *2 1-0 *-1 *2 2-0 *2 f b"),
        ("XAUTOCLAIM s g three 0 -", "*3 0-0 *1 *2 2-0 *2 f b *1 1-0"),
        ("XACK s g 1-0 2-0", ":1"),
        ("XPENDING s g", "*4 :0 $-1 $-1 *-1"),
        ("XINFO GROUPS s", "*1 *12 name g consumers :3 pending :0 last-delivered-id 2-0 entries-read :2 lag :0"),
        ("XGROUP DELCONSUMER s g three", ":0"),
        ("XGROUP CREATECONSUMER s g one", ":0"),
        ("XGROUP SETID s g 0", "+OK"),
        ("XGROUP DESTROY s g", ":1"),
        (
            "XREADGROUP GROUP g one STREAMS s >",
            "-NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option",
        ),
        ("XACK s g 1-0", ":0"),
        ("XACK s g x", ":0"),
    ]);
}

#[test]
fn reading_several_streams() {
    let mut server = TestServer::new(7);
    server.expect(&[
        ("XADD a 1-0 f 1", "1-0"),
        ("XADD b 2-0 f 2", "2-0"),
        ("XREAD STREAMS a b c 0 0 0", "*2 *2 a *1 *2 1-0 *2 f 1 *2 b *1 *2 2-0 *2 f 2"),
        ("XREAD STREAMS a b 1 1", "*1 *2 b *1 *2 2-0 *2 f 2"),
        ("XREAD STREAMS a $", "*-1"),
        ("XREAD STREAMS a +", "*1 *2 a *1 *2 1-0 *2 f 1"),
        ("XREAD STREAMS none +", "*-1"),
        ("XREAD COUNT 1 STREAMS STREAMS 0", "*-1"),
        (
            "XREAD STREAMS a b 0",
            "-ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified.",
        ),
        ("XREAD COUNT x STREAMS a 0", "-ERR value is not an integer or out of range"),
        ("XREAD BLOCK -1 STREAMS a 0", "-ERR timeout is negative"),
    ]);
}

#[test]
fn xinfo_describes_a_stream() {
    let mut server = TestServer::new(1);
    server.expect(&[
        ("XADD s 1-0 f v", "1-0"),
        ("XADD s 2-0 f v", "2-0"),
        ("XDEL s 1-0", ":1"),
        (
            "XINFO STREAM s",
            "*20 length :1 radix-tree-keys :1 radix-tree-nodes :2 last-generated-id 2-0 max-deleted-entry-id 1-0 \
             entries-added :2 recorded-first-entry-id 2-0 groups :0 first-entry *2 2-0 *2 f v last-entry *2 2-0 *2 f v",
        ),
        (
            "XINFO STREAM s FULL COUNT 1 2",
            "-ERR unknown subcommand or wrong number of arguments for 'STREAM'. Try XINFO HELP.",
        ),
        ("XINFO STREAM none", "-ERR no such key"),
        ("XINFO CONSUMERS s g", "-NOGROUP No such consumer group 'g' for key name 's'"),
    ]);
}
