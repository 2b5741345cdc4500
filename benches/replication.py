#!/usr/bin/env python3
"""Costs of replication: CPU time per write of primary and replica, full sync, failover.

    python3 benches/replication.py --bench target/release/pantala-bench --rounds 3 \\
        --peer 'redis=redis-server --port {port} --save "" --dir {dir} --enable-debug-command local' \\
        --peer 'pantala=target/release/pantala --port {port} --save "" --workers 2 --dir {dir} --enable-debug-command local'

Each peer is its own replica: a second server with the same command follows the first server.

- "alone", "primary", "replica": CPU time per SET (--value-bytes, --pipeline) in microseconds.
  "alone" is a server without a replica, "primary" a server with one, and "replica" that replica.
- "full sync": the seconds from REPLICAOF until the replica has all --sync-keys keys of
  --sync-value-bytes, and the CPU time of both servers. The full sync is diskless and starts
  without a delay.
- "p99.9": the latency of SET and GET 1:1 at half of the peak rate, in milliseconds, without a full
  sync and with one full sync after another.
- "memory": the highest memory usage of the primary during full syncs under pipelined SETs, divided
  by the usage before.
- "failover": the longest time between two accepted writes of a client while the primary runs
  FAILOVER, in milliseconds. A Redis primary reacts in a periodic task, so this time depends on the
  task's interval.

A replica normally has a machine of its own. With --idle-replica, the replicas' threads have the
policy SCHED_IDLE, so they take CPU time from the primary and the load only if a CPU is idle.

Prints medians over rounds in which the peers alternate, and ratios to the first peer. {port} is
replaced by a free port, and {dir} by an empty folder. All started processes are stopped at the end,
also after Ctrl-C. Needs only Python's standard library.
"""

import contextlib
import os
import statistics
import sys
import tempfile
import threading
import time

import peers
from beside_saves import drive, resident_bytes
from peers import Client

POLL_S = 0.005
SETTLE_S = 0.3
WAIT_S = 300


def parse_arguments():
    parser = peers.parser(__doc__)
    parser.add_argument("--bench", default="target/release/pantala-bench", help="the load generator")
    parser.add_argument("--keys", type=int, default=200_000, help="of the load")
    parser.add_argument("--value-bytes", type=int, default=256)
    parser.add_argument("--pipeline", type=int, default=30)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=4, help="of each load")
    parser.add_argument("--sync-keys", type=int, default=3_000_000)
    parser.add_argument("--sync-value-bytes", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server-cpus", help="taskset list for the servers")
    parser.add_argument("--load-cpus", help="CPUs of the load generator")
    parser.add_argument("--idle-replica", action="store_true", help="run replicas as SCHED_IDLE")
    parser.add_argument("--dir", help="parent of the servers' folders")
    parser.add_argument("--only", choices=["writes", "sync", "beside", "failover"], action="append")
    return peers.parse(parser)


class Pair:
    """Two servers of one peer: the first can be the primary of the second."""

    def __init__(self, stack, peer, arguments):
        self.arguments = arguments
        self.servers, self.clients = [], []
        for _ in range(2):
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.dir))
            command = peer[1].replace("{dir}", folder)
            self.servers.append(stack.enter_context(peers.Server(peer[0], command, arguments.server_cpus)))
        if arguments.idle_replica:
            # Threads that start later inherit the policy.
            for thread in os.listdir(f"/proc/{self.servers[1].process.pid}/task"):
                os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))
        for server in self.servers:
            self.clients.append(Client(server))
            for name, value in [("repl-diskless-sync", "yes"), ("repl-diskless-sync-delay", "0"), ("repl-backlog-size", "64mb")]:
                self.clients[-1].call("CONFIG", "SET", name, value)

    def follow(self):
        """Makes the second server a replica of the first. Returns the seconds that the full sync
        took."""
        started = time.monotonic()
        self.clients[1].call("REPLICAOF", "127.0.0.1", self.servers[0].port)
        self.wait(lambda: b"master_link_status:up" in self.clients[1].call("INFO", "replication"))
        return time.monotonic() - started

    def part(self):
        self.clients[1].call("REPLICAOF", "NO", "ONE")

    def drain(self):
        """Waits until the replica has applied all writes."""
        self.wait(lambda: self.clients[0].call("WAIT", 1, 1000).startswith(b":1"))

    @staticmethod
    def wait(is_true):
        deadline = time.monotonic() + WAIT_S
        while not is_true():
            if time.monotonic() > deadline:
                raise RuntimeError("the replica has not caught up")
            time.sleep(POLL_S)

    def cpu_s(self):
        return [peers.process_cpu_s(server.process.pid) for server in self.servers]

    def load(self, *more):
        return drive(self.arguments, self.servers[0].port, *more)


