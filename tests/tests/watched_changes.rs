//! Checks which changes of a watched key abort a transaction. They must be the same as on
//! redis-server, where some changes abort no transaction, for example changes to the groups of a
//! stream. Other tests of watches are in `transactions.rs`.

use std::collections::BTreeSet;

use pantala_tests::{Reply, Server, for_each_backend};

/// The dataset before each change. `''` stands for the empty string, in this list and in
/// [`CHANGES`].
const DATASET: &[&str] = &[
    "SET s 5",
    "SET t hello",
    "RPUSH l a b c d",
    "SADD set a b c",
    "SADD iset 1 2 3",
    "HSET h f 1 g x",
    "ZADD z 1 a 2 b 3 c",
    "XADD x 1-1 f v",
    "XADD x 2-1 f v",
    "XADD x 3-1 f v",
    "XGROUP CREATE x g 0",
    "XREADGROUP GROUP g c COUNT 1 STREAMS x >",
    "PFADD hll a b c",
    "GEOADD geo 13 38 p 15 37 q",
    "SET bits abc",
    "SADD set2 b c d",
    "ZADD z2 1 a 5 q",
    "RPUSH l2 x",
    "SET ttl v EX 1000",
    "PFADD hll2 d e",
];

/// Maximum number of different words in a line of [`CHANGES`].
const WORDS_MAX: usize = 10;

