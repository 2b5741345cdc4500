#!/usr/bin/env python3
"""Compares servers that speak RESP: CPU time per transaction, per script call and per published
message.

    python3 benches/isolation_costs.py --rounds 5 \\
        --peer 'redis=redis-server --port {port} --save "" --appendonly no' \\
        --peer 'pantala=target/release/pantala --port {port} --save "" --workers 1'

This script is the client of the following loads, and runs on one set of CPUs. The server runs on
another set.

- transactions: each client sends MULTI, 4 SETs of random keys and EXEC in one write, waits for all
  six replies, and repeats. One operation is one transaction.
- sets: each client sends the 4 SETs in one write without MULTI and EXEC. One operation is one
  write.
- scripts: EVAL of three commands on two declared random keys. One operation is one call.
- jobs: EVALSHA of nine commands that move a job through a queue. As in BullMQ, the prefix of the
  queue is an argument, and no key is declared. One operation is one call.
- publish: one client, the publisher, publishes to --subscribers other clients. It sends
  --publish-pipeline messages of --message-size bytes in one write. One operation is one message
  delivered to one subscriber. In the rows with "lockstep", the publisher continues when all
  subscribers have received all messages. In the other rows, the publisher is a separate process,
  and continues when it has received its own replies, as clients usually do.

For scripts and jobs, --script-pipeline calls are sent in one write. Rounds are interleaved as in
cpu_per_op.py. Ratios are to the first peer in the same round, and are medians over rounds.
"""

import hashlib
import os
import random
import resource
import select
import sys

import peers
from peers import connect, encode, process_cpu_s, process_system_s, receive

QUEUES = 50

SCRIPT = """
redis.call('SET', KEYS[1], ARGV[1])
redis.call('INCR', KEYS[2])
return redis.call('GET', KEYS[1])
"""

# Returns the number of words in the job's hash.
JOB_SCRIPT = """
local prefix, name, data, time = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local id = redis.call('INCR', prefix .. 'id')
redis.call('HSET', prefix .. id, 'name', name, 'data', data, 'timestamp', time)
redis.call('LPUSH', prefix .. 'wait', id)
redis.call('ZADD', prefix .. 'since', time, id)
local job = redis.call('RPOPLPUSH', prefix .. 'wait', prefix .. 'active')
local words = redis.call('HGETALL', prefix .. job)
redis.call('LREM', prefix .. 'active', 1, job)
redis.call('ZREM', prefix .. 'since', job)
redis.call('DEL', prefix .. job)
return #words
"""


def parse_arguments():
    parser = peers.parser(__doc__)
    parser.add_argument("--load", default="transactions,sets,scripts,jobs,publish", help="by comma")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--operations", type=int, default=60_000, help="of one run of transactions, sets, scripts and jobs")
    parser.add_argument("--script-pipeline", default="1,16", help="calls in one write, by comma")
    parser.add_argument("--keyspace", type=int, default=1_000_000)
    parser.add_argument("--data-size", type=int, default=64, help="bytes of a value")
    parser.add_argument("--subscribers", type=int, default=1000)
    parser.add_argument("--messages", type=int, default=800, help="published in one run")
    parser.add_argument("--message-size", type=int, default=32, help="bytes of a message")
    parser.add_argument("--publish-pipeline", default="1,16", help="messages in one write, by comma")
    parser.add_argument("--server-cpus", default="0", help="taskset list for the server")
    parser.add_argument("--client-cpus", default="1", help="CPUs of this process, by comma")
    return peers.parse(parser)


class Spent:
    """The CPU time that a server spends between begin() and end(), in total and in the kernel."""

    def __init__(self, pid):
        self.pid = pid
        self.begin()

    def now(self):
        return process_cpu_s(self.pid), process_system_s(self.pid)

    def begin(self):
        self.before = self.now()

    def end(self):
        self.taken = [now - before for now, before in zip(self.now(), self.before)]

    def each_us(self, operations):
        return [taken * 1e6 / operations for taken in self.taken]


def some_key(arguments, kind="key"):
    return b"%s:%d" % (kind.encode(), random.randrange(arguments.keyspace))


def sets(arguments, value):
    return b"".join(encode("SET", some_key(arguments), value) for _ in range(4)), b"+OK\r\n" * 4


def transaction(arguments, value):
    write, answer = sets(arguments, value)
    return encode("MULTI") + write + encode("EXEC"), b"+OK\r\n" + b"+QUEUED\r\n" * 4 + b"*4\r\n" + answer


def script(arguments, value):
    write = encode("EVAL", SCRIPT, 2, some_key(arguments), some_key(arguments, "count"), value)
    return write, b"$%d\r\n%s\r\n" % (len(value), value)


def job(_, value):
    write = encode("EVALSHA", hashlib.sha1(JOB_SCRIPT.encode()).hexdigest(), 0, f"queue:{random.randrange(QUEUES)}:", "resize", value, 1_700_000_000)
    return write, b":6\r\n"


