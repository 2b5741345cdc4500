import java.io.FileInputStream;
import java.io.InputStream;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLSocketFactory;
import javax.net.ssl.TrustManagerFactory;

/** Shared by both workloads: the server's port, a named check, threads whose errors are rethrown. */
final class Check {
    static final int PORT = Integer.parseInt(System.getenv("PANTALA_PORT"));
    static final int THREADS = 8;
    static final long WAIT_MAX_S = 20;

    /** A check, or a thread's work. */
    interface Body {
        void run() throws Exception;
    }

    /** The work of a thread, which gets its number. */
    interface Work {
        void run(int number) throws Exception;
    }

    private static final SSLSocketFactory ENCRYPTED = encryption();

    private Check() {}

    /** Returns sockets with the client's certificate, or null unless the port is encrypted. */
    static SSLSocketFactory encrypted() {
        return ENCRYPTED;
    }

    private static SSLSocketFactory encryption() {
        String authority = System.getenv("PANTALA_TLS_CA");
        if (authority == null) {
            return null;
        }
        char[] password = System.getenv("PANTALA_TLS_STORE_PASS").toCharArray();
        try (InputStream certificate = new FileInputStream(authority);
                InputStream own = new FileInputStream(System.getenv("PANTALA_TLS_STORE"))) {
            KeyStore trusted = KeyStore.getInstance("PKCS12");
            trusted.load(null, null);
            trusted.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(certificate));
            TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            trust.init(trusted);
            KeyStore store = KeyStore.getInstance("PKCS12");
            store.load(own, password);
            KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
            keys.init(store, password);
            SSLContext context = SSLContext.getInstance("TLS");
            context.init(keys.getKeyManagers(), trust.getTrustManagers(), null);
            return context.getSocketFactory();
        } catch (Exception why) {
            throw new IllegalStateException(why);
        }
    }

    /** Runs one check. If it fails, exits with 1. */
    static void check(String name, Body body) {
        long start = System.nanoTime();
        try {
            body.run();
        } catch (Throwable why) {
            System.err.println("FAILED " + name);
            why.printStackTrace();
            System.exit(1);
        }
        System.out.printf("ok %s (%d ms)%n", name, (System.nanoTime() - start) / 1_000_000);
    }

    static void must(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    static void same(Object is, Object wanted) {
        must(wanted.equals(is), "is " + is + ", wanted " + wanted);
    }

    /** Runs {@code work} in threads. If a thread throws an exception, rethrows it. */
    static void together(Work work) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(THREADS);
        List<Future<?>> all = new ArrayList<>();
        for (int number = 0; number < THREADS; number++) {
            int mine = number;
            all.add(pool.submit((Callable<Void>) () -> {
                work.run(mine);
                return null;
            }));
        }
        try {
            for (Future<?> one : all) {
                one.get(WAIT_MAX_S, TimeUnit.SECONDS);
            }
        } finally {
            pool.shutdownNow();
        }
    }
}
