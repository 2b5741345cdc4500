//! The users at startup, the ACL file, and random bytes for passwords.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use pantala_engine::acl::Line;

use crate::config::{Host, System, reason, replace_file};
use crate::host::Server;

impl Server {
    /// Returns the path of the ACL file.
    pub(crate) fn acl_file(&self) -> Option<PathBuf> {
        self.config().settings().aclfile.clone()
    }

    /// Creates the users that the configuration defines, either by `user` lines or by the ACL file.
    ///
    /// # Errors
    /// Returns the error in the rules of a user or in the file, as text for the operator.
    pub fn load_users(&self, lines: &[Line]) -> Result<(), String> {
        let users = self.keyspace().users();
        let Some(path) = self.acl_file() else {
            return users
                .add_configured(lines)
                .map_err(|error| format!("{error}. Critical error while loading ACLs. Exiting."));
        };
        if !lines.is_empty() {
            return Err("Users in redis.conf and an ACL file at the same time are likely to lead to errors and \
                 security holes: use either 'user' lines or 'aclfile'"
                .to_owned());
        }
        let (path, read) = read(&path);
        let parsed = match read {
            Ok(text) => users.parse_file(&text, &path),
            Err(why) => Err(format!("Error loading ACLs, opening file '{path}': {why}")),
        };
        users.replace(parsed.map_err(|errors| format!("Aborting startup because of ACL errors: {errors}"))?);
        Ok(())
    }
}

/// Reads an ACL file. Returns its path, and either its content or the system's error.
pub fn read(path: &Path) -> (String, Result<Vec<u8>, String>) {
    (path.display().to_string(), System.read_file(path).map_err(|error| reason(&error)))
}

/// Replaces the content of an ACL file. After a crash, the file has either the old or the new
/// content. Calls must not overlap ([`order_saves`](pantala_engine::acl::Users::order_saves)),
/// because they use the same temporary file. Returns whether the replacement succeeded. The log has
/// the reason for a failure.
pub fn write(path: &Path, text: &[u8]) -> bool {
    let written = replace_file(path, text);
    if let Err(error) = &written {
        tracing::warn!("Writing ACL file for ACL SAVE: {}", reason(error));
    }
    written.is_ok()
}

/// Fills `bytes` with random bytes from the system. Returns false if the system can't provide any.
pub fn fill_random(bytes: &mut [u8]) -> bool {
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(bytes)).is_ok()
}