def run_writes(arguments, server, make, pipeline=1):
    """Runs a load: each client repeatedly sends a batch from `make` in one write and waits for the
    replies. Returns CPU microseconds per operation, in total and in the kernel."""
    value = b"x" * arguments.data_size
    ones = [make(arguments, value) for _ in range(5000)]
    prepared = [b"".join(write for write, _ in ones[at : at + pipeline]) for at in range(0, len(ones) - pipeline, pipeline)]
    answer_bytes = len(ones[0][1]) * pipeline
    clients = [connect(server.port) for _ in range(arguments.clients)]
    clients[0].sendall(encode("SCRIPT", "LOAD", JOB_SCRIPT))
    receive(clients[0], len(b"$40\r\n\r\n") + 40)
    turns = max(arguments.operations // len(clients) // pipeline, 1)
    at = 0
    spent = Spent(server.process.pid)
    # The first tenth of the operations is not measured. These operations warm up the server and the
    # clients.
    for turn in range(-(turns // 10) - 1, turns):
        if turn == 0:
            spent.begin()
        for client in clients:
            client.sendall(prepared[at % len(prepared)])
            at += 1
        for client in clients:
            receive(client, answer_bytes)
    spent.end()
    for client in clients:
        client.close()
    return spent.each_us(turns * len(clients) * pipeline)


class Audience:
    """The subscribers of one channel, and the size of the messages that they expect."""

    def __init__(self, arguments, server):
        subscribe = encode(b"SUBSCRIBE", b"news")
        self.poll = select.epoll()
        self.subscribers = {}
        for _ in range(arguments.subscribers):
            client = connect(server.port)
            client.sendall(subscribe)
            receive(client, len(b"*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n"))
            client.setblocking(False)
            self.poll.register(client.fileno(), select.EPOLLIN)
            self.subscribers[client.fileno()] = client
        self.message_bytes = arguments.subscribers * len(encode(b"message", b"news", message_of(arguments)))

    def hear(self, messages):
        """Receives this many messages on all subscribers."""
        missing = messages * self.message_bytes
        while missing > 0:
            for number, _ in self.poll.poll(10):
                missing -= len(self.subscribers[number].recv(1 << 16))

    def close(self):
        for client in self.subscribers.values():
            client.close()


def message_of(arguments):
    return b"m" * arguments.message_size


def run_publish(arguments, server, pipeline, is_lockstep):
    write = encode(b"PUBLISH", b"news", message_of(arguments)) * pipeline
    answer_bytes = len(b":%d\r\n" % arguments.subscribers) * pipeline
    turns = max(arguments.messages // pipeline, 1)
    audience = Audience(arguments, server)
    publisher = connect(server.port)

    def publish():
        publisher.sendall(write)
        receive(publisher, answer_bytes)

    for _ in range(turns // 10):
        publish()
        audience.hear(pipeline)
    spent = Spent(server.process.pid)
    if is_lockstep:
        for _ in range(turns):
            publish()
            audience.hear(pipeline)
    else:
        child = os.fork()
        if child == 0:
            for _ in range(turns):
                publish()
            os._exit(0)
        audience.hear(pipeline * turns)
        if os.waitpid(child, 0)[1] != 0:
            raise RuntimeError("the publisher has failed")
    spent.end()
    publisher.close()
    audience.close()
    return spent.each_us(turns * pipeline * arguments.subscribers)


def runs(arguments):
    """Yields the name and the function of each load."""
    for load in arguments.load.split(","):
        if load == "publish":
            for depth in map(int, arguments.publish_pipeline.split(",")):
                for pace in ("", " lockstep"):
                    is_lockstep = bool(pace)
                    yield f"publish p{depth}{pace}", lambda server, depth=depth, is_lockstep=is_lockstep: run_publish(arguments, server, depth, is_lockstep)
        elif load in ("transactions", "sets"):
            make = {"transactions": transaction, "sets": sets}[load]
            yield load, lambda server, make=make: run_writes(arguments, server, make)
        elif load in ("scripts", "jobs"):
            make = {"scripts": script, "jobs": job}[load]
            for depth in map(int, arguments.script_pipeline.split(",")):
                yield f"{load} p{depth}", lambda server, make=make, depth=depth: run_writes(arguments, server, make, depth)
        else:
            raise RuntimeError(f"unknown load {load}")


def measure(arguments):
    """Returns CPU microseconds per operation, in total and in the kernel, by (load, peer) and
    round."""
    results = {}
    for round_number in range(arguments.rounds):
        for name, command in arguments.peer:
            with peers.Server(name, command, arguments.server_cpus) as server:
                server.wait_ready()
                for load, run in runs(arguments):
                    results.setdefault((load, name), []).append(run(server))
        print(f"round {round_number + 1} of {arguments.rounds} done", file=sys.stderr)
    return results


def print_table(arguments, results):
    first = arguments.peer[0][0]
    print(f"{arguments.rounds} rounds; CPU us/op: median (min-max); ratio to {first} in the same round; the kernel's part, us/op")
    for (load, name), taken in results.items():
        cpu, system = zip(*taken)
        base = [one for one, _ in results[load, first]]
        print(f"{load:<20} {name:<16} {peers.columns(cpu, base)} {peers.spread(system)[0]:>9}")


def main():
    arguments = parse_arguments()
    os.sched_setaffinity(0, {int(cpu) for cpu in arguments.client_cpus.split(",")})
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    print_table(arguments, measure(arguments))


if __name__ == "__main__":
    peers.run(main)
