//! `SCRIPT`: manages the cache of scripts. The server's dispatcher runs `EVAL` and its variants.

use pantala_engine::client::LocalContext;
use pantala_resp::{Args, Reply};

use crate::arguments::{c_string, is_option};
use crate::help;

/// `SCRIPT LOAD script`.
pub fn load(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    match context.host.script_load(args.at(2)) {
        Ok(sha) => reply.bulk(&sha),
        Err(why) => reply.error_bytes(&why),
    }
}

/// `SCRIPT EXISTS sha1 [sha1 …]`.
pub fn exists(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    reply.array(args.len() - 2);
    for name in args.iter().skip(2) {
        reply.integer(i64::from(context.host.script_exists(name)));
    }
}

/// `SCRIPT FLUSH [ASYNC | SYNC]`: empties the cache. Each other worker drops its compiled scripts
/// when it next runs a script.
pub fn flush(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let is_known = match args.get(2) {
        None => true,
        Some(mode) => args.len() == 3 && (is_option(mode, "ASYNC") || is_option(mode, "SYNC")),
    };
    if !is_known {
        return reply.error("ERR SCRIPT FLUSH only support SYNC|ASYNC option");
    }
    context.host.script_flush();
    reply.ok();
}

/// `SCRIPT KILL`.
pub fn kill(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    match context.host.script_kill() {
        Ok(()) => reply.ok(),
        Err(why) => reply.error(why),
    }
}

/// `SCRIPT DEBUG YES | SYNC | NO`: there is no debugger, so only `NO` succeeds.
pub fn debug(_: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let mode = c_string(args.at(2));
    if is_option(mode, "NO") {
        reply.ok();
    } else if is_option(mode, "YES") || is_option(mode, "SYNC") {
        reply.error("ERR Pantala doesn't have a script debugger");
    } else {
        reply.error("ERR Use SCRIPT DEBUG YES/SYNC/NO");
    }
}

/// `SCRIPT HELP`.
pub fn help(_: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let lines = [
        "DEBUG (YES|SYNC|NO)",
        "    Accept only NO: there is no script debugger.",
        "EXISTS <sha1> [<sha1> ...]",
        "    Return for each script whether it is cached.",
        "FLUSH [ASYNC|SYNC]",
        "    Remove all scripts from the cache.",
        "KILL",
        "    Stop the running script, unless it has written.",
        "LOAD <script>",
        "    Add a script to the cache without running it.",
    ];
    help::write(reply, args, &lines);
}
