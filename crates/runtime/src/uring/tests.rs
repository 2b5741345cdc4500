//! Tests of behaviour that is specific to io_uring, or to older kernels.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use super::UringLoop;
use super::buffers::BUFFERS_MIN;
use crate::{Doorbell, Event, EventLoop, Lender};

/// Number of connections: several times the initial number of buffers of a loop. Together with the
/// descriptors of their peers, they stay below the usual limit of descriptors.
const MANY: usize = 3 * BUFFERS_MIN as usize;

/// Polls until `wanted` chunks have arrived, and releases the chunks after each poll. Returns the
/// number of polls.
fn polls_for(event_loop: &mut UringLoop, wanted: usize) -> usize {
    let (mut events, mut chunks, mut polls) = (Vec::new(), 0, 0);
    while chunks < wanted {
        event_loop.poll(Some(Duration::from_secs(20)), &mut events).unwrap();
        polls += 1;
        for event in events.drain(..) {
            let Event::Data { chunk, .. } = event else { panic!("{event:?}") };
            event_loop.release(chunk);
            chunks += 1;
        }
        assert!(polls <= wanted, "{chunks} of {wanted} chunks in {polls} polls");
    }
    polls
}

fn many(event_loop: &mut UringLoop) -> Vec<UnixStream> {
    let pairs = (0..MANY).map(|_| UnixStream::pair().unwrap());
    pairs.map(|(here, there)| event_loop.add(here.into()).map(|_| there).unwrap()).collect()
}

/// Many connections need a buffer at the same time. Each of them has received one by the second
/// poll.
#[test]
fn buffers_grow_while_receives_starve() {
    let mut event_loop = UringLoop::new(Doorbell::new().unwrap()).unwrap();
    let mut peers = many(&mut event_loop);
    peers.iter_mut().for_each(|peer| peer.write_all(b"x").unwrap());
    assert_eq!(polls_for(&mut event_loop, MANY), 2);
}

/// With a bounded number of buffers, all connections get a buffer in turn. This includes
/// connections that are queued after starved connections without bytes.
#[test]
fn few_buffers_serve_many_in_turn() {
    let mut event_loop = UringLoop::new(Doorbell::new().unwrap()).unwrap();
    event_loop.buffers.bound = BUFFERS_MIN.into();
    let mut first = many(&mut event_loop);
    first.iter_mut().for_each(|peer| peer.write_all(b"x").unwrap());
    let mut held = Vec::new();
    event_loop.poll(Some(Duration::from_secs(20)), &mut held).unwrap();
    assert_eq!(held.len(), BUFFERS_MIN.into(), "one buffer each");
    // These connections find no buffer. Only the last of them has bytes to receive.
    let mut second = many(&mut event_loop);
    let mut events = Vec::new();
    event_loop.poll(Some(Duration::ZERO), &mut events).unwrap();
    assert!(events.is_empty(), "all buffers are held");
    second.last_mut().unwrap().write_all(b"x").unwrap();
    let left = MANY - held.len() + 1;
    for event in held {
        let Event::Data { chunk, .. } = event else { panic!("{event:?}") };
        event_loop.release(chunk);
    }
    let polls = polls_for(&mut event_loop, left);
    assert!(polls <= 2 * (2 * MANY).div_ceil(BUFFERS_MIN.into()), "{polls} polls");
}

/// Before Linux 6.12 a wait cannot ignore the completions of sends, so a separate call collects
/// them.
#[test]
fn quiet_sends_end_no_wait_on_older_kernels() {
    const WAIT: Duration = Duration::from_millis(100);
    let mut event_loop = UringLoop::new(Doorbell::new().unwrap()).unwrap();
    event_loop.waits_for_several = false;
    let (here, _there) = UnixStream::pair().unwrap();
    let conn = event_loop.add(here.into()).unwrap();
    let mut events = Vec::new();
    event_loop.send_quiet(conn, b"quiet".to_vec());
    let begin = Instant::now();
    event_loop.poll(Some(WAIT), &mut events).unwrap();
    assert!(begin.elapsed() >= WAIT);
    assert!(matches!(events.pop(), Some(Event::Sent { result: Ok(()), .. })));
    // Another event that is collected together with the quiet send ends the wait.
    event_loop.send_quiet(conn, b"quiet".to_vec());
    event_loop.doorbell().ring();
    let begin = Instant::now();
    event_loop.poll(Some(10 * WAIT), &mut events).unwrap();
    assert!(begin.elapsed() < 9 * WAIT);
    assert!(events.iter().any(|event| matches!(event, Event::Woken)));
}

/// A wait for several completions ends soon if a send is blocked, and continues as a wait for one
/// completion.
#[test]
fn a_blocked_quiet_send_does_not_prolong_the_wait() {
    let mut event_loop = UringLoop::new(Doorbell::new().unwrap()).unwrap();
    let (here, _deaf) = UnixStream::pair().unwrap();
    let conn = event_loop.add(here.into()).unwrap();
    let mut events = Vec::new();
    // Small enough for a quiet send, and large enough to block.
    event_loop.send_quiet(conn, vec![0; 1 << 20]);
    let doorbell = event_loop.doorbell();
    let ringer = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        doorbell.ring();
    });
    let begin = Instant::now();
    event_loop.poll(Some(Duration::from_secs(20)), &mut events).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(10));
    assert!(matches!(events.pop(), Some(Event::Woken)));
    ringer.join().unwrap();
}

/// A chunk names memory of its own loop. Another loop rejects the chunk, because the kernel may be
/// writing to the buffer with the same number in that other loop.
#[test]
#[should_panic(expected = "a chunk of another loop")]
fn a_chunk_of_another_loop_is_rejected() {
    let other = UringLoop::new(Doorbell::new().unwrap()).unwrap();
    let mut event_loop = UringLoop::new(Doorbell::new().unwrap()).unwrap();
    let (here, mut there) = UnixStream::pair().unwrap();
    event_loop.add(here.into()).unwrap();
    there.write_all(b"x").unwrap();
    let mut events = Vec::new();
    event_loop.poll(Some(Duration::from_secs(20)), &mut events).unwrap();
    if let Some(Event::Data { chunk, .. }) = events.pop() {
        other.bytes(&chunk);
    }
}
