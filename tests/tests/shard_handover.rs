//! A *shard* is a part of the key space, which one worker (a thread with an event loop) holds at a
//! time. Workers hand shards over to each other. If a worker receives shards while it runs a
//! script, it releases them immediately, because it can't use them before the script ends. In these
//! tests, the script is endless. With `busy-reply-threshold 0` it does not become busy before
//! `kill_function` changes the threshold, so its worker serves no other client. A shard that isn't
//! released would be held forever.

use std::time::Duration;

use pantala_tests::waiting::eventually;
use pantala_tests::{Backend, Client, Reply, Server, for_each_backend};

/// Maximum wait for a reply. It is far longer than a reply takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Keys whose shards the function of [`Scene::holder`] holds. [`OWN`] is a key in a shard that the
/// function doesn't hold.
const HELD: [&str; 8] = ["h0", "h1", "h2", "h3", "h4", "h5", "h6", "h7"];
const OWN: &str = "own";

/// A server and its clients, in three groups by purpose. All clients of a group belong to one
/// worker, and each group has a different worker.
struct Scene {
    server: Server,
    /// Runs an endless function, which holds the shards of [`HELD`] until it is killed.
    holder: Client,
    /// Clients of the worker that runs an endless script. None of them is served before the script
    /// is killed.
    stuck: Vec<Client>,
    /// Clients that observe the server and wait for keys.
    others: Vec<Client>,
    /// Idle clients, one per worker. With them, the server assigns further connections round robin.
    _balance: Vec<Client>,
}

