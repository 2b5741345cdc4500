//! Tests of both sides of a connection, without sockets.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use rustls::pki_types::UnixTime;
use rustls::{CertificateError, Error, OtherError, RootCertStore};

use crate::connection::{HANDSHAKE_BYTES_MAX, Out};
use crate::options::{AuthClients, Authorities, Identity};
use crate::{Client, Connection, Options, Server, anchors, files};

/// Returns options with a certificate that openssl creates, or `None` if openssl isn't installed.
fn options(name: &str) -> Option<Options> {
    let folder = std::env::temp_dir().join(format!("pantala-tls-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let (cert, key) = (folder.join("cert"), folder.join("key"));
    let config = folder.join("cnf");
    std::fs::write(&config, "[req]\ndistinguished_name=dn\n[dn]\n").expect("it is written");
    let text = |path: &PathBuf| path.display().to_string();
    let made = Command::new("openssl")
        .args([
            "req",
            "-config",
            &text(&config),
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "3",
        ])
        .args([
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        ])
        .args(["-keyout", &text(&key), "-out", &text(&cert)])
        .output();
    let Ok(made) = made else {
        let ci = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(!ci, "openssl is not installed, and CI=true forbids to skip the tests that need it");
        eprintln!("SKIPPED: openssl is not installed");
        return None;
    };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Some(Options {
        server: Identity { cert_file: Some(cert.clone()), key_file: Some(key), key_password: None },
        authorities: Authorities { file: Some(cert), dir: None },
        auth_clients: AuthClients::No,
        ..Options::default()
    })
}

/// Both sides of a connection.
struct Pair {
    server: Connection,
    client: Connection,
}

/// A random number generator for tests.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound.max(1)
    }
}

impl Pair {
    fn new(server: &Server, client: &Client) -> Pair {
        Pair {
            server: server.accept().expect("a server's side"),
            client: client.connect("localhost").expect("a client's side"),
        }
    }

    /// Completes the handshake. Its bytes arrive in pieces of random length.
    fn perform_handshake(&mut self, random: &mut Random) {
        let (mut to_server, mut to_client, mut plain) = (Vec::new(), Vec::new(), Vec::new());
        self.client.perform_handshake(&mut Out { plain: &mut plain, reply: &mut to_server }).expect("a hello");
        while self.server.is_handshaking() || self.client.is_handshaking() || !to_client.is_empty() {
            for mut piece in pieces(&std::mem::take(&mut to_server), random) {
                let mut out = Out { plain: &mut plain, reply: &mut to_client };
                self.server.receive(&mut piece, &mut out).expect("the client is right");
            }
            for mut piece in pieces(&std::mem::take(&mut to_client), random) {
                let mut out = Out { plain: &mut plain, reply: &mut to_server };
                self.client.receive(&mut piece, &mut out).expect("the server is right");
            }
        }
        assert!(plain.is_empty());
    }
}

fn pieces(bytes: &[u8], random: &mut Random) -> Vec<Vec<u8>> {
    let (mut pieces, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let most = [1, 40, 5000, 100_000][random.below(4)];
        let (piece, after) = rest.split_at((1 + random.below(most)).min(rest.len()));
        pieces.push(piece.to_vec());
        rest = after;
    }
    pieces
}

fn sides(name: &str) -> Option<(Server, Client)> {
    let options = options(name)?;
    let client = Options { server: Identity::default(), ..options.clone() };
    Some((Server::new(&options).expect("a server"), Client::new(&client).expect("a client")))
}

