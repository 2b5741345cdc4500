//! Tests of the parser: valid and malformed requests, in one piece and in many.

use pantala_base::Random;
use proptest::prelude::*;

use super::*;
use crate::args::Args;

/// The commands of a stream, and the error that ends it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Outcome {
    commands: Vec<Vec<Vec<u8>>>,
    error: Option<ProtocolError>,
    /// Bytes of an incomplete command at the end of the stream.
    left: usize,
}

/// Feeds `stream` in pieces that end at `cuts` (ascending), as a connection does: complete commands
/// are removed from the buffer, the rest moves to new memory.
fn feed(stream: &[u8], cuts: &[usize], limits: &Limits) -> Outcome {
    let mut outcome = Outcome::default();
    let mut parser = Parser::new();
    let mut buf = Vec::new();
    let mut fed = 0;
    for &cut in cuts.iter().chain([&stream.len()]) {
        buf = [&buf, &stream[fed..cut]].concat();
        fed = cut;
        loop {
            let mut ranges = vec![ArgRange::new(0, 0)];
            match parser.parse(&mut buf, &mut ranges, limits) {
                Ok(Some(len)) => {
                    assert!(!parser.is_within_command() && parser.needed() == 0);
                    let args = Args::new(&buf, &ranges[1..]);
                    outcome.commands.push(args.iter().map(<[u8]>::to_vec).collect());
                    buf.drain(..len);
                }
                Ok(None) => {
                    assert_eq!(ranges.len(), 1, "an incomplete command appended ranges");
                    assert_eq!(parser.is_within_command(), !buf.is_empty());
                    break;
                }
                Err(error) => {
                    assert_eq!(ranges.len(), 1, "an error appended ranges");
                    outcome.error = Some(error);
                    return outcome;
                }
            }
        }
    }
    outcome.left = buf.len();
    outcome
}

fn whole(stream: &[u8], limits: &Limits) -> Outcome {
    feed(stream, &[], limits)
}

/// Returns the only command in `stream`, which must be complete.
fn command(stream: &[u8]) -> Vec<Vec<u8>> {
    let outcome = whole(stream, &Limits::default());
    assert_eq!((outcome.commands.len(), outcome.error, outcome.left), (1, None, 0));
    outcome.commands.into_iter().next().unwrap()
}

fn error(stream: &[u8], limits: &Limits) -> Option<ProtocolError> {
    whole(stream, limits).error
}

fn encode(args: &[Vec<u8>]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        out.extend(format!("${}\r\n", arg.len()).bytes());
        out.extend(arg);
        out.extend(b"\r\n");
    }
    out
}

/// Streams of every form, valid and malformed.
fn samples() -> Vec<Vec<u8>> {
    let long = vec![b'v'; 300];
    let mut samples: Vec<Vec<u8>> = [
        &b"*1\r\n$4\r\nPING\r\n"[..],
        b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\nva\r\nl\r\n*2\r\n$3\r\nGET\r\n$0\r\n\r\n",
        b"PING\r\nPING\nGET  key \r\n\r\n\n*0\r\n*-1\r\n*-7\r\nPING\r\n",
        b"SET \"a\\x41\\n\" 'b\\'c' d\"e\"\r\n*1\r\n$1\r\nx\r\n",
        b"*1\r\n$4\r\nPINGxy*1\rx$1\ryx\0\0PING\r\n",
        b"*2\r\n$1\r\n\r\r\n$2\r\n\n\r\r\n",
        b"*x\r\n",
        b"*1\r\nPING\r\n",
        b"*1\r\n$-1\r\n",
        b"*2\r\n$1\r\na\r\n$x\r\n",
        b"PING \"x\r\n",
        b"PI\0NG\r\nPING\r\n",
        b"*1\0\r\n$1\r\nx\r\n",
        b"*1\r\n\0$1\r\nx\r\n",
        b"*01\r\n$1\r\nx\r\n",
        b"*1\r\n$01\r\nx\r\n",
        b"*\r\n",
        b"*1\r\n$\r\n",
        b"*1\r\n\r\n",
        // Headers with the most digits that the fast path accepts, and with one digit more. Any
        // byte may replace `\n`, even a byte that ends a search (`\0`, `\r`).
        b"*123456\r\0k\r\n",
        b"*1234567\r\0k\r\n",
        b"*123456\r\r$1\r\r\0\0\0$x\r\n",
        b"*2\r\n$123456\r\0",
        b"*2\r\n$1234567\r\0",
    ]
    .map(<[u8]>::to_vec)
    .into();
    samples.push(encode(&[b"MSET".to_vec(), long.clone(), long, vec![0; 20], vec![], b"\r\n".to_vec()]));
    samples.push(encode(&vec![b"x".to_vec(); 1_200]));
    samples
}

