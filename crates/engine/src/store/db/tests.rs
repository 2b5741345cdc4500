//! Tests that debug builds detect unreported changes.
//! `tests/tests/{notifications,watched_changes,propagation}.rs` run servers, and check that each
//! change publishes its events, raises watches and is propagated.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use pantala_resp::{ArgRange, Args, Reply, Version};
use pantala_types::{Collection, OutOfMemory, Set, SortedSet};

use super::*;
use crate::clients::client::{Client, Endpoint};
use crate::clients::listener::Listener;
use crate::command::{Chance, Command, Drawn, Flags, Handler, KeyedHandler, Permit, Propagated, Route};
use crate::events::tracking::Reader;
use crate::shard::access::{Access, SessionView};
use crate::shard::executor::{Call, Executor, Ran};
use crate::shard::keyspace::{Execution, Keyspace, Layout, WorkerPort};
use crate::store::undo::{HeldShards, Undo};

const NOW_MS: i64 = 1_700_000_000_000;
const INTSET_ENTRIES_MAX: usize = 512;
/// Number of members of a set that does not fit inside its dictionary entry, but is small enough
/// for the debug check ([`change::CHECKED_BYTES_MAX`]).
const MANY_MEMBERS: usize = 60;

/// Returns a keyspace of one shard.
fn keyspace() -> Keyspace {
    let execution = Execution::Inline;
    let layout =
        Layout { shards: 1, partitions: 1, databases: 1, homes: 1, workers: 1, execution, seed: 1, random_seed: 2 };
    Keyspace::new(layout, vec![WorkerPort::new(Box::new(|| ()))])
}

/// Runs handlers in order as commands on the key `k`.
fn run(keyspace: &Keyspace, flags: Flags, handlers: &[Handler]) {
    let mut executor = Executor::new(keyspace, 0);
    for &handler in handlers {
        let command = Command { full_name: "test", flags, route: Route::Keys, handler, ..Command::BLANK };
        let range = [ArgRange::new(0, 1)];
        let session = SessionView {
            client: 1,
            db: 0,
            version: Version::Resp2,
            no_touch: false,
            of_primary: false,
            in_script: false,
            permit: Permit::default(),
        };
        let call = Call {
            command: Box::leak(Box::new(command)),
            args: Args::new(b"k", &range),
            first_key: None,
            session,
            reads_as: None,
            connection: 0,
            now_ms: NOW_MS,
        };
        let ran = executor.run_single(&call, keyspace.place(b"k"), &mut Vec::new());
        assert!(matches!(ran, Ran::Done | Ran::DoneWithEvents), "{ran:?}");
    }
}

/// Returns the message of a panic while handlers run, or an empty string.
fn panic_of(keyspace: &Keyspace, handlers: &[KeyedHandler]) -> String {
    let handlers: Vec<Handler> = handlers.iter().copied().map(Handler::Keyed).collect();
    panic_of_handlers(keyspace, Flags::WRITE, &handlers)
}

/// Returns the message of a panic while handlers run, or an empty string.
fn panic_of_handlers(keyspace: &Keyspace, flags: Flags, handlers: &[Handler]) -> String {
    let panic = catch_unwind(AssertUnwindSafe(|| run(keyspace, flags, handlers)));
    panic.err().map_or(String::new(), |payload| match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => payload.downcast_ref::<&str>().unwrap_or(&"?").to_string(),
    })
}

fn key<'k>(access: &Access<'_>, args: &Args<'k>) -> Key<'k> {
    access.first_key(args, 0)
}

fn add_few(access: &mut Access<'_>, args: &Args<'_>, _: &mut Reply<'_>) {
    add(access, args, 2);
}

fn add_many(access: &mut Access<'_>, args: &Args<'_>, _: &mut Reply<'_>) {
    add(access, args, MANY_MEMBERS);
}

fn add(access: &mut Access<'_>, args: &Args<'_>, members: usize) {
    let key = key(access, args);
    let added = access.db(&key).change_as(&key, Missing::Create, |set: &mut Set| {
        (0..members).for_each(|number| _ = set.add(format!("m{number}").as_bytes(), INTSET_ENTRIES_MAX));
        (Change::event(&Event(EventClass::Set, "sadd")), ())
    });
    assert_eq!(added, Ok(Some(())));
}

fn remove_unreported(access: &mut Access<'_>, args: &Args<'_>, _: &mut Reply<'_>) {
    let key = key(access, args);
    let removed = access.db(&key).change_as(&key, Missing::Skip, |set: &mut Set| (Change::none(), set.remove(b"m1")));
    assert_eq!(removed, Ok(Some(true)));
}

