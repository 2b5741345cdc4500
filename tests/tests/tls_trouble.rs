//! Trouble with TLS: certificates that have expired or are replaced by garbage, clients that stall
//! in a handshake, and renegotiation.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pantala_tests::following::info;
use pantala_tests::server::{free_port, run_to_exit};
use pantala_tests::tls::{Certificates, Tunnel};
use pantala_tests::waiting::eventually;
use pantala_tests::{Backend, Client, Reply, Server, for_all_backends, for_each_backend};

const PATIENCE: Duration = Duration::from_secs(60);

/// Starts a server with an encrypted port and the certificate `name`. Returns the server and the
/// port.
fn start(backend: Backend, certificates: &Certificates, name: &str, more: &[&str]) -> (Server, u16) {
    let port = free_port();
    let args = certificates.server_args(port, name);
    let args: Vec<&str> = args.iter().map(String::as_str).chain(more.iter().copied()).collect();
    (Server::pantala(backend, &args), port)
}

fn tunnel(certificates: &Certificates, port: u16, name: &str) -> Tunnel {
    Tunnel::open(port, certificates.client_config(Some(name)), usize::MAX)
}

fn set(client: &mut Client, certificates: &Certificates, name: &str) -> Reply {
    let (cert, key) = (certificates.cert(name), certificates.key(name));
    client.command(&["CONFIG", "SET", "tls-cert-file", &cert, "tls-key-file", &key])
}

fn days_left(server: &Server) -> i64 {
    info(server, "server", "tls_certificate_days_left").parse().expect("a number")
}

/// As in Redis, a server may use an expired certificate, which its clients reject. Pantala logs a
/// warning. The server rejects expired certificates of clients.
#[test]
fn expired_certificates() {
    let Some(certificates) = Certificates::make() else { return };
    certificates.sign_expired("expired");
    for_each_backend(|backend| {
        let (mut server, port) = start(backend, &certificates, "expired", &[]);
        let mut admin = server.connect();
        let tunnel_of = |name| tunnel(&certificates, port, name);
        assert!(server.log().contains("the certificate of tls-cert-file has expired"), "{}", server.log());
        assert!(days_left(&server) < 0);
        let client = tunnel_of("client");
        client.connect().read_to_end();
        assert!(client.failure().contains("expired"));
        // After a valid certificate is set at run time, clients accept the server. `CONFIG SET`
        // then also accepts the expired certificate again.
        assert_eq!(set(&mut admin, &certificates, "server"), Reply::ok());
        assert!(days_left(&server) > 0);
        let mut open = client.connect();
        assert_eq!(open.call("PING").text(), "PONG");
        assert_eq!(set(&mut admin, &certificates, "expired"), Reply::ok());
        assert_eq!(open.call("PING").text(), "PONG", "connections stay open");
        client.connect().read_to_end();
        assert!(client.failure().contains("expired"));
        // The server rejects a client with an expired certificate.
        assert_eq!(set(&mut admin, &certificates, "server"), Reply::ok());
        let mut late = tunnel_of("expired").connect();
        late.send(&["SET", "key", "value"]);
        assert_eq!(late.read_to_end(), b"");
        assert_eq!(admin.call("EXISTS key"), Reply::Integer(0));
        server.assert_sound();
    });
}

/// The files are overwritten with garbage, emptied, deleted, or replaced by directories while the
/// server runs. The loaded certificate stays in use, even after an attempt to load the files again.
#[test]
fn files_replaced_by_garbage_at_run_time() {
    let Some(certificates) = Certificates::make() else { return };
    let copy = |extension: &str| {
        let (from, to) = (certificates.path("server"), certificates.path("copy"));
        std::fs::copy(from.with_extension(extension), to.with_extension(extension)).expect("it is copied");
    };
    let valid_cert = std::fs::read(certificates.cert("server")).expect("it is read");
    for_each_backend(|backend| {
        copy("crt");
        copy("key");
        let (mut server, port) = start(backend, &certificates, "copy", &[]);
        let mut admin = server.connect();
        let client = tunnel(&certificates, port, "client");
        let mut first = client.connect();
        assert_eq!(first.call("PING").text(), "PONG");
        let before = client.certificate();
        // Contents of the files: nothing, random bytes, the start of a certificate, and a file of
        // another kind.
        let garbage: [&[u8]; 4] = [b"", b"\0\xff\x80garbage", &valid_cert[..valid_cert.len() / 2], b"[a]\nb = 1\n"];
        for extension in ["crt", "key"] {
            let file = certificates.path("copy").with_extension(extension);
            for content in garbage.iter().map(Some).chain([None, None]) {
                match content {
                    Some(content) => std::fs::write(&file, content).expect("it is written"),
                    // First the file is missing, and then it is a directory.
                    None if file.is_file() => std::fs::remove_file(&file).expect("it is removed"),
                    None => std::fs::create_dir(&file).expect("it is created"),
                }
                // A new connection is accepted, because a handshake reads no file.
                assert_eq!(client.connect().call("PING").text(), "PONG");
                assert!(set(&mut admin, &certificates, "copy").is_error(), "{extension}: {content:?}");
                assert_eq!(client.connect().call("PING").text(), "PONG");
                assert_eq!(client.certificate(), before);
                assert!(days_left(&server) > 0);
            }
            std::fs::remove_dir(&file).expect("it is removed");
            copy(extension);
        }
        assert_eq!(set(&mut admin, &certificates, "copy"), Reply::ok());
        assert_eq!(first.call("PING").text(), "PONG", "it stays open");
        server.assert_sound();
    });
}

