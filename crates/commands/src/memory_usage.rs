//! `MEMORY USAGE`.

use pantala_engine::access::Access;
use pantala_resp::{Args, Reply};

use crate::arguments::{integer, is_option};
use crate::errors;

/// `MEMORY USAGE key [SAMPLES count]`: the memory usage of the key in bytes. `SAMPLES` is checked
/// but has no effect, because the exact size is known without sampling.
pub fn usage(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let mut index = 3;
    while let Some(option) = args.get(index) {
        let (true, Some(samples)) = (is_option(option, "SAMPLES"), args.get(index + 1)) else {
            return reply.error(errors::SYNTAX);
        };
        let Some(samples) = integer(samples, reply) else { return };
        if samples < 0 {
            return reply.error(errors::SYNTAX);
        }
        index += 2;
    }
    let key = access.first_key(args, 2);
    match access.db(&key).memory_usage(&key) {
        Some(bytes) => reply.integer(bytes as i64),
        None => reply.null(),
    }
}
