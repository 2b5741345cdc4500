//! Checks the deletions of evicted keys in the stream of effects.

use pantala_tests::effects::{Effect, EffectStream, show_effect};
use pantala_tests::{Client, Reply, Server, for_each_backend};

use super::assert_rebuilds;

const KEYS: usize = 1500;
const VALUE_BYTES: usize = 3000;

/// Memory that the keys may use. The keys need more, so some are evicted.
const MORE_BYTES: usize = KEYS * VALUE_BYTES / 3;

fn set(control: &mut Client, name: &str, value: &str) {
    assert_eq!(control.call(&format!("CONFIG SET {name} {value}")), Reply::ok(), "{name}");
}

fn used_memory(control: &mut Client) -> usize {
    let text = control.call("INFO memory").text();
    let value = text.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("the field exists");
    value.trim().parse().expect("a number")
}

/// Writes more keys than fit into memory, from one connection for each number in `0..writers`.
fn overfill(server: &Server, writers: usize) {
    let value = "v".repeat(VALUE_BYTES);
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let value = &value;
            scope.spawn(move || {
                let mut client = server.connect();
                for number in (writer..KEYS).step_by(writers) {
                    assert_eq!(client.command(&["SET", &format!("k{number}"), value]), Reply::ok());
                }
            });
        }
    });
}

/// Fills a server that has a memory limit. Returns the server's effects, and its events of sets and
/// evictions in the form of effects. If `is_lazy` is true, evicted values are freed in the
/// background.
fn effects_and_events(server: &Server, policy: &str, is_lazy: bool, writers: usize) -> (Vec<Effect>, Vec<String>) {
    let (mut control, mut listener) = (server.connect(), server.connect());
    let (option, deletion) = if is_lazy { ("yes", "UNLINK") } else { ("no", "DEL") };
    assert_eq!(control.call("FLUSHALL"), Reply::ok());
    set(&mut control, "lazyfree-lazy-eviction", option);
    set(&mut control, "notify-keyspace-events", "E$e");
    let mut stream = EffectStream::attach(server);
    listener.call("PSUBSCRIBE __keyevent@0__:*");
    let limit = used_memory(&mut control) + MORE_BYTES;
    set(&mut control, "maxmemory-policy", policy);
    set(&mut control, "maxmemory", &limit.to_string());
    overfill(server, writers);
    set(&mut control, "maxmemory", "0");
    // This command publishes the last event.
    control.call("SET last 1");
    let mut events = Vec::new();
    loop {
        let message = listener.receive();
        let [_, _, channel, key] = message.elements() else { panic!("no message: {message:?}") };
        match (channel.text().rsplit(':').next(), key.text()) {
            (Some("set"), key) if key == "last" => break,
            (Some("set"), key) => events.push(format!("SET {key}")),
            (Some("evicted"), key) => events.push(format!("{deletion} {key}")),
            other => panic!("event {other:?}"),
        }
    }
    (stream.take(&mut control), events)
}

/// Returns the commands and keys of effects on keys `k…`.
fn shown(effects: &[Effect]) -> Vec<String> {
    let on_keys = effects.iter().filter(|effect| effect.len() > 1 && effect[1].starts_with(b"k"));
    on_keys.map(|effect| show_effect(&effect[..2].to_vec())).collect()
}

/// Returns the maximum number of keys that a copy has while it applies these sets and deletions.
fn keys_held_max(effects: &[String]) -> usize {
    let (mut held, mut most) = (0, 0);
    for effect in effects {
        held = if effect.starts_with("SET ") { held + 1 } else { held - 1 };
        most = most.max(held);
    }
    most
}

/// On one worker, events are in the order in which the server changed the keys. A key is evicted
/// before the write that needs the key's memory. If the effects have the same order, a copy needs
/// no more memory than the server.
#[test]
fn evicted_keys_are_propagated_before_the_write_that_needs_room() {
    let check = |server: &Server, policy: &str, is_lazy: bool| {
        let (effects, events) = effects_and_events(server, policy, is_lazy, 1);
        let evicted = events.iter().filter(|event| !event.starts_with("SET ")).count();
        assert!(evicted > KEYS / 2, "{evicted} evicted with {policy}");
        let effects_shown = shown(&effects);
        let differs = effects_shown.iter().zip(&events).position(|(effect, event)| effect != event);
        assert_eq!((differs, effects_shown.len()), (None, events.len()), "{policy}, lazy: {is_lazy}");
        let held = keys_held_max(&effects_shown);
        assert!(held * VALUE_BYTES <= MORE_BYTES + MORE_BYTES / 20, "{policy}: {held} keys at once");
        effects
    };
    for_each_backend(|backend| {
        let mut subject = Server::pantala(backend, &["--workers", "1", "--shards", "4"]);
        for (policy, is_lazy) in [("allkeys-random", false), ("allkeys-lru", true)] {
            let effects = check(&subject, policy, is_lazy);
            assert_rebuilds(&effects, &subject, backend);
        }
        subject.assert_sound();
    });
    if let Some(reference) = Server::redis(&[]) {
        check(&reference, "allkeys-random", false);
        check(&reference, "allkeys-lru", true);
    }
}

#[test]
fn the_stream_of_writers_that_evict_each_others_keys_rebuilds_the_dataset() {
    for_each_backend(|backend| {
        for execution in ["inline", "owner"] {
            let args = ["--workers", "3", "--shards", "6", "--execution", execution];
            let mut subject = Server::pantala(backend, &args);
            let (effects, events) = effects_and_events(&subject, "allkeys-lru", false, 4);
            let (mut effects_shown, mut events) = (shown(&effects), events);
            assert_rebuilds(&effects, &subject, backend);
            // Events of different workers may be published in another order.
            effects_shown.sort_unstable();
            events.sort_unstable();
            assert!(effects_shown == events, "{} effects, {} events", effects_shown.len(), events.len());
            subject.assert_sound();
        }
    });
}
