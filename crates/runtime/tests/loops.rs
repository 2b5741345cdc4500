//! Tests with an echo server on one loop, and with blocking sockets as clients. Every test runs on
//! both backends.

mod support;

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use pantala_runtime::{Backend, Doorbell, EpollLoop, Event, EventLoop, UringLoop};
use support::{EchoServer, PATIENCE, Pieces, on_both, poll_until, raise_descriptor_limit, reset_on_close, tcp_pair};

on_both!(
    carries_more_than_the_queues_hold,
    echoes_random_pieces_over_tcp,
    echoes_random_pieces_over_unix,
    serves_two_thousand_connections,
    answers_after_the_peer_closed_its_sending_half,
    rings_from_other_threads,
    shares_a_listener_between_loops,
    pauses_and_resumes_receiving,
    pauses_and_resumes_accepting,
    sends_and_receives_hundreds_of_megabytes,
    a_quiet_send_does_not_end_a_wait,
    a_send_at_once_needs_no_event,
    keeps_to_its_timeout,
);

fn echoes_random_pieces_over_tcp<L: EventLoop>() {
    let server = EchoServer::<L>::on_tcp();
    Pieces::from_entropy().echo_through(&mut TcpStream::connect(server.address()).unwrap());
}

fn echoes_random_pieces_over_unix<L: EventLoop>() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let _server = EchoServer::<L>::on(UnixListener::bind(&path).unwrap().into());
    Pieces::from_entropy().echo_through(&mut UnixStream::connect(&path).unwrap());
}

fn serves_two_thousand_connections<L: EventLoop>() {
    const CONNECTIONS: usize = 2000;
    raise_descriptor_limit();
    let server = EchoServer::<L>::on_tcp();
    let mut clients: Vec<TcpStream> = (0..CONNECTIONS).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    // All clients write before any client reads. So a turn has more ready connections, and needs
    // more buffers, than the initial arrays hold.
    for round in 0..3 {
        for (number, client) in clients.iter_mut().enumerate() {
            client.write_all(format!("{round}:{number:06}").as_bytes()).unwrap();
        }
        for (number, client) in clients.iter_mut().enumerate() {
            let mut answer = [0; 8];
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            client.read_exact(&mut answer).unwrap();
            assert_eq!(answer, format!("{round}:{number:06}").as_bytes());
        }
    }
}

fn answers_after_the_peer_closed_its_sending_half<L: EventLoop>() {
    let server = EchoServer::<L>::on_tcp();
    let mut client = TcpStream::connect(server.address()).unwrap();
    client.write_all(b"last words").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    // The echo server closes the connection after Eof and its last send.
    client.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"last words");
}

fn rings_from_other_threads<L: EventLoop>() {
    const THREADS: usize = 4;
    const RINGS: usize = 200;
    let doorbell = Doorbell::new().unwrap();
    // Ring before the loop exists, and then while it is awake. Neither ring is lost.
    doorbell.ring();
    let mut event_loop = L::new(doorbell).unwrap();
    let woken = |event: Event| matches!(event, Event::Woken);
    poll_until(&mut event_loop, woken);
    event_loop.doorbell().ring();
    poll_until(&mut event_loop, woken);
    // Each ring is answered before the next one, so a lost ring would cause a timeout.
    let (ask, asked) = mpsc::channel();
    let ringers: Vec<_> = (0..THREADS)
        .map(|_| {
            let doorbell = event_loop.doorbell();
            let ask = ask.clone();
            thread::spawn(move || {
                for _ in 0..RINGS {
                    let (answer, answered) = mpsc::channel();
                    ask.send(answer).unwrap();
                    doorbell.ring();
                    answered.recv_timeout(PATIENCE).expect("the loop slept through a ring");
                }
            })
        })
        .collect();
    let mut answers = 0;
    while answers < THREADS * RINGS {
        poll_until(&mut event_loop, woken);
        for answer in asked.try_iter() {
            answer.send(()).unwrap();
            answers += 1;
        }
    }
    for ringer in ringers {
        ringer.join().unwrap();
    }
}

