//! TLS on both event loops, with Redis's tools, with openssl, and with plain clients through a
//! tunnel.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use pantala_tests::client::encode;
use pantala_tests::server::{free_port, run_to_exit};
use pantala_tests::tls::{Certificates, Tunnel};
use pantala_tests::{Backend, Client, Random, Reply, Server, binary, for_each_backend, tool};

const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum number of bytes per send, for a tunnel without a limit.
const WHOLE: usize = usize::MAX;

/// A server with an encrypted port.
struct Encrypted {
    server: Server,
    port: u16,
}

impl Encrypted {
    /// Starts a server with `auth` as `tls-auth-clients`, and with further arguments.
    fn start(backend: Backend, certificates: &Certificates, auth: &str, more: &[&str]) -> Encrypted {
        let port = free_port();
        let mut args = certificates.server_args(port, "server");
        args.extend(["--tls-auth-clients", auth].map(str::to_owned));
        let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
        args.extend_from_slice(more);
        Encrypted { server: Server::pantala(backend, &args), port }
    }

    /// Opens a tunnel to the server. The tunnel presents the client's certificate.
    fn tunnel(&self, certificates: &Certificates) -> Tunnel {
        Tunnel::open(self.port, certificates.client_config(Some("client")), WHOLE)
    }
}

fn start(backend: Backend, certificates: &Certificates) -> Encrypted {
    Encrypted::start(backend, certificates, "yes", &["--workers", "2"])
}

/// Returns the arguments of redis-cli and redis-benchmark for the client's certificate.
fn tool_args(certificates: &Certificates) -> Vec<String> {
    let (ca, cert, key) = (certificates.cert("ca"), certificates.cert("client"), certificates.key("client"));
    ["--tls", "--cacert", &ca, "--cert", &cert, "--key", &key].map(str::to_owned).to_vec()
}

fn run(program: &Path, port: u16, first: &[String], args: &[&str], input: &[u8]) -> tool::Ran {
    let all: Vec<&str> = first.iter().map(String::as_str).chain(args.iter().copied()).collect();
    tool::run(program, port, &all, input, PATIENCE)
}

#[test]
fn redis_cli_and_redis_benchmark_speak_tls() {
    let (Some(certificates), Some(cli)) = (Certificates::make(), tool::find("redis-cli")) else { return };
    let Some(benchmark) = tool::find("redis-benchmark") else { return };
    for_each_backend(|backend| {
        let mut encrypted = start(backend, &certificates);
        let args = tool_args(&certificates);
        let ran = run(&cli, encrypted.port, &args, &[], b"SET key value\nGET key\nINCR n\n");
        assert_eq!(ran.output, "OK\nvalue\n1\n", "{}", ran.errors);
        let long = format!("SET long {}\nSTRLEN long\n", "x".repeat(300_000));
        assert_eq!(run(&cli, encrypted.port, &args, &[], long.as_bytes()).output, "OK\n300000\n");
        // A SET of 20,000 bytes needs two TLS records, and redis-benchmark waits 40 ms before it
        // sends the second, because it does not disable Nagle's algorithm. So fewer such SETs are
        // sent. The wait is the same with redis-server.
        for more in [["-n", "4000", "-P", "16", "-d", "100"], ["-n", "400", "-P", "1", "-d", "20000"]] {
            let mut words = vec!["-c", "20", "-t", "set,get", "-q"];
            words.extend(more);
            let ran = run(&benchmark, encrypted.port, &args, &words, b"");
            assert!(ran.success && ran.output.contains("GET: "), "{} {}", ran.output, ran.errors);
        }
        encrypted.server.assert_sound();
    });
}

#[test]
fn client_certificates_are_required_optional_or_ignored() {
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| {
        for (auth, without, stranger) in [("yes", false, false), ("optional", true, false), ("no", true, true)] {
            let encrypted = Encrypted::start(backend, &certificates, auth, &[]);
            // As with OpenSSL, a client may also present the authority's own certificate.
            let names = [(None, without), (Some("client"), true), (Some("ca"), true), (Some("stranger"), stranger)];
            for (name, may) in names {
                let tunnel = Tunnel::open(encrypted.port, certificates.client_config(name), WHOLE);
                let mut client = tunnel.connect();
                if may {
                    assert_eq!(client.call("PING"), Reply::Simple("PONG".into()), "{auth} {name:?}");
                } else {
                    client.send(&["PING"]);
                    assert_eq!(client.read_to_end(), b"", "{auth} {name:?}");
                }
            }
        }
    });
}

