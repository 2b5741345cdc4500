//! The state that all encrypted connections share, built from the settings: certificates, keys, and
//! the protocols and ciphers that a handshake may negotiate.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use pantala_tls::{Client, Server};

use crate::config::TlsSettings;

const S_PER_DAY: i64 = 86_400;

/// The state that encrypted connections share. Immutable: a reload creates a new one.
#[derive(Debug)]
pub struct Encryption {
    /// The server's side, for accepted connections.
    pub server: Server,
    /// The client's side, for links to other servers; `None` if `tls-replication` is not set.
    pub links: Option<Client>,
}

impl Encryption {
    /// Reads the files that the settings name. Returns `None` if neither `tls-port` nor
    /// `tls-replication` is set. Logs errors.
    ///
    /// # Errors
    /// The files or the settings can't be used.
    pub fn read(settings: &TlsSettings) -> Result<Option<Arc<Self>>, Unusable> {
        if settings.port == 0 && !settings.replication {
            return Ok(None);
        }
        let read = || {
            let server = Server::new(&settings.options)?;
            // As in Redis, a bad client certificate is an error even if no link uses it.
            let links = if settings.replication || settings.options.client.cert_file.is_some() {
                Some(Client::of_link(&settings.options)?)
            } else {
                None
            };
            Ok((server, links.filter(|_| settings.replication)))
        };
        let (server, links) = read().map_err(|wrong: String| {
            tracing::warn!("{wrong}");
            Unusable
        })?;
        let encryption = Encryption { server, links };
        if encryption.days_left().is_some_and(|days| days < 0) {
            tracing::warn!("WARNING: the certificate of tls-cert-file has expired: clients will reject it.");
        }
        Ok(Some(Arc::new(encryption)))
    }

    /// Returns the days until the certificate expires, rounded down; negative if it has expired.
    pub fn days_left(&self) -> Option<i64> {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
        Some((self.server.expires_s()? - i64::try_from(now_s).ok()?).div_euclid(S_PER_DAY))
    }
}

/// The error if the settings of encrypted connections can't be used. The log has the reason.
#[derive(Clone, Copy, Debug)]
pub struct Unusable;
