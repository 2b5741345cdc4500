//! What encrypted connections need, from the settings: certificates, keys, what may be agreed on.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use pantala_tls::{Client, Server};

use crate::config::TlsSettings;

const S_PER_DAY: i64 = 86_400;

/// See the head of this module. Never changes: a reload makes another one.
#[derive(Debug)]
pub struct Encryption {
    /// The server's side.
    pub server: Server,
}

impl Encryption {
    /// Reads the files that the settings name; `None` without `tls-port`. Logs what is wrong.
    ///
    /// # Errors
    /// They can't be used.
    pub fn read(settings: &TlsSettings) -> Result<Option<Arc<Self>>, Unusable> {
        if settings.port == 0 {
            return Ok(None);
        }
        let read = || {
            let server = Server::new(&settings.options)?;
            // Nothing uses it before links to other servers are encrypted. A bad certificate is an
            // error all the same, as in Redis.
            if settings.options.client.cert_file.is_some() {
                Client::new(&settings.options)?;
            }
            Ok(server)
        };
        let server = read().map_err(|wrong: String| {
            tracing::warn!("{wrong}");
            Unusable
        })?;
        let encryption = Encryption { server };
        if encryption.days_left().is_some_and(|days| days < 0) {
            tracing::warn!("WARNING: the certificate of tls-cert-file has expired: clients will reject it.");
        }
        Ok(Some(Arc::new(encryption)))
    }

    /// Returns the days until the certificate expires, rounded down; negative if it has.
    pub fn days_left(&self) -> Option<i64> {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
        Some((self.server.expires_s()? - i64::try_from(now_s).ok()?).div_euclid(S_PER_DAY))
    }
}

/// The settings of encrypted connections can't be used. The log has the reason.
#[derive(Clone, Copy, Debug)]
pub struct Unusable;