#[test]
fn complete_commands() {
    assert_eq!(command(b"*1\r\n$4\r\nPING\r\n"), [b"PING"]);
    assert_eq!(command(b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n"), [&b"GET"[..], b""]);
    assert_eq!(command(b"PING\n"), [b"PING"]);
    assert_eq!(command(b"ECHO \"a\\x41\\n\" \r\n"), [&b"ECHO"[..], b"aA\n"]);
    assert_eq!(command(b"\"\"\r\n"), [b""]);
    let huge: Vec<Vec<u8>> = (0..5_000).map(|n: usize| n.to_string().into_bytes()).collect();
    assert_eq!(command(&encode(&huge)), huge);
}

#[test]
fn empty_commands_have_no_arguments() {
    for stream in [&b"\r\n"[..], b"\n", b"  \r\n", b"*0\r\n", b"*-1\r\n", b"*-9223372036854775808\r\n"] {
        assert_eq!(command(stream), Vec::<Vec<u8>>::new(), "{}", stream.escape_ascii());
    }
}

#[test]
fn bytes_of_line_ends_are_not_checked() {
    // As in Redis, the byte after `\r` and the two bytes after a bulk may be anything.
    assert_eq!(command(b"*1\rx$4\ryPINGab"), [b"PING"]);
    assert_eq!(command(b"PING\rx\n"), [&b"PING"[..], b"x"]);
}

#[test]
fn malformed_requests_fail_once_the_line_is_complete() {
    use ProtocolError::*;
    let limits = Limits::default();
    for (stream, expected) in [
        (&b"*\r\n"[..], InvalidCount),
        (b"*x\r\n", InvalidCount),
        (b"*+1\r\n", InvalidCount),
        (b"*01\r\n", InvalidCount),
        (b"* 1\r\n", InvalidCount),
        (b"*-0\r\n", InvalidCount),
        (b"*99999999999999999999\r\n", InvalidCount),
        (b"*1\r\nx\r\n", ExpectedDollar(b'x')),
        (b"*1\r\n\r\n", ExpectedDollar(b'\r')),
        (b"*1\r\n\n\r\n", ExpectedDollar(b'\n')),
        (b"*2\r\n$4\r\nPING\r\n:1\r\n", ExpectedDollar(b':')),
        (b"*1\r\n$-1\r\n", InvalidBulkLength),
        (b"*1\r\n$\r\n", InvalidBulkLength),
        (b"*1\r\n$1x\r\n", InvalidBulkLength),
        (b"*1\r\n$99999999999999999999\r\n", InvalidBulkLength),
        (b"PING \"x\r\n", UnbalancedQuotes),
        (b"PING 'x'y\r\n", UnbalancedQuotes),
    ] {
        assert_eq!(error(stream, &limits), Some(expected), "{}", stream.escape_ascii());
        // There is no error before the line is complete.
        assert_eq!(error(&stream[..stream.len() - 1], &limits), None, "{}", stream.escape_ascii());
    }
}

#[test]
fn counts_at_the_limit_and_past_it() {
    let limits = Limits::default();
    assert_eq!(error(b"*2147483647\r\n", &limits), None);
    assert_eq!(error(b"*2147483648\r\n", &limits), Some(ProtocolError::InvalidCount));
    let strangers = Limits { authenticated: false, ..limits };
    assert_eq!(error(b"*10\r\n", &strangers), None);
    assert_eq!(error(b"*11\r\n", &strangers), Some(ProtocolError::UnauthenticatedCount));
    assert_eq!(error(b"*2147483648\r\n", &strangers), Some(ProtocolError::InvalidCount));
}

#[test]
fn bulk_lengths_at_the_limit_and_past_it() {
    let limits = Limits::default();
    assert_eq!(error(b"*1\r\n$536870912\r\n", &limits), None);
    assert_eq!(error(b"*1\r\n$536870913\r\n", &limits), Some(ProtocolError::InvalidBulkLength));
    let strangers = Limits { authenticated: false, ..limits };
    assert_eq!(error(b"*1\r\n$16384\r\n", &strangers), None);
    assert_eq!(error(b"*1\r\n$16385\r\n", &strangers), Some(ProtocolError::UnauthenticatedBulkLength));
    assert_eq!(error(b"*1\r\n$536870913\r\n", &strangers), Some(ProtocolError::InvalidBulkLength));
    // With the maximum of `proto-max-bulk-len`, no sum overflows.
    let all = Limits { max_bulk_len: i64::MAX as usize, ..limits };
    assert_eq!(error(b"*1\r\n$9223372036854775807\r\n", &all), None);
    assert_eq!(error(b"*1\r\n$9223372036854775808\r\n", &all), Some(ProtocolError::InvalidBulkLength));
}

#[test]
fn a_complete_line_may_exceed_the_limit_by_one_redis_read() {
    let limits = Limits::default();
    let line = |len: usize| [&b"PING "[..], &vec![b'a'; len - 5], b"\n"].concat();
    assert_eq!(error(&line(PROTO_INLINE_MAX_SIZE + 1), &limits), None);
    assert_eq!(error(&line(PROTO_INLINE_MAX_SIZE + 16 * 1024 - 1), &limits), None);
    assert_eq!(error(&line(PROTO_INLINE_MAX_SIZE + 16 * 1024), &limits), Some(ProtocolError::TooBigInline));
}

#[test]
fn lines_at_the_limit_and_past_it() {
    let limits = Limits::default();
    for (head, line_from, expected) in [
        (&b"*0"[..], 0, ProtocolError::TooBigCount),
        (b"*1\r\n$0", 4, ProtocolError::TooBigBulkCount),
        (b"*1\r\nx0", 4, ProtocolError::TooBigBulkCount),
        (b"PING ", 0, ProtocolError::TooBigInline),
        (b"PI\0NG\r\nPING\r\n", 0, ProtocolError::TooBigInline),
        (b"*1\0\r\n", 0, ProtocolError::TooBigCount),
        (b"*1\r\n$1\0\r\n", 4, ProtocolError::TooBigBulkCount),
    ] {
        let mut stream = head.to_vec();
        stream.resize(line_from + PROTO_INLINE_MAX_SIZE, b'0');
        assert_eq!(error(&stream, &limits), None, "{}", head.escape_ascii());
        stream.push(b'0');
        assert_eq!(error(&stream, &limits), Some(expected), "{}", head.escape_ascii());
    }
    // As in Redis, a longer line is accepted if its end arrives with it.
    let line = [&[b'a'; PROTO_INLINE_MAX_SIZE + 1][..], b"\r\n"].concat();
    assert_eq!(command(&line)[0].len(), PROTO_INLINE_MAX_SIZE + 1);
}

#[test]
fn every_truncation_resumes() {
    let limits = Limits::default();
    for stream in samples() {
        let expected = whole(&stream, &limits);
        for cut in 0..=stream.len() {
            assert_eq!(feed(&stream, &[cut], &limits), expected, "{} at {cut}", stream.escape_ascii());
        }
        let all: Vec<usize> = (0..stream.len()).collect();
        assert_eq!(feed(&stream, &all, &limits), expected, "{} by bytes", stream.escape_ascii());
    }
}

#[test]
fn random_splits_resume() {
    let seed = 0x5eed_0001;
    println!("seed {seed}");
    let mut random = Random::from_seed(seed);
    let samples = samples();
    let limits = Limits::default();
    for _ in 0..2_000 {
        let stream: Vec<u8> = (0..1 + random.below(4))
            .flat_map(|_| samples[random.below(samples.len() as u64) as usize].clone())
            .collect();
        let mut cuts: Vec<usize> =
            (0..random.below(12)).map(|_| random.below(stream.len() as u64 + 1) as usize).collect();
        cuts.sort_unstable();
        assert_eq!(feed(&stream, &cuts, &limits), whole(&stream, &limits), "{} {cuts:?}", stream.escape_ascii());
    }
}

#[test]
fn hostile_bytes_resume_and_never_panic() {
    let seed = 0x5eed_0002;
    println!("seed {seed}");
    let mut random = Random::from_seed(seed);
    let alphabet = b"*$\r\n\r\n\r\n0123459-x\"'\\ \0P*1\r\n$1\r\n";
    for round in 0..60_000 {
        let stream: Vec<u8> =
            (0..random.below(48)).map(|_| alphabet[random.below(alphabet.len() as u64) as usize]).collect();
        // No line reaches the line limit. At the limit, the result may depend on the pieces (see
        // `lines_at_the_limit_and_past_it`).
        let limits = Limits { authenticated: round % 2 == 0, max_bulk_len: 12, ..Limits::default() };
        let mut cuts: Vec<usize> =
            (0..random.below(6)).map(|_| random.below(stream.len() as u64 + 1) as usize).collect();
        cuts.sort_unstable();
        assert_eq!(feed(&stream, &cuts, &limits), whole(&stream, &limits), "{} {cuts:?}", stream.escape_ascii());
    }
}

#[test]
fn no_byte_is_scanned_twice() {
    let limits = Limits::default();
    let samples = [
        [&b"PING "[..], &[b'a'; 5_000], b"\r\n"].concat(),
        [&b"*"[..], &[b'0'; 5_000]].concat(),
        encode(&[vec![b'x'; 5_000], vec![b'y'; 5_000]]),
        encode(&vec![b"abc".to_vec(); 500]),
    ];
    for stream in samples {
        let mut parser = Parser::new();
        let mut ranges = Vec::new();
        let mut searched_before = 0;
        for len in 0..stream.len() {
            let mut buf = stream[..len].to_vec();
            assert_eq!(parser.parse(&mut buf, &mut ranges, &limits), Ok(None));
            // The next call starts at `reached`, which never decreases. In a line, `reached` is the
            // end of the buffer, or one less if the byte after `\r` is missing.
            let reached = if parser.state == State::Bulk { parser.at } else { parser.searched };
            assert!(reached >= searched_before, "went back from {searched_before} to {reached}");
            if parser.state != State::Bulk {
                assert!(reached + 1 >= len, "would search again from {reached} of {len}");
            }
            searched_before = reached;
        }
    }
}

#[test]
fn needed_is_the_rest_of_the_bulk() {
    let mut parser = Parser::new();
    let mut ranges = Vec::new();
    let limits = Limits::default();
    let stream = encode(&[b"ECHO".to_vec(), vec![b'x'; 1_000]]);
    let mut seen = Vec::new();
    for len in [5, 12, 16, 20, 21, 23, 500, stream.len() - 1] {
        assert_eq!(parser.parse(&mut stream[..len].to_vec(), &mut ranges, &limits), Ok(None));
        seen.push(parser.needed());
    }
    // The ends of the pieces: in the first bulk's header, before the first bulk's line end, twice
    // in the second bulk's header, then four times in the second bulk.
    assert_eq!(seen, [0, 2, 0, 0, stream.len() - 21, stream.len() - 23, stream.len() - 500, 1]);
    assert_eq!(parser.parse(&mut stream.clone(), &mut ranges, &limits), Ok(Some(stream.len())));
    assert_eq!(parser.needed(), 0);
}

#[test]
fn reset_discards_an_incomplete_command() {
    let mut parser = Parser::new();
    let mut ranges = Vec::new();
    let limits = Limits::default();
    assert_eq!(parser.parse(&mut b"*2\r\n$1\r\na\r\n$9\r\n".to_vec(), &mut ranges, &limits), Ok(None));
    parser.reset();
    assert_eq!(parser.parse(&mut b"PING\r\n".to_vec(), &mut ranges, &limits), Ok(Some(6)));
    assert_eq!(ranges, [ArgRange::new(0, 4)]);
}

#[test]
fn a_huge_command_in_pieces_frees_its_ranges() {
    let stream = encode(&vec![b"x".to_vec(); RANGES_KEPT_MAX * 4]);
    let mut parser = Parser::new();
    let mut ranges = Vec::new();
    let limits = Limits::default();
    let cut = stream.len() - 3;
    assert_eq!(parser.parse(&mut stream[..cut].to_vec(), &mut ranges, &limits), Ok(None));
    assert!(parser.ranges.capacity() > RANGES_KEPT_MAX);
    assert_eq!(parser.parse(&mut stream.clone(), &mut ranges, &limits), Ok(Some(stream.len())));
    assert_eq!(ranges.len(), RANGES_KEPT_MAX * 4);
    assert!(parser.ranges.capacity() <= RANGES_KEPT_MAX);
}

proptest! {
    #[test]
    fn commands_round_trip(
        commands in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..8), 1..6),
        mut cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let stream: Vec<u8> = commands.iter().flat_map(|command| encode(command)).collect();
        let mut cuts: Vec<usize> = cuts.drain(..).map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.sort_unstable();
        let expected = Outcome { commands, error: None, left: 0 };
        prop_assert_eq!(feed(&stream, &cuts, &Limits::default()), expected);
    }

    #[test]
    fn quoted_words_round_trip(words in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..6)) {
        let mut stream = Vec::new();
        for word in &words {
            stream.push(b'"');
            for &byte in word {
                match byte {
                    b'"' | b'\\' => stream.extend([b'\\', byte]),
                    0..=31 => stream.extend(format!("\\x{byte:02x}").bytes()),
                    _ => stream.push(byte),
                }
            }
            stream.extend(b"\" ");
        }
        stream.extend(b"\r\n");
        prop_assert_eq!(command(&stream), words);
    }
}