fn look_by_changing(access: &mut Access<'_>, args: &Args<'_>, _: &mut Reply<'_>) {
    let key = key(access, args);
    let found = access.db(&key).change_as(&key, Missing::Skip, |set: &mut Set| (Change::none(), set.is_empty()));
    assert_eq!(found, Ok(Some(false)));
    let other = access.db(&key).change_as(&key, Missing::Skip, |_: &mut SortedSet| (Change::none(), ()));
    assert_eq!(other, Err(WrongType));
}

fn append_unreported(access: &mut Access<'_>, args: &Args<'_>, _: &mut Reply<'_>) {
    let key = key(access, args);
    let done: Result<(), EditError> = access.db(&key).edit_string(&key, |string| {
        string.try_append(b"x")?;
        Ok((Change::none(), ()))
    });
    assert_eq!(done, Ok(()));
}

fn set_bytes_unreported(access: &mut Access<'_>, args: &Args<'_>, _: &mut Reply<'_>) {
    let key = key(access, args);
    let done: Result<(), EditError> = access.db(&key).edit_bytes(&key, 1, |bytes, _| {
        bytes[0] ^= 1;
        (Change::none(), ())
    });
    assert_eq!(done, Ok(()));
}

fn store_string(access: &mut Access<'_>, args: &Args<'_>, _: &mut Reply<'_>) {
    let key = key(access, args);
    let change = Change::event(&Event(EventClass::String, "set"));
    assert_eq!(access.db(&key).set_string(&key, NewString::Bytes(b"x"), Expire::Clear, change), Ok(()));
}

fn fail_to_append(access: &mut Access<'_>, args: &Args<'_>, _: &mut Reply<'_>) {
    let key = key(access, args);
    let failed = access.db(&key).edit_string(&key, |_| Err::<(Change, ()), _>(OutOfMemory));
    assert!(failed.is_err());
}

fn remove_at_random(access: &mut Access<'_>, args: &Args<'_>, drawn: Drawn) {
    let key = key(access, args);
    let number = access.random(&key, drawn).below(2);
    let removed = access.db(&key).change_as(&key, Missing::Skip, |set: &mut Set| {
        (Change::event(&Event(EventClass::Set, "srem")), set.remove(format!("m{number}").as_bytes()))
    });
    assert_eq!(removed, Ok(Some(true)));
}

fn remove_at_random_and_propagate(
    access: &mut Access<'_>,
    args: &Args<'_>,
    _: &mut Reply<'_>,
    chance: Chance,
) -> Option<Propagated> {
    remove_at_random(access, args, chance.draw());
    Some(access.propagate(&[b"SREM", args.at(0), b"m0"]))
}

fn remove_at_random_unstated(
    access: &mut Access<'_>,
    args: &Args<'_>,
    _: &mut Reply<'_>,
    chance: Chance,
) -> Option<Propagated> {
    remove_at_random(access, args, chance.draw());
    None
}

#[test]
fn an_unreported_change_is_detected() {
    for (name, handlers) in [
        ("packed", [add_few as KeyedHandler, remove_unreported]),
        ("on the heap", [add_many, remove_unreported]),
        ("a string", [fail_to_append, append_unreported]),
        ("bytes in place", [store_string, set_bytes_unreported]),
        ("bytes of a new key", [fail_to_append, set_bytes_unreported]),
    ] {
        let panic = panic_of(&keyspace(), &handlers);
        assert_eq!(panic.contains(change::UNREPORTED_CHANGE), cfg!(debug_assertions), "{name}: {panic}");
    }
    assert_eq!(panic_of(&keyspace(), &[add_few, look_by_changing]), "");
    assert_eq!(panic_of(&keyspace(), &[add_many, look_by_changing]), "");
}

#[test]
fn an_undetermined_change_must_be_stated() {
    let keyspace = keyspace();
    let (add, unstated) = (Handler::Keyed(add_few), Handler::Undetermined(remove_at_random_unstated));
    assert_eq!(panic_of_handlers(&keyspace, Flags::WRITE, &[add, unstated]), "", "the journal is off");
    keyspace.tuning.set_journaled(true);
    let stated = Handler::Undetermined(remove_at_random_and_propagate);
    assert_eq!(panic_of_handlers(&keyspace, Flags::WRITE, &[add, stated]), "");
    let panic = panic_of_handlers(&keyspace, Flags::WRITE, &[add, unstated]);
    assert_eq!(panic.contains(change::UNSTATED_CHANGE), cfg!(debug_assertions), "{panic}");
}

#[test]
fn a_command_that_changes_keys_must_declare_it() {
    let keyspace = keyspace();
    keyspace.tuning.set_journaled(true);
    let add = [Handler::Keyed(add_few)];
    assert_eq!(panic_of_handlers(&keyspace, Flags::MAY_REPLICATE, &add), "");
    let panic = panic_of_handlers(&keyspace, Flags::READONLY, &add);
    assert_eq!(panic.contains(change::UNDECLARED_CHANGE), cfg!(debug_assertions), "{panic}");
}

