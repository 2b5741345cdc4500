import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import redis.clients.jedis.BuilderFactory;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.Protocol;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Transaction;
import redis.clients.jedis.exceptions.JedisAccessControlException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.resps.AccessControlUser;

/** Jedis: users and their rules, logins, ACL LOG, and the ACL file. */
final class JedisUsers {
    private static final String USER = "library";
    private static final String PASSWORD = "a password";
    /** SHA-256 of the password. */
    private static final String HASH =
            "afd1368cbf1509870eecbbce3c3bc4614e5d10e9f03aa6590db688d4cffbe86b";
    /** A name that is not UTF-8. */
    private static final byte[] BINARY = {(byte) 0xff, (byte) 0xfe, 1, 'l', 'i', 'b'};

    private JedisUsers() {}

    /** A check with one protocol. The user does not exist at its start. */
    private interface Body {
        void run(RedisProtocol protocol, Jedis admin) throws Exception;
    }

    private static void check(String name, Body body) {
        Check.check(name, () -> {
            for (RedisProtocol protocol : RedisProtocol.values()) {
                try (Jedis admin = JedisWork.client(protocol, null, null)) {
                    admin.aclDelUser(USER);
                    body.run(protocol, admin);
                    admin.aclDelUser(USER);
                }
            }
        });
    }

    /** Checks that {@code body} throws exactly this class of exception. */
    private static void fails(Class<? extends JedisException> kind, String part, Runnable body) {
        try {
            body.run();
        } catch (JedisException error) {
            Check.same(error.getClass(), kind);
            Check.must(error.getMessage().contains(part), error.getMessage());
            return;
        }
        throw new AssertionError("no error with " + part);
    }

    private static void denied(String part, Runnable body) {
        fails(JedisAccessControlException.class, "NOPERM this user has no permissions " + part, body);
    }

    private static void refused(Runnable body) {
        fails(JedisAccessControlException.class, "WRONGPASS ", body);
    }

