//! Which arguments are secrets: `MONITOR` and `SLOWLOG` show [`REDACTED`](pantala_engine::monitor::REDACTED) in their place.

use pantala_resp::Args;

/// Directives whose values are secrets.
const SECRET_DIRECTIVES: [&str; 4] = ["masterauth", "requirepass", "tls-key-file-pass", "tls-client-key-file-pass"];

fn is(args: &Args<'_>, at: usize, word: &str) -> bool {
    args.get(at).is_some_and(|arg| arg.eq_ignore_ascii_case(word.as_bytes()))
}

/// Of `AUTH`: all. With more arguments it is a syntax error, and nobody knows which of them is a password.
pub(super) fn auth(args: &Args<'_>, index: usize) -> bool {
    index > 0 && args.len() <= 3
}

/// Of `HELLO`: the two words behind `AUTH`.
pub(super) fn hello(args: &Args<'_>, index: usize) -> bool {
    (2..index).any(|at| at + 2 >= index && is(args, at, "AUTH") && !is(args, at - 1, "SETNAME"))
}

/// Of `CONFIG SET`: values of directives that are secrets.
pub(super) fn config_set(args: &Args<'_>, index: usize) -> bool {
    index > 2 && index % 2 == 1 && SECRET_DIRECTIVES.iter().any(|directive| is(args, index - 1, directive))
}

/// Of `MIGRATE`: the password behind `AUTH`, name and password behind `AUTH2`.
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
        let Ok(command) = resolve(&args) else { panic!("{words} is no command") };
        (0..args.len()).map(|index| if is_secret(command, &args, index) { '*' } else { '.' }).collect()
    }

    #[test]
    fn secrets_are_told_apart() {
        assert_eq!(secrets("AUTH p"), ".*");
        assert_eq!(secrets("AUTH u p"), ".**");
        assert_eq!(secrets("AUTH a b c"), "....");
        assert_eq!(secrets("HELLO 3 auth u p SETNAME n"), "...**..");
        assert_eq!(secrets("HELLO 3 SETNAME auth AUTH u p"), ".....**");
        assert_eq!(secrets("CONFIG SET port 1 requirepass p"), ".....*");
        assert_eq!(secrets("MIGRATE h p key 9 5000 AUTH p"), ".......*");
        assert_eq!(secrets("MIGRATE h p key 9 5000 COPY auth2 u p"), "........**");
        assert_eq!(secrets("SET auth p"), "...");
    }
}
