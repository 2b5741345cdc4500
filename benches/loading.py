#!/usr/bin/env python3
"""The time to load an RDB file and an append-only file at startup.

    python3 benches/loading.py --keys 10000000 --rounds 5 \\
        --peer 'redis=redis-server --port {port} --save ""' \\
        --peer 'pantala=target/release/pantala --port {port} --save "" --workers 2'

Two files contain the same small keys (key:N) and values (value:N). One is an RDB file, which the
first peer writes with SAVE after DEBUG POPULATE. The other is an append-only file with a SET for
each key, in scattered order. Every round starts each peer on both files, in alternating order. The
time from the start of the process to the first +PONG is measured. Then DBSIZE must be the number of
keys. CPU time is that of the whole process. Ratios are to the first peer in the same round, and are
medians over rounds.

{port} is replaced by a free port. The files are in a temporary folder (its parent is --dir) and are
removed at the end. All started processes are stopped, also after Ctrl-C. Needs only Python's
standard library.
"""

import os
import sys
import tempfile
import time

import peers

# This factor is coprime to ten: multiplying by it permutes the numbers below a power of ten.
SCATTER = 7_654_321
PER_WRITE = 100_000
MANIFEST = "file appendonly.aof.1.incr.aof seq 1 type i\n"


def parse_arguments():
    parser = peers.parser(__doc__)
    parser.add_argument("--keys", type=int, default=2_000_000, help="a power of ten, or a multiple of a million")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", nargs="+", choices=["rdb", "aof"], default=["rdb", "aof"])
    parser.add_argument("--server-cpus", default="0,1", help="taskset list for the servers")
    parser.add_argument("--dir", help="parent of the temporary folder")
    return peers.parse(parser)


def call(client, *words):
    client.sendall(peers.encode(*words))
    return peers.reply_line(client.makefile("rb"))


def write_rdb(peer, keys, folder):
    """Lets a peer write the RDB file."""
    with peers.Server(peer[0], f"{peer[1]} --dir {folder} --enable-debug-command yes") as server, server.connect() as client:
        call(client, "DEBUG", "POPULATE", keys)
        call(client, "SAVE")


def write_aof(keys, folder):
    """Writes the append-only file, with one increment and no base file."""
    os.mkdir(os.path.join(folder, "appendonlydir"))
    with open(os.path.join(folder, "appendonlydir", "appendonly.aof.manifest"), "w", encoding="ascii") as manifest:
        manifest.write(MANIFEST)
    with open(os.path.join(folder, "appendonlydir", "appendonly.aof.1.incr.aof"), "wb") as file:
        file.write(peers.encode("SELECT", 0))
        for start in range(0, keys, PER_WRITE):
            numbers = (number * SCATTER % keys for number in range(start, min(start + PER_WRITE, keys)))
            file.write(b"".join(peers.encode("SET", f"key:{number}", f"value:{number}") for number in numbers))


def load(peer, options, keys, cpus):
    """Starts a peer on a file. Returns the seconds until it has loaded the file, and its CPU
    seconds."""
    start = time.monotonic()
    with peers.Server(peer[0], f"{peer[1]} {options}", cpus) as server:
        peers.START_WAIT_S = 600
        with server.connect() as client:
            taken = time.monotonic() - start
            cpu = peers.process_cpu_s(server.process.pid)
            if (size := call(client, "DBSIZE")) != b":%d" % keys:
                raise RuntimeError(f"{peer[0]} has loaded {size.decode()} keys, not {keys}")
    return taken, cpu


def main():
    arguments = parse_arguments()
    figures = {}
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        options = {}
        for kind in arguments.files:
            where = os.path.join(folder, kind)
            os.mkdir(where)
            options[kind] = f"--dir {where}" + (" --appendonly yes --auto-aof-rewrite-percentage 0" if kind == "aof" else "")
            if kind == "rdb":
                write_rdb(arguments.peer[0], arguments.keys, where)
            else:
                write_aof(arguments.keys, where)
        for number in range(arguments.rounds):
            for kind in arguments.files:
                for peer in arguments.peer if number % 2 == 0 else arguments.peer[::-1]:
                    figures.setdefault((kind, peer[0]), []).append(load(peer, options[kind], arguments.keys, arguments.server_cpus))
            print(f"round {number + 1} of {arguments.rounds} done", file=sys.stderr)
    print(f"{arguments.keys} keys, {arguments.rounds} rounds; seconds: median (min-max); ratio to {arguments.peer[0][0]}")
    print(f"{'file':<5} {'peer':<12} {'':<5} {'seconds':>9} {'(spread)':>17} {'ratio':>7} {'(spread)':>15}")
    for kind in arguments.files:
        for name, _ in arguments.peer:
            for column, title in enumerate(("wall", "CPU")):
                own, base = ([taken[column] for taken in figures[kind, peer]] for peer in (name, arguments.peer[0][0]))
                print(f"{kind:<5} {name:<12} {title:<5} {peers.columns(own, base)}")


if __name__ == "__main__":
    peers.run(main)
