//! Handlers of commands, and the shards that they need.
//!
//! The signature of a handler has types of higher layers, on which this module must not depend. So
//! each kind of handler has a trait ([`Keyed`], [`Local`]) with these types as associated types.
//! The higher layers implement both traits for [`Handlers`]. A handler is still a plain function
//! pointer.

use pantala_resp::{Args, Reply};

use super::SessionView;

/// The types that keyed handlers use. Implemented by the layer that defines these types.
pub trait Keyed {
    /// The shards that the command holds, and their data.
    type Access<'a>;
    /// The keyspace, which determines the shard of a key.
    type Keyspace;
}

/// The types that local handlers use. Implemented by the layer that defines these types.
pub trait Local {
    /// The connection, and the server around it.
    type Context<'a>;
}

/// The only implementor of [`Keyed`] and [`Local`].
pub struct Handlers;

/// A handler that runs a command while the shards of its route are held.
pub type KeyedHandler = fn(&mut <Handlers as Keyed>::Access<'_>, &Args<'_>, &mut Reply<'_>);
/// A handler of a command whose change is not determined by its arguments and the dataset alone.
/// Its change also depends on random numbers, on the clock, on floating-point arithmetic, or on the
/// moment at which a blocked client is served. A replica that runs the same command may therefore
/// change its dataset differently. So the handler states what is propagated: it returns a
/// [`Propagated`], or `None` if it has changed nothing.
pub type UndeterminedHandler =
    fn(&mut <Handlers as Keyed>::Access<'_>, &Args<'_>, &mut Reply<'_>, Chance) -> Option<Propagated>;

/// Proof that a handler has stated the propagated form of its change. Only
/// [`Access::propagate`](crate::access::Access::propagate),
/// [`Access::propagate_verbatim`](crate::access::Access::propagate_verbatim) and
/// [`Access::propagate_nothing`](crate::access::Access::propagate_nothing) return it.
///
/// A handler that forgets the propagated form does not compile:
///
/// ```compile_fail,E0308
/// use pantala_engine::access::Access;
/// use pantala_engine::command::{Chance, Handler, Propagated};
/// use pantala_resp::{Args, Reply};
///
/// fn pop(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, chance: Chance) {
///     let index = access.random(&access.first_key(args, 1), chance.draw()).below(10);
///     reply.integer(index as i64);
/// }
///
/// const POP: Handler = Handler::Undetermined(pop);
/// ```
///
/// A handler that draws a random number and propagates the client's command does not compile
/// either:
///
/// ```compile_fail,E0382
/// use pantala_engine::access::Access;
/// use pantala_engine::command::{Chance, Propagated};
/// use pantala_resp::Args;
///
/// fn pop(access: &mut Access<'_>, args: &Args<'_>, chance: Chance) -> Option<Propagated> {
///     let _ = access.random(&access.first_key(args, 1), chance.draw());
///     Some(access.propagate_verbatim(chance))
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Propagated(pub(crate) ());

/// Lets an [`UndeterminedHandler`] either draw random numbers ([`Chance::draw`]) or have its
/// command propagated as the client sent it
/// ([`Access::propagate_verbatim`](crate::access::Access::propagate_verbatim)). Both functions
/// consume the `Chance`, so a handler can call only one of them.
#[derive(Debug)]
pub struct Chance(pub(crate) ());

impl Chance {
    /// Allows the handler to draw random numbers.
    #[inline]
    pub fn draw(self) -> Drawn {
        Drawn(())
    }
}

/// Permission to draw random numbers. See [`Chance`].
#[derive(Clone, Copy, Debug)]
pub struct Drawn(());

/// The reason why a change is not propagated as the client's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Omission {
    /// The handler has passed other commands, or none, to
    /// [`Access::propagate`](crate::access::Access::propagate). They replace the client's command.
    Replaced,
    /// The journal was off when the handler decided whether to record its change. If the journal is
    /// turned on before the command ends, its readers start after this command.
    Unrecorded,
    /// The dataset was replaced by that of a file or a primary.
    Loaded,
    /// The command is for tests, and Redis does not propagate its change either (`DEBUG POPULATE`).
    Debug,
}

/// A handler that runs a command on the connection's worker. It accesses no shard, even if a
/// transaction holds shards for the command.
pub type LocalHandler = fn(&mut <Handlers as Local>::Context<'_>, &Args<'_>, &mut Reply<'_>);

/// Determines the shards that a call needs. Appends their numbers to the last argument, in any
/// order and possibly with duplicates.
pub type ShardChoice = fn(&<Handlers as Keyed>::Keyspace, &SessionView, &Args<'_>, &mut Vec<u32>);

/// The handler of a command.
#[derive(Clone, Copy)]
pub enum Handler {
    /// Runs while the shards of [`Command::route`](super::Command::route) are held.
    Keyed(KeyedHandler),
    /// Runs like [`Handler::Keyed`], and must state what is propagated.
    Undetermined(UndeterminedHandler),
    /// Runs without access to a shard.
    Local(LocalHandler),
    /// Runs on the connection's worker with shards that it determines itself.
    Transaction(TransactionPart),
    /// The command has no handler of its own. Only its subcommands run.
    Container,
}

/// Commands that need the session and shards at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionPart {
    /// `WATCH`.
    Watch,
    /// `EXEC`.
    Exec,
    /// `EVAL` and its variants.
    Script(ScriptForm),
}

/// How a command identifies its script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptReference {
    /// By its text (`EVAL`).
    Text,
    /// By its SHA-1 (`EVALSHA`).
    Sha,
    /// By its name in a library (`FCALL`).
    Function,
}

/// The form of a command that runs a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptForm {
    /// How the command identifies the script.
    pub named: ScriptReference,
    /// Whether the script must not write (`EVAL_RO`).
    pub is_read_only: bool,
}

/// The shards that a command needs.
#[derive(Clone, Copy)]
pub enum Route {
    /// No shards ([`Handler::Local`]), or shards that the worker determines
    /// ([`Handler::Transaction`]).
    None,
    /// The shards of the call's keys, by [`Command::key_specs`](super::Command::key_specs).
    Keys,
    /// All shards.
    All,
    /// Shards chosen by a function.
    Custom(ShardChoice),
}
