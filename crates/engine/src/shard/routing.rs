//! The shards that a call needs.

use pantala_resp::Args;

use crate::command::{Command, Route, SessionView, for_each_key};
use crate::shard::keyspace::Keyspace;

/// Adds the shards that a call needs to `shards`, in any order and possibly with duplicates. Adds
/// none if the keys cannot be found because the arguments are invalid. The caller then runs the
/// command on an arbitrary shard, where the handler replies with the error.
pub fn add_shards(
    keyspace: &Keyspace,
    session: &SessionView,
    command: &Command,
    args: &Args<'_>,
    shards: &mut Vec<u32>,
) {
    match command.route {
        Route::Keys => {
            let before = shards.len();
            let found = for_each_key(command, args, |index, _| shards.push(keyspace.place(args.at(index)).shard));
            if found.is_err() {
                shards.truncate(before);
            }
        }
        Route::All => shards.extend(0..keyspace.partition_count()),
        Route::Custom(choose) => choose(keyspace, session, args, shards),
        Route::None => {}
    }
}
