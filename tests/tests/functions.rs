//! Functions: replies equal those of redis-server byte for byte, and each server restores the
//! other's libraries.

use pantala_tests::transcript::assert_as_redis_in_each_form;
use pantala_tests::{Client, Reply, Server, for_each_backend};

/// Arguments with several shards (parts of the key space) per worker. The keys of one function are
/// then in several shards, which belong to several workers.
const SERVER_ARGS: [&str; 4] = ["--workers", "3", "--shards", "8"];

/// A library with functions of every kind.
const PROBE: &str = "#!lua name=probe
local load_time = redis
local function names(of) local t = {} for k in pairs(of) do t[#t + 1] = k end table.sort(t) return table.concat(t, ' ') end
redis.register_function('globals', function() return names(_G) end)
redis.register_function('api', function() return names(redis) end)
redis.register_function('load_api', function() return names(load_time) end)
redis.register_function('too_late', function() return load_time.register_function('a', function() end) end)
redis.register_function('not_there', function() return redis.register_function('a', function() end) end)
redis.register_function('fails', function() error('boom') end)
redis.register_function('fails_with_table', function() error({err = 'MINE boom'}) end)
redis.register_function('fails_with_globals', function() error(_G) end)
redis.register_function('fails_with_library', function() error(string) end)
redis.register_function('fails_with_metatable', function() error(setmetatable({err = 'MINE boom'}, {__newindex = function() error('inner') end})) end)
redis.register_function('places', function() return {redis.source, string.source, string.line, pcall(function() return source end)} end)
redis.register_function('calls_nothing', function() return redis.call('nosuch') end)
redis.register_function('catches', function() return redis.pcall('nosuch') end)
redis.register_function('sets_global', function() x = 1 end)
redis.register_function('asks_keys', function() return KEYS end)
redis.register_function('echo', function(keys, args) return {keys, args} end)
redis.register_function('set', function(keys, args) return redis.call('SET', keys[1], args[1]) end)
redis.register_function('get', function(keys) return redis.call('GET', keys[1]) end)
redis.register_function{function_name = 'ro', callback = function(keys) return redis.call('GET', keys[1]) end, flags = {'no-writes'}, description = 'reads'}
redis.register_function{function_name = 'lies', callback = function(keys) return redis.call('SET', keys[1], 'x') end, flags = {'No-Writes', 'allow-oom'}}
redis.register_function('versions', function() return {redis.REDIS_VERSION, redis.REDIS_VERSION_NUM, redis.sha1hex('a')} end)
redis.register_function('map', function() redis.setresp(3) return redis.call('CONFIG', 'GET', 'maxmemory') end)
redis.register_function('json', function(keys, args) return cjson.encode(cjson.decode(args[1])) end)
";

/// Library sources. Most are rejected by FUNCTION LOAD, and the errors are compared.
#[rustfmt::skip] // one text a line
const TEXTS: &[&str] = &[
    "", "x", "return 1", "#!", "#!\n", "#!lua", "#!lua\n", "#!lua name=a", "#!lua name=a\n", "#!lua name=\n", "#!lua name=a b\n", "#!lua name=a name=b\n",
    "#!lua \"name=a\n", "#!lua 'name=a b'\n", "#!lua name=a-b\n", "#!js name=a\n", "#!js name=a-b\n", "#! name=a\n", "#!lua Name=a flags=x\n",
    "#!lua name=x\nfoo()", "#!lua name=x\nredis.call('PING')", "#!lua name=x\nredis.setresp(3)", "#!lua name=x\nbad code", "#!lua name=x\nx = 1", "#!lua name=x\nreturn math.random()",
    "#!lua name=x\nreturn _G", "#!lua name=x\nredis.x = 1", "#!lua name=x\nlocal t = {} t.x = t.y.z", "#!lua name=x\nredis.log(1)", "#!lua name=x\nredis.log(redis.LOG_DEBUG, 'hello')",
    "#!lua name=x\nredis.register_function()", "#!lua name=x\nredis.register_function(1, 2, 3)", "#!lua name=x\nredis.register_function('a')", "#!lua name=x\nredis.register_function('a b', function() end)",
    "#!lua name=x\nredis.register_function('', function() end)", "#!lua name=x\nredis.register_function('a', 'b')", "#!lua name=x\nredis.register_function({}, function() end)",
    "#!lua name=x\nredis.register_function{}", "#!lua name=x\nredis.register_function{function_name='a'}", "#!lua name=x\nredis.register_function{callback=function() end}",
    "#!lua name=x\nredis.register_function{function_name='a', callback=function() end, more=1}", "#!lua name=x\nredis.register_function{1}",
    "#!lua name=x\nredis.register_function{function_name={}, callback=function() end}", "#!lua name=x\nredis.register_function{function_name='a', callback=1}",
    "#!lua name=x\nredis.register_function{function_name='a', callback=function() end, description={}}",
    "#!lua name=x\nredis.register_function{function_name='a', callback=function() end, flags='no-writes'}",
    "#!lua name=x\nredis.register_function{function_name='a', callback=function() end, flags={'nosuch'}}",
    "#!lua name=x\nredis.register_function{function_name='a', callback=function() end, flags={1}}",
    "#!lua name=x\nredis.register_function{function_name='a', callback=function() end, flags={{}}}",
    "#!lua name=x\nredis.register_function('a', function() end) redis.register_function('a', function() end)",
    "#!lua name=x\nredis.register_function('set', function() end)", "#!lua name=x\nredis.register_function('SET', function() end)",
    "#!lua name=probe\nredis.register_function('other', function() end)",
    "#!LUA NAME=good\nredis.register_function(7, function() return 'seven' end)",
];

/// Commands that are sent after the sources have been loaded.
#[rustfmt::skip] // one call a line
const CALLS: &[&[&str]] = &[
    &["FUNCTION", "LIST", "LIBRARYNAME", "PRO*"], &["FUNCTION", "LIST", "libraryname", "good", "withcode"], &["FUNCTION", "LIST", "LIBRARYNAME", "nosuch"],
    &["FUNCTION", "LIST", "LIBRARYNAME"], &["FUNCTION", "LIST", "x"], &["FUNCTION", "LIST", "WITHCODE", "WITHCODE"], &["FUNCTION", "STATS"], &["FUNCTION", "STATS", "x"],
    &["FUNCTION", "KILL"], &["FUNCTION", "DELETE", "nosuch"], &["FUNCTION", "DELETE"], &["FUNCTION", "nosuch"], &["FUNCTION"], &["FUNCTION", "LOAD"], &["FUNCTION", "LOAD", "REPLACE"],
    &["FUNCTION", "LOAD", "x", "y"], &["FUNCTION", "FLUSH", "x"], &["FUNCTION", "FLUSH", "SYNC", "y"], &["FUNCTION", "RESTORE", "x"], &["FUNCTION", "RESTORE", "x", "y"], &["FUNCTION", "RESTORE", "x", "FLUSH", "y"],
    &["FCALL", "globals", "0"], &["FCALL", "GLOBALS", "0"], &["FCALL", "api", "0"], &["FCALL", "load_api", "0"], &["FCALL", "too_late", "0"], &["FCALL", "not_there", "0"], &["FCALL", "fails", "0"], &["FCALL", "FAILS", "0"],
    &["FCALL", "fails_with_globals", "0"], &["FCALL", "fails_with_library", "0"], &["FCALL", "fails_with_metatable", "0"], &["FCALL", "places", "0"],
    &["FCALL", "fails_with_table", "0"], &["FCALL", "calls_nothing", "0"], &["FCALL", "catches", "0"], &["FCALL", "sets_global", "0"], &["FCALL", "asks_keys", "0"],
    &["FCALL", "echo", "2", "a", "b", "c"], &["FCALL", "echo", "0"], &["FCALL", "echo", "x"], &["FCALL", "echo", "-1"], &["FCALL", "echo", "2", "a"], &["FCALL", "nosuch", "x"], &["FCALL", "nosuch"],
    &["FCALL", "set", "1", "k", "v"], &["FCALL", "get", "1", "k"], &["FCALL_RO", "get", "1", "k"], &["FCALL_RO", "ro", "1", "k"], &["FCALL", "ro", "1", "k"], &["FCALL", "lies", "1", "k"], &["FCALL_RO", "lies", "1", "k"],
    &["FCALL", "versions", "0"], &["FCALL", "map", "0"], &["FCALL", "json", "0", "{\"a\":[1,2.5,null]}"], &["FCALL", "7", "0"],
    &["EVAL", "return redis.call('FCALL', 'echo', 0)", "0"], &["EVAL", "return redis.pcall('FUNCTION', 'FLUSH')", "0"], &["EVAL", "return redis.register_function", "0"],
    &["MULTI"], &["FCALL", "set", "1", "k", "w"], &["FUNCTION", "DELETE", "good"], &["FCALL", "7", "0"], &["GET", "k"], &["EXEC"],
    &["FUNCTION", "LOAD", "REPLACE", "#!lua name=good\nredis.register_function('get', function() end)"], &["FUNCTION", "STATS"],
    &["FUNCTION", "LOAD", "#!lua name=good\nredis.register_function('x', function() return 'first' end)"], &["FCALL", "x", "0"],
    &["FUNCTION", "LOAD", "REPLACE", "#!lua name=good\nredis.register_function('y', function() return 'second' end)"], &["FCALL", "x", "0"], &["FCALL", "y", "0"],
    &["FUNCTION", "LOAD", "replace", "REPLACE", "#!lua name=good\nfails()"], &["FCALL", "y", "0"], &["FUNCTION", "STATS"], &["FUNCTION", "DELETE", "good"], &["FCALL", "y", "0"],
    &["FLUSHALL"], &["SCRIPT", "FLUSH"], &["FCALL", "get", "1", "k"], &["FUNCTION", "FLUSH", "async"], &["FUNCTION", "STATS"], &["FUNCTION", "LIST"], &["FUNCTION", "DUMP"],
];

fn transcript(server: &Server, version: u8) -> Vec<String> {
    let mut client = server.connect();
    client.call("FUNCTION FLUSH");
    client.call("FLUSHALL");
    if version == 3 {
        assert!(!matches!(client.call("HELLO 3"), Reply::Error(_)));
    }
    let loads = std::iter::once(&PROBE).chain(TEXTS).map(|text| vec!["FUNCTION", "LOAD", text]);
    loads
        .chain(CALLS.iter().map(|call| call.to_vec()))
        .map(|command| {
            client.send(&command);
            let (_, raw) = client.receive_raw();
            let mut lines: Vec<_> = raw.split(|&byte| byte == b'\n').collect();
            if command.get(1) == Some(&"LIST") {
                // The lines of a library's functions are sorted, because Redis lists them in the
                // order of a hash table.
                lines.sort_unstable();
            }
            format!("{command:?}: {}", lines.join(&b'\n').escape_ascii())
        })
        .collect()
}

#[test]
fn functions_reply_as_in_redis() {
    assert_as_redis_in_each_form(&SERVER_ARGS, transcript);
}

/// Returns a library with one function that returns a text.
fn library(name: &str, function: &str, answer: &str) -> String {
    format!("#!lua name={name}\nredis.register_function('{function}', function() return '{answer}' end)")
}

fn dump(client: &mut Client) -> Vec<u8> {
    match client.call("FUNCTION DUMP") {
        Reply::Bulk(bytes) => bytes,
        other => panic!("FUNCTION DUMP replied {other:?}"),
    }
}

fn restore(client: &mut Client, payload: &[u8], policy: &[&str]) -> Reply {
    let mut command: Vec<&[u8]> = vec![b"FUNCTION", b"RESTORE", payload];
    command.extend(policy.iter().map(|word| word.as_bytes()));
    client.command(&command)
}

/// Each server restores the other's dumps, with the same effect on existing libraries.
#[test]
fn dumps_are_exchanged_with_redis() {
    let Some(redis) = Server::redis(&[]) else { return };
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &SERVER_ARGS);
        let mut clients = [redis.connect(), server.connect()];
        for (from, to) in [(0, 1), (1, 0)] {
            clients[from].call("FUNCTION FLUSH");
            // This library is so long that its dump is compressed.
            let long = library("one", "f", &"long ".repeat(100));
            assert_eq!(clients[from].command(&["FUNCTION", "LOAD", &long]), Reply::bulk("one"));
            clients[from].command(&["FUNCTION", "LOAD", &library("two", "g", "of two")]);
            let payload = dump(&mut clients[from]);
            let there = &mut clients[to];
            there.call("FUNCTION FLUSH");
            assert_eq!(restore(there, &payload, &[]), Reply::ok());
            assert_eq!(there.call("FCALL g 0"), Reply::bulk("of two"));
            assert_eq!(there.call("FCALL f 0"), Reply::bulk("long ".repeat(100)));
            assert_eq!(restore(there, &payload, &["REPLACE"]), Reply::ok());
            let is_error = |reply: Reply| matches!(reply, Reply::Error(text) if text.contains("already exists"));
            assert!(is_error(restore(there, &payload, &["APPEND"])));
            // If a function's name conflicts with another library's, no library is replaced.
            there.call("FUNCTION DELETE two");
            there.command(&["FUNCTION", "LOAD", &library("three", "G", "of three")]);
            assert_eq!(restore(there, &payload, &["REPLACE"]), Reply::Error("ERR Function g already exists".into()));
            assert_eq!(there.call("FCALL g 0"), Reply::bulk("of three"));
            assert_eq!(restore(there, &payload, &["flush"]), Reply::ok());
            assert_eq!(there.call("FCALL g 0"), Reply::bulk("of two"));
            // A truncated or changed payload is rejected.
            for at in 0..payload.len() {
                let mut bent = payload.clone();
                bent[at] ^= 0x40;
                assert!(matches!(restore(there, &bent, &[]), Reply::Error(_)));
            }
        }
    });
}

