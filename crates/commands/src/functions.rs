//! `FUNCTION`: manages libraries of functions. The server's dispatcher runs `FCALL` and `FCALL_RO`.

use std::sync::atomic::Ordering::Relaxed;

use pantala_base::glob;
use pantala_engine::client::LocalContext;
use pantala_engine::functions::{FunctionInfo, RestorePolicy};
use pantala_resp::{Args, Reply};
use pantala_types::rdb_value::{Reader, Writer, payload};

use crate::arguments::{c_string, is_option, wrong_subcommand};
use crate::help;

/// The language of all libraries.
const ENGINE: &[u8] = b"LUA";

/// RDB opcode of a library.
const LIBRARY: u8 = 245;
/// RDB opcode of a library in the format of Redis 7.0's release candidates.
const LIBRARY_PRE_GA: u8 = 246;

/// Length of the RDB version and checksum at the end of a payload, in bytes.
const SEAL_BYTES: usize = 10;

/// `FUNCTION LOAD [REPLACE] code`.
pub fn load(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let options = 2..args.len() - 1;
    if let Some(unknown) = options.clone().find(|index| !is_option(args.at(*index), "REPLACE")) {
        return reply.error_bytes(&[b"ERR Unknown option given: ", c_string(args.at(unknown))].concat());
    }
    let (code, replace) = (args.at(args.len() - 1), !options.is_empty());
    match context.change_libraries(|functions, change| functions.load(code, replace, change)) {
        Ok(name) => reply.bulk(&name),
        Err(why) => reply.error_bytes(&why),
    }
}

/// `FUNCTION LIST [LIBRARYNAME pattern] [WITHCODE]`.
pub fn list(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let (mut pattern, mut with_code) = (None, false);
    let mut words = args.iter().skip(2);
    while let Some(word) = words.next() {
        if !with_code && is_option(word, "WITHCODE") {
            with_code = true;
        } else if pattern.is_none() && is_option(word, "LIBRARYNAME") {
            let Some(given) = words.next() else { return reply.error("ERR library name argument was not given") };
            pattern = Some(c_string(given));
        } else {
            return reply.error_bytes(&[b"ERR Unknown argument ", c_string(word)].concat());
        }
    }
    let mut libraries = context.host.functions().libraries();
    libraries.retain(|library| pattern.is_none_or(|pattern| glob::matches(pattern, &library.name, true)));
    reply.array(libraries.len());
    for library in &libraries {
        reply.map(if with_code { 4 } else { 3 });
        reply.bulk(b"library_name");
        reply.bulk(&library.name);
        reply.bulk(b"engine");
        reply.bulk(ENGINE);
        reply.bulk(b"functions");
        reply.array(library.functions.len());
        library.functions.iter().for_each(|function| describe(function, reply));
        if with_code {
            reply.bulk(b"library_code");
            reply.bulk(&library.text);
        }
    }
}

fn describe(function: &FunctionInfo, reply: &mut Reply<'_>) {
    reply.map(3);
    reply.bulk(b"name");
    reply.bulk(&function.name);
    reply.bulk(b"description");
    match &function.description {
        Some(text) => reply.bulk(text),
        None => reply.null(),
    }
    reply.bulk(b"flags");
    reply.set(function.flags.len());
    function.flags.iter().for_each(|flag| reply.simple(flag));
}

/// `FUNCTION STATS`.
pub fn stats(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    let functions = context.host.functions();
    let running = match functions.running() {
        Ok(running) => running,
        Err(why) => return reply.error(why),
    };
    reply.map(2);
    reply.bulk(b"running_script");
    match running {
        None => reply.null(),
        Some(running) => {
            reply.map(3);
            reply.bulk(b"name");
            reply.bulk(&running.name);
            reply.bulk(b"command");
            reply.array(running.command.len());
            running.command.iter().for_each(|arg| reply.bulk(arg));
            reply.bulk(b"duration_ms");
            reply.integer(running.runs_ms);
        }
    }
    let (libraries, count) = functions.counts();
    reply.bulk(b"engines");
    reply.map(1);
    reply.bulk(ENGINE);
    reply.map(2);
    reply.bulk(b"libraries_count");
    reply.integer(libraries as i64);
    reply.bulk(b"functions_count");
    reply.integer(count as i64);
}