#[test]
fn bytes_arrive_as_they_were_sent_in_pieces_of_any_length() {
    let Some((server, client)) = sides("pieces") else { return };
    let mut random = Random(1);
    for _ in 0..20 {
        let mut pair = Pair::new(&server, &client);
        pair.perform_handshake(&mut random);
        for _ in 0..20 {
            let length = [1, 300, 20_000, 100_000][random.below(4)];
            let sent: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
            let (mut sealed, mut got, mut reply) = (Vec::new(), Vec::new(), Vec::new());
            pair.client.seal(&sent, &mut sealed).expect("sealed");
            for mut piece in pieces(&sealed, &mut random) {
                pair.server.receive(&mut piece, &mut Out { plain: &mut got, reply: &mut reply }).expect("opened");
                // Sealing a reply doesn't affect a record that is only partly received.
                let mut answer = Vec::new();
                pair.server.seal(b"answer", &mut answer).expect("sealed");
                let mut back = Vec::new();
                pair.client.receive(&mut answer, &mut Out { plain: &mut back, reply: &mut reply }).expect("opened");
                assert_eq!(back, b"answer");
            }
            assert!(got == sent && reply.is_empty() && pair.server.kept_bytes() == 0);
        }
        let mut goodbye = pair.client.close();
        let mut out = Out { plain: &mut Vec::new(), reply: &mut Vec::new() };
        pair.server.receive(&mut goodbye, &mut out).expect("an alert");
        assert!(pair.server.peer_has_closed());
        assert!(!pair.server.close().is_empty());
    }
}

#[test]
fn damaged_bytes_are_a_failure_and_never_a_panic() {
    let Some((server, client)) = sides("damage") else { return };
    let mut random = Random(2);
    for round in 0..10_000 {
        let mut pair = Pair::new(&server, &client);
        let (mut bytes, mut plain, mut reply) = (Vec::new(), Vec::new(), Vec::new());
        if round % 3 == 0 {
            pair.perform_handshake(&mut random);
            pair.client.seal(&vec![7; random.below(20_000)], &mut bytes).expect("sealed");
            pair.client.seal(b"second", &mut bytes).expect("sealed");
        } else {
            pair.client.perform_handshake(&mut Out { plain: &mut plain, reply: &mut bytes }).expect("a hello");
        }
        for _ in 0..=random.below(3) {
            // Half of the changes are in the headers, where they matter most.
            let bound = if random.below(2) == 0 { 12 } else { bytes.len() };
            let at = random.below(bound.min(bytes.len()));
            match random.below(4) {
                0 => bytes[at] = random.below(256) as u8,
                1 => bytes.truncate(at + 1),
                2 => bytes.extend((0..random.below(200)).map(|_| 22)),
                _ => drop(bytes.splice(at..at, [random.below(256) as u8, 22, 3, 3, 0])),
            }
        }
        for mut piece in pieces(&bytes, &mut random) {
            let received = pair.server.receive(&mut piece, &mut Out { plain: &mut plain, reply: &mut reply });
            let _ = pair.server.seal(b"reply", &mut reply);
            if received.is_err() {
                break;
            }
        }
        pair.server.close();
    }
}

