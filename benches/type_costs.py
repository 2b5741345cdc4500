#!/usr/bin/env python3
"""Collections head to head: resident memory of many small ones, CPU time per operation, unions of large sets.

    python3 benches/type_costs.py \\
        --peer 'redis=redis-server --port {port} --save ""' \\
        --peer 'pantala=target/release/pantala --port {port} --workers 1'

Three tables, each against the first peer:

* memory: each row in a server of its own, VmRSS before and after a filling of --keys collections;
* CPU: microseconds of the server's process, all threads, per operation; redis-benchmark with --pipeline, one server per peer and
  round, rounds interleaved, ratios within a round;
* stores: milliseconds of CPU of one command over large collections, in the same servers.

--only takes parts of titles, by semicolon: the rows to run. To add a row, add it to MEMORY, CPU or STORES. {port} is replaced by
a free port. Everything started is stopped again, on Ctrl-C too. Python's standard library suffices.
"""

import os
import shlex
import subprocess
import sys
import time

import peers
from memory_per_key import SETTLE_S, resident_bytes
from peers import connect, encode, process_cpu_s, reply_line

KEYS_PER_BATCH = 500
WARM_UP_BATCHES = 50
# Spreads what would be consecutive; prime.
STEP = 7_919_317


def small_hash(number):
    fields = (word for field in range(10) for word in (f"field:{field}", f"value:{number % 100_000}"))
    return encode("HSET", f"hash:{number}", *fields)


def small_list(number):
    return encode("RPUSH", f"list:{number}", *(f"element:{number % 100_000 + at}" for at in range(20)))


def small_set(number):
    return encode("SADD", f"set:{number}", *((number * 20 + at) * STEP % 1_000_000_007 for at in range(20)))


def small_sorted_set(number):
    pairs = (word for at in range(20) for word in ((number * 20 + at) * STEP % 1_000_003, f"member:{number % 100_000 + at}"))
    return encode("ZADD", f"zset:{number}", *pairs)


def member_of_one(number):
    return encode("ZADD", "zset", number * STEP % 10_000_019, f"member:{number:08}")


STREAMS = 100


def entry_of_streams(number):
    return encode("XADD", f"stream:{number % STREAMS}", "*", "sensor", number % 1000, "reading", f"value:{number % 100_000}")


# Title, and the command that makes the collection of a number (or the member: --keys of them then).
MEMORY = [
    ("hashes of 10 small fields", small_hash),
    ("lists of 20", small_list),
    ("sets of 20 integers", small_set),
    ("sorted sets of 20", small_sorted_set),
    ("members of one sorted set", member_of_one),
    ("entries of 100 streams", entry_of_streams),
]

GROUP_ENTRIES = 1_000_000


def added_to_group(number):
    return encode("XADD", "acks", f"{number}-1", "sensor", number % 1000, "reading", f"value:{number % 100_000}")


