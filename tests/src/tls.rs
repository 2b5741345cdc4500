//! TLS for tests: certificates made by openssl, and a tunnel through which a plain [`Client`]
//! reaches an encrypted port.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use tempfile::TempDir;

use crate::client::READ_MAX;
use crate::{Client, tool};

/// Certificates in a directory. `ca` is the certificate of an authority. The authority has signed
/// the certificates of a server (`server`), of a server with an RSA key (`rsa`) and of a client
/// (`client`). `stranger` is self-signed.
pub struct Certificates {
    folder: TempDir,
    openssl: PathBuf,
}

/// Arguments of openssl for a new key on the curve P-256, which is fast to create.
pub const EC: [&str; 4] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"];

impl Certificates {
    /// Makes the certificates. Returns `None` if openssl isn't installed (see [`tool::find`]).
    ///
    /// # Panics
    /// If openssl fails.
    #[must_use]
    pub fn make() -> Option<Certificates> {
        let openssl = tool::find("openssl")?;
        let folder = tempfile::tempdir().expect("a folder for certificates");
        let made = Certificates { folder, openssl };
        fs::write(made.path("cnf"), "[req]\ndistinguished_name=dn\n[dn]\n").expect("it is written");
        made.sign("ca", &EC, 30, None);
        made.sign("stranger", &EC, 30, None);
        for name in ["server", "client"] {
            made.sign(name, &EC, 30, Some("ca"));
        }
        made.sign("rsa", &["-newkey", "rsa:2048"], 30, Some("ca"));
        Some(made)
    }

    /// Makes a certificate that is valid for `days` days. The authority `by` signs the certificate.
    /// If `by` is `None`, the certificate is self-signed.
    ///
    /// # Panics
    /// If openssl fails.
    pub fn sign(&self, name: &str, key: &[&str], days: u32, by: Option<&str>) {
        self.sign_for("DNS:localhost,IP:127.0.0.1", name, key, days, by);
    }

    /// Makes a certificate as [`Certificates::sign`] does, but for the names `hosts`, in OpenSSL's
    /// form of a `subjectAltName`. A self-signed certificate contains no such names.
    ///
    /// # Panics
    /// If openssl fails.
    pub fn sign_for(&self, hosts: &str, name: &str, key: &[&str], days: u32, by: Option<&str>) {
        let hosts = format!("subjectAltName={hosts}");
        let (cnf, key_file, cert_file) = (self.file("cnf"), self.key(name), self.cert(name));
        let (subject, days) = (format!("/CN={name}"), days.to_string());
        let mut args = vec!["req", "-config", &cnf, "-x509", "-nodes", "-days", &days, "-subj", &subject];
        args.extend_from_slice(key);
        args.extend(["-keyout", &key_file, "-out", &cert_file]);
        let (ca_cert, ca_key) = by.map_or_else(Default::default, |by| (self.cert(by), self.key(by)));
        match by {
            Some(_) => args.extend([
                "-CA",
                &ca_cert,
                "-CAkey",
                &ca_key,
                "-addext",
                "basicConstraints=critical,CA:FALSE",
                "-addext",
                &hosts,
            ]),
            None => args.extend(["-addext", "basicConstraints=critical,CA:TRUE"]),
        }
        self.openssl(&args);
    }

    /// Makes a certificate that the authority has signed, and that expired in 2020.
    ///
    /// # Panics
    /// If openssl fails.
    pub fn sign_expired(&self, name: &str) {
        let settings = format!(
            "[ca]\ndefault_ca=made\n[made]\ndatabase={folder}/index\nserial={folder}/serial\nnew_certs_dir={folder}\n\
             policy=any\ndefault_md=sha256\nx509_extensions=names\n[any]\ncommonName=supplied\n\
             [names]\nbasicConstraints=critical,CA:FALSE\nsubjectAltName=DNS:localhost,IP:127.0.0.1\n",
            folder = self.folder.path().display()
        );
        for (file, text) in [("ca.cnf", settings.as_str()), ("index", ""), ("serial", "01\n")] {
            fs::write(self.path(file), text).expect("it is written");
        }
        let (request, key_file, subject) = (self.file("request"), self.key(name), format!("/CN={name}"));
        let ask = ["req", "-config", &self.file("cnf"), "-new", "-nodes", "-subj", &subject];
        self.openssl(&[&ask[..], &EC, &["-keyout", &key_file, "-out", &request]].concat());
        let sign = ["ca", "-batch", "-notext", "-config", &self.file("ca.cnf"), "-cert", &self.cert("ca")];
        let dates = ["-startdate", "20200101000000Z", "-enddate", "20200201000000Z"];
        let files = ["-keyfile", &self.key("ca"), "-in", &request, "-out", &self.cert(name)];
        self.openssl(&[&sign[..], &dates, &files].concat());
    }

