"""redis-py's Sentinel client writes across failovers. No write that WAIT confirmed is lost.

Runs under redis-sentinel (port PANTALA_SENTINEL_PORT) with a primary and one replica on this host.
"""

import os
import signal
import threading
import time

from redis.exceptions import ConnectionError, ReadOnlyError, ResponseError, TimeoutError
from redis.sentinel import Sentinel

from check import run, until

NAME = "pair"
WRITERS = 4
REPLY_MAX_S = 1

sentinel = Sentinel([("127.0.0.1", int(os.environ["PANTALA_SENTINEL_PORT"]))], socket_timeout=REPLY_MAX_S)
is_over = threading.Event()


class Writer(threading.Thread):
    """Increments a counter, and records the largest value that the replica has acknowledged."""

    def __init__(self, number):
        super().__init__(daemon=True)
        self.key = f"counter:{number}"
        self.primary = sentinel.master_for(NAME, socket_timeout=REPLY_MAX_S)
        self.confirmed = 0
        self.error = None

    def run(self):
        while not is_over.is_set():
            try:
                # A pipeline uses one connection, as WAIT requires.
                pipeline = self.primary.pipeline(transaction=False)
                value, replicas = pipeline.incr(self.key).wait(1, 200).execute()
            except (ConnectionError, TimeoutError, ReadOnlyError):
                time.sleep(0.02)
                continue
            except ResponseError as error:
                # When the server becomes a replica, WAIT returns an error with UNBLOCKED.
                if "UNBLOCKED" in str(error):
                    continue
                self.error = error
                return
            if replicas >= 1:
                self.confirmed = value


def primary_address():
    try:
        return sentinel.discover_master(NAME)
    except (ConnectionError, TimeoutError):
        return None


def every_writer_confirms(writers):
    before = [writer.confirmed for writer in writers]

    def have_confirmed():
        for writer in writers:
            if writer.error:
                raise writer.error
        return all(writer.confirmed > past for writer, past in zip(writers, before))

    until("a confirmed write of every writer", have_confirmed)


def fails_over(writers, change):
    """Runs `change`, and waits until another server is the primary and accepts writes."""
    every_writer_confirms(writers)
    before = primary_address()
    change()
    until("another primary", lambda: primary_address() not in (None, before))
    master = sentinel.master_for(NAME, socket_timeout=REPLY_MAX_S)

    def is_written():
        try:
            return master.set("after", before[1])
        except (ConnectionError, TimeoutError, ReadOnlyError):
            return False

    until("a write to the new primary", is_written)


def asks_sentinel():
    def starts():
        try:
            return sentinel.sentinels[0].sentinel_failover(NAME)
        except ResponseError:
            # Sentinel rejects a failover until it has seen that the replica's link is up, which
            # takes up to 10 s.
            return False

    until("the start of a failover", starts)


def kills_primary():
    pid = sentinel.master_for(NAME).info("server")["process_id"]
    os.kill(pid, signal.SIGKILL)


def writers_survive_failovers():
    writers = [Writer(number) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    fails_over(writers, asks_sentinel)
    # The former primary follows the new one, so writes are confirmed again.
    fails_over(writers, kills_primary)
    # Waits until each writer has written once more. The other server is dead now, so no replica
    # confirms these writes.
    master = sentinel.master_for(NAME, socket_timeout=REPLY_MAX_S)
    counters = [writer.key for writer in writers]
    first = master.mget(counters)
    until("writes of every writer", lambda: all(a != b for a, b in zip(first, master.mget(counters))))
    is_over.set()
    for writer in writers:
        writer.join()
        kept = int(master.get(writer.key))
        assert kept >= writer.confirmed, f"{writer.key}: {writer.confirmed} was confirmed, {kept} is left"


run(writers_survive_failovers)