/// Clients that stall in a handshake are closed after ten seconds, even if no timeout is
/// configured. Meanwhile other clients are served or finish their handshakes.
#[test]
fn stalled_handshakes_are_closed_and_delay_no_client() {
    const CLIENTS: usize = 60;
    /// Maximum duration of a handshake, and the time by which a busy host may exceed it.
    const HANDSHAKE: Duration = Duration::from_secs(10);
    const LATE: Duration = Duration::from_secs(30);
    let Some(certificates) = Certificates::make() else { return };
    for_all_backends(|backend| {
        let (mut server, port) = start(backend, &certificates, "server", &["--workers", "2"]);
        let client = tunnel(&certificates, port, "client");
        let mut open = client.connect();
        assert_eq!(open.call("PING").text(), "PONG");
        // Starts of a record with a ClientHello, of different lengths.
        const HELLO: [u8; 11] = [22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3];
        let begin = Instant::now();
        let mut stalled: Vec<TcpStream> = (0..CLIENTS)
            .map(|number| {
                let mut socket = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
                socket.write_all(&HELLO[..number % HELLO.len()]).expect("the server reads");
                socket.set_read_timeout(Some(HANDSHAKE + LATE)).expect("a socket takes a timeout");
                socket
            })
            .collect();
        for _ in 0..20 {
            assert_eq!(open.call("PING").text(), "PONG");
            assert_eq!(client.connect().call("PING").text(), "PONG");
        }
        for socket in &mut stalled {
            let mut rest = Vec::new();
            // An error is ignored. It means that the server has reset the connection, or that the
            // timeout has passed.
            let _ = socket.read_to_end(&mut rest);
            let elapsed = begin.elapsed();
            assert!(elapsed < HANDSHAKE + LATE, "still open after {elapsed:?}");
            assert!(elapsed > HANDSHAKE / 2, "closed after {elapsed:?}");
        }
        assert_eq!(open.call("PING").text(), "PONG", "it is not closed");
        eventually("the connections are gone", || {
            let count: usize = info(&server, "clients", "connected_clients").parse().expect("a number");
            count < CLIENTS / 2
        });
        server.assert_sound();
    });
}

/// If client certificates are the only protection, clients that never start a handshake must not
/// use up `maxclients`.
#[test]
fn stalled_handshakes_do_not_keep_others_out() {
    const CLIENTS: usize = 5;
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| {
        let (server, port) = start(backend, &certificates, "server", &["--maxclients", "6", "--workers", "1"]);
        let mut admin = server.connect();
        let silent: Vec<_> =
            (0..CLIENTS).map(|_| TcpStream::connect(("127.0.0.1", port)).expect("connected")).collect();
        eventually("all are connected", || info(&server, "clients", "connected_clients") == "6");
        // Waits for longer than the time in which a client may finish its handshake.
        std::thread::sleep(Duration::from_millis(1200));
        let mut known = tunnel(&certificates, port, "client").connect();
        assert_eq!(known.call("PING").text(), "PONG");
        assert_eq!(admin.call("PING").text(), "PONG");
        drop(silent);
    });
}

