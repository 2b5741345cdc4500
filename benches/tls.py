#!/usr/bin/env python3
"""TLS compared with redis-server: CPU time per operation, handshakes, idle memory, other clients.

Measures in interleaved rounds on one host. Compares CPU times rather than throughput, because
throughput on a shared host is not reliable. CPU times come from the scheduler's statistics of the
servers' threads. Needs openssl and a redis-server with TLS.
"""

import argparse
import json
import os
import re
import socket
import ssl
import statistics
import subprocess
import tempfile
import time

# The order matters: each GET must find values of the length in its row.
ROWS = [
    # name, over TLS, SET:GET, pipeline, bytes
    ("GET, 256 B, pipeline 1", True, "0:1", 1, 256),
    ("SET, 256 B, pipeline 1", True, "1:0", 1, 256),
    ("GET, 256 B, pipeline 30", True, "0:1", 30, 256),
    ("SET, 256 B, pipeline 30", True, "1:0", 30, 256),
    ("GET, 256 B, pipeline 30, plain", False, "0:1", 30, 256),
    ("SET, 256 B, pipeline 30, plain", False, "1:0", 30, 256),
    ("SET, 10 KB, pipeline 1", True, "1:0", 1, 10240),
    ("GET, 10 KB, pipeline 1", True, "0:1", 1, 10240),
]
IDLE_CLIENTS = 2000
# With fewer keys, the data would fit into the CPU's caches. Rows with long values use only a
# hundredth of the keys.
KEYS = 1_000_000


