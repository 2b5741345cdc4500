//! `SORT` and `SORT_RO`: sort the elements of a list, set or sorted set.
//!
//! | file | contents |
//! | --- | --- |
//! | `options` | the arguments after the key, and the route |
//! | `pattern` | the patterns of `BY` and `GET`, which refer to a value for each element |
//! | `elements` | the elements and their order |
//!
//! The call holds its shards throughout. It first copies the elements of the sorted key. They
//! cannot be borrowed while other keys are looked up, because a lookup changes its shard: it
//! updates access statistics and deletes expired keys. The copy takes the elements' bytes plus 16
//! to 40 bytes per element.

mod elements;
mod options;
mod pattern;
#[cfg(test)]
mod tests;

use pantala_engine::access::{Access, Key};
use pantala_engine::db::{Change, Expire};
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::{Args, Reply};
use pantala_types::list::{ELEMENT_BYTES_MAX, End, NodeLimit};
use pantala_types::{Collection, List};

use elements::{Elements, Source};
use options::Options;

pub use options::{sort_keys, sort_ro_keys, sort_ro_route, sort_route};

const NOT_A_SCORE: &str = "ERR One or more scores can't be converted into double";

/// `SORT key [BY pattern] [LIMIT offset count] [GET pattern …] [ASC | DESC] [ALPHA] [STORE
/// destination]`.
pub fn sort(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    sort_with(access, args, false, reply);
}

/// `SORT_RO key [BY pattern] [LIMIT offset count] [GET pattern …] [ASC | DESC] [ALPHA]`.
pub fn sort_ro(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    sort_with(access, args, true, reply);
}

fn sort_with(access: &mut Access<'_>, args: &Args<'_>, read_only: bool, reply: &mut Reply<'_>) {
    let reads_all = || reads_all_keys(access, args, if read_only { b"sort_ro" } else { b"sort" });
    let mut options = match Options::parse(access.keyspace(), args, read_only, reads_all) {
        Ok(options) => options,
        Err(error) => return reply.error(error),
    };
    let key = access.first_key(args, 1);
    let source = match Source::of(access, &key) {
        Ok(source) => source,
        Err(error) => return reply.error(error),
    };
    // A set has no order. If the result is stored or returned to a script, its members are sorted
    // nevertheless, so that the result is the same on every server.
    if options.unsorted && source == Source::Set && (options.store.is_some() || access.session().in_script) {
        options.unsorted = false;
        options.alpha = true;
        options.by = None;
    }
    let elements = Elements::copy_of(access, &key, &options);
    let Ok(order) = elements.order(access, &options) else { return reply.error(NOT_A_SCORE) };
    match options.store {
        None => answer(access, &elements, &order, &options, reply),
        Some(store) => {
            let destination = access.key(args, store);
            store_result(access, &destination, &elements, &order, &options, reply);
        }
    }
}

/// Returns whether the client's user may read every key with the command `name`.
fn reads_all_keys(access: &Access<'_>, args: &Args<'_>, name: &[u8]) -> bool {
    let (session, users) = (access.session(), access.keyspace().users());
    if session.permit.is_unrestricted() && session.permit.epoch() == users.epoch() {
        return true;
    }
    let rules = access.keyspace().rules_of(session.client);
    rules.zip(crate::lookup(name)).is_some_and(|((_, rules), command)| rules.reads_all_keys(command, args))
}

fn answer(access: &mut Access<'_>, elements: &Elements, order: &[u32], options: &Options<'_>, reply: &mut Reply<'_>) {
    reply.array(order.len() * options.get.len().max(1));
    for &number in order {
        let element = elements.get(number);
        if options.get.is_empty() {
            reply.bulk(element);
        }
        for get in &options.get {
            if pattern::look_up(access, get, element, |value| value.write(reply)).is_none() {
                reply.null();
            }
        }
    }
}

fn store_result(
    access: &mut Access<'_>,
    destination: &Key<'_>,
    elements: &Elements,
    order: &[u32],
    options: &Options<'_>,
    reply: &mut Reply<'_>,
) {
    let limit = access.keyspace().tuning.list_node_limit();
    let Some(list) = result_list(access, elements, order, options, limit) else {
        return reply.error("ERR Element too large");
    };
    let len = list.view().len();
    if len > 0 {
        let change = Change::event(&Event(EventClass::List, "sortstore"));
        access.db(destination).put(destination, list, Expire::Clear, change);
    } else {
        access.remove_destination(destination);
    }
    reply.integer(len as i64);
}

/// Returns the result as a list; `None` if an element is too long for a list.
fn result_list(
    access: &mut Access<'_>,
    elements: &Elements,
    order: &[u32],
    options: &Options<'_>,
    limit: NodeLimit,
) -> Option<List> {
    let mut list = List::empty();
    let mut push = |bytes: &[u8]| {
        let fits = bytes.len() <= ELEMENT_BYTES_MAX;
        if fits {
            list.push(End::Right, bytes, limit);
        }
        fits.then_some(())
    };
    for &number in order {
        let element = elements.get(number);
        if options.get.is_empty() {
            push(element)?;
        }
        for get in &options.get {
            match pattern::look_up(access, get, element, |value| value.with_bytes(&mut push)) {
                Some(pushed) => pushed?,
                None => push(b"")?,
            }
        }
    }
    Some(list)
}
