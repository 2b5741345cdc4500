//! Determines which arguments of a call are secrets. `MONITOR` and `SLOWLOG` show
//! [`REDACTED`](pantala_engine::monitor::REDACTED) instead of a secret.

use pantala_resp::Args;

/// The directives of `CONFIG SET` whose values are secret.
const SECRET_DIRECTIVES: [&str; 5] =
    ["masterauth", "masteruser", "requirepass", "tls-key-file-pass", "tls-client-key-file-pass"];

fn is(args: &Args<'_>, at: usize, word: &str) -> bool {
    args.get(at).is_some_and(|arg| arg.eq_ignore_ascii_case(word.as_bytes()))
}

/// Returns whether the argument `index` of `AUTH` is secret. Every argument after the command's
/// name is secret. This includes calls with more than two arguments, which are a syntax error.
/// Redis shows these arguments, but they may be the parts of a password with an unquoted space.
pub(super) fn auth(_: &Args<'_>, index: usize) -> bool {
    index > 0
}

/// Returns whether the argument `index` is secret in a call whose argument `at` is the name of
/// another command. If calls of that command may contain passwords, all arguments after `at` are
/// secret.
fn named_command(args: &Args<'_>, at: usize, index: usize) -> bool {
    index > at && ["AUTH", "HELLO", "ACL", "CONFIG", "MIGRATE"].iter().any(|command| is(args, at, command))
}

/// Returns whether the argument `index` of `ACL DRYRUN` is secret. Arguments of the tested command
/// can be secret.
pub(super) fn acl_dryrun(args: &Args<'_>, index: usize) -> bool {
    named_command(args, 3, index)
}

/// Returns whether the argument `index` of `COMMAND GETKEYS` and `COMMAND GETKEYSANDFLAGS` is
/// secret. Arguments of the named command can be secret.
pub(super) fn command_getkeys(args: &Args<'_>, index: usize) -> bool {
    named_command(args, 2, index)
}

/// Returns whether the argument `index` of `HELLO` is secret. The two arguments after `AUTH` are
/// secret.
pub(super) fn hello(args: &Args<'_>, index: usize) -> bool {
    let first = index.saturating_sub(2).max(2);
    (first..index).any(|at| is(args, at, "AUTH") && !is(args, at - 1, "SETNAME"))
}

/// Returns whether the argument `index` of `ACL SETUSER` is secret. As in Redis, all arguments are
/// secret, even the user's name.
pub(super) fn acl_setuser(_: &Args<'_>, index: usize) -> bool {
    index > 1
}

/// Returns whether the argument `index` of `CONFIG SET` is secret. The values of
/// [`SECRET_DIRECTIVES`] are secret.
pub(super) fn config_set(args: &Args<'_>, index: usize) -> bool {
    index > 2 && index % 2 == 1 && SECRET_DIRECTIVES.iter().any(|directive| is(args, index - 1, directive))
}

/// Returns whether the argument `index` of `MIGRATE` is secret. The password after `AUTH` is
/// secret, and so are the user and the password after `AUTH2`.
pub(super) fn migrate(args: &Args<'_>, index: usize) -> bool {
    index > 6 && (is(args, index - 1, "AUTH") || is(args, index - 1, "AUTH2") || is(args, index - 2, "AUTH2"))
}

#[cfg(test)]
mod tests {
    use pantala_engine::monitor::is_secret;
    use pantala_resp::ArgRange;

    use super::*;
    use crate::records::resolve;

    fn secrets(words: &str) -> String {
        let (mut bytes, mut ranges) = (Vec::new(), Vec::new());
        for word in words.split(' ') {
            ranges.push(ArgRange::new(bytes.len(), word.len()));
            bytes.extend_from_slice(word.as_bytes());
        }
        let args = Args::new(&bytes, &ranges);
        let Ok(command) = resolve(&args) else { panic!("{words} isn't a command") };
        (0..args.len()).map(|index| if is_secret(command, &args, index) { '*' } else { '.' }).collect()
    }

    #[test]
    fn secret_arguments_are_recognized() {
        assert_eq!(secrets("AUTH p"), ".*");
        assert_eq!(secrets("AUTH u p"), ".**");
        assert_eq!(secrets("AUTH a b c"), ".***");
        assert_eq!(secrets("HELLO 3 auth u p SETNAME n"), "...**..");
        assert_eq!(secrets("HELLO 3 SETNAME auth AUTH u p"), ".....**");
        assert_eq!(secrets("ACL SETUSER u >p on"), "..***");
        assert_eq!(secrets("ACL GETUSER u"), "...");
        assert_eq!(secrets("ACL DRYRUN u hello 3 AUTH u p"), "....****");
        assert_eq!(secrets("ACL DRYRUN u SET k v"), "......");
        assert_eq!(secrets("COMMAND GETKEYS acl SETUSER u >p"), "...***");
        assert_eq!(secrets("COMMAND GETKEYSANDFLAGS MIGRATE h p k 0 1 AUTH p"), "...*******");
        assert_eq!(secrets("COMMAND GETKEYS SET k v"), ".....");
        assert_eq!(secrets("CONFIG SET port 1 requirepass p"), ".....*");
        assert_eq!(secrets("MIGRATE h p key 9 5000 AUTH p"), ".......*");
        assert_eq!(secrets("MIGRATE h p key 9 5000 COPY auth2 u p"), "........**");
        assert_eq!(secrets("SET auth p"), "...");
    }
}
