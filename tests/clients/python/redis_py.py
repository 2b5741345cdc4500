"""redis-py: locks (Lua scripts), pipelines with WATCH and retries, messages, RESP2 and RESP3."""

import threading
import time

import redis
from redis.exceptions import LockError, LockNotOwnedError, NoScriptError, ResponseError, WatchError

from check import TO, run, until

THREADS = 8


def client(protocol=3):
    return redis.Redis(**TO, protocol=protocol, decode_responses=True)


def together(body):
    """Runs `body(number)` in threads. If a thread raises an exception, raises it again."""
    raised = []

    def guarded(number):
        try:
            body(number)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


def both_protocols_have_their_types():
    two, three = client(2), client(3)
    three.hset("hash", mapping={"a": "1", "b": "2"})
    three.zadd("zset", {"x": 1.5, "y": float("inf")})
    three.sadd("set", "m", "n")
    assert two.hgetall("hash") == three.hgetall("hash") == {"a": "1", "b": "2"}
    assert three.execute_command("ZSCORE", "zset", "x") == 1.5
    assert two.smembers("set") == three.smembers("set") == {"m", "n"}
    script = "redis.setresp(3); return redis.call('HGETALL', KEYS[1])"
    assert three.eval(script, 1, "hash") == {"a": "1", "b": "2"}
    # A client with RESP2 gets the same data as a flat array.
    assert sorted(two.eval(script, 1, "hash")) == ["1", "2", "a", "b"]
    assert three.execute_command("HELLO")["proto"] == 3
    assert three.info("server")["redis_version"].startswith("7.")


def a_lock_is_held_by_one():
    inside, most, total = 0, 0, 0

    def work(_number):
        nonlocal inside, most, total
        mine = client()
        for _ in range(10):
            with mine.lock("guard", timeout=10, sleep=0.002):
                inside += 1
                most = max(most, inside)
                seen = total
                time.sleep(0.0005)
                total = seen + 1
                inside -= 1

    together(work)
    assert most == 1 and total == THREADS * 10, (most, total)
    assert client().get("guard") is None


def a_lock_ends_extends_and_is_not_stolen():
    mine = client()
    lock = mine.lock("short", timeout=1)
    assert lock.acquire()
    assert not client().lock("short").acquire(blocking=False)
    assert lock.extend(1) and lock.reacquire() and lock.owned()
    until("the end of the lock", lambda: not mine.exists("short"))
    for late in (lock.extend, lambda _more=1: lock.release()):
        try:
            late(1)
            raise AssertionError("an expired lock was extended or released")
        except (LockError, LockNotOwnedError):
            pass


def watch_retries_lose_nothing():
    mine = client()
    keys = [f"account:{number}" for number in range(16)]
    mine.mset({key: 100 for key in keys})

    def work(number):
        own = client()
        for turn in range(25):
            source, target = keys[turn % 4], keys[4 + (number * 5 + turn) % 12]
            with own.pipeline() as pipeline:
                while True:
                    try:
                        pipeline.watch(source, target)
                        have, other = int(pipeline.get(source)), int(pipeline.get(target))
                        pipeline.multi()
                        pipeline.set(source, have - 1)
                        pipeline.set(target, other + 1)
                        assert pipeline.execute() == [True, True]
                        break
                    except WatchError:
                        pass

    together(work)
    assert sum(int(value) for value in mine.mget(keys)) == 1600
    moved = sum(int(value) - 100 for value in mine.mget(keys[4:]))
    assert moved == THREADS * 25, moved
    # By chance, the threads above may never conflict. This transaction always conflicts.
    with mine.pipeline() as pipeline:
        pipeline.watch(keys[0])
        client().incr(keys[0])
        pipeline.multi()
        pipeline.set(keys[0], "lost")
        try:
            pipeline.execute()
            raise AssertionError("a transaction ran although a watched key had changed")
        except WatchError:
            pass


