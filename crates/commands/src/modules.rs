//! `MODULE`. Modules are linked against Redis itself, so Pantala can't load any. The replies are
//! those of Redis for a module whose file is missing.

use pantala_engine::client::LocalContext;
use pantala_resp::{Args, Reply};

use crate::help;

const NOT_LOADED: &str = "ERR Error loading the extension. Please check the server logs.";
const NOT_KNOWN: &str = "ERR Error unloading module: no such module with that name";
const NOT_SUPPORTED: &str = "modules are not supported";

/// `MODULE LOAD`: always an error.
pub fn load(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    context.host.log_unloadable(&args[2], NOT_SUPPORTED);
    reply.error(NOT_LOADED);
}

/// `MODULE LOADEX`: always an error.
pub fn loadex(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    context.host.log_unloadable(&args[2], syntax_error(args).unwrap_or(NOT_SUPPORTED));
    reply.error(NOT_LOADED);
}

/// Checks the arguments after the path: any number of `CONFIG name value`, then `ARGS` and any
/// words. Returns the error if they are invalid. As in Redis, this error appears only in the log.
fn syntax_error(args: &Args<'_>) -> Option<&'static str> {
    let mut index = 3;
    while let Some(word) = args.get(index) {
        if word.eq_ignore_ascii_case(b"ARGS") {
            break;
        }
        if !word.eq_ignore_ascii_case(b"CONFIG") {
            return Some("syntax error in the arguments of LOADEX");
        }
        if index + 2 >= args.len() {
            return Some("CONFIG specified without name value pair");
        }
        index += 3;
    }
    None
}

/// `MODULE UNLOAD`: always an error.
pub fn unload(_: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    reply.error(NOT_KNOWN);
}

/// `MODULE LIST`: no modules.
pub fn list(_: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    reply.array(0);
}

/// `MODULE HELP`.
pub fn help(_: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    const LINES: [&str; 8] = [
        "LIST",
        "    Return the loaded modules: there are none.",
        "LOAD <path> [<arg> ...]",
        "    Reply with an error: modules are not supported.",
        "LOADEX <path> [[CONFIG NAME VALUE] [CONFIG NAME VALUE]] [ARGS ...]",
        "    Reply with an error: modules are not supported.",
        "UNLOAD <name>",
        "    Reply with an error: there are no modules.",
    ];
    help::write(reply, args, &LINES);
}
