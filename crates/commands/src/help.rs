//! The HELP subcommands: one shape for all containers.

use pantala_resp::Reply;

/// Writes a container's help: a line that shows how its subcommands are called, then `lines`, then HELP itself.
///
/// A line is a subcommand with its arguments, or what it does, indented by four blanks.
pub fn write(reply: &mut Reply<'_>, container: &str, lines: &[&str]) {
    reply.array(lines.len() + 3);
    reply.simple(&format!("{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for line in lines {
        reply.simple(line);
    }
    reply.simple("HELP");
    reply.simple("    Lists the subcommands.");
}
