#!/usr/bin/env python3
"""Cost of an operation by stage: the kernel, the parser, the shard's gate and others.

    python3 benches/stages.py --peer 'pantala=target/release/pantala --port {port} --save "" --workers 1 --shards 40'

Makes two measurements of GET and SET, each at pipeline 1 and 30:

1. CPU time per operation, in the kernel and outside. The server runs on its own CPU, and
   redis-benchmark is the client.
2. Instructions per operation and function, under callgrind. This script is the client. Instructions
   are counted in a short run and in a longer run. The difference excludes the start and the end of
   the server.

The tables FUNCTIONS and FILES in this script assign each function to a stage or to the row
`unassigned`. The CPU time outside the kernel is divided among the stages in proportion to their
instructions. This underestimates stages that wait for memory (find, copy), and overestimates stages
that compute (parse).

callgrind does not support io_uring. The instructions of the event loop are therefore those of
epoll, even if the first measurement used io_uring. Needs valgrind, redis-benchmark, and a build
that keeps its function names (`cargo build --release`). Other load on the host changes the CPU
times, but not the numbers of instructions. At the end, also after Ctrl-C, the script stops all
processes that it has started. Needs only Python's standard library.
"""

import argparse
import collections
import os
import re
import shutil
import statistics
import tempfile

import cpu_per_op
import peers
from peers import encode, process_cpu_s, process_system_s

CASES = [("GET", 1), ("SET", 1), ("GET", 30), ("SET", 30)]
KEYS = 1000
VALUE_BYTES = 256
GET_REPLY_BYTES = len(b"$256\r\n") + VALUE_BYTES + len(b"\r\n")
SET_REPLY_BYTES = len(b"+OK\r\n")

# The stages, in the order of the printed table. The kernel is measured separately.
STAGES = {
    "loop": "event loop: poll, receive, send",
    "parse": "parse RESP",
    "window": "loop over the window and the connections",
    "place": "classify, hash, slot, prefetch",
    "gate": "acquire and release the shard",
    "find": "find the entry, expiry, access time",
    "copy": "store the value; copy and reply",
    "counters": "statistics, clock",
    "unassigned": "assigned to no stage",
}

# Patterns of function names, and their stages. The first matching pattern determines a function's
# stage. If its stage is "", or no pattern matches, the source file of the code determines the stage
# (FILES). The file may differ from the function's own file, because code is inlined. If FILES has
# no pattern for the file either, the stage is `window` for a function with the stage "", and
# `unassigned` for a function that matches no pattern.
FUNCTIONS = [
    (r"worker::run::.*(run_entry|run_ready|run_window|note_plain)", ""),
    (r"pantala_resp::parser", "parse"),
    (r"worker::window|records::|Keyspace::place|Keyspace::hint|Hint::|hash_key|key_slot|crc16|renames", "place"),
    (r"Executor|Access>?::shard|Keyspace>?::(shard|prefetch_gate|may_|is_)|ownership|engine::shard::access::Access::db", "gate"),
    (r"pantala_resp::reply|strings::|Db::set_|Db::payload|payload_of|NewString|record::|slab::|replace|dispose|heap_bytes", "copy"),
    (r"db::Db|pantala_dict|Access>?::(first_key|key)|types::access|ArgRange::of", "find"),
    (r"pantala::stats|(worker|clients|windows)::(stats|slow|metrics)|latency|Timespec|Instant|SystemTime|clock_gettime|clock::|Tally", "counters"),
    (r"pantala_runtime|pantala::reactor|clients::events|worker::Worker|pantala_session|epoll|sys::", "loop"),
    (r"^(send|recv|read|write|readv|writev|sendmsg|recvmsg|sendto|recvfrom|__libc_(send|recv|read|write)|syscall)", "loop"),
]
FILES = [
    (r"crates/resp/src/reply", "copy"),
    (r"crates/resp/", "parse"),
    (r"dispatch/window|commands/src/records|command/keys|base/src/crc16|dict/src/(hash|hint)|renames", "place"),
    (r"engine/src/shard/(executor|ownership|keyspace|access)", "gate"),
    (r"commands/src/strings|dict/src/(record|slab)", "copy"),
    (r"crates/dict/|engine/src/store/db", "find"),
    (r"server/src/stats|(clients|windows)/slow|engine/src/events/latency|std/src/time|time\.rs", "counters"),
    (r"crates/runtime/|io-uring|crates/session/|server/src/reactor|clients/events", "loop"),
]
# Names of helpers (copies, comparisons, memory). Their instructions count for their callers.
BORROWED = re.compile(r"^(__?mem|memcpy|memmove|memset|memcmp|bcmp|__bcmp|_?mi_|malloc|free|calloc|realloc|__rust|__rdl|__rg)|GlobalAlloc")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="append", required=True, metavar="NAME=COMMAND", help="one: builds of Pantala have these functions")
    parser.add_argument("--operations", type=int, default=30_000, help="of callgrind's shorter run; the longer has three times as many")
    parser.add_argument("--rounds", type=int, default=3, help="of the measurement of CPU time; medians count")
    parser.add_argument("--requests", type=int, default=100_000, help="operations of a round at pipeline 1; ten times as many at 30")
    parser.add_argument("--keyspace", type=int, default=1_000_000, help="keys of the measurement of CPU time")
    parser.add_argument("--functions", type=int, default=0, metavar="N", help="also show the N most expensive functions of each stage")
    parser.add_argument("--server-cpus", default="0")
    parser.add_argument("--client-cpus", default="1")
    arguments = peers.parse(parser)
    if len(arguments.peer) != 1:
        parser.error("one --peer")
    # `drive` of cpu_per_op needs these further settings.
    arguments.clients, arguments.data_size, arguments.client_threads, arguments.login = 50, VALUE_BYTES, 0, []
    return arguments


