#!/usr/bin/env python3
"""Cost of client-side caching: throughput of GET and SET, with and without 10,000 clients that
track keys.

    python3 benches/tracking.py \\
        --peer 'pantala=target/release/pantala --port {port} --save "" --workers 2 --maxclients 15000'

There are two phases, and the connections of the 10,000 clients stay open in both. In the first
phase, they are idle. In the second phase, each client tracks the ten keys that it has read. Before
each measurement in the second phase, each client reads its keys again, so that all keys are tracked
when the measurement starts. redis-benchmark sends GET and SET of random keys, without pipelining
and with `--pipeline`. Prints the throughput of both phases, and their ratio within a round. Each
peer has a new server in each round. {port} is replaced by a free port. All started processes are
stopped at the end, also after Ctrl-C. Needs only Python's standard library.
"""

import re
import resource
import statistics
import subprocess

import peers
from peers import connect, encode

KEYS_EACH = 10
AT_ONCE = 500
REPLY_BYTES_MAX = 1 << 16
# The keys of redis-benchmark have twelve digits.
KEY = "key:%012d"


def parse_arguments():
    parser = peers.parser(__doc__)
    parser.add_argument("--readers", type=int, default=10_000, help="clients that track")
    parser.add_argument("--clients", type=int, default=50, help="clients of the load")
    parser.add_argument("--pipeline", type=int, default=16)
    parser.add_argument("--requests", type=int, default=300_000, help="of each measurement; ten times as many GETs pipelined")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server-cpus", default="0,1")
    return peers.parse(parser)


class Readers:
    """Connections that track keys or are idle."""

    def __init__(self, port, count):
        self.sockets = [connect(port) for _ in range(count)]
        self.ask(lambda _: encode("HELLO", "3"), b"modules\r\n*0\r\n")

    def ask(self, request, end):
        """Sends a command on all connections, AT_ONCE connections at a time. Reads from each
        connection until `end` arrives."""
        for first in range(0, len(self.sockets), AT_ONCE):
            some = range(first, min(first + AT_ONCE, len(self.sockets)))
            for number in some:
                self.sockets[number].sendall(request(number))
            for number in some:
                received = b""
                while not received.endswith(end):
                    part = self.sockets[number].recv(REPLY_BYTES_MAX)
                    if not part:
                        raise ConnectionError("the server has closed a reader")
                    received += part

    def track(self):
        self.ask(lambda _: encode("CLIENT", "TRACKING", "ON"), b"+OK\r\n")

    def read(self):
        """Lets each connection read its keys, and discards the invalidations that it received."""
        keys_of = lambda number: [KEY % (number * KEYS_EACH + key) for key in range(KEYS_EACH)]
        self.ask(lambda number: encode("MGET", *keys_of(number)) + encode("ECHO", "end"), b"$3\r\nend\r\n")

    def close(self):
        for client in self.sockets:
            client.close()


def throughput(arguments, port, test, pipeline):
    """Returns the operations per second that redis-benchmark measures."""
    requests = arguments.requests * (10 if pipeline > 1 and test == "get" else 1)
    words = ["redis-benchmark", "-p", port, "-t", test, "-P", pipeline, "-c", arguments.clients, "-n", requests]
    words += ["-r", arguments.readers * KEYS_EACH, "-d", 64, "-q"]
    output = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=True).stdout
    return float(re.findall(r"([\d.]+) requests per second", output)[-1])


def round_of(arguments, name, server_command):
    """Returns operations per second, (without tracking, with tracking), by (test, pipeline)."""
    figures = {}
    with peers.Server(name, server_command, arguments.server_cpus) as server:
        server.wait_ready()
        readers = Readers(server.port, arguments.readers)
        tests = [(test, pipeline) for pipeline in (1, arguments.pipeline) for test in ("get", "set")]
        throughput(arguments, server.port, "set", arguments.pipeline)
        before = {test: throughput(arguments, server.port, *test) for test in tests}
        readers.track()
        for test in tests:
            readers.read()
            figures[test] = (before[test], throughput(arguments, server.port, *test))
        readers.close()
    return figures


def main():
    arguments = parse_arguments()
    # Each connection needs a descriptor.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    results = {name: [] for name, _ in arguments.peer}
    for _ in range(arguments.rounds):
        for name, server_command in arguments.peer:
            results[name].append(round_of(arguments, name, server_command))
    print(f"{arguments.readers} clients track {KEYS_EACH} keys each, {arguments.rounds} rounds")
    print(f"{'peer':<16} {'test':<8} {'alone op/s':>12} {'tracked op/s':>13} {'ratio':>6} {'(spread)':>13}")
    for name, rounds in results.items():
        for test, pipeline in rounds[0]:
            pairs = [figures[test, pipeline] for figures in rounds]
            ratios = [tracked / alone for alone, tracked in pairs]
            alone, tracked = (statistics.median(column) for column in zip(*pairs))
            ratio, around = peers.spread(ratios, digits=2)
            label = f"{test.upper()} p{pipeline}"
            print(f"{name:<16} {label:<8} {alone:>12.0f} {tracked:>13.0f} {ratio:>6} {around:>13}")


if __name__ == "__main__":
    peers.run(main)
