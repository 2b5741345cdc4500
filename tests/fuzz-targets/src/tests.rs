//! Runs each target on random inputs, so that most broken targets are found without libFuzzer. The
//! target `tls` is missing: it needs `openssl`.

use pantala_tests::random::Random;

use crate::{acl, aof, config, login, rdb, resp, restore, session};

const INPUTS: usize = 1_000;
const BYTES_MAX: usize = 200;

/// Runs a target on inputs of any bytes, and on inputs of letters, digits and line breaks.
fn run_on_random_inputs(name: &str, target: fn(&[u8])) {
    const TEXT: &[u8] = b"+-*$@~&%>()[]{} \r\n\"\\#0123456789abcdefghijklmnopqrstuvwxyzGETS";
    let mut random = Random::from_seed(Random::seed_of(Random::seed("fuzz targets"), name));
    for round in 0..INPUTS {
        let mut input = Vec::new();
        for _ in 0..random.below(BYTES_MAX) {
            input.push(if round % 2 == 0 { random.next_u64() as u8 } else { *random.pick(TEXT) });
        }
        target(&input);
    }
}

#[test]
fn targets_hold_on_random_inputs() {
    run_on_random_inputs("acl", acl::run);
    run_on_random_inputs("aof", aof::run);
    run_on_random_inputs("config", config::run);
    run_on_random_inputs("login", login::run);
    run_on_random_inputs("rdb", rdb::run);
    run_on_random_inputs("resp", resp::run);
    run_on_random_inputs("restore", restore::run);
    run_on_random_inputs("session", session::run);
}
