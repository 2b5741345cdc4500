//! Random command streams to Pantala and to the real redis-server, replies compared byte for byte.

use pantala_tests::{Backend, Random, Server, differential};

/// Commands of one run, unless `PANTALA_DIFF_COMMANDS` says otherwise.
const COMMANDS: usize = 100_000;

fn commands() -> usize {
    match std::env::var("PANTALA_DIFF_COMMANDS") {
        Ok(text) => text.trim().parse().expect("PANTALA_DIFF_COMMANDS must be a number"),
        Err(_) => COMMANDS,
    }
}

fn compare(test: &str, args: &[&str]) {
    for (number, backend) in Backend::all().iter().enumerate() {
        let Some(judge) = Server::redis(&[]) else { return };
        let mut subject = Server::pantala(*backend, args);
        // Each run its own stream, all from the one seed that is printed.
        let seed = Random::seed(test).wrapping_add(number as u64);
        differential::compare(&subject, &judge, seed, commands());
        subject.assert_sound();
    }
}

#[test]
fn one_shard_answers_as_redis() {
    compare("one_shard_answers_as_redis", &["--workers", "1", "--shards", "1"]);
}

#[test]
fn forty_shards_answer_as_redis() {
    compare("forty_shards_answer_as_redis", &["--workers", "2", "--shards", "40"]);
}

#[test]
fn owner_execution_answers_as_redis() {
    compare("owner_execution_answers_as_redis", &["--workers", "4", "--shards", "40", "--execution", "owner"]);
}

/// The generator itself: two real servers never differ. If this fails, a stream isn't deterministic, and no other
/// failure here means anything.
#[test]
fn two_judges_agree() {
    let (Some(one), Some(two)) = (Server::redis(&[]), Server::redis(&[])) else { return };
    let seed = Random::seed("two_judges_agree");
    differential::compare(&one, &two, seed, commands());
}
