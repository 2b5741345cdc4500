#!/usr/bin/env python3
"""CPU time per operation of servers that speak RESP, head to head.

Each round starts every peer in turn, pinned to one set of CPUs, drives it with redis-benchmark
pinned to another, and stops it. Rounds are interleaved (peer A, peer B, peer A, ...), so that whatever
else the host does hits all alike. The CPU time is the whole process's, all threads, user and system, read from its
own clock in nanoseconds before and after each run.

    python3 benches/cpu_per_op.py --rounds 5 --pipeline 1,30 --test get,set --data-size 256 \\
        --clients 50 --requests 300000 \\
        --peer 'redis=redis-server --port {port} --save "" --appendonly no' \\
        --peer 'pantala=target/release/pantala --port {port} --workers 1 --shards 1' \\
        --peer 'floor=target/release/pantala-bench floor --port {port}'

{port} is replaced by a free port. Ratios are medians over rounds, against the first peer.
Everything started is stopped again, on Ctrl-C too. Python's standard library suffices.
"""

import argparse
import random
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

START_WAIT_S = 20
STOP_WAIT_S = 10


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", action="append", required=True, metavar="NAME=COMMAND")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--test", default="get,set", help="redis-benchmark's tests, by comma")
    parser.add_argument("--pipeline", default="1,30", help="pipeline depths, by comma")
    parser.add_argument("--data-size", type=int, default=256, help="bytes of a value")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--requests", type=int, default=300_000, help="operations of one run at pipeline 1")
    parser.add_argument("--requests-pipelined", type=int, default=3_000_000, help="the same at greater depths")
    parser.add_argument(
        "--keyspace",
        type=int,
        default=1_000_000,
        help="keys in use; few of them stay in the CPU's caches and flatter every server with a store",
    )
    parser.add_argument("--server-cpus", default="0", help="taskset list for the server")
    parser.add_argument("--client-cpus", default="1", help="taskset list for redis-benchmark")
    parser.add_argument("--client-threads", type=int, default=0, help="redis-benchmark --threads")
    arguments = parser.parse_args()
    arguments.peer = [peer.split("=", 1) for peer in arguments.peer]
    if any(len(peer) != 2 for peer in arguments.peer):
        parser.error("a peer is NAME=COMMAND")
    return arguments


def free_port():
    while True:
        port = random.randrange(20_001, 32_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


def process_cpu_s(pid):
    """All threads of the process, the ended ones too: the kernel numbers a process's clock so."""
    return time.clock_gettime((~pid << 3) | 2)


class Server:
    def __init__(self, name, command, cpus):
        self.name = name
        self.port = free_port()
        words = shlex.split(command.replace("{port}", str(self.port)))
        self.output = tempfile.TemporaryFile()
        # A session of its own: a terminal's Ctrl-C then reaches this script alone, which stops the server in order.
        self.process = subprocess.Popen(
            ["taskset", "-c", cpus, *words],
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait_ready(self):
        deadline = time.monotonic() + START_WAIT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as client:
                    client.settimeout(1)
                    client.sendall(b"PING\r\n")
                    if client.recv(7).startswith(b"+PONG"):
                        return
            except OSError:
                time.sleep(0.02)
        self.output.seek(0)
        said = self.output.read().decode(errors="replace")[-2000:]
        raise RuntimeError(f"{self.name} doesn't answer on port {self.port}:\n{said}")

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_WAIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.output.close()


def drive(arguments, port, test, pipeline, requests):
    """One run of redis-benchmark; returns its operations per second."""
    command = [
        "taskset", "-c", arguments.client_cpus, "redis-benchmark", "-h", "127.0.0.1", "-p", str(port),
        "-t", test, "-n", str(requests), "-c", str(arguments.clients), "-P", str(pipeline),
        "-d", str(arguments.data_size), "-r", str(arguments.keyspace), "--csv",
    ]  # fmt: skip
    if arguments.client_threads:
        command += ["--threads", str(arguments.client_threads)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    rows = [row for row in done.stdout.splitlines() if row.startswith('"') and not row.startswith('"test"')]
    if done.returncode != 0 or len(rows) != 1:
        raise RuntimeError(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")
    return float(rows[0].split(",")[1].strip('"'))


def measure(arguments):
    """(test, pipeline, peer) -> list of (CPU microseconds per operation, operations per second)."""
    results = {}
    tests = arguments.test.split(",")
    pipelines = [int(depth) for depth in arguments.pipeline.split(",")]
    for round_number in range(arguments.rounds):
        for name, command in arguments.peer:
            server = Server(name, command, arguments.server_cpus)
            try:
                server.wait_ready()
                # Random keys, three times as many as there are: 95% exist then. It warms both sides, too.
                drive(arguments, server.port, "set", 30, max(3 * arguments.keyspace, 50_000))
                for test in tests:
                    for pipeline in pipelines:
                        requests = arguments.requests if pipeline == 1 else arguments.requests_pipelined
                        before = process_cpu_s(server.process.pid)
                        per_second = drive(arguments, server.port, test, pipeline, requests)
                        spent_us = (process_cpu_s(server.process.pid) - before) * 1e6
                        results.setdefault((test, pipeline, name), []).append((spent_us / requests, per_second))
            finally:
                server.stop()
        print(f"round {round_number + 1} of {arguments.rounds} done", file=sys.stderr)
    return results


def print_table(arguments, results):
    first = arguments.peer[0][0]
    print(
        f"{arguments.clients} clients, {arguments.data_size}-byte values, {arguments.keyspace} keys, "
        f"{arguments.rounds} rounds; CPU us/op: median (least-most); ratio to {first} in the same round"
    )
    print(f"{'test':<12} {'peer':<22} {'CPU us/op':>9} {'(spread)':>17} {'ratio':>7} {'(spread)':>15} {'ops/s':>11}")
    for test in arguments.test.split(","):
        for pipeline in arguments.pipeline.split(","):
            base = results[test, int(pipeline), first]
            for name, _ in arguments.peer:
                runs = results[test, int(pipeline), name]
                cpu = [run[0] for run in runs]
                ratios = [run[0] / other[0] for run, other in zip(runs, base)]
                rate = statistics.median(run[1] for run in runs)
                print(
                    f"{test + ' p' + pipeline:<12} {name:<22} {statistics.median(cpu):>9.3f} "
                    f"{f'({min(cpu):.3f}-{max(cpu):.3f})':>17} {statistics.median(ratios):>7.3f} "
                    f"{f'({min(ratios):.3f}-{max(ratios):.3f})':>15} {rate:>11,.0f}"
                )


def main():
    arguments = parse_arguments()
    # SIGTERM stops as Ctrl-C does, so that `finally` runs.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        results = measure(arguments)
    except KeyboardInterrupt:
        print("interrupted; the servers are stopped", file=sys.stderr)
        return 130
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    print_table(arguments, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
