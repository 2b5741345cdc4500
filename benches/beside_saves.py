#!/usr/bin/env python3
"""Latency and memory of a server at half load, with and without snapshots in progress.

    python3 benches/beside_saves.py --bench target/release/pantala-bench --rounds 3 \\
        --peer 'redis=redis-server --port {port} --save "" --appendonly yes --dir {dir}' \\
        --peer 'pantala=target/release/pantala --port {port} --save "" --appendonly yes --workers 2 --dir {dir}'

Fills the server with --keys small keys, and measures the peak rate of the load: SET and GET 1:1
over --clients connections, unpipelined. Then drives the load at half of this rate for --seconds
each: without snapshots, with one BGSAVE after another, and with one BGREWRITEAOF after another.
Finally measures the memory usage while pipelined SETs run beside BGSAVEs. Each round measures all
servers, in alternating order.

Prints medians over the rounds: p50, p99, p99.9 and the maximum latency in milliseconds, and the
ratio of p99.9 with snapshots to p99.9 without them. Latency counts from the time when an operation
was due. "memory" is the highest memory usage during these BGSAVEs, divided by the usage before
them. Memory usage is the sum of the proportional set sizes of the server and
its child, so a page that both processes share counts once.

{port} is replaced by a free port and {dir} by an empty folder. All started processes are stopped at
the end, also after Ctrl-C. Needs only Python's standard library.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import peers
from peers import Client

KINDS = {"alone": None, "BGSAVE": ("BGSAVE", b"rdb_bgsave_in_progress:1"), "BGREWRITEAOF": ("BGREWRITEAOF", b"aof_rewrite_in_progress:1")}
CHECK_S = 0.02


def parse_arguments():
    parser = peers.parser(__doc__)
    parser.add_argument("--bench", default="target/release/pantala-bench", help="the load generator")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--seconds", type=int, default=10, help="of each load")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server-cpus", help="taskset list for the servers")
    parser.add_argument("--load-cpus", help="CPUs of the load generator")
    parser.add_argument("--dir", help="parent of the servers' folders")
    return peers.parse(parser)


def drive(arguments, port, *more):
    """Runs the load and returns its results."""
    with tempfile.NamedTemporaryFile() as results:
        command = peers.load_command(arguments, port, "key:", arguments.clients, results.name)
        command += [str(word) for word in more]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        return json.load(results)


class Saves:
    """Starts one snapshot after another until stop() is called."""

    def __init__(self, server, kind):
        self.about, self.is_over, self.count = KINDS[kind], threading.Event(), 0
        self.client = Client(server)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while self.about and not self.is_over.is_set():
            command, running = self.about
            self.client.call(command)
            self.count += 1
            while running in self.client.call("INFO", "persistence"):
                time.sleep(CHECK_S)

    def stop(self):
        self.is_over.set()
        self.thread.join()
        return self.count


def resident_bytes(pid):
    """Returns the proportional set size of a process and its children, in bytes."""
    total = 0
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:
        pids = [pid, *children.read().split()]
    for one in pids:
        try:
            with open(f"/proc/{one}/smaps_rollup", encoding="ascii") as rollup:
                total += sum(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Pss:"))
        except OSError:
            # The child has ended.
            pass
    return total


def measure(peer, arguments):
    """Returns the latencies and the number of snapshots of each load, the highest memory usage
    divided by the usage before the snapshots, and the peak rate."""
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        with peers.Server(peer[0], peer[1].replace("{dir}", folder), arguments.server_cpus) as server:
            client = Client(server)
            drive(arguments, server.port, "-n", "allkeys", "--key-pattern", "P:P", "--ratio", "1:0", "--pipeline", 30)
            peak = drive(arguments, server.port, "--ratio", "1:1", "--test-time", max(2, arguments.seconds // 3))["operations_per_s"]
            rate = max(1, int(peak / 2 / arguments.clients))
            taken = {}
            for kind in KINDS:
                saves = Saves(server, kind)
                outcome = drive(
                    arguments, server.port, "--ratio", "1:1", "--test-time", arguments.seconds, "--rate-limiting", rate
                )
                taken[kind] = (outcome["latency"], saves.stop())
            before, highest = resident_bytes(server.process.pid), 0
            saves, is_over = Saves(server, "BGSAVE"), threading.Event()

            def watch():
                nonlocal highest
                while not is_over.wait(CHECK_S):
                    highest = max(highest, resident_bytes(server.process.pid))

            watcher = threading.Thread(target=watch, daemon=True)
            watcher.start()
            drive(arguments, server.port, "--test-time", arguments.seconds, "--ratio", "1:0", "--pipeline", 16)
            is_over.set()
            watcher.join()
            saves.stop()
            client.socket.close()
    return taken, highest / before, peak


def main():
    arguments = parse_arguments()
    figures = {}
    for number in range(arguments.rounds):
        for peer in arguments.peer if number % 2 == 0 else arguments.peer[::-1]:
            figures.setdefault(peer[0], []).append(measure(peer, arguments))
        print(f"round {number + 1} of {arguments.rounds} done", file=sys.stderr)
    print(f"{arguments.keys} keys of {arguments.value_bytes} bytes, {arguments.rounds} rounds; ms, medians")
    print("| peer | load | snapshots | p50 | p99 | p99.9 | max | p99.9 to alone |\n| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, rounds in figures.items():
        for kind in KINDS:
            def median(of):
                return statistics.median(of(taken) for taken, _, _ in rounds)

            columns = [median(lambda taken: taken[kind][0][field]) / 1000 for field in ("p50_us", "p99_us", "p99_9_us", "max_us")]
            ratio = median(lambda taken: taken[kind][0]["p99_9_us"] / taken["alone"][0]["p99_9_us"])
            snapshots = median(lambda taken: taken[kind][1])
            print(f"| {name} | {kind} | {snapshots:.0f} | " + " | ".join(f"{figure:.2f}" for figure in columns) + f" | {ratio:.2f} |")
    for name, rounds in figures.items():
        memory, peak = (statistics.median(round_[column] for round_ in rounds) for column in (1, 2))
        print(f"{name}: peak {peak:.0f} operations/s; memory during BGSAVE under full load {memory:.3f} of before")


if __name__ == "__main__":
    peers.run(main)
