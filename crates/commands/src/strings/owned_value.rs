//! Variants of `SET` and related commands that take ownership of a large value instead of copying
//! it ([`Access::take_value`]). A variant behaves like the command of the same name. Clients can't
//! see which of the two runs.

use pantala_engine::access::Access;
use pantala_engine::command::{Chance, Command, Handler, Propagated};
use pantala_engine::db::NewString;
use pantala_resp::{Args, Reply};

use super::set;
use crate::expiry::Unit;
use crate::records::strings::{PSETEX, SET, SETEX, SETNX};

static SET_OWNED: Command = Command { handler: Handler::Keyed(set_owned), ..SET };
static SETNX_OWNED: Command = Command { handler: Handler::Keyed(setnx_owned), ..SETNX };
static SETEX_OWNED: Command = Command { handler: Handler::Undetermined(setex_owned), ..SETEX };
static PSETEX_OWNED: Command = Command { handler: Handler::Undetermined(psetex_owned), ..PSETEX };

/// Returns the variant of a command that takes ownership of its value, and the index of the
/// argument with the value. Returns `None` if the command has no such variant.
#[must_use]
pub fn owned_value_variant(command: &Command) -> Option<(&'static Command, usize)> {
    match command.full_name {
        "set" => Some((&SET_OWNED, 2)),
        "setnx" => Some((&SETNX_OWNED, 2)),
        "setex" => Some((&SETEX_OWNED, 3)),
        "psetex" => Some((&PSETEX_OWNED, 3)),
        _ => None,
    }
}

/// Returns the owned value, or the argument if the value wasn't passed by ownership.
fn value<'a>(access: &Access<'_>, args: &Args<'a>, index: usize) -> NewString<'a> {
    access.take_value().map_or_else(|| NewString::encode(args.at(index)), NewString::Large)
}

fn set_owned(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let value = value(access, args, 2);
    set::set_to(access, args, value, reply);
}

fn setnx_owned(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let value = value(access, args, 2);
    set::setnx_to(access, args, value, reply);
}

fn setex_owned(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    let value = value(access, args, 3);
    set::set_expiring(access, args, Unit::Seconds, "setex", value, reply)
}

fn psetex_owned(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    let value = value(access, args, 3);
    set::set_expiring(access, args, Unit::Milliseconds, "psetex", value, reply)
}
