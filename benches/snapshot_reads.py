#!/usr/bin/env python3
"""How long the reads of one client take while BGSAVE compresses strings.

    python3 benches/snapshot_reads.py --server-cpus 0 --keys 20000 --value-bytes 10000 \\
        --peer 'redis=redis-server --port {port} --save "" --dir {dir}' \\
        --peer 'pantala=target/release/pantala --port {port} --save "" --workers 1 --dir {dir}'

Fills the server with --keys strings of random words, which compress well. Then sends STRLEN of a
random key every 0.3 ms: first for two seconds without BGSAVE, and then from BGSAVE until the
snapshot is written. Prints p50, p99, p99.9 and the maximum in milliseconds, as medians over
--rounds. Run the script itself on another CPU (taskset -c 1).

{port} is replaced by a free port, and {dir} by an empty folder. All started processes are stopped
at the end, also after Ctrl-C. Needs only Python's standard library.
"""

import random
import statistics
import tempfile
import time

import peers
from peers import encode, reply_line

ALONE_S = 2
CHECK_S = 0.02
PAUSE_S = 0.0003
PER_WRITE = 100
QUANTILES = (0.5, 0.99, 0.999, 1)


def parse_arguments():
    parser = peers.parser(__doc__)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--value-bytes", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server-cpus", help="taskset list for the servers")
    return peers.parse(parser)


def fill(client, replies, arguments):
    words = [b"word%d " % random.randrange(3_000) for _ in range(4_000)]
    for first in range(0, arguments.keys, PER_WRITE):
        keys = range(first, min(first + PER_WRITE, arguments.keys))
        values = (b"".join(random.choices(words, k=arguments.value_bytes // 4 + 1)) for _ in keys)
        client.sendall(b"".join(encode("SET", f"key:{key}", value[: arguments.value_bytes]) for key, value in zip(keys, values)))
        for _ in keys:
            reply_line(replies)


def latencies_ms(client, replies, keys, is_over):
    """Reads until `is_over` returns true. Returns the quantiles of the latencies in
    milliseconds."""
    took = []
    while not took or not is_over():
        request = encode("STRLEN", f"key:{random.randrange(keys)}")
        began = time.perf_counter()
        client.sendall(request)
        reply_line(replies)
        took.append((time.perf_counter() - began) * 1000)
        time.sleep(PAUSE_S)
    took.sort()
    return [took[min(len(took) - 1, int(len(took) * quantile))] for quantile in QUANTILES]


def measure(peer, arguments):
    with tempfile.TemporaryDirectory() as folder:
        with peers.Server(peer[0], peer[1].replace("{dir}", folder), arguments.server_cpus) as server:
            client, asking = server.connect(), server.connect()
            replies, asked = client.makefile("rb"), asking.makefile("rb")
            fill(client, replies, arguments)
            until = time.monotonic() + ALONE_S
            alone = latencies_ms(client, replies, arguments.keys, lambda: time.monotonic() > until)
            asking.sendall(encode("BGSAVE"))
            reply_line(asked)
            checked = time.monotonic()

            def is_written():
                nonlocal checked
                if time.monotonic() - checked < CHECK_S:
                    return False
                checked = time.monotonic()
                asking.sendall(encode("INFO", "persistence"))
                return b"rdb_bgsave_in_progress:0" in asked.read(int(reply_line(asked)[1:]) + 2)

            return alone, latencies_ms(client, replies, arguments.keys, is_written)


def main():
    arguments = parse_arguments()
    rounds = {}
    for _ in range(arguments.rounds):
        for peer in arguments.peer:
            rounds.setdefault(peer[0], []).append(measure(peer, arguments))
    print("| peer | | p50 | p99 | p99.9 | max |\n| --- | --- | --- | --- | --- | --- |")
    for name, taken in rounds.items():
        for at, when in enumerate(("alone", "BGSAVE")):
            medians = [statistics.median(one[at][column] for one in taken) for column in range(len(QUANTILES))]
            print(f"| {name} | {when} | " + " | ".join(f"{median:.2f}" for median in medians) + " |")


if __name__ == "__main__":
    peers.run(main)
