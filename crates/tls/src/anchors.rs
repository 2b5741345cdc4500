//! Accepts peers that present the certificate of a certificate authority.
//!
//! OpenSSL accepts such a certificate as a chain of length one. Small installations rely on this:
//! each side has one self-signed certificate, which the other side configures as its authority. By
//! default, `openssl req -x509` marks such a certificate as an authority's. rustls rejects every
//! peer that presents an authority's certificate; the verifiers then call [`is_trusted`].

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore, SignatureScheme,
};
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::ExtendedKeyUsage;

/// Returns whether to accept `certificate`, which rustls has rejected with `error`. All of these
/// conditions must hold:
///
/// - `error` says that this is an authority's certificate.
/// - The authority is one of `roots`. As in rustls, a root consists of a subject, a key and name
///   constraints. So another certificate with the same three is accepted too, for example a renewed
///   one.
/// - The certificate is valid at `now`.
/// - The certificate has no extended key usage, so its purposes are not limited. (rustls has not
///   checked this.)
pub(crate) fn is_trusted(
    error: &Error,
    certificate: &CertificateDer<'_>,
    roots: &RootCertStore,
    now: UnixTime,
) -> bool {
    // rustls has no variant for the error that is tested here, and reports it as `Other`.
    let Error::InvalidCertificate(CertificateError::Other(OtherError(cause))) = error else { return false };
    if !matches!(cause.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity)) {
        return false;
    }
    let mut own = RootCertStore::empty();
    let Ok(parsed) = Certificate::from_der(certificate) else { return false };
    let content = parsed.tbs_certificate();
    let validity = content.validity();
    let times = validity.not_before.to_unix_duration().as_secs()..=validity.not_after.to_unix_duration().as_secs();
    times.contains(&now.as_secs())
        && matches!(content.get_extension::<ExtendedKeyUsage>(), Ok(None))
        && own.add(certificate.clone().into_owned()).is_ok()
        && own.roots.iter().all(|anchor| roots.roots.contains(anchor))
}

/// A verifier of clients' certificates that also accepts the authorities' own certificates.
#[derive(Debug)]
pub(crate) struct Clients {
    pub(crate) inner: Arc<dyn ClientCertVerifier>,
    pub(crate) roots: Arc<RootCertStore>,
}

impl ClientCertVerifier for Clients {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match self.inner.verify_client_cert(certificate, intermediates, now) {
            Err(error) if is_trusted(&error, certificate, &self.roots, now) => Ok(ClientCertVerified::assertion()),
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
