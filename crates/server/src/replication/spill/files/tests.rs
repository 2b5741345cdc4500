//! Tests of the files against a model: the whole stream in memory.

use pantala_base::Random;

use super::*;
use crate::replication::unnamed::unnamed_file;

/// Number of random operations.
const STEPS: usize = 3000;

fn open() -> io::Result<File> {
    unnamed_file(&std::env::temp_dir(), "spill-test")
}

fn seeded(test: &str) -> Random {
    let given = std::env::var("PANTALA_SEED").ok().and_then(|seed| seed.trim().parse().ok());
    let seed = given.unwrap_or_else(|| Random::from_entropy().next_u64());
    println!("{test}: PANTALA_SEED={seed}");
    Random::from_seed(seed)
}

#[test]
fn the_files_have_the_last_bytes_of_the_stream() {
    let mut random = seeded("the_files_have_the_last_bytes_of_the_stream");
    let (mut files, mut stream, mut base) = (SpillFiles::default(), Vec::new(), 1000);
    let mut bytes_max = 64 * 1024;
    for step in 0..STEPS {
        let end = base + stream.len() as u64;
        match random.below(100) {
            0..=54 => {
                let bytes_below = if random.below(20) == 0 { 200_000 } else { 9000 };
                let mut bytes = vec![0; random.below(bytes_below) as usize];
                random.fill(&mut bytes);
                files.append(end, &bytes, bytes_max, open).expect("the disk has room");
                stream.extend_from_slice(&bytes);
                assert!(files.bytes <= bytes_max, "step {step}: {} of {bytes_max} bytes", files.bytes);
            }
            55..=95 => {
                let held = files.held();
                let start = held.start + random.below(held.end - held.start + 1);
                let range = start..start + random.below(held.end - start + 1);
                let mut read = b"before".to_vec();
                files.read(range.clone(), &mut read).expect("the range is on disk");
                let expected = &stream[(range.start.max(base) - base) as usize..(range.end.max(base) - base) as usize];
                assert!(read.starts_with(b"before") && &read[6..] == expected, "step {step}: {range:?}");
            }
            96..=97 => bytes_max = 4096 + random.below(128 * 1024),
            _ => {
                files.clear();
                assert_eq!((files.held(), files.bytes), (0..0, 0));
                (base, stream) = (end + random.below(5), Vec::new());
            }
        }
        let held = files.held();
        assert_eq!(held.end - held.start, files.bytes, "step {step}: there is no gap");
        assert!(files.bytes == 0 || held.end == base + stream.len() as u64, "step {step}");
        assert!(files.parts.len() as u64 <= 3 * FILES, "step {step}: {} files", files.parts.len());
    }
}

#[test]
fn fifteen_of_sixteen_parts_stay_on_disk() {
    let mut files = SpillFiles::default();
    let bytes_max = 160_000;
    for number in 0..1000 {
        files.append(number * 1000, &[7; 1000], bytes_max, open).expect("the disk has room");
        let least = (number * 1000 + 1000).min(bytes_max / FILES * (FILES - 1));
        assert!((least..=bytes_max).contains(&files.bytes), "{}", files.bytes);
    }
    // A lower limit drops the oldest files at the next write, even if nothing is written.
    files.append(1_000_000, &[], bytes_max / 2, open).expect("nothing is written");
    assert!((bytes_max / 4..=bytes_max / 2).contains(&files.bytes), "{}", files.bytes);
    assert_eq!(files.held().end, 1_000_000);
}

#[test]
fn bytes_outside_of_the_files_are_an_error() {
    let mut files = SpillFiles::default();
    assert!(files.read(0..1, &mut Vec::new()).is_err());
    files.append(100, &[1; 50], 1000, open).expect("the disk has room");
    for range in [99..101, 149..151, 150..151, 0..10] {
        assert!(files.read(range.clone(), &mut Vec::new()).is_err(), "{range:?}");
    }
    assert!(files.append(151, &[1], 1000, open).is_err(), "there would be a gap");
    let fails = || Err(io::Error::other("no file"));
    assert!(files.append(150, &[1; 500], 1000, fails).is_err());
}
