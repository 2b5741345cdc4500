#!/usr/bin/env python3
"""The minimum cost of publishing to many subscribers: a peer for isolation_costs.py that only
sends.

The peer replies to PING, SUBSCRIBE and PUBLISH on any channel. It combines all messages of one
read, and sends them to each subscriber with one plain send(2). Its system time is the kernel's cost
of these sends. Its user time is that of the Python interpreter and has no meaning.

    python3 benches/fanout_floor.py --port 7000
"""

import argparse
import select
import socket

from peers import encode

LISTENERS_MAX = 4096


def commands(received):
    """Yields the received commands as lists of words. Each command must arrive in one piece."""
    words = received.split(b"\r\n")
    at = 0
    while at < len(words) - 1:
        # PING is an inline command.
        count = int(words[at][1:]) if words[at].startswith(b"*") else 0
        yield words[at + 2 : at + 2 + 2 * count : 2] or [words[at]]
        at += 1 + 2 * count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    listener = socket.create_server(("127.0.0.1", parser.parse_args().port), backlog=LISTENERS_MAX)
    poll = select.epoll()
    poll.register(listener.fileno(), select.EPOLLIN)
    clients, subscribers = {}, {}
    while True:
        for number, _ in poll.poll():
            if number == listener.fileno():
                client = listener.accept()[0]
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                clients[client.fileno()] = client
                poll.register(client.fileno(), select.EPOLLIN)
                continue
            received = clients[number].recv(1 << 16)
            if not received:
                subscribers.pop(number, None)
                clients.pop(number).close()
                continue
            message, reply = b"", b""
            for name, *words in commands(received):
                if name == b"SUBSCRIBE":
                    subscribers[number] = clients[number]
                    reply += b"*3\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n:1\r\n" % (len(words[0]), words[0])
                elif name == b"PUBLISH":
                    message += encode("message", *words)
                    reply += b":%d\r\n" % len(subscribers)
                else:
                    reply += b"+PONG\r\n"
            clients[number].send(reply)
            if message:
                for subscriber in subscribers.values():
                    subscriber.send(message)


if __name__ == "__main__":
    main()
