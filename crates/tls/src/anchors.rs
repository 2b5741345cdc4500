//! Peers whose certificate is itself an authority's.
//!
//! OpenSSL accepts such a certificate: it ends a chain of length one. Small installations use it,
//! with one self-signed certificate per side that the other side names as its authority, and
//! `openssl req -x509` makes it an authority's by default. rustls rejects every authority's
//! certificate of a peer, so the verifiers ask here when it has done so.

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

/// Returns whether rustls has rejected `certificate` only because it is an authority's, although it
/// belongs to one of `roots` and is valid at `now`. As in rustls, a root is a subject, a key and
/// name constraints, so another certificate with the same three also counts, for example a renewed
/// one. A certificate that is limited to some purposes doesn't count, because rustls did not get to
/// check them.
pub(crate) fn is_trusted(
    error: &Error,
    certificate: &CertificateDer<'_>,
    roots: &RootCertStore,
    now: UnixTime,
) -> bool {
    // rustls has no variant for this error, nor for several others.
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

/// A verifier of clients' certificates that also accepts the authorities' own.
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
