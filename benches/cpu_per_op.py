#!/usr/bin/env python3
"""CPU time per operation of servers that speak RESP, compared directly.

Each round measures every peer once, one after the other. A peer is started on one set of CPUs,
driven by redis-benchmark on another set, and stopped. Over several rounds the measurements of the
peers alternate (peer A, peer B, peer A, ...), so that other load on the host affects all peers
alike. The CPU time is the user and system time of all threads of the server's process. It is read
from the process's own clock, in nanoseconds, before and after each run of redis-benchmark.

    python3 benches/cpu_per_op.py --rounds 5 --pipeline 1,30 --test get,set --data-size 256 \\
        --clients 50 --requests 300000 \\
        --peer 'redis=redis-server --port {port} --save "" --appendonly no' \\
        --peer 'pantala=target/release/pantala --port {port} --save "" --workers 1 --shards 1' \\
        --peer 'floor=target/release/pantala-bench floor --port {port}'

{port} is replaced by a free port. A ratio compares a peer with the first peer in the same round.
The table shows the median over the rounds. All started processes are stopped at the end, also after
Ctrl-C. Needs only Python's standard library.
"""

import shlex
import statistics
import subprocess
import sys

import peers


def parse_arguments():
    parser = peers.parser(__doc__)
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
        help="keys in use; few keys would stay in the CPU's caches, which makes every server look faster",
    )
    parser.add_argument("--server-cpus", default="0", help="taskset list for the server")
    parser.add_argument("--client-cpus", default="1", help="taskset list for redis-benchmark")
    parser.add_argument(
        "--login", action="append", default=[], metavar="NAME=USER:PASSWORD", help="the user of the clients of a peer"
    )
    parser.add_argument("--client-threads", type=int, default=0, help="redis-benchmark --threads")
    return peers.parse(parser)


def drive(arguments, name, port, test, pipeline, requests):
    """Runs redis-benchmark once. Returns its operations per second."""
    command = [
        "taskset", "-c", arguments.client_cpus, "redis-benchmark", "-h", "127.0.0.1", "-p", str(port),
        "-t", test, "-n", str(requests), "-c", str(arguments.clients), "-P", str(pipeline),
        "-d", str(arguments.data_size), "-r", str(arguments.keyspace), "--csv",
    ]  # fmt: skip
    login = dict(login.split("=", 1) for login in arguments.login).get(name)
    if login:
        user, password = login.split(":", 1)
        command += ["--user", user, "-a", password]
    if arguments.client_threads:
        command += ["--threads", str(arguments.client_threads)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    rows = [row for row in done.stdout.splitlines() if row.startswith('"') and not row.startswith('"test"')]
    if done.returncode != 0 or len(rows) != 1:
        raise RuntimeError(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")
    return float(rows[0].split(",")[1].strip('"'))


def measure(arguments):
    """Returns lists of (CPU microseconds per operation, operations per second) by (test, pipeline,
    peer)."""
    results = {}
    tests = arguments.test.split(",")
    pipelines = [int(depth) for depth in arguments.pipeline.split(",")]
    for round_number in range(arguments.rounds):
        for name, command in arguments.peer:
            with peers.Server(name, command, arguments.server_cpus) as server:
                server.wait_ready()
                # Sends three times as many SETs of random keys as there are keys. 95% of the keys
                # then exist. This also warms up the server and redis-benchmark.
                drive(arguments, name, server.port, "set", 30, max(3 * arguments.keyspace, 50_000))
                for test in tests:
                    for pipeline in pipelines:
                        requests = arguments.requests if pipeline == 1 else arguments.requests_pipelined
                        before = peers.process_cpu_s(server.process.pid)
                        per_second = drive(arguments, name, server.port, test, pipeline, requests)
                        spent_us = (peers.process_cpu_s(server.process.pid) - before) * 1e6
                        results.setdefault((test, pipeline, name), []).append((spent_us / requests, per_second))
        print(f"round {round_number + 1} of {arguments.rounds} done", file=sys.stderr)
    return results


def print_table(arguments, results):
    first = arguments.peer[0][0]
    print(
        f"{arguments.clients} clients, {arguments.data_size}-byte values, {arguments.keyspace} keys, "
        f"{arguments.rounds} rounds; CPU us/op: median (min-max); ratio to {first} in the same round"
    )
    print(f"{'test':<12} {'peer':<22} {'CPU us/op':>9} {'(spread)':>17} {'ratio':>7} {'(spread)':>15} {'ops/s':>11}")
    for test in arguments.test.split(","):
        for pipeline in arguments.pipeline.split(","):
            base = results[test, int(pipeline), first]
            for name, _ in arguments.peer:
                runs = results[test, int(pipeline), name]
                cpu = [run[0] for run in runs]
                rate = statistics.median(run[1] for run in runs)
                print(
                    f"{test + ' p' + pipeline:<12} {name:<22} "
                    f"{peers.columns(cpu, [run[0] for run in base])} {rate:>11,.0f}"
                )


def main():
    arguments = parse_arguments()
    print_table(arguments, measure(arguments))


if __name__ == "__main__":
    peers.run(main)
