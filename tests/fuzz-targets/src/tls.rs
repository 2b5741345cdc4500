//! TLS connections without sockets, in two tests. In the first, a peer sends arbitrary bytes, and
//! no plaintext is accepted from it. In the second, two honest sides exchange records that arrive
//! in arbitrary pieces, or are damaged, lost or truncated. The received plaintext is always a
//! prefix of the sent plaintext. If no record was damaged, it is the whole plaintext. The number of
//! bytes that a connection keeps is bounded, and nothing panics.

use std::process::Command;
use std::sync::LazyLock;

use pantala_tls::connection::{HANDSHAKE_BYTES_MAX, Out};
use pantala_tls::options::Authorities;
use pantala_tls::{AuthClients, Client, Connection, Identity, Options, Server};

/// A server that requests no certificate from clients, a server that requests an optional one, and
/// a client.
static SIDES: LazyLock<(Server, Server, Client)> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("pantala-fuzz-tls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let (key, cert) = (folder.join("key"), folder.join("cert"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-days", "3", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&cert)
        .output()
        .expect("openssl is installed");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mut options = Options {
        server: Identity { cert_file: Some(cert.clone()), key_file: Some(key), key_password: None },
        authorities: Authorities { file: Some(cert), dir: None },
        auth_clients: AuthClients::No,
        ..Options::default()
    };
    let server = Server::new(&options).expect("a server");
    options.auth_clients = AuthClients::Optional;
    let asking = Server::new(&options).expect("a server");
    let client = Client::new(&Options { server: Identity::default(), ..options }).expect("a client");
    std::fs::remove_dir_all(&folder).expect("removed");
    (server, asking, client)
});

/// Passes arbitrary bytes to a server, in pieces of `piece` bytes.
fn speak_to(server: &Server, bytes: &[u8], piece: usize) {
    let mut connection = server.accept().expect("a connection");
    let (mut plain, mut reply) = (Vec::new(), Vec::new());
    let mut has_failed = false;
    for (at, bytes) in bytes.chunks(piece.max(1)).enumerate() {
        let mut out = Out { plain: &mut plain, reply: &mut reply };
        let received = if at % 2 == 0 {
            connection.receive(&mut bytes.to_vec(), &mut out)
        } else {
            connection.keep(bytes).and_then(|()| connection.perform_handshake(&mut out))
        };
        has_failed |= received.is_err();
        assert!(received.is_err() || !has_failed, "a failure is final");
        assert!(connection.kept_bytes() <= HANDSHAKE_BYTES_MAX);
    }
    assert!(plain.is_empty() && connection.is_handshaking(), "nobody knows the keys");
    assert!(connection.close().is_empty(), "nothing can be said before the handshake");
}

/// One direction of a connection.
#[derive(Default)]
struct Way {
    /// Bytes that have not been delivered.
    flying: Vec<u8>,
    sent: Vec<u8>,
    got: Vec<u8>,
    is_closed: bool,
    is_damaged: bool,
}

impl Way {
    /// Encrypts `count` bytes into [`Way::flying`]. Does nothing if the handshake is unfinished, or
    /// if this direction is closed or damaged.
    fn send(&mut self, from: &mut Connection, count: usize) {
        if from.is_handshaking() || self.is_closed || self.is_damaged {
            return;
        }
        let start = self.sent.len();
        let bytes: Vec<u8> = (start..start + count).map(|at| (at % 251) as u8).collect();
        if from.seal(&bytes, &mut self.flying).is_ok() {
            self.sent.extend_from_slice(&bytes);
        }
    }

