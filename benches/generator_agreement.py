#!/usr/bin/env python3
"""Compares `pantala-bench load` with redis-benchmark on one redis-server, in rounds.

The server runs on CPU 0, and the generators run on CPU 1. Prints throughput, latency, the server's
CPU time per operation, and the number of operations per read of the server. The last number shows
whether a generator sends its pipelines whole. At the end, the script divides each result of `load`
by that of redis-benchmark in the same round, and prints the median (min-max) of these ratios.

    chrt -f 5 python3 benches/generator_agreement.py --rounds 4

`load` runs three times: with its defaults, with --distinct-client-seed, and with that option at the
rate that redis-benchmark has just reached. By default all clients draw the same sequence of keys,
as in memtier_benchmark. The equal rate is needed because a faster generator makes longer queues,
and redis-benchmark can't limit its rate. At a fixed rate, latency counts from the time when an
operation was due. All started processes are stopped at the end. Needs only Python's standard
library.
"""

import argparse
import csv
import json
import os
import random
import re
import statistics
import subprocess
import tempfile
import time

READY_WAIT_S = 10
PEER = "redis-benchmark"
KEYS = 100_000
CLIENTS = 50
DATA_BYTES = 256


def on_cpu(cpu, words):
    return ["taskset", "-c", str(cpu), *words]


def ask(port, *words):
    return subprocess.run(["redis-cli", "-p", str(port), *words], capture_output=True, text=True).stdout


def cpu_us(pid):
    tasks = f"/proc/{pid}/task"
    return sum(int(open(f"{tasks}/{task}/schedstat").read().split()[0]) for task in os.listdir(tasks)) / 1e3


def reads(port):
    return int(re.search(r"total_reads_processed:(\d+)", ask(port, "INFO", "stats"))[1])


def load(bench, port, prefix, minimum, maximum, more):
    """Runs `load` once. Returns operations per second, operations, and p50 and p99 in
    microseconds."""
    with tempfile.NamedTemporaryFile() as out:
        words = [bench, "load", "-p", str(port), "-t", "1", "-c", str(CLIENTS), "-d", str(DATA_BYTES)]
        words += ["--key-prefix", prefix, "--key-minimum", str(minimum), "--key-maximum", str(maximum)]
        subprocess.run(on_cpu(1, [*words, "--json-out-file", out.name, *more]), check=True, capture_output=True)
        result = json.load(open(out.name))
    latency = result["latency"]
    return result["operations_per_s"], result["operations"], latency["p50_us"], latency["p99_us"]


def redis_benchmark(port, pipeline, requests):
    words = ["redis-benchmark", "-p", str(port), "-c", str(CLIENTS), "-P", str(pipeline), "-n", str(requests)]
    words += ["-r", str(KEYS), "--csv", "GET", "key:__rand_int__"]
    out = subprocess.run(on_cpu(1, words), check=True, capture_output=True, text=True).stdout
    row = dict(zip(*csv.reader(out.splitlines()[-2:])))
    latency_us = [float(row[name]) * 1e3 for name in ("p50_latency_ms", "p99_latency_ms")]
    return float(row["rps"]), requests, *latency_us


def fill(bench, port):
    """Writes the keys 0 to 199,999 with twelve digits, as redis-benchmark formats them. Each
    generator reads half of these keys."""
    write = ["--ratio", "1:0", "--key-pattern", "P:P", "-n", "allkeys", "--pipeline", "30"]
    load(bench, port, "key:000000", KEYS, 2 * KEYS - 1, write)
    for digits in range(1, 6):
        first = 0 if digits == 1 else 10 ** (digits - 1)
        load(bench, port, "key:" + "0" * (12 - digits), first, 10**digits - 1, write)


def one_round(arguments, port, pid, pipeline, requests, seen):
    """Runs each generator once, and adds the results to `seen`."""
    read = ["--ratio", "0:1", "--pipeline", str(pipeline), "-n", str(requests // CLIENTS)]
    distinct = [*read, "--distinct-client-seed"]

    def ours(more):
        return load(arguments.bench, port, "key:000000", KEYS, 2 * KEYS - 1, more)

    reached = 0
    runs = {
        PEER: lambda: redis_benchmark(port, pipeline, requests),
        "load": lambda: ours(read),
        "load, distinct": lambda: ours(distinct),
        "load, same rate": lambda: ours([*distinct, "--rate-limiting", str(max(1, round(reached / CLIENTS)))]),
    }
    for name, run in runs.items():
        cpu_before, reads_before = cpu_us(pid), reads(port)
        rate, operations, p50_us, p99_us = run()
        cpu, found = (cpu_us(pid) - cpu_before) / operations, operations / (reads(port) - reads_before)
        if name == PEER:
            reached = rate
        seen.setdefault((pipeline, name), []).append((rate, cpu, p50_us, p99_us))
        print(
            f"{name:16} pipeline {pipeline:<3}{rate:>10.0f}/s, server {cpu:.2f} us/op, p50 {p50_us:.0f} us,"
            f" p99 {p99_us:.0f} us, {found:.2f} ops/read",
            flush=True,
        )


def summarize(seen):
    print(f"\nratio to {PEER} in the same round: median (min-max)")
    print(f"{'':29}" + "".join(f"{name:>20}" for name in ("ops/s", "server CPU/op", "p50", "p99")))
    for (pipeline, name), rounds in seen.items():
        if name == PEER:
            continue
        cells = []
        for column in range(4):
            ratios = [one[column] / other[column] for one, other in zip(rounds, seen[pipeline, PEER])]
            cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})")
        print(f"{name:16} pipeline {pipeline:<4}" + "".join(f"{cell:>20}" for cell in cells))


def measure(arguments, port, pid):
    seen = {}
    for _ in range(arguments.rounds):
        for pipeline, requests in ((1, arguments.requests), (30, arguments.requests_pipelined)):
            one_round(arguments, port, pid, pipeline, requests, seen)
    summarize(seen)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default="target/release/pantala-bench")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--requests", type=int, default=150_000, help="of one run at pipeline 1")
    parser.add_argument("--requests-pipelined", type=int, default=2_000_000, help="of one run at pipeline 30")
    arguments = parser.parse_args()
    port = random.randint(21_000, 29_000)
    words = ["redis-server", "--port", str(port), "--save", "", "--bind", "127.0.0.1"]
    server = subprocess.Popen(on_cpu(0, words), stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + READY_WAIT_S
        while "PONG" not in ask(port, "PING"):
            if time.monotonic() > deadline:
                raise SystemExit("redis-server doesn't answer")
            time.sleep(0.1)
        fill(arguments.bench, port)
        measure(arguments, port, server.pid)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