    private static void rejected(String part, Runnable body) {
        fails(JedisDataException.class, part, body);
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static Set<String> words(String text) {
        return new HashSet<>(Arrays.asList(text.split(" ")));
    }

    private static boolean has(List<byte[]> all, byte[] one) {
        return all.stream().anyMatch(other -> Arrays.equals(other, one));
    }

    private static void rules(RedisProtocol protocol, Jedis admin) {
        Check.must(admin.aclGetUser(USER) == null, "a user who does not exist");
        Check.same(admin.aclSetUser(USER), "OK");
        AccessControlUser user = admin.aclGetUser(USER);
        Check.must(user.getFlags().contains("off"), user.toString());
        Check.same(user.getCommands(), "-@all");
        Check.must(user.getPasswords().isEmpty() && user.getKeys().isEmpty(), user.toString());
        Check.same(
                admin.aclSetUser(
                        USER, "reset", "on", ">" + PASSWORD, "+@set", "-sadd", "+get",
                        "~cache:*", "~more", "&message:*", "(+set %W~written:*)"),
                "OK");
        user = admin.aclGetUser(USER);
        Check.must(user.getFlags().contains("on"), user.toString());
        Check.same(user.getPasswords(), List.of(HASH));
        Check.same(words(user.getCommands()), Set.of("-@all", "+@set", "-sadd", "+get"));
        Check.same(user.getKeys(), "~cache:* ~more");
        Check.same(user.getKeysList(), List.of("~cache:*", "~more"));
        Check.same(user.getChannelsList(), List.of("&message:*"));
        // Jedis declares the selectors as a list of strings, but returns the reply unchanged.
        String selectors = user.getUserInfo().get("selectors").toString();
        String wanted = protocol == RedisProtocol.RESP2
                ? "[[commands, -@all +set, keys, %W~written:*, channels, ]]"
                : "[[commands=-@all +set, keys=%W~written:*, channels=]]";
        Check.same(selectors, wanted);
        // The password is set as a hash.
        admin.aclSetUser(USER, "resetpass", "#" + HASH);
        Check.same(admin.aclGetUser(USER).getPasswords(), List.of(HASH));
        admin.aclSetUser(USER, "nopass", "allkeys", "allcommands", "-ping");
        user = admin.aclGetUser(USER);
        Check.must(user.getFlags().contains("nopass"), user.toString());
        Check.same(user.getCommands(), "+@all -ping");
        rejected("Unknown command or category", () -> admin.aclSetUser(USER, "+nosuch"));
        rejected("password you are trying to remove", () -> admin.aclSetUser(USER, "<absent"));
    }

    private static void listings(RedisProtocol protocol, Jedis admin) {
        Check.same(admin.aclWhoAmI(), "default");
        admin.aclSetUser(USER, "on", "nopass", "~a", "+get");
        Check.same(admin.aclUsers(), List.of("default", USER));
        String line = "user " + USER + " on nopass ~a resetchannels -@all +get";
        Check.same(admin.aclList().get(1), line);
        Check.must(has(admin.aclListBinary(), bytes(line)), "the list in bytes");
        Check.must(admin.aclCat().containsAll(List.of("read", "write", "scripting")), "categories");
        Check.must(has(admin.aclCatBinary(), bytes("scripting")), "categories in bytes");
        List<String> hash = admin.aclCat("hash");
        Check.must(hash.contains("hset") && !hash.contains("get"), hash.toString());
        Check.must(has(admin.aclCat(bytes("hash")), bytes("hset")), "commands in bytes");
        rejected("Unknown category", () -> admin.aclCat("nosuch"));
        Check.must(admin.aclGenPass().matches("[0-9a-f]{64}"), "a password");
        Check.must(admin.aclGenPass(5).matches("[0-9a-f]{2}"), "a short password");
        Check.same(admin.aclGenPassBinary(1024).length, 256);
        // Jedis has no method for ACL HELP.
        Object reply = admin.sendCommand(Protocol.Command.ACL, "HELP");
        List<String> help = BuilderFactory.STRING_LIST.build(reply);
        Check.must(help.get(0).startsWith("ACL <subcommand>"), help.get(0));
        Check.must(help.stream().anyMatch(text -> text.startsWith("SETUSER ")), help.toString());
        Check.same(admin.aclDelUser(USER, "nobody"), 1L);
        Check.same(admin.aclDelUser(USER), 0L);
    }

    private static void dryRuns(RedisProtocol protocol, Jedis admin) {
        admin.aclSetUser(USER, "nopass", "~a*", "+set");
        Check.same(admin.aclDryRun(USER, "SET", "a", "1"), "OK");
        Check.must(admin.aclDryRun(USER, "GET", "a").contains("'get'"), "a command");
        Check.must(admin.aclDryRun(USER, "SET", "b", "1").contains("'b'"), "a key");
        byte[] answer = admin.aclDryRunBinary(bytes(USER), bytes("SET"), bytes("a"), bytes("1"));
        Check.same(new String(answer, StandardCharsets.UTF_8), "OK");
        rejected("'nobody' not found", () -> admin.aclDryRun("nobody", "GET", "a"));
    }

    private static void logins(RedisProtocol protocol, Jedis admin) {
        admin.aclSetUser(
                USER, "on", ">" + PASSWORD, "~open", "&news",
                "+get", "+set", "+publish", "+multi", "+exec", "+acl|whoami");
        refused(() -> JedisWork.client(protocol, USER, "wrong"));
        refused(() -> JedisWork.client(protocol, "nobody", PASSWORD));
        refused(() -> admin.auth(USER, "wrong"));
        Check.same(admin.aclWhoAmI(), "default");
        try (Jedis own = JedisWork.client(protocol, USER, PASSWORD)) {
            Check.same(own.aclWhoAmI(), USER);
            Check.same(own.set("open", "1"), "OK");
            denied("to run the 'incr' command", () -> own.incr("open"));
            denied("to access one of the keys", () -> own.get("secret"));
            denied("to run the 'acl|list' command", () -> own.aclList());
            denied("to access one of the channels", () -> own.publish("other", "x"));
            Check.same(own.publish("news", "x"), 0L);
            // A transaction with a denied command does not run.
            Transaction transaction = own.multi();
            transaction.set("open", "2");
            transaction.get("secret");
            try {
                transaction.exec();
                throw new AssertionError("a transaction with a denied command ran");
            } catch (JedisDataException error) {
                Check.must(error.getMessage().startsWith("EXECABORT "), error.getMessage());
            }
            Check.same(own.get("open"), "1");
            // The connection's user changes.
            Check.same(own.auth("default", "any"), "OK");
            Check.same(own.aclWhoAmI(), "default");
        }
        try (Jedis own = JedisWork.client(protocol, USER, PASSWORD)) {
            admin.aclDelUser(USER);
            try {
                own.get("open");
                throw new AssertionError("a deleted user reads a key");
            } catch (JedisException error) {
                Check.must(own.isBroken(), error.toString());
            }
        }
    }

    /**
     * Returns the entries of ACL LOG by reason and object. {@code Jedis.aclLog} fails, because it
     * requires fields that the entries of Redis 7.0 do not have.
     */
    private static Map<String, Map<String, Object>> log(Jedis admin, String count) {
        Map<String, Map<String, Object>> entries = new HashMap<>();
        for (Object entry : (List<?>) admin.sendCommand(Protocol.Command.ACL, "LOG", count)) {
            Map<String, Object> fields = BuilderFactory.ENCODED_OBJECT_MAP.build(entry);
            entries.put(fields.get("reason") + " " + fields.get("object"), fields);
        }
        return entries;
    }

    private static void denials(RedisProtocol protocol, Jedis admin) {
        Check.same(admin.aclLogReset(), "OK");
        Check.must(admin.aclLog().isEmpty(), "an empty log");
        admin.aclSetUser(USER, "on", ">" + PASSWORD, "~open", "+get");
        try (Jedis own = JedisWork.client(protocol, USER, PASSWORD)) {
            for (int turn = 0; turn < 3; turn++) {
                denied("to access one of the keys", () -> own.get("secret"));
            }
            denied("to run the 'hset' command", () -> own.hset("open", "a", "1"));
        }
        refused(() -> JedisWork.client(protocol, USER, "wrong"));
        Map<String, Map<String, Object>> entries = log(admin, "10");
        Map<String, Object> secret = entries.get("key secret");
        Check.same(secret.get("count"), 3L);
        Check.same(secret.get("context"), "toplevel");
        Check.same(secret.get("username"), USER);
        double age = Double.parseDouble(secret.get("age-seconds").toString());
        Check.must(age >= 0 && age < 60, "age " + age);
        String info = secret.get("client-info").toString();
        Check.must(info.contains(" cmd=get user=" + USER + " "), info);
        Check.must(entries.containsKey("command hset"), entries.toString());
        Check.must(entries.containsKey("auth HELLO"), entries.toString());
        Check.same(log(admin, "1").size(), 1);
        admin.aclLogReset();
        Check.must(admin.aclLog().isEmpty() && admin.aclLog(1).isEmpty(), "an empty log");
    }

    private static void file(RedisProtocol protocol, Jedis admin) {
        admin.aclSetUser(USER, "on", ">" + PASSWORD, "~open", "+get");
        List<String> saved = admin.aclList();
        Check.same(admin.aclSave(), "OK");
        admin.aclSetUser(USER, "+set");
        admin.aclSetUser("unsaved");
        Check.must(!admin.aclList().equals(saved), "other users");
        Check.same(admin.aclLoad(), "OK");
        Check.same(admin.aclList(), saved);
        try (Jedis own = JedisWork.client(protocol, USER, PASSWORD)) {
            denied("to run the 'set' command", () -> own.set("open", "x"));
        }
        admin.aclDelUser(USER);
        Check.same(admin.aclSave(), "OK");
    }

    private static void binaryNames(RedisProtocol protocol, Jedis admin) {
        byte[] word = bytes(">" + PASSWORD);
        Check.same(admin.aclSetUser(BINARY, bytes("on"), word, bytes("+acl")), "OK");
        Check.must(has(admin.aclUsersBinary(), BINARY), "the name in ACL USERS");
        Check.same(admin.aclGetUser(BINARY).getPasswords(), List.of(HASH));
        Check.same(admin.aclGetUser(BINARY).getCommands(), "-@all +acl");
        byte[] answer = admin.aclDryRunBinary(BINARY, bytes("ACL"), bytes("USERS"));
        Check.same(new String(answer, StandardCharsets.UTF_8), "OK");
        try (Jedis own = JedisWork.client(protocol, null, null)) {
            // `auth` accepts only strings, so the command is sent as bytes.
            own.sendCommand(Protocol.Command.AUTH, BINARY, bytes(PASSWORD));
            Check.must(Arrays.equals(own.aclWhoAmIBinary(), BINARY), "the name in ACL WHOAMI");
            denied("to run the 'get' command", () -> own.get(BINARY));
        }
        Check.same(admin.aclSave(), "OK");
        Check.same(admin.aclLoad(), "OK");
        Check.must(has(admin.aclUsersBinary(), BINARY), "the name in the file");
        Check.same(admin.aclDelUser(BINARY), 1L);
        Check.must(admin.aclGetUser(BINARY) == null, "the user is deleted");
        String why = "can't contain spaces or null characters";
        rejected(why, () -> admin.aclSetUser("with space"));
        rejected(why, () -> admin.aclSetUser(new byte[] {'a', 0}));
        Check.same(admin.aclSave(), "OK");
    }

    static void checks() {
        check("rules of a user", JedisUsers::rules);
        check("lists of users, categories and help", JedisUsers::listings);
        check("permissions tried without running", JedisUsers::dryRuns);
        check("logins and denials", JedisUsers::logins);
        check("the log of denials", JedisUsers::denials);
        check("users saved and loaded", JedisUsers::file);
        check("names of users that are not text", JedisUsers::binaryNames);
    }
}