def certificates(folder):
    with open(f"{folder}/cnf", "w") as file:
        file.write("[req]\ndistinguished_name=dn\n[dn]\n")

    def sign(name, key, extensions, by=None):
        words = ["openssl", "req", "-config", "cnf", "-x509", "-nodes", "-days", "9", "-subj", f"/CN={name}"]
        words += key + ["-keyout", f"{name}.key", "-out", f"{name}.crt"]
        words += ["-CA", f"{by}.crt", "-CAkey", f"{by}.key"] if by else []
        for extension in extensions:
            words += ["-addext", extension]
        subprocess.run(words, cwd=folder, check=True, capture_output=True)

    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    names = ["basicConstraints=critical,CA:FALSE", "subjectAltName=DNS:localhost"]
    sign("ca", curve, ["basicConstraints=critical,CA:TRUE"])
    sign("ec", curve, names, "ca")
    sign("rsa", ["-newkey", "rsa:2048"], names, "ca")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    def __init__(self, command, folder, certificate="ec"):
        self.folder, self.port, self.tls_port = folder, free_port(), free_port()
        words = command.split() + ["--port", str(self.port), "--tls-port", str(self.tls_port)]
        words += ["--tls-cert-file", f"{certificate}.crt", "--tls-key-file", f"{certificate}.key"]
        words += ["--tls-ca-cert-file", "ca.crt", "--tls-auth-clients", "no", "--save", "", "--appendonly", "no"]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(words, cwd=folder, stdout=quiet, stderr=quiet)
        for _ in range(200):
            try:
                return socket.create_connection(("127.0.0.1", self.tls_port)).close()
            except OSError:
                time.sleep(0.05)
        raise SystemExit(f"{command} doesn't start")

    def stop(self):
        self.process.terminate()
        self.process.wait()

    def cpu_us(self):
        tasks = f"/proc/{self.process.pid}/task"
        spent = [open(f"{tasks}/{task}/schedstat").read().split()[0] for task in os.listdir(tasks)]
        return sum(map(int, spent)) / 1000

    def resident_bytes(self):
        status = open(f"/proc/{self.process.pid}/status").read()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) * 1024

    def load(self, bench, seconds, tls, ratio, pipeline, size):
        """Returns the CPU time per operation in microseconds, and operations per second."""
        out = f"{self.folder}/out.json"
        words = [bench, "load", "-p", str(self.tls_port if tls else self.port), "-t", "1", "-c", "20"]
        words += ["--pipeline", str(pipeline), "--ratio", ratio, "-d", str(size)]
        words += ["--key-maximum", str(KEYS if size < 1024 else KEYS // 100)]
        words += ["--distinct-client-seed", "--test-time", str(seconds), "--json-out-file", out]
        words += ["--tls", "--cacert", f"{self.folder}/ca.crt", "--sni", "localhost"] if tls else []
        before = self.cpu_us()
        subprocess.run(words, check=True, capture_output=True)
        spent, found = self.cpu_us() - before, json.load(open(out))
        return spent / found["operations"], found["operations"] / found["elapsed_s"]

    def handshakes(self, seconds):
        """Returns the CPU time per full handshake in microseconds, including the TCP connection."""
        words = ["openssl", "s_time", "-connect", f"127.0.0.1:{self.tls_port}", "-new", "-tls1_3"]
        before = self.cpu_us()
        ran = subprocess.run(words + ["-time", str(seconds)], capture_output=True, text=True)
        return (self.cpu_us() - before) / int(re.search(r"(\d+) connections in \d+ real", ran.stdout).group(1))

    def resumed_handshakes(self, seconds):
        """Returns the CPU time per resumed handshake in microseconds, including the TCP connection
        and one PING."""
        context = ssl.create_default_context(cafile=f"{self.folder}/ca.crt")
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        session, count, before, end = None, 0, 0, 0
        while not session or time.time() < end:
            plain = socket.create_connection(("127.0.0.1", self.tls_port))
            client = context.wrap_socket(plain, server_hostname="localhost", session=session)
            assert client.session_reused == bool(session), "the server doesn't resume the session"
            client.sendall(b"PING\r\n")
            client.recv(10)
            # A server may accept a ticket only once. It sends the next ticket before its first
            # reply.
            session = client.session
            client.close()
            if not end:
                before, end = self.cpu_us(), time.time() + seconds
            else:
                count += 1
        return (self.cpu_us() - before) / count

    def plain_connections(self, seconds):
        """Returns the CPU time per TCP connection with one PING in plain text, in microseconds."""
        count, before, end = 0, self.cpu_us(), time.time() + seconds
        while time.time() < end:
            with socket.create_connection(("127.0.0.1", self.port)) as client:
                client.sendall(b"PING\r\n")
                client.recv(10)
            count += 1
        return (self.cpu_us() - before) / count

    def idle_bytes(self):
        """Returns the resident memory of the server per idle TLS client, in bytes."""
        context = ssl.create_default_context(cafile=f"{self.folder}/ca.crt")
        clients = []

        def connect(count):
            for _ in range(count):
                plain = socket.create_connection(("127.0.0.1", self.tls_port))
                clients.append(context.wrap_socket(plain, server_hostname="localhost"))
                clients[-1].sendall(b"PING\r\n")
                clients[-1].recv(10)
            time.sleep(1)
            return self.resident_bytes()

        before = connect(50)
        return (connect(IDLE_CLIENTS) - before) / IDLE_CLIENTS

    def p99_us(self, seconds):
        """Returns the 99th percentile of PING on a plain connection during full handshakes, in
        microseconds."""
        words = ["openssl", "s_time", "-connect", f"127.0.0.1:{self.tls_port}", "-new", "-tls1_3"]
        quiet = subprocess.DEVNULL
        others = [subprocess.Popen(words + ["-time", str(seconds + 1)], stdout=quiet, stderr=quiet) for _ in range(8)]
        time.sleep(0.5)
        client, took = socket.create_connection(("127.0.0.1", self.port)), []
        end = time.time() + seconds
        while time.time() < end:
            begin = time.perf_counter()
            client.sendall(b"PING\r\n")
            client.recv(10)
            took.append((time.perf_counter() - begin) * 1e6)
        for other in others:
            other.wait()
        return sorted(took)[len(took) * 99 // 100]


def table(name, peers, rounds, measure, digits=2):
    found = {peer: [] for peer in peers}
    for _ in range(rounds):
        for peer in peers:
            found[peer].append(measure(peer))
    first, second = peers
    ratios = sorted(b / a for a, b in zip(found[first], found[second]))
    middle = {peer: statistics.median(found[peer]) for peer in peers}
    print(
        f"| {name} | {middle[first]:.{digits}f} | {middle[second]:.{digits}f} "
        f"| {statistics.median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f}) |",
        flush=True,
    )


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--redis", default="redis-server")
    options.add_argument("--pantala", default=os.path.abspath("../target/release/pantala") + " --workers 1")
    options.add_argument("--bench", default=os.path.abspath("../target/release/pantala-bench"))
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--seconds", type=int, default=2)
    given = options.parse_args()
    commands = {"redis": given.redis, "pantala": given.pantala}
    peers = list(commands)
    with tempfile.TemporaryDirectory() as folder:
        certificates(folder)
        print("| what | redis-server | Pantala | ratio |\n| --- | --- | --- | --- |")
        servers = {peer: Server(commands[peer], folder) for peer in peers}
        for server in servers.values():
            server.load(given.bench, 8, False, "1:0", 30, 256)
        rates = {}
        for name, *row in ROWS:

            def measure(peer):
                cpu_us, rate = servers[peer].load(given.bench, given.seconds, *row)
                rates.setdefault((name, peer), []).append(rate)
                return cpu_us

            table(f"{name}: CPU us per operation", peers, given.rounds, measure)
        table("memory of an idle client: bytes", peers, 1, lambda peer: servers[peer].idle_bytes(), 0)
        table(
            "p99 of a plain PING during handshakes: us", peers, given.rounds,
            lambda peer: servers[peer].p99_us(given.seconds), 0,
        )
        # Each handshake below includes the cost of a connection.
        table(
            "connection and a PING in plain text: CPU us", peers, given.rounds,
            lambda peer: servers[peer].plain_connections(given.seconds), 0,
        )
        table(
            "resumed handshake and a PING, ec: CPU us", peers, given.rounds,
            lambda peer: servers[peer].resumed_handshakes(given.seconds), 0,
        )
        for certificate in ("ec", "rsa"):

            def shake(peer):
                server = Server(commands[peer], folder, certificate)
                try:
                    return server.handshakes(given.seconds)
                finally:
                    server.stop()

            table(f"full handshake, {certificate}: CPU us", peers, given.rounds, shake, 0)
        for server in servers.values():
            server.stop()
        for kind in ("GET", "SET"):
            of = {tls: statistics.median(rates[f"{kind}, 256 B, pipeline 30{tls}", "pantala"]) for tls in ("", ", plain")}
            print(f"Pantala, {kind}, pipeline 30: throughput {of[''] / of[', plain']:.2f} of that in plain text")


if __name__ == "__main__":
    main()
