//! The command line: a configuration file, options, `--help` and `--version`.
//!
//! Every option is a directive of redis.conf, or one of Pantala's own directives, such as
//! `workers`. As in redis-server, `--name value value` has the effect of a line `name value value`
//! after the last line of the file. `--name=value` means the same as `--name value`.
//!
//! clap only writes the help. It does not parse the options, because it can't support all these
//! forms at once: options with any number of values; values that start with `-`, as in `--bind
//! 127.0.0.1 -::1`; and arguments that contain both a name and a value, as in `"--port 7000"`.

use crate::config::Sources;
use crate::config::quote::{quote, split};
use clap::{Arg, Command};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The version of Redis whose behaviour the server implements.
pub const REDIS_VERSION: &str = "7.0.15";

/// The request of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Print this text and exit.
    Print(String),
    /// Run with this configuration.
    Run(Sources),
}

/// Parses the arguments, without the program's name.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Request {
    let arguments: Vec<Vec<u8>> = arguments.into_iter().map(OsString::into_vec).collect();
    match arguments.first().map(Vec::as_slice) {
        Some(b"-h") => return Request::Print(command().render_help().to_string()),
        Some(b"-v" | b"-V") => return Request::Print(version()),
        _ => {}
    }
    let mut sources = Sources::default();
    let mut at = 0;
    if let Some(file) = arguments.first().filter(|first| !first.starts_with(b"-")) {
        sources.file = Some(OsString::from_vec(file.clone()).into());
        at = 1;
    }
    // Whether an option may start at `at`: the previous option, if any, already has a value.
    let mut may_begin = true;
    let last = arguments.len().saturating_sub(1);
    while let Some(argument) = arguments.get(at) {
        if argument == b"-" && (at == 0 || at == last) {
            sources.stdin = true;
        } else if may_begin && argument.starts_with(b"--") {
            match argument.as_slice() {
                b"--help" => return Request::Print(command().render_long_help().to_string()),
                b"--version" => return Request::Print(version()),
                _ => {}
            }
            let next_begins = arguments.get(at + 1).is_none_or(|next| next.starts_with(b"--"));
            may_begin = begin_option(&mut sources.options, &argument[2..], next_begins);
        } else {
            quote(&mut sources.options, argument);
            sources.options.push(b' ');
            may_begin = true;
        }
        at += 1;
    }
    Request::Run(sources)
}

/// Starts a line with the name of an option, followed by the value if the same argument contains
/// it. `next_begins` means that the next argument starts an option or is missing, so it is not a
/// value of this option. Returns whether the line has a value.
fn begin_option(options: &mut Vec<u8>, option: &[u8], next_begins: bool) -> bool {
    if !options.is_empty() {
        options.push(b'\n');
    }
    if let Some((name, value)) = name_and_value(option) {
        options.extend_from_slice(name);
        options.push(b' ');
        quote(options, value);
        options.push(b' ');
        return true;
    }
    options.extend_from_slice(option);
    options.push(b' ');
    // `--save` without a value means `--save ""`, because a shell script that expands an empty list
    // produces `--save` alone.
    if option.eq_ignore_ascii_case(b"save") && next_begins {
        options.extend_from_slice(b"\"\" ");
        return true;
    }
    // The line has a value if the argument contains a name and a value, as in `"--port 7000"`.
    split(option).is_some_and(|words| words.len() > 1)
}

/// Splits an option of the form `name=value`.
fn name_and_value(option: &[u8]) -> Option<(&[u8], &[u8])> {
    let equals = option.iter().position(|byte| *byte == b'=')?;
    let (name, value) = option.split_at(equals);
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (!name.is_empty() && name.iter().all(is_name)).then(|| (name, &value[1..]))
}

/// Returns the line that `--version` prints.
pub fn version() -> String {
    command().render_version()
}