/// Changes, and commands that look like changes but don't change the data. Each line is one case,
/// whose commands run in order.
const CHANGES: &[&str] = &[
    "SET s 5",
    "SET new 1",
    "SET s 5 NX",
    "SET s 5 KEEPTTL",
    "SET new 1 XX",
    "SET s 1 GET",
    "SET s 1 PXAT 1",
    "SETNX s 1",
    "SETNX new 1",
    "GETSET s 5",
    "GETDEL s",
    "GETDEL new",
    "GETEX s",
    "GETEX s EX 100",
    "GETEX s PXAT 1",
    "GETEX s PERSIST",
    "GETEX ttl PERSIST",
    "APPEND s ''",
    "APPEND s x",
    "APPEND new ''",
    "SETRANGE s 0 ''",
    "SETRANGE s 0 5",
    "SETRANGE new 3 ''",
    "SETRANGE new 3 a",
    "INCR s",
    "INCRBY s 0",
    "DECR t",
    "INCRBYFLOAT s 0",
    "MSET s 5 new 1",
    "MSETNX s 1 new 1",
    "MSETNX new 1 new2 2",
    "SETBIT bits 0 0",
    "SETBIT bits 0 1",
    "SETBIT new 0 0",
    "SETBIT bits 1000 0",
    "BITFIELD bits SET u8 0 97",
    "BITFIELD bits SET u8 0 98",
    "BITFIELD bits GET u8 0",
    "BITFIELD bits INCRBY u8 0 0",
    "BITFIELD new SET u8 100 0",
    "BITFIELD new GET u8 100",
    "BITFIELD bits OVERFLOW FAIL INCRBY u8 0 250",
    "BITOP AND new bits",
    "BITOP AND new new2",
    "BITOP AND bits new2",
    "LPUSH l a",
    "LPUSHX new a",
    "LPOP l",
    "LPOP l 0",
    "LPOP new",
    "RPOP l 100",
    "LREM l 0 zz",
    "LREM l 0 a",
    "LSET l 0 a",
    "LSET l 100 a",
    "LINSERT l BEFORE a b",
    "LINSERT l BEFORE zz b",
    "LTRIM l 0 -1",
    "LTRIM l 0 1",
    "LTRIM new 0 1",
    "LTRIM l 5 1",
    "LMOVE l l LEFT LEFT",
    "LMOVE l l LEFT RIGHT",
    "LMOVE l2 l2 LEFT LEFT",
    "LMOVE l new LEFT RIGHT",
    "RPOPLPUSH l l2",
    "LMPOP 2 new l LEFT",
    "BLPOP l 1",
    "BRPOP new 0.01",
    "BLMOVE l l2 LEFT LEFT 1",
    "BLMPOP 1 1 l LEFT",
    "SADD set a",
    "SADD set zz",
    "SREM set zz",
    "SREM set a",
    "SPOP set",
    "SPOP set 0",
    "SPOP set 100",
    "SPOP new",
    "SMOVE set set2 zz",
    "SMOVE set set2 a",
    "SMOVE set set2 b",
    "SMOVE set set a",
    "SMOVE set new a",
    "SINTERSTORE new set set2",
    "SINTERSTORE new set new2",
    "SINTERSTORE set set new2",
    "SINTERSTORE set set set",
    "SUNIONSTORE set set",
    "SDIFFSTORE new set set",
    "HSET h f 1",
    "HSETNX h f 1",
    "HSETNX h n 1",
    "HDEL h zz",
    "HDEL h f",
    "HINCRBY h f 0",
    "HINCRBY h g 1",
    "HINCRBYFLOAT h f 0",
    "HMSET h f 1",
    "ZADD z 1 a",
    "ZADD z NX 1 a",
    "ZADD z XX 1 zz",
    "ZADD z GT 0 a",
    "ZADD z INCR 0 a",
    "ZADD new XX 1 a",
    "ZINCRBY z 0 a",
    "ZREM z zz",
    "ZREM z a",
    "ZREMRANGEBYRANK z 10 20",
    "ZREMRANGEBYRANK z 0 -1",
    "ZREMRANGEBYSCORE z 10 20",
    "ZREMRANGEBYLEX z [a [b",
    "ZPOPMIN z",
    "ZPOPMIN z 0",
    "ZPOPMAX new",
    "ZMPOP 2 new z MIN",
    "BZPOPMIN z 1",
    "BZPOPMIN new 0.01",
    "BZMPOP 1 1 z MIN",
    "ZUNIONSTORE new 2 z z2",
    "ZINTERSTORE new 2 z new2",
    "ZINTERSTORE z 2 z new2",
    "ZRANGESTORE new z 0 -1",
    "ZRANGESTORE new z 10 20",
    "ZRANGESTORE z z 10 20",
    "ZRANGESTORE z z 0 -1",
    "ZDIFFSTORE z 2 z z",
    "GEOADD geo 13 38 p",
    "GEOADD geo 13 38 r",
    "GEORADIUS geo 15 37 200 km STORE new",
    "GEOSEARCHSTORE new geo FROMLONLAT 15 37 BYRADIUS 200 km",
    "GEOSEARCHSTORE z geo FROMLONLAT 0 0 BYRADIUS 1 km",
    "XADD x * f v",
    "XADD new NOMKSTREAM * f v",
    "XADD x 1-1 f v",
    "XADD x MAXLEN 0 * f v",
    "XDEL x 9-9",
    "XDEL x 1-1",
    "XDEL x 1-1 2-1 3-1",
    "XTRIM x MAXLEN 100",
    "XTRIM x MAXLEN 1",
    "XTRIM x MAXLEN 0",
    "XSETID x 3-1",
    "XSETID x 5-1",
    "XSETID x 5-1 ENTRIESADDED 10 MAXDELETEDID 1-1",
    "XGROUP CREATE x g 0",
    "XGROUP CREATE x h 0",
    "XGROUP CREATE new h 0 MKSTREAM",
    "XGROUP SETID x g 0",
    "XGROUP DESTROY x g",
    "XGROUP DESTROY x nog",
    "XGROUP CREATECONSUMER x g c",
    "XGROUP CREATECONSUMER x g d",
    "XGROUP DELCONSUMER x g c",
    "XGROUP DELCONSUMER x g d",
    "XREADGROUP GROUP g c STREAMS x >",
    "XREADGROUP GROUP g d STREAMS x >",
    "XREADGROUP GROUP g c STREAMS x 0",
    "XREADGROUP GROUP g newc STREAMS x 0",
    "XREADGROUP GROUP g c NOACK STREAMS x >",
    "XACK x g 1-1",
    "XACK x g 9-9",
    "XCLAIM x g d 0 1-1",
    "XCLAIM x g d 0 9-9",
    "XCLAIM x g d 0 2-1 FORCE",
    "XCLAIM x g d 0 1-1 LASTID 5-5",
    "XDEL x 1-1; XCLAIM x g d 0 1-1",
    "XAUTOCLAIM x g d 0 0",
    "XAUTOCLAIM x g d 1000000 0",
    "PFADD hll a",
    "PFADD hll zzz",
    "PFADD new",
    "PFADD hll",
    "PFMERGE hll hll",
    "PFMERGE hll hll2",
    "PFMERGE hll",
    "PFMERGE new hll",
    "PFMERGE new",
    "PFCOUNT hll",
    "PFADD hll q; PFCOUNT hll",
    "PFCOUNT hll hll2",
    "PFDEBUG TODENSE hll",
    "PFDEBUG GETREG hll",
    "EXPIRE s 100",
    "EXPIRE new 100",
    "EXPIRE s -1",
    "EXPIRE ttl 100 NX",
    "PERSIST s",
    "PERSIST ttl",
    "PEXPIREAT s 1",
    "DEL s",
    "DEL new",
    "UNLINK s",
    "RENAME s new",
    "RENAME s s",
    "RENAMENX s t",
    "RENAMENX s new",
    "RENAME new s",
    "COPY s new",
    "COPY s t",
    "COPY s t REPLACE",
    "COPY s new DB 1",
    "MOVE s 1",
    "MOVE new 1",
    "SORT l ALPHA STORE new",
    "SORT new STORE new2",
    "SORT new STORE s",
    "SORT set ALPHA STORE set",
    "TOUCH s",
    "FLUSHDB",
    "FLUSHALL ASYNC",
    "SELECT 1; FLUSHDB",
    "SWAPDB 0 1",
    "SWAPDB 0 0",
    "SELECT 1; SET s 1",
    "HSCAN h 0",
    "LPUSH new a; DEL new",
    "SET new 1; DEL new",
];

