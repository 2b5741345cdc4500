//! A transaction gets the shards (parts of the key space) for which it waited while its worker runs
//! a script. The script has not run for longer than `busy-reply-threshold`, so the worker does not
//! run the transaction before the script ends. After some milliseconds the transaction is *reset*:
//! it releases its shards, and acquires them again after the script.
//!
//! The tests have three workers:
//!
//! | worker | runs |
//! | --- | --- |
//! | 0 | the commands that must wait for the transaction |
//! | 1 | the transaction, and the script that delays it |
//! | 2 | the script that holds the shard of the transaction when the transaction starts |

use std::time::Duration;

use pantala_tests::following::{PRIMARY, assert_same, follow, info};
use pantala_tests::waiting::eventually;
use pantala_tests::workers::connect_to_worker;
use pantala_tests::{Client, Reply, Server, for_each_backend};

/// Scripts don't become busy in these tests.
const LAYOUT: [&str; 6] = ["--workers", "3", "--shards", "12", "--busy-reply-threshold", "60000"];

/// Duration of the script that holds the shard.
const HOLDS: Duration = Duration::from_millis(1000);

/// Duration of the script that delays the transaction.
const DELAYS: Duration = Duration::from_millis(3000);

/// Starts a read-only script that runs for `time`.
fn start_script(client: &mut Client, time: Duration, keys: &[&str]) {
    let script = format!(
        "local function now() local t = redis.call('TIME') return t[1] + t[2] / 1e6 end \
         local till = now() + {} while now() < till do end return 'done'",
        time.as_secs_f64()
    );
    let count = keys.len().to_string();
    client.send(&[["EVAL_RO", &script, &count].as_slice(), keys].concat());
    // In this time, the worker receives the script.
    std::thread::sleep(Duration::from_millis(50));
}

/// The clients of a scenario.
struct Clients {
    /// Belongs to worker 0.
    control: Client,
    /// Runs the transaction, which sets the key `y` to `new`. Its `EXEC` waits for the shard. The
    /// transaction needs its client's session, so no other worker can run it.
    writer: Client,
    /// Will run the script that delays the transaction.
    delaying: Client,
    /// Runs the script that holds the shard of `y`.
    holding: Client,
}

/// Starts a transaction that waits for its shard.
fn start_transaction(server: &Server) -> Clients {
    let [mut control, mut writer, delaying, mut holding] = [0, 1, 1, 2].map(|worker| connect_to_worker(server, worker));
    assert_eq!(control.call("SET y old"), Reply::ok());
    start_script(&mut holding, HOLDS, &["y"]);
    assert_eq!(writer.call("MULTI"), Reply::ok());
    for words in ["SET y new", "CLIENT GETNAME"] {
        assert_eq!(writer.call(words), Reply::Simple("QUEUED".into()));
    }
    writer.send(&["EXEC"]);
    assert!(!writer.has_reply_within(Duration::from_millis(50)), "the transaction does not wait");
    Clients { control, writer, delaying, holding }
}

/// Returns the reply to the transaction's `EXEC`.
fn transaction_reply() -> Reply {
    Reply::Array(vec![Reply::ok(), Reply::Null])
}

impl Clients {
    /// Starts the script that delays the transaction, while the transaction still waits.
    fn delay_transaction(&mut self) {
        start_script(&mut self.delaying, DELAYS, &[]);
        assert!(!self.holding.has_reply_within(Duration::from_millis(1)), "the first script was too short");
    }

    /// Waits until the scripts and the transaction have ended.
    fn wait_for_end(&mut self) {
        assert_eq!(self.holding.receive(), Reply::bulk("done"));
        assert_eq!(self.delaying.receive(), Reply::bulk("done"));
        assert_eq!(self.writer.receive(), transaction_reply());
    }
}

/// A transaction is reset, and then a failover starts. The failover waits until the transaction has
/// run. So the new primary has the transaction's write, which is acknowledged later.
#[test]
fn a_failover_waits_for_a_transaction_that_was_reset() {
    for_each_backend(|backend| {
        let primary = Server::pantala(backend, &[&LAYOUT[..], &PRIMARY].concat());
        let replica = Server::pantala(backend, &["--workers", "1"]);
        follow(&replica, &primary);
        let mut clients = start_transaction(&primary);
        clients.delay_transaction();
        assert_eq!(clients.holding.receive(), Reply::bulk("done"));
        // The transaction has the shard for some milliseconds. This write runs after the reset.
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(clients.control.call("SET y between"), Reply::ok());
        assert!(!clients.delaying.has_reply_within(Duration::from_millis(1)), "the second script was too short");
        assert_eq!(clients.control.call("FAILOVER"), Reply::ok());
        assert_eq!(clients.delaying.receive(), Reply::bulk("done"));
        assert_eq!(clients.writer.receive(), transaction_reply());
        eventually("the failover ends", || info(&primary, "replication", "role") == "slave");
        assert_same(&primary, &replica);
        assert_eq!(replica.connect().call("GET y"), Reply::bulk("new"), "{}", primary.log());
    });
}

/// A transaction waits for its shards when `CLIENT PAUSE` is sent. The shards arrive while the
/// transaction's worker runs a read-only script, which the pause permits. `CLIENT PAUSE` replies
/// only after the transaction has run.
#[test]
fn a_pause_waits_for_a_transaction_that_a_script_delays() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &LAYOUT);
        let mut clients = start_transaction(&server);
        clients.control.send(&["CLIENT", "PAUSE", "100000", "WRITE"]);
        // Worker 1 confirms the pause before it starts the script.
        assert!(!clients.control.has_reply_within(Duration::from_millis(50)), "a script holds a shard");
        clients.delay_transaction();
        assert_eq!(clients.control.receive(), Reply::ok());
        assert_eq!(clients.control.call("GET y"), Reply::bulk("new"));
        clients.wait_for_end();
    });
}
