//! Sends random command streams to Pantala and to redis-server and compares replies byte by byte.

use pantala_tests::{Backend, Random, Server, differential};

/// Default number of commands per run. `PANTALA_DIFF_COMMANDS` overrides it, as in `.ci/run` and
/// `.ci/nightly`.
const COMMANDS: usize = 25_000;

fn commands() -> usize {
    match std::env::var("PANTALA_DIFF_COMMANDS") {
        Ok(text) => text.trim().parse().expect("PANTALA_DIFF_COMMANDS must be a number"),
        Err(_) => COMMANDS,
    }
}

/// Compares Pantala on each backend with redis-server. Pantala is started with `args`, and both
/// servers with `settings`.
fn compare(test: &str, args: &[&str], settings: &[&str]) {
    let announced = Random::seed(test);
    for backend in Backend::all() {
        let Some(reference) = Server::redis(settings) else { return };
        let mut subject = Server::pantala(*backend, &[args, settings].concat());
        // Each run has its own stream of commands. The printed seed determines the seeds of all
        // streams.
        let name = format!("{test} on {}", backend.name());
        differential::compare(&subject, &reference, announced, &name, commands());
        if settings.contains(&"allkeys-lfu") {
            let stats = reference.connect().call("INFO commandstats").text();
            let (good, calls) = successes(&stats, "object|freq");
            assert!(good > 0 && good == calls, "{good} of {calls} OBJECT FREQ succeed");
        }
        subject.assert_sound();
    }
}

/// Returns the number of successful calls of a command, and the number of all its calls, from `INFO
/// commandstats`.
fn successes(stats: &str, name: &str) -> (i64, i64) {
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:")));
    let number = |field: &str| -> i64 {
        let found = line.and_then(|line| line.split(',').find_map(|pair| pair.strip_prefix(field)?.strip_prefix('=')));
        found.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    };
    (number("calls") - number("failed_calls"), number("calls"))
}

/// A memory limit that is never reached. It makes the server check its memory before each command,
/// but nothing is evicted.
const FAR_LIMIT: &str = "1000gb";

#[test]
fn one_shard_answers_as_redis() {
    // With an LFU policy, OBJECT FREQ succeeds and OBJECT IDLETIME returns an error. In the other
    // runs OBJECT IDLETIME succeeds and OBJECT FREQ returns an error.
    let counting = ["--maxmemory-policy", "allkeys-lfu", "--maxmemory", FAR_LIMIT];
    compare("one_shard_answers_as_redis", &["--workers", "1", "--shards", "1"], &counting);
}

#[test]
fn forty_shards_answer_as_redis() {
    compare("forty_shards_answer_as_redis", &["--workers", "2", "--shards", "40"], &[]);
}

#[test]
fn owner_execution_answers_as_redis() {
    let args = ["--workers", "4", "--shards", "40", "--execution", "owner"];
    compare("owner_execution_answers_as_redis", &args, &["--maxmemory", FAR_LIMIT]);
}

/// Checks the generator: the replies of two real redis-servers never differ. If this test fails,
/// some commands of the streams have replies that aren't deterministic, so failures of the other
/// tests in this file do not show errors of Pantala. Every command must also succeed often, because
/// comparing only errors would prove nothing.
#[test]
fn two_judges_agree_and_every_command_is_reached() {
    /// Minimum number of commands of this test. In so many commands, the rarest one succeeds about
    /// 18 times.
    const JUDGED_MIN: usize = 100_000;
    /// Each command must succeed at least once per this number of commands. The rarest command
    /// succeeds about four times as often, so a lower rate can't be chance.
    const JUDGED_PER_SUCCESS: usize = 25_000;
    const COMMANDS_REACHED: &str = "append bitcount bitfield bitfield_ro bitop bitpos getbit setbit \
        pfadd pfcount pfdebug pfmerge blmove blmpop blpop brpop brpoplpush bzmpop bzpopmax bzpopmin sort sort_ro dump restore \
        multi exec discard watch unwatch decr decrby get getdel getex getrange getset incr incrby incrbyfloat lcs mget \
        mset msetnx psetex set setex setnx setrange strlen substr lindex linsert llen lmove lmpop lpop lpos lpush \
        lpushx lrange lrem lset ltrim rpop rpoplpush rpush rpushx hdel hexists hget hgetall hincrby hincrbyfloat hkeys hlen \
        hmget hmset hrandfield hscan hset hsetnx hstrlen hvals sadd scard sdiff sdiffstore sinter sintercard sinterstore \
        sismember smembers smismember smove spop srandmember srem sscan sunion sunionstore \
        zadd zcard zcount zdiff zdiffstore zincrby zinter \
        zintercard zinterstore zlexcount zmpop zmscore zpopmax zpopmin zrandmember zrange zrangebylex zrangebyscore \
        zrangestore zrank zrem zremrangebylex zremrangebyrank zremrangebyscore zrevrange zrevrangebylex \
        zrevrangebyscore zrevrank zscan zscore zunion zunionstore geoadd geodist geohash geopos georadius georadius_ro \
        georadiusbymember georadiusbymember_ro geosearch geosearchstore \
        xack xadd xautoclaim xclaim xdel xgroup|create xgroup|createconsumer xgroup|delconsumer xgroup|destroy \
        xgroup|setid xinfo|consumers xinfo|groups xinfo|stream xlen xpending xrange xread xreadgroup xrevrange \
        xsetid xtrim copy del exists expire expireat expiretime keys move \
        object|encoding object|refcount object|idletime persist pexpire pexpireat pexpiretime pttl randomkey rename \
        renamenx scan touch ttl type unlink auth client|id client|info client|list client|getname client|setname \
        client|kill client|no-evict client|reply client|unblock client|unpause echo hello ping reset select \
        command|getkeys command|getkeysandflags command|docs command|info command|list config|get config|set dbsize \
        debug eval eval_ro fcall fcall_ro flushall flushdb function|delete function|flush function|list function|load \
        function|stats info lolwut memory|usage swapdb time";
    let (Some(one), Some(two)) = (Server::redis(&[]), Server::redis(&[])) else { return };
    let test = "two_judges_agree_and_every_command_is_reached";
    let count = commands().max(JUDGED_MIN);
    differential::compare(&one, &two, Random::seed(test), test, count);
    let stats = one.connect().call("INFO commandstats").text();
    let (mut rare, mut counts) = (Vec::new(), Vec::new());
    for name in COMMANDS_REACHED.split_whitespace() {
        let (good, calls) = successes(&stats, name);
        counts.push((good, name));
        if good < (count / JUDGED_PER_SUCCESS) as i64 {
            rare.push(format!("{name}: {good} of {calls}"));
        }
    }
    counts.sort_unstable();
    eprintln!("commands that succeed least: {:?}", counts.iter().take(8).collect::<Vec<_>>());
    assert!(rare.is_empty(), "commands that rarely succeed in a stream of {count}: {rare:?}");
}
