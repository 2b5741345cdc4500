//! Reads certificates and keys from files.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use pkcs8::EncryptedPrivateKeyInfoRef;
use pkcs8::Error::EncryptedPrivateKey;
use pkcs8::der::pem::PemLabel;
use pkcs8::der::{Decode, SecretDocument};
use pkcs8::pkcs5::Error::DecryptFailed;
use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use x509_cert::{Certificate, Version};

use crate::options::{Authorities, Password};

/// Maximum length of a file, bytes. It is ten times the length of a bundle of all public
/// authorities.
pub(crate) const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Reads a regular file of at most [`FILE_BYTES_MAX`] bytes. Rejects a special file before opening
/// it, because a FIFO blocks until it has a writer, and `/dev/zero` never ends.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    let text = |error: io::Error| error.to_string();
    if !std::fs::metadata(path).map_err(text)?.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    let mut bytes = Vec::new();
    // The file may grow while it is read.
    File::open(path).map_err(text)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(text)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("it has more than {FILE_BYTES_MAX} bytes"));
    }
    Ok(bytes)
}

/// Returns the certificates of a PEM file: at least one.
///
/// # Errors
/// The file can't be read, or has no certificate.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = certificates_in(&read(path)?)?;
    if found.is_empty() {
        return Err("no certificate found".into());
    }
    // rustls would reject certificates of older versions too, but its error text would blame the
    // key.
    let has_old_version =
        |der| Certificate::from_der(der).is_ok_and(|parsed| parsed.tbs_certificate().version() != Version::V3);
    if found.iter().any(|certificate| has_old_version(certificate)) {
        return Err("X.509 certificates of version 1 or 2 are not supported, only those of version 3".into());
    }
    Ok(found)
}

fn certificates_in(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    CertificateDer::pem_slice_iter(text).collect::<Result<_, _>>().map_err(|error| defect(&error).into())
}

/// Returns the text for a file that isn't valid PEM. It contains no part of the file, whereas the
/// `Display` output of [`pem::Error`] may contain the whole key.
fn defect(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::MissingSectionEnd { .. } => {
            "not valid PEM: a section has no END line (the file is truncated or has lost its line breaks)"
        }
        pem::Error::IllegalSectionStart { .. } => {
            "not valid PEM: a BEGIN line is malformed (the file may have lost its line breaks)"
        }
        pem::Error::Base64Decode(_) => "not valid PEM: a section is not valid base64",
        _ => "not valid PEM",
    }
}

/// Returns the private key of a PEM file. Its format may be PKCS #8 (with or without a password),
/// PKCS #1 or SEC 1.
///
/// # Errors
/// The file can't be read, has no key, or the password is missing or wrong.
pub fn private_key(path: &Path, password: Option<&Password>) -> Result<PrivateKeyDer<'static>, String> {
    let text = read(path)?;
    match PrivateKeyDer::from_pem_slice(&text) {
        Ok(key) if !is_legacy_encrypted(&text) => Ok(key),
        Ok(_) => Err(LEGACY.into()),
        Err(pem::Error::NoItemsFound) => decrypted(&text, password),
        Err(_) if is_legacy_encrypted(&text) => Err(LEGACY.into()),
        Err(error) => Err(defect(&error).into()),
    }
}

const LEGACY: &str = "the key is encrypted in the old PEM format, which is insecure and not supported: convert it with \
                      'openssl pkcs8 -topk8'";

const UNSUPPORTED: &str = "the key is damaged, or its encryption is not supported: supported are AES in CBC and GCM mode \
                           with PBKDF2 (HMAC with SHA-2) or scrypt; convert it with \
                           'openssl pkcs8 -topk8 -v2 aes-256-cbc'";

/// Returns whether the key is encrypted in OpenSSL's legacy format, which precedes PKCS #8.
fn is_legacy_encrypted(text: &[u8]) -> bool {
    const MARK: &[u8] = b"Proc-Type: 4,ENCRYPTED";
    text.windows(MARK.len()).any(|window| window == MARK)
}

/// Decrypts a private key in PKCS #8 format.
fn decrypted(text: &[u8], password: Option<&Password>) -> Result<PrivateKeyDer<'static>, String> {
    let text = String::from_utf8_lossy(text);
    let label = EncryptedPrivateKeyInfoRef::PEM_LABEL;
    let begin = text.find(&format!("-----BEGIN {label}-----")).ok_or("no private key found")?;
    let password = password.ok_or("the key has a password, and tls-key-file-pass is not set")?;
    let section = section(&text[begin..], label);
    let (_, document) = SecretDocument::from_pem(section).map_err(|error| format!("not valid PEM: {error}"))?;
    let encrypted = EncryptedPrivateKeyInfoRef::from_der(document.as_bytes()).map_err(|_| UNSUPPORTED)?;
    let key = encrypted.decrypt(&password.0).map_err(|error| match error {
        EncryptedPrivateKey(DecryptFailed) => format!("the key can't be decrypted: {error}"),
        _ => UNSUPPORTED.into(),
    })?;
    Ok(PrivatePkcs8KeyDer::from(key.as_bytes().to_vec()).into())
}

/// Returns the first PEM section of a text. The text must start with a section.
fn section<'t>(text: &'t str, label: &str) -> &'t str {
    let end = format!("-----END {label}-----");
    text.find(&end).map_or(text, |at| &text[..at + end.len()])
}

/// Returns the certificates of the authorities. As in OpenSSL, the file must contain at least one.
/// The folder may be empty or missing.
///
/// # Errors
/// The file can't be used, or there are too many certificates.
pub fn authorities(of: &Authorities) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let mut add = |path: &Path, certificates: Vec<CertificateDer<'static>>| {
        for certificate in certificates {
            if roots.roots.len() > FILES_MAX * 4 {
                return Err("too many authorities".to_string());
            }
            roots.add(certificate).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(())
    };
    if let Some(file) = &of.file {
        let found = certificates(file).map_err(|wrong| format!("{}: {wrong}", file.display()))?;
        add(file, found)?;
    }
    if let Some(entries) = of.dir.as_ref().and_then(|dir| std::fs::read_dir(dir).ok()) {
        let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.sort();
        // OpenSSL reads only files (usually links) that are named after a hash. Pantala reads every
        // file that contains a certificate.
        for path in paths.iter().take(FILES_MAX).filter(|path| path.is_file()) {
            if let Ok(found) = read(path).and_then(|text| certificates_in(&text)) {
                add(path, found)?;
            }
        }
    }
    Ok(roots)
}

/// Maximum number of entries read from a folder of authorities. Further entries are ignored.
const FILES_MAX: usize = 1024;

/// Returns the time at which a certificate expires, Unix time in seconds, or `None` if the
/// certificate can't be parsed.
pub fn expires_s(certificate: &CertificateDer<'_>) -> Option<i64> {
    let parsed = Certificate::from_der(certificate).ok()?;
    i64::try_from(parsed.tbs_certificate().validity().not_after.to_unix_duration().as_secs()).ok()
}
