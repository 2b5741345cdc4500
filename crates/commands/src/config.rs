//! `CONFIG`: forwards to the host (the server process), which owns the settings.

use pantala_engine::client::{Awaited, Configured, FileCommand, LocalContext};
use pantala_resp::{Args, Reply};

use crate::{errors, help};

/// `CONFIG GET pattern [pattern ...]`.
pub fn get(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let patterns: Vec<&[u8]> = args.iter().skip(2).collect();
    let settings = context.host.config_get(&patterns);
    reply.map(settings.len());
    for (name, value) in settings {
        reply.bulk(name.as_bytes());
        reply.bulk(&value);
    }
}

/// `CONFIG SET directive value [directive value ...]`.
pub fn set(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if !args.len().is_multiple_of(2) {
        return reply.error(errors::SYNTAX);
    }
    let words: Vec<&[u8]> = args.iter().skip(2).collect();
    let pairs: Vec<(&[u8], &[u8])> = words.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
    match context.host.config_set(&pairs, &context.session.client, context.session.in_exec) {
        Ok(Configured::Now) => reply.ok(),
        Ok(Configured::Later) => context.session.awaits = Some(Awaited::Files(FileCommand::ConfigSet)),
        Err(error) => reply.error(&error),
    }
}

/// `CONFIG REWRITE`. Only in a transaction, the calling thread writes the file.
pub fn rewrite(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    if !context.session.in_exec {
        context.session.awaits = Some(Awaited::Files(FileCommand::ConfigRewrite));
        return;
    }
    answer(context.host.config_rewrite(), reply);
}

/// `CONFIG RESETSTAT`.
pub fn resetstat(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    context.host.reset_stats();
    reply.ok();
}

fn answer(result: Result<(), String>, reply: &mut Reply<'_>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(&error),
    }
}

/// `CONFIG HELP`.
pub fn help(_: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    help::write(
        reply,
        args,
        &[
            "GET <pattern> [<pattern> ...]",
            "    Return the directives whose names match a pattern, with their values.",
            "SET <directive> <value> [<directive> <value> ...]",
            "    Set all of these directives, or none.",
            "RESETSTAT",
            "    Reset the statistics of INFO.",
            "REWRITE",
            "    Write the settings to the configuration file.",
        ],
    );
}

#[cfg(test)]
mod tests {
    use pantala_engine::client::{Awaited, FileCommand};

    use crate::testing_host::LocalTest;

    #[test]
    fn config_commands_call_the_host() {
        let mut test = LocalTest::new();
        test.expect(&[
            ("CONFIG GET a b*", "*4|$1|a|$5|value|$2|b*|$5|value|"),
            ("CONFIG SET a 1 b 2", "+OK|"),
            ("CONFIG SET a 1 b", "-ERR syntax error|"),
            ("CONFIG RESETSTAT", "+OK|"),
        ]);
        assert_eq!(test.take_calls(), ["set a=1 b=2 by 1", "resetstat"]);
        for (words, command) in
            [("CONFIG SET appendonly yes", FileCommand::ConfigSet), ("CONFIG REWRITE", FileCommand::ConfigRewrite)]
        {
            assert_eq!(test.run(words), "");
            assert_eq!(test.session.awaits.take(), Some(Awaited::Files(command)));
        }
        assert_eq!(test.take_calls(), ["set appendonly=yes by 1"]);
        test.session.in_exec = true;
        test.expect(&[("CONFIG REWRITE", "+OK|")]);
        assert_eq!(test.take_calls(), ["rewrite"]);
        test.host.error = "ERR no";
        test.expect(&[("CONFIG SET a 1", "-ERR no|"), ("CONFIG REWRITE", "-ERR no|")]);
    }
}