def need_tools():
    for tool, package in [("valgrind", "valgrind"), ("redis-benchmark", "redis-tools")]:
        if shutil.which(tool) is None:
            raise RuntimeError(f"{tool} is not installed: on Debian and Ubuntu the package {package} has it")


def stage_of(function, file):
    for pattern, stage in FUNCTIONS:
        if re.search(pattern, function):
            if stage:
                return stage
            return stage_of_file(file) or "window"
    return stage_of_file(file) or "unassigned"


def stage_of_file(file):
    return next((stage for pattern, stage in FILES if re.search(pattern, file)), None)


def read_profile(lines):
    """Returns the instructions in a callgrind file by (function, file). Those of helpers count for
    their callers."""
    names = {"file": {}, "function": {}}
    costs = collections.Counter()
    file = function = callee = ""
    is_call = False

    def name_of(kind, text):
        found = re.match(r"\((\d+)\)(?: (.*))?", text)
        if found is None:
            return text
        if found[2] is not None:
            names[kind][found[1]] = found[2]
        return names[kind][found[1]]

    for line in lines:
        key, equals, rest = line.rstrip("\n").partition("=")
        if equals and key in ("fl", "fi", "fe"):
            file = name_of("file", rest)
        elif equals and key == "fn":
            function = name_of("function", rest)
        elif equals and key == "cfn":
            callee = name_of("function", rest)
        elif equals and key in ("cfi", "cfl"):
            name_of("file", rest)
        elif equals and key == "calls":
            is_call = True
        elif re.match(r"[+\-*0-9]\S* \d+$", line):
            cost = int(line.split()[1])
            is_borrowed = BORROWED.search(function)
            if is_call:
                if BORROWED.search(callee) and not is_borrowed:
                    costs[function, file] += cost
            elif not is_borrowed:
                costs[function, file] += cost
            is_call = False
    return costs


def request(test, number):
    key = b"key:%012d" % (number % KEYS)
    return encode("GET", key) if test == "GET" else encode("SET", key, b"v" * VALUE_BYTES)


def profile(command, test, pipeline, operations):
    """Returns the instructions of a server that runs `operations` operations, from the start of the
    server to its end."""
    with tempfile.NamedTemporaryFile() as out:
        under = f"valgrind --tool=callgrind --callgrind-out-file={out.name} {command} --io-backend epoll --hz 1 --pin-threads no"
        with peers.Server("callgrind", under) as server:
            client = server.connect()
            for number in range(KEYS):
                client.sendall(request("SET", number))
                peers.receive(client, SET_REPLY_BYTES)
            reply_bytes = GET_REPLY_BYTES if test == "GET" else SET_REPLY_BYTES
            for first in range(0, operations, pipeline):
                client.sendall(b"".join(request(test, number * 7) for number in range(first, first + pipeline)))
                peers.receive(client, reply_bytes * pipeline)
            client.close()
        with open(out.name, encoding="utf-8", errors="replace") as lines:
            costs = read_profile(lines)
    if not costs:
        raise RuntimeError("callgrind wrote nothing: did the server exit normally?")
    return costs


