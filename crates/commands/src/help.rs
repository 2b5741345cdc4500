//! Writes the replies of the `HELP` subcommands, in the same form for all containers (commands with
//! subcommands).

use pantala_resp::{Args, Reply};

use crate::arguments::upper_name;

/// Replies with a container's help: a line of usage, then `lines`, then the subcommand HELP. The
/// line of usage shows the container by the name that the client used, in upper case.
///
/// Each of `lines` is either a subcommand with its arguments, or, after four spaces, the
/// description of the preceding subcommand.
pub fn write(reply: &mut Reply<'_>, args: &Args<'_>, lines: &[&str]) {
    reply.array(lines.len() + 3);
    let name = upper_name(args);
    let name = String::from_utf8_lossy(&name);
    reply.simple(&format!("{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for line in lines {
        reply.simple(line);
    }
    reply.simple("HELP");
    reply.simple("    Print this help.");
}