def transaction_helper_and_errors_inside():
    mine = client()
    mine.set("n", 5)

    def double(pipeline):
        value = int(pipeline.get("n"))
        pipeline.multi()
        pipeline.set("n", value * 2)
        pipeline.get("n")

    assert mine.transaction(double, "n") == [True, "10"]
    pipeline = mine.pipeline()
    pipeline.set("n", "text").incr("n").set("after", "done")
    answers = pipeline.execute(raise_on_error=False)
    assert answers[0] is True and isinstance(answers[1], ResponseError) and answers[2] is True
    assert mine.get("after") == "done"
    pipeline = mine.pipeline()
    pipeline.set("never", 1).execute_command("SET", "never")
    try:
        pipeline.execute()
        raise AssertionError("a transaction with a wrong command ran")
    except ResponseError as error:
        # redis-py raises either the error with which the command was rejected, or the error of
        # EXEC.
        assert "wrong number of arguments" in str(error) or "EXECABORT" in str(error), error
    assert mine.get("never") is None


def scripts_are_loaded_again_after_a_flush():
    mine = client()
    script = mine.register_script(
        "local id = redis.call('INCR', 'made:' .. ARGV[1]); redis.call('RPUSH', KEYS[1], id); return id"
    )
    assert [script(keys=["list"], args=["x"]) for _ in range(3)] == [1, 2, 3]
    mine.script_flush()
    assert script(keys=["list"], args=["x"]) == 4
    mine.script_flush()
    try:
        mine.evalsha(script.sha, 1, "list", "x")
        raise AssertionError("a script outlived the flush")
    except NoScriptError:
        pass
    pipeline = mine.pipeline()
    for _ in range(100):
        script(keys=["list"], args=["x"], client=pipeline)
    assert pipeline.execute() == list(range(5, 105))
    assert mine.lrange("list", 0, -1) == [str(number) for number in range(1, 105)]


def messages_come_in_order():
    for protocol in (2, 3):
        mine, heard = client(protocol), []
        listener = client(protocol).pubsub(ignore_subscribe_messages=True)
        listener.subscribe("channel")
        listener.psubscribe("chan*")
        until("the subscriptions", lambda: mine.pubsub_numsub("channel")[0][1] == 1 and mine.pubsub_numpat() == 1)
        assert mine.pubsub_channels() == ["channel"]
        for number in range(200):
            assert mine.publish("channel", number) == 2
        def drain():
            while (message := listener.get_message(timeout=0.05)) is not None:
                heard.append((message["type"], int(message["data"])))
            return len(heard) >= 400
        until("all messages", drain)
        for kind in ("message", "pmessage"):
            assert [number for name, number in heard if name == kind] == list(range(200))
        listener.close()
        until("the end of the subscriptions", lambda: mine.pubsub_channels() == [])


def blocked_takers_get_each_element_once():
    taken, guard = [], threading.Lock()

    def take(_number):
        own = client()
        while (got := own.blpop(["jobs:a", "jobs:b"], timeout=5))[1] != "stop":
            with guard:
                taken.append(int(got[1]))

    def feed():
        own = client()
        for number in range(400):
            own.rpush("jobs:a" if number % 2 else "jobs:b", number)
        for _ in range(THREADS):
            own.rpush("jobs:b", "stop")

    feeder = threading.Thread(target=feed)
    feeder.start()
    together(take)
    feeder.join()
    # A worker may receive "stop" before `jobs:a` is empty, so some jobs may be left.
    rest = [int(value) for value in client().lrange("jobs:a", 0, -1)]
    assert sorted(taken + rest) == list(range(400))


client().flushall()
run(
    both_protocols_have_their_types,
    a_lock_is_held_by_one,
    a_lock_ends_extends_and_is_not_stolen,
    watch_retries_lose_nothing,
    transaction_helper_and_errors_inside,
    scripts_are_loaded_again_after_a_flush,
    messages_come_in_order,
    blocked_takers_get_each_element_once,
)
