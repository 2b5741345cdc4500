"""The functions that the queues of RQ and Celery call."""


def add(left, right):
    return left + right


def fail(text):
    raise ValueError(text)
