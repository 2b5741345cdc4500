//! Tests of connections without a server. They feed random bytes in chunks of random length, and
//! check the resulting output.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use pantala_base::{Outgoing, Random, SharedBytes};
use pantala_engine::client::ReplyMode;
use pantala_resp::{ArgRange, Args};

use crate::connection::State;
use crate::input::{Parsed, STRANGER_WAITING_BYTES_MAX, Unrun, WAITING_BYTES_MAX};
use crate::output::{PIECE_BYTES, PIECE_BYTES_MIN};
use crate::testing::{Memory, connection, drive, stranger};
use crate::turn::{Fate, Sends};

/// Returns the generator of a random test. Its seed is `PANTALA_SEED` if that is set, otherwise a
/// new one. Prints the seed.
fn random(test: &str) -> Random {
    let seed = match std::env::var("PANTALA_SEED") {
        Ok(text) => text.parse().expect("PANTALA_SEED is a number"),
        Err(_) => Random::from_entropy().next_u64(),
    };
    println!("{test}: PANTALA_SEED={seed}");
    Random::from_seed(seed)
}

fn below(random: &mut Random, bound: usize) -> usize {
    random.below(bound as u64) as usize
}

/// Returns a stream of multibulk and inline commands, with and without quotes, some of them long.
/// The stream may end in invalid bytes.
fn stream(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..1 + below(random, 30) {
        match below(random, 8) {
            0 => bytes.extend_from_slice(b"PING\r\n"),
            1 => bytes.extend_from_slice(b"SET \"a b\\x00\" 'c'\r\n"),
            2 => bytes.extend_from_slice(b"\r\n"),
            _ => {
                let words = 1 + below(random, 4);
                bytes.extend_from_slice(format!("*{words}\r\n").as_bytes());
                for _ in 0..words {
                    let longest = if below(random, 20) == 0 { 200_000 } else { [1, 3, 100][below(random, 3)] };
                    let len = below(random, longest);
                    bytes.extend_from_slice(format!("${len}\r\n").as_bytes());
                    bytes.extend(std::iter::repeat_with(|| b"\r\n*$1ab"[below(random, 7)]).take(len));
                    bytes.extend_from_slice(b"\r\n");
                }
            }
        }
    }
    match below(random, 4) {
        0 => bytes.extend_from_slice(b"*1\r\n!"),
        1 => bytes.extend_from_slice(b"*2\r\n$3\r\nGET"),
        2 => bytes.extend_from_slice(b"SET \"a\r\n"),
        _ => {}
    }
    bytes
}

#[test]
fn commands_and_replies_do_not_depend_on_how_the_bytes_were_cut() {
    const STREAMS: usize = 300;
    let mut random = random("commands_and_replies_do_not_depend_on_how_the_bytes_were_cut");
    let mut errors = 0;
    for _ in 0..STREAMS {
        let stream = stream(&mut random);
        // If each choice is the largest, all bytes are fed at once and all commands run.
        let whole = drive(&stream, &mut |bound| bound - 1);
        assert_eq!(whole.sent, whole.commands.concat().concat());
        errors += usize::from(whole.error.is_some());
        // Short streams also arrive in short pieces. All streams arrive in pieces of any length.
        for longest in [2, 40, usize::MAX].into_iter().filter(|longest| *longest == usize::MAX || stream.len() < 10_000)
        {
            let pieces = drive(&stream, &mut |bound| below(&mut random, bound.min(longest)));
            assert!(whole == pieces, "{longest}: {:?} and {:?}", whole.error, pieces.error);
        }
    }
    assert!(errors > 0 && errors < STREAMS);
}

