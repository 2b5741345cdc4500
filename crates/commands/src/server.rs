//! Commands that concern the whole server: `BGREWRITEAOF`, `BGSAVE`, `DBSIZE`, `INFO`, `LASTSAVE`,
//! `LOLWUT`, `SAVE`, `SHUTDOWN`, `TIME`.

use pantala_engine::access::Access;
use pantala_engine::client::{AllShards, Awaited, LocalContext, Shutdown};
use pantala_engine::whole::Background;
use pantala_resp::{Args, Reply};

use crate::arguments::{integer, is_option};
use crate::{errors, lolwut};

/// `DBSIZE`.
pub fn dbsize(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    let (keys, _) = context.keyspace.database_size(context.session.db);
    reply.integer(keys as i64);
}

/// `TIME`: the Unix time in seconds, and the microseconds of the current second.
pub fn time(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    const US_PER_S: i64 = 1_000_000;
    let now_us = context.host.now_us();
    reply.array(2);
    reply.bulk_integer(now_us.div_euclid(US_PER_S));
    reply.bulk_integer(now_us.rem_euclid(US_PER_S));
}

/// Runs `SAVE`: holds all shards until the file is on disk.
pub fn save(access: &mut Access<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    match access.keyspace().storage().map(|storage| storage.save(&mut access.whole())) {
        Some(Ok(())) => reply.ok(),
        Some(Err(why)) => reply.error(why),
        None => reply.error("ERR"),
    }
}

/// Runs `BGSAVE [SCHEDULE]`.
pub fn bgsave(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let schedules = match (args.len(), args.get(1)) {
        (1, _) => false,
        (2, Some(option)) if is_option(option, "SCHEDULE") => true,
        _ => return reply.error(errors::SYNTAX),
    };
    match access.keyspace().storage().map(|storage| storage.save_in_background(access, schedules)) {
        Some(Ok(Background::Started)) => reply.simple("Background saving started"),
        Some(Ok(Background::Scheduled)) => reply.simple("Background saving scheduled"),
        Some(Err(why)) => reply.error(why),
        None => reply.error("ERR"),
    }
}

/// Runs `BGREWRITEAOF`.
pub fn bgrewriteaof(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    match context.host.rewrite_append_only_file() {
        Ok(text) => reply.simple(text),
        Err(error) => reply.error(error),
    }
}

/// Runs `LASTSAVE`.
pub fn lastsave(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    reply.integer(context.host.last_save_s());
}

/// `INFO [section ...]`.
pub fn info(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let sections: Vec<String> =
        args.iter().skip(1).map(|name| String::from_utf8_lossy(name).to_ascii_lowercase()).collect();
    reply.verbatim("txt", context.host.info(&sections).as_bytes());
}

/// `LOLWUT [VERSION version]`: draws a new picture of dragonflies on each call. The version is
/// ignored.
pub fn lolwut(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if let (Some(option), Some(version)) = (args.get(1), args.get(2))
        && is_option(option, "VERSION")
        && integer(version, reply).is_none()
    {
        return;
    }
    let picture = lolwut::draw(context.keyspace.random_below(u64::MAX));
    reply.verbatim("txt", picture.as_bytes());
}

/// `SHUTDOWN [NOSAVE | SAVE] [NOW] [FORCE] [ABORT]`. On success the connection closes without a
/// reply.
pub fn shutdown(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let mut how = Shutdown::default();
    for option in args.iter().skip(1) {
        let flag = match option {
            _ if is_option(option, "NOSAVE") => &mut how.no_save,
            _ if is_option(option, "SAVE") => &mut how.save,
            _ if is_option(option, "NOW") => &mut how.now,
            _ if is_option(option, "FORCE") => &mut how.force,
            _ if is_option(option, "ABORT") => &mut how.abort,
            _ => return reply.error(errors::SYNTAX),
        };
        *flag = true;
    }
    let aborts_with_more = how.abort && (how.no_save || how.save || how.now || how.force);
    if aborts_with_more || how.no_save && how.save {
        return reply.error(errors::SYNTAX);
    }
    // `SHUTDOWN` cannot be queued in a transaction of a client. So this transaction comes from an
    // append-only file.
    if context.session.in_exec && !how.now && !how.abort {
        return reply.error("ERR SHUTDOWN without NOW or ABORT isn't allowed for DENY BLOCKING client");
    }
    if context.host.drains_before(how) {
        context.session.awaits = Some(Awaited::Shutdown(how));
        return;
    }
    if context.host.saves_before(how) {
        // The worker shuts the server down as soon as it holds all shards.
        context.session.needs_all = Some(AllShards::Shutdown(how));
        return;
    }
    match context.host.shutdown(how) {
        Ok(()) if how.abort => reply.ok(),
        // Commands pipelined after `SHUTDOWN` must not run. In Redis they do not, because the
        // process ends before them.
        Ok(()) => context.session.close_after_reply = true,
        Err(error) => reply.error(&error),
    }
}

