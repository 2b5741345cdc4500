//! Other versions of Redis and Valkey: Pantala loads their snapshots and append-only files, and
//! follows them as a replica. The same commands fill each version, as far as it has them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use pantala_tests::following::{follow, info, wait_until_applied};
use pantala_tests::other_versions::{SOURCES, Version, WHEELS};
use pantala_tests::server::run_to_exit;
use pantala_tests::waiting::eventually;
use pantala_tests::{Backend, Client, Reply, Server};
use tempfile::TempDir;

/// Databases that are filled.
const DATABASES: [usize; 3] = [0, 3, 15];
/// Numbers of elements just below and just above the limits of encodings in some version.
const COUNTS: [usize; 9] = [1, 8, 63, 127, 128, 129, 512, 513, 600];
/// The first versions with streams and with functions.
const STREAMS: (u32, u32) = (5, 0);
const FUNCTIONS: (u32, u32) = (7, 0);
/// The first version of Valkey with hash-field TTLs.
const FIELD_TTLS: (u32, u32) = (9, 0);
/// The first version that propagates the effects of scripts instead of scripts.
const SCRIPT_EFFECTS: (u32, u32) = (5, 0);
/// The first version that can write the base of an append-only file as RDB.
const PREAMBLES: (u32, u32) = (4, 0);
/// The first version whose full syncs wait for further replicas unless told otherwise.
const DISKLESS: (u32, u32) = (7, 0);
/// The first version whose `DEBUG DIGEST` includes other digits of scores than Pantala's.
const SCORES_DIFFER: (u32, u32) = (7, 2);
/// Maximum delay in milliseconds of a command in a stream. Versions before 7 send `EXPIRE` with the
/// relative time, so a deadline is later on the replica. No two deadlines are this close.
const LATE_MS: i64 = 20_000;
/// A deadline that must be exactly the same, unlike those that are compared by `PTTL`.
const DEADLINE_MS: i64 = 4_102_444_800_123;

/// Commands that create values, each with the first version that has the command. `@` is the prefix
/// of keys, LONG a long value.
///
/// No stream stays empty with the ID 0-0: Redis 5 rewrites it to an `XADD` with this ID, which
/// later versions reject.
const VALUES: &[((u32, u32), &[&str])] = &[
    (
        (2, 8),
        &[
            "SET @int -12345",
            "SET @int8 100",
            "SET @max 9223372036854775807",
            "SET @empty ",
            "SET @long LONG",
            "SET @expires value",
            "PEXPIREAT @expires 4102444800123",
            "SETEX @soon 100000 value",
            "PSETEX @expired 1 value",
            "SETBIT @bits 1000 1",
            "APPEND @appended abc",
            "APPEND @appended def",
            "SADD @integers 4611686018427387904 -1099511627776 5",
            "SADD @members a b 12 LONG",
            "RPUSH @list a b 12 -7 1099511627776 a",
            "RPUSH @nodes LONG LONG a LONG",
            "HMSET @hash f v g 12 12 g",
            "HSET @long-field f LONG",
            "ZADD @scores 1 a -2.5 12 inf c -inf d 0.1 e 1e300 f 0.30000000000000004 g",
            "ZADD @long-member 1 LONG",
            "EXPIREAT @scores 4102444800",
            "PFADD @sparse a b",
        ],
    ),
    ((3, 2), &["GEOADD @geo 13.361389 38.115556 P 15.087269 37.502669 C", "BITFIELD @field SET i9 #3 -100"]),
    (
        STREAMS,
        &[
            "XADD @stream 1-1 f v g 12",
            "XADD @stream 1-2 f w g LONG",
            "XADD @stream 7-0 other -5",
            "XADD @stream * f v",
            "XDEL @stream 1-2",
            "XGROUP CREATE @stream group 0",
            "XREADGROUP GROUP group consumer COUNT 2 STREAMS @stream >",
            "XREADGROUP GROUP group other COUNT 1 STREAMS @stream >",
            "XGROUP CREATE @stream end $",
            "XADD @emptied 5-5 f v",
            "XDEL @emptied 5-5",
            "XGROUP CREATE @created group $ MKSTREAM",
            "XADD @created 1-1 f v",
        ],
    ),
    ((6, 2), &["SET @pxat value PXAT 4102444800456", "XADD @trimmed NOMKSTREAM 1-1 f v"]),
    (
        FIELD_TTLS,
        &[
            "HSET @ttls a 1 b 2 c 3",
            "HPEXPIREAT @ttls 4102444800789 FIELDS 2 a c",
            "HSET @long-ttls a LONG b 2",
            "HEXPIREAT @long-ttls 4102444800 FIELDS 1 b",
        ],
    ),
];

