//! Tests of the state machines that write the append-only file, on a simulated disk. A simulated
//! crash loses data that a real file system may lose. Calls may also fail. After each crash, the
//! files are loaded and checked:
//!
//! - They must contain all effects that were promised to be durable.
//! - Further effects must be in order and without gaps.
//! - Each transaction must be complete or absent.
//!
//! A *campaign* is a series of such crashes.
//!
//! A *unit* consists of the effects of one command or transaction. The stream contains the units of
//! all clients in one order, so a promise is a number: that of the last unit that must be durable.
//! With `appendfsync always`, clients may have received replies up to this unit. With `everysec`,
//! this unit was synced.

mod disk;
mod units;
mod world;

use std::time::Instant;

use pantala_base::Random;

use disk::Broken;
use world::{Tally, World};

/// Returns the seed of the campaign: `PANTALA_SEED` if it is set, otherwise a random one. Prints
/// the seed.
fn seed(test: &str) -> u64 {
    let given = std::env::var("PANTALA_SEED").ok().and_then(|text| text.trim().parse().ok());
    let seed = given.unwrap_or_else(|| Random::from_entropy().below(1 << 40));
    println!("{test}: PANTALA_SEED={seed}");
    seed
}

/// Runs worlds until there have been this many crashes. Returns the counts, or the first violation.
fn campaign(seed: u64, crashes: u64, broken: Option<Broken>) -> Result<Tally, String> {
    let (mut tally, mut worlds, mut random) = (Tally::default(), 0, Random::from_seed(seed));
    while tally.crashes + tally.kills < crashes {
        let world_seed = random.next_u64();
        worlds += 1;
        World::new(world_seed, broken, &mut tally)
            .run()
            .map_err(|why| format!("world {worlds} of seed {seed} (its seed is {world_seed}): {why}"))?;
    }
    Ok(tally)
}

fn run(test: &str, crashes: u64) {
    let began = Instant::now();
    let tally = campaign(seed(test), crashes, None).unwrap_or_else(|violation| panic!("{violation}"));
    println!("{tally:?} in {:.1} s", began.elapsed().as_secs_f64());
    // The campaign must have covered enough bases, faults and promises.
    assert!(tally.bases > crashes / 100 && tally.faults > crashes / 100 && tally.promised > crashes, "{tally:?}");
}

#[test]
fn no_promise_is_broken() {
    run("no_promise_is_broken", 2_000);
}

#[test]
#[ignore = "runs for minutes: .ci/nightly"]
fn no_promise_is_broken_in_a_million_crashes() {
    let given = std::env::var("PANTALA_CRASHES").ok().and_then(|text| text.trim().parse().ok());
    run("no_promise_is_broken_in_a_million_crashes", given.unwrap_or(1_000_000));
}

#[test]
fn broken_rules_are_found() {
    for broken in [Broken::FileSync, Broken::DirectorySync, Broken::ManifestSync, Broken::BaseSync, Broken::EarlyReply]
    {
        let violation = campaign(1, 2_000, Some(broken)).expect_err("the rule is broken");
        println!("{broken:?}: {violation}");
    }
}
