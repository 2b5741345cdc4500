#!/usr/bin/env python3
"""What a hand-over costs: clients that wait in BLPOP, others that push as fast as they can.

    python3 benches/handover.py \\
        --peer 'redis=redis-server --port {port} --save ""' \\
        --peer 'pantala=target/release/pantala --port {port} --workers 1'

Prints the CPU time of the server's process, all threads, per hand-over (a push, an element handed to who waits longest, and
that client's next BLPOP), one server per peer and round, rounds interleaved, ratios to the first peer within a round. Each
element is checked to arrive once. {port} is replaced by a free port. Everything started is stopped again, on Ctrl-C too.
Python's standard library suffices.
"""

import selectors

import peers
from peers import connect, encode, process_cpu_s

WAIT = encode("BLPOP", "queue", 0)
WARM_UP_SHARE = 10
REPLY_BYTES_MAX = 1 << 16


def parse_arguments():
    parser = peers.parser(__doc__)
    parser.add_argument("--waiting", type=int, default=1000, help="clients that wait")
    parser.add_argument("--pipeline", type=int, default=64, help="pushes sent at once; fewer than half of those who wait")
    parser.add_argument("--handovers", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server-cpus", default="0")
    return peers.parse(parser)


class Scene:
    """The clients of one server."""

    def __init__(self, port, waiting):
        self.selector = selectors.DefaultSelector()
        self.pusher = connect(port)
        for _ in range(waiting):
            client = connect(port)
            client.sendall(WAIT)
            self.selector.register(client, selectors.EVENT_READ)
        self.next_number = 0

    def close(self):
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()
        self.selector.close()
        self.pusher.close()

    def hand_over(self, count, pipeline):
        """Pushes `count` elements and sees each of them arrive once."""
        while count > 0:
            batch = range(self.next_number, self.next_number + min(count, pipeline))
            self.next_number, count = batch.stop, count - len(batch)
            self.pusher.sendall(b"".join(encode("RPUSH", "queue", number) for number in batch))
            missing = set(batch)
            while missing:
                for key, _ in self.selector.select():
                    # One element at a time: the client asks for the next only now.
                    reply = key.fileobj.recv(REPLY_BYTES_MAX)
                    if not reply.startswith(b"*2\r\n$5\r\nqueue\r\n$"):
                        raise ValueError(f"an unexpected reply: {reply!r}")
                    missing.remove(int(reply.split(b"\r\n")[4]))
                    key.fileobj.sendall(WAIT)
            answered = 0
            while answered < len(batch):
                answered += self.pusher.recv(REPLY_BYTES_MAX).count(b"\n")


def measure(arguments):
    """peer -> CPU microseconds per hand-over, one figure a round."""
    results = {name: [] for name, _ in arguments.peer}
    for _ in range(arguments.rounds):
        for name, command in arguments.peer:
            with peers.Server(name, command, arguments.server_cpus) as server:
                server.wait_ready()
                scene = Scene(server.port, arguments.waiting)
                scene.hand_over(arguments.handovers // WARM_UP_SHARE, arguments.pipeline)
                before = process_cpu_s(server.process.pid)
                scene.hand_over(arguments.handovers, arguments.pipeline)
                results[name].append((process_cpu_s(server.process.pid) - before) * 1e6 / arguments.handovers)
                scene.close()
    return results


def main():
    arguments = parse_arguments()
    results = measure(arguments)
    first = results[arguments.peer[0][0]]
    print(f"{arguments.waiting} clients wait, {arguments.pipeline} pushes at once, {arguments.rounds} rounds")
    print(f"{'peer':<22} {'us each':>9} {'(spread)':>17} {'ratio':>7} {'(spread)':>15}")
    for name, figures in results.items():
        print(f"{name:<22} {peers.columns(figures, first, digits=2)}")


if __name__ == "__main__":
    peers.run(main)
