//! `ACL`: manages users and their permissions. The engine parses rules, checks permissions and
//! keeps the log of denied calls ([`pantala_engine::acl`]).

use std::sync::{Arc, LazyLock};

use pantala_engine::acl::{Catalog, LogEntry, SelectorText, User, dry_run_text};
use pantala_engine::client::{Awaited, Client, FileCommand, LocalContext};
use pantala_engine::command::Acl;
use pantala_engine::keyspace::Keyspace;
use pantala_resp::{Args, Reply};

use crate::arguments::{c_string, integer, is_option, shown, wrong_subcommand};
use crate::records::{COMMANDS, Unresolved, absent, resolve, resolve_as};
use crate::{client, help};

/// Default number of bits of a password from `ACL GENPASS`.
const PASSWORD_BITS: i64 = 256;
/// Maximum number of bits of a password from `ACL GENPASS`.
const PASSWORD_BITS_MAX: i64 = 4096;

/// Number of entries that `ACL LOG` returns by default.
const LOG_ENTRIES: i64 = 10;

static CATALOG: LazyLock<Catalog> = LazyLock::new(|| Catalog::new(COMMANDS, absent()));

/// Returns the catalog of the commands that ACL rules may name.
pub fn catalog() -> &'static Catalog {
    &CATALOG
}

/// Sets the catalog of the commands that ACL rules may name. The catalog contains the commands of
/// this crate, and those commands of Redis 7.0 that this crate does not implement. Must be called
/// before the first client connects.
pub fn set_catalog(keyspace: &mut Keyspace) {
    keyspace.set_catalog(&CATALOG, client::line);
}

/// `ACL CAT [category]`.
pub fn cat(_: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(wanted) = args.get(2) else {
        reply.array(Acl::NAMES.len());
        return Acl::NAMES.iter().for_each(|name| reply.bulk(name.as_bytes()));
    };
    if args.len() > 3 {
        return wrong_subcommand(args, reply);
    }
    match Acl::by_name(wanted) {
        Some(category) => {
            let names: Vec<_> = CATALOG.names_in(category).collect();
            reply.array(names.len());
            names.iter().for_each(|name| reply.bulk(name.as_bytes()));
        }
        None => {
            reply.error_bytes(&[b"ERR Unknown category '", shown(wanted), b"'"].concat());
        }
    }
}

/// `ACL SETUSER username [rule …]`.
pub fn setuser(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let rules: Vec<&[u8]> = args.iter().skip(3).collect();
    match context.keyspace.users().set(args.at(2), &rules) {
        Ok(revoked) => {
            if let Some(revoked) = revoked {
                let closed = context.keyspace.subscribers_without_permission(&revoked);
                close(context, closed.iter());
            }
            reply.ok();
        }
        Err(error) => reply.error_bytes(&[b"ERR ", error.as_slice()].concat()),
    }
}

/// `ACL DELUSER username [username …]`.
pub fn deluser(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let names: Vec<&[u8]> = args.iter().skip(2).collect();
    if names.contains(&pantala_engine::acl::DEFAULT_USER) {
        return reply.error("ERR The 'default' user cannot be removed");
    }
    let deleted = context.keyspace.users().delete(&names);
    close_clients_of(context, &deleted);
    reply.integer(deleted.len() as i64);
}

/// Closes the connections of users.
fn close_clients_of(context: &mut LocalContext<'_>, users: &[Arc<User>]) {
    if users.is_empty() {
        return;
    }
    let clients = context.keyspace.clients().all();
    close(context, clients.iter().filter(|client| users.iter().any(|user| client.is_user(user))));
}

/// Closes connections. The caller's own connection closes after its reply.
fn close<'c>(context: &mut LocalContext<'_>, clients: impl Iterator<Item = &'c Arc<Client>>) {
    for client in clients {
        if client.id == context.session.client.id {
            context.session.close_after_reply = true;
        } else {
            context.host.kill(client);
        }
    }
}

