#!/usr/bin/env python3
"""Measures the CPU time of a SET in three states: journal off, journal on, journal read by a
replica.

    python3 benches/journal_cost.py --rounds 9 --peer 'pantala=target/release/pantala --port {port} --workers 1'

One server per peer runs on one set of CPUs, and redis-benchmark runs on another set. Each round
measures all states of the journal on the same server:

    off       nothing is recorded
    discard   `DEBUG JOURNAL 1`: effects are recorded, merged and discarded
    follow    `SYNC`: effects are recorded, merged, and read by a process that discards the stream

CPU time is that of the whole process, user and system, and therefore includes the journal's thread.
Ratios are to `off` in the same round, and are medians over rounds. {port} is replaced by a free
port. All processes are stopped at the end, also after Ctrl-C. Needs only Python's standard library.
"""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import peers

STATES = ["off", "discard", "follow"]


def parse_arguments():
    parser = peers.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--pipeline", type=int, default=30)
    parser.add_argument("--data-size", type=int, default=256, help="bytes of a value")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--requests", type=int, default=2_000_000, help="operations of one run")
    parser.add_argument("--keyspace", type=int, default=100_000, help="keys in use")
    parser.add_argument("--server-cpus", default="0", help="taskset list for the server")
    parser.add_argument("--client-cpus", default="1", help="taskset list for redis-benchmark and the replica")
    return peers.parse(parser)


def drive(arguments, port):
    """Runs redis-benchmark once."""
    command = [
        "taskset", "-c", arguments.client_cpus, "redis-benchmark", "-h", "127.0.0.1", "-p", str(port),
        "-t", "set", "-n", str(arguments.requests), "-c", str(arguments.clients), "-P", str(arguments.pipeline),
        "-d", str(arguments.data_size), "-r", str(arguments.keyspace), "--csv",
    ]  # fmt: skip
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def follow(port, cpus, is_attached):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})
    with peers.connect(port) as client:
        client.sendall(peers.encode("SYNC"))
        buffer = bytearray(1 << 20)
        while client.recv_into(buffer) > 0:
            is_attached.set()


def call(client, *words):
    client.sendall(peers.encode(*words))
    return peers.reply_line(client.makefile("rb"))


def info(client):
    """Returns the section `replication` of INFO."""
    client.sendall(peers.encode("INFO", "replication"))
    reader = client.makefile("rb")
    return reader.read(int(reader.readline()[1:]) + len(b"\r\n"))


@contextlib.contextmanager
def in_state(arguments, server, client, state):
    """Brings a server into a state, and later back to `off`."""
    if state == "discard":
        call(client, "DEBUG", "JOURNAL", "1")
        yield
        call(client, "DEBUG", "JOURNAL", "0")
    elif state == "follow":
        is_attached = multiprocessing.Event()
        follower = multiprocessing.Process(target=follow, args=(server.port, arguments.client_cpus, is_attached))
        follower.start()
        is_attached.wait(peers.START_WAIT_S)
        yield
        follower.terminate()
        follower.join()
        # The server continues to record effects until it releases the backlog.
        while b"repl_backlog_active:1" in info(client):
            time.sleep(0.1)
    else:
        yield


def measure(arguments, server):
    """Returns lists of CPU microseconds per operation, by state."""
    figures = {state: [] for state in STATES}
    with server.connect() as client:
        # The replica must stay connected even if the machine is too slow for it.
        call(client, "CONFIG", "SET", "client-output-buffer-limit", "replica 0 0 0")
        call(client, "CONFIG", "SET", "repl-backlog-ttl", "1")
        drive(arguments, server.port)
        for number in range(arguments.rounds):
            # The order rotates, so that each state is the first of every third round.
            for state in STATES[number % 3 :] + STATES[: number % 3]:
                with in_state(arguments, server, client, state):
                    before_s = peers.process_cpu_s(server.process.pid)
                    drive(arguments, server.port)
                    spent_us = (peers.process_cpu_s(server.process.pid) - before_s) * 1e6
                figures[state].append(spent_us / arguments.requests)
            print(f"round {number + 1} of {arguments.rounds} done", file=sys.stderr)
    return figures


def main():
    arguments = parse_arguments()
    print(
        f"SET, pipeline {arguments.pipeline}, {arguments.clients} clients, {arguments.data_size}-byte values, "
        f"{arguments.keyspace} keys, {arguments.rounds} rounds; CPU us/op: median (min-max); ratio to off"
    )
    print(f"{'peer':<16} {'journal':<8} {'CPU us/op':>9} {'(spread)':>17} {'ratio':>7} {'(spread)':>15}")
    for name, command in arguments.peer:
        with peers.Server(name, command + " --enable-debug-command yes", arguments.server_cpus) as server:
            figures = measure(arguments, server)
        for state in STATES:
            print(f"{name:<16} {state:<8} {peers.columns(figures[state], figures['off'])}")


if __name__ == "__main__":
    peers.run(main)
