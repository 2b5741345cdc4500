//! The users at startup, the ACL file, and random bytes for passwords.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pantala_engine::acl::{Line, Rules, User, Users};
use pantala_engine::faults::{self, Fault};

use crate::config::{Host, System, reason, replace_file};
use crate::host::Server;

/// Redis's error if no ACL file is configured.
const NO_FILE: &str = "ERR This Redis instance is not configured to use an ACL file. You may want to specify users via the ACL SETUSER command and then issue a CONFIG REWRITE (assuming you have a Redis configuration file set) in order to store users in the Redis configuration.";
/// Redis's error if the ACL file can't be written.
const NOT_SAVED: &str =
    "ERR There was an error trying to save the ACLs. Please check the server logs for more information";

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
        let new = read(users, &path);
        users.replace(new.map_err(|errors| format!("Aborting startup because of ACL errors: {errors}"))?);
        Ok(())
    }
}

/// Replaces all users by those in the ACL file (`ACL LOAD`). Returns the former users, whose
/// connections the caller must close. Waits for the disk. `recheck` is called after the wait.
///
/// # Errors
/// Redis's error reply, or the error of `recheck`. No user is changed then.
pub fn load(server: &Server, recheck: impl FnOnce() -> Result<(), String>) -> Result<Vec<Arc<User>>, String> {
    let path = server.acl_file().ok_or(NO_FILE)?;
    let users = server.keyspace().users();
    let _order = users.order_files();
    let new = read(users, &path).map_err(|errors| format!("ERR {errors}"))?;
    recheck()?;
    Ok(users.replace(new))
}

/// Writes the users to the ACL file (`ACL SAVE`). After a crash, the file has either the old or the
/// new content. Waits for the disk.
///
/// # Errors
/// Redis's error reply. The log has the reason.
pub fn save(server: &Server) -> Result<(), String> {
    let path = server.acl_file().ok_or(NO_FILE)?;
    let users = server.keyspace().users();
    // Also prevents two threads from using the same temporary file.
    let _order = users.order_files();
    let mut text = users.lines().join(&b'\n');
    text.push(b'\n');
    replace_file(&path, &text).map_err(|error| {
        tracing::warn!("Writing ACL file for ACL SAVE: {}", reason(&error));
        NOT_SAVED.to_owned()
    })
}

/// Reads an ACL file.
///
/// # Errors
/// The system's error or the errors of all lines, in Redis's words.
fn read(users: &Users, path: &Path) -> Result<BTreeMap<Vec<u8>, Rules>, String> {
    faults::hold(Fault::StuckDisk);
    let shown = path.display().to_string();
    match System.read_file(path) {
        Ok(text) => users.parse_file(&text, &shown),
        Err(error) => Err(format!("Error loading ACLs, opening file '{shown}': {}", reason(&error))),
    }
}

/// Fills `bytes` with random bytes from the system. Returns false if the system can't provide any.
pub fn fill_random(bytes: &mut [u8]) -> bool {
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(bytes)).is_ok()
}
