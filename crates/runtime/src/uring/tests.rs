//! What only older kernels do.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use super::UringLoop;
use crate::{Doorbell, Event, EventLoop};

/// Before Linux 6.12 a wait can't look beyond the completions of sends: they are collected by a call of their own.
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
    // What else comes with the collecting does end it.
    event_loop.send_quiet(conn, b"quiet".to_vec());
    event_loop.doorbell().ring();
    let begin = Instant::now();
    event_loop.poll(Some(10 * WAIT), &mut events).unwrap();
    assert!(begin.elapsed() < 9 * WAIT);
    assert!(events.iter().any(|event| matches!(event, Event::Woken)));
}

/// The wait for several completions is given up soon when a send is blocked, and goes on as a wait for one.
#[test]
fn a_blocked_quiet_send_does_not_make_the_wait_insist() {
    let mut event_loop = UringLoop::new(Doorbell::new().unwrap()).unwrap();
    let (here, _deaf) = UnixStream::pair().unwrap();
    let conn = event_loop.add(here.into()).unwrap();
    let mut events = Vec::new();
    // Small enough to be sent quietly, big enough to block.
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

/// A chunk names memory of its own loop: any other refuses it, rather than to show what the kernel is writing.
#[test]
#[should_panic(expected = "a chunk of another loop")]
fn a_chunk_of_another_loop_is_refused() {
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