impl Scene {
    /// Starts a server with this number of clients in each group. The holder sends the call of its
    /// function and the command `behind` in one write.
    fn new(backend: Backend, clients: usize, behind: &[&str]) -> Scene {
        let args = ["--workers", "3", "--shards", "64", "--busy-reply-threshold", "0", "--hz", "1"];
        let server = Server::pantala(backend, &args);
        let connect = || {
            let mut client = server.connect();
            client.set_read_timeout(PATIENCE);
            // The worker counts the connection when it replies to the first command.
            assert_eq!(client.call("PING"), Reply::Simple("PONG".into()));
            client
        };
        // A new connection is assigned to the worker with the fewest connections. If there are
        // several such workers, the first of them gets it. Once every worker has one connection,
        // the assignment is round robin. In the loop below, each worker therefore gets the clients
        // of one group.
        let mut first = connect();
        eventually("it is the only connection", || {
            first.call("INFO clients").text().contains("connected_clients:1\r\n")
        });
        let balance = vec![first, connect(), connect()];
        let (mut holders, mut stuck, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..clients {
            holders.push(connect());
            stuck.push(connect());
            others.push(connect());
        }
        let mut holder = holders.swap_remove(0);
        let library = "#!lua name=lib\nredis.register_function('endless', function() while true do end end)";
        assert_eq!(others[0].command(&["FUNCTION", "LOAD", library]), Reply::bulk("lib"));
        let mut commands = vec![[["FCALL", "endless", "8"].as_slice(), &HELD].concat(), behind.to_vec()];
        commands.retain(|command| !command.is_empty());
        holder.send_together(&commands);
        let mut scene = Scene { server, holder, stuck, others, _balance: balance };
        scene.wait_for_commands("fcall", 1);
        scene
    }

    /// Waits until `CLIENT LIST` shows this command as the last one of exactly this number of
    /// clients.
    fn wait_for_commands(&mut self, command: &str, count: usize) {
        let wanted = format!(" cmd={command} ");
        eventually(command, || self.others[0].call("CLIENT LIST").text().matches(&wanted).count() == count);
    }

    /// Starts an endless script on the worker of the stuck clients. The script holds only the shard
    /// of [`OWN`].
    fn start_script(&mut self) {
        let last = self.stuck.last_mut().expect("a stuck client");
        last.send(&["EVAL", "while true do end", "1", OWN]);
        self.wait_for_commands("eval", 1);
    }

    /// Kills the function of the holder. The holder receives its reply at the end of its worker's
    /// turn.
    fn kill_function(&mut self) {
        let killer = &mut self.others[0];
        killer.call("CONFIG SET busy-reply-threshold 1");
        eventually("the function is killed", || killer.call("FUNCTION KILL") == Reply::ok());
    }

    /// Kills the script. Checks that its shard and those of [`HELD`] are free.
    fn end(mut self) {
        let killer = &mut self.others[0];
        eventually("the script is killed", || killer.call("SCRIPT KILL") == Reply::ok());
        assert!(self.stuck.pop().expect("a stuck client").receive().is_error());
        assert_eq!(killer.command(&[["DEL", OWN].as_slice(), &HELD].concat()), Reply::Integer(0));
        self.server.assert_sound();
    }
}

/// Before the script starts, two clients of its worker request shards, one by `WATCH` and one by a
/// transaction. The shards arrive while the script runs, so neither client can be served.
#[test]
fn shards_brought_to_a_worker_in_a_script_are_free_for_others() {
    for_each_backend(|backend| {
        let mut scene = Scene::new(backend, 3, &[]);
        scene.stuck[0].send(&["WATCH", HELD[0]]);
        scene.wait_for_commands("watch", 1);
        for command in ["MULTI", "SELECT 1", "INCR h1", "SELECT 0", "INCR h1"] {
            scene.stuck[1].call(command);
        }
        scene.stuck[1].send(&["EXEC"]);
        scene.wait_for_commands("exec", 1);
        scene.start_script();
        scene.kill_function();
        for key in HELD {
            // The transaction may have set this key: [`Scene::kill_function`] lets scripts become
            // busy, and the worker of a busy script runs turns for its other clients.
            let reply = scene.others[1].call(&format!("GET {key}"));
            assert!(reply == Reply::Null || reply == Reply::bulk("1"), "{key}: {reply:?}");
        }
        // When the script has been killed, the two requests get their shards and run.
        let [watcher, exec] = [0, 1].map(|_| scene.stuck.remove(0));
        let (mut watcher, mut exec, mut other) = (watcher, exec, scene.server.connect());
        let killer = &mut scene.others[0];
        eventually("the script is killed", || killer.call("SCRIPT KILL") == Reply::ok());
        assert_eq!(watcher.receive(), Reply::ok());
        assert_eq!(exec.receive().elements()[1..], [Reply::Integer(1), Reply::ok(), Reply::Integer(1)]);
        watcher.call("MULTI");
        assert_eq!(other.command(&["SET", HELD[0], "1"]), Reply::ok());
        watcher.call("PING");
        assert_eq!(watcher.call("EXEC"), Reply::Null);
        scene.server.assert_sound();
    });
}

/// A worker that releases a contended shard sends it to the shard's home worker (the worker to
/// which it belongs). If the home worker is running a script, the shard must still reach the
/// clients that wait for it. (A home worker that itself releases a contended shard does so only at
/// the end of its turn. The next test is about this case.)
#[test]
fn shards_sent_home_in_a_script_are_free_for_others() {
    /// Number of clients. More commands wait for the shards than a home worker serves in a turn.
    const CLIENTS: usize = 100;
    for_each_backend(|backend| {
        let mut scene = Scene::new(backend, CLIENTS, &[]);
        for (number, client) in scene.others.iter_mut().enumerate().skip(1) {
            client.send(&["GET", HELD[number % HELD.len()]]);
        }
        scene.wait_for_commands("get", CLIENTS - 1);
        scene.start_script();
        scene.kill_function();
        assert!(scene.others[1..].iter_mut().all(|client| client.receive() == Reply::Null));
        scene.end();
    });
}

/// The holder's worker also has a script to run, which was sent after the function's call. When the
/// function is killed, the worker defers the release of its contended shards to the end of the
/// turn. The script starts in the same turn, so the worker must release the shards before it starts
/// the script.
#[test]
fn shards_deferred_before_a_script_are_free_for_others() {
    const CLIENTS: usize = 100;
    for_each_backend(|backend| {
        let mut scene = Scene::new(backend, CLIENTS, &["EVAL", "while true do end", "1", OWN]);
        for (number, client) in scene.others.iter_mut().enumerate().skip(1) {
            client.send(&["GET", HELD[number % HELD.len()]]);
        }
        scene.wait_for_commands("get", CLIENTS - 1);
        scene.kill_function();
        assert!(scene.others[1..].iter_mut().all(|client| client.receive() == Reply::Null));
        let killer = &mut scene.others[0];
        eventually("the script is killed", || killer.call("SCRIPT KILL") == Reply::ok());
        assert!(scene.holder.receive().is_error() && scene.holder.receive().is_error());
        scene.server.assert_sound();
    });
}

/// If the reply to a command on a key takes longer than this, the key's shard counts as held.
const REPLY_TIME: Duration = Duration::from_millis(100);

/// Waits until a script runs. CLIENT LIST doesn't show this, but a running script holds the shard
/// of its key.
fn wait_until_held(server: &Server, key: &str) {
    eventually("the key is held", || {
        let mut client = server.connect();
        client.set_read_timeout(REPLY_TIME);
        client.send(&["STRLEN", key]);
        client.try_receive().is_err()
    });
}

/// A script that has waited for its shard evicts keys of other shards before it runs, because
/// memory exceeds the limit.
#[test]
fn shards_that_a_script_evicted_from_are_free_for_others() {
    const KEYS: usize = 200;
    const VALUE_BYTES: usize = 50_000;
    for_each_backend(|backend| {
        let mut scene = Scene::new(backend, 2, &[]);
        scene.kill_function();
        assert!(scene.holder.receive().is_error());
        // These keys are not in the script's shard, so commands on them aren't rejected while the
        // script runs.
        let value = "v".repeat(VALUE_BYTES);
        scene.holder.send(&["EVAL", "while true do end", "1", HELD[0]]);
        eventually("the script is busy", || scene.others[0].command(&["STRLEN", HELD[0]]).is_error());
        let mut keys: Vec<String> = (0..KEYS).map(|number| format!("key:{number}")).collect();
        keys.retain(|key| scene.others[0].command(&["SET", key, &value]) == Reply::ok());
        assert!(keys.len() > KEYS / 2);
        eventually("the script is killed", || scene.others[0].call("SCRIPT KILL") == Reply::ok());
        scene.holder.receive();
        scene.holder.call("PING");
        let used_bytes: usize = {
            let info = scene.others[0].call("INFO memory").text();
            let line = info.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("INFO has the field");
            line.trim().parse().expect("a number")
        };
        let limit_bytes = used_bytes + 20 * VALUE_BYTES;
        scene.others[0].call(&format!(
            "CONFIG SET busy-reply-threshold 0 maxmemory-policy allkeys-random maxmemory {limit_bytes}"
        ));
        // The script fills memory up to some dozen values above the limit. The server evicts
        // nothing before the next command that may need memory.
        let fills = "local function now() local t = redis.call('TIME') return t[1] + t[2] / 1000000 end \
                     local began = now() while now() - began < 0.5 do end \
                     redis.call('SET', KEYS[1], string.rep('x', ARGV[1]))";
        scene.holder.send(&["EVAL", fills, "1", HELD[0], &(50 * VALUE_BYTES).to_string()]);
        wait_until_held(&scene.server, HELD[0]);
        scene.stuck[0].send(&["EVAL", "while true do end", "1", HELD[0]]);
        assert_eq!(scene.holder.receive(), Reply::Null);
        let reads: Vec<Vec<&str>> = keys.iter().map(|key| vec!["STRLEN", key]).collect();
        assert_eq!(scene.others[1].pipeline(&reads).len(), reads.len());
        scene.others[0].call("CONFIG SET busy-reply-threshold 1");
        eventually("the script is killed", || scene.others[0].call("SCRIPT KILL") == Reply::ok());
        assert!(scene.stuck[0].receive().is_error());
        scene.server.assert_sound();
    });
}
