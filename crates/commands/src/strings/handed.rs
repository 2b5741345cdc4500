//! Commands that take over a large value instead of copying it ([`Access::take_value`]). They do
//! what the commands of the same names do, and clients know nothing of them.

use pantala_engine::access::Access;
use pantala_engine::command::{Command, Handler};
use pantala_engine::db::NewString;
use pantala_resp::{Args, Reply};

use super::set;
use crate::expiry::Unit;
use crate::records::strings::{PSETEX, SET, SETEX, SETNX};

static SET_HANDED: Command = Command { handler: Handler::Keyed(set_handed), ..SET };
static SETNX_HANDED: Command = Command { handler: Handler::Keyed(setnx_handed), ..SETNX };
static SETEX_HANDED: Command = Command { handler: Handler::Keyed(setex_handed), ..SETEX };
static PSETEX_HANDED: Command = Command { handler: Handler::Keyed(psetex_handed), ..PSETEX };

/// The command that does the same with a value that is handed over, and which argument that value
/// is.
#[must_use]
pub fn taking_over(command: &Command) -> Option<(&'static Command, usize)> {
    match command.full_name {
        "set" => Some((&SET_HANDED, 2)),
        "setnx" => Some((&SETNX_HANDED, 2)),
        "setex" => Some((&SETEX_HANDED, 3)),
        "psetex" => Some((&PSETEX_HANDED, 3)),
        _ => None,
    }
}

/// The value; its argument where there is none.
fn value<'a>(access: &Access<'_>, args: &Args<'a>, index: usize) -> NewString<'a> {
    access.take_value().map_or_else(|| NewString::encode(args.at(index)), NewString::Large)
}

fn set_handed(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let value = value(access, args, 2);
    set::set_to(access, args, value, reply);
}

fn setnx_handed(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let value = value(access, args, 2);
    set::setnx_to(access, args, value, reply);
}

fn setex_handed(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let value = value(access, args, 3);
    set::set_expiring(access, args, Unit::Seconds, "setex", value, reply);
}

fn psetex_handed(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let value = value(access, args, 3);
    set::set_expiring(access, args, Unit::Milliseconds, "psetex", value, reply);
}
