//! Runs a test in its own network namespace, in which the loopback interface has additional
//! addresses. To a server, a connection between two of these addresses looks like a connection from
//! another host, because neither address is a loopback address. The test may cut or slow down such
//! connections without affecting other tests.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::{binary, tool};

/// Addresses that the namespace has in addition to those of a loopback interface.
pub const V4: [&str; 3] = ["10.77.0.1", "10.77.0.2", "10.77.0.3"];
/// An IPv6 address that the namespace also has, if the host supports IPv6.
pub const V6: &str = "fd77::1";

/// Environment variable that tells a test that it runs in the namespace.
const INSIDE: &str = "PANTALA_TEST_IN_NAMESPACE";

/// Runs the test with the path `test` again, in a network namespace with the addresses above.
/// Returns `true` when that run has passed, or if no namespace can be created. Returns `false` if
/// the caller is already in the namespace; the caller must then run the test's body. Containers may
/// forbid namespaces, so the test is then skipped, even in CI.
///
/// # Panics
/// If the test fails in the namespace, or runs longer than `limit`.
#[must_use]
pub fn is_run_inside(test: &str, limit: Duration) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return false;
    }
    let (Some(unshare), Some(ip)) = (tool::find("unshare"), tool::find("ip")) else { return true };
    // Users other than root need a user namespace, too.
    let ways: [&[&str]; 2] = [&["--net"], &["--map-root-user", "--net"]];
    let works =
        |way: &&&[&str]| Command::new(&unshare).args(**way).arg("true").output().is_ok_and(|ran| ran.status.success());
    let Some(way) = ways.iter().find(works) else {
        tool::skipped(format_args!("{test}: no network namespace can be created"));
        return true;
    };
    let ip = ip.display();
    let script = format!(
        "{ip} link set lo up && for a in {}; do {ip} address add $a/24 dev lo || exit 1; done && \
         {{ {ip} address add {V6}/64 dev lo nodad || true; }} && exec \"$@\"",
        V4.join(" ")
    );
    let own = std::env::current_exe().expect("a test has a path");
    let mut command = Command::new(&unshare);
    command.args(*way).args(["sh", "-c", &script, "sh"]).arg(own);
    command.args(["--exact", test, "--include-ignored", "--nocapture"]);
    command.env(INSIDE, "1").env("PANTALA_BIN", binary::pantala());
    let ran = tool::run_to_end(&mut command, b"", limit);
    assert!(ran.success, "in the namespace:\n{}\n{}", ran.output, ran.errors);
    assert!(ran.output.contains("1 passed"), "the test ran in the namespace: {}", ran.output);
    true
}

/// The connections between the addresses of the namespace, which can be cut.
pub struct Network {
    ip: PathBuf,
    tc: Option<PathBuf>,
}

impl Network {
    /// Returns the namespace's network, or `None` if the kernel has no policy routing.
    ///
    /// # Panics
    /// If called outside of a namespace.
    #[must_use]
    pub fn new() -> Option<Network> {
        assert!(std::env::var_os(INSIDE).is_some(), "the network of the host must not be changed");
        let network = Network { ip: tool::find("ip")?, tc: tool::on_path("tc") };
        // By default, the rule for local addresses is the first. The rules that cut connections
        // must precede it, so it gets a later position.
        let is_possible = network.run("rule add pref 100 lookup local") && network.run("rule del pref 0");
        if !is_possible {
            tool::skipped("cut connections: the kernel has no policy routing");
        }
        is_possible.then_some(network)
    }

    fn run(&self, words: &str) -> bool {
        Command::new(&self.ip).args(words.split(' ')).output().is_ok_and(|ran| ran.status.success())
    }

    /// Drops all packets from one address to another, without notice to either side.
    ///
    /// # Panics
    /// If the rule can't be added.
    pub fn cut(&self, from: &str, to: &str) {
        assert!(self.run(&format!("rule add pref 50 from {from} to {to} blackhole")), "{from} to {to}");
    }

    /// Delays and drops packets of all connections, including those of clients. Returns the
    /// queueing discipline that does this, or `None` if the kernel has none.
    #[must_use]
    pub fn slow_down(&self) -> Option<&'static str> {
        let tc = self.tc.as_ref()?;
        // If the kernel has no netem, a token bucket is used. Its queue delays packets, and drops
        // packets that don't fit.
        let ways = ["netem delay 15ms 10ms loss 2%", "tbf rate 16mbit burst 128kb latency 40ms"];
        ways.into_iter().find(|way| {
            let words = "qdisc replace dev lo root".split(' ').chain(way.split(' '));
            Command::new(tc).args(words).output().is_ok_and(|ran| ran.status.success())
        })
    }

    /// Removes all faults.
    pub fn heal(&self) {
        while self.run("rule del pref 50") {}
        if let Some(tc) = &self.tc {
            // The error is ignored: the command fails if nothing was slowed down.
            let _ = Command::new(tc).args(["qdisc", "del", "dev", "lo", "root"]).output();
        }
    }
}
