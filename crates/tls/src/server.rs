//! The server's side: its certificate, the check of clients' certificates, and sessions to resume.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, UnbufferedServerConnection, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error};
use rustls::{RootCertStore, ServerConfig, SignatureAlgorithm, SignatureScheme};

use crate::connection::{Connection, Failure};
use crate::options::{AuthClients, Identity, Options};
use crate::{anchors, ciphers, files, sessions};

/// Maximum number of sessions kept for resumption if `tls-session-cache-size` is 0, which in
/// OpenSSL means no limit.
pub const SESSIONS_MAX: usize = 1024 * 1024;

/// Number of tickets sent after a TLS 1.3 handshake. With one ticket, a client can resume one
/// connection, on which it receives its next ticket. (OpenSSL sends two after a full handshake, and
/// one after a resumed one.)
const TICKETS: usize = 1;

/// The server's side: accepts connections with one configuration.
#[derive(Debug)]
pub struct Server {
    config: Arc<ServerConfig>,
    options: Options,
    certificate: Certificate,
    /// The authorities. `None` if they can't be read, which is allowed only while clients'
    /// certificates aren't checked.
    roots: Option<Arc<RootCertStore>>,
}

/// The server's certificate.
#[derive(Clone, Debug)]
struct Certificate {
    resolver: Arc<SingleCertAndKey>,
    /// When it expires, Unix time in seconds, if this is known.
    expires_s: Option<i64>,
    is_rsa: bool,
}

impl Server {
    /// Reads the files that the options name.
    ///
    /// # Errors
    /// A file or directive is missing, unreadable or unsupported. The text is for the log.
    pub fn new(options: &Options) -> Result<Self, String> {
        if let Some(file) = &options.dh_params_file {
            return Err(format!(
                "tls-dh-params-file {} is not supported: only key exchanges over elliptic curves are, which need no \
                 parameters",
                file.display()
            ));
        }
        let (certificates, key) = identity(&options.server, ["tls-cert-file", "tls-key-file"])?;
        let expires_s = files::expires_s(&certificates[0]);
        let key = CertifiedKey::from_der(certificates, key, &aws_lc_rs::default_provider())
            .map_err(|error| format!("Certificate and private key can't be used: {error}"))?;
        let is_rsa = key.key.algorithm() == SignatureAlgorithm::RSA;
        let certificate = Certificate { resolver: Arc::new(SingleCertAndKey::from(key)), expires_s, is_rsa };
        let roots = match options.auth_clients {
            AuthClients::No => roots(options).ok(),
            AuthClients::Yes | AuthClients::Optional => Some(roots(options)?),
        };
        Server::configured(options.clone(), certificate, roots)
    }

    /// Returns a server with the same certificates and another value of `tls-auth-clients`. The new
    /// server doesn't resume sessions of this one, because this one checked its clients by other
    /// rules.
    ///
    /// # Errors
    /// The certificates of the authorities are missing.
    pub fn with_auth_clients(&self, auth_clients: AuthClients) -> Result<Self, String> {
        let options = Options { auth_clients, ..self.options.clone() };
        let roots = match &self.roots {
            None if auth_clients != AuthClients::No => Some(roots(&options)?),
            known => known.clone(),
        };
        Server::configured(options, self.certificate.clone(), roots)
    }

    fn configured(
        options: Options,
        certificate: Certificate,
        roots: Option<Arc<RootCertStore>>,
    ) -> Result<Self, String> {
        let provider = provider(&options)?;
        let verifier = verifier(options.auth_clients, roots.clone(), &provider)?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&ciphers::versions(&options.agreement.protocols)?)
            .map_err(|error| format!("tls-protocols, tls-ciphers and tls-ciphersuites are inconsistent: {error}"))?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::clone(&certificate.resolver) as Arc<_>);
        config.ignore_client_order = options.agreement.prefers_server_ciphers;
        if options.sessions.are_kept {
            let count_max = if options.sessions.count_max == 0 { SESSIONS_MAX } else { options.sessions.count_max };
            let timeout = Duration::from_secs(options.sessions.timeout_s);
            config.session_storage = Arc::new(sessions::Cache::new(count_max, timeout));
            config.send_tls13_tickets = TICKETS;
        } else {
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Server { config: Arc::new(config), options, certificate, roots })
    }

    /// Creates the server's side of a new connection.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn accept(&self) -> Result<Connection, Failure> {
        UnbufferedServerConnection::new(Arc::clone(&self.config)).map(Connection::of_server).map_err(Failure::Protocol)
    }

    /// Returns whether every certificate of a client is rejected: certificates are checked, but no
    /// authority is known.
    pub fn trusts_no_certificate(&self) -> bool {
        self.options.auth_clients != AuthClients::No && self.roots.as_ref().is_none_or(|roots| roots.is_empty())
    }

    /// Returns whether the signature of a handshake takes longer than the rest of the handshake. An
    /// RSA signature does.
    pub fn signs_slowly(&self) -> bool {
        self.certificate.is_rsa
    }

    /// Returns the time at which the certificate expires, Unix time in seconds, if it is known.
    pub fn expires_s(&self) -> Option<i64> {
        self.certificate.expires_s
    }
}

