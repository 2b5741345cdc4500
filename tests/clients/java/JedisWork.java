import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import javax.net.ssl.SSLSocketFactory;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPubSub;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.StreamEntryID;
import redis.clients.jedis.Transaction;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.params.XReadGroupParams;
import redis.clients.jedis.resps.ScanResult;
import redis.clients.jedis.resps.StreamEntry;

/** Jedis: transactions with WATCH, pipelines, scripts, messages, streams, users. */
final class JedisWork {
    private static final int TURNS = 50;

    private static Jedis client() {
        return client(null, null, null);
    }

    /** Returns a client with this protocol. If {@code user} is not null, the client logs in. */
    static Jedis client(RedisProtocol protocol, String user, String password) {
        SSLSocketFactory sockets = Check.encrypted();
        DefaultJedisClientConfig config = DefaultJedisClientConfig.builder()
                .ssl(sockets != null)
                .sslSocketFactory(sockets)
                .protocol(protocol)
                .user(user)
                .password(password)
                .build();
        return new Jedis(new HostAndPort("127.0.0.1", Check.PORT), config);
    }

    private static void watchRetries() throws Exception {
        try (Jedis jedis = client()) {
            jedis.set("counter", "0");
            Check.together(number -> {
                try (Jedis own = client()) {
                    for (int turn = 0; turn < TURNS;) {
                        own.watch("counter");
                        long value = Long.parseLong(own.get("counter"));
                        Transaction transaction = own.multi();
                        transaction.set("counter", Long.toString(value + 1));
                        transaction.rpush("history", Long.toString(value));
                        if (transaction.exec() != null) {
                            turn++;
                        }
                    }
                }
            });
            Check.same(jedis.get("counter"), Integer.toString(Check.THREADS * TURNS));
            List<String> wanted = new ArrayList<>();
            for (int value = 0; value < Check.THREADS * TURNS; value++) {
                wanted.add(Integer.toString(value));
            }
            Check.same(jedis.lrange("history", 0, -1), wanted);
            // By chance, the threads above may never conflict. This transaction always conflicts.
            jedis.watch("counter");
            try (Jedis other = client()) {
                other.incr("counter");
            }
            Transaction lost = jedis.multi();
            lost.set("counter", "lost");
            Check.must(lost.exec() == null, "a transaction ran over a change that it watched for");
        }
    }

    private static void errorsInside() {
        try (Jedis jedis = client()) {
            Transaction transaction = jedis.multi();
            Response<String> before = transaction.set("text", "x");
            Response<Long> wrong = transaction.incr("text");
            Response<String> after = transaction.get("text");
            Check.same(transaction.exec().size(), 3);
            Check.same(before.get(), "OK");
            Check.same(after.get(), "x");
            try {
                wrong.get();
                throw new AssertionError("a text was incremented");
            } catch (JedisDataException error) {
                Check.must(error.getMessage().contains("not an integer"), error.getMessage());
            }
            Transaction left = jedis.multi();
            left.set("text", "y");
            left.discard();
            Check.same(jedis.get("text"), "x");
        }
    }

    private static void pipelines() {
        try (Jedis jedis = client()) {
            Pipeline pipeline = jedis.pipelined();
            List<Response<String>> answers = new ArrayList<>();
            for (int number = 0; number < 5000; number++) {
                pipeline.set("key:" + number, "value:" + number);
                answers.add(pipeline.get("key:" + number));
            }
            pipeline.sync();
            for (int number = 0; number < 5000; number++) {
                Check.same(answers.get(number).get(), "value:" + number);
            }
            Set<String> seen = new HashSet<>();
            String cursor = ScanParams.SCAN_POINTER_START;
            do {
                ScanResult<String> page = jedis.scan(cursor, new ScanParams().match("key:*").count(500));
                seen.addAll(page.getResult());
                cursor = page.getCursor();
            } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
            Check.same(seen.size(), 5000);
        }
    }

