#!/usr/bin/env python3
"""Measures how much ten thousand failing logins a second delay another client, and checks that ACL
LOG stays bounded.

    S='--port {port} --save "" --requirepass secret'
    python3 benches/failed_logins.py --rounds 5 --seconds 4 \\
        --peer "redis=redis-server $S" --peer "pantala=target/release/pantala $S --workers 1"

A separate process opens --attackers connections. Together they send --logins AUTH commands a
second, in equal intervals, each with a different user name. One more connection, which has logged
in, sends GETs of a small key one after the other. In each round, this connection is measured
without failing logins and with them, for --seconds each, on each server in turn.

Prints p50 and p99 of GET in milliseconds, as median, minimum and maximum over the rounds. Also
prints two ratios within a round: the time with failing logins divided by the time without them, and
the time divided by that of the first peer. Also prints the number of failed logins per second.
Fails if a login succeeds, if an attacker's connection is closed, or if ACL LOG has more than
acllog-max-len entries (128 on a server without this setting).

{port} is replaced by a free port. The servers need --requirepass secret. All started processes are
stopped at the end, also after Ctrl-C. Needs only Python's standard library.
"""

import multiprocessing
import selectors
import signal
import statistics
import time

import peers
from peers import connect, encode, reply_line

PASSWORD = "secret"
LOG_DEFAULT = 128
# The attack sends a burst of logins at this interval. Sleeping between single logins would be too
# imprecise.
BURST_S = 0.001
# Maximum number of logins without a reply on a connection. Before login, a server may close a
# connection that has more than 1,024 bytes of unsent replies (about 14 replies).
UNREAD_MAX = 8
# Time between the start of the attack and the measurement.
WARM_UP_S = 0.3


def parse_arguments():
    parser = peers.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4, help="of each measurement")
    parser.add_argument("--logins", type=int, default=10_000, help="that fail per second")
    parser.add_argument("--attackers", type=int, default=50, help="connections that fail to log in")
    return peers.parse(parser)