#[cfg(test)]
mod tests {
    use pantala_engine::client::{AllShards, Awaited};

    use crate::testing_host::{LocalTest, START_MS};

    #[test]
    fn time_has_two_parts() {
        let seconds = (START_MS / 1000).to_string();
        LocalTest::new().expect(&[
            ("TIME", &format!("*2|$10|{seconds}|$2|25|")),
            ("DBSIZE", ":0|"),
            ("LASTSAVE", &format!(":{seconds}|")),
            ("INFO Server FOO", "$11|server foo\n|"),
            ("INFO", "$1|\n|"),
        ]);
    }

    #[test]
    fn shutdown_options() {
        let mut test = LocalTest::new();
        for wrong in ["FOO", "SAVE NOSAVE", "ABORT NOW", "NOSAVE ABORT", "FORCE ABORT", "SAVE ABORT", "''"] {
            assert_eq!(test.run(&format!("SHUTDOWN {wrong}")), "-ERR syntax error|", "{wrong}");
        }
        assert!(test.take_calls().is_empty() && !test.session.close_after_reply);
        test.expect(&[
            ("SHUTDOWN", ""),
            ("SHUTDOWN nosave now force NOW", ""),
            ("SHUTDOWN SAVE", ""),
            ("SHUTDOWN ABORT", "+OK|"),
        ]);
        let Some(AllShards::Shutdown(saving)) = test.session.needs_all.take() else { panic!("the worker saves") };
        assert!(saving.save && !saving.force);
        let flags = |save, no_save, now, force, abort| {
            format!("{:?}", pantala_engine::client::Shutdown { save, no_save, now, force, abort })
        };
        let calls = [
            flags(false, false, false, false, false),
            flags(false, true, true, true, false),
            flags(false, false, false, false, true),
        ];
        assert_eq!(test.take_calls(), calls);
        assert!(test.session.close_after_reply);
        test.session.in_exec = true;
        let denied = "-ERR SHUTDOWN without NOW or ABORT isn't allowed for DENY BLOCKING client|";
        test.expect(&[("SHUTDOWN NOSAVE", denied), ("SHUTDOWN NOSAVE NOW", ""), ("SHUTDOWN ABORT", "+OK|")]);
        test.take_calls();
        test.session.in_exec = false;
        test.host.has_replicas = true;
        test.expect(&[("SHUTDOWN", ""), ("SHUTDOWN ABORT", "+OK|")]);
        assert!(matches!(test.session.awaits.take(), Some(Awaited::Shutdown(_))));
        test.take_calls();
        test.host.has_replicas = false;
        test.host.error = "ERR No shutdown in progress.";
        test.expect(&[
            ("SHUTDOWN ABORT", "-ERR No shutdown in progress.|"),
            ("SHUTDOWN", "-ERR No shutdown in progress.|"),
        ]);
    }

    #[test]
    fn lolwut_checks_its_version() {
        let mut test = LocalTest::new();
        test.expect(&[("LOLWUT VERSION x", "-ERR value is not an integer or out of range|")]);
        for command in ["LOLWUT", "LOLWUT VERSION 5 1 2", "LOLWUT foo", "LOLWUT VERSION"] {
            assert!(test.run(command).ends_with("Redis ver. 7.0.15\n|"), "{command}");
        }
        assert_ne!(test.run("LOLWUT"), test.run("LOLWUT"));
    }
}
