#!/usr/bin/env python3
"""Pipelines of GETs with long replies, and how they delay another client.

    python3 benches/large_pipelines.py --rounds 5 \\
        --peer 'redis=redis-server --port {port} --save ""' \\
        --peer 'pantala=target/release/pantala --port {port} --save "" --workers 1'

Prints medians over the rounds (min-max) for each load and peer, and ratios to the first peer in the
same rounds. Each round starts a new server for each peer. One client sends a pipeline. Another
client, a separate process, sends a GET half a millisecond after each reply to its previous GET.

In all rows but `unread`, the first client reads the replies to its pipeline:

    seconds   time from the first byte that this client sends to the last byte that it receives
    GET, ms   the longest GET of the other client in this time

In the rows `unread`, the first client does not read the replies:

    GET, ms   the longest GET of the other client while the server runs the pipeline
    memory    growth of resident memory, divided by the bytes of the unread values
    gone, ms  the longest GET of the other client in the second after the first client disconnects

{port} is replaced by a free port. All started processes are stopped at the end, also after Ctrl-C.
Needs only Python's standard library.
"""

import multiprocessing
import threading
import time

import peers
from peers import connect, encode, receive

KIB = 1024
MIB = 1024 * KIB
# The number of commands in a pipeline, and the length of each value.
LOADS = [(100, MIB), (200, MIB), (400, MIB), (600, MIB), (8_000, 64 * KIB)]
UNREAD = [(400, MIB), (6_400, 64 * KIB)]
PROBE_EVERY_S = 0.0005
READ_BYTES = MIB


def parse_arguments():
    parser = peers.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    return peers.parse(parser)


def probe(port, going, worst_s):
    client = connect(port)
    request, reply = encode("GET", "small"), b"$1\r\nv\r\n"
    while going.value:
        began = time.perf_counter()
        client.sendall(request)
        receive(client, len(reply))
        worst_s.value = max(worst_s.value, time.perf_counter() - began)
        time.sleep(PROBE_EVERY_S)


class Probe:
    """A client that sends GETs repeatedly, and records its longest wait in seconds."""

    def __init__(self, port):
        self.going, self.worst_s = multiprocessing.Value("i", 1), multiprocessing.Value("d", 0.0)
        self.process = multiprocessing.Process(target=probe, args=(port, self.going, self.worst_s), daemon=True)
        self.process.start()

    def take_ms(self):
        worst_ms, self.worst_s.value = self.worst_s.value * 1000, 0.0
        return worst_ms

    def stop(self):
        self.going.value = 0
        self.process.join()


def resident_bytes(server):
    with open(f"/proc/{server.process.pid}/status", encoding="utf-8", errors="replace") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) * KIB


def prepare(server, value_bytes):
    client = server.connect()
    for words in [("SET", "big", b"x" * value_bytes), ("SET", "small", "v")]:
        client.sendall(encode(*words))
        receive(client, len(b"+OK\r\n"))
    time.sleep(0.2)
    return client


def read(server, count, value_bytes):
    """Returns the seconds of the pipeline, and the other client's longest GET in this time, in
    milliseconds."""
    client, other = prepare(server, value_bytes), Probe(server.port)
    time.sleep(0.3)
    other.take_ms()
    buffer, left = bytearray(READ_BYTES), count * (value_bytes + len(f"${value_bytes}\r\n\r\n"))
    requests = encode("GET", "big") * count
    began = time.perf_counter()
    threading.Thread(target=client.sendall, args=(requests,), daemon=True).start()
    while left:
        got = client.recv_into(buffer)
        if not got:
            raise RuntimeError("the server closed the connection")
        left -= got
    took_s = time.perf_counter() - began
    # The probe may record the reply to a delayed GET a moment later.
    time.sleep(0.1)
    worst_ms = other.take_ms()
    other.stop()
    return took_s, worst_ms


def leave(server, count, value_bytes):
    """Returns the longest GET while the server runs the pipeline, the growth of memory per byte of
    the unread values, and the longest GET after the client of the pipeline has disconnected. Both
    times are in milliseconds."""
    client, other = prepare(server, value_bytes), Probe(server.port)
    asking, done = server.connect(), b":1\r\n"
    time.sleep(0.3)
    before = resident_bytes(server)
    other.take_ms()
    client.sendall(encode("GET", "big") * count + encode("SET", "done", "1"))
    while True:
        asking.sendall(encode("EXISTS", "done"))
        if asking.recv(len(done)) == done:
            break
        time.sleep(0.002)
    # The probe may record the reply to a delayed GET a moment later.
    time.sleep(0.1)
    running_ms = other.take_ms()
    memory = (resident_bytes(server) - before) / (count * value_bytes)
    client.close()
    time.sleep(1)
    gone_ms = other.take_ms()
    other.stop()
    return running_ms, memory, gone_ms


def main():
    arguments = parse_arguments()
    rows = [("", read, load, ("seconds", "GET, ms")) for load in LOADS]
    rows += [("unread ", leave, load, ("GET, ms", "memory", "gone, ms")) for load in UNREAD]
    for prefix, measure, (count, value_bytes), titles in rows:
        figures = {name: [] for name, _ in arguments.peer}
        for _ in range(arguments.rounds):
            for name, command in arguments.peer:
                with peers.Server(name, command) as server:
                    figures[name].append(measure(server, count, value_bytes))
        base = figures[arguments.peer[0][0]]
        for name, _ in arguments.peer:
            for at, title in enumerate(titles):
                columns = peers.columns([row[at] for row in figures[name]], [max(row[at], 1e-9) for row in base])
                print(f"{prefix}{count} x {value_bytes // KIB} KiB".ljust(20), f"{name:12} {title:9} {columns}", flush=True)


if __name__ == "__main__":
    peers.run(main)
