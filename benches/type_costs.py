#!/usr/bin/env python3
"""CPU time per operation on one large collection and on many small ones, with redis-benchmark.

    python3 benches/type_costs.py \\
        --peer 'redis=redis-server --port {port} --save ""' \\
        --peer 'pantala=target/release/pantala --port {port} --save "" --workers 1'

Prints the CPU time of all threads of the server's process in microseconds per operation. Each peer
has a new server in each round. Rounds are interleaved, and ratios are to the first peer within a
round. pantala-bench has further workloads on collections, streams, unions and memory:
`pantala-bench compare --workload list`.

--only selects rows by parts of their titles, separated by semicolons. Rows are in the table CPU.
{port} is replaced by a free port. All started processes are stopped at the end, also after Ctrl-C.
Needs only Python's standard library.
"""

import os
import shlex
import subprocess
import sys

import peers
from peers import process_cpu_s

# The title, the operations per round, and a command of redis-benchmark. {r} stands for a random
# number below a million, and {k} for a random number below 100,000. All rows run on one server, in
# this order, and use the data that earlier rows have created. Rows with the title "fill" are not
# measured.
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
]


def parse_arguments():
    parser = peers.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pipeline", type=int, default=16)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--only", default="", help="parts of titles, by semicolon")
    parser.add_argument("--server-cpus", default="0", help="taskset list for the server")
    parser.add_argument("--client-cpus", default="1", help="taskset list for redis-benchmark and this script")
    return peers.parse(parser)


def wanted(arguments, title):
    return any(part in title for part in arguments.only.split(";"))


def drive(arguments, port, operations, command):
    """Runs a command with redis-benchmark."""
    keyspace = 100_000 if "{k}" in command else 1_000_000
    # redis-benchmark has one range for all random numbers. With {k}, this range also limits {r}.
    words = [word.replace("{k}", "__rand_int__").replace("{r}", "__rand_int__") for word in command.split()]
    line = [
        "taskset", "-c", arguments.client_cpus, "redis-benchmark", "-h", "127.0.0.1", "-p", str(port), "-q",
        "-n", str(operations), "-c", str(arguments.clients), "-P", str(arguments.pipeline), "-r", str(keyspace), *words,
    ]  # fmt: skip
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if done.returncode != 0 or b"rror" in done.stdout + done.stderr:
        raise RuntimeError(f"{shlex.join(line)}\n{(done.stdout + done.stderr).decode(errors='replace')}")


def groups(arguments):
    """Returns the selected rows of CPU. Rows "fill" precede the first selected row that uses
    their data."""
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
                results.setdefault(title, {}).setdefault(name, []).append(spent_us / operations)


def print_cpu(arguments):
    results = {}
    for number in range(arguments.rounds):
        for name, command in arguments.peer:
            cpu_round(arguments, name, command, results)
        print(f"round {number + 1} of {arguments.rounds} done", file=sys.stderr)
    first = arguments.peer[0][0]
    print(f"{f'CPU, pipeline {arguments.pipeline}, {arguments.rounds} rounds':<40} {'peer':<12} {'median':>15} {'(spread)':>17} {'ratio':>7} {'(spread)':>15}")
    for title, by_peer in results.items():
        for name, runs in by_peer.items():
            print(f"{title:<40} {name:<12} us/op {peers.columns(runs, by_peer[first])}")


def main():
    arguments = parse_arguments()
    os.sched_setaffinity(0, {int(cpu) for cpu in arguments.client_cpus.split(",")})
    print_cpu(arguments)


if __name__ == "__main__":
    peers.run(main)
