//! Pub/sub: `SUBSCRIBE` and its variants, `PUBLISH`, `PUBSUB`.

use pantala_base::glob;
use pantala_engine::client::LocalContext;
use pantala_engine::pubsub::{Kind, Name};
use pantala_resp::{Args, Reply};

use crate::arguments::wrong_subcommand;
use crate::help;

/// `SUBSCRIBE channel [channel …]`.
pub fn subscribe(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    add_subscriptions(context, args, Kind::Channel, "subscribe", reply);
}

/// `PSUBSCRIBE pattern [pattern …]`.
pub fn psubscribe(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    add_subscriptions(context, args, Kind::Pattern, "psubscribe", reply);
}

/// `SSUBSCRIBE shardchannel [shardchannel …]`.
pub fn ssubscribe(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if context.session.in_exec {
        return reply.error("ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client");
    }
    add_subscriptions(context, args, Kind::Shard, "ssubscribe", reply);
}

/// `UNSUBSCRIBE [channel …]`.
pub fn unsubscribe(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    remove_subscriptions(context, args, Kind::Channel, "unsubscribe", reply);
}

/// `PUNSUBSCRIBE [pattern …]`.
pub fn punsubscribe(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    remove_subscriptions(context, args, Kind::Pattern, "punsubscribe", reply);
}

/// `SUNSUBSCRIBE [shardchannel …]`.
pub fn sunsubscribe(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    remove_subscriptions(context, args, Kind::Shard, "sunsubscribe", reply);
}

/// Adds subscriptions, and replies once for each.
fn add_subscriptions(context: &mut LocalContext<'_>, args: &Args<'_>, kind: Kind, verb: &str, reply: &mut Reply<'_>) {
    let listener = context.session.listener();
    let subscriptions = context.session.subscriptions.get_or_insert_default();
    for name in args.iter().skip(1) {
        context.keyspace.pubsub().subscribe(subscriptions, listener, kind, name);
        confirm(verb, Some(name), subscriptions.counted_subscriptions(kind), reply);
    }
    context.session.publish_subscriptions();
    // A thread that revokes permissions searches for subscriptions that are no longer allowed.
    // After this point, it finds the new ones. But it may have searched before they were
    // registered, so the permissions are checked again.
    if !context.session.has_followed(context.keyspace.users().epoch_after())
        && args.iter().skip(1).any(|name| !context.session.allows_channel(name, kind == Kind::Pattern))
    {
        context.session.close_after_reply = true;
    }
}

/// Removes the named subscriptions, or all of the kind if none is named. Replies once for each.
fn remove_subscriptions(
    context: &mut LocalContext<'_>,
    args: &Args<'_>,
    kind: Kind,
    verb: &str,
    reply: &mut Reply<'_>,
) {
    let listener = context.session.listener();
    let subscriptions = context.session.subscriptions.get_or_insert_default();
    let pubsub = context.keyspace.pubsub();
    if args.len() == 1 {
        let all: Vec<Name> = subscriptions.names(kind).iter().cloned().collect();
        if all.is_empty() {
            confirm(verb, None, subscriptions.counted_subscriptions(kind), reply);
        }
        for name in all {
            pubsub.unsubscribe(subscriptions, listener, kind, &name);
            confirm(verb, Some(&name), subscriptions.counted_subscriptions(kind), reply);
        }
    }
    for name in args.iter().skip(1) {
        pubsub.unsubscribe(subscriptions, listener, kind, name);
        confirm(verb, Some(name), subscriptions.counted_subscriptions(kind), reply);
    }
    if subscriptions.is_empty() {
        context.session.subscriptions = None;
    }
    context.session.publish_subscriptions();
}

fn confirm(verb: &str, name: Option<&[u8]>, count: usize, reply: &mut Reply<'_>) {
    reply.push(3);
    reply.bulk(verb.as_bytes());
    match name {
        Some(name) => reply.bulk(name),
        None => reply.null(),
    }
    reply.integer(count as i64);
}

/// `PUBLISH channel message`.
pub fn publish(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let pubsub = context.keyspace.pubsub();
    reply.integer(pubsub.publish(context.keyspace, Kind::Channel, args.at(1), args.at(2)) as i64);
}

/// `SPUBLISH shardchannel message`.
pub fn spublish(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let pubsub = context.keyspace.pubsub();
    reply.integer(pubsub.publish(context.keyspace, Kind::Shard, args.at(1), args.at(2)) as i64);
}

/// `PUBSUB CHANNELS [pattern]`.
pub fn channels(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    list(context, args, Kind::Channel, reply);
}

/// `PUBSUB SHARDCHANNELS [pattern]`.
pub fn shard_channels(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    list(context, args, Kind::Shard, reply);
}

fn list(context: &LocalContext<'_>, args: &Args<'_>, kind: Kind, reply: &mut Reply<'_>) {
    if args.len() > 3 {
        return wrong_subcommand(args, reply);
    }
    let mut names = context.keyspace.pubsub().channels(kind);
    if let Some(pattern) = args.get(2) {
        names.retain(|name| glob::matches(pattern, name, false));
    }
    reply.array(names.len());
    names.iter().for_each(|name| reply.bulk(name));
}

/// `PUBSUB NUMSUB [channel …]`.
pub fn numsub(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    count(context, args, Kind::Channel, reply);
}

/// `PUBSUB SHARDNUMSUB [shardchannel …]`.
pub fn shard_numsub(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    count(context, args, Kind::Shard, reply);
}

fn count(context: &LocalContext<'_>, args: &Args<'_>, kind: Kind, reply: &mut Reply<'_>) {
    reply.array((args.len() - 2) * 2);
    for name in args.iter().skip(2) {
        reply.bulk(name);
        reply.integer(context.keyspace.pubsub().listeners(kind, name) as i64);
    }
}

/// `PUBSUB NUMPAT`.
pub fn numpat(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    reply.integer(context.keyspace.pubsub().pattern_count() as i64);
}

/// `PUBSUB HELP`.
pub fn help(_: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    help::write(
        reply,
        args,
        &[
            "CHANNELS [<pattern>]",
            "    Return the channels with subscribers that match the pattern (default: all).",
            "NUMPAT",
            "    Return the number of subscribed patterns.",
            "NUMSUB [<channel> ...]",
            "    Return the number of subscribers of each channel, without patterns.",
            "SHARDCHANNELS [<pattern>]",
            "    Return the shard channels with subscribers that match the pattern (default: all).",
            "SHARDNUMSUB [<shardchannel> ...]",
            "    Return the number of subscribers of each shard channel.",
        ],
    );
}