/// Commands that change the values that [`VALUES`] created.
const CHANGES: &[((u32, u32), &[&str])] = &[
    (
        (2, 8),
        &[
            "INCRBY @int 7",
            "INCRBYFLOAT @int8 0.5",
            "SETRANGE @appended 10 x",
            "GETSET @empty now",
            "BITOP NOT @not @bits",
            "PERSIST @soon",
            "EXPIRE @long 200000",
            "PEXPIRE @hash 300000000",
            "RENAME @max @renamed",
            "SET @moving 1",
            "MOVE @moving 15",
            "SPOP @integers",
            "SMOVE @members @moved 12",
            "SUNIONSTORE @union @members @set:513",
            "SINTERSTORE @inter @set:63 @set:513",
            "SREM @set:128 3",
            "SADD @set:512 word",
            "LPUSH @list z",
            "LINSERT @list BEFORE b x",
            "LSET @list 0 y",
            "LREM @list 1 a",
            "LTRIM @list:600 5 550",
            "RPOPLPUSH @list @other-list",
            "BLPOP @list:8 0",
            "BRPOPLPUSH @list:8 @other-list 0",
            "HINCRBY @hash g 4",
            "HINCRBYFLOAT @hash g 1.25",
            "HDEL @hash:129 f7",
            "HSETNX @hash:128 new LONG",
            "ZINCRBY @scores 0.7 a",
            "ZREM @scores c",
            "ZREMRANGEBYRANK @zset:600 0 50",
            "ZREMRANGEBYSCORE @zset:513 (10 20",
            "ZUNIONSTORE @zunion 2 @zset:8 @set:63 WEIGHTS 2 0.1",
            "ZINTERSTORE @zinter 2 @zset:63 @zset:8 AGGREGATE MAX",
            "SORT @list:63 ALPHA DESC STORE @sorted",
            "PFADD @sparse c d e",
            "PFMERGE @merged @sparse @dense",
            "DEL @list:1",
            "MULTI",
            "SET @transaction 1",
            "INCR @transaction",
            "SELECT 15",
            "SADD @members b",
            "SELECT 0",
            "EXEC",
        ],
    ),
    (
        (3, 2),
        &[
            "SPOP @words:129 40",
            "ZADD @scores XX CH 9 a",
            "GEORADIUS @geo 15 37 200 km STORE @near",
            "BITFIELD @field INCRBY u8 0 3",
        ],
    ),
    ((4, 0), &["UNLINK @list:63", "SWAPDB 3 15"]),
    (
        STREAMS,
        &[
            "ZPOPMIN @zset:129 3",
            "BZPOPMAX @zset:129 0",
            "XADD @stream MAXLEN 4 * f x",
            "XREADGROUP GROUP group consumer STREAMS @stream >",
            "XREADGROUP GROUP group third NOACK STREAMS @stream >",
            "XACK @stream group 1-1",
            "XCLAIM @stream group third 0 7-0",
            "XGROUP SETID @stream end 7-0",
            "XGROUP DELCONSUMER @stream group other",
            "XTRIM @stream MAXLEN 3",
            "XSETID @emptied 9-9",
            "XGROUP DESTROY @created group",
        ],
    ),
    (
        (6, 2),
        &[
            "GETEX @pxat PERSIST",
            "GETDEL @empty",
            "COPY @list @copied",
            "COPY @scores @copied-scores DB 15",
            "LMOVE @list @other-list RIGHT LEFT",
            "LPOP @list 2",
            "SET @int 5 KEEPTTL GET",
            "ZADD @scores GT 3 b",
            "ZRANGESTORE @stored @zset:600 0 10",
            "ZDIFFSTORE @diff 2 @zset:63 @zset:8",
            "GEOSEARCHSTORE @found @geo FROMLONLAT 15 37 BYRADIUS 200 km",
            "XADD @stream MINID 7 * f y",
            "XAUTOCLAIM @stream group consumer 0 0",
            "XGROUP CREATECONSUMER @stream group idle",
        ],
    ),
    (FUNCTIONS, &["LMPOP 1 @list:600 LEFT COUNT 3", "ZMPOP 1 @zset:600 MAX COUNT 3", "EXPIRE @long 250000 GT"]),
    (
        FIELD_TTLS,
        &["HPEXPIRE @ttls 500000000 FIELDS 1 b", "HPERSIST @ttls FIELDS 1 a", "HPEXPIRE @long-ttls 1 FIELDS 1 b"],
    ),
];

