#!/usr/bin/env python3
"""How long a command over millions of elements delays other clients.

    python3 benches/neighbours.py \\
        --peer 'redis=redis-server --port {port} --save ""' \\
        --peer 'pantala=target/release/pantala --port {port} --save "" --workers 2 --shards 40 --packed-connections 0 --move-connections no'

One connection runs a long command on keys of one partition (a part of the key space; KEYS, SORT BY
and FLUSHALL use all partitions). --probes other connections send a GET of a small key every two
milliseconds. This key is in another partition, in the other half of the slots.

Prints for each command its duration, and the number of probing connections that waited for at least
half of this duration. These connections share a worker with the command's client. For all other
probing connections together, prints the median, the 99th percentile and the longest GET in
milliseconds. The first line of a peer is measured while no long command runs.

{port} is replaced by a free port. All started processes are stopped at the end, also after Ctrl-C.
Needs only Python's standard library.
"""

import multiprocessing
import selectors
import signal
import time

import peers
from peers import connect, encode, reply_line

SLOTS = 16384
PROBE_EVERY_S = 0.002
IDLE_S = 2.0
PER_BATCH = 1000
# A GET that takes less time than this counts as not delayed by the command.
STALL_MIN_MS = 5.0


def parse_arguments():
    parser = peers.parser(__doc__)
    parser.add_argument("--members", type=int, default=1_000_000, help="of each large collection")
    parser.add_argument("--probes", type=int, default=8, help="connections that send GETs")
    return peers.parse(parser)


def slot(key):
    crc = 0
    for byte in key:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc % SLOTS