/// `FUNCTION DELETE library`.
pub fn delete(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let deleted = context.change_libraries(|functions, change| match functions.delete(args.at(2), change)? {
        true => Ok(()),
        false => Err(b"ERR Library not found".to_vec()),
    });
    match deleted {
        Ok(()) => reply.ok(),
        Err(why) => reply.error_bytes(&why),
    }
}

/// `FUNCTION KILL`.
pub fn kill(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    match context.host.functions().kill() {
        Ok(()) => reply.ok(),
        Err(why) => reply.error(why),
    }
}

/// `FUNCTION DUMP`: replies with all libraries as in an RDB file, then the RDB version and a
/// checksum.
pub fn dump(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    let compress = context.keyspace.tuning.rdb_compression.load(Relaxed);
    let mut bytes = Vec::new();
    for library in context.host.functions().libraries() {
        bytes.push(LIBRARY);
        Writer::new(&mut bytes, compress).put_string(&library.text);
    }
    payload::seal(&mut bytes);
    reply.bulk(&bytes);
}

/// `FUNCTION RESTORE payload [FLUSH | APPEND | REPLACE]`.
pub fn restore(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if args.len() > 4 {
        return wrong_subcommand(args, reply);
    }
    let policy = match args.get(3) {
        None => RestorePolicy::Append,
        Some(word) if is_option(word, "APPEND") => RestorePolicy::Append,
        Some(word) if is_option(word, "REPLACE") => RestorePolicy::Replace,
        Some(word) if is_option(word, "FLUSH") => RestorePolicy::Flush,
        Some(_) => {
            return reply.error("ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE.");
        }
    };
    let sealed = args.at(2);
    if !payload::is_sealed(sealed, context.keyspace.tuning.skips_checksums.load(Relaxed)) {
        return reply.error("ERR DUMP payload version or checksum are wrong");
    }
    let string_bytes_max = context.keyspace.tuning.proto_max_bulk_len.load(Relaxed);
    let (texts, trouble) = libraries_of(sealed, string_bytes_max);
    match context.change_libraries(|functions, change| functions.restore(&texts, trouble, policy, change)) {
        Ok(()) => reply.ok(),
        Err(why) => reply.error_bytes(&why),
    }
}

/// Returns the code of the payload's libraries up to the first malformed one, and the error of the
/// malformed library. As in Redis, a truncated library may be read on into the version and the
/// checksum that end the payload. So the error is the one that Redis reports.
fn libraries_of(sealed: &[u8], string_bytes_max: u64) -> (Vec<Vec<u8>>, Option<&'static str>) {
    let (mut texts, mut reader) = (Vec::new(), Reader::new(sealed, string_bytes_max));
    while reader.remaining() > SEAL_BYTES {
        let text = match reader.byte() {
            Ok(LIBRARY) => string(&mut reader, "ERR Failed loading library payload"),
            Ok(LIBRARY_PRE_GA) => pre_ga_library(&mut reader),
            _ => Err("ERR given type is not a function"),
        };
        match text {
            Ok(text) => texts.push(text),
            Err(why) => return (texts, Some(why)),
        }
    }
    (texts, None)
}

fn string(reader: &mut Reader<'_>, error: &'static str) -> Result<Vec<u8>, &'static str> {
    reader.string().map(std::borrow::Cow::into_owned).map_err(|_| error)
}