def instructions(arguments, test, pipeline):
    """Returns the instructions per operation by (function, file)."""
    command, count = arguments.peer[0][1], arguments.operations
    longer = profile(command, test, pipeline, 3 * count)
    longer.subtract(profile(command, test, pipeline, count))
    return {place: cost / (2 * count) for place, cost in longer.items() if cost}


def cpu_ns(arguments):
    """Returns, for each (test, pipeline), a list with one element per round: the CPU time per
    operation in ns, as (in total, in the kernel)."""
    results = collections.defaultdict(list)
    name, command = arguments.peer[0]
    for _ in range(arguments.rounds):
        with peers.Server(name, command, arguments.server_cpus) as server:
            server.wait_ready()
            cpu_per_op.drive(arguments, name, server.port, "set", 30, max(3 * arguments.keyspace, 50_000))
            pid = server.process.pid
            for test, pipeline in CASES:
                requests = arguments.requests * (1 if pipeline == 1 else 10)
                before, system_before = process_cpu_s(pid), process_system_s(pid)
                cpu_per_op.drive(arguments, name, server.port, test.lower(), pipeline, requests)
                spent, system = process_cpu_s(pid) - before, process_system_s(pid) - system_before
                results[test, pipeline].append((spent * 1e9 / requests, min(system, spent) * 1e9 / requests))
    return results


def by_stage(costs):
    stages = collections.Counter({stage: 0 for stage in STAGES})
    for (function, file), cost in costs.items():
        stages[stage_of(function, file)] += cost
    return stages


def print_table(times, counts):
    print("instructions per operation, and nanoseconds: kernel and total as measured, the rest divided by instructions")
    print(f"{'stage':<12}" + "".join(f"{test + ', pipeline ' + str(pipeline):>24}" for test, pipeline in CASES))
    split = {}
    for case in CASES:
        total = statistics.median(total for total, _ in times[case])
        kernel = statistics.median(kernel for _, kernel in times[case])
        split[case] = (total, kernel, sum(counts[case].values()))
    print(f"{'kernel':<12}" + "".join(f"{'-':>12}{split[case][1]:>9,.0f} ns" for case in CASES))
    for stage in STAGES:
        row = f"{stage:<12}"
        for case in CASES:
            total, kernel, all_instructions = split[case]
            share = counts[case][stage] / all_instructions
            row += f"{counts[case][stage]:>12,.0f}{share * (total - kernel):>9,.0f} ns"
        print(row)
    print(f"{'all':<12}" + "".join(f"{split[case][2]:>12,.0f}{split[case][0]:>9,.0f} ns" for case in CASES))
    print("\nunassigned: " + ", ".join(f"{100 * counts[case]['unassigned'] / split[case][2]:.1f}%" for case in CASES) + " of instructions")
    around = [peers.spread([total for total, _ in times[case]], 0)[1] for case in CASES]
    print("all, ns, minimum and maximum of the rounds: " + ", ".join(around))
    for stage, what in STAGES.items():
        print(f"  {stage:<12}{what}")


def print_functions(costs, count):
    for stage in STAGES:
        functions = collections.Counter()
        for (function, file), cost in costs.items():
            if stage_of(function, file) == stage:
                functions[function, os.path.join(*file.split("/")[-3:]) if file else ""] += cost
        for (function, file), cost in functions.most_common(count):
            print(f"  {stage:<12}{cost:>8.1f}  {function[:90]}  {file}")


def main():
    need_tools()
    arguments = parse_arguments()
    costs = {case: instructions(arguments, *case) for case in CASES}
    times = cpu_ns(arguments)
    print_table(times, {case: by_stage(costs[case]) for case in CASES})
    if arguments.functions:
        for test, pipeline in CASES:
            print(f"\n{test}, pipeline {pipeline}")
            print_functions(costs[test, pipeline], arguments.functions)


if __name__ == "__main__":
    peers.run(main)
