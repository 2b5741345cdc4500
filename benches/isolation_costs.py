#!/usr/bin/env python3
"""What transactions and messages cost: CPU time per operation of servers that speak RESP, head to head.

    python3 benches/isolation_costs.py --rounds 5 \\
        --peer 'redis=redis-server --port {port} --save "" --appendonly no' \\
        --peer 'pantala=target/release/pantala --port {port} --workers 1'

Three loads, each from this process, pinned to one set of CPUs while the server has another:

- transactions: each client sends MULTI, 4 SETs of random keys and EXEC in one write, waits for all six replies, and again. One operation
  is one transaction.
- sets: the same 4 SETs in one write without MULTI and EXEC. One operation is one such write.
- publish: one client publishes to --subscribers others, --publish-pipeline messages in one write. One operation is one message delivered to
  one subscriber.

Rounds are interleaved as in cpu_per_op.py; ratios are to the first peer in the same round, medians over rounds.
"""

import argparse
import os
import random
import resource
import select
import signal
import socket
import statistics
import sys

from cpu_per_op import Server, process_cpu_s

MESSAGE = b"m" * 32


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="append", required=True, metavar="NAME=COMMAND")
    parser.add_argument("--load", default="transactions,sets,publish", help="by comma")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--operations", type=int, default=60_000, help="of one run of transactions and sets")
    parser.add_argument("--keyspace", type=int, default=1_000_000)
    parser.add_argument("--data-size", type=int, default=64, help="bytes of a value")
    parser.add_argument("--subscribers", type=int, default=1000)
    parser.add_argument("--messages", type=int, default=800, help="published in one run")
    parser.add_argument("--publish-pipeline", default="1,16", help="messages in one write, by comma")
    parser.add_argument("--server-cpus", default="0", help="taskset list for the server")
    parser.add_argument("--client-cpus", default="1", help="CPUs of this process, by comma")
    arguments = parser.parse_args()
    arguments.peer = [peer.split("=", 1) for peer in arguments.peer]
    if any(len(peer) != 2 for peer in arguments.peer):
        parser.error("a peer is NAME=COMMAND")
    return arguments


def encode(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def connect(port):
    client = socket.create_connection(("127.0.0.1", port))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def receive(client, length):
    """Exactly so many bytes, which must be replies without an error."""
    got = b""
    while len(got) < length:
        part = client.recv(length - len(got))
        if not part:
            raise RuntimeError("the server closed a connection")
        got += part
    if b"-" in got:
        raise RuntimeError(f"an error came: {got[:200]!r}")
    return got


def writes(arguments, in_transaction):
    """Prepared writes, and the length of each one's answer."""
    value = b"x" * arguments.data_size
    prepared = []
    for _ in range(5000):
        keys = (b"key:%d" % random.randrange(arguments.keyspace) for _ in range(4))
        sets = b"".join(encode(b"SET", key, value) for key in keys)
        prepared.append(encode(b"MULTI") + sets + encode(b"EXEC") if in_transaction else sets)
    answer = b"+OK\r\n" * 4
    return prepared, len(b"+OK\r\n" + b"+QUEUED\r\n" * 4 + b"*4\r\n" + answer if in_transaction else answer)


def run_writes(arguments, server, in_transaction):
    prepared, answer_bytes = writes(arguments, in_transaction)
    clients = [connect(server.port) for _ in range(arguments.clients)]
    turns = arguments.operations // len(clients)
    at = 0
    before = 0.0
    # A tenth more, first, to warm both sides.
    for turn in range(-(turns // 10), turns):
        if turn == 0:
            before = process_cpu_s(server.process.pid)
        for client in clients:
            client.sendall(prepared[at % len(prepared)])
            at += 1
        for client in clients:
            receive(client, answer_bytes)
    spent = process_cpu_s(server.process.pid) - before
    for client in clients:
        client.close()
    return spent * 1e6 / (turns * len(clients))


def run_publish(arguments, server, pipeline):
    subscribe = encode(b"SUBSCRIBE", b"news")
    subscribers = {}
    poll = select.epoll()
    for _ in range(arguments.subscribers):
        client = connect(server.port)
        client.sendall(subscribe)
        receive(client, len(b"*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n"))
        client.setblocking(False)
        poll.register(client.fileno(), select.EPOLLIN)
        subscribers[client.fileno()] = client
    publisher = connect(server.port)
    write = encode(b"PUBLISH", b"news", MESSAGE) * pipeline
    message_bytes = len(encode(b"message", b"news", MESSAGE))
    turns = max(arguments.messages // pipeline, 1)
    before = 0.0
    for turn in range(-(turns // 10), turns):
        if turn == 0:
            before = process_cpu_s(server.process.pid)
        publisher.sendall(write)
        receive(publisher, len(b":%d\r\n" % arguments.subscribers) * pipeline)
        missing = arguments.subscribers * pipeline * message_bytes
        while missing > 0:
            for number, _ in poll.poll(10):
                missing -= len(subscribers[number].recv(1 << 16))
    spent = process_cpu_s(server.process.pid) - before
    publisher.close()
    for client in subscribers.values():
        client.close()
    return spent * 1e6 / (turns * pipeline * arguments.subscribers)


def runs(arguments):
    """Name and function of each load."""
    for load in arguments.load.split(","):
        if load == "publish":
            for depth in arguments.publish_pipeline.split(","):
                yield f"publish p{depth}", lambda server, depth=int(depth): run_publish(arguments, server, depth)
        elif load in ("transactions", "sets"):
            yield load, lambda server, load=load: run_writes(arguments, server, load == "transactions")
        else:
            raise RuntimeError(f"there is no load {load}")


def measure(arguments):
    """(load, peer) -> CPU microseconds per operation, by round."""
    results = {}
    for round_number in range(arguments.rounds):
        for name, command in arguments.peer:
            server = Server(name, command, arguments.server_cpus)
            try:
                server.wait_ready()
                for load, run in runs(arguments):
                    results.setdefault((load, name), []).append(run(server))
            finally:
                server.stop()
        print(f"round {round_number + 1} of {arguments.rounds} done", file=sys.stderr)
    return results


def print_table(arguments, results):
    first = arguments.peer[0][0]
    print(f"{arguments.rounds} rounds; CPU us/op: median (least-most); ratio to {first} in the same round")
    for (load, name), cpu in results.items():
        ratios = [one / other for one, other in zip(cpu, results[load, first])]
        print(
            f"{load:<14} {name:<16} {statistics.median(cpu):>8.3f} {f'({min(cpu):.3f}-{max(cpu):.3f})':>17} "
            f"{statistics.median(ratios):>7.3f} {f'({min(ratios):.3f}-{max(ratios):.3f})':>15}"
        )


def main():
    arguments = parse_arguments()
    os.sched_setaffinity(0, {int(cpu) for cpu in arguments.client_cpus.split(",")})
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
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