/// Returns the clap command, which is used only to write the help and the version.
fn command() -> Command {
    let option = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    Command::new("pantala")
        // Scripts take the first number for the version of Redis.
        .version(concat!("(behaves as Redis server v=7.0.15) ", env!("CARGO_PKG_VERSION")))
        .about("A Redis-compatible in-memory data store that uses every core from one process")
        .override_usage(
            "pantala [/path/to/redis.conf] [OPTIONS] [--DIRECTIVE VALUE...] [-]\n       \
             pantala check-rdb <rdb-file-name>\n       \
             pantala check-aof [--fix|--truncate-to-timestamp TIMESTAMP] <file.manifest|file.aof>",
        )
        .arg(Arg::new("file").value_name("/path/to/redis.conf").help("Configuration file in redis.conf's syntax"))
        .arg(
            Arg::new("stdin")
                .value_name("-")
                .help("As first or last argument: read more configuration from standard input"),
        )
        .arg(option(
            "shards",
            "N",
            "Parts of the key space, each with a home worker, 1 to 16384 [default: depends on the workers]",
        ))
        .arg(option(
            "partitions",
            "N",
            "Parts of all shards together, each held by one worker at a time [default: depends on the workers]",
        ))
        .arg(option("workers", "N", "Threads with an event loop, 1 to 1024 [default: the number of usable CPUs]"))
        .arg(option("io-threads", "N", "With --execution owner: threads that only read, parse and encode [default: 0]"))
        .arg(option(
            "execution",
            "inline|owner",
            "The worker that runs a command on a shard: any that finds it free, or its owner [default: inline]",
        ))
        .arg(option("io-backend", "auto|io_uring|epoll", "The event loop [default: auto]"))
        .arg(option("pin-threads", "yes|no", "Keep each worker on one CPU [default: no]"))
        .arg(option("numa", "auto|off", "Place workers and memory by NUMA node, if there are several [default: auto]"))
        .arg(option("port", "PORT", "TCP port; 0 for none [default: 6379]"))
        .after_help(
            "Every directive of redis.conf is an option too, and follows what the file says:\n  \
             pantala /etc/redis/redis.conf --port 7000 --bind 127.0.0.1 ::1 --save \"\"\n  \
             echo 'maxclients 100' | pantala - --shards 40\n\n\
             `pantala check-rdb FILE` checks a snapshot without loading it: exit code 0 if it is right.\n\
             `pantala check-aof` does so for an append-only file, and can cut one that is damaged at its end.\n\
             docs/configuration.md lists the directives and which of them are served.",
        )
}

/// Returns the arguments of this process, without the program's name.
pub fn arguments() -> Vec<OsString> {
    std::env::args_os().skip(1).map(|argument| OsString::from_vec(argument.as_bytes().to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn run(arguments: &[&str]) -> Sources {
        match parse(arguments.iter().map(OsString::from)) {
            Request::Run(sources) => sources,
            Request::Print(text) => panic!("{arguments:?}: {text}"),
        }
    }

    fn lines(arguments: &[&str]) -> Vec<String> {
        let text = String::from_utf8(run(arguments).options).expect("text");
        text.lines().map(|line| line.trim_end().to_string()).collect()
    }

    /// The lines are those that redis-server 7.0.15 shows in its errors.
    #[test]
    fn options_become_lines() {
        assert_eq!(lines(&[]), Vec::<String>::new());
        assert_eq!(
            lines(&["--port", "7000", "--bind", "127.0.0.1", "-::1"]),
            [r#"port "7000""#, r#"bind "127.0.0.1" "-::1""#]
        );
        assert_eq!(lines(&["--port 7000", "--hz", "5"]), ["port 7000", r#"hz "5""#]);
        assert_eq!(lines(&["--port", "7000", "extra"]), [r#"port "7000" "extra""#]);
        assert_eq!(lines(&["--timeout", "--hz", "5"]), [r#"timeout "--hz" "5""#]);
        assert_eq!(lines(&["--port"]), ["port"]);
        assert_eq!(lines(&["--save", "--hz", "5"]), [r#"save """#, r#"hz "5""#]);
        assert_eq!(lines(&["--save"]), [r#"save """#]);
        assert_eq!(lines(&["--save", ""]), [r#"save """#]);
        assert_eq!(lines(&["--save", "60", "1"]), [r#"save "60" "1""#]);
        assert_eq!(lines(&["--requirepass", "a b\""]), [r#"requirepass "a b\"""#]);
    }

    #[test]
    fn options_may_have_an_equals_sign() {
        assert_eq!(
            lines(&["--shards=40", "--bind=::1", "--requirepass=a=b"]),
            [r#"shards "40""#, r#"bind "::1""#, r#"requirepass "a=b""#]
        );
        assert_eq!(lines(&["--requirepass", "--x=y"]), [r#"requirepass "--x=y""#]);
    }

    #[test]
    fn file_and_standard_input() {
        let sources = run(&["a.conf", "--hz", "5", "-"]);
        assert_eq!(sources.file.as_deref(), Some(Path::new("a.conf")));
        assert!(sources.stdin);
        assert!(run(&["-", "--hz", "5"]).stdin);
        let between = run(&["--logfile", "-", "--hz", "5"]);
        assert!(!between.stdin);
        assert!(between.options.starts_with(b"logfile \"-\""));
    }

    #[test]
    fn help_and_version() {
        let printed = |arguments: &[&str]| match parse(arguments.iter().map(OsString::from)) {
            Request::Print(text) => text,
            Request::Run(_) => panic!("{arguments:?} runs"),
        };
        for help in [printed(&["--help"]), printed(&["-h"]), printed(&["--port", "1", "--help"])] {
            assert!(
                help.contains("--shards") && help.contains("--io-backend") && help.contains("redis.conf"),
                "{help}"
            );
        }
        for version in [printed(&["--version"]), printed(&["-v"]), printed(&["-V"])] {
            assert_eq!(
                version,
                format!("pantala (behaves as Redis server v={REDIS_VERSION}) {}\n", env!("CARGO_PKG_VERSION"))
            );
        }
        // A password may look like an option.
        assert_eq!(lines(&["--requirepass", "--help"]), [r#"requirepass "--help""#]);
        command().debug_assert();
    }
}