/// A script that writes, and reads what it has written.
const SCRIPT: [&str; 4] = ["EVAL", "redis.call('set', KEYS[1], redis.call('incrby', KEYS[1], 7) * 2)", "1", "script"];
/// The error that Pantala logs if an append-only file contains the script instead of its effects.
const REJECTED: &str = "The command 'EVAL' runs a script";
/// A library of functions.
const LIBRARY: &str = "#!lua name=lib\nredis.register_function('f', function() return 7 end)";

/// Everything that a client can read about a key. Texts show replies, in an order that does not
/// depend on the server.
#[derive(Debug)]
struct Key {
    value: Vec<String>,
    /// Two Unix times in milliseconds that enclose the deadline.
    deadline: Option<(i64, i64)>,
}

/// The dataset of a server.
struct Content {
    keys: BTreeMap<(usize, Vec<u8>), Key>,
    /// `DEBUG DIGEST` and the list of functions, if the version has them.
    whole: Vec<Reply>,
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

fn words(text: &str) -> Vec<Vec<u8>> {
    text.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

/// Runs commands that must succeed.
#[track_caller]
fn must(client: &mut Client, commands: &[Vec<Vec<u8>>]) {
    for (command, reply) in commands.iter().zip(client.pipeline(commands)) {
        assert!(!reply.is_error(), "{}: {reply:?}", String::from_utf8_lossy(&command.join(&b' ')));
    }
}

/// Returns the commands of a table that a version has.
fn known(table: &[((u32, u32), &[&str])], version: &Version, prefix: &str) -> Vec<Vec<Vec<u8>>> {
    let lines = table.iter().filter(|(since, _)| version.number >= *since).flat_map(|(_, lines)| *lines);
    let long = "abcdefghi".repeat(1000);
    lines.map(|line| words(&line.replace('@', prefix).replace("LONG", &long))).collect()
}

/// Returns commands that create a value of each type with each of [`COUNTS`] elements.
fn counted(prefix: &str) -> Vec<Vec<Vec<u8>>> {
    let one = |count: usize| {
        let all = |start: &str, element: &dyn Fn(usize) -> String| {
            let elements: Vec<_> = (0..count).map(element).collect();
            words(&format!("{start}:{count} {}", elements.join(" ")).replace('@', prefix))
        };
        [
            all("SADD @set", &|number| number.to_string()),
            all("SADD @words", &|number| format!("w{number}")),
            all("HMSET @hash", &|number| format!("f{number} {number}")),
            all("ZADD @zset", &|number| format!("{number}.5 m{number}")),
            all("RPUSH @list", &|number| format!("e{number}")),
        ]
    };
    let dense: Vec<_> = (0..2000).map(|number| number.to_string()).collect();
    let dense = words(&format!("PFADD {prefix}dense {}", dense.join(" ")));
    COUNTS.into_iter().flat_map(one).chain([dense]).collect()
}

/// Creates values of all types and encodings in several databases.
fn fill(server: &Server, version: &Version, prefix: &str) {
    let mut client = server.connect();
    must(&mut client, &counted(prefix));
    for database in DATABASES {
        let mut commands = vec![words(&format!("SELECT {database}"))];
        commands.extend(known(VALUES, version, prefix));
        commands.push([&b"SET"[..], prefix.as_bytes(), b"\x00\xff\r\n"].map(<[u8]>::to_vec).to_vec());
        must(&mut client, &commands);
        // The digest of an older version includes an expired key until a command has deleted it.
        let expired = format!("EXISTS {prefix}expired");
        eventually("the key has expired", || client.call(&expired) == Reply::Integer(0));
    }
}

/// Changes the values that [`fill`] has created, with a script if `is_scripted`.
fn change(server: &Server, version: &Version, prefix: &str, is_scripted: bool) {
    let mut client = server.connect();
    must(&mut client, &known(CHANGES, version, prefix));
    if is_scripted {
        must(&mut client, &[SCRIPT.map(|word| word.as_bytes().to_vec()).to_vec()]);
    }
    if version.number >= FIELD_TTLS {
        let expired = format!("HEXISTS {prefix}long-ttls b");
        eventually("the field has expired", || client.call(&expired) == Reply::Integer(0));
    }
    if version.number >= FUNCTIONS {
        assert_eq!(client.command(&["FUNCTION", "LOAD", "REPLACE", LIBRARY]).text(), "lib");
    }
}

/// Returns all elements of a collection that has no order, sorted.
fn sorted(reply: &Reply, size: usize) -> Vec<String> {
    let mut elements: Vec<_> = reply.elements().chunks(size).map(|chunk| format!("{chunk:?}")).collect();
    elements.sort_unstable();
    elements
}

/// Returns the value of a key.
fn value(client: &mut Client, key: &[u8], kind: &str, version: &Version) -> Vec<String> {
    let mut call = |line: &str| {
        let args: Vec<_> = line.split(' ').map(|word| if word == "@" { key } else { word.as_bytes() }).collect();
        client.command(&args)
    };
    match kind {
        "string" => vec![format!("{:?}", call("GET @"))],
        "list" => listed(&call("LRANGE @ 0 -1")),
        "set" => sorted(&call("SMEMBERS @"), 1),
        "zset" => {
            // Versions print the same score with different digits.
            let pairs = call("ZRANGE @ 0 -1 WITHSCORES");
            let score = |text: String| text.parse::<f64>().unwrap_or_else(|_| panic!("{text} is no score"));
            pairs.elements().chunks(2).map(|pair| format!("{:?} {:?}", pair[0], score(pair[1].text()))).collect()
        }
        "hash" => {
            let pairs = call("HGETALL @");
            let mut all = sorted(&pairs, 2);
            if version.number >= FIELD_TTLS {
                let mut fields: Vec<_> = pairs.elements().chunks(2).map(|pair| pair[0].text()).collect();
                fields.sort_unstable();
                all.push(format!(
                    "{:?}",
                    call(&format!("HPEXPIRETIME @ FIELDS {} {}", fields.len(), fields.join(" ")))
                ));
            }
            all
        }
        "stream" => stream(&mut call),
        _ => panic!("a key of type {kind}"),
    }
}

/// Returns all elements of a collection in their order.
fn listed(list: &Reply) -> Vec<String> {
    list.elements().iter().map(|element| format!("{element:?}")).collect()
}

/// Returns the entries, groups and pending entries of a stream. `call` runs a command on it.
fn stream(call: &mut impl FnMut(&str) -> Reply) -> Vec<String> {
    let mut all = listed(&call("XRANGE @ - +"));
    let information = call("XINFO STREAM @");
    all.extend(["length", "last-generated-id"].map(|name| format!("{name} {:?}", information.field(name))));
    for group in call("XINFO GROUPS @").elements() {
        all.extend(["name", "pending", "last-delivered-id"].map(|name| format!("{name} {:?}", group.field(name))));
        let name = group.field("name").expect("a group has a name").text();
        for pending in call(&format!("XPENDING @ {name} - + 1000")).elements() {
            let [id, consumer, _idle, deliveries] = pending.elements() else { panic!("{pending:?} is pending") };
            all.push(format!("{id:?} {consumer:?} {deliveries:?}"));
        }
    }
    all
}

/// Reads the whole dataset of a server, as far as `version` can show it.
fn content(server: &Server, version: &Version) -> Content {
    let mut client = server.connect();
    let mut keys = BTreeMap::new();
    for database in 0..16 {
        client.call(&format!("SELECT {database}"));
        for name in client.call("KEYS *").elements() {
            let Reply::Bulk(name) = name else { panic!("{name:?} is no key") };
            let kind = client.command(&[b"TYPE", &name[..]]).text();
            let mut value = value(&mut client, name, &kind, version);
            value.push(kind);
            let before = now_ms();
            let ttl = client.command(&[b"PTTL", &name[..]]).integer();
            let deadline = (ttl >= 0).then(|| (before + ttl - LATE_MS, now_ms() + ttl + LATE_MS));
            keys.insert((database, name.clone()), Key { value, deadline });
        }
    }
    let mut whole = Vec::new();
    if version.number < SCORES_DIFFER {
        whole.push(client.call("DEBUG DIGEST"));
    }
    if version.number >= FUNCTIONS {
        whole.push(client.call("FUNCTION LIST WITHCODE"));
    }
    Content { keys, whole }
}

/// Checks that Pantala has the dataset `right`, which another version had.
#[track_caller]
fn assert_same(server: &Server, right: &Content, version: &Version, what: &str) {
    let given = content(server, version);
    let what = format!("{}, {what}", version.name);
    let shown = |(database, name): &(usize, Vec<u8>)| format!("{database}/{}", String::from_utf8_lossy(name));
    let names = |content: &Content| content.keys.keys().map(shown).collect::<Vec<_>>();
    assert_eq!(names(&given), names(right), "{what}");
    for (name, right) in &right.keys {
        let (key, name) = (&given.keys[name], format!("{what}: {}", shown(name)));
        assert_eq!(key.value, right.value, "{name}");
        let is_same = match (key.deadline, right.deadline) {
            (Some(given), Some(right)) => given.0 <= right.1 && right.0 <= given.1,
            (given, right) => given == right,
        };
        assert!(is_same, "{name}: {key:?} {right:?}");
    }
    assert_eq!(given.whole, right.whole, "{what}");
    let mut client = server.connect();
    for name in right.keys.keys().filter(|(database, name)| *database == 0 && name.ends_with(b"expires")) {
        assert_eq!(client.command(&[b"PEXPIRETIME", &name.1[..]]), Reply::Integer(DEADLINE_MS), "{what}");
    }
}

fn path(folder: &TempDir) -> &str {
    folder.path().to_str().expect("UTF-8")
}

/// Starts a server of another version, with its files in `folder`.
fn start(version: &Version, program: &Path, folder: &TempDir, args: &[&str]) -> Server {
    let all = [&["--dir", path(folder), "--save", ""], args].concat();
    let server = Server::other(program, &all);
    let banner = version.name.replace(' ', "_version:").to_lowercase();
    assert!(server.connect().call("INFO server").text().contains(&banner), "it isn't {}", version.name);
    server
}

/// Starts Pantala with its files in `folder`.
fn pantala(backend: Backend, folder: &TempDir, args: &[&str]) -> Server {
    Server::pantala(
        backend,
        &[&["--dir", path(folder), "--workers", "2", "--shards", "7", "--save", ""], args].concat(),
    )
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Pantala loads a version's snapshot.
fn load_snapshot(version: &Version, program: &Path, backend: Backend) {
    let folder = folder();
    let other = start(version, program, &folder, &["--appendonly", "no"]);
    fill(&other, version, "");
    change(&other, version, "", true);
    assert_eq!(other.connect().call("SAVE"), Reply::ok());
    let right = content(&other, version);
    other.kill();
    assert_same(&pantala(backend, &folder, &[]), &right, version, "its snapshot");
}

/// Pantala loads a version's append-only file, and then the file that it has made of it. The first
/// part of the version's file was rewritten, as RDB or as commands.
fn load_append_only_file(version: &Version, program: &Path, backend: Backend) {
    let forms: &[_] = if version.number >= PREAMBLES { &[Some("yes"), Some("no")] } else { &[None] };
    for form in forms {
        let folder = folder();
        let mut args = vec!["--appendonly", "yes", "--appendfsync", "always"];
        args.extend(form.iter().flat_map(|form| ["--aof-use-rdb-preamble", form]));
        let other = start(version, program, &folder, &args);
        fill(&other, version, "base:");
        change(&other, version, "base:", true);
        assert!(!other.connect().call("BGREWRITEAOF").is_error());
        eventually("the file is rewritten", || {
            info(&other, "persistence", "aof_rewrite_in_progress") == "0"
                && info(&other, "persistence", "aof_rewrite_scheduled") == "0"
        });
        assert_eq!(info(&other, "persistence", "aof_last_bgrewrite_status"), "ok", "{}", other.log());
        fill(&other, version, "later:");
        change(&other, version, "later:", version.number >= SCRIPT_EFFECTS);
        let right = content(&other, version);
        other.kill();
        for what in ["its append-only file", "the converted append-only file"] {
            let server = pantala(backend, &folder, &["--appendonly", "yes"]);
            assert_same(&server, &right, version, what);
            server.kill();
        }
    }
}

/// Pantala follows a version.
fn follow_version(version: &Version, program: &Path, backend: Backend) {
    let (folder, own) = (folder(), folder());
    let without_delay: &[_] = if version.number >= DISKLESS { &["--repl-diskless-sync-delay", "0"] } else { &[] };
    let other = start(version, program, &folder, &[&["--appendonly", "no"], without_delay].concat());
    fill(&other, version, "full:");
    fill(&other, version, "changed:");
    change(&other, version, "changed:", true);
    let mut replica = pantala(backend, &own, &[]);
    follow(&replica, &other);
    wait_until_applied(&replica, &other);
    assert_same(&replica, &content(&other, version), version, "after a full sync");
    fill(&other, version, "later:");
    change(&other, version, "later:", true);
    change(&other, version, "full:", true);
    wait_until_applied(&replica, &other);
    assert_same(&replica, &content(&other, version), version, "its stream");
    other.connect().call("FLUSHALL");
    wait_until_applied(&replica, &other);
    assert_same(&replica, &content(&other, version), version, "after FLUSHALL");
    // An error reply means that a command wasn't applied.
    assert_eq!(info(&replica, "stats", "unexpected_error_replies"), "0", "{}", replica.log());
    replica.assert_sound();
}

/// Append-only files of versions that record scripts instead of their effects are rejected.
fn reject_scripts(version: &Version, program: &Path, backend: Backend) {
    let folder = folder();
    let other = start(version, program, &folder, &["--appendonly", "yes", "--appendfsync", "always"]);
    must(&mut other.connect(), &[SCRIPT.map(|word| word.as_bytes().to_vec()).to_vec()]);
    other.kill();
    let args = [
        "--port",
        "0",
        "--unixsocket",
        "sock",
        "--io-backend",
        backend.name(),
        "--dir",
        path(&folder),
        "--appendonly",
        "yes",
    ];
    let exit = run_to_exit(&args, b"");
    assert!(!exit.status.success() && exit.output.contains(REJECTED), "{}", exit.output);
}

/// Runs a scenario with each version that can be installed. The versions take turns on the
/// backends.
fn with_each(versions: &[Version], scenario: impl Fn(&Version, &Path, Backend)) {
    let backends = Backend::all();
    for (version, backend) in versions.iter().zip(backends.iter().cycle()) {
        let Some(program) = version.program() else { continue };
        scenario(version, &program, *backend);
    }
}

#[test]
fn snapshots_of_other_versions_are_loaded() {
    with_each(&WHEELS, load_snapshot);
}

#[test]
fn append_only_files_of_other_versions_are_loaded() {
    with_each(&WHEELS, load_append_only_file);
}

#[test]
fn other_versions_are_followed() {
    with_each(&WHEELS, follow_version);
}

#[test]
#[ignore = "builds servers from source, which takes minutes"]
fn versions_that_are_built_from_source() {
    with_each(&SOURCES, |version, program, backend| {
        load_snapshot(version, program, backend);
        load_append_only_file(version, program, backend);
        follow_version(version, program, backend);
        if version.number < SCRIPT_EFFECTS {
            reject_scripts(version, program, backend);
        }
        println!("{}: loaded and followed", version.name);
    });
}