/// `ACL GETUSER username`.
pub fn getuser(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(user) = context.keyspace.users().find(args.at(2)) else { return reply.null() };
    let rules = user.rules();
    reply.map(6);
    reply.bulk(b"flags");
    let flags = rules.flags();
    reply.set(flags.len());
    flags.iter().for_each(|flag| reply.bulk(flag.as_bytes()));
    reply.bulk(b"passwords");
    let hashes = rules.password_hashes();
    reply.array(hashes.len());
    hashes.for_each(|hash| reply.bulk(hash.as_bytes()));
    let mut selectors = rules.selector_texts();
    if let Some(root) = selectors.next() {
        write_selector(&root, reply);
    }
    reply.bulk(b"selectors");
    reply.array(selectors.len());
    for selector in selectors {
        reply.map(3);
        write_selector(&selector, reply);
    }
}

fn write_selector(selector: &SelectorText, reply: &mut Reply<'_>) {
    let fields = [("commands", &selector.commands), ("keys", &selector.keys), ("channels", &selector.channels)];
    for (name, value) in fields {
        reply.bulk(name.as_bytes());
        reply.bulk(value);
    }
}

/// `ACL LIST`.
pub fn list(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    let lines = context.keyspace.users().lines();
    reply.array(lines.len());
    lines.iter().for_each(|line| reply.bulk(line));
}

/// `ACL USERS`.
pub fn users(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    let users = context.keyspace.users().all();
    reply.array(users.len());
    users.iter().for_each(|user| reply.bulk(user.name()));
}

/// `ACL WHOAMI`.
pub fn whoami(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    reply.bulk(context.session.user().name());
}

/// `ACL LOAD`: applies the whole file, or nothing if the file has an error. Only in a transaction,
/// the calling thread reads the file.
pub fn load(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    if !context.session.in_exec {
        context.session.awaits = Some(Awaited::Files(FileCommand::AclLoad));
        return;
    }
    match context.host.load_acl_file() {
        Ok(former) => {
            close_clients_of(context, &former);
            reply.ok();
        }
        Err(error) => reply.error(&error),
    }
}

/// `ACL SAVE`. Only in a transaction, the calling thread writes the file.
pub fn save(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    if !context.session.in_exec {
        context.session.awaits = Some(Awaited::Files(FileCommand::AclSave));
        return;
    }
    match context.host.save_acl_file() {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(&error),
    }
}

/// `ACL GENPASS [bits]`.
pub fn genpass(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if args.len() > 3 {
        return wrong_subcommand(args, reply);
    }
    let bits = match args.get(2).map(|bits| integer(bits, reply)) {
        None => PASSWORD_BITS,
        Some(Some(bits)) => bits,
        Some(None) => return,
    };
    if !(1..=PASSWORD_BITS_MAX).contains(&bits) {
        return reply.error(&format!(
            "ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to {PASSWORD_BITS_MAX}"
        ));
    }
    let digits = bits.unsigned_abs().div_ceil(4) as usize;
    let mut bytes = vec![0; digits.div_ceil(2)];
    if !context.host.fill_random(&mut bytes) {
        return reply.error("ERR The system cannot provide random numbers");
    }
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    reply.bulk(&text.as_bytes()[..digits]);
}

/// `ACL LOG [count | RESET]`.
pub fn log(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if args.len() > 3 {
        return wrong_subcommand(args, reply);
    }
    let users = context.keyspace.users();
    let count = match args.get(2) {
        None => LOG_ENTRIES,
        Some(word) if is_option(word, "RESET") => {
            users.clear_log();
            return reply.ok();
        }
        Some(count) => match integer(count, reply) {
            Some(count) => count,
            None => return,
        },
    };
    let entries = users.log(usize::try_from(count).unwrap_or(0));
    let now_ms = context.host.now_us().div_euclid(1000);
    reply.array(entries.len());
    for entry in &entries {
        write_entry(entry, now_ms, reply);
    }
}

