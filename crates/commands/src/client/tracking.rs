//! `CLIENT TRACKING` and related subcommands. [`pantala_engine::tracking`] describes the mechanism.

use std::sync::Arc;

use pantala_engine::client::{Client, LocalContext};
use pantala_engine::tracking::Options;
use pantala_resp::{Args, Reply};

use crate::arguments::{c_string, integer, is_option};
use crate::errors;

const ONE_REDIRECT: &str = "ERR A client can only redirect to a single other client";
const NO_SUCH_CLIENT: &str = "ERR The client ID you want redirect to does not exist";
const PREFIX_WITHOUT_BCAST: &str = "ERR PREFIX option requires BCAST mode to be enabled";
const SWITCHES_BCAST: &str = "ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then re-enabling it with a different mode.";
const OPT_WITH_BCAST: &str = "ERR OPTIN and OPTOUT are not compatible with BCAST";
const BOTH_OPT: &str = "ERR You can't specify both OPTIN mode and OPTOUT mode";
const SWITCHES_OPT: &str = "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then re-enabling it with a different mode.";
const NOT_TRACKING: &str =
    "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled";
const NOT_OPT_IN: &str = "ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.";
const NOT_OPT_OUT: &str = "ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.";

/// The options of `CLIENT TRACKING`.
#[derive(Default)]
struct Request<'a> {
    options: Options,
    redirect: Option<Arc<Client>>,
    prefixes: Vec<&'a [u8]>,
}

impl<'a> Request<'a> {
    /// Parses the options. Replies with an error and returns `None` if they are invalid.
    fn parse(context: &LocalContext<'_>, args: &Args<'a>, reply: &mut Reply<'_>) -> Option<Self> {
        const FLAGS: [(&str, Options); 4] = [
            ("BCAST", Options::BROADCAST),
            ("OPTIN", Options::OPT_IN),
            ("OPTOUT", Options::OPT_OUT),
            ("NOLOOP", Options::NO_LOOP),
        ];
        let mut request = Request::default();
        let mut index = 3;
        while let Some(option) = args.get(index) {
            let value = args.get(index + 1);
            index += 1;
            if let Some(value) = value.filter(|_| is_option(option, "REDIRECT")) {
                index += 1;
                request.set_redirect(context, value, reply)?;
            } else if let Some(value) = value.filter(|_| is_option(option, "PREFIX")) {
                index += 1;
                request.prefixes.push(value);
            } else if let Some((_, flag)) = FLAGS.iter().find(|(name, _)| is_option(option, name)) {
                request.options |= *flag;
            } else {
                reply.error(errors::SYNTAX);
                return None;
            }
        }
        Some(request)
    }

    fn set_redirect(&mut self, context: &LocalContext<'_>, value: &[u8], reply: &mut Reply<'_>) -> Option<()> {
        if self.redirect.is_some() {
            reply.error(ONE_REDIRECT);
            return None;
        }
        let id = integer(value, reply)?;
        self.redirect = u64::try_from(id).ok().and_then(|id| context.host.clients().find(id));
        if self.redirect.is_none() {
            reply.error(NO_SUCH_CLIENT);
        }
        self.redirect.as_ref().map(|_| ())
    }

    /// Returns an error if the options contradict each other or the client's current options.
    fn conflict(&self, context: &LocalContext<'_>) -> Option<Vec<u8>> {
        let (new, tracking) = (self.options, context.session.tracking.as_ref());
        let old = tracking.map_or(Options::empty(), |tracking| tracking.options);
        let error = if !new.contains(Options::BROADCAST) && !self.prefixes.is_empty() {
            PREFIX_WITHOUT_BCAST
        } else if tracking.is_some() && (old ^ new).contains(Options::BROADCAST) {
            SWITCHES_BCAST
        } else if new.contains(Options::BROADCAST) && new.intersects(Options::OPT_IN | Options::OPT_OUT) {
            OPT_WITH_BCAST
        } else if new.contains(Options::OPT_IN | Options::OPT_OUT) {
            BOTH_OPT
        } else if new.contains(Options::OPT_IN) && old.contains(Options::OPT_OUT)
            || new.contains(Options::OPT_OUT) && old.contains(Options::OPT_IN)
        {
            SWITCHES_OPT
        } else {
            return self.collision(context);
        };
        Some(error.as_bytes().to_vec())
    }

