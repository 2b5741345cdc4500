//! Scripts that try the first step of an escape from the sandbox. None of them succeeds, and the
//! server keeps running.

use pantala_tests::{Backend, Client, Reply, Server, for_each_backend};

use super::SERVER_ARGS;

/// Scripts that must fail or return nothing.
const REJECTED: &[&str] = &[
    // CVE-2022-0543: a loader left in `package`, and other functions of Lua's own interpreter.
    "return package.loadlib('liblua5.1.so.0', 'luaopen_io')",
    "return io.popen('id')",
    "return os.getenv('HOME')",
    "return require('io')",
    "return debug.getregistry()",
    "return dofile('/etc/passwd')",
    // CVE-2022-24735: changes to values that other scripts use.
    "string.format = function() return 'mine' end",
    "rawset(string, 'format', 1)",
    "rawset(_G, 'tostring', 1)",
    "redis.call = nil",
    "cjson.encode = nil",
    "setmetatable(_G, {__index = function() return 1 end})",
    "for name, value in pairs(_G) do if name == 'redis' then value.call = nil end end",
    "local f, s = pairs(redis) s.call = nil",
    "table.insert(table, 1, 1)",
    // CVE-2024-46981: finalizers, which run while a state is closed.
    "return newproxy(true)",
    "getmetatable(newproxy(true)).__gc = function() redis.call('SET', 'made', 1) end",
    // CVE-2025-46817: more results than an `int` can count.
    "return unpack({}, -2147483648, 2147483647)",
    "return unpack({}, -1, 2147483646)",
    "return unpack({1, 2, 3}, 0, 2147483647)",
    "return unpack({}, 1, 2147483647)",
    "return unpack({1}, 1, 8000)",
    // CVE-2025-46818: metatables of values that aren't tables.
    "getmetatable('').__index = function() return 'mine' end",
    "rawset(getmetatable(''), '__index', 1)",
    "setmetatable('', {})",
    "getmetatable(1).__index = 1",
    "getmetatable(nil).__index = 1",
    "getmetatable(true).__call = 1",
    "getmetatable(print or tostring).__index = 1",
    // CVE-2025-46819: long brackets whose level overruns the input.
    "return loadstring('return [' .. string.rep('=', 1000000))()",
    "return loadstring('return [' .. string.rep('=', 1000000) .. '[ never closed')()",
    "return loadstring('--[' .. string.rep('=', 100000) .. '[ never closed')()",
    "return loadstring('return [==[ x ]=] ]=')()",
    // Bytecode can't be loaded (CVE-2015-4335).
    "return load(string.dump(function() end))",
    "return loadstring(string.dump(function() end))()",
    "return loadstring('\\27Lua')()",
    // CVE-2018-11218, CVE-2021-32626: more values than Lua's stack has space for.
    "return cmsgpack.unpack(string.rep('\\1', 7901))",
    "return {cmsgpack.unpack(string.rep('\\192', 100000))}",
    "return cmsgpack.unpack(string.rep('\\145', 100000) .. '\\1')",
    "return cmsgpack.unpack_limit(string.rep('\\1', 9000), 8999)",
    "return struct.unpack(string.rep('b', 7901), string.rep('x', 7901))",
    "return cjson.decode(string.rep('[', 100000))",
    "local t = {} for i = 1, 100000 do t = {t} end return cjson.encode(t)",
    "return redis.call('ECHO', unpack({}, 1, 9000))",
    "return select('#', string.byte(string.rep('x', 1000000), 1, -1))",
    // CVE-2018-11219, CVE-2020-14147: sizes in a format that exceed the range of an `int`.
    "return struct.pack('I2147483648', 1)",
    "return struct.pack('c99999999999', 'x')",
    "return struct.unpack('c2147483647', 'x')",
    "return struct.unpack('c2147483647c2147483647c2', 'x')",
    "return struct.unpack('!2147483648', 'x')",
    "return struct.pack('>I33', 1)",
    "return struct.unpack('Lc0', string.rep('\\254', 20))",
    "return struct.unpack('b', 'x', 2147483647)",
    "return struct.unpack('c1', 'x', 9e18)",
    // Environments.
    "return getfenv(1)",
    "setfenv(1, {})",
    // Unbounded recursion.
    "return string.find(string.rep('a', 100000), string.rep('.?', 100000))",
    "local function f() return f() + 1 end return f()",
    "local t = {} t[1] = t return load(string.rep('(', 10000) .. '1' .. string.rep(')', 10000))()",
];

