//! Shards that come to a worker while it runs a script: it can't use them before the script ends, so nobody waits for them that long. No script here is ever busy
//! (`busy-reply-threshold 0`): what isn't handed on would be held for good.

use std::time::Duration;

use pantala_tests::waiting::eventually;
use pantala_tests::{Backend, Client, Reply, Server, for_each_backend};

/// For how long an answer is waited for: far longer than it takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Keys that the function of the holder holds, and one that it doesn't: they live in different shards.
const HELD: [&str; 8] = ["h0", "h1", "h2", "h3", "h4", "h5", "h6", "h7"];
const OWN: &str = "own";

/// Clients by what they do, each kind on a worker of its own.
struct Scene {
    server: Server,
    /// Holds [`HELD`] with an endless function, until that is killed.
    holder: Client,
    /// Those on whose worker an endless script is to run.
    stuck: Vec<Client>,
    /// Those that look on, and wait for keys.
    others: Vec<Client>,
    /// One on each worker, so that each has as many as the others.
    _balance: Vec<Client>,
}

impl Scene {
    /// With so many clients of each kind. `behind`: what the holder sends in one write with the call of its function.
    fn new(backend: Backend, clients: usize, behind: &[&str]) -> Scene {
        let args = ["--workers", "3", "--shards", "64", "--busy-reply-threshold", "0", "--hz", "1"];
        let server = Server::pantala(backend, &args);
        let connect = || {
            let mut client = server.connect();
            client.set_read_timeout(PATIENCE);
            // A worker counts a connection that it was given once it has taken it over.
            assert_eq!(client.call("PING"), Reply::Simple("PONG".into()));
            client
        };
        // Each new connection goes to the worker with the fewest, or the first of those: in turn, once all of them have one.
        let mut first = connect();
        eventually("it is alone", || first.call("INFO clients").text().contains("connected_clients:1\r\n"));
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

    /// Waits until so many clients have sent that command, as the last one.
    fn wait_for_commands(&mut self, command: &str, count: usize) {
        let wanted = format!(" cmd={command} ");
        eventually(command, || self.others[0].call("CLIENT LIST").text().matches(&wanted).count() == count);
    }

    /// Has an endless script run on the worker of those that are stuck, which has no other shard than that of [`OWN`].
    fn begin_script(&mut self) {
        let last = self.stuck.last_mut().expect("some are");
        last.send(&["EVAL", "while true do end", "1", OWN]);
        self.wait_for_commands("eval", 1);
    }

    /// Ends the function of the holder. What that is answered is sent with the end of its turn.
    fn kill_function(&mut self) {
        let killer = &mut self.others[0];
        killer.call("CONFIG SET busy-reply-threshold 1");
        eventually("it is killed", || killer.call("FUNCTION KILL") == Reply::ok());
    }

    /// Ends the script, and asks whether nothing was lost.
    fn end(mut self) {
        let killer = &mut self.others[0];
        eventually("it is killed", || killer.call("SCRIPT KILL") == Reply::ok());
        assert!(self.stuck.pop().expect("it is the last").receive().is_error());
        assert_eq!(killer.command(&[["DEL", OWN].as_slice(), &HELD].concat()), Reply::Integer(0));
        self.server.assert_sound();
    }
}

/// What a request has brought for a connection of that worker, be it for `WATCH` or for a transaction that needs its session.
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
        scene.begin_script();
        scene.kill_function();
        for key in HELD {
            // Once the script is busy, the transaction may have run in a turn within it.
            let reply = scene.others[1].call(&format!("GET {key}"));
            assert!(reply == Reply::Null || reply == Reply::bulk("1"), "{key}: {reply:?}");
        }
        // They come to their shards when the script has ended.
        let [watcher, exec] = [0, 1].map(|_| scene.stuck.remove(0));
        let (mut watcher, mut exec, mut other) = (watcher, exec, scene.server.connect());
        let killer = &mut scene.others[0];
        eventually("it is killed", || killer.call("SCRIPT KILL") == Reply::ok());
        assert_eq!(watcher.receive(), Reply::ok());
        assert_eq!(exec.receive().elements()[1..], [Reply::Integer(1), Reply::ok(), Reply::Integer(1)]);
        watcher.call("MULTI");
        assert_eq!(other.command(&["SET", HELD[0], "1"]), Reply::ok());
        watcher.call("PING");
        assert_eq!(watcher.call("EXEC"), Reply::Null);
        scene.server.assert_sound();
    });
}