#[test]
fn openssl_agrees_on_the_configured_version_and_cipher() {
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| {
        let lists = ["--tls-ciphers", "ECDHE+AESGCM", "--tls-ciphersuites", "TLS_AES_128_GCM_SHA256"];
        let encrypted = Encrypted::start(backend, &certificates, "no", &lists);
        let s_client = |args: &[&str]| {
            let to = format!("127.0.0.1:{}", encrypted.port);
            let ca = certificates.cert("ca");
            let mut command = Command::new(certificates.program());
            command.args(["s_client", "-connect", &to, "-CAfile", &ca, "-verify_return_error", "-ign_eof"]).args(args);
            tool::run_to_end(&mut command, b"PING\r\nQUIT\r\n", PATIENCE)
        };
        let ran = s_client(&["-tls1_3"]);
        assert!(ran.output.contains("TLS_AES_128_GCM_SHA256") && ran.output.contains("+PONG"), "{ran:?}");
        let ran = s_client(&["-tls1_2"]);
        assert!(ran.output.contains("ECDHE-ECDSA-AES") && ran.output.contains("+PONG"), "{ran:?}");
        for refused in [&["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA"][..], &["-tls1_1"], &["-tls1"]] {
            let ran = s_client(refused);
            assert!(!ran.output.contains("+PONG"), "{refused:?}: {ran:?}");
        }
        let ran = s_client(&["-tls1_3", "-ciphersuites", "TLS_AES_256_GCM_SHA384"]);
        assert!(!ran.output.contains("+PONG"), "{ran:?}");
    });
}

#[test]
fn sessions_are_resumed_unless_caching_is_off() {
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| {
        for (caching, is_resumed) in [("yes", true), ("no", false)] {
            let encrypted = Encrypted::start(backend, &certificates, "no", &["--tls-session-caching", caching]);
            let session = certificates.file(&format!("session-{caching}-{}", backend.name()));
            for (flag, second) in [("-sess_out", false), ("-sess_in", true)] {
                let to = format!("127.0.0.1:{}", encrypted.port);
                let mut command = Command::new(certificates.program());
                command.args(["s_client", "-connect", &to, "-ign_eof", flag, &session]);
                if !second || is_resumed || PathBuf::from(&session).exists() {
                    let ran = tool::run_to_end(&mut command, b"PING\r\nQUIT\r\n", PATIENCE);
                    assert!(ran.output.contains("+PONG"), "{ran:?}");
                    assert_eq!(ran.output.contains("\nReused, "), second && is_resumed, "{ran:?}");
                }
            }
        }
    });
}

#[test]
fn clients_work_over_tls() {
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| {
        let mut encrypted = start(backend, &certificates);
        let tunnel = encrypted.tunnel(&certificates);
        let (mut one, mut two) = (tunnel.connect(), tunnel.connect());
        // Pub/sub, with long and short messages.
        two.send(&["SUBSCRIBE", "news"]);
        two.receive();
        for length in [1, 100_000] {
            assert_eq!(one.command(&["PUBLISH", "news", &"x".repeat(length)]), Reply::Integer(1));
            let bytes = two.receive_raw().1;
            assert!(bytes.len() > length, "{} bytes", bytes.len());
        }
        two.call("UNSUBSCRIBE");
        // A blocked command.
        two.send(&["BLPOP", "list", "0"]);
        while one.call("CLIENT LIST ID 1 2 3").text().matches(" cmd=blpop ").count() == 0 {}
        assert_eq!(one.call("RPUSH list a"), Reply::Integer(1));
        assert_eq!(two.receive(), Reply::Array(vec![Reply::bulk("list"), Reply::bulk("a")]));
        // MONITOR.
        assert_eq!(two.call("MONITOR"), Reply::ok());
        one.call("SET monitored 1");
        let line = two.receive();
        assert!(matches!(&line, Reply::Simple(line) if line.contains("monitored")), "{line:?}");
        // CLIENT LIST shows the encrypted port, and a client can be killed by its ID.
        let list = one.call("CLIENT LIST").text();
        assert!(list.contains(&format!("laddr=127.0.0.1:{}", encrypted.port)), "{list}");
        assert_eq!(one.call("CLIENT KILL TYPE normal SKIPME yes"), Reply::Integer(1));
        assert_eq!(two.read_to_end(), b"");
        assert_eq!(one.call("CLIENT INFO").text().matches("tot-mem=").count(), 1);
        encrypted.server.assert_sound();
    });
}

