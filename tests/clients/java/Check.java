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

/** Code that all workloads share: the server's port, named checks, and threads whose errors are
 * rethrown. */
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

    /** The authority and the client's certificate. Null if the port is not encrypted. */
    private static final TrustManagerFactory TRUST;
    private static final KeyManagerFactory KEYS;
    private static final SSLSocketFactory ENCRYPTED;

    static {
        try {
            TRUST = readAuthority(System.getenv("PANTALA_TLS_CA"));
            KEYS = readKey(System.getenv("PANTALA_TLS_STORE"));
            ENCRYPTED = TRUST == null ? null : sockets();
        } catch (Exception why) {
            throw new IllegalStateException(why);
        }
    }

    private Check() {}

    /** Returns the factory of sockets with the client's certificate. Returns null if the port is
     * not encrypted. */
    static SSLSocketFactory encrypted() {
        return ENCRYPTED;
    }

    /** Returns the authority that signed the server's certificate, or null. */
    static TrustManagerFactory trust() {
        return TRUST;
    }

    /** Returns the client's certificate and its key, or null. */
    static KeyManagerFactory keys() {
        return KEYS;
    }

    private static TrustManagerFactory readAuthority(String file) throws Exception {
        if (file == null) {
            return null;
        }
        try (InputStream certificate = new FileInputStream(file)) {
            KeyStore trusted = KeyStore.getInstance("PKCS12");
            trusted.load(null, null);
            CertificateFactory factory = CertificateFactory.getInstance("X.509");
            trusted.setCertificateEntry("ca", factory.generateCertificate(certificate));
            TrustManagerFactory trust =
                    TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            trust.init(trusted);
            return trust;
        }
    }

    private static KeyManagerFactory readKey(String file) throws Exception {
        if (file == null) {
            return null;
        }
        char[] password = System.getenv("PANTALA_TLS_STORE_PASS").toCharArray();
        try (InputStream own = new FileInputStream(file)) {
            KeyStore store = KeyStore.getInstance("PKCS12");
            store.load(own, password);
            KeyManagerFactory keys =
                    KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
            keys.init(store, password);
            return keys;
        }
    }

    private static SSLSocketFactory sockets() throws Exception {
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(KEYS.getKeyManagers(), TRUST.getTrustManagers(), null);
        return context.getSocketFactory();
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
