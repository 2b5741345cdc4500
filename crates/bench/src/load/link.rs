//! TLS for the connections of the load.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use pantala_tls::connection::Out;
use pantala_tls::options::{Authorities, Identity};
use pantala_tls::{Client, Connection, Options};

/// The TLS configuration that the connections share.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    client: Arc<Client>,
    /// The name that the server's certificate must contain.
    name: String,
}

impl Tls {
    /// Reads the files: the authority's certificate, and the client's certificate and key, if
    /// given.
    pub(crate) fn new([authority, cert_file, key_file]: [Option<PathBuf>; 3], name: &str) -> Result<Self, String> {
        let options = Options {
            client: Identity { cert_file, key_file, key_password: None },
            authorities: Authorities { file: authority, dir: None },
            ..Options::default()
        };
        Ok(Tls { client: Arc::new(Client::new(&options)?), name: name.to_owned() })
    }
}

/// The state of one encrypted connection.
pub(crate) struct Link {
    connection: Connection,
    /// Encrypted bytes to send.
    pub(crate) sealed: Vec<u8>,
    opened: Vec<u8>,
}

impl Link {
    /// Starts an encrypted connection. `sealed` then contains the first bytes to send.
    pub(crate) fn new(tls: &Tls) -> io::Result<Self> {
        let connection = tls.client.connect(&tls.name).map_err(|failure| describe_error(&failure))?;
        let mut link = Link { connection, sealed: Vec::new(), opened: Vec::new() };
        let mut out = Out { plain: &mut link.opened, reply: &mut link.sealed };
        link.connection.perform_handshake(&mut out).map_err(|failure| describe_error(&failure))?;
        Ok(link)
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Encrypts `plain`, and appends the result to the bytes to send. Returns all bytes to send.
    pub(crate) fn seal(&mut self, plain: &[u8]) -> io::Result<&[u8]> {
        if !plain.is_empty() {
            self.connection.seal(plain, &mut self.sealed).map_err(|failure| describe_error(&failure))?;
        }
        Ok(&self.sealed)
    }

    /// Decrypts received bytes, and returns the plain text that they contain.
    pub(crate) fn open(&mut self, received: &mut [u8]) -> io::Result<&[u8]> {
        self.opened.clear();
        let mut out = Out { plain: &mut self.opened, reply: &mut self.sealed };
        self.connection.receive(received, &mut out).map_err(|failure| describe_error(&failure))?;
        Ok(&self.opened)
    }
}

fn describe_error(failure: &pantala_tls::connection::Failure) -> io::Error {
    io::Error::other(format!("TLS: {failure}"))
}
