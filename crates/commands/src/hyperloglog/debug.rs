//! `PFDEBUG` and `PFSELFTEST`: internals of a HyperLogLog, and a self-test.

use std::sync::atomic::Ordering::Relaxed;

use pantala_engine::access::Access;
use pantala_engine::client::LocalContext;
use pantala_engine::db::{Change, Holds, Silence};
use pantala_resp::{Args, Reply};
use pantala_types::hyperloglog::{Form, HyperLogLog, Registers, self_test, to_dense};

use super::{Failure, edit_one, of};
use crate::arguments::{c_string, is_option};

/// `PFDEBUG GETREG|DECODE|ENCODING|TODENSE key`.
pub fn pfdebug(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if let Err(Failure(error)) = debug(access, args, reply) {
        reply.error(error);
    }
}

fn debug(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) -> Result<(), Failure> {
    let key = access.first_key(args, 2);
    let mut db = access.db(&key);
    let Some(entry) = db.write(&key) else { return Err(Failure("ERR The specified key does not exist")) };
    let found = of(entry.held())?;
    let (form, runs) = (found.form(), found.decode());
    let sub = args.at(1);
    if is_option(sub, "GETREG") {
        // As in Redis, reading the registers makes the HyperLogLog dense.
        let mut registers = Registers::new();
        edit_one(&mut db, &key, |string| {
            to_dense(string)?;
            HyperLogLog::of(string.as_bytes()).map_or(Ok(()), |dense| dense.merge_into(&mut registers))?;
            Ok((Change::silent(Silence::Encoding), ()))
        })?;
        reply.array(registers.values().len());
        registers.values().iter().for_each(|&value| reply.integer(i64::from(value)));
        return Ok(());
    }
    if is_option(sub, "TODENSE") {
        let changed = edit_one(&mut db, &key, |string| Ok((Change::silent(Silence::Encoding), to_dense(string)?)))?;
        reply.integer(i64::from(changed));
        return Ok(());
    }
    // As in Redis, the encoding becomes raw before the subcommand is parsed.
    edit_one(&mut db, &key, |_| Ok((Change::silent(Silence::Encoding), ())))?;
    if is_option(sub, "DECODE") {
        match runs {
            Some(runs) => reply.bulk(runs.as_bytes()),
            None => reply.error("ERR HLL encoding is not sparse"),
        }
    } else if is_option(sub, "ENCODING") {
        reply.simple(if form == Form::Dense { "dense" } else { "sparse" });
    } else {
        let message = [b"ERR Unknown PFDEBUG subcommand '", c_string(sub), b"'"].concat();
        reply.error_bytes(&message);
    }
    Ok(())
}

/// `PFSELFTEST`: holds no shard, but keeps the connection's worker busy for tens of milliseconds.
pub fn pfselftest(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    let bytes_max = context.keyspace.tuning.hll_sparse_max_bytes.load(Relaxed);
    match self_test(context.now_ms as u64, bytes_max) {
        Ok(()) => reply.ok(),
        Err(what) => reply.error(&format!("TESTFAILED {what}")),
    }
}