/// Returns Redis's checksum (CRC-64 of Jones), computed bit by bit.
fn crc64(bytes: &[u8]) -> u64 {
    const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u64::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 })
    })
}

/// Both servers reply with the same errors to payloads with a valid checksum and invalid contents.
#[test]
fn invalid_payloads_are_rejected_as_in_redis() {
    let Some(redis) = Server::redis(&[]) else { return };
    let server = Server::pantala(pantala_tests::Backend::all()[0], &SERVER_ARGS);
    let mut clients = [redis.connect(), server.connect()];
    let plain = |text: &str| {
        let mut bytes = vec![245, 0x40 | (text.len() >> 8) as u8, text.len() as u8];
        bytes.extend_from_slice(text.as_bytes());
        bytes
    };
    let (f, g) = (plain(&library("f", "f", "1")), plain(&library("g", "g", "1")));
    let bodies: Vec<Vec<u8>> = vec![
        vec![],
        vec![0, 1, b'x'],
        vec![246],
        [&[246, 1, b'o', 3][..], b"LUA", &[0, 55], b"redis.register_function('old', function() return 1 end)"].concat(),
        [
            &[246, 1, b'o', 3][..],
            b"LUA",
            &[1, 2],
            b"de",
            &[55],
            b"redis.register_function('old', function() return 1 end)",
        ]
        .concat(),
        [&[246, 1, b'o', 3][..], b"LUA", &[1, 9], b"de"].concat(),
        [&[246, 1, b'o', 3][..], b"LUA"].concat(),
        vec![246, 1, b'o', 9],
        vec![245],
        vec![245, 5, b'x'],
        plain("x"),
        plain("#!lua name=a\n"),
        [&f[..], &f[..]].concat(),
        [&f[..], &[246]].concat(),
        [&f[..], &plain(&library("h", "f", "1"))].concat(),
        [&f[..], &g[..]].concat(),
    ];
    for mut body in bodies {
        body.extend_from_slice(&[10, 0]);
        let checksum = crc64(&body);
        body.extend_from_slice(&checksum.to_le_bytes());
        let [wanted, got] = &mut clients;
        assert_eq!(restore(got, &body, &["REPLACE"]), restore(wanted, &body, &["REPLACE"]), "{}", body.escape_ascii());
        assert_eq!(got.call("FUNCTION STATS"), wanted.call("FUNCTION STATS"));
    }
}

