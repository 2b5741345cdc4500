//! The settings of TLS connections: the `tls-*` directives.

use pantala_tls::options::{Agreement, Authorities, Password, Sessions};
use pantala_tls::{AuthClients, Identity, Options};

use super::settings::{bytes, count, path, port, text};
use super::values::Values;

/// `tls-port`, and the options of its connections.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TlsSettings {
    /// Port for TLS connections; 0 means none.
    pub port: u16,
    /// `tls-replication`: whether the link to a primary is encrypted.
    pub replication: bool,
    /// Certificates, and the parameters that a handshake may negotiate.
    pub options: Options,
}

/// A directive that stands for a group of options, and a function that returns whether two
/// [`Options`] are equal in this group.
type Compared = (&'static str, fn(&Options, &Options) -> bool);

const COMPARED: [Compared; 7] = [
    ("tls-cert-file", |old, new| old.server.cert_file == new.server.cert_file),
    ("tls-key-file", |old, new| old.server == new.server),
    ("tls-client-cert-file", |old, new| old.client == new.client),
    ("tls-ca-cert-file", |old, new| old.authorities == new.authorities && old.auth_clients == new.auth_clients),
    ("tls-protocols", |old, new| old.agreement.protocols == new.agreement.protocols),
    ("tls-ciphers", |old, new| old.agreement == new.agreement),
    ("tls-dh-params-file", |old, new| old.dh_params_file == new.dh_params_file),
];

impl TlsSettings {
    /// Converts the values of the directives.
    pub fn from_values(values: &Values) -> Self {
        let identity = |cert: &str, key: &str, password: &str| Identity {
            cert_file: path(values.text(cert)),
            key_file: path(values.text(key)),
            key_password: Some(values.text(password))
                .filter(|text| !text.is_empty())
                .map(|text| Password(text.to_vec())),
        };
        let options = Options {
            server: identity("tls-cert-file", "tls-key-file", "tls-key-file-pass"),
            client: identity("tls-client-cert-file", "tls-client-key-file", "tls-client-key-file-pass"),
            authorities: Authorities {
                file: path(values.text("tls-ca-cert-file")),
                dir: path(values.text("tls-ca-cert-dir")),
            },
            auth_clients: match values.text("tls-auth-clients") {
                b"no" => AuthClients::No,
                b"optional" => AuthClients::Optional,
                _ => AuthClients::Yes,
            },
            agreement: Agreement {
                protocols: text(values, "tls-protocols"),
                ciphers: text(values, "tls-ciphers"),
                ciphersuites: text(values, "tls-ciphersuites"),
                prefers_server_ciphers: values.bool("tls-prefer-server-ciphers"),
            },
            sessions: Sessions {
                are_kept: values.bool("tls-session-caching"),
                count_max: count(values, "tls-session-cache-size"),
                timeout_s: bytes(values, "tls-session-cache-timeout"),
            },
            dh_params_file: path(values.text("tls-dh-params-file")),
            revision: 0,
        };
        TlsSettings { port: port(values, "tls-port"), replication: values.bool("tls-replication"), options }
    }

    /// Returns the name that the error of a failed change shows: the directive that stands for the
    /// first group of options that differs from `old`.
    pub fn first_change(&self, old: &TlsSettings) -> &'static str {
        if (self.port == 0) != (old.port == 0) {
            return "tls-port";
        }
        if self.replication != old.replication {
            return "tls-replication";
        }
        let changed = COMPARED.iter().find(|(_, is_same)| !is_same(&old.options, &self.options));
        changed.map_or("tls-cert-file", |(name, _)| *name)
    }
}