#[test]
fn limits_hold_over_tls() {
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| {
        let more = ["--maxclients", "3", "--client-output-buffer-limit", "normal 100000 0 0"];
        let mut encrypted = Encrypted::start(backend, &certificates, "yes", &more);
        let tunnel = encrypted.tunnel(&certificates);
        let mut clients = [tunnel.connect(), tunnel.connect(), tunnel.connect()];
        for client in &mut clients {
            assert_eq!(client.call("PING"), Reply::Simple("PONG".into()));
        }
        let mut rejected = tunnel.connect();
        rejected.send(&["PING"]);
        assert_eq!(rejected.read_to_end(), b"");
        // A reply longer than the hard output limit closes its client.
        assert_eq!(clients[0].command(&["SET", "large", &"x".repeat(200_000)]), Reply::ok());
        clients[1].send(&["GET", "large"]);
        assert_eq!(clients[1].read_to_end(), b"");
        assert_eq!(clients[0].call("CONFIG SET timeout 1"), Reply::ok());
        assert_eq!(clients[2].read_to_end(), b"", "an idle client is closed");
        encrypted.server.assert_sound();
    });
}

#[test]
fn large_values_and_pipelines_arrive_whole() {
    let Some(certificates) = Certificates::make() else { return };
    let mut random = Random::from_seed(Random::seed("tls"));
    for_each_backend(|backend| {
        let mut encrypted = start(backend, &certificates);
        let mut client = encrypted.tunnel(&certificates).connect();
        let value = random.bytes(100 * 1024 * 1024);
        let replies = client.exchange(&encode(&[b"SET".as_slice(), b"large", &value]), 1);
        assert_eq!(replies[0].0, Reply::ok());
        assert!(client.command(&["GET", "large"]) == Reply::Bulk(value), "100 MB were changed");
        let commands: Vec<Vec<String>> = (0..50_000)
            .map(|number| {
                let length = if number % 1000 == 0 { 70_000 } else { number % 300 };
                ["SET".to_owned(), format!("key:{}", number % 97), "v".repeat(length)].to_vec()
            })
            .collect();
        assert!(client.pipeline(&commands).iter().all(|reply| *reply == Reply::ok()));
        let echoes: Vec<Vec<String>> = (0..50_000).map(|number| vec!["ECHO".to_owned(), number.to_string()]).collect();
        for (number, reply) in client.pipeline(&echoes).into_iter().enumerate() {
            assert_eq!(reply, Reply::Bulk(number.to_string().into_bytes()));
        }
        encrypted.server.assert_sound();
    });
}

#[test]
fn records_may_arrive_byte_by_byte() {
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| {
        let encrypted = start(backend, &certificates);
        for piece_bytes in [1, 7] {
            let config = certificates.client_config(Some("client"));
            let mut client = Tunnel::open(encrypted.port, config, piece_bytes).connect();
            assert_eq!(client.command(&["SET", "key", &"x".repeat(3000)]), Reply::ok());
            assert_eq!(client.command(&["GET", "key"]), Reply::Bulk("x".repeat(3000).into_bytes()));
        }
    });
}

#[test]
fn a_half_closed_client_gets_its_replies() {
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| {
        let encrypted = start(backend, &certificates);
        let mut client = encrypted.tunnel(&certificates).connect();
        assert_eq!(client.command(&["SET", "key", &"x".repeat(2_000_000)]), Reply::ok());
        client.send_together(&[vec!["GET", "key"], vec!["PING"]]);
        client.close_write();
        assert_eq!(client.receive(), Reply::Bulk("x".repeat(2_000_000).into_bytes()));
        assert_eq!(client.receive(), Reply::Simple("PONG".into()));
        assert_eq!(client.read_to_end(), b"");
    });
}

/// Sends bytes to a port and then, if `ends`, closes the sending side. Returns the bytes received
/// until the server closes the connection.
fn answer_to(port: u16, bytes: &[u8], ends: bool) -> Vec<u8> {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket takes a timeout");
    // The server may close the connection before it has received all bytes.
    let _ = socket.write_all(bytes);
    if ends {
        let _ = socket.shutdown(Shutdown::Write);
    }
    let mut answer = Vec::new();
    match socket.read_to_end(&mut answer) {
        Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset => panic!("not closed: {error}"),
        _ => answer,
    }
}

