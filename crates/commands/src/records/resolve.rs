//! From a call's arguments to the record that runs it, or to Redis's words for why there is none.

use pantala_engine::command::Command;
use pantala_resp::Args;

use super::{hides_subcommands, lookup, not_built};

/// How many bytes of a name, and of the arguments after it, an error repeats.
const SHOWN_BYTES_MAX: usize = 128;

/// Why a call has no command to run.
#[derive(Clone, Copy)]
pub enum Unresolved {
    /// No command of that name.
    Unknown,
    /// A command of Redis 7.0 that isn't built yet.
    NotBuilt,
    /// The container has no such subcommand.
    UnknownSubcommand(&'static Command),
    /// A subcommand of Redis 7.0 that isn't built yet.
    SubcommandNotBuilt(&'static Command),
    /// Too few arguments, or too many.
    WrongArity(&'static Command),
}

/// The record that runs a call: the command's, or its subcommand's. Checks the number of arguments.
#[inline]
pub fn resolve(args: &Args<'_>) -> Result<&'static Command, Unresolved> {
    match args.get(0).and_then(lookup) {
        Some(command) => resolve_as(command, args),
        None => Err(unknown(args)),
    }
}

/// As [`resolve`], for a call of `command` by whatever name.
#[inline]
pub fn resolve_as(command: &'static Command, args: &Args<'_>) -> Result<&'static Command, Unresolved> {
    if !command.subcommands.is_empty() && args.len() > 1 {
        return resolve_sub(command, args);
    }
    if command.accepts(args.len()) { Ok(command) } else { Err(Unresolved::WrongArity(command)) }
}

fn resolve_sub(container: &'static Command, args: &Args<'_>) -> Result<&'static Command, Unresolved> {
    match container.subcommand(&args[1]) {
        Some(sub) if sub.accepts(args.len()) => Ok(sub),
        // DEBUG's own handler says that there is no such subcommand, or that its arguments don't fit.
        _ if hides_subcommands(container) => Ok(container),
        Some(sub) => Err(Unresolved::WrongArity(sub)),
        None => {
            let full_name = [container.name.as_bytes(), b"|", &args[1]].concat();
            Err(match not_built(&full_name) {
                true => Unresolved::SubcommandNotBuilt(container),
                false => Unresolved::UnknownSubcommand(container),
            })
        }
    }
}

#[cold]
fn unknown(args: &Args<'_>) -> Unresolved {
    if args.get(0).is_some_and(not_built) { Unresolved::NotBuilt } else { Unresolved::Unknown }
}

impl Unresolved {
    /// The error to answer, with its code and without the leading `-`. The bytes are the client's own in part: any but
    /// the line's end may occur.
    #[cold]
    pub fn message(&self, args: &Args<'_>) -> Vec<u8> {
        let argument = |index: usize| args.get(index).unwrap_or(b"");
        match self {
            Self::Unknown => unknown_command(args),
            Self::NotBuilt => {
                let name = shown(argument(0), SHOWN_BYTES_MAX);
                [b"ERR Pantala doesn't have the command '", name, b"' yet"].concat()
            }
            Self::SubcommandNotBuilt(container) => {
                let (container, sub) = (container.name.as_bytes(), shown(argument(1), SHOWN_BYTES_MAX));
                [b"ERR Pantala doesn't have the command '", container, b"|", sub, b"' yet"].concat()
            }
            Self::UnknownSubcommand(container) => {
                let name = shown(argument(1), SHOWN_BYTES_MAX);
                let container = container.name.to_ascii_uppercase();
                [b"ERR unknown subcommand '", name, b"'. Try ", container.as_bytes(), b" HELP."].concat()
            }
            Self::WrongArity(command) => {
                [b"ERR wrong number of arguments for '", command.full_name.as_bytes(), b"' command"].concat()
            }
        }
    }
}

/// Names the command and the arguments after it, as far as [`SHOWN_BYTES_MAX`] goes.
fn unknown_command(args: &Args<'_>) -> Vec<u8> {
    let mut quoted = Vec::new();
    for argument in args.iter().skip(1) {
        let Some(left @ 1..) = SHOWN_BYTES_MAX.checked_sub(quoted.len()) else {
            break;
        };
        quoted.extend_from_slice(b"'");
        quoted.extend_from_slice(shown(argument, left));
        quoted.extend_from_slice(b"' ");
    }
    let name = shown(args.get(0).unwrap_or(b""), SHOWN_BYTES_MAX);
    [b"ERR unknown command '", name, b"', with args beginning with: ", &quoted].concat()
}

/// The part of an argument that Redis prints: a C string ends at the first zero byte.
fn shown(argument: &[u8], len_max: usize) -> &[u8] {
    let argument = &argument[..argument.len().min(len_max)];
    argument.split(|byte| *byte == 0).next().unwrap_or(b"")
}