/// A library is loaded once for all workers. All workers use the library, and later its next
/// version, no matter which worker loaded it.
#[test]
fn all_workers_see_libraries_change_at_once() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "3", "--shards", "8"]);
        let mut clients: Vec<Client> = (0..9).map(|_| server.connect()).collect();
        for round in 0..20 {
            let text = library("lib", "f", &round.to_string());
            let by = round % clients.len();
            assert_eq!(clients[by].command(&["FUNCTION", "LOAD", "REPLACE", &text]), Reply::bulk("lib"));
            for client in &mut clients {
                assert_eq!(client.call("FCALL f 0"), Reply::bulk(round.to_string()));
            }
        }
        let info = clients[0].call("INFO memory").text();
        assert!(info.contains("number_of_functions:1\r\nnumber_of_libraries:1\r\n"), "{info}");
        clients[3].call("FUNCTION FLUSH");
        for client in &mut clients {
            assert_eq!(client.call("FCALL f 0"), Reply::Error("ERR Function not found".into()));
        }
    });
}

/// Functions that use undeclared keys take effect exactly once, although they are rolled back and
/// rerun.
#[test]
fn functions_use_undeclared_keys() {
    let text = "#!lua name=lib
        redis.register_function('fill', function(keys)
            for i = 1, 100 do redis.call('INCR', 'made:' .. i) end
            return redis.call('INCR', keys[1])
        end)";
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &SERVER_ARGS);
        let mut client = server.connect();
        client.command(&["FUNCTION", "LOAD", text]);
        for round in 1..=3 {
            assert_eq!(client.call("FCALL fill 1 declared"), Reply::Integer(round));
            assert_eq!(client.call("GET made:50"), Reply::bulk(round.to_string()));
        }
        assert_eq!(client.call("DBSIZE"), Reply::Integer(101));
    });
}