#[test]
fn garbage_gets_at_most_an_alert() {
    let Some(certificates) = Certificates::make() else { return };
    let mut random = Random::from_seed(Random::seed("tls"));
    for_each_backend(|backend| {
        let mut encrypted = start(backend, &certificates);
        let alert = answer_to(encrypted.port, b"*1\r\n$4\r\nPING\r\n", false);
        assert!(alert.is_empty() || alert[0] == 21, "plain text: {alert:?}");
        for _ in 0..200 {
            let length = 5 + random.below(400);
            let mut bytes = random.bytes(length);
            if random.below(2) == 0 {
                // Half of the inputs start with the header of a handshake record. The length in it
                // is right, so the random bytes after the header are parsed as a handshake.
                let body = (length - 5) as u16;
                bytes[..5].copy_from_slice(&[22, 3, 1, (body >> 8) as u8, body as u8]);
                bytes[5..].first_mut().into_iter().for_each(|kind| *kind |= 0x80);
            } else {
                bytes[0] = 99;
            }
            // Closes the sending side, because the bytes may be the start of a message that is
            // never completed.
            let alert = answer_to(encrypted.port, &bytes, true);
            assert!(alert.is_empty() || alert[0] == 21, "{bytes:?}: {alert:?}");
        }
        let mut client = encrypted.tunnel(&certificates).connect();
        assert_eq!(client.call("PING"), Reply::Simple("PONG".into()));
        encrypted.server.assert_sound();
    });
}

#[test]
fn certificates_are_reloaded_without_closing_connections() {
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| {
        let mut encrypted = start(backend, &certificates);
        let tunnel = encrypted.tunnel(&certificates);
        let mut first = tunnel.connect();
        first.call("PING");
        let before = tunnel.certificate();
        let set = |client: &mut Client, pairs: &[&str]| client.command(&[&["CONFIG", "SET"], pairs].concat());
        let (cert, key) = (certificates.cert("rsa"), certificates.key("rsa"));
        assert_eq!(set(&mut first, &["tls-cert-file", &cert, "tls-key-file", &key]), Reply::ok());
        let mut second = tunnel.connect();
        second.call("PING");
        let after = tunnel.certificate();
        assert_ne!(before, after, "new connections get the new certificate");
        // If a file can't be used, CONFIG SET fails and the former certificate stays in use.
        let stranger = certificates.key("stranger");
        let missing = certificates.file("missing");
        let garbage = certificates.file("garbage");
        std::fs::write(&garbage, "no certificate").expect("it is written");
        for (pairs, name) in [
            (&["tls-key-file", &stranger][..], "tls-key-file"),
            (&["tls-cert-file", &missing], "tls-cert-file"),
            (&["tls-cert-file", &garbage], "tls-cert-file"),
            (&["tls-ca-cert-file", &garbage], "tls-ca-cert-file"),
            (&["tls-protocols", "TLSv1.1"], "tls-protocols"),
            (&["tls-ciphers", "AES128-SHA"], "tls-ciphers"),
            (&["tls-dh-params-file", &garbage], "tls-dh-params-file"),
        ] {
            let expected = format!(
                "ERR CONFIG SET failed (possibly related to argument '{name}') - Unable to update TLS configuration. \
                 Check server logs."
            );
            assert_eq!(set(&mut second, pairs), Reply::Error(expected), "{pairs:?}");
        }
        assert!(encrypted.server.log().contains("TLSv1.1"), "{}", encrypted.server.log());
        tunnel.connect().call("PING");
        assert_eq!(tunnel.certificate(), after);
        // The server reads a replaced file when the directive is set again, even if the value is
        // the same.
        let (swapped, swapped_key) = (certificates.cert("swapped"), certificates.key("swapped"));
        let copy = |from: &str| {
            std::fs::copy(certificates.cert(from), &swapped).expect("it is copied");
            std::fs::copy(certificates.key(from), &swapped_key).expect("it is copied");
        };
        for from in ["server", "rsa", "server"] {
            copy(from);
            let pairs = ["tls-cert-file", &swapped, "tls-key-file", &swapped_key];
            assert_eq!(set(&mut first, &pairs), Reply::ok());
            tunnel.connect().call("PING");
            assert_eq!(tunnel.certificate() == before, from == "server");
        }
        for client in [&mut first, &mut second] {
            assert_eq!(client.call("PING"), Reply::Simple("PONG".into()), "it stays open");
        }
        encrypted.server.assert_sound();
    });
}

