//! Values of directives: parses words, and formats values for `CONFIG GET` and for lines of the
//! configuration file.

use super::directive::{BIND_MAX, Directive, Kind};
use super::number::{format_memory, parse_memory, parse_octal, parse_percent};
use super::quote::quote;
use pantala_base::number::parse_i64;
use pantala_engine::notify::EventClasses;

/// A value in canonical form: equal settings have equal values, and different settings have
/// different ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// An integer, a number of bytes, or a percentage (as a negative number).
    Number(i128),
    /// `yes` or `no`.
    Bool(bool),
    /// Anything else, as `CONFIG GET` shows it.
    Text(Vec<u8>),
}

/// The source of a value. Only lines of a file can extend the value of earlier lines (`save`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A line of the file, of standard input, or of the command line's options.
    File {
        /// Whether no earlier line has set this directive.
        first: bool,
    },
    /// `CONFIG SET`.
    Command,
}

/// Class names of `client-output-buffer-limit`, as `CONFIG GET` writes them, in the same order as
/// in arrays of [`OutputLimit`].
pub const OUTPUT_CLASSES: [&str; 3] = ["normal", "slave", "pubsub"];

/// `maxmemory-clients`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientsLimit {
    /// At most this number of bytes; 0 means no limit.
    Bytes(u64),
    /// A percentage of `maxmemory`, 1 to 100. Without `maxmemory` there is no limit.
    Percent(u8),
}

/// Size of the reply buffer that each client of Redis has, bytes. This buffer doesn't count towards
/// the output limits of the classes `normal` and `pubsub`. Output that doesn't fit counts.
pub const REPLY_BUFFER_BYTES: u64 = 16 * 1024;

/// Limits of the output buffer of one class of clients; 0 bytes means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputLimit {
    /// Pending output above which the client is closed at once, bytes.
    pub hard_bytes: u64,
    /// Pending output above which the client is closed after `soft_seconds`, bytes.
    pub soft_bytes: u64,
    /// Maximum time for which the output may stay above `soft_bytes`, seconds.
    pub soft_seconds: u32,
}

impl OutputLimit {
    /// Returns the limits on all pending output of a client that has [`REPLY_BUFFER_BYTES`] of
    /// output outside of its limits.
    pub fn with_reply_buffer(self) -> Self {
        let extend = |bytes: u64| if bytes == 0 { 0 } else { bytes.saturating_add(REPLY_BUFFER_BYTES) };
        OutputLimit { hard_bytes: extend(self.hard_bytes), soft_bytes: extend(self.soft_bytes), ..self }
    }
}

const BAD_INTEGER: &str = "argument couldn't be parsed into an integer";
const BAD_COUNT: &str = "wrong number of arguments";
const PERCENT_BEYOND: &str = "percentage argument must be less or equal to 100";
const BAD_SAVE: &str = "Invalid save parameters";
/// Lengths of host names must be below this, bytes, as in Redis.
const HOST_NAME_BYTES_END: usize = 256;