/// The headers of parsed commands are overwritten, so that parsing these commands again would fail.
#[test]
fn commands_that_are_held_back_are_parsed_once() {
    const STREAM: &[u8] = b"*1\r\n$4\r\nPING\r\n*2\r\n$4\r\nECHO\r\n$1\r\na\r\nSET \"b\" c\r\n";
    let (mut memory, mut connection) = (Memory::default(), connection());
    let chunk = memory.lend(STREAM);
    connection.input.receive(&mut memory, chunk);
    let mut ran = Vec::new();
    let mut left_bytes = STREAM.len();
    for turn in 0..3 {
        let mut window: Vec<(Parsed, Vec<ArgRange>)> = Vec::new();
        let mut ranges = Vec::new();
        while let Some(parsed) = connection.parse(&mut memory, &mut ranges, 100).expect("commands") {
            window.push((parsed, std::mem::take(&mut ranges)));
        }
        assert_eq!(window.len(), 3 - turn);
        if turn == 0 {
            memory.overwrite(|byte| matches!(byte, b'*' | b'$'), b'!');
        }
        let (parsed, ranges) = &window[0];
        let args = Args::new(&connection.input.bytes(&memory)[parsed.begin..parsed.end], ranges);
        ran.push(args.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" "));
        left_bytes -= parsed.end - parsed.begin;
        connection.input.done(parsed.end);
        // The second call changes nothing.
        for _ in 0..2 {
            let unrun = window.iter().map(|(parsed, ranges)| Unrun { parsed: *parsed, ranges });
            connection.input.hold_back(unrun);
        }
        assert_eq!(connection.input.query_buffer_bytes(), left_bytes);
        assert_eq!(connection.input.held_bytes() > 0, left_bytes > 0);
        connection.end_input(&mut memory);
    }
    assert_eq!(ran, ["PING", "ECHO a", "SET b c"]);
    assert_eq!(connection.parse(&mut memory, &mut Vec::new(), 100), Ok(None));
}