/// Two loops share one listening socket. Exactly one of them accepts each connection.
fn shares_a_listener_between_loops<L: EventLoop>() {
    const CONNECTIONS: usize = 200;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let second = listener.try_clone().unwrap();
    let servers = [EchoServer::<L>::on(listener.into()), EchoServer::<L>::on(second.into())];
    let mut clients: Vec<TcpStream> = (0..CONNECTIONS).map(|_| TcpStream::connect(address).unwrap()).collect();
    for client in &mut clients {
        client.write_all(b"x").unwrap();
    }
    for client in &mut clients {
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.read_exact(&mut [0; 1]).unwrap();
    }
    let accepted: Vec<usize> = servers.iter().map(EchoServer::accepted).collect();
    assert_eq!(accepted.iter().sum::<usize>(), CONNECTIONS, "{accepted:?}");
}

fn pauses_and_resumes_receiving<L: EventLoop>() {
    let mut event_loop = L::new(Doorbell::new().unwrap()).unwrap();
    let (here, mut there) = tcp_pair();
    let conn = event_loop.add(here.into()).unwrap();
    let mut events = Vec::new();
    for round in 0..20_u8 {
        event_loop.pause_receive(conn);
        event_loop.poll(Some(Duration::ZERO), &mut events).unwrap();
        event_loop.poll(Some(Duration::from_millis(5)), &mut events).unwrap();
        assert!(events.is_empty(), "{events:?}");
        there.write_all(&[round; 3]).unwrap();
        event_loop.poll(Some(Duration::from_millis(5)), &mut events).unwrap();
        assert!(events.is_empty(), "received while paused: {events:?}");
        event_loop.resume_receive(conn);
        if round % 2 == 0 {
            // Resume twice, during a pause that has not taken effect.
            event_loop.pause_receive(conn);
            event_loop.resume_receive(conn);
            event_loop.resume_receive(conn);
        }
        let mut received = Vec::new();
        while received.len() < 3 {
            poll_until(&mut event_loop, |event| match event {
                Event::Data { chunk, .. } => {
                    events.push(Event::Data { conn, chunk });
                    true
                }
                other => panic!("{other:?}"),
            });
            for event in events.drain(..) {
                if let Event::Data { chunk, .. } = event {
                    received.extend_from_slice(event_loop.bytes(&chunk));
                    event_loop.release(chunk);
                }
            }
        }
        assert_eq!(received, [round; 3]);
    }
}

fn pauses_and_resumes_accepting<L: EventLoop>() {
    let mut event_loop = L::new(Doorbell::new().unwrap()).unwrap();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let listener = event_loop.add_listener(socket.into()).unwrap();
    let mut events = Vec::new();
    event_loop.poll(Some(Duration::ZERO), &mut events).unwrap();
    event_loop.pause_accept(listener);
    event_loop.poll(Some(Duration::from_millis(10)), &mut events).unwrap();
    let _client = TcpStream::connect(address).unwrap();
    event_loop.poll(Some(Duration::from_millis(50)), &mut events).unwrap();
    assert!(events.is_empty(), "accepted while paused: {events:?}");
    event_loop.resume_accept(listener);
    poll_until(&mut event_loop, |event| matches!(event, Event::Accepted { listener: from, .. } if from == listener));
    event_loop.remove_listener(listener);
    event_loop.remove_listener(listener);
    for _ in 0..3 {
        event_loop.poll(Some(Duration::from_millis(10)), &mut events).unwrap();
    }
    let refused = TcpStream::connect(address).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
}