/// A certificate chain and the private key of its first certificate.
pub(crate) type Chain = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Reads a certificate chain and its key. `names` are the names of the two directives, for error
/// messages.
pub(crate) fn identity(of: &Identity, names: [&str; 2]) -> Result<Chain, String> {
    let cert_file = of.cert_file.as_ref().ok_or_else(|| format!("No {} configured!", names[0]))?;
    let key_file = of.key_file.as_ref().ok_or_else(|| format!("No {} configured!", names[1]))?;
    let certificates = files::certificates(cert_file)
        .map_err(|wrong| format!("Failed to load certificate: {}: {wrong}", cert_file.display()))?;
    let key = files::private_key(key_file, of.key_password.as_ref())
        .map_err(|wrong| format!("Failed to load private key: {}: {wrong}", key_file.display()))?;
    Ok((certificates, key))
}

/// Returns the cryptography provider, reduced to the versions and suites that the options allow.
pub(crate) fn provider(options: &Options) -> Result<Arc<CryptoProvider>, String> {
    let cipher_suites = ciphers::cipher_suites(&options.agreement)?;
    Ok(Arc::new(CryptoProvider { cipher_suites, ..aws_lc_rs::default_provider() }))
}

/// Reads the certificates of the authorities, which must be configured.
pub(crate) fn roots(options: &Options) -> Result<Arc<RootCertStore>, String> {
    let of = &options.authorities;
    if of.file.is_none() && of.dir.is_none() {
        return Err(
            "Either tls-ca-cert-file or tls-ca-cert-dir must be specified when tls-cluster, tls-replication or \
                    tls-auth-clients are enabled!"
                .into(),
        );
    }
    let roots = files::authorities(of);
    roots.map(Arc::new).map_err(|wrong| format!("Failed to configure CA certificate(s) file/directory: {wrong}"))
}

/// Returns the verifier of clients' certificates.
fn verifier(
    auth_clients: AuthClients,
    roots: Option<Arc<RootCertStore>>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let is_optional = match auth_clients {
        AuthClients::No => return Ok(WebPkiClientVerifier::no_client_auth()),
        AuthClients::Yes => false,
        AuthClients::Optional => true,
    };
    let Some(roots) = roots.filter(|roots| !roots.is_empty()) else {
        let schemes = provider.signature_verification_algorithms.supported_schemes();
        return Ok(Arc::new(TrustsNone { is_optional, schemes }));
    };
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(provider));
    if is_optional {
        builder = builder.allow_unauthenticated();
    }
    let inner =
        builder.build().map_err(|error| format!("Failed to configure CA certificate(s) file/directory: {error}"))?;
    Ok(Arc::new(anchors::Clients { inner, roots }))
}

/// The verifier if no authority is known: rejects every certificate.
#[derive(Debug)]
struct TrustsNone {
    is_optional: bool,
    schemes: Vec<SignatureScheme>,
}

/// The error for a certificate that no known authority has signed.
const UNKNOWN_ISSUER: Error = Error::InvalidCertificate(CertificateError::UnknownIssuer);

impl ClientCertVerifier for TrustsNone {
    fn client_auth_mandatory(&self) -> bool {
        !self.is_optional
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Err(UNKNOWN_ISSUER)
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(UNKNOWN_ISSUER)
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(UNKNOWN_ISSUER)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes.clone()
    }
}
