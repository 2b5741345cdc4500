#!/usr/bin/env python3
"""The longest turn (iteration of a worker's event loop) during BGSAVE.

    python3 benches/longest_turn.py --keys 20000000 --members 10000000 \\
        --peer 'pantala=target/release/pantala --port {port} --save "" --workers 2 --packed-connections 0 --move-connections no --enable-debug-command local --dir {dir}'

Measures two datasets: --keys small strings, and one sorted set of --members members. --writers
clients change random keys or members all the time, in pipelines of --pipeline commands. The longest
turns are read from INFO workers (`longest_turn_us`, `longest_turn_cpu_us`): first after --seconds
without BGSAVE, and then from BGSAVE until the snapshot is written. Prints the maximum over all
workers of each round's longest turn by time and by CPU time, in milliseconds.

The time of a turn includes the time for which the thread waits for a CPU. The CPU time excludes
that wait, and also the time for which the thread sleeps or waits for a lock.

{port} is replaced by a free port, and {dir} by an empty folder. All started processes are stopped
at the end, also after Ctrl-C. Needs only Python's standard library. The peers must be Pantala
servers, because other servers do not measure turns.
"""

import random
import re
import tempfile
import threading
import time

import peers
from peers import Client, encode

CHECK_S = 0.02
PER_FILL = 100
FILLS_PER_BATCH = 10
# The latency monitor must be on, because the server measures turns only then. No command takes so
# long that the monitor records it.
THRESHOLD_MS = 1_000_000


def parse_arguments():
    parser = peers.parser(__doc__)
    parser.add_argument("--keys", type=int, default=20_000_000, help="0: without this dataset")
    parser.add_argument("--members", type=int, default=10_000_000, help="of the sorted set; 0: without this dataset")
    parser.add_argument("--seconds", type=float, default=3, help="duration without BGSAVE")
    parser.add_argument("--rounds", type=int, default=1, help="BGSAVEs of each dataset")
    parser.add_argument("--writers", type=int, default=2)
    parser.add_argument("--pipeline", type=int, default=30)
    parser.add_argument("--server-cpus", help="taskset list for the servers")
    return peers.parse(parser)


def member(number):
    return f"member:{number:09}"


def fill_keys(client, arguments):
    client.call("DEBUG", "POPULATE", arguments.keys, "key", 32)


def change_key(arguments, draws):
    return encode("SET", f"key:{draws.randrange(arguments.keys)}", "x" * 32)


def fill_sorted_set(client, arguments):
    per_batch = PER_FILL * FILLS_PER_BATCH
    for start in range(0, arguments.members, per_batch):
        numbers = range(start, min(start + per_batch, arguments.members))
        words = [word for number in numbers for word in (number * 7919 % 1_000_003, member(number))]
        client.pipeline([encode("ZADD", "large", *words[at : at + 2 * PER_FILL]) for at in range(0, len(words), 2 * PER_FILL)])


def change_member(arguments, draws):
    name = member(draws.randrange(arguments.members))
    return encode("ZADD", "large", draws.randrange(1_000_003), name) if draws.random() < 0.7 else encode("ZREM", "large", name)


class Writers:
    """Clients that change the dataset until stop() is called."""

    def __init__(self, server, change, arguments):
        self.is_over, self.commands, self.failures = threading.Event(), [0] * arguments.writers, []
        self.threads = [
            threading.Thread(target=self.write, args=(number, Client(server), change, arguments), daemon=True)
            for number in range(arguments.writers)
        ]
        for thread in self.threads:
            thread.start()

    def write(self, number, client, change, arguments):
        draws = random.Random(number)
        try:
            while not self.is_over.is_set():
                client.pipeline([change(arguments, draws) for _ in range(arguments.pipeline)])
                self.commands[number] += arguments.pipeline
        except (RuntimeError, OSError) as error:
            self.failures.append(error)

    def stop(self):
        self.is_over.set()
        for thread in self.threads:
            thread.join()
        if self.failures:
            raise RuntimeError(f"a writer failed: {self.failures[0]}")


def wait_for_save(client):
    while b"rdb_bgsave_in_progress:1" in (status := client.call("INFO", "persistence")):
        time.sleep(CHECK_S)
    if b"rdb_last_bgsave_status:ok" not in status:
        raise RuntimeError("the snapshot failed")


def longest_ms(client, field):
    """Returns the maximum of a field over all workers, converted from microseconds to
    milliseconds."""
    found = re.findall(rb"\b%s=(\d+)" % field, client.call("INFO", "workers"))
    if not found:
        raise RuntimeError("INFO workers has no longest turns: not Pantala, or an old build")
    return max(map(int, found)) / 1000


def measured(client, writers, during):
    """Runs `during`, and returns its duration in seconds, the writers' commands per second, and the
    longest turns in milliseconds."""
    client.call("CONFIG", "RESETSTAT")
    began, before = time.monotonic(), sum(writers.commands)
    during()
    took_s, commands = time.monotonic() - began, sum(writers.commands) - before
    return took_s, commands / took_s, longest_ms(client, b"longest_turn_us"), longest_ms(client, b"longest_turn_cpu_us")


def save(client):
    client.call("BGSAVE")
    wait_for_save(client)


def measure(peer, dataset, fill, change, arguments):
    with tempfile.TemporaryDirectory() as folder:
        with peers.Server(peer[0], peer[1].replace("{dir}", folder), arguments.server_cpus) as server:
            client = Client(server)
            fill(client, arguments)
            client.call("CONFIG", "SET", "latency-monitor-threshold", THRESHOLD_MS)
            writers = Writers(server, change, arguments)
            for _ in range(arguments.rounds):
                for when, during in (("no", lambda: time.sleep(arguments.seconds)), ("yes", lambda: save(client))):
                    took_s, rate, turn_ms, cpu_ms = measured(client, writers, during)
                    print(f"| {peer[0]} | {dataset} | {when} | {took_s:.1f} | {rate:,.0f} | {turn_ms:.2f} | {cpu_ms:.2f} |", flush=True)
            writers.stop()


def main():
    arguments = parse_arguments()
    print("| peer | dataset | BGSAVE | s | writes/s | longest turn, ms | the same in CPU time, ms |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for peer in arguments.peer:
        if arguments.keys:
            measure(peer, f"{arguments.keys:,} keys", fill_keys, change_key, arguments)
        if arguments.members:
            measure(peer, f"{arguments.members:,} members", fill_sorted_set, change_member, arguments)


if __name__ == "__main__":
    peers.run(main)
