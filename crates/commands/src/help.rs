//! Writes the replies of the `HELP` subcommands, in the same form for all containers (commands with
//! subcommands).

use pantala_resp::Reply;

/// Replies with a container's help: a line of usage, then `lines`, then the subcommand HELP.
///
/// Each of `lines` is either a subcommand with its arguments, or, after four spaces, the
/// description of the preceding subcommand.
pub fn write(reply: &mut Reply<'_>, container: &str, lines: &[&str]) {
    reply.array(lines.len() + 3);
    reply.simple(&format!("{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for line in lines {
        reply.simple(line);
    }
    reply.simple("HELP");
    reply.simple("    Print this help.");
}
