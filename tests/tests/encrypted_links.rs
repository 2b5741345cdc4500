//! Encrypted links between a primary and its replicas (`tls-replication`): Pantala with itself, and
//! with redis-server in both roles.

use pantala_tests::following::{PRIMARY, assert_same, info, wait_for_link};
use pantala_tests::server::free_port;
use pantala_tests::tls::{Certificates, EC};
use pantala_tests::waiting::eventually;
use pantala_tests::{Backend, Reply, Server, for_each_backend};

/// Number of keys that the primary has when the replica starts to follow it.
const KEYS: usize = 20_000;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Pantala(Backend),
    Redis,
}

/// A server with an encrypted port. Its link to a primary is encrypted too.
struct Encrypted {
    server: Server,
    tls_port: u16,
}

impl Encrypted {
    /// Starts a server. Returns `None` if redis-server is needed but not installed.
    fn start(kind: Kind, certificates: &Certificates, certificate: &str) -> Option<Encrypted> {
        let tls_port = free_port();
        let mut args = certificates.server_args(tls_port, certificate);
        args.extend(["--tls-replication", "yes"].map(str::to_owned));
        args.extend(PRIMARY.map(str::to_owned));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let server = match kind {
            Kind::Pantala(backend) => Server::pantala(backend, &[&args[..], &["--workers", "2"]].concat()),
            Kind::Redis => Server::redis(&args)?,
        };
        Some(Encrypted { server, tls_port })
    }

    fn ask_to_follow(&self, port: u16) {
        assert_eq!(self.server.connect().call(&format!("REPLICAOF 127.0.0.1 {port}")), Reply::ok());
    }
}

/// Runs a full sync, a stream, a partial sync and a large value over an encrypted link.
fn follow_over_tls(primary: Kind, replica: Kind, certificates: &Certificates) {
    let Some(mut primary) = Encrypted::start(primary, certificates, "server") else { return };
    let Some(mut replica) = Encrypted::start(replica, certificates, "client") else { return };
    let mut client = primary.server.connect();
    assert_eq!(client.call(&format!("DEBUG POPULATE {KEYS} key 200")), Reply::ok());
    replica.ask_to_follow(primary.tls_port);
    wait_for_link(&replica.server);
    assert_eq!(client.call("SET after sync"), Reply::ok());
    // A value of more than one TLS record.
    client.command(&["SET", "large", &"x".repeat(300_000)]);
    assert_same(&replica.server, &primary.server);
    let listed = info(&primary.server, "replication", "slave0");
    assert!(listed.contains(&format!("port={}", replica.tls_port)), "the encrypted port is announced: {listed}");

    // After the link is lost, the stream continues at the same position.
    assert_eq!(client.call("CLIENT KILL TYPE replica").integer(), 1);
    for number in 0..100 {
        client.call(&format!("RPUSH list {number}"));
    }
    eventually("the link is up again", || info(&primary.server, "stats", "sync_partial_ok") == "1");
    assert_same(&replica.server, &primary.server);
    assert_eq!(info(&primary.server, "stats", "sync_full"), "1");
    primary.server.assert_sound();
    replica.server.assert_sound();
}

#[test]
fn pantala_follows_pantala_over_tls() {
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| {
        follow_over_tls(Kind::Pantala(backend), Kind::Pantala(backend), &certificates);
    });
}

#[test]
fn pantala_follows_redis_over_tls() {
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| follow_over_tls(Kind::Redis, Kind::Pantala(backend), &certificates));
}

#[test]
fn redis_follows_pantala_over_tls() {
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| follow_over_tls(Kind::Pantala(backend), Kind::Redis, &certificates));
}

/// As in Redis, the authority must have signed the primary's certificate, but the names in the
/// certificate aren't checked. The primary may also use the authority's own certificate.
#[test]
fn the_certificate_of_the_primary_is_checked_without_its_names() {
    let Some(certificates) = Certificates::make() else { return };
    certificates.sign_for("DNS:elsewhere", "elsewhere", &EC, 30, Some("ca"));
    let backend = Kind::Pantala(Backend::Epoll);
    let elsewhere = Encrypted::start(backend, &certificates, "elsewhere").expect("it starts");
    let authority = Encrypted::start(backend, &certificates, "ca").expect("it starts");
    let stranger = Encrypted::start(backend, &certificates, "stranger").expect("it starts");
    let replica = Encrypted::start(backend, &certificates, "client").expect("it starts");
    assert_eq!(replica.server.connect().call("SET key value"), Reply::ok());
    replica.ask_to_follow(stranger.tls_port);
    eventually("the link fails", || replica.server.log().contains("Error condition on socket for SYNC: invalid peer"));
    assert_eq!(info(&replica.server, "replication", "master_link_status"), "down");
    assert_eq!(replica.server.connect().call("GET key").text(), "value", "the dataset is kept");
    for primary in [&elsewhere, &authority] {
        replica.ask_to_follow(primary.tls_port);
        wait_for_link(&replica.server);
        assert_same(&replica.server, &primary.server);
    }
}

/// An encrypted link to a plain port fails, and so does a plain link to an encrypted port.
#[test]
fn plain_and_encrypted_ends_do_not_mix() {
    let Some(certificates) = Certificates::make() else { return };
    let backend = Kind::Pantala(Backend::Epoll);
    let primary = Encrypted::start(backend, &certificates, "server").expect("it starts");
    let replica = Encrypted::start(backend, &certificates, "client").expect("it starts");
    replica.ask_to_follow(primary.server.port());
    eventually("the link fails", || replica.server.log().contains("Error condition on socket for SYNC"));
    let mut client = replica.server.connect();
    assert_eq!(client.call("CONFIG SET tls-replication no"), Reply::ok());
    wait_for_link(&replica.server);
    replica.ask_to_follow(primary.tls_port);
    eventually("the link fails", || replica.server.log().contains("I/O error trying to sync with MASTER"));
    assert_eq!(client.call("CONFIG SET tls-replication yes"), Reply::ok());
    wait_for_link(&replica.server);
    assert_eq!(client.call("REPLICAOF NO ONE"), Reply::ok());
    assert_eq!(info(&replica.server, "replication", "role"), "master");
}

/// After a failover, the former primary follows the new one over TLS.
#[test]
fn roles_are_handed_over_on_encrypted_links() {
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| {
        let start = |name| Encrypted::start(Kind::Pantala(backend), &certificates, name).expect("it starts");
        let (primary, replica) = (start("server"), start("client"));
        replica.ask_to_follow(primary.tls_port);
        wait_for_link(&replica.server);
        assert_eq!(primary.server.connect().call("FAILOVER"), Reply::ok());
        eventually("the roles are exchanged", || {
            info(&replica.server, "replication", "role") == "master"
                && info(&primary.server, "replication", "master_link_status") == "up"
        });
        assert_eq!(replica.server.connect().call("SET key value"), Reply::ok());
        assert_same(&primary.server, &replica.server);
    });
}

/// Encrypted links need certificates. The server checks this at its start and at run time.
#[test]
fn encrypted_links_need_certificates() {
    let server = Server::pantala(Backend::Epoll, &[]);
    let mut client = server.connect();
    let refused = "ERR CONFIG SET failed (possibly related to argument 'tls-replication') - Unable to update TLS \
        configuration. Check server logs.";
    assert_eq!(client.call("CONFIG SET tls-replication yes"), Reply::Error(refused.into()));
    assert!(server.log().contains("No tls-cert-file configured!"), "{}", server.log());
    assert_eq!(client.call("CONFIG GET tls-replication").elements()[1].text(), "no");
}