/// Returns each line of [`CHANGES`], followed by the keys that the line changed. A key counts as
/// changed if a transaction that watches it aborts. All words of the line are watched as keys, and
/// `s` is watched for every line.
fn invalidated(server: &Server) -> Vec<String> {
    let mut watchers: Vec<_> = (0..WORDS_MAX).map(|_| server.connect()).collect();
    let mut changer = server.connect();
    let mut run = |line: &str| {
        let parts: Vec<_> = line.split(' ').map(|part| if part == "''" { "" } else { part }).collect();
        changer.command(&parts)
    };
    let mut rows = Vec::new();
    for change in CHANGES {
        for command in ["SELECT 0", "FLUSHALL"].iter().chain(DATASET) {
            let reply = run(command);
            assert!(!reply.is_error(), "{command}: {reply:?}");
        }
        let keys: BTreeSet<&str> = change.split([' ', ';']).filter(|word| !word.is_empty()).chain(["s"]).collect();
        assert!(keys.len() <= WORDS_MAX, "{change}");
        let watched = || keys.iter().zip(0..);
        for (key, at) in watched() {
            watchers[at].call(&format!("WATCH {key}"));
        }
        for command in change.split("; ") {
            run(command);
        }
        let mut row = format!("{change}:");
        for (key, at) in watched() {
            watchers[at].call("MULTI");
            if watchers[at].call("EXEC") == Reply::Null {
                row.push(' ');
                row.push_str(key);
            }
        }
        rows.push(row);
    }
    rows
}

#[test]
fn commands_that_invalidate_a_watch_are_those_of_redis() {
    let Some(reference) = Server::redis(&[]) else { return };
    let right = invalidated(&reference);
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "2", "--shards", "8"]);
        let given = invalidated(&server);
        let differing: Vec<_> = given.iter().zip(&right).filter(|(given, right)| given != right).collect();
        assert!(differing.is_empty(), "(given, right): {differing:#?}");
        server.assert_sound();
    });
}