    /// Runs openssl.
    ///
    /// # Panics
    /// If openssl fails.
    pub fn openssl(&self, args: &[&str]) {
        let ran = Command::new(&self.openssl).args(args).stdin(Stdio::null()).output().expect("openssl starts");
        assert!(ran.status.success(), "openssl {args:?}: {}", String::from_utf8_lossy(&ran.stderr));
    }

    /// Returns the path of openssl.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.openssl
    }

    /// Returns the path of a file in the directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the path of a file in the directory, as a string.
    #[must_use]
    pub fn file(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Returns the file of a certificate.
    #[must_use]
    pub fn cert(&self, name: &str) -> String {
        self.file(&format!("{name}.crt"))
    }

    /// Returns the file of a key.
    #[must_use]
    pub fn key(&self, name: &str) -> String {
        self.file(&format!("{name}.key"))
    }

    /// Returns the arguments of a server with an encrypted port and the certificate `name`.
    #[must_use]
    pub fn server_args(&self, port: u16, name: &str) -> Vec<String> {
        let pairs = [
            ("--tls-port", port.to_string()),
            ("--tls-cert-file", self.cert(name)),
            ("--tls-key-file", self.key(name)),
            ("--tls-ca-cert-file", self.cert("ca")),
        ];
        pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
    }

    /// Returns the configuration of a client that trusts the authority. If `name` is given, the
    /// client presents this certificate.
    ///
    /// # Panics
    /// If the files can't be used.
    #[must_use]
    pub fn client_config(&self, name: Option<&str>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.cert("ca")).expect("a certificate")).expect("an authority");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("both versions")
            .with_root_certificates(roots);
        Arc::new(match name {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let cert = CertificateDer::from_pem_file(self.cert(name)).expect("a certificate");
                let key = PrivateKeyDer::from_pem_file(self.key(name)).expect("a key");
                builder.with_client_auth_cert(vec![cert], key).expect("the certificate's key")
            }
        })
    }
}

/// Observations of a tunnel: the server's certificate on the last connection that finished its
/// handshake, and the last failure, which [`Tunnel::failure`] takes.
#[derive(Default)]
struct Seen {
    certificate: Option<Vec<u8>>,
    failure: Option<String>,
}

/// A tunnel accepts plain connections and forwards them, encrypted, to a server. It runs until the
/// process ends.
pub struct Tunnel {
    port: u16,
    seen: Arc<Mutex<Seen>>,
}

impl Tunnel {
    /// Opens a tunnel to a port of this host. The tunnel sends TLS records in pieces of at most
    /// `piece_bytes`, so that the server receives partial records.
    ///
    /// # Panics
    /// If no port is free.
    #[must_use]
    pub fn open(to: u16, config: Arc<ClientConfig>, piece_bytes: usize) -> Tunnel {
        Tunnel::open_to(("127.0.0.1", to), config, piece_bytes)
    }

