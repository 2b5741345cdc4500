//! `FUNCTION`. Functions can't be loaded yet, so the library is always empty: it may be flushed already, which is what
//! tools do that reset a server.

use pantala_engine::client::LocalContext;
use pantala_resp::{Args, Reply};

use crate::arguments::{c_string, is_option};
use crate::help;

/// `FUNCTION FLUSH [ASYNC | SYNC]`.
pub fn flush(_: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if args.len() > 3 {
        let shown = c_string(args.at(1));
        let message = [b"ERR unknown subcommand or wrong number of arguments for '", shown, b"'. Try FUNCTION HELP."];
        return reply.error_bytes(&message.concat());
    }
    match args.get(2) {
        Some(mode) if !is_option(mode, "ASYNC") && !is_option(mode, "SYNC") => {
            reply.error("ERR FUNCTION FLUSH only supports SYNC|ASYNC option");
        }
        _ => reply.ok(),
    }
}

/// `FUNCTION HELP`.
pub fn help(_: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    help::write(reply, "FUNCTION", &["FLUSH [ASYNC | SYNC]", "    Remove all functions."]);
}
