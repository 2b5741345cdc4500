//! `BITFIELD`: integers of any width at any bit offset.

use pantala_engine::access::Access;
use pantala_engine::db::{Change, Holds, Silence};
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::{Args, Reply};
use pantala_types::bitmap::{Field, Overflow};

use super::bit_offset;
use crate::arguments::{integer, is_option};
use crate::errors;
use crate::strings::StringRef;

/// One operation on one field.
#[derive(Clone, Copy)]
struct Step {
    field: Field,
    offset: u64,
    action: Action,
}

#[derive(Clone, Copy)]
enum Action {
    Get,
    Set(i64, Overflow),
    Increment(i64, Overflow),
}

/// `BITFIELD key [GET encoding offset | [OVERFLOW WRAP|SAT|FAIL] SET|INCRBY encoding offset value
/// …]`.
pub fn bitfield(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(steps) = parse(args, access.string_bytes_max(), reply) else { return };
    match write_len(&steps) {
        None => read_all(access, args, &steps, reply),
        Some(len) => write_all(access, args, &steps, len, reply),
    }
}

/// `BITFIELD_RO key [GET encoding offset …]`.
pub fn bitfield_ro(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(steps) = parse(args, access.string_bytes_max(), reply) else { return };
    match write_len(&steps) {
        None => read_all(access, args, &steps, reply),
        Some(_) => reply.error("ERR BITFIELD_RO only supports the GET subcommand"),
    }
}

/// Parses all operations. If one is invalid, replies with an error and returns `None`, so that no
/// operation runs.
fn parse(args: &Args<'_>, bytes_max: u64, reply: &mut Reply<'_>) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    let mut overflow = Overflow::Wrap;
    let mut index = 2;
    while let Some(name) = args.get(index) {
        let left = args.len() - index - 1;
        if is_option(name, "OVERFLOW") && left >= 1 {
            overflow = overflow_of(args.at(index + 1), reply)?;
            index += 2;
            continue;
        }
        let get = is_option(name, "GET") && left >= 2;
        let set = is_option(name, "SET") && left >= 3;
        let increment = is_option(name, "INCRBY") && left >= 3;
        if !(get || set || increment) {
            reply.error(errors::SYNTAX);
            return None;
        }
        let Some(field) = Field::parse(args.at(index + 1)) else {
            reply.error(
                "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
            );
            return None;
        };
        let offset = bit_offset(args.at(index + 2), field.bits(), bytes_max, reply)?;
        let action = if get {
            Action::Get
        } else {
            let number = integer(args.at(index + 3), reply)?;
            if set { Action::Set(number, overflow) } else { Action::Increment(number, overflow) }
        };
        steps.push(Step { field, offset, action });
        index += if get { 3 } else { 4 };
    }
    Some(steps)
}

fn overflow_of(name: &[u8], reply: &mut Reply<'_>) -> Option<Overflow> {
    let known = [("WRAP", Overflow::Wrap), ("SAT", Overflow::Saturate), ("FAIL", Overflow::Fail)];
    let found = known.into_iter().find(|(word, _)| is_option(name, word)).map(|(_, overflow)| overflow);
    if found.is_none() {
        reply.error("ERR Invalid OVERFLOW type specified");
    }
    found
}

/// Returns the string length in bytes that the writes require; `None` if all operations are reads.
fn write_len(steps: &[Step]) -> Option<usize> {
    let writes = steps.iter().filter(|step| !matches!(step.action, Action::Get));
    writes.map(|step| step.field.end_byte(step.offset) as usize + 1).max()
}

fn read_all(access: &mut Access<'_>, args: &Args<'_>, steps: &[Step], reply: &mut Reply<'_>) {
    let key = access.first_key(args, 1);
    let mut db = access.db(&key);
    let entry = db.read(&key);
    let string = match entry.as_ref().map(|entry| StringRef::of(entry.held())) {
        Some(None) => return reply.error(errors::WRONG_TYPE),
        Some(Some(string)) => string,
        None => StringRef::Bytes(b""),
    };
    reply.array(steps.len());
    string.with_bytes(|bytes| {
        for step in steps {
            reply.integer(step.field.get(bytes, step.offset));
        }
    });
}

fn write_all(access: &mut Access<'_>, args: &Args<'_>, steps: &[Step], len: usize, reply: &mut Reply<'_>) {
    let key = access.first_key(args, 1);
    let done = access.db(&key).edit_bytes(&key, len, |bytes, len_before| {
        let (mut is_changed, is_longer) = (false, bytes.len() > len_before);
        reply.array(steps.len());
        for step in steps {
            let before = step.field.get(bytes, step.offset);
            let done = run(step, bytes);
            let is_write = !matches!(step.action, Action::Get) && done.is_some();
            is_changed |= is_write && (len > len_before || step.field.get(bytes, step.offset) != before);
            match done {
                Some(value) => reply.integer(value),
                None => reply.null(),
            }
        }
        let change = match (is_changed, is_longer) {
            (true, _) => Change::event(&Event(EventClass::String, "setbit")),
            // The string was extended, but no write succeeded. As in Redis, such a change publishes
            // no event and raises no watch (`WATCH`). Unlike Redis, Pantala propagates it.
            (false, true) => Change::silent(Silence::Extension),
            (false, false) => Change::silent(Silence::Encoding),
        };
        (change, ())
    });
    if let Err(error) = done {
        reply.error(errors::edit_error(error));
    }
}

/// Runs an operation and returns its reply; `None` if the number overflows and nothing was changed.
fn run(step: &Step, bytes: &mut [u8]) -> Option<i64> {
    match step.action {
        Action::Get => Some(step.field.get(bytes, step.offset)),
        Action::Set(value, overflow) => step.field.set(bytes, step.offset, value, overflow).map(|change| change.before),
        Action::Increment(by, overflow) => {
            step.field.increment(bytes, step.offset, by, overflow).map(|change| change.after)
        }
    }
}
