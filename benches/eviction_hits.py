#!/usr/bin/env python3
"""Hit rates of a cache that is smaller than its keys.

    python3 benches/eviction_hits.py \\
        --peer 'redis=redis-server --port {port} --save "" --maxmemory 100mb' \\
        --peer 'pantala=target/release/pantala --port {port} --save "" --maxmemory 100mb'

A client reads through the cache: it GETs keys drawn by Zipf's law (--exponent), --pipeline keys at
a time, and SETs each missing key to a value of --bytes bytes. The first --warm-up requests are not
counted. The measurement is repeated for --seeds random seeds. For each seed, a new server of each
peer is started, and all peers receive the same requests.

Prints for each policy and peer: the hit rate, the number of keys left, used_memory at the end, and
resident memory at the end. Each value is the median over all seeds (minimum-maximum). "ideal" is
the share of requests that are for the N most popular keys, where N is the number of keys left. No
policy can have a higher hit rate.

{port} is replaced by a free port. All started processes are stopped at the end, also after Ctrl-C.
Needs only Python's standard library.
"""

import itertools
import random
import statistics

import peers
from peers import encode, reply_line

FIELDS = ["used_memory", "used_memory_rss"]


def parse_arguments():
    parser = peers.parser(__doc__)
    parser.add_argument("--policy", action="append", help="maxmemory-policy; repeatable (default: allkeys-lfu)")
    parser.add_argument("--keys", type=int, default=30_000)
    parser.add_argument("--bytes", type=int, default=10_000, help="of each value")
    parser.add_argument("--exponent", type=float, default=0.99)
    parser.add_argument("--requests", type=int, default=300_000, help="number of counted requests")
    parser.add_argument("--warm-up", type=int, default=100_000, help="requests before these")
    parser.add_argument("--pipeline", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=3)
    return peers.parse(parser)


class Zipf:
    """Draws ranks of keys. The first rank is the most popular key."""

    def __init__(self, keys, exponent):
        self.sums = list(itertools.accumulate(rank**-exponent for rank in range(1, keys + 1)))

    def draw(self, source, count):
        return source.choices(range(len(self.sums)), cum_weights=self.sums, k=count)

    def share(self, keys):
        """Returns the share of requests for the `keys` most popular keys."""
        return self.sums[min(keys, len(self.sums)) - 1] / self.sums[-1] if keys else 0.0


def bulk(replies):
    """Skips a reply. Returns whether it had a value."""
    length = int(reply_line(replies)[1:])
    if length >= 0:
        replies.read(length + 2)
    return length >= 0


def read_through(client, replies, batches, names, value):
    """Runs requests in batches. Returns the number of hits."""
    hits = 0
    for batch in batches:
        client.sendall(b"".join(encode("GET", names[rank]) for rank in batch))
        missed = [rank for rank in batch if not bulk(replies)]
        hits += len(batch) - len(missed)
        # If a key is missing twice in a batch, the client stores it once.
        stored = dict.fromkeys(missed)
        client.sendall(b"".join(encode("SET", names[rank], value) for rank in stored))
        for _ in stored:
            reply_line(replies)
    return hits


def batched(ranks, count):
    """Returns the ranks in batches of `count`."""
    return [ranks[at : at + count] for at in range(0, len(ranks), count)]


def info(client, replies):
    client.sendall(encode("INFO", "memory"))
    text = replies.read(int(reply_line(replies)[1:]) + 2).decode()
    fields = dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)
    return [int(fields[field]) for field in FIELDS]


def measure(peer, policy, seed, zipf, arguments):
    """Returns the hit rate, the number of keys left, and used and resident memory in MB."""
    source = random.Random(seed)
    names = [f"key:{number:08}" for number in range(arguments.keys)]
    source.shuffle(names)
    value = source.randbytes(arguments.bytes)
    with peers.Server(*peer) as server, server.connect() as client, client.makefile("rb", 1 << 20) as replies:
        client.sendall(encode("CONFIG", "SET", "maxmemory-policy", policy))
        reply_line(replies)
        warm_up = zipf.draw(source, arguments.warm_up)
        counted = zipf.draw(source, arguments.requests)
        read_through(client, replies, batched(warm_up, arguments.pipeline), names, value)
        hits = read_through(client, replies, batched(counted, arguments.pipeline), names, value)
        client.sendall(encode("DBSIZE"))
        keys = int(reply_line(replies)[1:])
        return [hits / arguments.requests, keys, *(bytes / 1e6 for bytes in info(client, replies))]


def main():
    arguments = parse_arguments()
    zipf = Zipf(arguments.keys, arguments.exponent)
    print(f"{'policy':<16} {'peer':<10} {'hit rate':>26} {'keys':>20} {'used MB':>8} {'rss MB':>8} {'ideal':>7}")
    for policy in arguments.policy or ["allkeys-lfu"]:
        rows = {name: [] for name, _ in arguments.peer}
        for seed in range(arguments.seeds):
            for peer in arguments.peer:
                rows[peer[0]].append(measure(peer, policy, seed, zipf, arguments))
        for name, row in rows.items():
            rates, keys, used, resident = zip(*row)
            rate, keys_shown = peers.spread(rates, 4), peers.spread(keys, 0)
            ideal = zipf.share(int(statistics.median(keys)))
            print(
                f"{policy:<16} {name:<10} {rate[0]:>9} {rate[1]:>16} {keys_shown[0]:>6} {keys_shown[1]:>13} "
                f"{statistics.median(used):>8.1f} {statistics.median(resident):>8.1f} {ideal:>7.4f}"
            )
    return 0


if __name__ == "__main__":
    peers.run(main)
