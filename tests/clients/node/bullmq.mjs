// A job queue as users of BullMQ run it. BullMQ consists mainly of Lua scripts, which build the
// names of keys that they don't declare.
import assert from 'node:assert/strict';
import { FlowProducer, Queue, QueueEvents, UnrecoverableError, Worker } from 'bullmq';
import IORedis from 'ioredis';
import { check, connection, options, until } from './check.mjs';

const JOBS = 300;
const redis = new IORedis(options);
await redis.flushall();

/** Opens a queue and its events. Returns both, and the list of objects to close after the check. */
async function open(name) {
  const queue = new Queue(name, { connection });
  const events = new QueueEvents(name, { connection });
  await events.waitUntilReady();
  const workers = [];
  return {
    queue,
    events,
    async worker(processor, options = {}) {
      const worker = new Worker(name, processor, { connection, ...options });
      worker.on('error', (error) => {
        console.error(`FAILED, the worker of ${name}:`, error);
        process.exit(1);
      });
      workers.push(worker);
      await worker.waitUntilReady();
      return worker;
    },
    async close() {
      await Promise.all(workers.map((worker) => worker.close()));
      await events.close();
      await queue.obliterate({ force: true });
      await queue.close();
      // `obliterate` keeps the stream of events and the counter of the rate limit. The counter
      // expires by itself.
      const left = (await redis.keys(`bull:${name}:*`)).filter((key) => !/:(events|limiter)$/.test(key));
      assert.deepEqual(left, [], 'obliterate leaves nothing');
    },
  };
}

await check('two workers do each job once, with its result', async () => {
  const it = await open('plain');
  const seen = new Map();
  const processor = async (job) => {
    seen.set(job.id, (seen.get(job.id) ?? 0) + 1);
    await job.updateProgress(50);
    return { twice: job.data.n * 2 };
  };
  await it.worker(processor, { concurrency: 20 });
  await it.worker(processor, { concurrency: 20 });
  const jobs = await it.queue.addBulk(
    Array.from({ length: JOBS }, (_, n) => ({ name: 'double', data: { n, text: 'ü'.repeat(n) } })),
  );
  const results = await Promise.all(jobs.map((job) => job.waitUntilFinished(it.events)));
  results.forEach((result, n) => assert.deepEqual(result, { twice: n * 2 }));
  assert.equal(seen.size, JOBS);
  assert.ok([...seen.values()].every((times) => times === 1));
  const counts = await it.queue.getJobCounts();
  assert.equal(counts.completed, JOBS);
  assert.equal(counts.waiting + counts.active + counts.failed + counts.delayed, 0);
  const job = await it.queue.getJob(jobs[7].id);
  assert.equal(job.progress, 50);
  assert.equal(await job.getState(), 'completed');
  assert.equal(job.data.text, 'ü'.repeat(7));
  await it.close();
});

await check('a job that fails is tried again; one that always fails ends as failed', async () => {
  const it = await open('retry');
  let tries = 0;
  await it.worker(async (job) => {
    if (job.name === 'hopeless') throw new UnrecoverableError('no hope');
    tries += 1;
    if (job.attemptsMade < 2) throw new Error(`attempt ${job.attemptsMade}`);
    return 'at last';
  });
  const flaky = await it.queue.add('flaky', {}, { attempts: 3, backoff: { type: 'fixed', delay: 50 } });
  const hopeless = await it.queue.add('hopeless', {}, { attempts: 5 });
  assert.equal(await flaky.waitUntilFinished(it.events), 'at last');
  await assert.rejects(hopeless.waitUntilFinished(it.events), /no hope/);
  assert.equal(tries, 3);
  const again = await it.queue.getJob(flaky.id);
  assert.equal(again.attemptsMade, 3);
  assert.equal(again.stacktrace.length, 2);
  const [failed] = await it.queue.getFailed();
  assert.equal(failed.id, hopeless.id);
  assert.equal(failed.failedReason, 'no hope');
  await failed.remove();
  assert.equal(await it.queue.getFailedCount(), 0);
  await it.close();
});

