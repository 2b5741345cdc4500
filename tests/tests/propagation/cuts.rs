//! Replays prefixes of the stream of effects to a redis-server and a Pantala.

use pantala_tests::effects::{
    Effect, EffectStream, Encoded, deadlines, difference, different_deadline, digest, replay,
};
use pantala_tests::{Backend, Client, Random, Reply, Server, differential, for_each_backend};

use super::{WRITERS, copy_limits, pipeline, write_together, writer_random};

/// Number of random commands before the writers' commands.
const COMMANDS: usize = 2500;

/// Number of pipelines that each writer sends.
const PIPELINES: usize = 15;

/// Number of cuts of each kind: between two units, at any byte, and within a transaction.
const CUTS: usize = 4;

/// For each writer, its commands `SET own:<writer>:<key> <number>` in the order in which they are
/// sent.
struct Sent(Vec<Vec<(String, u64)>>);

impl Sent {
    fn new(seed: u64, pipelines: usize) -> Sent {
        let sets = |writer| {
            let (mut random, mut number) = (writer_random(seed, writer), 0);
            let commands = (0..pipelines).flat_map(|_| pipeline(&mut random, writer, &mut number)).collect::<Vec<_>>();
            let own = commands.into_iter().filter(|words| words.len() == 3 && words[1].starts_with("own:"));
            own.map(|mut words| (words.remove(1), words[1].parse().expect("a number"))).collect()
        };
        Sent((0..WRITERS).map(sets).collect())
    }

    /// Returns a violation in a dataset: only one of a transaction's commands has run, or a
    /// writer's command has run without the writer's earlier commands.
    fn violation(&self, client: &mut Client) -> Option<String> {
        (0..WRITERS).find_map(|writer| {
            let pair = client.call(&format!("MGET pair:{writer}:a pair:{writer}:b"));
            if pair.elements()[0] != pair.elements()[1] {
                return Some(format!("half a transaction of writer {writer}: {pair:?}"));
            }
            let sets = &self.0[writer];
            let keys: Vec<&String> = sets.iter().map(|(key, _)| key).collect();
            let mut value = |key: &str| match client.command(&["GET", key]) {
                Reply::Null => 0,
                number => number.text().parse::<u64>().expect("a number"),
            };
            let values: Vec<u64> = keys.iter().map(|key| value(key)).collect();
            let latest = values.iter().copied().max()?;
            let lost = keys.iter().zip(&values).find(|(key, value)| {
                let earlier = sets.iter().filter(|(set, number)| set == **key && *number <= latest);
                earlier.map(|(_, number)| *number).max().unwrap_or(0) != **value
            });
            lost.map(|(key, value)| format!("{key} is {value}, although writer {writer} has later set {latest}"))
        })
    }
}

/// Returns random positions in the stream, [`CUTS`] of each kind: between two units, at any byte,
/// and in the second command of a writer's transaction.
fn cuts(random: &mut Random, effects: &[Effect], Encoded { bytes, ends }: &Encoded) -> Vec<usize> {
    let mut is_open = false;
    let between = effects.iter().zip(ends).filter_map(|(effect, end)| {
        is_open = if is_open { effect[0] != b"EXEC" } else { effect[0] == b"MULTI" };
        (!is_open).then_some(*end)
    });
    let between: Vec<usize> = between.collect();
    let is_second =
        |effect: &Effect| effect.len() == 3 && effect[1].starts_with(b"pair:") && effect[1].ends_with(b":b");
    let seconds: Vec<usize> = (1..effects.len()).filter(|at| is_second(&effects[*at])).collect();
    let mut all: Vec<usize> = (0..CUTS).map(|_| between[random.below(between.len())]).collect();
    all.extend((0..CUTS).map(|_| random.below(bytes.len())));
    all.extend((0..CUTS).map(|_| {
        let second = seconds[random.below(seconds.len())];
        ends[second - 1] + random.below(ends[second] - ends[second - 1])
    }));
    all
}

#[test]
fn the_stream_cut_at_random_positions_gives_both_servers_the_same_dataset() {
    let test = "the_stream_cut_at_random_positions_gives_both_servers_the_same_dataset";
    let seed = Random::seed(test);
    for_each_backend(|backend| {
        let Some(reference) = Server::redis(&[]) else { return };
        let subject = Server::pantala(backend, &["--workers", "3", "--shards", "5"]);
        let mut stream = EffectStream::attach(&subject);
        let name = format!("{test} on {}", backend.name());
        differential::compare(&subject, &reference, seed, &name, COMMANDS);
        write_together(&subject, seed, PIPELINES);
        let effects = stream.take(&mut subject.connect());
        let (encoded, sent) = (Encoded::new(&effects), Sent::new(seed, PIPELINES));
        let mut copy = Server::pantala(backend, &["--workers", "2"]);
        for server in [&copy, &reference] {
            copy_limits(&subject, server);
        }
        let mut random = Random::from_seed(Random::seed_of(seed, &name));
        for cut in cuts(&mut random, &effects, &encoded) {
            let what = format!("PANTALA_SEED={seed}, cut at byte {cut} of {}", encoded.bytes.len());
            for server in [&copy, &reference] {
                let mut client = server.connect();
                for command in ["FLUSHALL", "FUNCTION FLUSH", "SCRIPT FLUSH"] {
                    assert_eq!(client.call(command), Reply::ok());
                }
                encoded.replay_prefix(cut, server);
                assert_eq!(sent.violation(&mut client), None, "{what}");
            }
            let is_equal = digest(&copy) == digest(&reference);
            assert!(is_equal, "{what}: {}", difference(&reference, &copy, &effects));
            assert_eq!(deadlines(&copy), deadlines(&reference), "{what}");
        }
        copy.assert_sound();
    });
}

/// With the fault `verbatim-form`, commands are propagated as the client sent them, for example
/// random pops and relative expiries. A comparison of digests would not detect a relative expiry.
#[test]
fn effects_in_a_wrong_form_are_detected() {
    let server = Server::pantala(Backend::all()[0], &["--workers", "2"]);
    let mut client = server.connect();
    if client.call("DEBUG FAULT verbatim-form 0").is_error() {
        // Without debug assertions, a build has no faults to inject.
        return;
    }
    let sets: String = (0..100).map(|number| format!("SADD set {number} ;; ")).collect();
    let pops = format!("{sets}SPOP set 50");
    for (commands, is_in_digest) in [(pops.as_str(), true), ("SET a v EX 1000 ;; SET b v ;; EXPIRE b 1000", false)] {
        for permille in [0, 1000] {
            client.call("FLUSHALL");
            let mut stream = EffectStream::attach(&server);
            client.call(&format!("DEBUG FAULT verbatim-form {permille}"));
            commands.split(" ;; ").for_each(|command| assert!(!client.call(command).is_error(), "{command}"));
            client.call("DEBUG FAULT verbatim-form 0");
            let effects = stream.take(&mut client);
            let copy = Server::pantala(Backend::all()[0], &[]);
            replay(&effects, &copy);
            let is_other_digest = digest(&copy) != digest(&server);
            let is_other_deadline = different_deadline(&server, &copy).is_some();
            let expected = (permille > 0 && is_in_digest, permille > 0 && !is_in_digest);
            assert_eq!(
                (is_other_digest, is_other_deadline),
                expected,
                "{commands} at {permille} permille: {effects:?}"
            );
        }
    }
}
