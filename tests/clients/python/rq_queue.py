"""RQ: a queue with workers, dependent jobs, failures and retries, jobs for later."""

from datetime import timedelta

import redis
from rq import Queue, Retry, SimpleWorker
from rq.job import JobStatus
from rq.registry import FailedJobRegistry, FinishedJobRegistry, ScheduledJobRegistry

import jobs
from check import TO, run, until

connection = redis.Redis(**TO)
JOBS = 40


def work(*queues, scheduler=False):
    """Runs jobs in this process until the queues are empty."""
    SimpleWorker(list(queues), connection=connection).work(burst=True, with_scheduler=scheduler, logging_level="CRITICAL")


def jobs_are_done_and_have_results():
    queue = Queue("plain", connection=connection)
    made = [queue.enqueue(jobs.add, number, 1) for number in range(JOBS)]
    assert queue.count == JOBS and queue.job_ids == [job.id for job in made]
    work(queue)
    assert [job.return_value(refresh=True) for job in made] == list(range(1, JOBS + 1))
    assert all(job.get_status() == JobStatus.FINISHED for job in made)
    assert FinishedJobRegistry(queue=queue).count == JOBS and queue.count == 0


def a_chain_runs_in_its_order():
    queue = Queue("chain", connection=connection)
    first = queue.enqueue(jobs.add, 1, 1)
    second = queue.enqueue(jobs.add, 2, 2, depends_on=first)
    third = queue.enqueue(jobs.add, 3, 3, depends_on=[first, second])
    assert queue.job_ids == [first.id]
    assert third.get_status() == JobStatus.DEFERRED
    work(queue)
    assert [job.return_value(refresh=True) for job in (first, second, third)] == [2, 4, 6]
    ends = [queue.fetch_job(job.id).ended_at for job in (first, second, third)]
    assert ends == sorted(ends)


def failures_are_kept_and_tried_again():
    queue = Queue("failing", connection=connection)
    job = queue.enqueue(jobs.fail, "on purpose", retry=Retry(max=2))
    work(queue)
    job.refresh()
    assert job.get_status() == JobStatus.FAILED and job.retries_left == 0
    assert "on purpose" in job.latest_result().exc_string
    registry = FailedJobRegistry(queue=queue)
    assert registry.get_job_ids() == [job.id]
    registry.requeue(job)
    assert registry.count == 0 and queue.job_ids == [job.id]
    job.delete()
    assert queue.count == 0


def jobs_for_later_wait():
    queue = Queue("later", connection=connection)
    job = queue.enqueue_in(timedelta(hours=1), jobs.add, 1, 2)
    registry = ScheduledJobRegistry(queue=queue)
    assert registry.get_job_ids() == [job.id] and queue.count == 0
    assert registry.get_jobs_to_schedule() == []
    registry.remove(job)
    assert registry.count == 0


def a_queue_is_emptied_by_a_script():
    queue = Queue("emptied", connection=connection)
    for number in range(JOBS):
        queue.enqueue(jobs.add, number, 1)
    assert queue.empty() == JOBS
    assert queue.count == 0 and not list(connection.scan_iter("rq:queue:emptied"))


def two_processes_share_a_queue():
    import multiprocessing

    queue = Queue("shared", connection=connection)
    made = [queue.enqueue(jobs.add, number, number) for number in range(JOBS)]
    started = [multiprocessing.Process(target=_work_shared) for _ in range(2)]
    for process in started:
        process.start()
    until("all jobs", lambda: FinishedJobRegistry(queue=queue).count == JOBS)
    for process in started:
        process.join()
        assert process.exitcode == 0
    assert [job.return_value(refresh=True) for job in made] == [2 * number for number in range(JOBS)]


def _work_shared():
    own = redis.Redis(**TO)
    SimpleWorker([Queue("shared", connection=own)], connection=own).work(burst=True, logging_level="CRITICAL")


if __name__ == "__main__":
    connection.flushall()
    run(
        jobs_are_done_and_have_results,
        a_chain_runs_in_its_order,
        failures_are_kept_and_tried_again,
        jobs_for_later_wait,
        a_queue_is_emptied_by_a_script,
        two_processes_share_a_queue,
    )