/// Parses `words` as a value of `directive`. For some kinds, the words change only a part of the
/// directive's current value, which is `previous`.
///
/// # Errors
///
/// Redis's error text.
pub fn parse(directive: &Directive, words: &[Vec<u8>], previous: &Value, source: Source) -> Result<Value, String> {
    if directive.kind.is_multi_argument() {
        return parse_words(directive, words, previous, source);
    }
    let [word] = words else { return Err(BAD_COUNT.into()) };
    match directive.kind {
        Kind::Bool if word.eq_ignore_ascii_case(b"yes") => Ok(Value::Bool(true)),
        Kind::Bool if word.eq_ignore_ascii_case(b"no") => Ok(Value::Bool(false)),
        Kind::Bool => Err("argument must be 'yes' or 'no'".into()),
        Kind::Integer(min, max) => {
            let number = parse_i64(word).ok_or(BAD_INTEGER)?;
            within(i128::from(number), min, max)
        }
        Kind::Octal(min, max) => {
            let number = parse_octal(word).ok_or("argument couldn't be parsed as an octal number")?;
            if !(min..=max).contains(&number) {
                return Err(format!("argument must be between {min:o} and {max:o} inclusive"));
            }
            Ok(Value::Number(number))
        }
        Kind::Memory(min, max) => {
            let bytes = parse_memory(word).ok_or("argument must be a memory value")?;
            within(i128::from(bytes), min, max)
        }
        Kind::MemoryOrPercent => parse_memory_or_percent(word),
        Kind::KeyspaceEvents => match EventClasses::parse(word) {
            Some(classes) => Ok(Value::Number(i128::from(classes.bits()))),
            None => Err("Invalid event class character. Use 'Ag$lshzxeKEtmdn'.".into()),
        },
        Kind::RequiredFileName(_) if word.is_empty() => Err(format!("{} can't be empty", directive.name)),
        Kind::FileName(wrong) | Kind::RequiredFileName(wrong) if word.contains(&b'/') => Err(wrong.into()),
        Kind::HostName if word.len() >= HOST_NAME_BYTES_END => Err("Hostnames must be less than 256 characters".into()),
        Kind::HostName if !word.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(byte)) => {
            Err("Hostnames may only contain alphanumeric characters, hyphens or dots".into())
        }
        Kind::Choice(names) => parse_choice(word, names).map(|name| Value::Text(name.into())),
        Kind::OomScoreAdj => {
            let name = parse_choice(word, &["no", "yes", "relative", "absolute"])?;
            Ok(Value::Text(if name == "relative" { "yes" } else { name }.into()))
        }
        _ => Ok(Value::Text(word.clone())),
    }
}

/// Parses the kinds that take any number of words.
fn parse_words(directive: &Directive, words: &[Vec<u8>], previous: &Value, source: Source) -> Result<Value, String> {
    match directive.kind {
        Kind::Bind => {
            if words.len() > BIND_MAX {
                return Err("Too many bind addresses specified.".into());
            }
            // A word with a space is not an address. Redis accepts such a word here, but fails
            // later, when it listens.
            if words.iter().any(|word| word.contains(&b' ')) {
                return Err("A bind address can't have a space.".into());
            }
            Ok(Value::Text(words.join(&b' ')))
        }
        Kind::Percentiles => parse_percentiles(words),
        Kind::Save => parse_save(words, previous, source),
        Kind::OutputBufferLimit => parse_output_limits(words, previous),
        Kind::ReplicaOf => parse_replica_of(words),
        Kind::ShutdownOptions => parse_shutdown_options(words),
        Kind::OomScores => parse_oom_scores(words),
        _ if words.is_empty() => Err(BAD_COUNT.into()),
        _ => Ok(Value::Text(words.join(&b' '))),
    }
}

/// Returns `number` if it is in the range.
fn within(number: i128, min: i128, max: i128) -> Result<Value, String> {
    if (min..=max).contains(&number) {
        Ok(Value::Number(number))
    } else {
        Err(format!("argument must be between {min} and {max} inclusive"))
    }
}

/// Parses a number of bytes, or a percentage from 0 to 100. A percentage is returned as a negative
/// number.
fn parse_memory_or_percent(word: &[u8]) -> Result<Value, String> {
    if let Some(percent) = parse_percent(word) {
        if percent > 100 {
            return Err(PERCENT_BEYOND.into());
        }
        return Ok(Value::Number(-i128::from(percent)));
    }
    let bytes = parse_memory(word).ok_or("argument must be a memory or percent value")?;
    // Redis treats a number of more than 63 bits as negative, so its error is that of a bad
    // percentage.
    let bytes = i64::try_from(bytes).map_err(|_| PERCENT_BEYOND)?;
    Ok(Value::Number(i128::from(bytes)))
}