fn roll_back_a_change(access: &mut Access<'_>, args: &Args<'_>, _: &mut Reply<'_>) {
    let key = key(access, args);
    let reader = reader();
    let tracked = |access: &mut Access<'_>| {
        let tracked = &HeldShards::shard(access, key.place.shard).observers.tracked;
        (tracked.len(), tracked.readers(), tracked.has_pending())
    };
    HeldShards::shard(access, key.place.shard).observers.tracked.read(key.place.hash, key.bytes, &reader);
    let before = (access.db(&key).changes().get(), tracked(access));
    let mut undo = Undo::default();
    for run in [add_few as KeyedHandler, store_string] {
        undo.note(access, &key).expect("a small value");
        run(access, args, &mut Reply::new(&mut Vec::new(), Version::Resp2));
        assert_eq!(tracked(access), (0, 0, true));
        undo.roll_back(access);
        assert_eq!((access.db(&key).changes().get(), tracked(access)), before);
    }
    // An invalidation that was pending before the run remains.
    add(access, args, 2);
    undo.note(access, &key).expect("a small value");
    add(access, args, 3);
    undo.roll_back(access);
    assert_eq!(tracked(access), (0, 0, true));
    access.db(&key).remove(&key, false);
}

fn reader() -> Arc<Reader> {
    let end = || Endpoint::Unix(String::new());
    Arc::new(Reader::new(&Arc::new(Client::new(1, Listener::default(), 0, end(), end(), 0))))
}

#[test]
fn a_rollback_restores_statistics_and_tracking() {
    let keyspace = keyspace();
    run(
        &keyspace,
        Flags::WRITE,
        &[Handler::Keyed(store_string), Handler::Keyed(delete), Handler::Keyed(roll_back_a_change)],
    );
}

fn delete(access: &mut Access<'_>, args: &Args<'_>, _: &mut Reply<'_>) {
    let key = key(access, args);
    access.db(&key).remove(&key, false);
}

fn store_with_ttl(access: &mut Access<'_>, args: &Args<'_>, _: &mut Reply<'_>) {
    let (key, change) = (key(access, args), Change::event(&Event(EventClass::String, "set")));
    let expire = Expire::At(NOW_MS + 1000);
    let mut db = access.db(&key);
    assert_eq!(db.set_string(&key, NewString::Bytes(b"x"), expire, change), Ok(()));
    // Sets the statistics as active expiry does.
    db.db_stats.ttl_sum_ms.set(1000);
    db.db_stats.ttl_samples.set(1);
}

fn flush(access: &mut Access<'_>, _: &Args<'_>, _: &mut Reply<'_>) {
    access.flush(0..1, false);
}

fn add_other_ttl(access: &mut Access<'_>, args: &Args<'_>, _: &mut Reply<'_>) {
    let (key, change) = (key(access, args), Change::event(&Event(EventClass::String, "set")));
    let expire = Expire::At(NOW_MS + 2000);
    assert_eq!(access.db(&key).set_string(&key, NewString::Bytes(b"x"), expire, change), Ok(()));
}

#[test]
fn the_average_ttl_of_no_keys_is_zero() {
    for remove in [delete as KeyedHandler, flush, store_string] {
        let keyspace = keyspace();
        run(&keyspace, Flags::WRITE, &[Handler::Keyed(store_with_ttl)]);
        assert_eq!(keyspace.average_ttl_ms(0), 1000);
        run(&keyspace, Flags::WRITE, &[Handler::Keyed(remove)]);
        assert_eq!(keyspace.average_ttl_ms(0), 0);
    }
    // After a flush, the former average must not return with the next TTL.
    let keyspace = keyspace();
    run(
        &keyspace,
        Flags::WRITE,
        &[Handler::Keyed(store_with_ttl), Handler::Keyed(flush), Handler::Keyed(add_other_ttl)],
    );
    assert_eq!(keyspace.average_ttl_ms(0), 0);
}

#[test]
fn a_change_keeps_its_events_in_order() {
    let names = |change: &Change| change.event_names();
    let change = Change::event(&Event(EventClass::Stream, "xadd")).and(&Event(EventClass::Stream, "xtrim"));
    assert_eq!(names(&change.of_new_key(true).of_deleted_key(true)), ["new", "xadd", "xtrim", "del"]);
    assert_eq!(names(&Change::fields_found_expired().of_deleted_key(true)), ["hexpired", "del"]);
    assert!(Change::event(&Event(EventClass::Set, "sadd")).when(false).is_none());
}
