//! The client's side, for tools and links to other servers.

use std::net::IpAddr;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{UnbufferedClientConnection, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::connection::{Connection, Failure};
use crate::options::Options;
use crate::server::{identity, provider, roots};
use crate::{anchors, ciphers};

/// The client's side: creates connections with one configuration.
#[derive(Clone, Debug)]
pub struct Client {
    config: Arc<ClientConfig>,
}

impl Client {
    /// Reads the files that the options name: the certificates of the authorities and of the
    /// client. A client without a certificate presents the server's, as in Redis.
    ///
    /// # Errors
    /// A file or directive is missing, unreadable or unsupported.
    pub fn new(options: &Options) -> Result<Self, String> {
        let (provider, verifier, _) = verifier(options)?;
        let has_own = options.client.cert_file.is_some();
        Client::with_verifier(options, has_own, provider, verifier)
    }

    /// Does the same as [`Client::new`] for links to other servers. An authority must have signed
    /// the other server's certificate, but the names in it are not checked, as in Redis. A client
    /// certificate without a key is ignored, so that the server's is presented.
    ///
    /// # Errors
    /// A file or directive is missing, unreadable or unsupported.
    pub fn of_link(options: &Options) -> Result<Self, String> {
        let (provider, inner, roots) = verifier(options)?;
        let verifier = Arc::new(AnyName { inner, roots });
        Client::with_verifier(options, has_own_certificate(options), provider, verifier)
    }

    /// Checks that [`Client::of_link`] can use the client's certificate and key. Does nothing if
    /// either of them is missing, because `of_link` then presents the server's.
    ///
    /// # Errors
    /// The certificate or its key can't be used.
    pub fn check_certificate(options: &Options) -> Result<(), String> {
        if has_own_certificate(options) {
            let (certificates, key) = identity(&options.client, OWN_NAMES)?;
            CertifiedKey::from_der(certificates, key, &aws_lc_rs::default_provider())
                .map_err(|error| format!("Certificate and private key of the client can't be used: {error}"))?;
        }
        Ok(())
    }

    fn with_verifier(
        options: &Options,
        has_own: bool,
        provider: Arc<CryptoProvider>,
        verifier: Arc<dyn ServerCertVerifier>,
    ) -> Result<Self, String> {
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&ciphers::versions(&options.agreement.protocols)?)
            .map_err(|error| error.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let (of, names) = match has_own {
            true => (&options.client, OWN_NAMES),
            false => (&options.server, ["tls-cert-file", "tls-key-file"]),
        };
        let config = if of.cert_file.is_some() {
            let (certificates, key) = identity(of, names)?;
            builder.with_client_auth_cert(certificates, key).map_err(|error| error.to_string())?
        } else {
            builder.with_no_client_auth()
        };
        Ok(Client { config: Arc::new(config) })
    }

    /// Creates the client's side of a new connection to the server `name`, a host name or an
    /// address.
    ///
    /// # Errors
    /// The name is invalid, or the system has no randomness.
    pub fn connect(&self, name: &str) -> Result<Connection, Failure> {
        self.start(ServerName::try_from(name.to_owned()).map_err(|_| Failure::Name)?)
    }

    /// Creates the client's side of a new connection to a server of which only the address is
    /// known. The handshake contains no server name.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn connect_to(&self, address: IpAddr) -> Result<Connection, Failure> {
        self.start(ServerName::from(address))
    }

    fn start(&self, name: ServerName<'static>) -> Result<Connection, Failure> {
        UnbufferedClientConnection::new(Arc::clone(&self.config), name)
            .map(Connection::of_client)
            .map_err(Failure::Protocol)
    }
}

const OWN_NAMES: [&str; 2] = ["tls-client-cert-file", "tls-client-key-file"];

fn has_own_certificate(options: &Options) -> bool {
    options.client.cert_file.is_some() && options.client.key_file.is_some()
}

/// The provider, verifier and authorities that check servers' certificates.
type Checks = (Arc<CryptoProvider>, Arc<WebPkiServerVerifier>, Arc<RootCertStore>);

fn verifier(options: &Options) -> Result<Checks, String> {
    let (provider, roots) = (provider(options)?, roots(options)?);
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
        .build()
        .map_err(|error| format!("Failed to configure CA certificate(s) file/directory: {error}"))?;
    Ok((provider, verifier, roots))
}

/// A verifier that checks everything except the server's name. It also accepts the authorities' own
/// certificates.
#[derive(Debug)]
struct AnyName {
    inner: Arc<WebPkiServerVerifier>,
    roots: Arc<RootCertStore>,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        // rustls checks the name last. So if the name is the error, everything else is valid.
        match self.inner.verify_server_cert(certificate, intermediates, name, ocsp_response, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            Err(error) if anchors::is_trusted(&error, certificate, &self.roots, now) => {
                Ok(ServerCertVerified::assertion())
            }
            checked => checked,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