/// In TLS 1.2, a client may start another handshake on its connection. As in Redis, the server
/// rejects this handshake, and the client exits.
#[test]
fn renegotiation_is_rejected() {
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| {
        let (mut server, port) = start(backend, &certificates, "server", &["--tls-auth-clients", "no"]);
        let mut other = tunnel(&certificates, port, "client").connect();
        let mut client = Command::new(certificates.program())
            .args(["s_client", "-tls1_2", "-connect", &format!("127.0.0.1:{port}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("openssl starts");
        let mut input = client.stdin.take().expect("it is piped");
        let mut output = BufReader::new(client.stdout.take().expect("it is piped"));
        input.write_all(b"PING\r\n").expect("it reads");
        let mut lines = Vec::new();
        while !lines.last().is_some_and(|line: &String| line.starts_with("+PONG")) {
            let mut line = String::new();
            assert_ne!(output.read_line(&mut line).expect("it is text"), 0, "{lines:?}");
            lines.push(line);
        }
        // openssl starts another handshake when its input starts with R.
        input.write_all(b"R\n").expect("it reads");
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = client.try_wait().expect("a child can be waited for") {
                break status;
            }
            if Instant::now() > deadline {
                let _ = client.kill();
                panic!("openssl still runs");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let (mut rest, mut errors) = (String::new(), String::new());
        output.read_to_string(&mut rest).expect("it is text");
        client.stderr.take().expect("it is piped").read_to_string(&mut errors).expect("it is text");
        let shown = rest + &errors;
        assert!(!status.success() && shown.contains("no renegotiation"), "{status}: {shown}");
        assert_eq!(other.call("PING").text(), "PONG");
        server.assert_sound();
    });
}

/// `tls-cluster` can't be turned on, because there is no cluster bus that it could encrypt.
#[test]
fn tls_cluster_is_rejected_at_run_time() {
    let Some(certificates) = Certificates::make() else { return };
    for cluster in ["no", "yes"] {
        let (server, _) = start(Backend::Epoll, &certificates, "server", &["--cluster-enabled", cluster]);
        let mut admin = server.connect();
        let rejected = admin.call("CONFIG SET tls-cluster yes");
        assert!(rejected.is_error() && rejected.text().contains("'tls-cluster'"), "{rejected:?}");
        assert_eq!(admin.call("CONFIG SET tls-cluster no"), Reply::ok());
        let value = admin.call("CONFIG GET tls-cluster");
        assert_eq!(value.elements()[1].text(), "no");
    }
}

/// Returns the directive that the error of a `CONFIG SET` names.
fn blamed(reply: &Reply) -> String {
    let text = reply.text();
    assert!(text.ends_with("Unable to update TLS configuration. Check server logs."), "{text}");
    text.split('\'').nth(1).expect("a name in quotes").to_owned()
}

/// As in Redis, the error of a `CONFIG SET` names the first directive that was changed.
#[test]
fn errors_name_the_first_changed_directive() {
    let Some(certificates) = Certificates::make() else { return };
    let (cert, key) = (certificates.cert("client"), certificates.key("client"));
    let (locked, garbage) = (certificates.key("locked"), certificates.file("garbage"));
    std::fs::write(&garbage, "garbage").expect("it is written");
    let plain = certificates.key("server");
    certificates.openssl(&["pkcs8", "-topk8", "-in", &plain, "-out", &locked, "-passout", "pass:sesame"]);
    let check = |server: &Server| {
        let mut admin = server.connect();
        let mut set = |pairs: &[&str]| admin.command(&[&["CONFIG", "SET"], pairs].concat());
        assert_eq!(set(&["tls-client-cert-file", &cert]), Reply::ok(), "without a key it is ignored");
        assert_eq!(set(&["tls-client-key-file", &key]), Reply::ok());
        assert_eq!(set(&["tls-key-file-pass", "sesame", "tls-key-file", &locked]), Reply::ok());
        for (pairs, name) in [
            (&["tls-ciphersuites", "garbage"][..], "tls-ciphersuites"),
            (&["tls-client-key-file", &garbage], "tls-client-key-file"),
            (&["tls-key-file-pass", ""], "tls-key-file-pass"),
            (&["maxmemory", "1gb", "tls-session-cache-size", "5", "tls-ciphers", "garbage"], "tls-session-cache-size"),
            (&["tls-session-caching", "yes", "tls-ciphers", "garbage"], "tls-ciphers"),
            (&["tls-auth-clients", "optional", "tls-cert-file", &garbage], "tls-cert-file"),
        ] {
            assert_eq!(blamed(&set(pairs)), name, "{pairs:?}");
        }
        assert_eq!(admin.command(&["CONFIG", "GET", "maxmemory"]).elements()[1].text(), "0");
    };
    let (server, _) = start(Backend::Epoll, &certificates, "server", &[]);
    check(&server);
    let args = certificates.server_args(free_port(), "server");
    if let Some(redis) = Server::redis(&args.iter().map(String::as_str).collect::<Vec<_>>()) {
        check(&redis);
    }
}

/// As in Redis, `tls-auth-clients` takes effect without reading the files again.
#[test]
fn auth_clients_changes_without_the_files() {
    let Some(certificates) = Certificates::make() else { return };
    for extension in ["crt", "key"] {
        let (from, to) = (certificates.path("server"), certificates.path("copy"));
        std::fs::copy(from.with_extension(extension), to.with_extension(extension)).expect("it is copied");
    }
    let (server, port) = start(Backend::Epoll, &certificates, "copy", &[]);
    let mut admin = server.connect();
    std::fs::write(certificates.cert("copy"), "garbage").expect("it is written");
    let nameless = Tunnel::open(port, certificates.client_config(None), usize::MAX);
    for (value, is_accepted) in [("no", true), ("yes", false), ("optional", true), ("yes", false)] {
        assert_eq!(admin.call(&format!("CONFIG SET tls-auth-clients {value}")), Reply::ok());
        let mut client = nameless.connect();
        if is_accepted {
            assert_eq!(client.call("PING").text(), "PONG", "{value}");
        } else {
            assert_eq!(client.read_to_end(), b"", "{value}");
        }
        assert_eq!(tunnel(&certificates, port, "client").connect().call("PING").text(), "PONG", "{value}");
    }
    let rejected = admin.command(&["CONFIG", "SET", "tls-cert-file", &certificates.cert("copy")]);
    assert_eq!(blamed(&rejected), "tls-cert-file");
}

/// If the server doesn't check certificates of clients, no authority is needed to set
/// `tls-client-cert-file` (the certificate for links to a primary).
#[test]
fn a_client_certificate_needs_no_authority() {
    let Some(certificates) = Certificates::make() else { return };
    let (cert, key, stranger) = (certificates.cert("client"), certificates.key("client"), certificates.key("stranger"));
    let none = ["--tls-auth-clients", "no", "--tls-ca-cert-file", "", "--tls-client-cert-file", &cert];
    let (server, port) =
        start(Backend::Epoll, &certificates, "server", &[&none[..], &["--tls-client-key-file", &key]].concat());
    assert_eq!(tunnel(&certificates, port, "client").connect().call("PING").text(), "PONG");
    let mut admin = server.connect();
    assert_eq!(blamed(&admin.command(&["CONFIG", "SET", "tls-client-key-file", &stranger])), "tls-client-key-file");
    assert_eq!(blamed(&admin.call("CONFIG SET tls-auth-clients yes")), "tls-auth-clients");
    assert!(server.log().contains("Either tls-ca-cert-file or tls-ca-cert-dir must be specified"), "{}", server.log());
}

/// As in Redis, the directory `tls-ca-cert-dir` may be empty or missing. The server then starts,
/// and rejects all certificates of clients.
#[test]
fn a_folder_of_authorities_may_be_empty() {
    let Some(certificates) = Certificates::make() else { return };
    let empty = certificates.path("empty");
    std::fs::create_dir(&empty).expect("a folder");
    for folder in [empty.display().to_string(), certificates.file("missing")] {
        let more = ["--tls-ca-cert-file", "", "--tls-ca-cert-dir", &folder];
        let (server, port) = start(Backend::Epoll, &certificates, "server", &more);
        assert!(server.log().contains("WARNING: tls-ca-cert-dir has no certificate"), "{}", server.log());
        let client = tunnel(&certificates, port, "client");
        assert_eq!(client.connect().read_to_end(), b"");
        let nameless = Tunnel::open(port, certificates.client_config(None), usize::MAX);
        let mut admin = server.connect();
        assert_eq!(nameless.connect().read_to_end(), b"");
        assert_eq!(admin.call("CONFIG SET tls-auth-clients optional"), Reply::ok());
        assert_eq!(nameless.connect().call("PING").text(), "PONG");
        assert_eq!(client.connect().read_to_end(), b"");
        let authority = certificates.cert("ca");
        let pairs = ["CONFIG", "SET", "tls-auth-clients", "yes", "tls-ca-cert-file", &authority];
        assert_eq!(admin.command(&pairs), Reply::ok());
        assert_eq!(client.connect().call("PING").text(), "PONG");
        assert_eq!(nameless.connect().read_to_end(), b"");
    }
}

/// A key with an encryption that is too old prevents the start. The log names the supported
/// encryptions.
#[test]
fn keys_with_an_unsupported_encryption() {
    let Some(certificates) = Certificates::make() else { return };
    let (plain, locked) = (certificates.key("server"), certificates.key("locked"));
    let args = certificates.server_args(free_port(), "server");
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    for cipher in [&["-v1", "PBE-SHA1-3DES"][..], &["-v2", "des3"], &["-v2", "aes-256-cbc", "-v2prf", "hmacWithSHA1"]] {
        let convert = ["pkcs8", "-topk8", "-in", &plain, "-out", &locked, "-passout", "pass:sesame"];
        certificates.openssl(&[&convert[..], cipher].concat());
        let port = free_port().to_string();
        let key = ["--port", &port, "--tls-key-file", &locked, "--tls-key-file-pass", "sesame"];
        let exit = run_to_exit(&[&args[..], &key].concat(), b"");
        assert!(!exit.status.success(), "{cipher:?}: {}", exit.output);
        assert!(exit.output.contains("or its encryption is not supported: supported are AES"), "{}", exit.output);
    }
}