    /// Opens a tunnel to an address and a port, as [`Tunnel::open`] does.
    ///
    /// # Panics
    /// If no port is free.
    #[must_use]
    pub fn open_to(to: (&'static str, u16), config: Arc<ClientConfig>, piece_bytes: usize) -> Tunnel {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
        let port = listener.local_addr().expect("it has an address").port();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let shared = Arc::clone(&seen);
        std::thread::spawn(move || {
            for plain in listener.incoming().map_while(Result::ok) {
                let (config, shared) = (Arc::clone(&config), Arc::clone(&shared));
                std::thread::spawn(move || {
                    if let Err(error) = forward(&plain, to, config, piece_bytes, &shared) {
                        shared.lock().expect("no panic").failure = Some(error.to_string());
                    }
                    let _ = plain.shutdown(Shutdown::Both);
                });
            }
        });
        Tunnel { port, seen }
    }

    /// Returns the tunnel's plain port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Connects through the tunnel.
    ///
    /// # Panics
    /// If the tunnel has ended.
    #[must_use]
    pub fn connect(&self) -> Client {
        Client::tcp(self.port)
    }

    /// Returns the certificate that the server presented on the last connection that finished its
    /// handshake.
    ///
    /// # Panics
    /// If a forwarding thread has panicked.
    #[must_use]
    pub fn certificate(&self) -> Option<Vec<u8>> {
        self.seen.lock().expect("no panic").certificate.clone()
    }

    /// Waits until a connection has failed, and returns the reason.
    ///
    /// # Panics
    /// If no connection fails within [`READ_MAX`].
    #[must_use]
    pub fn failure(&self) -> String {
        let deadline = Instant::now() + READ_MAX;
        loop {
            if let Some(failure) = self.seen.lock().expect("no panic").failure.take() {
                return failure;
            }
            assert!(Instant::now() < deadline, "no connection has failed");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Forwards one connection in both directions until the server ends it.
fn forward(
    plain: &TcpStream,
    to: (&str, u16),
    config: Arc<ClientConfig>,
    piece_bytes: usize,
    seen: &Mutex<Seen>,
) -> io::Result<()> {
    let mut outer = TcpStream::connect(to)?;
    outer.set_nodelay(true)?;
    outer.set_nonblocking(true)?;
    let mut tls = ClientConnection::new(config, "localhost".try_into().expect("a name")).map_err(io::Error::other)?;
    tls.set_buffer_limit(None);
    let (mut plain_ended, mut is_recorded, mut buffer) = (false, false, vec![0; 64 * 1024]);
    loop {
        let mut outer_flags = PollFlags::IN;
        if tls.wants_write() {
            outer_flags |= PollFlags::OUT;
        }
        // Read more plain bytes only after all encrypted bytes were sent, so that memory is
        // bounded.
        let is_open = !plain_ended && !tls.is_handshaking() && !tls.wants_write();
        let plain_flags = if is_open { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = [PollFd::new(&outer, outer_flags), PollFd::new(plain, plain_flags)];
        poll(&mut fds, Some(&Timespec { tv_sec: 120, tv_nsec: 0 }))?;
        let (outer_ready, plain_ready) = (fds[0].revents(), fds[1].revents());
        if outer_ready.contains(PollFlags::OUT) {
            match tls.write_tls(&mut Pieces(&mut outer, piece_bytes)) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                written => drop(written?),
            }
            if plain_ended && !tls.wants_write() {
                outer.shutdown(Shutdown::Write)?;
            }
        }
        if outer_ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            match tls.read_tls(&mut outer) {
                Ok(0) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => drop(read?),
            }
            if let Err(error) = tls.process_new_packets() {
                // Send the alert that tells the server the reason.
                let _ = tls.write_tls(&mut outer);
                return Err(io::Error::other(error));
            }
            loop {
                match tls.reader().read(&mut buffer) {
                    Ok(0) => return Ok(()),
                    Ok(length) => (&mut &*plain).write_all(&buffer[..length])?,
                    Err(_) => break,
                }
            }
            // Record the certificate only once per connection: later bytes of an older connection
            // must not overwrite the certificate of a newer one.
            if !tls.is_handshaking() && !std::mem::replace(&mut is_recorded, true) {
                let certificate = tls.peer_certificates().and_then(|chain| chain.first());
                seen.lock().expect("no panic").certificate = certificate.map(|one| one.to_vec());
            }
        }
        if is_open && plain_ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            let length = (&mut &*plain).read(&mut buffer)?;
            if length == 0 {
                plain_ended = true;
                tls.send_close_notify();
            } else {
                tls.writer().write_all(&buffer[..length])?;
            }
        }
    }
}

/// A socket that accepts at most this number of bytes per write.
struct Pieces<'s>(&'s mut TcpStream, usize);

impl Write for Pieces<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(&bytes[..bytes.len().min(self.1)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
