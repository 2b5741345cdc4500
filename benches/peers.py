"""Code that the scripts of this folder share: it starts and stops the servers of peers, encodes and
reads RESP, and starts and ends a script.

A peer is a compared server with a name and a command (`--peer NAME=COMMAND`). In the command,
{port} stands for a free port. All started processes are stopped at the end, also after Ctrl-C and
SIGTERM.
"""

import argparse
import os
import random
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

START_WAIT_S = 20
STOP_WAIT_S = 20
# DEBUG POPULATE of 20 million keys takes several seconds, and longer on a busy host.
REPLY_WAIT_S = 300


def parser(about):
    """Returns a parser of a script's arguments, including --peer. `about` is the script's
    documentation."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--peer", action="append", required=True, metavar="NAME=COMMAND")
    return made


def parse(made):
    """Parses the arguments. Each peer becomes a pair of its name and its command."""
    arguments = made.parse_args()
    arguments.peer = [peer.split("=", 1) for peer in arguments.peer]
    if any(len(peer) != 2 for peer in arguments.peer):
        made.error("a peer is NAME=COMMAND")
    return arguments


def run(main):
    """Runs a script's `main`, and ends the process with its status. SIGTERM stops the script as
    Ctrl-C does, so that `finally` blocks run."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted; the servers are stopped", file=sys.stderr)
        sys.exit(130)
    except (RuntimeError, OSError) as error:
        print(error, file=sys.stderr)
        sys.exit(1)


def free_port():
    while True:
        port = random.randrange(20_001, 32_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


def process_cpu_s(pid):
    """Returns the CPU time of all threads of a process, including ended ones. The ID of the
    process's clock is computed from `pid`."""
    return time.clock_gettime((~pid << 3) | 2)


def process_system_s(pid):
    """Returns the CPU time of a process in the kernel, in steps of 10 ms."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
        return int(stat.read().rsplit(")", 1)[1].split()[12]) / os.sysconf("SC_CLK_TCK")


class Server:
    """The server of a peer. Runs on the CPUs `cpus`, if given."""

    def __init__(self, name, command, cpus=None):
        self.name = name
        self.port = free_port()
        words = shlex.split(command.replace("{port}", str(self.port)))
        self.output = tempfile.TemporaryFile()
        # The server gets its own session. Ctrl-C in a terminal then reaches only this script, which
        # stops the server.
        self.process = subprocess.Popen(
            words if cpus is None else ["taskset", "-c", cpus, *words],
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def wait_ready(self):
        self.connect().close()

    def connect(self):
        """Waits until the server replies, and returns a connection to it."""
        deadline = time.monotonic() + START_WAIT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                client = connect(self.port)
                client.sendall(b"PING\r\n")
                if client.recv(7).startswith(b"+PONG"):
                    return client
                client.close()
            except OSError:
                pass
            time.sleep(0.02)
        self.output.seek(0)
        said = self.output.read().decode(errors="replace")[-2000:]
        raise RuntimeError(f"{self.name} doesn't answer on port {self.port}:\n{said}")

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_WAIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.output.close()


def load_command(arguments, port, prefix, clients, results):
    """Returns the words of a load by pantala-bench on keys that start with `prefix`. `results` is
    the path of the file for its results."""
    words = [arguments.bench, "load", "-p", port, "-t", 1, "-c", clients, "-d", arguments.value_bytes]
    words += ["--key-prefix", prefix, "--key-minimum", 1, "--key-maximum", arguments.keys]
    words += ["--distinct-client-seed", "--json-out-file", results]
    words += ["--cpus", arguments.load_cpus] if arguments.load_cpus else []
    return [str(word) for word in words]


def connect(port):
    """Returns a connection without Nagle's delay. Its timeout allows for the slowest reply."""
    client = socket.create_connection(("127.0.0.1", port), timeout=REPLY_WAIT_S)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def encode(*words):
    """Encodes a command. A word is bytes, or an object that str() converts."""
    words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def reply_line(replies):
    """Reads one line of a reply, without its end. Raises an error for an error reply."""
    line = replies.readline()
    if not line.endswith(b"\r\n"):
        raise RuntimeError("the server closed the connection")
    if line.startswith(b"-"):
        raise RuntimeError(line.decode(errors="replace").strip())
    return line[:-2]


class Client:
    """A connection to a Server."""

    def __init__(self, server):
        self.socket = server.connect()
        self.replies = self.socket.makefile("rb")

    def call(self, *words):
        """Runs a command. Returns the line of its reply, or the bytes of a bulk string."""
        self.socket.sendall(encode(*words))
        return self.reply()

    def reply(self):
        line = reply_line(self.replies)
        return self.replies.read(int(line[1:]) + 2) if line.startswith(b"$") and line != b"$-1" else line

    def pipeline(self, commands):
        """Runs encoded commands, and checks that no reply is an error."""
        self.socket.sendall(b"".join(commands))
        for _ in commands:
            self.reply()


def receive(client, length):
    """Reads exactly `length` bytes, which must be replies without an error."""
    got = b""
    while len(got) < length:
        part = client.recv(length - len(got))
        if not part:
            raise RuntimeError("the server closed a connection")
        got += part
    if b"-" in got:
        raise RuntimeError(f"received an error: {got[:200]!r}")
    return got


def spread(figures, digits=3):
    """Returns two texts: the median of the values, and their minimum and maximum."""
    low, high = min(figures), max(figures)
    return f"{statistics.median(figures):.{digits}f}", f"({low:.{digits}f}-{high:.{digits}f})"


def columns(figures, base, digits=3):
    """Formats the values of all rounds, and their ratios to the first peer's values in the same
    rounds."""
    (middle, around), (ratio, ratio_around) = spread(figures, digits), spread([a / b for a, b in zip(figures, base)])
    return f"{middle:>9} {around:>17} {ratio:>7} {ratio_around:>15}"
