import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.redisson.Redisson;
import org.redisson.api.RBlockingQueue;
import org.redisson.api.RDelayedQueue;
import org.redisson.api.RLock;
import org.redisson.api.RMapCache;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.LongCodec;
import org.redisson.client.codec.StringCodec;
import org.redisson.codec.CompositeCodec;
import org.redisson.config.Config;

/** Redisson: locks, semaphores, caches and queues. Redisson builds them from scripts, and wakes
 * waiting clients with messages. */
final class RedissonWork {
    private static RedissonClient redisson;
    private static int total;

    private static void locks() throws Exception {
        AtomicInteger inside = new AtomicInteger();
        Check.together(number -> {
            RLock lock = redisson.getLock("lock");
            for (int turn = 0; turn < 20; turn++) {
                lock.lock(10, TimeUnit.SECONDS);
                // The lock is reentrant.
                Check.must(lock.tryLock(), "who holds the lock may take it again");
                Check.same(inside.incrementAndGet(), 1);
                int seen = total;
                Thread.yield();
                total = seen + 1;
                inside.decrementAndGet();
                lock.unlock();
                lock.unlock();
            }
        });
        Check.same(total, Check.THREADS * 20);
        Check.must(!redisson.getLock("lock").isLocked(), "nobody holds the lock");
    }

    private static void readersAndWriters() throws Exception {
        AtomicInteger writers = new AtomicInteger();
        AtomicInteger readers = new AtomicInteger();
        Check.together(number -> {
            RReadWriteLock lock = redisson.getReadWriteLock("both");
            for (int turn = 0; turn < 10; turn++) {
                RLock mine = number % 4 == 0 ? lock.writeLock() : lock.readLock();
                mine.lock(10, TimeUnit.SECONDS);
                if (number % 4 == 0) {
                    Check.same(writers.incrementAndGet(), 1);
                    Check.same(readers.get(), 0);
                    writers.decrementAndGet();
                } else {
                    readers.incrementAndGet();
                    Check.same(writers.get(), 0);
                    readers.decrementAndGet();
                }
                mine.unlock();
            }
        });
    }

    private static void semaphores() throws Exception {
        RSemaphore semaphore = redisson.getSemaphore("semaphore");
        Check.must(semaphore.trySetPermits(3), "the semaphore is new");
        AtomicInteger inside = new AtomicInteger();
        Check.together(number -> {
            for (int turn = 0; turn < 10; turn++) {
                semaphore.acquire();
                Check.must(inside.incrementAndGet() <= 3, "more than three are inside");
                inside.decrementAndGet();
                semaphore.release();
            }
        });
        Check.same(semaphore.availablePermits(), 3);
    }

    private static void caches() throws Exception {
        // The server adds to the value, so it must be stored as a decimal number.
        CompositeCodec texts = new CompositeCodec(StringCodec.INSTANCE, LongCodec.INSTANCE);
        RMapCache<String, Long> cache = redisson.getMapCache("cache", texts);
        Check.together(number -> {
            for (int turn = 0; turn < 50; turn++) {
                cache.addAndGet("sum", 1L);
                cache.fastPut(number + ":" + turn, (long) turn, 1, TimeUnit.MINUTES);
            }
        });
        Check.same(cache.get("sum"), Check.THREADS * 50L);
        Check.same(cache.size(), Check.THREADS * 50 + 1);
        cache.put("short", 1L, 50, TimeUnit.MILLISECONDS);
        Thread.sleep(60);
        Check.must(cache.get("short") == null, "an entry outlived its time");
    }

    private static void queues() throws Exception {
        RBlockingQueue<Integer> queue = redisson.getBlockingQueue("queue");
        RDelayedQueue<Integer> delayed = redisson.getDelayedQueue(queue);
        delayed.offer(-1, 200, TimeUnit.MILLISECONDS);
        CountDownLatch all = new CountDownLatch(101);
        AtomicInteger sum = new AtomicInteger();
        Thread taker = new Thread(() -> {
            try {
                while (all.getCount() > 0) {
                    sum.addAndGet(queue.take());
                    all.countDown();
                }
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        });
        taker.start();
        for (int number = 0; number < 100; number++) {
            queue.add(number);
        }
        Check.must(all.await(Check.WAIT_MAX_S, TimeUnit.SECONDS), all.getCount() + " elements are missing");
        taker.join();
        Check.same(sum.get(), 4950 - 1);
        delayed.destroy();
    }

    public static void main(String[] args) {
        Config config = new Config();
        boolean isEncrypted = Check.encrypted() != null;
        config.useSingleServer()
                .setAddress((isEncrypted ? "rediss" : "redis") + "://127.0.0.1:" + Check.PORT)
                .setConnectionMinimumIdleSize(4)
                .setConnectionPoolSize(16)
                .setSslTrustManagerFactory(Check.trust())
                .setSslKeyManagerFactory(Check.keys());
        redisson = Redisson.create(config);
        redisson.getKeys().flushall();
        Check.check("a lock is held by one", RedissonWork::locks);
        Check.check("readers and writers", RedissonWork::readersAndWriters);
        Check.check("a semaphore lets three in", RedissonWork::semaphores);
        Check.check("a cache whose entries end", RedissonWork::caches);
        Check.check("a queue, and elements for later", RedissonWork::queues);
        redisson.shutdown();
    }
}
