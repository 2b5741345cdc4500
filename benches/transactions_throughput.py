#!/usr/bin/env python3
"""Cost of isolation under contention: transactions of four SETs compared with the SETs alone.

    python3 benches/transactions_throughput.py \\
        --peer 'io_uring=target/release/pantala --port {port} --save "" --workers 2 --shards 40' \\
        --peer 'epoll=target/release/pantala --port {port} --save "" --workers 2 --shards 40 --io-backend epoll'

Many clients send groups of commands: either `MULTI`, four SETs of random keys and `EXEC`, or only
the four SETs. Each client has several groups in flight. pantala-bench generates the load on the
server's CPUs. Prints groups per second and the server's CPU time per group for the two kinds of
groups, and the ratios of transactions to SETs within a round. Each peer has one server, and rounds
are interleaved. {port} is replaced by a free port. All started processes are stopped at the end,
also after Ctrl-C. Needs only Python's standard library.
"""

import json
import subprocess
import tempfile

import peers

SETS = " ; ".join(["SET __key__ __data__"] * 4)
LOADS = {"sets": SETS, "transactions": f"MULTI ; {SETS} ; EXEC"}


def parse_arguments():
    parser = peers.parser(__doc__)
    parser.add_argument("--load", default="target/release/pantala-bench", help="the generator")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2, help="of the generator")
    parser.add_argument("--pipeline", type=int, default=4, help="groups in flight for each client")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=3, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--server-cpus", default="0,1")
    return peers.parse(parser)


def measure(arguments, server, load):
    """Returns groups per second, and CPU microseconds per group."""
    with tempfile.NamedTemporaryFile() as result:
        words = [arguments.load, "load", "-p", server.port, "-t", arguments.threads]
        words += ["-c", arguments.clients // arguments.threads, "--pipeline", arguments.pipeline]
        words += ["--test-time", arguments.seconds, "-d", 64, "--key-maximum", arguments.keys]
        words += ["--distinct-client-seed", "--json-out-file", result.name, "--command", LOADS[load]]
        before = peers.process_cpu_s(server.process.pid)
        subprocess.run(list(map(str, words)), stdout=subprocess.DEVNULL, check=True)
        cpu_s = peers.process_cpu_s(server.process.pid) - before
        outcome = json.load(result)
    return outcome["operations"] / outcome["elapsed_s"], cpu_s * 1e6 / outcome["operations"]


def main():
    arguments = parse_arguments()
    servers = []
    figures = {name: {load: [] for load in LOADS} for name, _ in arguments.peer}
    try:
        for name, command in arguments.peer:
            servers.append(peers.Server(name, command, arguments.server_cpus))
            servers[-1].wait_ready()
            measure(arguments, servers[-1], "sets")
        for _ in range(arguments.rounds):
            for server in servers:
                for load in LOADS:
                    figures[server.name][load].append(measure(arguments, server, load))
    finally:
        for server in servers:
            server.stop()
    print(f"{arguments.clients} clients, {arguments.pipeline} groups of 4 SETs in flight for each, {arguments.rounds} rounds")
    print(f"{'peer':<12} {'load':<13} {'groups/s':>10} {'CPU us':>7}   to the SETs alone: {'groups/s':>8} {'':<12} {'CPU':>6}")
    for name, loads in figures.items():
        for load, rounds in loads.items():
            rates, costs = zip(*rounds)
            line = f"{name:<12} {load:<13} {peers.spread(rates, digits=0)[0]:>10} {peers.spread(costs, digits=2)[0]:>7}"
            if load != "sets":
                rate_ratios, cost_ratios = zip(*((a[0] / b[0], a[1] / b[1]) for a, b in zip(rounds, loads["sets"])))
                rate, rate_spread = peers.spread(rate_ratios, digits=2)
                cost, cost_spread = peers.spread(cost_ratios, digits=2)
                line += f"   {'':<18} {rate:>8} {rate_spread:<12} {cost:>6} {cost_spread}"
            print(line)


if __name__ == "__main__":
    peers.run(main)