/// Scripts that must return the given text.
const HARMLESS: &[(&str, &str)] = &[
    // `L` reads 2^64 - 1, which becomes the Lua number 2^64. `c0` converts this number to a size,
    // which is 0, as in C on x86-64.
    ("return struct.unpack('Lc0', string.rep('\\255', 20))", ""),
    // CVE-2024-31449: the least integer has no negation.
    ("return bit.tohex(65535, -2147483648)", "0000FFFF"),
    ("return bit.tohex(-1, 2147483647)", "ffffffff"),
    // Tables have no finalizers.
    ("setmetatable({}, {__gc = function() redis.call('SET', 'made', 1) end}) return 'none'", "none"),
    ("return #{unpack({}, 2147483647, -2147483648)} .. ''", "0"),
    ("return #{unpack({1}, 1, 7990)} > 0 and 'all' or 'none'", "all"),
];

/// CVE-2025-49844: the garbage collector could free the name of a chunk during its compilation.
/// Each round compiles under memory pressure and checks the name in the error.
const NAMES_UNDER_PRESSURE: &str = "
    for round = 1, 100 do
        local junk = {}
        for i = 1, 50 do junk[i] = string.rep('j', 500 + i) .. round end
        local name = string.rep('n', 20) .. round
        local chunk = loadstring(string.rep('local a = {} ', 150) .. 'error(\"seen\")', '@' .. name)
        junk = nil
        local more = {}
        for i = 1, 50 do more[i] = string.rep('m', 20) .. i .. round end
        local ok, why = pcall(chunk)
        local text = type(why) == 'table' and why.err or tostring(why)
        if ok or not string.find(text, name .. ':1: seen', 1, true) then return text end
    end
    return 'named'";

/// The same test with `load`. The function that returns the chunk's text to `load` runs the garbage
/// collector. The chunk has the default name or a given name.
const LOADS_UNDER_PRESSURE: &str = "
    for round = 1, 100 do
        for _, name in ipairs({'=(load)', '=' .. string.rep('m', 20) .. round}) do
            local parts = {'error(', '\"seen\"', ')'}
            local read = function()
                collectgarbage('collect')
                local junk = {}
                for i = 1, 50 do junk[i] = string.rep('j', i % 8) .. round end
                return table.remove(parts, 1)
            end
            local chunk = name == '=(load)' and load(read) or load(read, '=' .. string.sub(name, 2))
            local ok, why = pcall(chunk)
            local text = type(why) == 'table' and why.err or tostring(why)
            if ok or not string.find(text, string.sub(name, 2) .. ':1: seen', 1, true) then return text end
        end
    end
    return 'named'";

fn eval(client: &mut Client, script: &str) -> Reply {
    client.command(&["EVAL", script, "0"])
}

/// Checks values that scripts use, and that no script has created the key `made`.
fn assert_untouched(client: &mut Client) {
    let check = "return {string.format('%d', 5), ('x'):upper(), type(redis.call), cjson.encode({1}), tostring(1)}";
    let wanted = ["5", "X", "function", "[1]", "1"].map(Reply::bulk).to_vec();
    assert_eq!(eval(client, check), Reply::Array(wanted));
    assert_eq!(client.call("EXISTS made"), Reply::Integer(0));
}

