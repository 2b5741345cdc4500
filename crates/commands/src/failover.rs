//! `FAILOVER`: this server and one of its replicas exchange their roles.

use pantala_base::number::parse_i64;
use pantala_engine::client::{Failover, LocalContext};
use pantala_resp::{Args, Reply};

const SYNTAX: &str = "ERR syntax error";
const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";

/// `FAILOVER [TO host port [FORCE]] [TIMEOUT milliseconds]` and `FAILOVER ABORT`. The reply is
/// immediate. The server then holds back the writes of clients until the replica has become the
/// primary.
pub fn failover(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if context.session.primary.is_some() {
        return reply.error("ERR FAILOVER is not accepted from a primary");
    }
    if context.keyspace.is_cluster() {
        return reply.error("ERR FAILOVER not allowed in cluster mode. Use CLUSTER FAILOVER command instead.");
    }
    let words: Vec<&[u8]> = args.iter().skip(1).collect();
    let replication = context.host.replication();
    let done = match words.as_slice() {
        [word] if word.eq_ignore_ascii_case(b"abort") => replication.abort_failover(),
        words => parse(words).map_err(str::to_owned).and_then(|wanted| replication.fail_over(&wanted)),
    };
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(&error),
    }
}

fn parse<'a>(mut words: &[&'a [u8]]) -> Result<Failover<'a>, &'static str> {
    let mut wanted = Failover::default();
    while let Some((word, rest)) = words.split_first() {
        words = match (word.to_ascii_lowercase().as_slice(), rest) {
            (b"timeout", [timeout, rest @ ..]) if wanted.timeout_ms == 0 => {
                wanted.timeout_ms = parse_i64(timeout).ok_or(NOT_AN_INTEGER)?;
                if wanted.timeout_ms <= 0 {
                    return Err("ERR FAILOVER timeout must be greater than 0");
                }
                rest
            }
            (b"to", [host, port, rest @ ..]) if wanted.target.is_none() => {
                wanted.target = Some((host, parse_i64(port).ok_or(NOT_AN_INTEGER)?));
                rest
            }
            (b"force", rest) if !wanted.is_forced => {
                wanted.is_forced = true;
                rest
            }
            _ => return Err(SYNTAX),
        };
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &str) -> Result<(Option<String>, i64, bool), &'static str> {
        let words: Vec<&[u8]> = words.split(' ').filter(|word| !word.is_empty()).map(str::as_bytes).collect();
        parse(&words).map(|Failover { target, timeout_ms, is_forced }| {
            let target = target.map(|(host, port)| format!("{}:{port}", String::from_utf8_lossy(host)));
            (target, timeout_ms, is_forced)
        })
    }

    #[test]
    fn options_come_in_any_order_and_once() {
        assert_eq!(parsed(""), Ok((None, 0, false)));
        assert_eq!(parsed("TIMEOUT 5 to host 7 Force"), Ok((Some("host:7".to_owned()), 5, true)));
        for wrong in
            ["x", "to host", "timeout", "abort", "abort force", "force force", "timeout 1 timeout 2", "to a 1 to b 2"]
        {
            assert_eq!(parsed(wrong), Err(SYNTAX), "{wrong}");
        }
        for wrong in ["to a b", "timeout x", "timeout 99999999999999999999"] {
            assert_eq!(parsed(wrong), Err(NOT_AN_INTEGER), "{wrong}");
        }
        for wrong in ["timeout 0", "timeout -1"] {
            assert_eq!(parsed(wrong), Err("ERR FAILOVER timeout must be greater than 0"), "{wrong}");
        }
    }
}