/// Reads a library in the old format, in which name, engine and description precede the code.
/// Returns the library in the current format.
fn pre_ga_library(reader: &mut Reader<'_>) -> Result<Vec<u8>, &'static str> {
    let name = string(reader, "ERR Failed loading library name")?;
    let engine = string(reader, "ERR Failed loading engine name")?;
    if reader.length().map_err(|_| "ERR Failed loading library description indicator")? > 0 {
        string(reader, "ERR Failed loading library description")?;
    }
    let code = string(reader, "ERR Failed loading library blob")?;
    Ok([b"#!", &*engine, b" name=", &name, b"\n", &code].concat())
}

/// `FUNCTION FLUSH [ASYNC | SYNC]`: deletes all libraries. A worker that has loaded their functions
/// drops them when it next calls a function.
pub fn flush(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if args.len() > 3 {
        return wrong_subcommand(args, reply);
    }
    match args.get(2) {
        Some(mode) if !is_option(mode, "ASYNC") && !is_option(mode, "SYNC") => {
            reply.error("ERR FUNCTION FLUSH only supports SYNC|ASYNC option");
        }
        _ => match context.change_libraries(|functions, change| functions.flush(change)) {
            Ok(()) => reply.ok(),
            Err(why) => reply.error_bytes(&why),
        },
    }
}

/// `FUNCTION HELP`.
pub fn help(_: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let lines = [
        "DELETE <LIBRARY NAME>",
        "    Remove a library.",
        "DUMP",
        "    Return all libraries as a payload for RESTORE.",
        "FLUSH [ASYNC|SYNC]",
        "    Remove all libraries.",
        "KILL",
        "    Stop the running function, unless it has written.",
        "LIST [LIBRARYNAME PATTERN] [WITHCODE]",
        "    Return the libraries and their functions.",
        "LOAD [REPLACE] <FUNCTION CODE>",
        "    Add a library.",
        "RESTORE <PAYLOAD> [FLUSH|APPEND|REPLACE]",
        "    Add the libraries of a DUMP. On a name conflict fail (default) or replace; FLUSH removes all first.",
        "STATS",
        "    Return the running function and the number of libraries and functions.",
    ];
    help::write(reply, args, &lines);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing_host::LocalTest;

    #[test]
    fn libraries_are_listed() {
        let mut test = LocalTest::new();
        let f = "*6|$4|name|$1|f|$11|description|$-1|$5|flags|*0|";
        let g = "*6|$4|name|$1|g|$11|description|$4|says|$5|flags|*1|+no-writes|";
        let first = format!("*6|$12|library_name|$5|first|$6|engine|$3|LUA|$9|functions|*2|{f}{g}");
        test.expect(&[
            ("FUNCTION LIST LIBRARYNAME F*", &format!("*1|{first}")),
            ("FUNCTION LIST LIBRARYNAME x", "*0|"),
            ("FUNCTION LIST LIBRARYNAME", "-ERR library name argument was not given|"),
            ("FUNCTION LIST WITHCODE WITHCODE", "-ERR Unknown argument WITHCODE|"),
            ("FUNCTION DELETE first", "+OK|"),
            ("FUNCTION DELETE third", "-ERR Library not found|"),
            ("FUNCTION LOAD code", "$7|library|"),
            ("FUNCTION LOAD replace REPLACE code", "$7|library|"),
            ("FUNCTION LOAD other code", "-ERR Unknown option given: other|"),
            ("FUNCTION FLUSH SYNC", "+OK|"),
            ("FUNCTION FLUSH now", "-ERR FUNCTION FLUSH only supports SYNC|ASYNC option|"),
            ("FUNCTION KILL", "+OK|"),
        ]);
        let calls = test.host.calls.lock().expect("lock is not poisoned");
        assert_eq!(*calls, ["load false code", "load true code", "flush functions"]);
    }

    #[test]
    fn dumps_restore() {
        let mut test = LocalTest::new();
        let dumped = test.raw(&[b"FUNCTION", b"DUMP"]);
        let payload =
            &dumped[dumped.windows(2).position(|ends| ends == b"\r\n").expect("a bulk") + 2..dumped.len() - 2];
        assert_eq!(test.raw(&[b"FUNCTION", b"RESTORE", payload, b"flush"]), b"+OK\r\n");
        let calls = test.host.calls.lock().expect("lock is not poisoned").clone();
        assert_eq!(calls, ["restore Flush #!lua name=first\\n #!lua name=second\\n"]);
        let mut bent = payload.to_vec();
        bent[0] = 0;
        bent.truncate(bent.len() - SEAL_BYTES);
        payload::seal(&mut bent);
        assert_eq!(test.raw(&[b"FUNCTION", b"RESTORE", &bent]), b"-ERR given type is not a function\r\n");
        assert_eq!(
            test.raw(&[b"FUNCTION", b"RESTORE", &payload[1..]]),
            b"-ERR DUMP payload version or checksum are wrong\r\n"
        );
    }
}
