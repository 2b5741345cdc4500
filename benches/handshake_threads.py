#!/usr/bin/env python3
"""Latency of other clients during TLS handshakes at a fixed rate, and CPU time per handshake.

    P='target/release/pantala --port {port} --save "" --workers 1 --tls-handshake-threads'
    python3 benches/handshake_threads.py --peer "worker=$P 0" --peer "thread=$P 1"

A client without TLS sends a PING every two milliseconds, while other clients make full handshakes.
--key chooses the server's key. With --rate 0, each of the clients makes one handshake after
another.

Prints medians over rounds in which the peers alternate, and ratios to the first peer. {port} is
replaced by a free port; the options of TLS are added. All started processes are stopped at the end,
also after Ctrl-C. Needs openssl.
"""

import contextlib
import multiprocessing
import socket
import ssl
import statistics
import tempfile
import time

import peers
from tls import certificates

PING_EVERY_S = 0.002


def parse_arguments():
    parser = peers.parser(__doc__)
    parser.add_argument("--key", choices=["rsa", "ec"], default="rsa", help="2048 bits, or the curve P-256")
    parser.add_argument("--rate", type=int, default=500, help="handshakes per second")
    parser.add_argument("--clients", type=int, default=4, help="that make handshakes")
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    return peers.parse(parser)


def ticks(every_s, seconds):
    """Waits between the iterations. A late iteration delays those after it."""
    due = time.monotonic()
    end = due + seconds
    while due < end:
        time.sleep(max(0, due - time.monotonic()))
        yield
        due = max(due + every_s, time.monotonic())


def shake(port, every_s, seconds, counts):
    """Makes full handshakes, and adds their number to the queue `counts`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    count = 0
    for _ in ticks(every_s, seconds):
        context.wrap_socket(socket.create_connection(("127.0.0.1", port))).close()
        count += 1
    counts.put(count)


def ping(port, seconds):
    """Returns the latencies of PING in microseconds, in ascending order."""
    took = []
    with socket.create_connection(("127.0.0.1", port)) as client:
        for _ in ticks(PING_EVERY_S, seconds):
            begin = time.monotonic()
            client.sendall(b"PING\r\n")
            client.recv(10)
            took.append((time.monotonic() - begin) * 1e6)
    return sorted(took)


def measure(peer, folder, arguments):
    tls_port = peers.free_port()
    options = f" --tls-port {tls_port} --tls-auth-clients no --tls-ca-cert-file {folder}/ca.crt"
    options += f" --tls-cert-file {folder}/{arguments.key}.crt --tls-key-file {folder}/{arguments.key}.key"
    with peers.Server(peer[0], peer[1] + options) as server:
        server.wait_ready()
        counts = multiprocessing.Queue()
        every_s = arguments.clients / arguments.rate if arguments.rate else 0
        words = (tls_port, every_s, arguments.seconds, counts)
        clients = [multiprocessing.Process(target=shake, args=words) for _ in range(arguments.clients)]
        before = peers.process_cpu_s(server.process.pid)
        for client in clients:
            client.start()
        took = ping(server.port, arguments.seconds)
        count = sum(counts.get() for _ in clients)
        for client in clients:
            client.join()
        spent_s = peers.process_cpu_s(server.process.pid) - before
    taken = {f"PING, {name}, us": took[int(len(took) * part)] for name, part in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)]}
    return taken | {"handshakes/s": count / arguments.seconds, "CPU us per handshake": spent_s / count * 1e6}


def main():
    arguments = parse_arguments()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        certificates(folder)
        taken = {peer[0]: [] for peer in arguments.peer}
        for _ in range(arguments.rounds):
            for peer in arguments.peer:
                taken[peer[0]].append(measure(peer, folder, arguments))
    first = taken[arguments.peer[0][0]]
    for name in first[0]:
        for peer, rounds in taken.items():
            values = [values[name] for values in rounds]
            ratios = [value / other[name] for value, other in zip(values, first)]
            shown = f"{statistics.median(values):9.0f} ({min(values):.0f}-{max(values):.0f})"
            print(f"{name:22} {peer:10} {shown:26} ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    peers.run(main)
