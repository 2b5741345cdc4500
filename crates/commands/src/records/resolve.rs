//! Finds the record that runs a call, or Redis's error for the call.

use std::borrow::Cow;

use pantala_engine::command::Command;
use pantala_resp::Args;

use super::unimplemented::Unimplemented;
use super::{hides_subcommands, lookup, unimplemented};
use crate::arguments::{SHOWN_BYTES_MAX, upper_name};

/// The error if a script calls a command that isn't allowed in scripts.
pub const NOT_IN_SCRIPTS: &str = "ERR This Redis command is not allowed from script";

/// The reason why no record runs a call.
#[derive(Clone, Copy)]
pub enum Unresolved {
    /// No command has this name.
    Unknown,
    /// A command or subcommand of Redis 7.0 that isn't implemented yet.
    Unimplemented(&'static Unimplemented),
    /// The container has no such subcommand.
    UnknownSubcommand,
    /// Too few or too many arguments.
    WrongArity(&'static Command),
}

/// Returns the record that runs a call: that of the command or of its subcommand. Checks the number
/// of arguments.
#[inline(always)]
pub fn resolve(args: &Args<'_>) -> Result<&'static Command, Unresolved> {
    match args.get(0).and_then(lookup) {
        Some(command) => resolve_as(command, args),
        None => Err(unknown(args)),
    }
}

/// Resolves a call of `command` like [`resolve`], regardless of the name that the client used.
#[inline(always)]
pub fn resolve_as(command: &'static Command, args: &Args<'_>) -> Result<&'static Command, Unresolved> {
    if !command.subcommands.is_empty() && args.len() > 1 {
        return resolve_sub(command, args);
    }
    if command.accepts(args.len()) { Ok(command) } else { Err(Unresolved::WrongArity(command)) }
}

fn resolve_sub(container: &'static Command, args: &Args<'_>) -> Result<&'static Command, Unresolved> {
    match container.subcommand(&args[1]) {
        Some(sub) if sub.accepts(args.len()) => Ok(sub),
        // DEBUG's own handler replies with the error for an unknown subcommand or a wrong number of
        // arguments.
        _ if hides_subcommands(container) => Ok(container),
        Some(sub) => Err(Unresolved::WrongArity(sub)),
        None => Err(unknown_sub(container.name, &args[1])),
    }
}

#[cold]
fn unknown(args: &Args<'_>) -> Unresolved {
    match (args.get(0).and_then(unimplemented), args.get(1)) {
        (None, _) => Unresolved::Unknown,
        (Some(container), Some(sub)) if container.is_container() => unknown_sub(container.full_name, sub),
        (Some(command), _) => Unresolved::Unimplemented(command),
    }
}

fn unknown_sub(container: &'static str, sub: &[u8]) -> Unresolved {
    let full_name = [container.as_bytes(), b"|", sub].concat();
    unimplemented(&full_name).map_or(Unresolved::UnknownSubcommand, Unresolved::Unimplemented)
}

impl Unresolved {
    /// Returns the error reply, which starts with the error code, without the `-` before it. The
    /// reply quotes bytes of the client and may therefore contain any byte, even a line end.
    #[cold]
    pub fn message(&self, args: &Args<'_>) -> Vec<u8> {
        let argument = |index: usize| args.get(index).unwrap_or(b"");
        match self {
            Self::Unknown => unknown_command(args),
            Self::Unimplemented(command) => {
                [b"ERR Pantala doesn't have the command '", command.full_name.as_bytes(), b"' yet"].concat()
            }
            Self::UnknownSubcommand => {
                let name = shown(argument(1), SHOWN_BYTES_MAX);
                [b"ERR unknown subcommand '", name, b"'. Try ", &upper_name(args), b" HELP."].concat()
            }
            Self::WrongArity(command) => {
                [b"ERR wrong number of arguments for '", command.full_name.as_bytes(), b"' command"].concat()
            }
        }
    }

    /// Returns the error that a script gets. This error differs from [`Self::message`].
    #[cold]
    pub fn message_in_script(&self, args: &Args<'_>) -> Cow<'static, [u8]> {
        let text = match self {
            Self::Unknown | Self::UnknownSubcommand => "ERR Unknown Redis command called from script",
            Self::Unimplemented(command) if command.accepts(args.len()) => match command.in_scripts {
                true => return self.message(args).into(),
                false => NOT_IN_SCRIPTS,
            },
            Self::Unimplemented(_) | Self::WrongArity(_) => {
                "ERR Wrong number of args calling Redis command from script"
            }
        };
        text.as_bytes().into()
    }
}

/// Returns the error for an unknown command. The error quotes up to [`SHOWN_BYTES_MAX`] bytes of
/// the name. After the name, it quotes arguments, up to about as many bytes in total.
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

/// Returns the part of an argument that Redis prints. Redis treats the argument as a C string,
/// which ends at the first zero byte.
fn shown(argument: &[u8], len_max: usize) -> &[u8] {
    let argument = &argument[..argument.len().min(len_max)];
    argument.split(|byte| *byte == 0).next().unwrap_or(b"")
}