#[test]
fn the_stream_of_a_primary_has_no_inline_commands_but_empty_lines() {
    let limits = Limits { max_bulk_len: Limits::PRIMARY_BULK_LEN, ..Limits::default() };
    assert_eq!(error(b"\r\n\n*1\r\n$4\r\nPING\r\n\n", &limits), None);
    for line in [&b"PING\r\n"[..], b" \n", b"\n*1\r\n$4\r\nPING\r\nx\n"] {
        assert_eq!(error(line, &limits), Some(ProtocolError::InlineOfPrimary), "{}", line.escape_ascii());
    }
}

#[test]
fn a_huge_command_has_one_list_of_its_own_length() {
    let args = RANGES_MOVED_MIN * 10;
    let stream = encode(&vec![b"x".to_vec(); args]);
    let (mut parser, mut ranges, limits) = (Parser::new(), Vec::new(), Limits::default());
    for end in (0..stream.len()).step_by(4_096) {
        assert_eq!(parser.parse(&mut stream[..end].to_vec(), &mut ranges, &limits), Ok(None));
    }
    assert_eq!(parser.parse(&mut stream.clone(), &mut ranges, &limits), Ok(Some(stream.len())));
    assert_eq!((ranges.len(), ranges.capacity()), (args, args));
    assert!(parser.ranges.capacity() <= RANGES_KEPT_MAX);
}
