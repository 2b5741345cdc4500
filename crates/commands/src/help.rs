//! Writes the replies of the `HELP` subcommands, in the same form for all containers (commands that
//! have only subcommands).

use pantala_resp::Reply;

/// Replies with a container's help: a line of usage, then `lines`, then HELP itself.
///
/// Each of `lines` is a subcommand with its arguments, or a description of it that starts with four
/// spaces.
pub fn write(reply: &mut Reply<'_>, container: &str, lines: &[&str]) {
    reply.array(lines.len() + 3);
    reply.simple(&format!("{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for line in lines {
        reply.simple(line);
    }
    reply.simple("HELP");
    reply.simple("    Print this help.");
}
