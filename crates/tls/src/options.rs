//! The values of the `tls-*` directives.

use std::fmt;
use std::path::PathBuf;

/// `tls-auth-clients`: whether clients must present a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AuthClients {
    /// The server requests no certificate.
    No,
    /// Every client must present a valid certificate.
    #[default]
    Yes,
    /// The server requests a certificate. A client need not present one, but if it does, the
    /// certificate must be valid.
    Optional,
}

/// A password. The `Debug` output doesn't show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(pub Vec<u8>);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(..)")
    }
}

/// A certificate with its key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// PEM file with the certificate, followed by the certificates of its signers.
    pub cert_file: Option<PathBuf>,
    /// File of the private key.
    pub key_file: Option<PathBuf>,
    /// Password of the key.
    pub key_password: Option<Password>,
}

/// The certificates of the authorities that sign peers' certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Authorities {
    /// File of certificates.
    pub file: Option<PathBuf>,
    /// Folder with files of certificates.
    pub dir: Option<PathBuf>,
}

/// The versions and suites that a handshake may agree on. An empty list means everything that is
/// supported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// Versions: `TLSv1.2 TLSv1.3`.
    pub protocols: String,
    /// Cipher suites of TLS 1.2, as an OpenSSL list.
    pub ciphers: String,
    /// Cipher suites of TLS 1.3.
    pub ciphersuites: String,
    /// Whether the server's order of suites takes precedence over the client's.
    pub prefers_server_ciphers: bool,
}

/// Sessions that clients may resume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sessions {
    /// Whether sessions may be resumed.
    pub are_kept: bool,
    /// Maximum number of kept sessions; 0 means [`SESSIONS_MAX`].
    ///
    /// [`SESSIONS_MAX`]: crate::server::SESSIONS_MAX
    pub count_max: usize,
    /// Time after the handshake for which a session may be resumed, seconds.
    pub timeout_s: u64,
}

impl Default for Sessions {
    fn default() -> Self {
        Sessions { are_kept: true, count_max: 20 * 1024, timeout_s: 300 }
    }
}

/// The values of all `tls-*` directives except the port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The server's certificate.
    pub server: Identity,
    /// The certificate that this process presents when it connects to other servers.
    pub client: Identity,
    /// The certificates of the authorities that sign peers' certificates.
    pub authorities: Authorities,
    /// Whether clients must present a certificate.
    pub auth_clients: AuthClients,
    /// The versions and suites that a handshake may agree on.
    pub agreement: Agreement,
    /// Sessions that clients may resume.
    pub sessions: Sessions,
    /// `tls-dh-params-file`, which is rejected.
    pub dh_params_file: Option<PathBuf>,
    /// Number of changes of `tls-*` directives. A new number makes the server reread the files,
    /// even if their names are the same.
    pub revision: u64,
}