#[test]
fn ports_are_opened_and_closed_at_run_time() {
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &[]);
        let mut plain = server.connect();
        let port = free_port().to_string();
        let refused = "ERR CONFIG SET failed (possibly related to argument 'tls-port') - Unable to update TLS \
                       configuration. Check server logs.";
        assert_eq!(plain.command(&["CONFIG", "SET", "tls-port", &port]), Reply::Error(refused.into()));
        assert!(server.log().contains("No tls-cert-file configured!"), "{}", server.log());
        let args = certificates.server_args(port.parse().expect("a port"), "server");
        let pairs: Vec<&str> = args.iter().map(|word| word.strip_prefix("--").unwrap_or(word)).collect();
        assert_eq!(plain.command(&[&["CONFIG", "SET"], &pairs[..]].concat()), Reply::ok());
        let tunnel = Tunnel::open(port.parse().expect("a port"), certificates.client_config(Some("client")), WHOLE);
        let mut client = tunnel.connect();
        assert_eq!(client.call("CONFIG SET port 0"), Reply::ok());
        assert!(Client::try_tcp(server.port()).is_err(), "the plain port is closed");
        assert_eq!(plain.call("PING"), Reply::Simple("PONG".into()), "its connections stay open");
        let info = client.call("INFO server").text();
        // The certificate has just been signed for thirty days, so 29 or 30 whole days are left.
        let is_dated = ["29", "30"].iter().any(|days| info.contains(&format!("tls_certificate_days_left:{days}")));
        assert!(info.contains(&format!("tcp_port:{port}")) && is_dated, "{info}");
        assert_eq!(plain.call("CONFIG SET tls-port 0"), Reply::ok());
        tunnel.connect().read_to_end();
        assert_eq!(client.call("PING"), Reply::Simple("PONG".into()), "open connections stay");
        server.assert_sound();
    });
}

/// Makes a certificate of X.509 version 1. Returns the path of its file.
fn sign_version_1(certificates: &Certificates) -> String {
    let (request, made) = (certificates.file("request"), certificates.cert("old"));
    let (cnf, key) = (certificates.file("cnf"), certificates.key("server"));
    let (ca_cert, ca_key) = (certificates.cert("ca"), certificates.key("ca"));
    certificates.openssl(&["req", "-new", "-config", &cnf, "-subj", "/CN=old", "-key", &key, "-out", &request]);
    let sign = ["x509", "-req", "-days", "1", "-CA", &ca_cert, "-CAkey", &ca_key, "-CAcreateserial"];
    certificates.openssl(&[&sign[..], &["-in", &request, "-out", &made]].concat());
    made
}

#[test]
fn unusable_files_prevent_the_start() {
    let Some(certificates) = Certificates::make() else { return };
    let args = certificates.server_args(free_port(), "server");
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let stranger = certificates.key("stranger");
    let old = sign_version_1(&certificates);
    for (more, why) in [
        (&["--tls-protocols", "TLSv1 TLSv1.2"][..], "'TLSv1' in tls-protocols is not supported"),
        (&["--tls-ciphers", "DHE-RSA-AES256-SHA"], "'DHE-RSA-AES256-SHA' in tls-ciphers is not supported"),
        (&["--tls-ciphersuites", "TLS_AES_128_CCM_SHA256"], "in tls-ciphersuites is not supported"),
        (&["--tls-dh-params-file", "params"], "tls-dh-params-file params is not supported"),
        (&["--tls-key-file", &stranger], "Certificate and private key can't be used"),
        (&["--tls-cert-file", "missing"], "Failed to load certificate: missing: No such file"),
        (&["--tls-cert-file", &old], "X.509 certificates of version 1 or 2 are not supported"),
        (&["--tls-ca-cert-file", ""], "Either tls-ca-cert-file or tls-ca-cert-dir must be specified"),
        (&["--tls-cluster", "yes"], "nothing would be encrypted"),
    ] {
        let port = free_port().to_string();
        let exit = run_to_exit(&[&["--port", &port], &args[..], more].concat(), b"");
        assert!(!exit.status.success() && exit.output.contains(why), "{more:?}: {}", exit.output);
    }
}

