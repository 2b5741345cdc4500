//! Tests of misbehaving peers, of closing and dropping during operations, and of exhausted
//! resources. Every test runs on both backends.

mod support;

use std::io;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use pantala_runtime::{Chunk, ConnId, Doorbell, EpollLoop, Event, EventLoop, UringLoop};
use support::{PATIENCE, on_both, poll_until, reset_on_close, tcp_pair};

on_both!(
    reports_a_reset,
    waits_for_a_peer_that_never_reads,
    closes_with_a_send_in_flight,
    closes_at_once_when_nothing_is_sent,
    survives_running_out_of_descriptors,
    recovers_when_all_buffers_were_held,
    is_dropped_with_operations_in_flight,
    a_blocked_quiet_send_delays_no_connection,
    stale_tokens_match_nothing,
);

fn reports_a_reset<L: EventLoop>() {
    let mut events = Vec::new();
    let mut event_loop = L::new(Doorbell::new().unwrap()).unwrap();
    let (here, there) = tcp_pair();
    let conn = event_loop.add(here.into()).unwrap();
    event_loop.poll(Some(Duration::ZERO), &mut events).unwrap();
    reset_on_close(&there);
    drop(there);
    poll_until(&mut event_loop, |event| match event {
        Event::Failed { conn: failed, error } => {
            assert_eq!(failed, conn);
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
            true
        }
        _ => false,
    });
    event_loop.close(conn);
    assert!(event_loop.socket(conn).is_none());
}

/// A send to a peer that does not read stays in flight and doesn't end a wait. The send completes
/// when the peer reads.
fn waits_for_a_peer_that_never_reads<L: EventLoop>() {
    const LEN_BYTES: usize = 32 << 20;
    let mut event_loop = L::new(Doorbell::new().unwrap()).unwrap();
    let (here, mut there) = tcp_pair();
    let conn = event_loop.add(here.into()).unwrap();
    event_loop.send(conn, vec![7; LEN_BYTES]);
    let mut events = Vec::new();
    let deadline = Instant::now() + Duration::from_millis(300);
    while Instant::now() < deadline {
        event_loop.poll(Some(Duration::from_millis(50)), &mut events).unwrap();
        assert!(events.is_empty(), "{events:?}");
    }
    let reader = thread::spawn(move || {
        let mut bytes = vec![0; LEN_BYTES];
        there.read_exact(&mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 7));
        there
    });
    poll_until(&mut event_loop, |event| match event {
        Event::Sent { conn: sent, buffer, result } => {
            assert_eq!(sent, conn);
            result.unwrap();
            assert!(buffer.is_empty() && buffer.capacity() >= LEN_BYTES);
            true
        }
        other => panic!("{other:?}"),
    });
    reader.join().unwrap();
}

fn closes_with_a_send_in_flight<L: EventLoop>() {
    let mut event_loop = L::new(Doorbell::new().unwrap()).unwrap();
    let (here, mut there) = tcp_pair();
    let conn = event_loop.add(here.into()).unwrap();
    event_loop.send(conn, vec![7; 32 << 20]);
    let mut events = Vec::new();
    event_loop.poll(Some(Duration::from_millis(20)), &mut events).unwrap();
    event_loop.close(conn);
    event_loop.close(conn);
    // A connection that reuses the position receives no completions of the closed connection.
    let (here, mut other) = tcp_pair();
    let second = event_loop.add(here.into()).unwrap();
    assert_ne!(second, conn);
    other.write_all(b"hello").unwrap();
    poll_until(&mut event_loop, |event| match event {
        Event::Data { conn, .. } => {
            assert_eq!(conn, second);
            true
        }
        other => panic!("an event of a closed connection: {other:?}"),
    });
    event_loop.poll(Some(Duration::from_millis(20)), &mut events).unwrap();
    assert!(events.is_empty(), "{events:?}");
    // The peer first receives the contents of the kernel's buffers, and then the close.
    there.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut rest = Vec::new();
    let ended = there.read_to_end(&mut rest);
    assert!(!ended.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock), "it is still open");
    assert!(rest.len() < 32 << 20);
}