# Title, operations per round, and a command of redis-benchmark, or a function that makes the command of a number: {r} is a random number below a million, {k} below 100,000; with {n}, the
# numbers from 0 on, pantala-bench drives. Rows
# run in this order in one server, and find what the ones before them left. Rows with "fill" are not measured.
CPU = [
    ("fill", 3_000_000, "HSET hash field:{r} value:{r}"),
    ("HSET, one hash of 1 M", 1_000_000, "HSET hash field:{r} value:{r}"),
    ("HGET, one hash of 1 M", 1_000_000, "HGET hash field:{r}"),
    ("fill", 500_000, "HSET hash:{k} f1 value:{r} f2 value:{r} f3 value:{r} f4 value:{r} f5 value:{r}"),
    ("HSET, 100 k hashes of 5", 1_000_000, "HSET hash:{k} f4 value:{r}"),
    ("HGET, 100 k hashes of 5", 1_000_000, "HGET hash:{k} f4"),
    ("LPUSH, one list", 1_500_000, "LPUSH list element:{r}"),
    ("RPOP, one list", 1_000_000, "RPOP list"),
    ("LPUSH, 100 k lists", 1_000_000, "LPUSH list:{k} element:{r}"),
    ("RPOP, 100 k lists", 1_000_000, "RPOP list:{k}"),
    ("fill", 3_000_000, "SADD set element:{r}"),
    ("SADD, one set of 1 M", 1_000_000, "SADD set element:{r}"),
    ("SISMEMBER, one set of 1 M", 1_000_000, "SISMEMBER set element:{r}"),
    ("SADD, 100 k sets of integers", 1_500_000, "SADD set:{k} {r}"),
    ("SISMEMBER, 100 k sets of integers", 1_000_000, "SISMEMBER set:{k} {r}"),
    ("fill", 3_000_000, "ZADD zset {r} element:{r}"),
    ("ZADD, one sorted set of 1 M", 1_000_000, "ZADD zset {r} element:{r}"),
    ("ZRANGE 10, one sorted set of 1 M", 1_000_000, "ZRANGE zset {r} inf BYSCORE LIMIT 0 10"),
    ("ZRANK, one sorted set of 1 M", 1_000_000, "ZRANK zset element:{r}"),
    ("ZSCORE, one sorted set of 1 M", 1_000_000, "ZSCORE zset element:{r}"),
    ("fill", 2_000_000, "ZADD zset:{k} {r} element:{r}"),
    ("ZADD, 100 k sorted sets of 20", 1_000_000, "ZADD zset:{k} {r} element:{r}"),
    ("ZRANGE 10, 100 k sorted sets of 20", 1_000_000, "ZRANGE zset:{k} 0 9"),
    ("XADD, one stream", 1_000_000, "XADD stream * sensor {r} reading value:{r}"),
    ("XADD, 100 k streams", 1_000_000, "XADD stream:{k} * sensor {r} reading value:{r}"),
    ("fill", 1, "DEL acks"),
    ("fill", GROUP_ENTRIES, added_to_group),
    ("fill", 1, lambda _: encode("XGROUP", "CREATE", "acks", "group", 0)),
    ("XREADGROUP of 10", GROUP_ENTRIES // 10, "XREADGROUP GROUP group consumer COUNT 10 STREAMS acks >"),
    ("XACK, as they were read", GROUP_ENTRIES // 2, "XACK acks group {n}-1"),
    ("XACK, at random", 500_000, "XACK acks group {r}-1"),
]


def members(prefix, first):
    return lambda number: encode("SADD", "{%d}" % first, *(f"{prefix}{first + number * 100 + at}" for at in range(100)))


def scored(first):
    def make(number):
        pairs = (word for at in range(100) for word in (number * STEP % 1_000_003 + at, f"element:{first + number * 100 + at}"))
        return encode("ZADD", "{%d}" % first, *pairs)

    return make


# Title, fillings (how often, command of a number), the command that is timed, and its reply.
STORES = [
    (
        "SUNIONSTORE, two sets of 1 M strings",
        [(10_000, members("element:", 0)), (10_000, members("element:", 500_000))],
        encode("SUNIONSTORE", "union", "{0}", "{500000}"),
        b":1500000",
    ),
    (
        "SUNIONSTORE, two sets of 1 M integers",
        [(10_000, members("", 0)), (10_000, members("", 500_000))],
        encode("SUNIONSTORE", "union", "{0}", "{500000}"),
        b":1500000",
    ),
    (
        "ZUNIONSTORE, two sorted sets of 1 M",
        [(10_000, scored(0)), (10_000, scored(500_000))],
        encode("ZUNIONSTORE", "union", 2, "{0}", "{500000}"),
        b":1500000",
    ),
]


def parse_arguments():
    parser = peers.parser(__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000, help="collections of a memory row")
    parser.add_argument("--rounds", type=int, default=3, help="of CPU and stores; 0: leave them out")
    parser.add_argument("--pipeline", type=int, default=16)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--only", default="", help="parts of titles, by semicolon")
    parser.add_argument("--load", default="target/release/pantala-bench", help="generator of rows whose numbers rise")
    parser.add_argument("--server-cpus", default="0", help="taskset list for the server (CPU and stores)")
    parser.add_argument("--client-cpus", default="1", help="taskset list for redis-benchmark and this script")
    return peers.parse(parser)


def wanted(arguments, title):
    return any(part in title for part in arguments.only.split(";"))


def send_all(connection, replies, commands):
    """Pipelines commands in batches."""
    batch = []
    for command in commands:
        batch.append(command)
        if len(batch) == KEYS_PER_BATCH:
            exchange(connection, replies, batch)
            batch = []
    exchange(connection, replies, batch)


def exchange(connection, replies, batch):
    connection.sendall(b"".join(batch))
    for _ in batch:
        reply_line(replies)


def memory_of(arguments, name, command, make):
    """Resident bytes per collection."""
    with peers.Server(name, command) as server, server.connect() as connection, connection.makefile("rb") as replies:
        # The buffers of connections and workers are not the collections'.
        warm_up = encode("GET", "x" * len(make(0)))
        send_all(connection, replies, [warm_up] * KEYS_PER_BATCH * WARM_UP_BATCHES)
        before = resident_bytes(server.process.pid)
        send_all(connection, replies, (make(number) for number in range(arguments.keys)))
        time.sleep(SETTLE_S)
        return (resident_bytes(server.process.pid) - before) / arguments.keys


def print_memory(arguments):
    rows = [row for row in MEMORY if wanted(arguments, row[0])]
    if rows:
        print(f"{'resident memory of ' + format(arguments.keys, ','):<36} {'peer':<12} {'bytes each':>11} {'ratio':>7}")
    for title, make in rows:
        first = None
        for name, command in arguments.peer:
            each = memory_of(arguments, name, command, make)
            first = first or each
            print(f"{title:<36} {name:<12} {each:>11.1f} {each / first:>7.3f}", flush=True)


def drive_in_order(port, operations, make):
    """Sends the commands of numbers 0 and up over one connection."""
    with connect(port) as connection, connection.makefile("rb") as replies:
        for first in range(0, operations, KEYS_PER_BATCH):
            numbers = range(first, min(first + KEYS_PER_BATCH, operations))
            connection.sendall(b"".join(make(number) for number in numbers))
            for _ in numbers:
                if reply_line(replies).startswith(b"$"):
                    replies.readline()


def drive_by_number(arguments, port, operations, command):
    """Runs a command by pantala-bench, whose numbers rise."""
    line = [
        "taskset", "-c", arguments.client_cpus, arguments.load, "load", "-p", str(port), "-t", "1", "-c", str(arguments.clients),
        "--pipeline", str(arguments.pipeline), "-n", str(operations // arguments.clients), "--command", command.replace("{n}", "__key__"),
        "--command-key-pattern", "P", "--key-prefix", "", "--key-minimum", "0", "--key-maximum", str(operations - 1),
    ]  # fmt: skip
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(line)}\n{(done.stdout + done.stderr).decode(errors='replace')}")


def drive(arguments, port, operations, command):
    """Runs a command by redis-benchmark, or the commands of a function in order."""
    if callable(command):
        return drive_in_order(port, operations, command)
    if "{n}" in command:
        return drive_by_number(arguments, port, operations, command)
    keyspace = 100_000 if "{k}" in command else 1_000_000
    # One random number below the keyspace: with {k} the members come from as few.
    words = [word.replace("{k}", "__rand_int__").replace("{r}", "__rand_int__") for word in command.split()]
    line = [
        "taskset", "-c", arguments.client_cpus, "redis-benchmark", "-h", "127.0.0.1", "-p", str(port), "-q",
        "-n", str(operations), "-c", str(arguments.clients), "-P", str(arguments.pipeline), "-r", str(keyspace), *words,
    ]  # fmt: skip
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if done.returncode != 0 or b"rror" in done.stdout + done.stderr:
        raise RuntimeError(f"{shlex.join(line)}\n{(done.stdout + done.stderr).decode(errors='replace')}")


def groups(arguments):
    """CPU's rows, each filling with the measured ones after it, if any of those is wanted."""
    found, group, is_fill = [], [], False
    for row in CPU:
        if row[0] == "fill":
            group = group + [row] if is_fill else [row]
            is_fill = True
            continue
        is_fill = False
        if wanted(arguments, row[0]):
            found += group + [row]
            group = []
    return found


def cpu_round(arguments, name, command, results):
    with peers.Server(name, command, arguments.server_cpus) as server:
        server.wait_ready()
        for title, operations, words in groups(arguments):
            before = process_cpu_s(server.process.pid)
            drive(arguments, server.port, operations, words)
            spent_us = (process_cpu_s(server.process.pid) - before) * 1e6
            if title != "fill":
                results.setdefault((title, "us/op"), {}).setdefault(name, []).append(spent_us / operations)
        with connect(server.port) as connection, connection.makefile("rb") as replies:
            stores(arguments, name, server, connection, replies, results)


def stores(arguments, name, server, connection, replies, results):
    for title, fillings, command, expected in STORES:
        if not wanted(arguments, title):
            continue
        exchange(connection, replies, [encode("FLUSHALL")])
        for count, make in fillings:
            send_all(connection, replies, (make(number) for number in range(count)))
        before = process_cpu_s(server.process.pid)
        connection.sendall(command)
        reply = reply_line(replies)
        spent_ms = (process_cpu_s(server.process.pid) - before) * 1e3
        if reply != expected:
            raise RuntimeError(f"{name} replies {reply} to {title}")
        results.setdefault((title, "ms"), {}).setdefault(name, []).append(spent_ms)


def print_cpu(arguments):
    results = {}
    for number in range(arguments.rounds):
        for name, command in arguments.peer:
            cpu_round(arguments, name, command, results)
        print(f"round {number + 1} of {arguments.rounds} done", file=sys.stderr)
    first = arguments.peer[0][0]
    print(f"{f'CPU, pipeline {arguments.pipeline}, {arguments.rounds} rounds':<40} {'peer':<12} {'median':>15} {'(spread)':>17} {'ratio':>7} {'(spread)':>15}")
    for (title, unit), by_peer in results.items():
        for name, runs in by_peer.items():
            print(f"{title:<40} {name:<12} {unit:>5} {peers.columns(runs, by_peer[first])}")


def main():
    arguments = parse_arguments()
    print_memory(arguments)
    os.sched_setaffinity(0, {int(cpu) for cpu in arguments.client_cpus.split(",")})
    if arguments.rounds:
        print_cpu(arguments)


if __name__ == "__main__":
    peers.run(main)
