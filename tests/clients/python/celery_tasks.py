"""Celery with Redis as its broker and for its results: a worker, groups, a chord, retries."""

import ssl

import redis
from celery import Celery, chain, chord, group
from celery.contrib.testing.worker import start_worker

from check import CERTIFICATES, TO, URL, WAIT_MAX_S, run

app = Celery("clients", broker=URL, backend=URL)
app.conf.broker_connection_retry_on_startup = False
app.conf.task_default_retry_delay = 0.05
if CERTIFICATES:
    app.conf.broker_use_ssl = CERTIFICATES | {"ssl_cert_reqs": ssl.CERT_REQUIRED}
    app.conf.redis_backend_use_ssl = app.conf.broker_use_ssl
connection = redis.Redis(**TO)


@app.task
def add(left, right):
    return left + right


@app.task
def total(numbers):
    return sum(numbers)


@app.task(bind=True, max_retries=3)
def flaky(self):
    if self.request.retries < 2:
        raise self.retry(countdown=0.05)
    return self.request.retries


@app.task
def fail():
    raise ValueError("on purpose")


def a_group_has_all_results():
    result = group(add.s(number, number) for number in range(50)).apply_async()
    assert result.get(timeout=WAIT_MAX_S) == [2 * number for number in range(50)]


def a_chain_hands_on():
    assert chain(add.s(1, 2), add.s(10), add.s(100)).apply_async().get(timeout=WAIT_MAX_S) == 113


def a_chord_waits_for_its_parts():
    result = chord((add.s(number, 1) for number in range(20)), total.s()).apply_async()
    assert result.get(timeout=WAIT_MAX_S) == sum(range(1, 21))


def retries_and_failures():
    assert flaky.delay().get(timeout=WAIT_MAX_S) == 2
    failed = fail.delay()
    try:
        failed.get(timeout=WAIT_MAX_S)
        raise AssertionError("a failed task has a result")
    except ValueError as error:
        assert "on purpose" in str(error)
    assert failed.failed()


def a_result_is_forgotten():
    result = add.delay(1, 1)
    assert result.get(timeout=WAIT_MAX_S) == 2
    assert connection.exists(f"celery-task-meta-{result.id}") == 1
    result.forget()
    assert connection.exists(f"celery-task-meta-{result.id}") == 0


if __name__ == "__main__":
    connection.flushall()
    with start_worker(app, pool="threads", concurrency=4, perform_ping_check=False, loglevel="CRITICAL"):
        run(
            a_group_has_all_results,
            a_chain_hands_on,
            a_chord_waits_for_its_parts,
            retries_and_failures,
            a_result_is_forgotten,
        )
    assert connection.llen("celery") == 0, "the queue is empty"