fn sends_and_receives_hundreds_of_megabytes<L: EventLoop>() {
    const LEN_BYTES: usize = 512 << 20;
    let mut event_loop = L::new(Doorbell::new().unwrap()).unwrap();
    let (here, there) = tcp_pair();
    let conn = event_loop.add(here.into()).unwrap();
    let mut there_too = there.try_clone().unwrap();
    let reader = thread::spawn(move || {
        let mut there = there;
        let mut bytes = vec![0; 1 << 20];
        let mut sum = 0_u64;
        let mut rest = LEN_BYTES;
        while rest > 0 {
            let read = there.read(&mut bytes).unwrap();
            assert!(read > 0);
            rest -= read;
            sum += bytes[..read].iter().map(|&byte| u64::from(byte)).sum::<u64>();
        }
        sum
    });
    let writer = thread::spawn(move || {
        let piece = vec![3; 1 << 20];
        for _ in 0..LEN_BYTES >> 20 {
            there_too.write_all(&piece).unwrap();
        }
    });
    event_loop.send(conn, vec![5; LEN_BYTES]);
    let mut events = Vec::new();
    let (mut received, mut sent) = (0, false);
    while received < LEN_BYTES || !sent {
        poll_until(&mut event_loop, |event| {
            events.push(event);
            true
        });
        for event in events.drain(..) {
            match event {
                Event::Data { chunk, .. } => {
                    assert!(event_loop.bytes(&chunk).iter().all(|&byte| byte == 3));
                    event_loop.bytes_mut(&chunk).fill(9);
                    received += chunk.len();
                    event_loop.release(chunk);
                }
                Event::Sent { result, .. } => {
                    result.unwrap();
                    sent = true;
                }
                // The peer has read and written all bytes, and has closed the connection before
                // `Sent` was reported.
                Event::Eof { .. } => assert_eq!(received, LEN_BYTES),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(received, LEN_BYTES);
    assert_eq!(reader.join().unwrap(), 5 * LEN_BYTES as u64);
    writer.join().unwrap();
}

fn a_quiet_send_does_not_end_a_wait<L: EventLoop>() {
    const WAIT: Duration = Duration::from_millis(100);
    let mut event_loop = L::new(Doorbell::new().unwrap()).unwrap();
    let (here, _there) = tcp_pair();
    let conn = event_loop.add(here.into()).unwrap();
    let mut events = Vec::new();
    event_loop.send_quiet(conn, b"quiet".to_vec());
    let begin = Instant::now();
    event_loop.poll(Some(WAIT), &mut events).unwrap();
    assert!(begin.elapsed() >= WAIT);
    assert!(matches!(events.pop(), Some(Event::Sent { result: Ok(()), .. })));
    // An expected send ends the wait.
    event_loop.send_quiet(conn, b"expected".to_vec());
    event_loop.expect_sent(conn);
    let begin = Instant::now();
    event_loop.poll(Some(PATIENCE), &mut events).unwrap();
    assert!(begin.elapsed() < PATIENCE / 2);
    assert!(matches!(events.pop(), Some(Event::Sent { result: Ok(()), .. })));
    // So does an ordinary send.
    event_loop.send(conn, b"loud".to_vec());
    let begin = Instant::now();
    event_loop.poll(Some(PATIENCE), &mut events).unwrap();
    assert!(begin.elapsed() < PATIENCE / 2);
    assert!(matches!(events.pop(), Some(Event::Sent { result: Ok(()), .. })));
}

fn a_send_at_once_needs_no_event<L: EventLoop>() {
    const LEN_BYTES: usize = 32 << 20;
    let mut event_loop = L::new(Doorbell::new().unwrap()).unwrap();
    let (here, mut there) = tcp_pair();
    let conn = event_loop.add(here.into()).unwrap();
    let returned = event_loop.send_at_once(conn, b"hello".to_vec());
    match event_loop.backend() {
        Backend::Epoll => assert!(returned.is_some_and(|buffer| buffer.is_empty() && buffer.capacity() >= 5)),
        // This backend starts sends in its next poll.
        Backend::IoUring => {
            assert_eq!(returned, None);
            event_loop.expect_sent(conn);
            poll_until(&mut event_loop, |event| matches!(event, Event::Sent { result: Ok(()), .. }));
        }
    }
    let mut bytes = [0; 5];
    there.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"hello");
    // These are more bytes than the socket has room for. The rest is sent when there is room.
    // Because of `expect_sent`, the completion ends the wait.
    assert_eq!(event_loop.send_at_once(conn, vec![7; LEN_BYTES]), None);
    event_loop.expect_sent(conn);
    let mut events = Vec::new();
    event_loop.poll(Some(Duration::from_millis(50)), &mut events).unwrap();
    assert!(events.is_empty(), "{events:?}");
    let reader = thread::spawn(move || {
        let mut bytes = vec![0; LEN_BYTES];
        there.read_exact(&mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 7));
        there
    });
    poll_until(&mut event_loop, |event| matches!(event, Event::Sent { result: Ok(()), .. }));
    // A failure is reported like the failure of any other send.
    let there = reader.join().unwrap();
    reset_on_close(&there);
    drop(there);
    assert_eq!(event_loop.send_at_once(conn, b"late".to_vec()), None);
    poll_until(&mut event_loop, |event| matches!(event, Event::Sent { result: Err(_), .. }));
}

fn keeps_to_its_timeout<L: EventLoop>() {
    let mut event_loop = L::new(Doorbell::new().unwrap()).unwrap();
    let mut events = Vec::new();
    for wait_ms in [0, 1, 20, 100] {
        let wait = Duration::from_millis(wait_ms);
        let begin = Instant::now();
        event_loop.poll(Some(wait), &mut events).unwrap();
        let waited = begin.elapsed();
        assert!(waited >= wait, "{waited:?} instead of {wait:?}");
        assert!(waited < wait + Duration::from_secs(2), "{waited:?} instead of {wait:?}");
        assert!(events.is_empty());
    }
    // Only the doorbell ends these waits, even with a timeout that no kernel structure can hold.
    for timeout in [None, Some(Duration::MAX)] {
        let rung = Arc::new(AtomicBool::new(false));
        let (doorbell, flag) = (event_loop.doorbell(), Arc::clone(&rung));
        let ringer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            flag.store(true, Ordering::SeqCst);
            doorbell.ring();
        });
        while events.is_empty() {
            event_loop.poll(timeout, &mut events).unwrap();
        }
        assert!(rung.load(Ordering::SeqCst));
        assert!(matches!(events.pop(), Some(Event::Woken)));
        ringer.join().unwrap();
    }
}

