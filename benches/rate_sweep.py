#!/usr/bin/env python3
"""CPU time per operation of servers at fixed rates, below saturation.

Every peer runs for the whole time, pinned to one CPU at real-time priority, and is driven in turn
by `pantala-bench load --rate-limiting` on another: one GET at a time on each connection, due at
fixed times. Rounds are interleaved, so that other load on the host affects all alike.

    python3 benches/rate_sweep.py --rates 10000,30000,60000 --rounds 5 \\
        --peer 'redis=redis-server --port {port} --save ""' \\
        --peer 'pantala=target/release/pantala --port {port} --save "" --workers 1'

Prints, for each rate and peer: CPU time, its ratio to the first peer in the same round, voluntary
context switches per operation, and the p99 latency; all are medians over the rounds. Needs root, for
`chrt`; Python's standard library suffices.
"""

import argparse
import json
import os
import shlex
import socket
import statistics
import subprocess
import tempfile
import time


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def tasks(pid, name):
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/{name}", encoding="ascii") as file:
            yield file.read()


def usage(pid):
    """Returns the CPU time in ns and the voluntary context switches of all threads."""
    cpu_ns = sum(int(text.split()[0]) for text in tasks(pid, "schedstat"))
    lines = (line for text in tasks(pid, "status") for line in text.splitlines())
    switches = sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return cpu_ns, switches


def wait_for(port):
    for _ in range(100):
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"no server on port {port}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="append", required=True, metavar="NAME=COMMAND")
    parser.add_argument("--rates", default="5000,10000,20000,30000,60000", help="operations per second, by comma")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=2, help="of each measurement")
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--data-size", type=int, default=256)
    parser.add_argument("--server-cpu", default="0")
    parser.add_argument("--client-cpu", default="1")
    parser.add_argument("--bench", default="target/release/pantala-bench")
    options = parser.parse_args()
    rates = [int(rate) for rate in options.rates.split(",")]
    peers = [peer.split("=", 1) for peer in options.peer]
    bench = os.path.abspath(options.bench)

    def load(port, *arguments):
        command = ["chrt", "-f", "4", "taskset", "-c", options.client_cpu, bench, "load", "--port", str(port)]
        command += ["--threads", "1", "--data-size", str(options.data_size), "--key-maximum", str(options.keys)]
        subprocess.run(command + list(arguments), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    running, figures = {}, {}
    try:
        for name, command in peers:
            port = free_port()
            pinned = ["chrt", "-f", "5", "taskset", "-c", options.server_cpu]
            words = shlex.split(command.replace("{port}", str(port)))
            process = subprocess.Popen(pinned + words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            running[name] = (process, port)
            wait_for(port)
            load(port, "--ratio", "1:0", "--key-pattern", "P:P", "--requests", "allkeys", "--pipeline", "30")
        with tempfile.TemporaryDirectory() as folder:
            result = os.path.join(folder, "load.json")
            for _ in range(options.rounds):
                for rate in rates:
                    for name, (process, port) in running.items():
                        before = usage(process.pid)
                        load(port, "--ratio", "0:1", "--clients", str(options.clients), "--distinct-client-seed",
                             "--test-time", str(options.seconds), "--json-out-file", result,
                             "--rate-limiting", str(max(1, rate // options.clients)))
                        after = usage(process.pid)
                        with open(result, encoding="utf-8") as file:
                            report = json.load(file)
                        operations = report["operations"]
                        measured = ((after[0] - before[0]) / operations / 1000, (after[1] - before[1]) / operations,
                                    report["latency"]["p99_us"])
                        figures.setdefault((rate, name), []).append(measured)
    finally:
        for process, _ in running.values():
            process.kill()
            process.wait()
    print(f"{'rate/s':>8}  {'peer':<16}{'CPU us/op':>10}{'ratio':>7}{'switches/op':>13}{'p99 us':>10}")
    first = peers[0][0]
    for rate in rates:
        for name, _ in peers:
            rounds = figures[rate, name]
            ratio = statistics.median(own[0] / base[0] for own, base in zip(rounds, figures[rate, first]))
            cpu, switches, p99 = (statistics.median(values) for values in zip(*rounds))
            print(f"{rate:>8}  {name:<16}{cpu:>10.2f}{ratio:>7.2f}{switches:>13.2f}{p99:>10.0f}")


if __name__ == "__main__":
    main()