fn closes_at_once_when_nothing_is_sent<L: EventLoop>() {
    let mut event_loop = L::new(Doorbell::new().unwrap()).unwrap();
    let (here, mut there) = tcp_pair();
    let conn = event_loop.add(here.into()).unwrap();
    let mut events = Vec::new();
    event_loop.poll(Some(Duration::ZERO), &mut events).unwrap();
    event_loop.close(conn);
    for _ in 0..3 {
        event_loop.poll(Some(Duration::from_millis(10)), &mut events).unwrap();
    }
    assert!(events.is_empty(), "{events:?}");
    there.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(there.read(&mut [0; 1]).unwrap(), 0, "the connection must end");
}

/// Runs in a child process (`support::with_few_descriptors`), because the limit on descriptors
/// applies to the whole process.
fn survives_running_out_of_descriptors<L: EventLoop>() {
    support::with_few_descriptors(std::any::type_name::<L>(), |spare| {
        let mut event_loop = L::new(Doorbell::new().unwrap()).unwrap();
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        event_loop.add_listener(socket.into()).unwrap();
        let client = TcpStream::connect(address).unwrap();
        let hoard = spare.take_all();
        let mut events = Vec::new();
        let mut polls = 0;
        let deadline = Instant::now() + Duration::from_millis(500);
        while Instant::now() < deadline {
            event_loop.poll(Some(Duration::from_millis(250)), &mut events).unwrap();
            polls += 1;
            assert!(events.is_empty(), "{events:?}");
        }
        assert!(polls < 40, "{polls} polls in half a second: it spins");
        drop(hoard);
        poll_until(&mut event_loop, |event| matches!(event, Event::Accepted { .. }));
        drop(client);
    });
}

