#!/usr/bin/env python3
"""Resident memory per key of servers that speak RESP.

Each peer is started alone, filled, measured (VmRSS in /proc/PID/status, before and after the
filling), and stopped. Then the next peer follows. There are two fillings, each with a new server:

* populate: DEBUG POPULATE of --keys keys, key:N with the value value:N;
* values: --value-keys keys of 16 bytes with values of --value-size bytes, by pipelined SET.

Before the first reading, a server receives GETs of a missing key. This key is as long as a key of
the second filling and its value together, so these GETs are as long as its SETs. The buffers of
connections and workers thus have their final size at the first reading, and don't count as memory
of keys. "started with" is the memory at the first reading.

    python3 benches/memory_per_key.py \\
        --peer 'redis=redis-server --port {port} --save "" --enable-debug-command yes' \\
        --peer 'pantala=target/release/pantala --port {port} --save "" --shards 40 --enable-debug-command yes'

{port} is replaced by a free port. Ratios are to the first peer. With 20 million keys, redis-server
takes 2.2 GB. All started processes are stopped at the end, also after Ctrl-C. Needs only Python's
standard library.
"""

import time

import peers
from peers import reply_line

# Time for the server to free memory that isn't used by keys (buffers, the old table of a rehash).
SETTLE_S = 2
SETS_PER_BATCH = 1000
WARM_UP_BATCHES = 50
KEY_BYTES = 16


def parse_arguments():
    parser = peers.parser(__doc__)
    parser.add_argument("--keys", type=int, default=20_000_000, help="of the first filling; 0: leave it out")
    parser.add_argument("--value-keys", type=int, default=1_000_000, help="of the second filling; 0: leave it out")
    parser.add_argument("--value-size", type=int, default=256, help="bytes of its values")
    return peers.parse(parser)


def resident_bytes(pid):
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {pid} has no VmRSS: has it ended?")


def ask(replies, connection, command):
    """Sends a command whose reply is one line. Returns this line without its end."""
    connection.sendall(command + b"\r\n")
    return reply_line(replies)


def warm_up(arguments, connection, replies):
    """Sends GETs of a missing key that is as long as a key and a value of the second filling."""
    key = b"x" * (KEY_BYTES + arguments.value_size)
    batch = b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(key), key) * SETS_PER_BATCH
    for _ in range(WARM_UP_BATCHES):
        connection.sendall(batch)
        for _ in range(SETS_PER_BATCH):
            reply_line(replies)


def populate(arguments, connection, replies):
    """Fills the server with DEBUG POPULATE. Returns the number of keys, and the bytes of all keys
    and values."""
    ask(replies, connection, b"DEBUG POPULATE %d" % arguments.keys)
    digits = sum(len(str(number)) for number in range(min(arguments.keys, 10)))
    low = 10
    while low < arguments.keys:
        digits += (min(low * 10, arguments.keys) - low) * len(str(low))
        low *= 10
    return arguments.keys, 2 * digits + arguments.keys * (len("key:") + len("value:"))


def set_values(arguments, connection, replies):
    """Fills the server with SETs. Returns the number of keys, and the bytes of all keys and
    values."""
    value = b"v" * arguments.value_size
    for first in range(0, arguments.value_keys, SETS_PER_BATCH):
        last = min(first + SETS_PER_BATCH, arguments.value_keys)
        connection.sendall(
            b"".join(
                b"*3\r\n$3\r\nSET\r\n$%d\r\nkey:%0*d\r\n$%d\r\n%s\r\n"
                % (KEY_BYTES, KEY_BYTES - len("key:"), number, len(value), value)
                for number in range(first, last)
            )
        )
        for _ in range(first, last):
            reply_line(replies)
    return arguments.value_keys, arguments.value_keys * (KEY_BYTES + arguments.value_size)


def measure(arguments, name, command, fill):
    """Returns resident bytes per key, resident bytes per key without the key and value themselves,
    and resident bytes before the filling."""
    with (
        peers.Server(name, command) as server,
        server.connect() as connection,
        connection.makefile("rb") as replies,
    ):
        warm_up(arguments, connection, replies)
        before = resident_bytes(server.process.pid)
        keys, key_value_bytes = fill(arguments, connection, replies)
        time.sleep(SETTLE_S)
        taken = resident_bytes(server.process.pid) - before
        stored = int(ask(replies, connection, b"DBSIZE").lstrip(b":"))
        if stored != keys:
            raise RuntimeError(f"{name} has {stored} keys, not {keys}")
    return taken / keys, (taken - key_value_bytes) / keys, before


def main():
    arguments = parse_arguments()
    fillings = []
    if arguments.keys:
        fillings.append((f"{arguments.keys:,} pairs key:N / value:N (DEBUG POPULATE)", populate))
    if arguments.value_keys:
        title = f"{arguments.value_keys:,} keys of {KEY_BYTES} bytes with values of {arguments.value_size} (SET)"
        fillings.append((title, set_values))
    for title, fill in fillings:
        print(title)
        print(f"  {'peer':<22} {'bytes per key':>13} {'beyond key and value':>21} {'ratio of bytes':>15} {'started with':>13}")
        first = None
        for name, command in arguments.peer:
            per_key, beyond, before = measure(arguments, name, command, fill)
            first = first or per_key
            print(f"  {name:<22} {per_key:>13.2f} {beyond:>21.2f} {per_key / first:>15.3f} {before >> 10:>10} KB", flush=True)


if __name__ == "__main__":
    peers.run(main)