    private static void scripts() throws Exception {
        try (Jedis jedis = client()) {
            String sha = jedis.scriptLoad(
                    "local made = 'made:' .. KEYS[1]; redis.call('HINCRBY', made, ARGV[1], 1);"
                            + " return redis.call('INCR', KEYS[1])");
            Check.same(jedis.scriptExists(sha), true);
            Check.together(number -> {
                try (Jedis own = client()) {
                    for (int turn = 0; turn < TURNS; turn++) {
                        own.evalsha(sha, 1, "runs", Integer.toString(turn % 10));
                    }
                }
            });
            Check.same(jedis.get("runs"), Integer.toString(Check.THREADS * TURNS));
            int sum = jedis.hvals("made:runs").stream().mapToInt(Integer::parseInt).sum();
            Check.same(sum, Check.THREADS * TURNS);
        }
    }

    private static void messages() throws Exception {
        List<Integer> heard = new ArrayList<>();
        CountDownLatch ready = new CountDownLatch(2);
        CountDownLatch done = new CountDownLatch(400);
        JedisPubSub listener = new JedisPubSub() {
            @Override
            public void onSubscribe(String channel, int count) {
                ready.countDown();
                try {
                    psubscribe("ne?s");
                } catch (RuntimeException error) {
                    error.printStackTrace();
                }
            }

            @Override
            public void onPSubscribe(String pattern, int count) {
                ready.countDown();
            }

            @Override
            public void onMessage(String channel, String text) {
                heard.add(Integer.parseInt(text));
                done.countDown();
            }

            @Override
            public void onPMessage(String pattern, String channel, String text) {
                done.countDown();
            }
        };
        Thread thread = new Thread(() -> {
            try (Jedis own = client()) {
                own.subscribe(listener, "news");
            }
        });
        thread.start();
        Check.must(ready.await(Check.WAIT_MAX_S, TimeUnit.SECONDS), "no subscription");
        try (Jedis jedis = client()) {
            for (int number = 0; number < 200; number++) {
                Check.same(jedis.publish("news", Integer.toString(number)), 2L);
            }
        }
        Check.must(done.await(Check.WAIT_MAX_S, TimeUnit.SECONDS), done.getCount() + " messages are missing");
        listener.unsubscribe();
        listener.punsubscribe();
        thread.join(Check.WAIT_MAX_S * 1000);
        Check.must(!thread.isAlive(), "the listener doesn't end");
        for (int number = 0; number < 200; number++) {
            Check.same(heard.get(number), number);
        }
    }

    private static void streams() throws Exception {
        final int entries = 400;
        Set<String> seen = ConcurrentHashMap.newKeySet();
        AtomicInteger read = new AtomicInteger();
        try (Jedis jedis = client()) {
            jedis.xgroupCreate("stream", "readers", new StreamEntryID(), true);
            Check.together(number -> {
                try (Jedis own = client()) {
                    if (number == 0) {
                        for (int entry = 0; entry < entries; entry++) {
                            own.xadd("stream", StreamEntryID.NEW_ENTRY, Map.of("n", Integer.toString(entry)));
                        }
                        return;
                    }
                    XReadGroupParams some = XReadGroupParams.xReadGroupParams().count(10).block(100);
                    Map<String, StreamEntryID> from = Map.of("stream", StreamEntryID.XREADGROUP_UNDELIVERED_ENTRY);
                    while (read.get() < entries) {
                        List<Map.Entry<String, List<StreamEntry>>> got =
                                own.xreadGroup("readers", "reader " + number, some, from);
                        if (got == null) {
                            continue;
                        }
                        for (StreamEntry entry : got.get(0).getValue()) {
                            Check.must(seen.add(entry.getFields().get("n")), entry + " came twice");
                            read.incrementAndGet();
                            own.xack("stream", "readers", entry.getID());
                        }
                    }
                }
            });
            Check.same(seen.size(), entries);
            Check.same(jedis.xpending("stream", "readers").getTotal(), 0L);
        }
    }

    public static void main(String[] args) {
        try (Jedis jedis = client()) {
            jedis.flushAll();
        }
        Check.check("WATCH and retries lose nothing", JedisWork::watchRetries);
        Check.check("errors inside a transaction, and DISCARD", JedisWork::errorsInside);
        Check.check("a pipeline of 10,000 commands, and a scan", JedisWork::pipelines);
        Check.check("scripts, with keys that they make up", JedisWork::scripts);
        Check.check("messages in order", JedisWork::messages);
        Check.check("a stream read by a group", JedisWork::streams);
        JedisUsers.checks();
    }
}