/// Whoever frees a shard that many wait for sends it to its home, or puts it off if that is this worker.
#[test]
fn shards_sent_to_their_home_in_a_script_are_free_for_others() {
    /// More than one owner runs for others at a time.
    const CLIENTS: usize = 100;
    for_each_backend(|backend| {
        let mut scene = Scene::new(backend, CLIENTS, &[]);
        for (number, client) in scene.others.iter_mut().enumerate().skip(1) {
            client.send(&["GET", HELD[number % HELD.len()]]);
        }
        scene.wait_for_commands("get", CLIENTS - 1);
        scene.begin_script();
        scene.kill_function();
        assert!(scene.others[1..].iter_mut().all(|client| client.receive() == Reply::Null));
        scene.end();
    });
}

/// A worker that puts off shards, and then runs a script in the same turn.
#[test]
fn shards_put_off_before_a_script_are_free_for_others() {
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
        eventually("it is killed", || killer.call("SCRIPT KILL") == Reply::ok());
        assert!(scene.holder.receive().is_error() && scene.holder.receive().is_error());
        scene.server.assert_sound();
    });
}

/// How long a reply may take before its key counts as held.
const REPLY_TIME: Duration = Duration::from_millis(100);

/// Waits until a script holds a key: its command has then begun to run, which the list of clients
/// doesn't tell.
fn wait_until_held(server: &Server, key: &str) {
    eventually("the key is held", || {
        let mut client = server.connect();
        client.set_read_timeout(REPLY_TIME);
        client.send(&["STRLEN", key]);
        client.try_receive().is_err()
    });
}

/// A script that had to wait makes room, for want of memory, before it runs.
#[test]
fn shards_that_a_script_evicted_from_are_free_for_others() {
    const KEYS: usize = 200;
    const VALUE_BYTES: usize = 50_000;
    for_each_backend(|backend| {
        let mut scene = Scene::new(backend, 2, &[]);
        scene.kill_function();
        assert!(scene.holder.receive().is_error());
        // Such as are in another shard than the script's: there nobody is refused because of it.
        let value = "v".repeat(VALUE_BYTES);
        scene.holder.send(&["EVAL", "while true do end", "1", HELD[0]]);
        let mut keys: Vec<String> = (0..KEYS).map(|number| format!("key:{number}")).collect();
        keys.retain(|key| scene.others[0].command(&["SET", key, &value]) == Reply::ok());
        assert!(keys.len() > KEYS / 2);
        eventually("it is killed", || scene.others[0].call("SCRIPT KILL") == Reply::ok());
        scene.holder.receive();
        scene.holder.call("PING");
        let used_bytes: usize = {
            let info = scene.others[0].call("INFO memory").text();
            let line = info.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("it says");
            line.trim().parse().expect("a number")
        };
        let limit_bytes = used_bytes + 20 * VALUE_BYTES;
        scene.others[0].call(&format!(
            "CONFIG SET busy-reply-threshold 0 maxmemory-policy allkeys-random maxmemory {limit_bytes}"
        ));
        // When it has ended memory is above its limit by some dozen values, which nobody notices before the next command.
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
        eventually("it is killed", || scene.others[0].call("SCRIPT KILL") == Reply::ok());
        assert!(scene.stuck[0].receive().is_error());
        scene.server.assert_sound();
    });
}
