#!/usr/bin/env python3
"""Latency of writes to a large collection during BGSAVE.

    python3 benches/snapshot_writes.py \\
        --peer 'redis=redis-server --port {port} --save "" --dir /tmp --dbfilename redis.rdb' \\
        --peer 'pantala=target/release/pantala --port {port} --save "" --workers 2 --dir /tmp --dbfilename pantala.rdb'

Fills a collection and --keys other keys, starts BGSAVE, and changes random elements of the
collection until the snapshot is written. Prints the longest of 3,000 writes before BGSAVE, the
longest write during BGSAVE, and the 99th percentile of the writes during BGSAVE. All values are
medians over the rounds, in milliseconds. Each round measures all peers, one after the other.

With --removals, the collection is not changed. Instead it is renamed and deleted (RENAME, UNLINK)
immediately after BGSAVE. Prints the times of these two commands, and of a RENAME before BGSAVE, in
milliseconds.

{port} is replaced by a free port. All started processes are stopped at the end, also after Ctrl-C.
Needs only Python's standard library.
"""

import random
import statistics
import time

import peers
from peers import Client, encode

PER_BATCH = 1000
QUIET_WRITES = 3000
WRITES_PER_CHECK = 50


def parse_arguments():
    parser = peers.parser(__doc__)
    parser.add_argument("--elements", type=int, default=1_000_000, help="of the collection")
    parser.add_argument("--keys", type=int, default=100_000, help="other keys")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--removals", action="store_true", help="rename and delete the collection")
    return peers.parse(parser)


def element(number):
    return f"element:{number:09}"


# For each type: a command that adds an element, and a command that changes the collection at
# random.
TYPES = {
    "sorted set": (
        lambda number: ("ZADD", "large", number * 7919 % 1_000_003, element(number)),
        lambda number, draw: ("ZADD", "large", draw % 1_000_003, element(number)) if draw % 10 < 7 else ("ZREM", "large", element(number)),
    ),
    "hash": (
        lambda number: ("HSET", "large", element(number), number),
        lambda number, draw: ("HSET", "large", element(number), draw) if draw % 10 < 7 else ("HDEL", "large", element(number)),
    ),
    "set": (
        lambda number: ("SADD", "large", element(number)),
        lambda number, draw: ("SADD", "large", element(draw)) if draw % 10 < 5 else ("SREM", "large", element(number)),
    ),
    "list": (
        lambda number: ("RPUSH", "large", element(number)),
        lambda number, draw: ((("RPUSH", "LPUSH")[draw % 2], "large", element(number)) if draw % 10 < 6 else ("RPOP", "large")),
    ),
    "stream": (
        lambda number: ("XADD", "large", f"{number + 1}-1", "field", element(number)),
        lambda number, draw: ("XADD", "large", "*", "field", element(number)) if draw % 10 < 7 else ("XDEL", "large", f"{number + 1}-1"),
    ),
}


def fill(client, kind, arguments):
    # The server may have loaded the snapshot of an earlier round at its start.
    client.call("FLUSHALL")
    add = TYPES[kind][0]
    for start in range(0, arguments.elements, PER_BATCH):
        client.pipeline([encode(*add(number)) for number in range(start, min(start + PER_BATCH, arguments.elements))])
    for start in range(0, arguments.keys, PER_BATCH):
        client.pipeline([encode("SET", f"key:{number}", "x" * 100) for number in range(start, start + PER_BATCH)])


def timed(client, *words):
    """Returns the time of a command in milliseconds."""
    start = time.perf_counter()
    client.call(*words)
    return (time.perf_counter() - start) * 1000


def is_saving(title, watch):
    """Returns whether the snapshot is still being written."""
    status = watch.call("INFO", "persistence")
    if b"rdb_bgsave_in_progress:1" in status:
        return True
    if b"rdb_last_bgsave_status:ok" not in status:
        raise RuntimeError(f"{title} did not write its snapshot")
    return False


def measure_writes(title, command, kind, arguments, seed):
    """Returns the longest write before the snapshot, and the longest write and the 99th percentile
    during the snapshot, in milliseconds."""
    change, draws = TYPES[kind][1], random.Random(seed)
    with peers.Server(title, command) as server:
        client, watch = Client(server), Client(server)
        fill(client, kind, arguments)

        def write():
            return timed(client, *change(draws.randrange(arguments.elements), draws.randrange(1 << 40)))

        quiet = max(write() for _ in range(QUIET_WRITES))
        watch.call("BGSAVE")
        taken = []
        while not taken or is_saving(title, watch):
            taken += [write() for _ in range(WRITES_PER_CHECK)]
        taken.sort()
        return quiet, taken[-1], taken[len(taken) * 99 // 100]


def measure_removals(title, command, kind, arguments, _seed):
    """Returns the time of RENAME before the snapshot, and of RENAME and UNLINK during it, in
    milliseconds."""
    with peers.Server(title, command) as server:
        client, watch = Client(server), Client(server)
        fill(client, kind, arguments)
        quiet = timed(client, "RENAME", "large", "renamed")
        watch.call("BGSAVE")
        renamed, removed = timed(client, "RENAME", "renamed", "large"), timed(client, "UNLINK", "large")
        while is_saving(title, watch):
            time.sleep(0.05)
        return quiet, renamed, removed


def main():
    arguments = parse_arguments()
    measure = measure_removals if arguments.removals else measure_writes
    columns = "RENAME without a snapshot | RENAME | UNLINK" if arguments.removals else "longest without a snapshot | longest | p99"
    print(f"| collection | peer | {columns} |\n| --- | --- | --- | --- | --- |")
    for kind in TYPES:
        rounds = [
            [measure(title, command, kind, arguments, seed) for title, command in arguments.peer]
            for seed in range(arguments.rounds)
        ]
        for number, (title, _) in enumerate(arguments.peer):
            figures = [statistics.median(column) for column in zip(*(one[number] for one in rounds))]
            print(f"| {kind} | {title} | " + " | ".join(f"{figure:.2f}" for figure in figures) + " |", flush=True)


if __name__ == "__main__":
    peers.run(main)
