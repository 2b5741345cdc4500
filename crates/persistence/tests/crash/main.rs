//! Tests of the code that writes snapshots (`saves`) and the append-only file (`world`), on a
//! simulated disk. A simulated crash loses data that a real file system may lose. Calls may also
//! fail. After each crash, the files of an append-only file are loaded and checked:
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

mod content;
mod disk;
mod file;
mod saves;
mod units;
mod world;

use std::time::Instant;

use pantala_base::Random;

use disk::Broken;
use saves::SaveWorld;
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

/// Runs worlds until there have been this many crashes. Returns the counts, or the first violation.
fn campaign_of_saves(seed: u64, crashes: u64, broken: Option<Broken>) -> Result<saves::Tally, String> {
    let (mut tally, mut worlds, mut random) = (saves::Tally::default(), 0, Random::from_seed(seed));
    while tally.crashes + tally.kills < crashes {
        let world_seed = random.next_u64();
        worlds += 1;
        SaveWorld::new(world_seed, broken, &mut tally)
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
    assert!(tally.rdb_bases > crashes / 100 && tally.faults > crashes / 100 && tally.promised > crashes, "{tally:?}");
}

fn run_saves(test: &str, crashes: u64) {
    let began = Instant::now();
    let tally = campaign_of_saves(seed(test), crashes, None).unwrap_or_else(|violation| panic!("{violation}"));
    println!("{tally:?} in {:.1} s", began.elapsed().as_secs_f64());
    // The campaign must have covered enough of each outcome.
    let saves::Tally { interrupted, faults, saved, failed, aborted, left, .. } = tally;
    assert!([interrupted, faults, saved, failed, aborted, left].iter().all(|count| *count > crashes / 20), "{tally:?}");
}

/// Returns the number of crashes of a long campaign.
fn crashes() -> u64 {
    std::env::var("PANTALA_CRASHES").ok().and_then(|text| text.trim().parse().ok()).unwrap_or(1_000_000)
}

#[test]
fn no_promise_is_broken() {
    run("no_promise_is_broken", 2_000);
}

#[test]
#[ignore = "runs for minutes: .ci/nightly"]
fn no_promise_is_broken_in_a_million_crashes() {
    run("no_promise_is_broken_in_a_million_crashes", crashes());
}

#[test]
fn snapshots_are_whole_and_the_last_saved_ones() {
    run_saves("snapshots_are_whole_and_the_last_saved_ones", 3_000);
}

#[test]
#[ignore = "runs for minutes: .ci/nightly"]
fn snapshots_are_whole_after_a_million_crashes() {
    run_saves("snapshots_are_whole_after_a_million_crashes", crashes());
}

#[test]
fn broken_rules_are_found() {
    use Broken::{BaseSync, DirectorySync, EarlyReply, FileSync, ManifestSync, WriteBack};
    for broken in [FileSync, DirectorySync, ManifestSync, BaseSync, EarlyReply, WriteBack] {
        let violation = campaign(1, 2_000, Some(broken)).expect_err("the rule is broken");
        println!("{broken:?}: {violation}");
    }
}

#[test]
fn broken_rules_of_saves_are_found() {
    use Broken::{DirectoryError, DirectorySync, FileSync, InPlace, Leftover, SnapshotSync, SyncRetry, WriteError};
    for broken in [FileSync, DirectorySync, SnapshotSync, DirectoryError, SyncRetry, WriteError, InPlace, Leftover] {
        let violation = campaign_of_saves(1, 2_000, Some(broken)).expect_err("the rule is broken");
        println!("{broken:?}: {violation}");
    }
}