/// One turn has more sends and receives than the queues of either backend can hold. Each of them is
/// reported once.
fn carries_more_than_the_queues_hold<L: EventLoop>() {
    const PAIRS: usize = 3000;
    raise_descriptor_limit();
    let mut event_loop = L::new(Doorbell::new().unwrap()).unwrap();
    let mut conns = Vec::new();
    for _ in 0..PAIRS {
        let (one, other) = UnixStream::pair().unwrap();
        conns.push(event_loop.add(one.into()).unwrap());
        conns.push(event_loop.add(other.into()).unwrap());
    }
    for round in 0..3_u8 {
        for &conn in &conns {
            event_loop.send_quiet(conn, vec![round; 3]);
        }
        let mut sent = vec![0; conns.len()];
        let mut received = vec![0; conns.len()];
        let mut events = Vec::new();
        while sent.iter().sum::<usize>() < conns.len() || received.iter().sum::<usize>() < 3 * conns.len() {
            event_loop.poll(Some(PATIENCE), &mut events).unwrap();
            assert!(!events.is_empty(), "nothing came");
            for event in events.drain(..) {
                match event {
                    Event::Sent { conn, result, .. } => {
                        result.unwrap();
                        sent[conn.index()] += 1;
                    }
                    Event::Data { conn, chunk } => {
                        assert!(event_loop.bytes(&chunk).iter().all(|&byte| byte == round));
                        received[conn.index()] += chunk.len();
                        event_loop.release(chunk);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        assert!(sent.iter().all(|&count| count == 1));
        assert!(received.iter().all(|&count| count == 3));
    }
}
