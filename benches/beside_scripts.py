#!/usr/bin/env python3
"""Throughput of GETs while other clients call scripts, with and without declared keys.

    python3 benches/beside_scripts.py --rounds 3 \\
        --peer 'redis=redis-server --port {port} --save ""' \\
        --peer 'pantala=target/release/pantala --port {port} --save "" --workers 2 --shards 40 --packed-connections 0 --move-connections no'

One process sends GETs of small keys over --clients connections, with --pipeline GETs in one write.
Another process calls a script over --script-clients connections, with one call at a time on each.
The scripts are:

- none: no script is called.
- declared: the script runs three commands on two random keys, which it declares.
- copied: as "declared", and the script also writes to a declared value of --copied-bytes. Pantala
  copies this value before the write.
- large: as "copied", but the value has --large-bytes. Pantala acquires all partitions for it.
- undeclared: as "declared", but the script receives numbers and builds the keys from them.
- undeclared long: as "undeclared", after a loop of --spin iterations.
- declared long: as "declared", after a loop of --spin iterations.

Prints the GETs per second, the ratio to the rate of the same peer without a script, and the script
calls per second, as medians over interleaved rounds. {port} is replaced by a free port. All started
processes are stopped at the end, also after Ctrl-C. Needs only Python's standard library.
"""

import multiprocessing
import random
import select
import signal
import sys
import time

import peers
from peers import connect, encode, receive

VALUE = b"v" * 64

DECLARED = """
local turns = tonumber(ARGV[2])
local sum = 0
for turn = 1, turns do sum = sum + turn end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('INCR', KEYS[2])
if KEYS[3] then redis.call('SETRANGE', KEYS[3], 0, 'x') end
return redis.call('GET', KEYS[1])
"""

UNDECLARED = """
local one, two = 'key:' .. ARGV[3], 'count:' .. ARGV[4]
local turns = tonumber(ARGV[2])
local sum = 0
for turn = 1, turns do sum = sum + turn end
redis.call('SET', one, ARGV[1])
redis.call('INCR', two)
return redis.call('GET', one)
"""


def parse_arguments():
    parser = peers.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each load")
    parser.add_argument("--clients", type=int, default=8, help="connections that send GETs")
    parser.add_argument("--pipeline", type=int, default=16, help="GETs in one write")
    parser.add_argument("--script-clients", type=int, default=4)
    parser.add_argument("--keyspace", type=int, default=100_000)
    parser.add_argument("--copied-bytes", type=int, default=32 * 1024)
    parser.add_argument("--large-bytes", type=int, default=256 * 1024)
    parser.add_argument("--spin", type=int, default=20_000)
    return peers.parse(parser)


def call(load, arguments):
    """Returns a command that calls the script of `load` with random keys."""
    one, two = random.randrange(arguments.keyspace), random.randrange(arguments.keyspace)
    turns = arguments.spin if load.endswith("long") else 0
    if load.startswith("undeclared"):
        return encode("EVAL", UNDECLARED, 0, VALUE, turns, one, two)
    keys = [f"key:{one}", f"count:{two}"]
    if load in ("copied", "large"):
        keys.append(f"{load}:{one % 8}")
    return encode("EVAL", DECLARED, len(keys), *keys, VALUE, turns)


LOADS = ["none", "declared", "copied", "large", "undeclared", "declared long", "undeclared long"]


def run_load(port, clients, commands, answer_bytes, per_write, pipe):
    """Sends commands in a separate process, from a start signal to a stop signal. Returns the
    number of replies. A connection sends its next commands when it has received all replies to the
    previous ones."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    poll = select.epoll()
    missing = {}
    connections = {}
    for _ in range(clients):
        client = connect(port)
        connections[client.fileno()] = client
        poll.register(client.fileno(), select.EPOLLIN)
    pipe.send("ready")
    pipe.recv()
    at, answered = 0, 0
    for number, client in connections.items():
        client.sendall(commands[at % len(commands)])
        at += 1
        missing[number] = answer_bytes
    while not pipe.poll():
        for number, _ in poll.poll(0.05):
            client = connections[number]
            part = client.recv(1 << 16)
            if not part or b"-" in part:
                raise RuntimeError(f"received an error: {part[:200]!r}")
            missing[number] -= len(part)
            if missing[number] == 0:
                answered += per_write
                client.sendall(commands[at % len(commands)])
                at += 1
                missing[number] = answer_bytes
    pipe.recv()
    pipe.send(answered)
    for client in connections.values():
        client.close()


class Load:
    """A load in a separate process."""

    def __init__(self, port, *about):
        self.pipe, there = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=run_load, args=(port, *about, there), daemon=True)
        self.process.start()
        # From now on, only the child process holds this end of the pipe. If the child dies, reading
        # from the other end fails.
        there.close()
        self.pipe.recv()

    def go(self):
        self.pipe.send("go")

    def stop(self):
        self.pipe.send("stop")
        answered = self.pipe.recv()
        self.process.join()
        return answered


def fill(port, arguments):
    with connect(port) as client:
        for start in range(0, arguments.keyspace, 1000):
            client.sendall(encode("MSET", *(word for key in range(start, start + 1000) for word in (f"key:{key}", VALUE))))
            receive(client, len(b"+OK\r\n"))
        for kind, size in (("copied", arguments.copied_bytes), ("large", arguments.large_bytes)):
            for number in range(8):
                client.sendall(encode("SET", f"{kind}:{number}", b"x" * size))
                receive(client, len(b"+OK\r\n"))


def measure(port, load, arguments):
    """Returns the GETs per second and the script calls per second."""
    answer_bytes = len(b"$%d\r\n" % len(VALUE)) + len(VALUE) + 2
    writes = [
        b"".join(encode("GET", f"key:{random.randrange(arguments.keyspace)}") for _ in range(arguments.pipeline)) for _ in range(500)
    ]
    running = [Load(port, arguments.clients, writes, answer_bytes * arguments.pipeline, arguments.pipeline)]
    if load != "none":
        calls = [call(load, arguments) for _ in range(2000)]
        running.append(Load(port, arguments.script_clients, calls, answer_bytes, 1))
    start = time.monotonic()
    for one in running:
        one.go()
    time.sleep(arguments.seconds)
    answered = [one.stop() for one in running]
    took = time.monotonic() - start
    return [count / took for count in answered] + [0.0] * (2 - len(answered))


def main():
    arguments = parse_arguments()
    results = {}
    for round_number in range(arguments.rounds):
        for name, command in arguments.peer:
            with peers.Server(name, command) as server:
                server.wait_ready()
                fill(server.port, arguments)
                for load in LOADS:
                    results.setdefault((load, name), []).append(measure(server.port, load, arguments))
        print(f"round {round_number + 1} of {arguments.rounds} done", file=sys.stderr)
    print(f"{arguments.rounds} rounds: median (min-max)")
    print(f"{'load':<16} {'peer':<12} {'GETs/s':>9} {'':>17} {'to none':>8} {'calls/s':>9}")
    for (load, name), taken in results.items():
        gets, calls = zip(*taken)
        ratios = [get / none for get, (none, _) in zip(gets, results["none", name])]
        (middle, around), (ratio, _) = peers.spread(gets, 0), peers.spread(ratios, 2)
        print(f"{load:<16} {name:<12} {middle:>9} {around:>17} {ratio:>8} {peers.spread(calls, 0)[0]:>9}")


if __name__ == "__main__":
    peers.run(main)
