//! The state that all encrypted connections share, built from the settings: certificates, keys, and
//! the protocols and ciphers for the TLS handshake.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use pantala_engine::faults::{self, Fault};
use pantala_tls::{AuthClients, Client, Server};

use crate::config::TlsSettings;

const S_PER_DAY: i64 = 86_400;

/// The state that encrypted connections share. It is immutable: a change of the settings creates a
/// new state.
#[derive(Debug)]
pub struct Encryption {
    /// For accepted connections, in which this server is the TLS server.
    pub server: Server,
    /// For links to other servers, in which this server is the TLS client. `None` if
    /// `tls-replication` is not set.
    pub links: Option<Client>,
}

impl Encryption {
    /// Reads the files that the settings name. Returns `None` if neither `tls-port` nor
    /// `tls-replication` is set. Logs errors. Waits for the disk.
    ///
    /// # Errors
    /// The files or the settings can't be used.
    pub fn read(settings: &TlsSettings) -> Result<Option<Arc<Self>>, Unusable> {
        if settings.port == 0 && !settings.replication {
            return Ok(None);
        }
        faults::hold(Fault::StuckDisk);
        let read = || {
            let server = Server::new(&settings.options)?;
            // As in Redis, an invalid client certificate is an error even if no link would use it.
            Client::check_certificate(&settings.options)?;
            let links = settings.replication.then(|| Client::of_link(&settings.options)).transpose()?;
            Ok(Encryption { server, links })
        };
        let encryption: Encryption = read().map_err(|wrong: String| unusable(&wrong))?;
        if encryption.days_left().is_some_and(|days| days < 0) {
            tracing::warn!("WARNING: the certificate of tls-cert-file has expired: clients will reject it.");
        }
        encryption.warn_if_no_authority();
        Ok(Some(Arc::new(encryption)))
    }

    /// Returns the state for the settings `new`, whose relative paths are those of files in `dir`.
    /// `current` is the state for the settings `old`. If only `tls-port` or `tls-auth-clients` has
    /// changed, the files are not read again, as in Redis.
    ///
    /// # Errors
    /// The files or the settings can't be used.
    pub fn renewed(
        current: Option<Arc<Self>>,
        old: &TlsSettings,
        new: &TlsSettings,
        dir: &Path,
    ) -> Result<Option<Arc<Self>>, Unusable> {
        match current {
            Some(current) if (new.port > 0 || new.replication) && new.needs_same_files(old) => {
                let auth_clients = new.options.auth_clients;
                if auth_clients == old.options.auth_clients {
                    return Ok(Some(current));
                }
                current.with_auth_clients(auth_clients).map(|changed| Some(Arc::new(changed)))
            }
            _ => Encryption::read(&new.within(dir)),
        }
    }

    fn with_auth_clients(&self, auth_clients: AuthClients) -> Result<Self, Unusable> {
        let server = self.server.with_auth_clients(auth_clients).map_err(|wrong| unusable(&wrong))?;
        let changed = Encryption { server, links: self.links.clone() };
        changed.warn_if_no_authority();
        Ok(changed)
    }

    fn warn_if_no_authority(&self) {
        if self.server.trusts_no_certificate() {
            tracing::warn!("WARNING: tls-ca-cert-dir has no certificate: certificates of clients will be rejected.");
        }
    }

    /// Returns the days until the certificate expires, rounded down; negative if it has expired.
    pub fn days_left(&self) -> Option<i64> {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
        Some((self.server.expires_s()? - i64::try_from(now_s).ok()?).div_euclid(S_PER_DAY))
    }
}

/// Error: the settings of encrypted connections can't be used. The log has the reason.
#[derive(Clone, Copy, Debug)]
pub struct Unusable;

/// Logs why the settings can't be used.
fn unusable(reason: &str) -> Unusable {
    tracing::warn!("{reason}");
    Unusable
}