/// The data that arrives together with the end of a handshake may exceed the limit for kept
/// handshake bytes.
#[test]
fn much_data_may_arrive_with_the_end_of_a_handshake() {
    let Some((server, client)) = sides("with-data") else { return };
    let mut pair = Pair::new(&server, &client);
    let (mut to_server, mut to_client, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    pair.client.perform_handshake(&mut Out { plain: &mut plain, reply: &mut to_server }).expect("a hello");
    let mut hello = std::mem::take(&mut to_server);
    pair.server.receive(&mut hello, &mut Out { plain: &mut plain, reply: &mut to_client }).expect("a hello");
    pair.client.receive(&mut to_client, &mut Out { plain: &mut plain, reply: &mut to_server }).expect("an answer");
    let sent = vec![7; 3 * HANDSHAKE_BYTES_MAX];
    pair.client.seal(&sent, &mut to_server).expect("sealed");
    let (first, rest) = to_server.split_at_mut(10);
    for piece in [first, rest] {
        pair.server.receive(piece, &mut Out { plain: &mut plain, reply: &mut Vec::new() }).expect("opened");
    }
    assert!(plain == sent && !pair.server.is_handshaking() && pair.server.kept_bytes() == 0);
}

/// Replies may be sealed while a handshake message of several records is incomplete. rustls
/// identifies the parts of this message by their positions in the kept bytes.
#[test]
fn replies_are_sealed_in_the_middle_of_a_handshake_message() {
    let Some((server, client)) = sides("middle") else { return };
    let mut pair = Pair::new(&server, &client);
    // The hello arrives in records of ten bytes, and is incomplete.
    let (mut hello, mut plain, mut reply) = (Vec::new(), Vec::new(), Vec::new());
    pair.client.perform_handshake(&mut Out { plain: &mut plain, reply: &mut hello }).expect("a hello");
    for part in hello[5..].chunks(10).take(5) {
        let mut record = vec![22, 3, 1, 0, part.len() as u8];
        record.extend_from_slice(part);
        pair.server.receive(&mut record, &mut Out { plain: &mut plain, reply: &mut reply }).expect("a part");
        let _ = pair.server.seal(b"too early", &mut Vec::new());
        assert!(pair.server.close().is_empty(), "nothing can be said before the handshake");
    }
    assert!(pair.server.is_handshaking() && pair.server.kept_bytes() > 0);
}

#[test]
fn a_peer_that_does_not_speak_tls_gets_no_alert() {
    let Some((server, client)) = sides("plain") else { return };
    for (text, is_alerted) in
        [(&b"*1\r\n$4\r\nPING\r\n"[..], false), (b"GET / HTTP/1.1\r\n\r\n", false), (&[22; 64], true)]
    {
        let (mut pair, mut plain, mut reply) = (Pair::new(&server, &client), Vec::new(), Vec::new());
        let received = pair.server.receive(&mut text.to_vec(), &mut Out { plain: &mut plain, reply: &mut reply });
        assert!(received.is_err());
        assert_eq!(!reply.is_empty(), is_alerted, "{}: {}", text.escape_ascii(), reply.escape_ascii());
    }
}

#[test]
fn the_certificate_expires_when_openssl_says_so() {
    let Some((server, _)) = sides("expiry") else { return };
    let now_s = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
    let left_s = server.expires_s().expect("a date") - now_s as i64;
    assert!((3 * 86_400 - 60..=3 * 86_400).contains(&left_s), "{left_s} s");
}

#[test]
fn only_regular_files_of_limited_length_are_read() {
    let folder = std::env::temp_dir().join(format!("pantala-tls-{}-files", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    for (bytes, error) in [
        (files::FILE_BYTES_MAX, "no certificate found".to_owned()),
        (files::FILE_BYTES_MAX + 1, format!("it has more than {} bytes", files::FILE_BYTES_MAX)),
    ] {
        let path = folder.join("long");
        std::fs::write(&path, vec![b'\n'; bytes as usize]).expect("it is written");
        assert_eq!(files::certificates(&path), Err(error));
    }
    let fifo = folder.join("fifo");
    if Command::new("mkfifo").arg(&fifo).status().is_ok_and(|status| status.success()) {
        assert_eq!(files::certificates(&fifo), Err("it is not a regular file".to_owned()));
    }
    assert_eq!(files::certificates("/dev/zero".as_ref()), Err("it is not a regular file".to_owned()));
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn an_authority_of_this_side_is_trusted_only_for_being_one() {
    let Some(options) = options("anchor") else { return };
    let file = options.authorities.file.expect("it has one");
    let found = files::certificates(&file).expect("it is readable");
    let mut roots = RootCertStore::empty();
    roots.add(found[0].clone()).expect("it is valid");
    let failed = |cause| Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(cause))));
    let is_trusted = |cause| anchors::is_trusted(&failed(cause), &found[0], &roots, UnixTime::now());
    assert!(is_trusted(webpki::Error::CaUsedAsEndEntity));
    assert!(!is_trusted(webpki::Error::MaximumPathDepthExceeded));
    assert!(!is_trusted(webpki::Error::UnsupportedCriticalExtension));
}