/// Returns the name in `names` that equals `word`, ignoring case.
fn parse_choice(word: &[u8], names: &[&'static str]) -> Result<&'static str, String> {
    names
        .iter()
        .copied()
        .find(|name| name.as_bytes().eq_ignore_ascii_case(word))
        .ok_or_else(|| format!("argument(s) must be one of the following: {}", names.join(", ")))
}

/// Parses any number of percentages. A single empty word means no percentages.
fn parse_percentiles(words: &[Vec<u8>]) -> Result<Value, String> {
    let mut shown = Vec::new();
    for word in words.iter().filter(|word| words.len() > 1 || !word.is_empty()) {
        let percent = std::str::from_utf8(word).ok().and_then(|word| word.parse::<f64>().ok());
        let percent = percent.filter(|percent| !percent.is_nan());
        let percent = percent.ok_or("Invalid latency-tracking-info-percentiles parameters")?;
        if !(0.0..=100.0).contains(&percent) {
            return Err("latency-tracking-info-percentiles parameters should sit between [0.0,100.0]".into());
        }
        shown.push(percent.to_string());
    }
    Ok(Value::Text(shown.join(" ").into_bytes()))
}

/// Parses the out-of-memory scores of a primary, a replica and a child process.
fn parse_oom_scores(words: &[Vec<u8>]) -> Result<Value, String> {
    const WRONG: &str = "Invalid oom-score-adj-values, elements must be between -2000 and 2000.";
    if words.len() != 3 {
        return Err(BAD_COUNT.into());
    }
    let mut scores = [0; 3];
    for (score, word) in scores.iter_mut().zip(words) {
        let number = std::str::from_utf8(word).ok().and_then(|word| word.trim_ascii_start().parse::<i64>().ok());
        *score = number.filter(|number| (-2000..=2000).contains(number)).ok_or(WRONG)?;
    }
    if !scores.is_sorted() {
        tracing::warn!(
            "The oom-score-adj-values configuration may not work for non-privileged processes! Please consult the documentation."
        );
    }
    Ok(Value::Text(scores.map(|score| score.to_string()).join(" ").into_bytes()))
}

/// Parses at least one option of `SHUTDOWN`. Sorts the options in the order in which Redis lists
/// them.
fn parse_shutdown_options(words: &[Vec<u8>]) -> Result<Value, String> {
    const NAMES: [&str; 5] = ["default", "save", "nosave", "now", "force"];
    let no_word: &[u8] = b"";
    let given = match words {
        [] => vec![parse_choice(no_word, &NAMES)?],
        words => words.iter().map(|word| parse_choice(word, &NAMES)).collect::<Result<Vec<_>, _>>()?,
    };
    if given.contains(&"save") && given.contains(&"nosave") {
        return Err("shutdown options SAVE and NOSAVE can't be used simultaneously".into());
    }
    let options: Vec<&str> = NAMES[1..].iter().copied().filter(|name| given.contains(name)).collect();
    Ok(Value::Text(if options.is_empty() { NAMES[0].into() } else { options.join(" ").into_bytes() }))
}

/// Parses pairs of seconds (at least 1) and changes (at least 0). A single empty word means no
/// pairs. The pairs of several lines in a file are combined; a line without words adds none.
fn parse_save(words: &[Vec<u8>], previous: &Value, source: Source) -> Result<Value, String> {
    if let [word] = words
        && word.is_empty()
    {
        return Ok(Value::Text(Vec::new()));
    }
    if !words.len().is_multiple_of(2) {
        return Err(BAD_SAVE.into());
    }
    for pair in words.chunks(2) {
        let (seconds, changes) = (parse_i64(&pair[0]), parse_i64(&pair[1]));
        if seconds.is_none_or(|seconds| seconds < 1) || changes.is_none_or(|changes| changes < 0) {
            return Err(BAD_SAVE.into());
        }
    }
    let mut points = words.join(&b' ');
    if let (Source::File { first: false }, Value::Text(before)) = (source, previous)
        && !before.is_empty()
    {
        points = if points.is_empty() { before.clone() } else { [before.clone(), points].join(&b' ') };
    }
    Ok(Value::Text(points))
}

/// Applies groups of four words (class, hard limit, soft limit and seconds) to the limits in
/// `previous`.
fn parse_output_limits(words: &[Vec<u8>], previous: &Value) -> Result<Value, String> {
    if !words.len().is_multiple_of(4) {
        return Err("Wrong number of arguments in buffer limit configuration.".into());
    }
    let mut limits = output_limits(previous);
    for group in words.chunks(4) {
        let class = output_class(&group[0]).ok_or("Invalid client class specified in buffer limit configuration.")?;
        let soft_seconds = parse_i64(&group[3]).and_then(|seconds| i32::try_from(seconds).ok()?.try_into().ok());
        let (Some(hard_bytes), Some(soft_bytes), Some(soft_seconds)) =
            (parse_memory(&group[1]), parse_memory(&group[2]), soft_seconds)
        else {
            return Err("Error in hard, soft or soft_seconds setting in buffer limit configuration.".into());
        };
        limits[class] = OutputLimit { hard_bytes, soft_bytes, soft_seconds };
    }
    let text: Vec<String> =
        OUTPUT_CLASSES.iter().zip(limits).map(|(class, limit)| output_limit_text(class, limit)).collect();
    Ok(Value::Text(text.join(" ").into_bytes()))
}

/// Formats the limits of one class as `CONFIG GET` does.
fn output_limit_text(class: &str, limit: OutputLimit) -> String {
    format!("{class} {} {} {}", limit.hard_bytes, limit.soft_bytes, limit.soft_seconds)
}

/// Returns the index of a class by its name. Replicas have two names, `replica` and `slave`.
fn output_class(name: &[u8]) -> Option<usize> {
    if name.eq_ignore_ascii_case(b"replica") {
        return Some(1);
    }
    OUTPUT_CLASSES.iter().position(|class| class.as_bytes().eq_ignore_ascii_case(name))
}

/// Returns the limits on all pending output per class. `value` is canonical.
pub fn pending_limits(value: &Value) -> [OutputLimit; 3] {
    let [normal, replica, pubsub] = output_limits(value);
    [normal.with_reply_buffer(), replica, pubsub.with_reply_buffer()]
}

/// Parses a canonical `client-output-buffer-limit` value into the limits per class.
pub fn output_limits(value: &Value) -> [OutputLimit; 3] {
    let mut limits = [OutputLimit::default(); 3];
    let Value::Text(text) = value else { return limits };
    let words: Vec<&[u8]> = text.split(|byte| *byte == b' ').collect();
    for (limit, group) in limits.iter_mut().zip(words.chunks_exact(4)) {
        let number = |word: &[u8]| parse_memory(word).unwrap_or(0);
        *limit = OutputLimit {
            hard_bytes: number(group[1]),
            soft_bytes: number(group[2]),
            soft_seconds: u32::try_from(number(group[3])).unwrap_or(u32::MAX),
        };
    }
    limits
}

/// Parses host and port, or `no one`.
fn parse_replica_of(words: &[Vec<u8>]) -> Result<Value, String> {
    let [host, port] = words else { return Err(BAD_COUNT.into()) };
    if host.eq_ignore_ascii_case(b"no") && port.eq_ignore_ascii_case(b"one") {
        return Ok(Value::Text(Vec::new()));
    }
    match parse_i64(port) {
        Some(0..=65_535) => Ok(Value::Text(words.join(&b' '))),
        _ => Err("Invalid master port".into()),
    }
}

/// Formats `value` as `CONFIG GET` does.
pub fn show(kind: Kind, value: &Value) -> Vec<u8> {
    match value {
        Value::Bool(true) => b"yes".to_vec(),
        Value::Bool(false) => b"no".to_vec(),
        Value::Number(number) if matches!(kind, Kind::Octal(..)) => format!("{number:o}").into_bytes(),
        Value::Number(number) if matches!(kind, Kind::MemoryOrPercent) && *number < 0 => {
            format!("{}%", -number).into_bytes()
        }
        Value::Number(number) if matches!(kind, Kind::KeyspaceEvents) => {
            EventClasses::from_bits(u32::try_from(*number).unwrap_or(0)).letters().into_bytes()
        }
        Value::Number(number) => number.to_string().into_bytes(),
        Value::Text(text) => text.clone(),
    }
}

/// Returns the lines that set `value` in the file, each with a flag. Each line replaces an existing
/// line of the directive. The flag says whether the line is appended if there is no existing line
/// left to replace. It is set if `value` isn't `default`, and always for `dir`. If no lines are
/// returned, the directive must not be in the file.
pub fn lines(directive: &Directive, value: &Value, default: &Value) -> Vec<(Vec<u8>, bool)> {
    let mut line = directive.name.as_bytes().to_vec();
    line.push(b' ');
    let forced = value != default;
    match (directive.kind, value) {
        (Kind::OutputBufferLimit, _) => return output_limit_lines(directive.name, value, default),
        (Kind::Memory(..), Value::Number(bytes)) => line.extend(format_memory(*bytes).into_bytes()),
        (
            Kind::Text | Kind::TitleTemplate | Kind::HostName | Kind::FileName(_) | Kind::RequiredFileName(_),
            Value::Text(text),
        ) => {
            // An empty text that is the default has no line.
            if text.is_empty() && !forced {
                return Vec::new();
            }
            quote(&mut line, text);
        }
        // A server that is a primary has no `replicaof` line.
        (Kind::ReplicaOf, Value::Text(text)) if text.is_empty() => return Vec::new(),
        (Kind::KeyspaceEvents, _) => quote(&mut line, &show(directive.kind, value)),
        (Kind::Dir, Value::Text(text)) => {
            quote(&mut line, text);
            return vec![(line, true)];
        }
        (Kind::Bind, Value::Text(text)) => {
            for word in text.split(|byte| *byte == b' ') {
                let is_plain =
                    !word.is_empty() && word.iter().all(|byte| byte.is_ascii_graphic() && !b"\"'\\".contains(byte));
                if is_plain {
                    line.extend_from_slice(word);
                } else {
                    quote(&mut line, word);
                }
                line.push(b' ');
            }
            line.pop();
        }
        _ => line.extend(show(directive.kind, value)),
    }
    vec![(line, forced)]
}

/// Returns one line per class. The class of replicas is called `replica`, its newer name.
fn output_limit_lines(name: &str, value: &Value, default: &Value) -> Vec<(Vec<u8>, bool)> {
    let classes = ["normal", "replica", "pubsub"];
    let limits = output_limits(value).into_iter().zip(output_limits(default));
    let line = |(class, (limit, default)): (&str, (OutputLimit, OutputLimit))| {
        let bytes = |bytes: u64| format_memory(i128::from(bytes));
        let (hard, soft) = (bytes(limit.hard_bytes), bytes(limit.soft_bytes));
        (format!("{name} {class} {hard} {soft} {}", limit.soft_seconds).into_bytes(), limit != default)
    };
    classes.into_iter().zip(limits).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::table::find;
    use super::super::values::default_value;
    use super::*;

    /// Parses one `CONFIG SET` argument and formats it.
    fn set(name: &str, text: &str) -> Result<String, String> {
        let directive = find(name.as_bytes()).expect("a directive").directive();
        let words: Vec<Vec<u8>> = if directive.kind.is_multi_argument() {
            if text.is_empty() { Vec::new() } else { text.split(' ').map(|word| word.as_bytes().to_vec()).collect() }
        } else {
            vec![text.as_bytes().to_vec()]
        };
        let value = parse(directive, &words, &default_value(directive), Source::Command)?;
        Ok(String::from_utf8(show(directive.kind, &value)).expect("text"))
    }

    const SHUTDOWN_OPTIONS: &str = "argument(s) must be one of the following: default, save, nosave, now, force";

    /// Each case was verified with redis-server 7.0.15.
    #[test]
    fn errors_match_redis() {
        for (name, text, wrong) in [
            ("timeout", "-1", "argument must be between 0 and 2147483647 inclusive"),
            ("timeout", "99999999999", "argument must be between 0 and 2147483647 inclusive"),
            ("timeout", "abc", BAD_INTEGER),
            ("timeout", "05", BAD_INTEGER),
            ("timeout", "+5", BAD_INTEGER),
            ("timeout", " 5", BAD_INTEGER),
            ("timeout", "", BAD_INTEGER),
            ("port", "70000", "argument must be between 0 and 65535 inclusive"),
            ("proto-max-bulk-len", "5", "argument must be between 1048576 and 9223372036854775807 inclusive"),
            ("maxmemory", "-1", "argument must be a memory value"),
            ("maxmemory", "50%", "argument must be a memory value"),
            ("maxmemory-clients", "101%", "percentage argument must be less or equal to 100"),
            ("maxmemory-clients", "-5", "argument must be a memory or percent value"),
            ("loglevel", "foo", "argument(s) must be one of the following: debug, verbose, notice, warning"),
            ("protected-mode", "maybe", "argument must be 'yes' or 'no'"),
            ("unixsocketperm", "888", "argument couldn't be parsed as an octal number"),
            ("unixsocketperm", "1000", "argument must be between 0 and 777 inclusive"),
            ("save", "1 2 3", BAD_SAVE),
            ("save", "a b", BAD_SAVE),
            ("save", "0 60", BAD_SAVE),
            ("client-output-buffer-limit", "normal 0 0", "Wrong number of arguments in buffer limit configuration."),
            (
                "client-output-buffer-limit",
                "foo 0 0 0",
                "Invalid client class specified in buffer limit configuration.",
            ),
            (
                "client-output-buffer-limit",
                "normal a 0 0",
                "Error in hard, soft or soft_seconds setting in buffer limit configuration.",
            ),
            ("shutdown-on-sigint", "", SHUTDOWN_OPTIONS),
            ("shutdown-on-sigterm", "bogus", SHUTDOWN_OPTIONS),
            ("shutdown-on-sigint", "force  now", SHUTDOWN_OPTIONS),
            ("shutdown-on-sigint", "save nosave", "shutdown options SAVE and NOSAVE can't be used simultaneously"),
            ("dbfilename", "a/b", "dbfilename can't be a path, just a filename"),
            ("appendfilename", "a/b", "appendfilename can't be a path, just a filename"),
            ("appendfilename", "", "appendfilename can't be empty"),
            ("appenddirname", "a/b", "appenddirname can't be a path, just a dirname"),
            ("appenddirname", "", "appenddirname can't be empty"),
            ("bind", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17", "Too many bind addresses specified."),
        ] {
            assert_eq!(set(name, text), Err(wrong.to_string()), "{name} {text}");
        }
    }

    /// Each case was verified with redis-server 7.0.15.
    #[test]
    fn accepted_values_are_shown_as_redis_shows_them() {
        for (name, text, shown) in [
            ("timeout", "2147483647", "2147483647"),
            ("shutdown-on-sigint", "FORCE now", "now force"),
            ("shutdown-on-sigint", "default save", "save"),
            ("shutdown-on-sigint", "nosave nosave", "nosave"),
            ("maxmemory", "", "0"),
            ("maxmemory", "1k", "1000"),
            ("maxmemory", "1KB", "1024"),
            ("maxmemory", "18446744073709551616", "18446744073709551615"),
            ("maxmemory-clients", "5%", "5%"),
            ("loglevel", "NOTICE", "notice"),
            ("protected-mode", "YES", "yes"),
            ("unixsocketperm", "755", "755"),
            ("oom-score-adj", "relative", "yes"),
            ("save", "60 0", "60 0"),
            ("save", "", ""),
            (
                "client-output-buffer-limit",
                "replica 1mb 2mb 3 pubsub 1 2 3",
                "normal 0 0 0 slave 1048576 2097152 3 pubsub 1 2 3",
            ),
            ("client-output-buffer-limit", "", "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60"),
            ("bind", "127.0.0.1 -::1", "127.0.0.1 -::1"),
            ("bind", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16"),
        ] {
            assert_eq!(set(name, text), Ok(shown.to_string()), "{name} {text}");
        }
    }
}