fn recovers_when_all_buffers_were_held<L: EventLoop>() {
    // More than the bound of either backend.
    const SENT_BYTES: usize = 160 << 20;
    let mut event_loop = L::new(Doorbell::new().unwrap()).unwrap();
    let (here, there) = UnixStream::pair().unwrap();
    let (tcp_here, mut tcp_there) = tcp_pair();
    let conn = event_loop.add(here.into()).unwrap();
    let other = event_loop.add(tcp_here.into()).unwrap();
    let sender = thread::spawn(move || {
        let mut there = there;
        let piece: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
        for _ in 0..SENT_BYTES >> 20 {
            there.write_all(&piece).unwrap();
        }
    });
    let mut events = Vec::new();
    let mut held: Vec<Chunk> = Vec::new();
    // Hold all chunks. At the bound of the loop's buffers, no more bytes arrive.
    let mut last = Instant::now();
    while last.elapsed() < Duration::from_millis(300) {
        event_loop.poll(Some(Duration::from_millis(50)), &mut events).unwrap();
        for event in events.drain(..) {
            let Event::Data { chunk, .. } = event else { panic!("{event:?}") };
            held.push(chunk);
            last = Instant::now();
        }
    }
    let mut received: usize = held.iter().map(Chunk::len).sum();
    assert!(received < SENT_BYTES, "no bound was reached");
    tcp_there.write_all(b"starving, too").unwrap();
    event_loop.poll(Some(Duration::from_millis(50)), &mut events).unwrap();
    assert!(events.is_empty(), "{events:?}");
    let mut next = 0_u8;
    let mut check = |bytes: &[u8]| {
        for &byte in bytes {
            assert_eq!(byte, next);
            next = next.wrapping_add(1);
        }
    };
    for chunk in held {
        check(event_loop.bytes(&chunk));
        event_loop.release(chunk);
    }
    let mut others = 0;
    while received < SENT_BYTES || others < 13 {
        poll_until(&mut event_loop, |event| {
            events.push(event);
            true
        });
        for event in events.drain(..) {
            match event {
                Event::Data { conn: from, chunk } if from == conn => {
                    check(event_loop.bytes(&chunk));
                    received += chunk.len();
                    event_loop.release(chunk);
                }
                Event::Data { conn: from, chunk } if from == other => {
                    others += chunk.len();
                    event_loop.release(chunk);
                }
                Event::Eof { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
    sender.join().unwrap();
}

fn is_dropped_with_operations_in_flight<L: EventLoop>() {
    for _ in 0..20 {
        let mut event_loop = L::new(Doorbell::new().unwrap()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        event_loop.add_listener(listener.into()).unwrap();
        let mut peers = Vec::new();
        for number in 0..10 {
            let (here, mut there) = tcp_pair();
            let conn = event_loop.add(here.into()).unwrap();
            event_loop.send(conn, vec![1; 16 << 20]);
            there.write_all(b"unread").unwrap();
            peers.push(there);
            if number % 2 == 0 {
                event_loop.close(conn);
            }
        }
        let mut events = Vec::new();
        event_loop.poll(Some(Duration::ZERO), &mut events).unwrap();
        let _waiting = TcpStream::connect(address).unwrap();
        let begin = Instant::now();
        drop(event_loop);
        assert!(begin.elapsed() < Duration::from_secs(1), "the drop hung for {:?}", begin.elapsed());
        for mut peer in peers {
            peer.set_read_timeout(Some(PATIENCE)).unwrap();
            // The read ends because all descriptors are closed.
            let ended = peer.read_to_end(&mut Vec::new());
            assert!(!ended.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock), "it is still open");
        }
    }
}

/// A quiet send to a peer that does not read doesn't delay a request of another connection.
fn a_blocked_quiet_send_delays_no_connection<L: EventLoop>() {
    let mut event_loop = L::new(Doorbell::new().unwrap()).unwrap();
    let (here, _deaf) = tcp_pair();
    let blocked = event_loop.add(here.into()).unwrap();
    let (here, mut there) = tcp_pair();
    let lively = event_loop.add(here.into()).unwrap();
    event_loop.send_quiet(blocked, vec![0; 32 << 20]);
    event_loop.send_quiet(lively, b"hello".to_vec());
    let asker = thread::spawn(move || {
        let mut answer = [0; 5];
        there.read_exact(&mut answer).unwrap();
        there.write_all(b"ping").unwrap();
        there
    });
    poll_until(&mut event_loop, |event| match event {
        Event::Data { conn, .. } => conn == lively,
        Event::Sent { conn, .. } => {
            assert_eq!(conn, lively);
            false
        }
        other => panic!("{other:?}"),
    });
    asker.join().unwrap();
}

fn stale_tokens_match_nothing<L: EventLoop>() {
    let mut event_loop = L::new(Doorbell::new().unwrap()).unwrap();
    let mut events = Vec::new();
    let mut seen: Vec<ConnId> = Vec::new();
    for _ in 0..50 {
        let (here, _there) = UnixStream::pair().unwrap();
        let conn = event_loop.add(OwnedFd::from(here)).unwrap();
        assert!(!seen.contains(&conn), "a token was issued twice");
        for &old in &seen {
            event_loop.pause_receive(old);
            event_loop.resume_receive(old);
            event_loop.expect_sent(old);
            event_loop.close(old);
            assert!(event_loop.socket(old).is_none());
        }
        assert!(event_loop.socket(conn).is_some());
        event_loop.poll(Some(Duration::ZERO), &mut events).unwrap();
        event_loop.close(conn);
        event_loop.poll(Some(Duration::ZERO), &mut events).unwrap();
        seen.push(conn);
    }
    let highest = seen.iter().map(|conn| conn.index()).max().unwrap();
    assert!(highest < 5, "positions are not reused: {highest}");
}
