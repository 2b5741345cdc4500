// ioredis: pipelines, transactions, scripts by name, scans, streams, messages.
import assert from 'node:assert/strict';
import Redis from 'ioredis';
import { check, options, until } from './check.mjs';

const redis = new Redis(options);
await redis.flushall();

await check('a pipeline of 10,000 commands, its answers in order', async () => {
  const pipeline = redis.pipeline();
  for (let n = 0; n < 5000; n += 1) pipeline.set(`key:${n}`, `value:${n}`).get(`key:${n}`);
  const answers = await pipeline.exec();
  assert.equal(answers.length, 10_000);
  for (let n = 0; n < 5000; n += 1) {
    assert.deepEqual(answers[2 * n], [null, 'OK']);
    assert.deepEqual(answers[2 * n + 1], [null, `value:${n}`]);
  }
});

await check('an error in a pipeline stays where it belongs', async () => {
  const answers = await redis.pipeline().set('text', 'x').incr('text').get('text').exec();
  assert.match(answers[1][0].message, /not an integer/);
  assert.deepEqual([answers[0][1], answers[2][1]], ['OK', 'x']);
});

await check('transactions with WATCH: of 8 clients none loses an increment', async () => {
  await redis.set('counter', 0);
  const clients = Array.from({ length: 8 }, () => new Redis(options));
  await Promise.all(clients.map(async (client) => {
    for (let n = 0; n < 25;) {
      await client.watch('counter');
      const value = Number(await client.get('counter'));
      const done = await client.multi().set('counter', value + 1).set(`last:${value}`, n).exec();
      if (done !== null) n += 1;
    }
  }));
  assert.equal(await redis.get('counter'), '200');
  // By chance, the eight clients above may never conflict. This transaction always conflicts.
  await clients[0].watch('counter');
  await redis.incr('counter');
  assert.equal(await clients[0].multi().set('counter', 'lost').exec(), null);
  assert.equal((await redis.keys('last:*')).length, 200);
  await Promise.all(clients.map((client) => client.quit()));
});

await check('a script by name, with keys that it makes up', async () => {
  redis.defineCommand('spread', {
    numberOfKeys: 1,
    lua: `local sum = 0
      for n = 1, tonumber(ARGV[1]) do sum = sum + redis.call('INCRBY', KEYS[1] .. ':' .. n, n) end
      return {sum, redis.call('GET', KEYS[1] .. ':1'), false}`,
  });
  assert.deepEqual(await redis.spread('made', 10), [55, '1', null]);
  const answers = await redis.pipeline().spread('made', 10).spread('other', 2).exec();
  assert.deepEqual(answers.map(([, answer]) => answer[0]), [110, 3]);
});

await check('a scan finds every key once asked often', async () => {
  const found = new Set();
  for await (const keys of redis.scanStream({ match: 'key:*', count: 500 })) keys.forEach((key) => found.add(key));
  assert.equal(found.size, 5000);
});

await check('commands of one tick go together', async () => {
  const auto = new Redis({ ...options, enableAutoPipelining: true });
  const values = await Promise.all(Array.from({ length: 1000 }, (_, n) => auto.get(`key:${n}`)));
  values.forEach((value, n) => assert.equal(value, `value:${n}`));
  await auto.quit();
});

await check('more than 512 MiB in the commands of one tick', async () => {
  const auto = new Redis({ ...options, enableAutoPipelining: true });
  const value = 'x'.repeat(1 << 20);
  const numbers = Array.from({ length: 600 }, (_, n) => n);
  const stored = await Promise.all(numbers.map((n) => auto.set(`large:${n % 20}`, value)));
  assert.ok(stored.every((answer) => answer === 'OK'));
  const values = await Promise.all(numbers.map((n) => auto.get(`large:${n % 20}`)));
  assert.ok(values.every((got) => got === value));
  await auto.del(...Array.from({ length: 20 }, (_, n) => `large:${n}`));
  await auto.quit();
});

await check('a stream read by a group: each entry once', async () => {
  await redis.xgroup('CREATE', 'stream', 'readers', '0', 'MKSTREAM');
  const seen = [];
  const readers = ['a', 'b'].map(async (name) => {
    const reader = new Redis(options);
    for (;;) {
      const got = await reader.xreadgroup('GROUP', 'readers', name, 'COUNT', 7, 'BLOCK', 200, 'STREAMS', 'stream', '>');
      if (!got) break;
      for (const [id, fields] of got[0][1]) {
        seen.push(fields[1]);
        await reader.xack('stream', 'readers', id);
      }
    }
    await reader.quit();
  });
  for (let n = 0; n < 100; n += 1) await redis.xadd('stream', '*', 'n', n);
  await Promise.all(readers);
  assert.deepEqual(seen.map(Number).sort((a, b) => a - b), Array.from({ length: 100 }, (_, n) => n));
  assert.deepEqual(await redis.xpending('stream', 'readers'), [0, null, null, null]);
});

await check('messages by channel and pattern, in order', async () => {
  const subscriber = new Redis(options);
  const heard = [];
  subscriber.on('message', (channel, text) => heard.push([channel, text]));
  subscriber.on('pmessage', (pattern, channel, text) => heard.push([pattern, channel, text]));
  assert.equal(await subscriber.subscribe('news', 'other'), 2);
  assert.equal(await subscriber.psubscribe('ne*'), 3);
  for (let n = 0; n < 50; n += 1) assert.equal(await redis.publish('news', String(n)), 2);
  await until('a hundred messages', () => heard.length === 100);
  const plain = heard.filter((one) => one.length === 2).map(([, text]) => Number(text));
  assert.deepEqual(plain, Array.from({ length: 50 }, (_, n) => n));
  await subscriber.quit();
});

await redis.quit();