#[test]
fn keys_with_a_password_and_ca_directories_are_read() {
    let Some(certificates) = Certificates::make() else { return };
    let (plain, locked) = (certificates.key("server"), certificates.key("locked"));
    certificates.openssl(&["pkcs8", "-topk8", "-in", &plain, "-out", &locked, "-passout", "pass:open sesame"]);
    let folder = certificates.path("authorities");
    std::fs::create_dir(&folder).expect("a folder");
    std::fs::copy(certificates.cert("ca"), folder.join("any-name.pem")).expect("it is copied");
    std::fs::write(folder.join("README"), "no certificate").expect("it is written");
    let folder = folder.display().to_string();
    let more = |password| {
        [
            "--tls-key-file",
            &locked,
            "--tls-key-file-pass",
            password,
            "--tls-ca-cert-file",
            "",
            "--tls-ca-cert-dir",
            &folder,
        ]
    };
    for_each_backend(|backend| {
        let encrypted = Encrypted::start(backend, &certificates, "yes", &more("open sesame"));
        assert_eq!(encrypted.tunnel(&certificates).connect().call("PING"), Reply::Simple("PONG".into()));
    });
    let args = certificates.server_args(free_port(), "server");
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let port = free_port().to_string();
    let exit = run_to_exit(&[&["--port", &port], &args[..], &more("wrong")].concat(), b"");
    assert!(!exit.status.success() && exit.output.contains("the key can't be decrypted"), "{}", exit.output);
}

#[test]
fn pantala_bench_loads_an_encrypted_server() {
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| {
        let encrypted = start(backend, &certificates);
        let (ca, cert, key) = (certificates.cert("ca"), certificates.cert("client"), certificates.key("client"));
        let port = encrypted.port.to_string();
        let load = |more: &[&str]| {
            let mut command = Command::new(binary::pantala_bench());
            command.args([
                "load",
                "-p",
                &port,
                "-t",
                "1",
                "-c",
                "5",
                "-n",
                "2000",
                "--ratio",
                "1:1",
                "--key-maximum",
                "9",
            ]);
            command.args(["--tls", "--cacert", &ca]).args(more);
            tool::run_to_end(&mut command, b"", PATIENCE)
        };
        for (pipeline, size) in [("1", "100"), ("16", "20000")] {
            let more = ["--cert", &cert, "--key", &key, "--sni", "localhost", "--pipeline", pipeline, "-d", size];
            let ran = load(&more);
            assert!(ran.success, "{ran:?}");
        }
        let ran = load(&["--cert", &cert, "--key", &key, "--sni", "elsewhere"]);
        assert!(!ran.success && ran.errors.contains("not valid for name"), "{ran:?}");
        assert!(!load(&[]).success, "a certificate is required");
    });
}

#[test]
fn unauthenticated_clients_are_closed_in_time() {
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| {
        let more = ["--unauthenticated-timeout", "3", "--requirepass", "secret"];
        let mut encrypted = Encrypted::start(backend, &certificates, "yes", &more);
        let tunnel = encrypted.tunnel(&certificates);
        let mut known = tunnel.connect();
        assert_eq!(known.call("AUTH secret"), Reply::ok());
        // None of these four clients authenticates. On the encrypted port, one client sends
        // nothing, and one sends only a part of a handshake. On the plain port, one client sends
        // nothing, and one sends a command without a password.
        let (port, plain_port) = (encrypted.port, encrypted.server.port());
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(answer_to(port, b"", false), b""));
            scope.spawn(|| assert_eq!(answer_to(port, &[22, 3, 1, 2, 0, 1], false), b""));
            scope.spawn(|| assert_eq!(answer_to(plain_port, b"", false), b""));
            let mut stranger = tunnel.connect();
            assert!(stranger.call("PING").is_error());
            assert_eq!(stranger.read_to_end(), b"");
        });
        assert_eq!(known.call("PING"), Reply::Simple("PONG".into()));
        encrypted.server.assert_sound();
    });
}

#[test]
fn a_handshake_on_the_plain_port_is_closed() {
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &[]);
        // Sends the start of a TLS ClientHello. These bytes contain no line end, so the server must
        // reply before it has received a whole line.
        let answer = answer_to(server.port(), &[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3], false);
        assert_eq!(answer, b"-ERR Protocol error: a TLS handshake on a port without TLS\r\n");
        server.assert_sound();
    });
}