fn write_entry(entry: &LogEntry, now_ms: i64, reply: &mut Reply<'_>) {
    reply.map(7);
    reply.bulk(b"count");
    reply.integer(entry.count as i64);
    let texts: [(&str, &[u8]); 4] = [
        ("reason", entry.reason.name().as_bytes()),
        ("context", entry.context.name().as_bytes()),
        ("object", &entry.object),
        ("username", &entry.user_name),
    ];
    for (name, value) in texts {
        reply.bulk(name.as_bytes());
        reply.bulk(value);
    }
    reply.bulk(b"age-seconds");
    reply.double((now_ms - entry.at_ms).max(0) as f64 / 1000.0);
    reply.bulk(b"client-info");
    reply.bulk(&entry.client_info);
}

/// `ACL DRYRUN username command [arg …]`.
pub fn dryrun(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(user) = context.keyspace.users().find(args.at(2)) else {
        return reply.error_bytes(&[b"ERR User '", c_string(args.at(2)), b"' not found"].concat());
    };
    let (rules, call) = (user.rules(), args.tail(3));
    let resolved = match context.host.command(call.at(0)) {
        Some(command) => resolve_as(command, &call),
        // The host finds no command with this name. If `rename-command` has renamed or removed a
        // command with this original name, it counts as unknown too.
        None => match resolve(&call) {
            Ok(_) | Err(Unresolved::WrongArity(_)) => Err(Unresolved::Unknown),
            unknown => unknown,
        },
    };
    match resolved {
        Ok(command) => match rules.check(command, &call) {
            Ok(()) => reply.ok(),
            Err(denied) => {
                let argument = denied.argument().map_or(&b""[..], |index| call.at(index));
                reply.bulk(&dry_run_text(denied, command.shown_name(), argument));
            }
        },
        Err(Unresolved::WrongArity(command)) => {
            reply.error(&format!("ERR wrong number of arguments for '{}' command", command.shown_name()));
        }
        Err(Unresolved::Unimplemented(command)) => match rules.allows_absent(command.full_name().as_bytes()) {
            Some(true) => reply.ok(),
            _ => reply.bulk(&dry_run_text(pantala_engine::acl::Denied::Command, command.full_name(), b"")),
        },
        Err(Unresolved::Unknown | Unresolved::UnknownSubcommand) => {
            reply.error_bytes(&[b"ERR Command '", c_string(call.at(0)), b"' not found"].concat());
        }
    }
}

/// `ACL HELP`.
pub fn help(_: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    help::write(
        reply,
        args,
        &[
            "CAT [<category>]",
            "    Return the command categories, or the commands of one category.",
            "DELUSER <username> [<username> ...]",
            "    Delete users and close their connections.",
            "DRYRUN <username> <command> [<arg> ...]",
            "    Check whether a user may run a command, without running it.",
            "GENPASS [<bits>]",
            "    Return a random password of 256 bits, or of <bits> bits.",
            "GETUSER <username>",
            "    Return the rules of a user.",
            "LIST",
            "    Return all users with their rules, as lines of an ACL file.",
            "LOAD",
            "    Load the users from the ACL file. If it has an error, nothing changes.",
            "LOG [<count> | RESET]",
            "    Return the latest denied calls and logins, or delete these entries.",
            "SAVE",
            "    Write the users to the ACL file.",
            "SETUSER <username> [<rule> ...]",
            "    Create a user, or change its rules.",
            "USERS",
            "    Return the names of all users.",
            "WHOAMI",
            "    Return the user of this connection.",
        ],
    );
}

#[cfg(test)]
mod tests {
    use pantala_engine::client::{Awaited, FileCommand};

    use crate::testing_host::LocalTest;

    #[test]
    fn only_transactions_access_the_file_at_once() {
        let mut test = LocalTest::new();
        for (words, command) in [("ACL LOAD", FileCommand::AclLoad), ("ACL SAVE", FileCommand::AclSave)] {
            assert_eq!(test.run(words), "");
            assert_eq!(test.session.awaits.take(), Some(Awaited::Files(command)));
        }
        assert!(test.take_calls().is_empty());
        test.session.in_exec = true;
        test.expect(&[("ACL LOAD", "+OK|"), ("ACL SAVE", "+OK|")]);
        assert_eq!(test.take_calls(), ["load users", "save users"]);
        test.host.error = "ERR no";
        test.expect(&[("ACL LOAD", "-ERR no|"), ("ACL SAVE", "-ERR no|")]);
    }
}