/// A library whose code runs for more than half a second while it is loaded is rejected. The
/// library that it should replace stays loaded.
#[test]
fn a_library_has_half_a_second_to_load() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "1"]);
        let mut client = server.connect();
        client.command(&["FUNCTION", "LOAD", &library("lib", "f", "here")]);
        let endless = "#!lua name=lib\nredis.register_function('g', function() end) while true do end";
        let error = Reply::Error("ERR Error registering functions: ERR FUNCTION LOAD timeout".into());
        assert_eq!(client.command(&["FUNCTION", "LOAD", "REPLACE", endless]), error);
        assert_eq!(client.call("FCALL f 0"), Reply::bulk("here"));
    });
}

/// Each worker has its own copy of a library's Lua variables. When a run is rolled back, its
/// changes to these variables remain.
#[test]
fn variables_of_a_library_belong_to_a_worker_and_are_not_rolled_back() {
    let text = "#!lua name=lib
        local count = 0
        redis.register_function('count', function() count = count + 1 return count end)
        redis.register_function('wide', function()
            count = count + 1
            for i = 1, 20 do redis.call('INCR', 'undeclared:' .. i) end
            return count
        end)";
    for_each_backend(|backend| {
        for workers in ["1", "3"] {
            let server = Server::pantala(backend, &["--workers", workers, "--shards", "8"]);
            let mut clients: Vec<Client> = (0..9).map(|_| server.connect()).collect();
            clients[0].command(&["FUNCTION", "LOAD", text]);
            let mut counts: Vec<i64> =
                clients.iter_mut().map(|client| client.call("FCALL count 0").integer()).collect();
            counts.sort_unstable();
            assert_eq!(counts == (1..=9).collect::<Vec<_>>(), workers == "1", "{workers} workers: {counts:?}");
            if workers == "1" {
                // The first call is rolled back and rerun when it accesses an undeclared key. It
                // therefore increments its keys once, and the variable twice.
                let calls = [1, 2].map(|_| clients[0].call("FCALL wide 0").integer());
                assert_eq!((calls, clients[0].call("GET undeclared:1")), ([11, 12], Reply::bulk("2")));
            }
        }
    });
}