#[test]
fn escapes_from_scripts_fail() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &SERVER_ARGS);
        let mut client = server.connect();
        for script in REJECTED {
            let reply = eval(&mut client, script);
            assert!(matches!(reply, Reply::Error(_) | Reply::Null), "{script}: {reply:?}");
        }
        for (script, wanted) in HARMLESS {
            assert_eq!(eval(&mut client, script), Reply::bulk(*wanted), "{script}");
        }
        assert_eq!(eval(&mut client, NAMES_UNDER_PRESSURE), Reply::bulk("named"));
        assert_eq!(eval(&mut client, LOADS_UNDER_PRESSURE), Reply::bulk("named"));
        assert_untouched(&mut client);
        // SCRIPT FLUSH closes the Lua states of all workers, which runs no code of a script.
        client.call("SCRIPT FLUSH");
        assert_untouched(&mut client);
        // The reply is a table that contains itself. Encoding it stops at the maximum depth. The
        // test doesn't read the reply.
        server.connect().send(&["EVAL", "local t = {} t[1] = t return t", "0"]);
        assert_eq!(client.call("PING"), Reply::Simple("PONG".into()));
    });
}

/// Libraries can't change more than scripts can, both while they are loaded and when they are
/// called.
#[test]
fn escapes_from_libraries_fail() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &SERVER_ARGS);
        let mut client = server.connect();
        for script in REJECTED {
            let text = format!("#!lua name=bad\nredis.register_function('f', function() {script} end)");
            assert_eq!(client.command(&["FUNCTION", "LOAD", "REPLACE", &text]), Reply::bulk("bad"), "{script}");
            let reply = client.call("FCALL f 0");
            assert!(matches!(reply, Reply::Error(_) | Reply::Null), "{script}: {reply:?}");
            let at_load =
                format!("#!lua name=worse\n(function() {script} end)() redis.register_function('g', function() end)");
            let reply = client.command(&["FUNCTION", "LOAD", &at_load]);
            assert!(matches!(reply, Reply::Error(_)), "{script}: {reply:?}");
        }
        assert_untouched(&mut client);
        client.call("FUNCTION FLUSH");
        assert_untouched(&mut client);
    });
}

/// Scripts that request too much memory. Each is followed by a part of its error, and by the limit
/// of the server's resident memory in MiB. A Lua state, a reply, and the arguments of a command are
/// each limited to 512 MiB. Resident memory may exceed this limit, because a growing buffer may
/// exist twice while it is moved. `redis.log` truncates instead of failing, so the script with
/// `redis.log` raises an error itself.
const GREEDY: &[(&str, &str, u64)] = &[
    ("local t, s = {}, string.rep('x', 10000) for i = 1, 1e9 do s = s .. s t[i] = s end", "not enough memory", 768),
    ("return string.rep('x', 1e10)", "not enough memory", 128),
    (
        "local s, t = string.rep('x', 1e6), {} for i = 1, 7000 do t[i] = s end return redis.call('ECHO', unpack(t))",
        "arguments are too large",
        128,
    ),
    (
        "local s, t = string.rep('x', 1e6), {} for i = 1, 7000 do t[i] = s end redis.log(0, unpack(t)) error('cut')",
        "cut",
        128,
    ),
    // CVE-2022-24834: encoded values of more than 2^31 bytes.
    (
        "local s, t = string.rep('x', 67108864), {} for i = 1, 40 do t[i] = s end return cjson.encode(t)",
        "not enough memory",
        768,
    ),
    (
        "local s, t = string.rep('x', 67108864), {} for i = 1, 40 do t[i] = s end return cmsgpack.pack(t)",
        "not enough memory",
        768,
    ),
];

#[test]
fn greedy_scripts_fail_at_their_limits() {
    const MIB: u64 = 1 << 20;
    for (script, wanted, most_mib) in GREEDY {
        let server = Server::pantala(Backend::all()[0], &SERVER_ARGS);
        let mut client = server.connect();
        let reply = eval(&mut client, script);
        assert!(matches!(&reply, Reply::Error(text) if text.contains(wanted)), "{script}: {reply:?}");
        let peak_mib = server.peak_resident_bytes() / MIB;
        assert!(peak_mib < *most_mib, "{script}: {peak_mib} MiB");
        assert_untouched(&mut client);
    }
}