    /// Delivers at most `count` bytes. Records that the receiver sends are appended to `back`.
    /// Returns whether the receiver accepted the bytes.
    fn deliver(&mut self, to: &mut Connection, count: usize, back: &mut Vec<u8>) -> bool {
        let mut piece: Vec<u8> = self.flying.drain(..count.min(self.flying.len())).collect();
        let is_well = to.receive(&mut piece, &mut Out { plain: &mut self.got, reply: back }).is_ok();
        assert!(self.sent.starts_with(&self.got), "other bytes arrive than were sent");
        assert!(to.kept_bytes() <= HANDSHAKE_BYTES_MAX);
        is_well
    }
}

/// Runs a connection between two honest sides. Each choice is an action and its argument.
fn converse(server: &Server, choices: &[u8]) {
    let (mut server, mut client) =
        (server.accept().expect("a connection"), SIDES.2.connect("localhost").expect("a connection"));
    let (mut up, mut down) = (Way::default(), Way::default());
    let mut hello = Vec::new();
    client.perform_handshake(&mut Out { plain: &mut down.got, reply: &mut hello }).expect("a hello");
    up.flying = hello;
    let mut is_well = true;
    // A side that has sent its closing alert receives no more bytes, so bytes in flight to it are
    // dropped.
    let drop_late = |up: &mut Way, down: &mut Way| {
        if down.is_closed {
            up.flying.clear();
        }
        if up.is_closed {
            down.flying.clear();
        }
    };
    for choice in choices.chunks_exact(2) {
        let (kind, many) = (choice[0], usize::from(choice[1]));
        drop_late(&mut up, &mut down);
        let way = if kind & 1 == 0 { &mut up } else { &mut down };
        match kind / 2 % 9 {
            // Delivers whole flights of handshake messages, so that handshakes finish.
            0 | 1 => {
                let count = usize::MAX;
                is_well &= up.deliver(&mut server, count, &mut down.flying);
                drop_late(&mut up, &mut down);
                is_well &= down.deliver(&mut client, count, &mut up.flying);
            }
            2 => is_well &= up.deliver(&mut server, many + 1, &mut down.flying),
            3 => is_well &= down.deliver(&mut client, many + 1, &mut up.flying),
            4 if kind & 1 == 0 => up.send(&mut client, many * 200),
            4 => down.send(&mut server, many * 200),
            5 if !way.flying.is_empty() => {
                let at = many % way.flying.len();
                way.flying[at] ^= 1 << (kind / 32);
                way.is_damaged = true;
            }
            6 => {
                let left = way.flying.len() * many / 256;
                way.is_damaged |= left < way.flying.len();
                way.flying.truncate(left);
            }
            7 => {
                way.flying.extend(std::iter::repeat_n(kind, many));
                way.is_damaged |= many > 0;
            }
            _ if kind & 1 == 0 && !up.is_closed => {
                up.flying.extend(client.close());
                up.is_closed = !client.is_handshaking();
            }
            _ if !down.is_closed => {
                down.flying.extend(server.close());
                down.is_closed = !server.is_handshaking();
            }
            _ => {}
        }
    }
    if up.is_damaged || down.is_damaged {
        return;
    }
    while !(up.flying.is_empty() && down.flying.is_empty()) {
        drop_late(&mut up, &mut down);
        is_well &= up.deliver(&mut server, usize::MAX, &mut down.flying);
        drop_late(&mut up, &mut down);
        is_well &= down.deliver(&mut client, usize::MAX, &mut up.flying);
    }
    assert!(is_well, "an undamaged connection failed");
    assert!(down.is_closed || up.got == up.sent && server.peer_has_closed() == up.is_closed, "bytes are missing");
    assert!(up.is_closed || down.got == down.sent && client.peer_has_closed() == down.is_closed, "bytes are missing");
}

/// Runs the target on one input, and panics on a defect.
pub fn run(data: &[u8]) {
    let [first, second, rest @ ..] = data else { return };
    let server = if first & 1 == 0 { &SIDES.0 } else { &SIDES.1 };
    if first & 2 == 0 {
        speak_to(server, rest, usize::from(*second) * 8 + 1);
    } else {
        converse(server, rest);
    }
}
