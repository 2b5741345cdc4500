//! `BITOP`: bitwise operations on strings.

use pantala_engine::access::{Access, Key};
use pantala_engine::db::{Change, Expire, Holds};
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::{Args, Reply};
use pantala_types::bitmap::{Combination, Operation};
use pantala_types::{OutOfMemory, RawString};

use crate::arguments::is_option;
use crate::errors;
use crate::strings::StringRef;

/// Index of the first source among the arguments.
const FIRST_SOURCE: usize = 3;

/// `BITOP AND|OR|XOR|NOT destkey key [key …]`.
pub fn bitop(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(operation) = operation_of(args.at(1)) else { return reply.error(errors::SYNTAX) };
    if operation == Operation::Not && args.len() != FIRST_SOURCE + 1 {
        return reply.error("ERR BITOP NOT must be called with a single source key.");
    }
    let destination = access.first_key(args, 2);
    let sources: Vec<Key<'_>> = (FIRST_SOURCE..args.len()).map(|index| access.key(args, index)).collect();
    let mut len_max = 0;
    for key in &sources {
        let len = access.db(key).read(key).map(|entry| StringRef::of(entry.held()).map(StringRef::len));
        match len {
            Some(Some(len)) => len_max = len_max.max(len),
            Some(None) => return reply.error(errors::WRONG_TYPE),
            None => {}
        }
    }
    if len_max == 0 {
        access.remove_destination(&destination);
        return reply.integer(0);
    }
    let change = Change::event(&Event(EventClass::String, "set"));
    let stored = combined(access, operation, &sources, len_max)
        .and_then(|result| access.db(&destination).set_raw(&destination, result, Expire::Clear, change));
    match stored {
        Ok(()) => reply.integer(len_max as i64),
        Err(OutOfMemory) => reply.error(errors::OUT_OF_MEMORY),
    }
}

fn operation_of(name: &[u8]) -> Option<Operation> {
    let known = [("AND", Operation::And), ("OR", Operation::Or), ("XOR", Operation::Xor), ("NOT", Operation::Not)];
    known.into_iter().find(|(word, _)| is_option(name, word)).map(|(_, operation)| operation)
}

/// Returns the result of the operation. Looks up every source again for every block, so that only
/// one source is borrowed at a time. A lookup is cheap compared with processing a block.
fn combined(
    access: &mut Access<'_>,
    operation: Operation,
    sources: &[Key<'_>],
    len: usize,
) -> Result<RawString, OutOfMemory> {
    let mut combination = Combination::try_new(operation, len)?;
    while combination.next_block() {
        for key in sources {
            let mut db = access.db(key);
            match db.find(key).as_ref().and_then(|entry| StringRef::of(entry.held())) {
                Some(string) => string.with_bytes(|bytes| combination.add(bytes)),
                None => combination.add(b""),
            }
        }
    }
    Ok(combination.finish())
}
