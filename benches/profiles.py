#!/usr/bin/env python3
"""CPU time of the server by function in named workloads, measured with `perf` in one round each.

    python3 benches/profiles.py transactions mset10 \\
        --server 'target/release/pantala --port {port} --save "" --workers 1 --shards 40'

Without names, runs the workloads in WORKLOADS. Prints for each workload the kernel's share of the
samples, and the server's functions with the largest shares of all samples. The server runs on CPU
0, and the generator runs on CPU 1. perf also records the loading of the keys, so the measured time
must be much longer than the loading (--test-time, --scale). Needs perf (Debian: linux-perf). Uses
the software clock, and no hardware counters.
"""

import argparse
import collections
import os
import subprocess
import tempfile

SAMPLES_PER_S = 997
WORKLOADS = (
    "dragonfly-get1 dragonfly-set1 dragonfly-get30 dragonfly-set30 elasticache enterprise flash "
    "mset10 transactions hot-key big-values many-connections mixed-types"
).split()


def samples(data):
    """Returns the number of samples by (object, function)."""
    words = ["perf", "report", "-i", data, "--stdio", "-q", "--no-children", "-g", "none", "--sort", "dso,sym", "-F", "sample,dso,sym"]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    counts = collections.Counter()
    for line in text.splitlines():
        fields = line.split(None, 3)
        if len(fields) == 4 and fields[0].isdigit():
            counts[fields[1], fields[3]] += int(fields[0])
    return counts


def short(name):
    """Returns a function's name without the paths of crates and types."""
    name = name.strip()
    return "::".join(part for part in name.replace("<", " ").replace(">", " ").split()[-1].split("::")[-2:])


def profile(options, workload, folder):
    data = os.path.join(folder, workload + ".data")
    server = f"perf record -q -e cpu-clock -F {SAMPLES_PER_S} -o {data} -- {options.server}"
    words = [options.bench, "compare", "--peer", f"server={server}", "--server-cpus", "0", "--client-cpus", "1", "--rounds", "1"]
    words += ["--test-time", str(options.test_time), "--scale", str(options.scale), "--workload", workload]
    subprocess.run([*words, "--out", os.path.join(folder, workload)], check=True, capture_output=True)
    return samples(data)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("workloads", nargs="*", default=WORKLOADS)
    options.add_argument("--server", required=True)
    options.add_argument("--bench", default="target/release/pantala-bench")
    options.add_argument("--test-time", type=int, default=8)
    options.add_argument("--scale", type=float, default=0.1)
    options.add_argument("--functions", type=int, default=6)
    options = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for workload in options.workloads or WORKLOADS:
            counts = profile(options, workload, folder)
            total = sum(counts.values())
            kernel = sum(count for (dso, _), count in counts.items() if dso == "[kernel.kallsyms]")
            own = [(count, short(name)) for (dso, name), count in counts.items() if dso != "[kernel.kallsyms]"]
            largest = ", ".join(f"{name} {100 * count / total:.0f}%" for count, name in sorted(own, reverse=True)[: options.functions])
            print(f"{workload}: {total} samples, kernel {100 * kernel / total:.0f}%; {largest}", flush=True)


if __name__ == "__main__":
    main()