await check('delayed jobs come when their time has come, in order', async () => {
  const it = await open('delayed');
  const order = [];
  await it.worker(async (job) => order.push([job.name, Date.now() - job.timestamp]));
  const jobs = await Promise.all(
    [400, 100, 250].map((delay) => it.queue.add(String(delay), {}, { delay })),
  );
  assert.equal(await it.queue.getDelayedCount(), 3);
  await Promise.all(jobs.map((job) => job.waitUntilFinished(it.events)));
  assert.deepEqual(order.map(([name]) => name), ['100', '250', '400']);
  order.forEach(([name, after]) => assert.ok(after >= Number(name) - 1, `${name} ms came after ${after}`));
  await it.close();
});

await check('priorities, and a queue that pauses', async () => {
  const it = await open('priorities');
  await it.queue.pause();
  const order = [];
  await it.worker(async (job) => order.push(job.opts.priority));
  for (const priority of [5, 1, 4, 2, 3, 1]) await it.queue.add('one', {}, { priority });
  assert.equal(await it.queue.isPaused(), true);
  assert.deepEqual(order, []);
  await it.queue.resume();
  await until('all six', () => order.length === 6);
  assert.deepEqual(order, [1, 1, 2, 3, 4, 5]);
  await it.close();
});

await check('a flow: the parent sees what its children returned', async () => {
  const it = await open('flow');
  const flows = new FlowProducer({ connection });
  await it.worker(async (job) => {
    if (job.name !== 'sum') return job.data.n;
    const values = Object.values(await job.getChildrenValues());
    return values.reduce((sum, value) => sum + value, 0);
  }, { concurrency: 4 });
  const children = Array.from({ length: 10 }, (_, n) => ({ name: 'leaf', queueName: 'flow', data: { n } }));
  const tree = await flows.add({ name: 'sum', queueName: 'flow', data: {}, children });
  assert.equal(await tree.job.waitUntilFinished(it.events), 45);
  const { processed } = await tree.job.getDependencies();
  assert.equal(Object.keys(processed).length, 10);
  await flows.close();
  await it.close();
});

await check('repeated jobs, a rate limit, deduplication', async () => {
  const it = await open('limits');
  const times = [];
  const worker = await it.worker(async (job) => times.push([job.name, Date.now()]), {
    limiter: { max: 5, duration: 200 },
  });
  await it.queue.upsertJobScheduler('tick', { every: 60, limit: 3 }, { name: 'tick' });
  await until('three ticks', () => times.filter(([name]) => name === 'tick').length >= 3);
  await it.queue.removeJobScheduler('tick');
  times.length = 0;
  const start = Date.now();
  await it.queue.addBulk(Array.from({ length: 12 }, (_, n) => ({ name: `limited ${n}`, data: {} })));
  await until('twelve', () => times.filter(([name]) => name.startsWith('limited')).length === 12);
  // The jobs need three windows of the limiter. Only the second window certainly lasts 200 ms,
  // because the first may have started before the jobs.
  assert.ok(Date.now() - start >= 190, `twelve jobs at five in 200 ms took ${Date.now() - start} ms`);
  await worker.pause();
  const one = await it.queue.add('once', { n: 1 }, { deduplication: { id: 'same' } });
  const two = await it.queue.add('once', { n: 2 }, { deduplication: { id: 'same' } });
  assert.equal(one.id, two.id);
  await it.close();
});

await check('a job whose worker is lost is taken up by another', async () => {
  const it = await open('stalled');
  const lost = new Worker('stalled', null, { connection });
  await lost.waitUntilReady();
  const added = await it.queue.add('left behind', {});
  const taken = await lost.getNextJob('a token');
  assert.equal(taken.id, added.id);
  // Deletes the job's lock. Without this, the check would have to wait until the lock expires.
  await redis.del(`bull:stalled:${added.id}:lock`);
  await lost.close(true);
  await it.worker(async () => 'found', { stalledInterval: 100 });
  assert.equal(await added.waitUntilFinished(it.events), 'found');
  await it.close();
});

await redis.quit();
process.exit(0);