def writes(pair, arguments, taken):
    """Measures the CPU time per SET."""

    def per_write():
        before = pair.cpu_s()
        done = pair.load("--ratio", "1:0", "--pipeline", arguments.pipeline, "--test-time", arguments.seconds)
        if pair.is_followed:
            pair.drain()
        count = done["operations_per_s"] * arguments.seconds
        return [(now - then) / count * 1e6 for now, then in zip(pair.cpu_s(), before)]

    pair.is_followed = False
    pair.load("-n", "allkeys", "--key-pattern", "P:P", "--ratio", "1:0", "--pipeline", 30)
    taken["alone, us"] = per_write()[0]
    pair.follow()
    time.sleep(SETTLE_S)
    pair.is_followed = True
    taken["primary, us"], taken["replica, us"] = per_write()
    taken["primary / alone"] = taken["primary, us"] / taken["alone, us"]


def sync(pair, arguments, taken):
    """Measures the time of a full sync, and its CPU time."""
    pair.clients[0].call("DEBUG", "POPULATE", arguments.sync_keys, "key", arguments.sync_value_bytes)
    before = pair.cpu_s()
    taken["full sync, s"] = pair.follow()
    names = ["full sync, CPU s of primary", "full sync, CPU s of replica"]
    taken.update({name: now - then for name, now, then in zip(names, pair.cpu_s(), before)})


def beside(pair, arguments, taken):
    """Measures latency and memory usage of the primary during full syncs."""
    # Most of the data consists of keys that the load doesn't use.
    pair.clients[0].call("DEBUG", "POPULATE", arguments.sync_keys, "other", arguments.sync_value_bytes)
    pair.load("-n", "allkeys", "--key-pattern", "P:P", "--ratio", "1:0", "--pipeline", 30)
    peak = pair.load("--ratio", "1:1", "--test-time", max(2, arguments.seconds // 2))["operations_per_s"]
    rate = max(1, int(peak / 2 / arguments.clients))
    half = ["--ratio", "1:1", "--test-time", arguments.seconds, "--rate-limiting", rate]
    taken["p99.9 alone, ms"] = pair.load(*half)["latency"]["p99_9_us"] / 1000
    with synchronizing(pair) as count:
        taken["p99.9 in full syncs, ms"] = pair.load(*half)["latency"]["p99_9_us"] / 1000
    taken["full syncs"] = count[0]
    pid = pair.servers[0].process.pid
    before, highest, is_over = resident_bytes(pid), 0, threading.Event()

    def watch():
        nonlocal highest
        while not is_over.wait(0.02):
            highest = max(highest, resident_bytes(pid))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    with synchronizing(pair):
        pair.load("--ratio", "1:0", "--pipeline", 16, "--test-time", arguments.seconds)
    is_over.set()
    watcher.join()
    taken["memory"] = highest / before


@contextlib.contextmanager
def synchronizing(pair):
    """Repeats the full sync of the replica. Yields a list with the number of full syncs."""
    is_over, count = threading.Event(), [0]

    def run():
        while not is_over.is_set():
            pair.follow()
            count[0] += 1
            pair.part()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield count
    finally:
        is_over.set()
        thread.join()


def failover(pair, arguments, taken):
    """Measures the longest pause of a client's writes during FAILOVER."""
    pair.follow()
    longest, last, is_over, accepted = [0.0], [time.monotonic()], threading.Event(), [0, 0]

    def write():
        clients = [Client(server) for server in pair.servers]
        at = 0
        while not is_over.is_set():
            try:
                clients[at].call("SET", "k", sum(accepted))
            except RuntimeError:
                # After the failover, the former primary replies READONLY to a write that it
                # delayed.
                at = 1 - at
                continue
            now = time.monotonic()
            longest[0] = max(longest[0], now - last[0])
            last[0] = now
            accepted[at] += 1

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    time.sleep(SETTLE_S)
    longest[0] = 0.0
    pair.clients[0].call("FAILOVER")
    pair.wait(lambda: accepted[1] > 100)
    is_over.set()
    writer.join()
    taken["failover, ms"] = longest[0] * 1000


KINDS = {"writes": writes, "sync": sync, "beside": beside, "failover": failover}


def main():
    arguments = parse_arguments()
    results = {name: [] for name, _ in arguments.peer}
    for number in range(arguments.rounds):
        for peer in arguments.peer:
            taken = {}
            for kind in arguments.only or KINDS:
                with contextlib.ExitStack() as stack:
                    KINDS[kind](Pair(stack, peer, arguments), arguments, taken)
            results[peer[0]].append(taken)
            print(f"round {number + 1}, {peer[0]}: " + ", ".join(f"{what} {value:.2f}" for what, value in taken.items()), flush=True)
    print()
    first = arguments.peer[0][0]
    for what in results[first][0]:
        for name, rounds in results.items():
            values = [taken[what] for taken in rounds]
            line = f"{what:<24} {name:<12} {statistics.median(values):8.2f} ({min(values):.2f}-{max(values):.2f})"
            if name != first:
                ratios = [taken[what] / other[what] for taken, other in zip(rounds, results[first]) if other[what]]
                line += f"  ratio {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})" if ratios else ""
            print(line)
    return 0


if __name__ == "__main__":
    peers.run(main)
