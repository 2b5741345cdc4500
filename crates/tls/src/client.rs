//! The client's side, for tools and links to other servers.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;

use crate::ciphers;
use crate::connection::{Connection, Failure};
use crate::options::{Identity, Options};
use crate::server::{identity, provider, roots};

/// The client's side: creates connections with one configuration.
#[derive(Debug)]
pub struct Client {
    config: Arc<ClientConfig>,
}

impl Client {
    /// Reads the files that the options name: the authorities, and the client's certificate.
    /// Without a client certificate it presents the server's, as in Redis.
    ///
    /// # Errors
    /// A file or directive is missing, unreadable or unsupported.
    pub fn new(options: &Options) -> Result<Self, String> {
        let builder = ClientConfig::builder_with_provider(provider(options)?)
            .with_protocol_versions(&ciphers::versions(&options.agreement.protocols)?)
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots(options)?);
        let (of, names) = match &options.client {
            Identity { cert_file: Some(_), .. } => (&options.client, ["tls-client-cert-file", "tls-client-key-file"]),
            _ => (&options.server, ["tls-cert-file", "tls-key-file"]),
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
        let name = ServerName::try_from(name.to_owned()).map_err(|_| Failure::Name)?;
        UnbufferedClientConnection::new(Arc::clone(&self.config), name)
            .map(Connection::of_client)
            .map_err(Failure::Protocol)
    }
}