    /// Returns an error if two prefixes overlap, that is, if a key could start with both. Compares
    /// the given prefixes with each other and with the client's existing ones.
    fn collision(&self, context: &LocalContext<'_>) -> Option<Vec<u8>> {
        let overlap = |one: &[u8], other: &[u8]| one.starts_with(other) || other.starts_with(one);
        for (at, &prefix) in self.prefixes.iter().enumerate() {
            let mut existing = context.session.tracking.iter().flat_map(|tracking| &tracking.prefixes);
            if let Some(existing) = existing.find(|existing| overlap(existing, prefix)) {
                return Some(overlapping(prefix, b"an existing prefix", existing));
            }
            if let Some(other) = self.prefixes[at + 1..].iter().find(|other| overlap(prefix, other)) {
                return Some(overlapping(prefix, b"another provided prefix", other));
            }
        }
        None
    }
}

fn overlapping(prefix: &[u8], what: &[u8], other: &[u8]) -> Vec<u8> {
    let parts: [&[u8]; 7] = [
        b"ERR Prefix '",
        c_string(prefix),
        b"' overlaps with ",
        what,
        b" '",
        c_string(other),
        b"'. Prefixes for a single client must not overlap.",
    ];
    parts.concat()
}

/// `CLIENT TRACKING ON | OFF [REDIRECT client-id] [PREFIX prefix …] [BCAST] [OPTIN] [OPTOUT]
/// [NOLOOP]`.
pub fn tracking(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(request) = Request::parse(context, args, reply) else { return };
    if is_option(args.at(2), "ON") {
        if let Some(error) = request.conflict(context) {
            return reply.error_bytes(&error);
        }
        context.session.track(context.keyspace, request.options, request.redirect, &request.prefixes);
    } else if is_option(args.at(2), "OFF") {
        context.session.untrack(context.keyspace);
    } else {
        return reply.error(errors::SYNTAX);
    }
    reply.ok();
}

/// `CLIENT CACHING YES | NO`: applies to the next command.
pub fn caching(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(tracking) = &context.session.tracking else { return reply.error(NOT_TRACKING) };
    let (wanted, error) = if is_option(args.at(2), "YES") {
        (Options::OPT_IN, NOT_OPT_IN)
    } else if is_option(args.at(2), "NO") {
        (Options::OPT_OUT, NOT_OPT_OUT)
    } else {
        return reply.error(errors::SYNTAX);
    };
    if !tracking.options.contains(wanted) {
        return reply.error(error);
    }
    context.session.set_caching(true);
    reply.ok();
}

/// Returns the ID of the client that receives the invalidations: 0 if it is this client, -1 if
/// tracking is off.
fn redirect(context: &LocalContext<'_>) -> i64 {
    context.session.tracking.as_ref().map_or(-1, |tracking| tracking.redirect() as i64)
}

/// `CLIENT GETREDIR`.
pub fn getredir(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    reply.integer(redirect(context));
}

/// `CLIENT TRACKINGINFO`.
pub fn trackinginfo(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    let (session, redirect) = (&context.session, redirect(context));
    let options = session.tracking.as_ref().map_or(Options::empty(), |tracking| tracking.options);
    let words = [
        ("bcast", options.contains(Options::BROADCAST)),
        ("optin", options.contains(Options::OPT_IN)),
        ("caching-yes", options.contains(Options::OPT_IN) && session.caching),
        ("optout", options.contains(Options::OPT_OUT)),
        ("caching-no", options.contains(Options::OPT_OUT) && session.caching),
        ("noloop", options.contains(Options::NO_LOOP)),
        ("broken_redirect", options.contains(Options::BROKEN_REDIRECT)),
    ];
    let words: Vec<&str> = words.into_iter().filter_map(|(word, is_set)| is_set.then_some(word)).collect();
    reply.map(3);
    reply.bulk(b"flags");
    reply.set(1 + words.len());
    reply.bulk(if session.tracking.is_some() { b"on" } else { b"off" });
    words.iter().for_each(|word| reply.bulk(word.as_bytes()));
    reply.bulk(b"redirect");
    reply.integer(redirect);
    reply.bulk(b"prefixes");
    let prefixes = session.tracking.iter().flat_map(|tracking| &tracking.prefixes);
    reply.array(prefixes.clone().count());
    prefixes.for_each(|prefix| reply.bulk(prefix));
}
