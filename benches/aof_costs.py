#!/usr/bin/env python3
"""CPU time of each kind of thread per SET while the append-only file is written.

    python3 benches/aof_costs.py --dir /dev/shm --rounds 3 --row 1,10240,25 --row 2,256,30 \\
        --peer 'pantala=target/release/pantala --port {port} --save "" --workers {workers} --dir {dir}'

A row is the number of workers, the length of a value in bytes, the pipeline, and optionally the
delay before each write to the file in milliseconds (`DEBUG AOF-FLUSH-SLEEP`, which makes the disk
slow). For each row, --clients connections send SETs with `appendfsync everysec` for --seconds, after
an unmeasured load of a second. Rewrites of the file are off. The rounds alternate between the rows.
With --without, each row is also measured with `appendonly no`, to show what recording costs.

Prints for each row, as medians over the rounds: operations per second; microseconds of CPU time per
operation of the workers, the journal's thread, the thread that writes the file, the other threads,
and the clients; epochs per second, counted as the times when the journal's thread started to wait, divided
by two; MB/s that the clients' values have; ns for each byte of a value that the writing thread
neither ran nor waited for a CPU (if the disk is the bottleneck, the disk's time for a byte); and
`aof_buffer_length` in MB at the end of the load; and the CPUs that other processes and the kernel's
threads used meanwhile. The first line has the bandwidth of direct writes
of 4 MiB in --dir, and the time of a sync after each second of such writes.

With --results, writes the values of all rounds to this JSON file. {port} is replaced by a free port,
{dir} by an empty folder and {workers} by the row's number of workers. All started processes are
stopped at the end, also after Ctrl-C. Needs only Python's standard library.
"""

import json
import mmap
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import peers

KINDS = {"pantala-worker": "workers", "pantala-journal": "journal", "pantala-aof": "writer"}
# The column, and the digits after the point.
COLUMNS = {"ops_s": 0, "workers": 3, "journal": 3, "writer": 3, "rest": 3, "client": 3, "epochs_s": 0, "mb_s": 0, "idle_ns": 3, "behind_mb": 0, "others": 2}
DIRECT_BYTES = 4 << 20
DIRECT_S = 3
# With --quiet: how often a load is repeated, and the pause before each repetition.
REPETITIONS_MAX = 6
PAUSE_S = 2
KEYS_BYTES = 200 << 20


def parse_row(text):
    row = [int(number) for number in text.split(",")]
    return tuple(row) if len(row) == 4 else (*row, 0)


def parse_arguments():
    parser = peers.parser(__doc__)
    parser.add_argument("--bench", default="target/release/pantala-bench", help="the load generator")
    parser.add_argument("--row", action="append", required=True, type=parse_row, metavar="WORKERS,BYTES,PIPELINE[,DELAY]")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=3, help="of each load")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without", action="store_true", help="measure also without the file")
    parser.add_argument("--server-cpus", help="taskset list for the server")
    parser.add_argument("--load-cpus", help="CPUs of the load generator")
    parser.add_argument("--dir", help="parent of the servers' folders")
    parser.add_argument("--quiet", type=float, default=0, metavar="CPUS", help="repeat a load during which other processes used more than this")
    parser.add_argument("--results", help="JSON file for the values of all rounds")
    return peers.parse(parser)


def direct_writes(folder):
    """Returns the MB/s of direct writes, and the milliseconds of the slowest sync."""
    buffer = mmap.mmap(-1, DIRECT_BYTES)
    buffer.write(os.urandom(DIRECT_BYTES))
    path = os.path.join(folder, "direct")
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
    written, writing_s, syncs_s = 0, 0.0, []
    try:
        while writing_s < DIRECT_S:
            begin = time.monotonic()
            written += os.pwrite(file, buffer, written)
            writing_s += time.monotonic() - begin
            if writing_s > len(syncs_s) + 1:
                begin = time.monotonic()
                os.fdatasync(file)
                syncs_s.append(time.monotonic() - begin)
    finally:
        os.close(file)
        os.remove(path)
    return written / writing_s / 1e6, max(syncs_s) * 1e3


def threads(pid):
    """Returns the seconds on a CPU, the seconds in the run queue, and the number of waits, by kind
    of thread."""
    sums = {}
    for thread in os.listdir(f"/proc/{pid}/task"):
        folder = f"/proc/{pid}/task/{thread}"
        try:
            with open(f"{folder}/comm", encoding="utf-8") as text:
                name = text.read()
            with open(f"{folder}/schedstat", encoding="utf-8") as text:
                cpu_ns, queue_ns, _ = map(int, text.read().split())
            with open(f"{folder}/status", encoding="utf-8") as text:
                waits = next(int(line.split()[1]) for line in text if line.startswith("voluntary_ctxt_switches"))
        except OSError:
            continue
        kind = next((kind for start, kind in KINDS.items() if name.startswith(start)), "rest")
        old = sums.get(kind, (0, 0, 0))
        sums[kind] = (old[0] + cpu_ns / 1e9, old[1] + queue_ns / 1e9, old[2] + waits)
    return sums