def attack(port, logins, attackers, started, is_over, pipe):
    """Sends failing logins until `is_over`, and reports how many failed per second, or an error.
    Runs in a separate process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        pipe.send(attack_until(port, logins, attackers, started, is_over))
    except (OSError, RuntimeError) as error:
        started.set()
        pipe.send(str(error))


def attack_until(port, logins, attackers, started, is_over):
    clients = [connect(port) for _ in range(attackers)]
    selector = selectors.DefaultSelector()
    for number, client in enumerate(clients):
        selector.register(client, selectors.EVENT_READ, number)
    unread = [0] * attackers
    sent = failed = 0
    begin = time.monotonic()
    started.set()
    while not is_over.is_set():
        due = int((time.monotonic() - begin) * logins)
        # If the server can't keep up, due logins wait until it has replied to earlier ones.
        while sent < due:
            number = sent % attackers
            if unread[number] == UNREAD_MAX:
                break
            clients[number].sendall(encode("AUTH", f"user-{sent}", "wrong"))
            unread[number] += 1
            sent += 1
        for key, _ in selector.select(BURST_S):
            replies = key.fileobj.recv(1 << 16)
            if not replies:
                raise RuntimeError("the server closed an attacker's connection")
            if b"+" in replies:
                raise RuntimeError("a login with a wrong password succeeded")
            failed += replies.count(b"\n")
            unread[key.data] -= replies.count(b"\n")
    rate = failed / (time.monotonic() - begin)
    selector.close()
    for client in clients:
        client.close()
    return rate


class Client:
    """A connection that has logged in."""

    def __init__(self, port):
        self.socket = connect(port)
        self.replies = self.socket.makefile("rb")
        self.command("AUTH", PASSWORD)

    def command(self, *words):
        """Returns the first line of the reply."""
        self.socket.sendall(encode(*words))
        return reply_line(self.replies)

    def get_times_ms(self, seconds):
        """Returns the durations of GETs, sorted, in milliseconds."""
        request, times = encode("GET", "key"), []
        end = time.monotonic() + seconds
        while (begin := time.monotonic()) < end:
            self.socket.sendall(request)
            reply_line(self.replies)
            self.replies.readline()
            times.append((time.monotonic() - begin) * 1000)
        return sorted(times)

    def log_max(self):
        """Returns the value of acllog-max-len."""
        if self.command("CONFIG", "GET", "acllog-max-len") != b"*2":
            return LOG_DEFAULT
        lines = [self.replies.readline() for _ in range(4)]
        return int(lines[3])

    def log_length(self):
        """Returns the number of entries of ACL LOG. The connection can't be used afterwards,
        because the rest of the reply stays unread."""
        return int(self.command("ACL", "LOG", 1_000_000)[1:])


def percentile(values, share):
    return values[min(int(len(values) * share), len(values) - 1)]


def measure(port, arguments, is_attacked):
    """Returns p50 and p99 of GET in milliseconds, and the number of failed logins per second."""
    client = Client(port)
    if not is_attacked:
        times = client.get_times_ms(arguments.seconds)
        return percentile(times, 0.5), percentile(times, 0.99), 0.0
    started, is_over = multiprocessing.Event(), multiprocessing.Event()
    here, there = multiprocessing.Pipe()
    attacker = multiprocessing.Process(
        target=attack,
        args=(port, arguments.logins, arguments.attackers, started, is_over, there),
        daemon=True,
    )
    attacker.start()
    started.wait()
    time.sleep(WARM_UP_S)
    times = client.get_times_ms(arguments.seconds)
    is_over.set()
    rate = here.recv()
    attacker.join()
    if isinstance(rate, str):
        raise RuntimeError(rate)
    log_max, length = client.log_max(), client.log_length()
    if not 0 < length <= log_max:
        raise RuntimeError(f"ACL LOG has {length} entries, acllog-max-len is {log_max}")
    return percentile(times, 0.5), percentile(times, 0.99), rate


def main():
    arguments = parse_arguments()
    servers = []
    # The results of all rounds, by peer and by whether logins fail meanwhile.
    found = {(name, attacked): [] for name, _ in arguments.peer for attacked in (False, True)}
    try:
        for name, command in arguments.peer:
            servers.append(peers.Server(name, command))
        for server in servers:
            wait_ready(server)
        for number in range(arguments.rounds):
            # Each round starts with a different server.
            first = number % len(servers)
            for server in servers[first:] + servers[:first]:
                for attacked in (False, True):
                    found[server.name, attacked].append(measure(server.port, arguments, attacked))
    finally:
        for server in servers:
            server.stop()
    base = arguments.peer[0][0]
    titles = ["server", "failed logins/s", "GET", "without, ms", "with, ms", "with / without"]
    print("| " + " | ".join([*titles, "without, ratio", "with, ratio"]) + " |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, _ in arguments.peer:
        rate = statistics.median(rate for *_, rate in found[name, True])
        for column, title in enumerate(("p50", "p99")):
            values = {key: [round_[column] for round_ in rounds] for key, rounds in found.items()}
            calm, attacked = values[name, False], values[name, True]
            cells = [
                text(calm), text(attacked), text(ratios(attacked, calm), 2),
                text(ratios(calm, values[base, False]), 2),
                text(ratios(attacked, values[base, True]), 2),
            ]
            print(f"| {name} | {rate:.0f} | {title} | " + " | ".join(cells) + " |")
    print("ACL LOG stayed within acllog-max-len on all servers")


def wait_ready(server):
    """Waits until a server that needs a password replies, and stores the small key."""
    deadline = time.monotonic() + peers.START_WAIT_S
    while True:
        try:
            client = Client(server.port)
            break
        except OSError as error:
            if time.monotonic() > deadline or server.process.poll() is not None:
                raise RuntimeError(f"{server.name} doesn't answer on port {server.port}") from error
            time.sleep(0.02)
    client.command("SET", "key", "value")


def ratios(values, others):
    return [value / other for value, other in zip(values, others)]


def text(values, digits=3):
    """Returns the median, minimum and maximum."""
    middle, around = peers.spread(values, digits)
    return f"{middle} {around}"


if __name__ == "__main__":
    peers.run(main)