# A hash tag in the lower half and one in the upper half of the slots.
LOW = next(tag for tag in map(str, range(1000)) if slot(tag.encode()) < SLOTS // 4)
HIGH = next(tag for tag in map(str, range(1000)) if slot(tag.encode()) > SLOTS - SLOTS // 4)
PROBE = f"{{{HIGH}}}small"


def name(kind, number=0):
    return f"{{{LOW}}}{kind}:{number}"


# The title of each command in the output, and its words.
COMMANDS = [
    ("SUNION of two sets", ("SUNION", name("set", 0), name("set", 1))),
    ("ZRANGE of everything", ("ZRANGE", name("zset"), 0, -1)),
    ("SORT of a list, of which 10 are asked", ("SORT", name("list"), "LIMIT", 0, 10)),
    ("SORT of it BY keys, GET of 10", ("SORT", name("list"), "BY", "key:*", "GET", "key:*", "LIMIT", 0, 10)),
    ("KEYS that match nothing", ("KEYS", "nosuch*x")),
    ("SUNIONSTORE of two sets", ("SUNIONSTORE", name("stored"), name("set", 0), name("set", 1))),
    ("DEL of a set", ("DEL", name("stored"))),
    ("DEL of a sorted set", ("DEL", name("zset"))),
    ("UNLINK of a set", ("UNLINK", name("set", 0))),
    # This is the last command, because it deletes all keys.
    ("FLUSHALL", ("FLUSHALL",)),
]


def fill(port, members):
    """Creates collections of `members` elements each, and `members` string keys."""
    with connect(port) as client, client.makefile("rb") as replies:
        for start in range(0, members, PER_BATCH):
            numbers = range(start, start + PER_BATCH)
            batch = [
                encode("SADD", name("set", 0), *(f"member:{number}" for number in numbers)),
                encode("SADD", name("set", 1), *(f"member:{number + members // 2}" for number in numbers)),
                encode("ZADD", name("zset"), *(word for number in numbers for word in (number * 7 % 1_000_003, f"member:{number}"))),
                encode("RPUSH", name("list"), *(number * 7919 % 1_000_003 for number in numbers)),
                encode("MSET", *(word for number in numbers for word in (f"key:{number}", number))),
            ]
            client.sendall(b"".join(batch))
            for _ in batch:
                reply_line(replies)
        client.sendall(encode("SET", PROBE, "x"))
        reply_line(replies)


def run_command(port, words, pipe):
    """Waits for a start signal, sends the command and reads the whole reply. Reports the times of
    the start, the first byte and the end. Runs in a separate process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with connect(port) as client:
        pipe.send("ready")
        pipe.recv()
        start = time.monotonic()
        # The reply to ECHO marks the end of the two replies.
        client.sendall(encode(*words) + encode("ECHO", "the end of it"))
        tail = b""
        first = None
        while not tail.endswith(b"the end of it\r\n"):
            chunk = client.recv(1 << 20)
            if not chunk:
                raise RuntimeError("the server closed the connection")
            if first is None:
                first = time.monotonic()
            tail = (tail + chunk)[-64:]
        pipe.send((start, first, time.monotonic()))


class Probes:
    """Connections that each send a GET of the small key repeatedly."""

    def __init__(self, port, count):
        self.selector = selectors.DefaultSelector()
        self.clients = []
        for number in range(count):
            client = connect(port)
            self.selector.register(client, selectors.EVENT_READ, number)
            self.clients.append(client)
        self.due = [time.monotonic() + PROBE_EVERY_S * number / count for number in range(count)]
        self.sent = [None] * count

    def run(self, is_over):
        """Runs until `is_over` returns true and all replies have arrived. Returns (send time,
        duration) of each GET, by connection."""
        taken = [[] for _ in self.clients]
        request = encode("GET", PROBE)
        while True:
            now = time.monotonic()
            over = is_over(now)
            for number, client in enumerate(self.clients):
                if not over and self.sent[number] is None and now >= self.due[number]:
                    self.sent[number] = now
                    client.sendall(request)
            if over and not any(self.sent):
                return taken
            for key, _ in self.selector.select(PROBE_EVERY_S / 4):
                number = key.data
                key.fileobj.recv(4096)
                now = time.monotonic()
                taken[number].append((self.sent[number], (now - self.sent[number]) * 1000))
                self.sent[number] = None
                self.due[number] = now + PROBE_EVERY_S

    def close(self):
        self.selector.close()
        for client in self.clients:
            client.close()


def percentile(sorted_values, share):
    return sorted_values[min(int(len(sorted_values) * share), len(sorted_values) - 1)] if sorted_values else 0.0


def row(title, command_ms, stalled, taken):
    values = sorted(taken)
    figures = [percentile(values, 0.5), percentile(values, 0.99), values[-1] if values else 0.0]
    print(f"| {title} | {command_ms} | {stalled} | " + " | ".join(f"{figure:.2f}" for figure in figures) + " |", flush=True)


def measure(port, probes, title, words):
    here, there = multiprocessing.Pipe()
    helper = multiprocessing.Process(target=run_command, args=(port, words, there), daemon=True)
    helper.start()
    here.recv()
    times = []

    def is_over(now):
        if not times and here.poll():
            times.append(here.recv())
        return bool(times) and now > times[0][2] + 0.05

    here.send("go")
    taken = probes.run(is_over)
    helper.join()
    start, first, end = times[0]
    took_ms = (first - start) * 1000
    during = [[ms for sent, ms in one if sent + ms / 1000 >= start and sent <= end] for one in taken]
    stalled = [max(one, default=0.0) >= max(took_ms / 2, STALL_MIN_MS) for one in during]
    others = [ms for one, still in zip(during, stalled) if not still for ms in one]
    row(title, f"{took_ms:.0f} ({(end - start) * 1000:.0f})", f"{sum(stalled)} of {len(stalled)}", others)


def measure_peer(title, command, arguments):
    with peers.Server(title, command) as server:
        server.wait_ready()
        fill(server.port, arguments.members)
        probes = Probes(server.port, arguments.probes)
        print(f"\n{title}\n\n| command | ms to the reply's first byte (last) | connections that waited | p50 | p99 | longest |")
        print("| --- | --- | --- | --- | --- | --- |")
        end = time.monotonic() + IDLE_S
        idle = probes.run(lambda now: now > end)
        row("none", "", "", [ms for one in idle for _, ms in one])
        for command_title, words in COMMANDS:
            measure(server.port, probes, command_title, words)
        probes.close()


def main():
    arguments = parse_arguments()
    for title, command in arguments.peer:
        measure_peer(title, command, arguments)


if __name__ == "__main__":
    peers.run(main)
