//! The settings of TLS connections: the `tls-*` directives.

use std::path::Path;

use pantala_tls::options::{Agreement, Authorities, Password, Sessions};
use pantala_tls::{AuthClients, Identity, Options};

use super::settings::{bytes, count, path, port, text};
use super::values::Values;

/// `tls-port`, and the options of TLS connections.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TlsSettings {
    /// Port for TLS connections; 0 means none.
    pub port: u16,
    /// `tls-replication`: whether the link to a primary is encrypted.
    pub replication: bool,
    /// `tls-handshake-threads`: number of threads that sign for the workers.
    pub handshake_threads: usize,
    /// Certificates, and the parameters that a handshake may negotiate.
    pub options: Options,
    /// If the last change of `tls-*` directives can't be applied, the error names this directive.
    pub changed_first: &'static str,
}

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
        TlsSettings {
            port: port(values, "tls-port"),
            replication: values.bool("tls-replication"),
            handshake_threads: count(values, "tls-handshake-threads"),
            options,
            changed_first: "",
        }
    }

    /// Copies from the former settings those fields that aren't values of directives.
    pub fn continue_from(&mut self, old: &TlsSettings) {
        self.options.revision = old.options.revision;
        self.changed_first = old.changed_first;
    }

    /// Notes the `tls-*` directives that a `CONFIG SET` changes, in the order of its arguments. If
    /// it sets a directive that names a file or folder, the directive counts as changed even if the
    /// name stays the same, because the content may have changed. As in Redis, the server does not
    /// read the files again if only `tls-port` or `tls-auth-clients` changes, nor if
    /// `tls-handshake-threads` does.
    pub fn note_changes(&mut self, old: &TlsSettings, names: &[&'static str]) {
        self.continue_from(old);
        let is_reread =
            |name: &&&'static str| !matches!(**name, "tls-port" | "tls-auth-clients" | "tls-handshake-threads");
        self.options.revision += u64::from(names.iter().any(|name| is_reread(&name)));
        let opens_port = |name: &&&'static str| **name == "tls-port" && old.port == 0;
        let first = names.iter().find(|name| is_reread(name) || opens_port(name)).or(names.first());
        self.changed_first = first.copied().unwrap_or(self.changed_first);
    }

    /// Returns these settings with absolute paths of all files. Relative paths are those of files
    /// in `dir`.
    pub fn within(&self, dir: &Path) -> TlsSettings {
        let mut made = self.clone();
        let Options { server, client, authorities, dh_params_file, .. } = &mut made.options;
        let of_identities = [server, client].into_iter().flat_map(|of| [&mut of.cert_file, &mut of.key_file]);
        let paths = of_identities.chain([&mut authorities.file, &mut authorities.dir, dh_params_file]);
        paths.flatten().for_each(|path| *path = dir.join(&path));
        made
    }

    /// Returns whether the files read for the settings `old` can be used for these settings too.
    pub fn needs_same_files(&self, old: &TlsSettings) -> bool {
        let options = Options { auth_clients: old.options.auth_clients, ..self.options.clone() };
        options == old.options && (old.replication || !self.replication)
    }
}
