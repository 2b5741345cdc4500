#!/usr/bin/env python3
"""Throughput of readers while other clients write with `appendfsync always`.

    python3 benches/beside_always.py --bench target/release/pantala-bench \\
        --peer 'redis=redis-server --port {port} --save "" --appendonly yes --appendfsync always --dir {dir}' \\
        --peer 'pantala=target/release/pantala --port {port} --save "" --appendonly yes --appendfsync always --dir {dir}'

--readers connections send GETs of existing keys for --seconds, unpipelined: once without writers,
and once while --writers connections SET other keys. The peers alternate between rounds.

Prints for each peer the medians over the rounds: GETs per second in both cases, their ratio, and
SETs per second (from a second before the GETs to a second after them).

{port} is replaced by a free port and {dir} by an empty folder. All started processes are stopped at
the end, also after Ctrl-C. Needs only Python's standard library.
"""

import json
import statistics
import subprocess
import tempfile

import peers

# The writers start this long before the readers, and end this long after them.
MARGIN_S = 1


def parse_arguments():
    parser = peers.parser(__doc__)
    parser.add_argument("--bench", default="target/release/pantala-bench", help="the load generator")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--readers", type=int, default=30)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=5, help="of each load")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--server-cpus", help="taskset list for the servers")
    parser.add_argument("--load-cpus", help="CPUs of the load generators")
    parser.add_argument("--dir", help="parent of the servers' folders")
    return peers.parse(parser)


def begin(arguments, port, results, prefix, clients, *more):
    """Starts a load. `results` is the file for its results."""
    command = peers.load_command(arguments, port, prefix, clients, results.name)
    return subprocess.Popen(command + [str(word) for word in more], stdout=subprocess.DEVNULL)


def end(process, results):
    """Waits for the end of a load. Returns its operations per second."""
    if process.wait() != 0:
        raise RuntimeError("pantala-bench load failed")
    with open(results.name, encoding="utf-8") as written:
        return json.load(written)["operations_per_s"]


def measure(peer, arguments):
    """Returns GETs per second without and with writers, and SETs per second."""
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder, tempfile.NamedTemporaryFile() as of_gets, tempfile.NamedTemporaryFile() as of_sets:
        with peers.Server(peer[0], peer[1].replace("{dir}", folder), arguments.server_cpus) as server:
            server.wait_ready()

            def gets():
                timed = ("--ratio", "0:1", "--test-time", arguments.seconds)
                return end(begin(arguments, server.port, of_gets, "get:", arguments.readers, *timed), of_gets)

            fill = ("-n", "allkeys", "--key-pattern", "P:P", "--ratio", "1:0", "--pipeline", 30)
            end(begin(arguments, server.port, of_gets, "get:", 30, *fill), of_gets)
            alone = gets()
            timed = ("--ratio", "1:0", "--test-time", arguments.seconds + 2 * MARGIN_S)
            writers = begin(arguments, server.port, of_sets, "set:", arguments.writers, *timed)
            try:
                writers.wait(MARGIN_S)
            except subprocess.TimeoutExpired:
                pass
            beside = gets()
            return alone, beside, end(writers, of_sets)


def main():
    arguments = parse_arguments()
    rounds = {name: [] for name, _ in arguments.peer}
    for number in range(arguments.rounds):
        for peer in arguments.peer if number % 2 == 0 else arguments.peer[::-1]:
            rounds[peer[0]].append(measure(peer, arguments))
    print(f"{arguments.readers} readers, {arguments.writers} writers, {arguments.rounds} rounds; operations/s, medians")
    print("| peer | GET alone | GET beside writers | ratio (min–max) | SET |\n| --- | --- | --- | --- | --- |")
    for name, taken in rounds.items():
        alone, beside, sets = (statistics.median(column) for column in zip(*taken))
        ratios = sorted(with_writers / without for without, with_writers, _ in taken)
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})"
        print(f"| {name} | {alone:.0f} | {beside:.0f} | {spread} | {sets:.0f} |")


if __name__ == "__main__":
    peers.run(main)