def busy_s():
    """Returns the seconds for which all CPUs were busy."""
    with open("/proc/stat", encoding="utf-8") as stat:
        user, nice, system, _, _, irq, softirq, *_ = map(int, stat.readline().split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def load(arguments, port, row, *amount):
    """Runs a load. Returns its operations per second, its operations, and its CPU seconds."""
    _, value_bytes, pipeline, _ = row
    keys = max(1000, KEYS_BYTES // max(value_bytes, 200))
    words = [arguments.bench, "load", "-p", port, "-t", 1, "-c", arguments.clients, "-d", value_bytes, "--ratio", "1:0"]
    words += ["--pipeline", pipeline, "--key-maximum", keys, "--distinct-client-seed", *amount]
    words += ["--cpus", arguments.load_cpus] if arguments.load_cpus else []
    with tempfile.NamedTemporaryFile() as results:
        words += ["--json-out-file", results.name]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([str(word) for word in words], stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        with open(results.name, encoding="utf-8") as written:
            outcome = json.load(written)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return outcome["operations_per_s"], outcome["operations"], cpu_s


def measure(arguments, command, row, has_file):
    workers, value_bytes, _, delay_ms = row
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        command = command.replace("{dir}", folder).replace("{workers}", str(workers))
        command += " --enable-debug-command yes --auto-aof-rewrite-percentage 0 --appendfsync everysec"
        command += f" --appendonly {'yes' if has_file else 'no'}"
        with peers.Server("", command, arguments.server_cpus) as server:
            client, pid = peers.Client(server), server.process.pid
            load(arguments, server.port, row, "-n", "allkeys", "--key-pattern", "P:P")
            client.call("DEBUG", "AOF-FLUSH-SLEEP", delay_ms * 1000)
            load(arguments, server.port, row, "--test-time", 1)
            for _ in range(REPETITIONS_MAX):
                before, busy, begin = threads(pid), busy_s(), time.monotonic()
                rate, operations, client_s = load(arguments, server.port, row, "--test-time", arguments.seconds)
                after, elapsed_s = threads(pid), time.monotonic() - begin
                own_s = client_s + sum(times[0] for times in after.values()) - sum(times[0] for times in before.values())
                others = (busy_s() - busy - own_s) / elapsed_s
                if not arguments.quiet or others <= arguments.quiet:
                    break
                time.sleep(PAUSE_S)
            info = dict(line.split(":", 1) for line in client.call("INFO", "persistence").decode().split("\r\n") if ":" in line)
    spent = {
        kind: [now - then for now, then in zip(values, before.get(kind, (0, 0, 0)))] for kind, values in after.items()
    }
    figures = {kind: spent.get(kind, [0])[0] * 1e6 / operations for kind in ("workers", "journal", "writer", "rest")}
    cpu_s, queue_s, _ = spent.get("writer", [elapsed_s, 0, 0])
    figures["ops_s"] = rate
    figures["client"] = client_s * 1e6 / operations
    figures["epochs_s"] = spent.get("journal", [0, 0, 0])[2] / 2 / elapsed_s
    figures["mb_s"] = rate * value_bytes / 1e6
    figures["idle_ns"] = (elapsed_s - cpu_s - queue_s) * 1e9 / (operations * value_bytes)
    figures["others"] = others
    figures["behind_mb"] = int(info.get("aof_buffer_length", 0)) / 1e6
    return figures


def main():
    arguments = parse_arguments()
    bandwidth, sync_ms = direct_writes(arguments.dir or tempfile.gettempdir())
    print(f"direct writes {bandwidth:.0f} MB/s, slowest sync {sync_ms:.1f} ms; {arguments.rounds} rounds of {arguments.seconds} s, {arguments.clients} clients")
    print("| peer | workers, bytes, pipeline, delay ms | file | " + " | ".join(COLUMNS) + " |\n|" + " --- |" * (len(COLUMNS) + 3))
    cases = [(name, command, row, has_file) for row in arguments.row for has_file in ([True, False] if arguments.without else [True]) for name, command in arguments.peer]
    rounds = {}
    for number in range(arguments.rounds):
        for name, command, row, has_file in cases:
            rounds.setdefault((name, row, has_file), []).append(measure(arguments, command, row, has_file))
        print(f"round {number + 1} of {arguments.rounds} done", file=sys.stderr)
    for (name, row, has_file), taken in rounds.items():
        texts = []
        for column, digits in COLUMNS.items():
            middle, around = peers.spread([figures[column] for figures in taken], digits)
            texts.append(f"{middle} {around}")
        print(f"| {name} | {', '.join(map(str, row))} | {'yes' if has_file else 'no'} | {' | '.join(texts)} |")
    if arguments.results:
        rows = [
            {"peer": name, "row": row, "file": has_file, "median": {column: statistics.median(figures[column] for figures in taken) for column in COLUMNS}, "rounds": taken}
            for (name, row, has_file), taken in rounds.items()
        ]
        with open(arguments.results, "w", encoding="utf-8") as file:
            json.dump({"direct_mb_s": bandwidth, "sync_ms": sync_ms, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    peers.run(main)
