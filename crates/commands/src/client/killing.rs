//! `CLIENT KILL`: marks clients as killed. The worker of each marked client then closes its
//! connection.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pantala_base::number::parse_i64;
use pantala_engine::acl::{User, Users};
use pantala_engine::client::{Client, LocalContext};
use pantala_resp::{Args, Reply};

use super::listing::Kind;
use crate::arguments::{c_string, is_option};
use crate::errors;

/// The options of `CLIENT KILL`. A client is killed if it matches all given options.
#[derive(Default)]
struct Filter<'a> {
    address: Option<&'a [u8]>,
    local_address: Option<&'a [u8]>,
    kind: Option<Kind>,
    id: Option<u64>,
    age_s_min: Option<i64>,
    user: Option<Arc<User>>,
    skip_me: bool,
}

impl<'a> Filter<'a> {
    /// Parses pairs of an option and its value. Replies with an error and returns `None` if they
    /// are invalid.
    fn parse(args: &Args<'a>, users: &Users, reply: &mut Reply<'_>) -> Option<Self> {
        let mut filter = Filter { skip_me: true, ..Filter::default() };
        let mut index = 2;
        while let Some(option) = args.get(index) {
            let Some(value) = args.get(index + 1) else {
                reply.error(errors::SYNTAX);
                return None;
            };
            filter.add(option, value, users, reply)?;
            index += 2;
        }
        Some(filter)
    }

    /// Adds an option. Replies with an error and returns `None` if it is invalid.
    fn add(&mut self, option: &[u8], value: &'a [u8], users: &Users, reply: &mut Reply<'_>) -> Option<()> {
        if is_option(option, "ID") {
            self.id = Some(positive(value, "ERR client-id should be greater than 0", reply)? as u64);
        } else if is_option(option, "TYPE") {
            self.kind = Some(Kind::parse(value, reply)?);
        } else if is_option(option, "ADDR") {
            self.address = Some(value);
        } else if is_option(option, "LADDR") {
            self.local_address = Some(value);
        } else if is_option(option, "USER") {
            let Some(user) = users.find(value) else {
                reply.error_bytes(&[b"ERR No such user '", c_string(value), b"'"].concat());
                return None;
            };
            self.user = Some(user);
        } else if is_option(option, "MAXAGE") {
            self.age_s_min = Some(positive(value, "ERR maxage should be greater than 0", reply)?);
        } else if is_option(option, "SKIPME") && (is_option(value, "YES") || is_option(value, "NO")) {
            self.skip_me = is_option(value, "YES");
        } else {
            reply.error(errors::SYNTAX);
            return None;
        }
        Some(())
    }

    fn matches(&self, client: &Client, now_ms: i64) -> bool {
        let is_at = |wanted: &[u8], endpoint: String| c_string(wanted) == endpoint.as_bytes();
        self.id.is_none_or(|id| id == client.id)
            && self.user.as_ref().is_none_or(|user| client.is_user(user))
            && self.kind.is_none_or(|kind| kind == Kind::of(client))
            && self.age_s_min.is_none_or(|age_s| (now_ms - client.created_ms) / 1000 >= age_s)
            && self.address.is_none_or(|address| is_at(address, client.address.to_string()))
            && self.local_address.is_none_or(|address| is_at(address, client.local_address.to_string()))
    }
}

/// Parses a positive number. Replies with `wrong` and returns `None` if it isn't one.
fn positive(value: &[u8], wrong: &str, reply: &mut Reply<'_>) -> Option<i64> {
    let value = parse_i64(value).filter(|value| *value > 0);
    if value.is_none() {
        reply.error(wrong);
    }
    value
}

/// `CLIENT KILL address`, or `CLIENT KILL` with the options `ID`, `ADDR`, `LADDR`, `TYPE`, `USER`,
/// `MAXAGE` (from Redis 7.4) and `SKIPME`.
pub fn kill(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let by_address = args.len() == 3;
    let filter = if by_address {
        Filter { address: Some(args.at(2)), ..Filter::default() }
    } else {
        match Filter::parse(args, context.keyspace.users(), reply) {
            Some(filter) => filter,
            None => return,
        }
    };
    let killed = kill_matching(context, &filter);
    match (by_address, killed) {
        (true, 0) => reply.error("ERR No such client"),
        (true, _) => reply.ok(),
        (false, _) => reply.integer(killed),
    }
}

/// Kills the matching clients and returns their number. The caller's own connection closes after
/// the reply.
fn kill_matching(context: &mut LocalContext<'_>, filter: &Filter<'_>) -> i64 {
    let me = context.session.client.id;
    let mut killed = 0;
    for client in context.host.clients().all() {
        // A client that was killed before isn't counted again, even if its worker has not closed
        // the connection yet.
        if client.killed.load(Relaxed) || filter.skip_me && client.id == me || !filter.matches(&client, context.now_ms)
        {
            continue;
        }
        if client.id == me {
            context.session.close_after_reply = true;
        } else {
            context.host.kill(&client);
        }
        killed += 1;
    }
    killed
}