/// All kinds of output stay in order, whether or not a send is in flight.
#[test]
fn pieces_sent_equal_the_replies() {
    let mut random = random("pieces_sent_equal_the_replies");
    let kept = Arc::new(AtomicU64::new(0));
    for _ in 0..100 {
        let (mut connection, mut wanted, mut sent) = (connection(), Vec::new(), Vec::new());
        for turn in 0..40u8 {
            for _ in 0..below(&mut random, 4) {
                let bytes = vec![turn; 1 + below(&mut random, 2 * PIECE_BYTES_MIN)];
                wanted.extend_from_slice(&bytes);
                match below(&mut random, 3) {
                    0 => connection.add_shared(&SharedBytes::new(bytes, &kept)),
                    1 => connection.add_piece(bytes),
                    _ => {
                        connection.output.extend_from_slice(&bytes);
                        connection.end_piece(bytes.len());
                    }
                }
            }
            assert_eq!(connection.pending_bytes() - connection.sending.bytes, wanted.len() - sent.len());
            if below(&mut random, 2) == 0 {
                connection.sent();
            }
            if below(&mut random, 2) == 0
                && let Some(output) = connection.take_output()
            {
                sent.extend_from_slice(&output);
                if below(&mut random, 2) == 0 {
                    assert!(!connection.set_in_flight(output.len()), "nothing follows it");
                }
            }
            if let Sends::Now(send) = connection.take_send(Vec::new) {
                assert_eq!(matches!(send.bytes, Outgoing::Shared(_)), connection.sending.is_shared);
                sent.extend_from_slice(send.bytes.bytes());
            }
        }
        connection.state = State::Closing;
        while connection.fate() != Fate::Over {
            connection.sent();
            if let Some(output) = connection.take_output() {
                sent.extend_from_slice(&output);
                assert!(connection.set_in_flight(output.len()), "its end is to end a wait");
            }
            if let Sends::Now(send) = connection.take_send(Vec::new) {
                assert!(send.is_awaited, "its end is to end a wait");
                sent.extend_from_slice(send.bytes.bytes());
            }
        }
        assert!(sent == wanted);
    }
    assert_eq!(kept.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[test]
fn receiving_pauses_when_a_waiting_connection_has_much_input() {
    for (state, bytes, holds) in [
        (State::Parked, WAITING_BYTES_MAX, false),
        (State::Parked, WAITING_BYTES_MAX + 1, true),
        (State::Paused, WAITING_BYTES_MAX + 1, true),
        (State::Closing, WAITING_BYTES_MAX + 1, true),
        // The connection must keep receiving, because the close by the peer arrives after these
        // bytes.
        (State::Blocked, WAITING_BYTES_MAX + 1, false),
        // The connection must keep receiving the rest of an incomplete command.
        (State::Open, WAITING_BYTES_MAX + 1, false),
    ] {
        let (mut memory, mut connection) = (Memory::default(), connection());
        let chunk = memory.lend(&vec![b'x'; bytes]);
        connection.input.receive(&mut memory, chunk);
        connection.state = state;
        assert_eq!(connection.end_input(&mut memory), holds, "{state:?} {bytes}");
    }
}

#[test]
fn a_client_that_has_not_authenticated_may_have_little_input() {
    for (state, is_ready, bytes, holds) in [
        (State::Paused, false, STRANGER_WAITING_BYTES_MAX, false),
        (State::Paused, false, STRANGER_WAITING_BYTES_MAX + 1, true),
        (State::Open, true, STRANGER_WAITING_BYTES_MAX + 1, true),
        // The rest of a command must be received: an `AUTH` may be longer than this limit.
        (State::Open, false, STRANGER_WAITING_BYTES_MAX + 1, false),
    ] {
        let (mut memory, mut connection) = (Memory::default(), stranger());
        let chunk = memory.lend(&vec![b'x'; bytes]);
        connection.input.receive(&mut memory, chunk);
        (connection.state, connection.is_ready) = (state, is_ready);
        assert_eq!(connection.end_input(&mut memory), holds, "{state:?} {bytes}");
    }
}

#[test]
fn a_connection_ends_when_all_is_run_and_sent() {
    let mut open = connection();
    open.eof = true;
    open.is_ready = true;
    assert_eq!(open.fate(), Fate::Stays, "something may be left to parse");
    open.is_ready = false;
    assert_eq!(open.fate(), Fate::Over);
    for (state, has_ended) in [
        (State::Blocked, true),
        (State::Paused, true),
        (State::Parked, false),
        (State::Yielding, false),
        (State::Syncing, false),
        (State::Closing, true),
    ] {
        open.state = state;
        assert_eq!(open.fate() == Fate::Over, has_ended, "{state:?}");
        open.output.push(b'x');
        assert_eq!(open.fate(), Fate::Stays, "{state:?}");
        assert!(matches!(open.take_send(Vec::new), Sends::Now(_)));
        assert_eq!(open.fate() == Fate::EndsWhenSent, has_ended, "{state:?}");
        open.sent();
    }
}

#[test]
fn a_turn_ends_a_piece_at_its_length() {
    let mut connection = connection();
    connection.output = Vec::with_capacity(2 * PIECE_BYTES);
    connection.output.resize(PIECE_BYTES - 1, b'x');
    assert!(!connection.end_piece(1));
    connection.output.push(b'x');
    assert!(connection.end_piece(1) && connection.ahead.supplies_buffer());
    assert_eq!(connection.ahead.next_buffer().capacity(), PIECE_BYTES + 64);
    assert!(!connection.ahead.supplies_buffer());
}

#[test]
fn unwanted_replies_are_dropped_and_messages_are_kept() {
    let mut connection = connection();
    let reply = |connection: &mut crate::connection::Connection<_, ()>| {
        let before = connection.output.len();
        connection.output.push(b'r');
        connection.end_reply(before);
        std::mem::take(&mut connection.output)
    };
    assert_eq!(reply(&mut connection), b"r");
    connection.session.reply_mode = ReplyMode::SkipNext;
    assert_eq!((reply(&mut connection), reply(&mut connection), reply(&mut connection)), (vec![], vec![], vec![b'r']));
    connection.session.reply_mode = ReplyMode::Off;
    connection.begin_exec(0);
    connection.push_message(b"message");
    connection.end_exec(0);
    assert_eq!(reply(&mut connection), b"message");
}

#[test]
fn messages_wait_for_the_answer_in_flight() {
    let mut connection = connection();
    connection.park(1, 10);
    connection.push_message(b"message");
    assert_eq!((connection.output.len(), connection.pending_bytes()), (0, 7));
    connection.output.extend_from_slice(b"answer ");
    connection.unpark();
    connection.release_messages();
    connection.push_message(b" message");
    assert_eq!(connection.output, b"answer message message");
    connection.state = State::Closing;
    connection.push_message(b"lost");
    assert_eq!(connection.output, b"answer message message");
}
