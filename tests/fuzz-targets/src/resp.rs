//! The request parser on arbitrary bytes. The commands and the error must be the same whether the
//! input arrives as a whole or in pieces. The parser must not panic or move backwards in its input.
//! The two readers of replies also run on these bytes. The readers must not panic, and must agree
//! on the end of a reply.
//!
//! The first bytes of the input are choices (limits, and the ends of the pieces). The rest is the
//! stream.

use pantala_resp::value::{parse_reply, reply_len};
use pantala_resp::{ArgRange, Args, Limits, Parser, ProtocolError};

const CHOICES: usize = 4;
/// Maximum length of a line. It is so low that the fuzzer exceeds it. As in Redis, the parser
/// accepts a longer line if it receives the whole line at once, and may reject one that arrives in
/// pieces.
const LINE_LEN_MAX: usize = 256;

#[derive(Debug, Default, PartialEq)]
struct Outcome {
    commands: Vec<Vec<Vec<u8>>>,
    error: Option<ProtocolError>,
}

fn feed(stream: &[u8], piece_lens: &[u8], limits: &Limits) -> Outcome {
    let mut outcome = Outcome::default();
    let mut parser = Parser::new();
    let mut buf = Vec::new();
    let mut fed = 0;
    let mut pieces = piece_lens.iter().cycle();
    while fed < stream.len() {
        let piece_len = pieces.next().map_or(stream.len(), |&len| usize::from(len) + 1);
        let end = stream.len().min(fed + piece_len);
        buf = [&buf, &stream[fed..end]].concat();
        fed = end;
        loop {
            let mut ranges = Vec::<ArgRange>::new();
            match parser.parse(&mut buf, &mut ranges, limits) {
                Ok(Some(len)) => {
                    outcome.commands.push(Args::new(&buf, &ranges).iter().map(<[u8]>::to_vec).collect());
                    buf.drain(..len);
                }
                Ok(None) => {
                    assert!(ranges.is_empty());
                    assert!(parser.needed() <= limits.max_bulk_len + 2);
                    break;
                }
                Err(error) => {
                    assert!(ranges.is_empty());
                    outcome.error = Some(error);
                    return outcome;
                }
            }
        }
    }
    outcome
}

/// Runs the target on one input, and panics on a defect.
pub fn run(data: &[u8]) {
    if let Ok(Some((_, len))) = parse_reply(data) {
        assert_eq!(reply_len(data), Ok(Some(len)));
    }
    let Some((choices, stream)) = data.split_at_checked(CHOICES) else { return };
    let limits = Limits {
        max_bulk_len: 64 + 1_000 * usize::from(choices[0] >> 1),
        authenticated: choices[0] & 1 == 1,
        max_inline: LINE_LEN_MAX,
    };
    let whole = feed(stream, &[], &limits);
    let pieces = feed(stream, &choices[1..], &limits);
    let too_big = |outcome: &Outcome| {
        use ProtocolError::{TooBigBulkCount, TooBigCount, TooBigInline};
        matches!(outcome.error, Some(TooBigInline | TooBigCount | TooBigBulkCount))
    };
    if too_big(&pieces) && whole != pieces {
        assert!(stream.len() > LINE_LEN_MAX);
        assert!(whole.commands.starts_with(&pieces.commands));
    } else {
        assert_eq!(whole, pieces);
    }
}
