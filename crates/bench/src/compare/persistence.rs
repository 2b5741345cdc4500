//! Measures the workloads whose rounds write a snapshot or load the dataset.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use pantala_resp::value::Value;

use super::measure::{Comparison, Driven, measured};
use super::peers::{Peer, check_interrupted};
use super::workloads::{Needs, Workload};
use crate::load::control::{Control, Login, Target};
use crate::load::outcome::Outcome;

/// Interval between checks whether a snapshot has ended.
const CHECK: Duration = Duration::from_millis(10);
/// Number of bytes that the copy of a snapshot reads and writes at once.
const COPY_BYTES: usize = 1 << 20;

impl Comparison<'_> {
    /// Measures a snapshot in the background, and then a plain copy of the snapshot's file.
    pub(super) fn save(&self, peer: &Peer, workload: &Workload, round: u64) -> io::Result<Driven> {
        let mut control = Control::open(&Target::Tcp(peer.addresses[0]), &Login::default())?;
        let (before, begin) = (peer.usage(), Instant::now());
        self.write_snapshot(&mut control)?;
        let outcome = Outcome::of_all_at_once(workload.numbers_at(self.setup.scale), begin.elapsed().as_secs_f64());
        let mut round = measured(round, outcome, &peer.spent_since(&before));
        let file = snapshot_file(&mut control)?;
        round.payload_bytes = fs::metadata(&file)?.len();
        round.copy_s = Some(copy_s(&file)?);
        Ok(Driven { round, peak_bytes: peer.resident_bytes().1, counts: None, verdict: Ok(()) })
    }

    /// Measures a restart. If the peer has no append-only file, writes the dataset to a snapshot
    /// before the first restart.
    pub(super) fn restart(&self, peer: &mut Peer, workload: &Workload, round: u64) -> io::Result<Driven> {
        if round == 0 && !matches!(workload.needs, Needs::AppendOnlyFile(_)) {
            self.write_snapshot(&mut Control::open(&Target::Tcp(peer.addresses[0]), &Login::default())?)?;
        }
        let (elapsed_s, spent) = peer.restart(&self.start_parameters())?;
        let outcome = Outcome::of_all_at_once(workload.numbers_at(self.setup.scale), elapsed_s);
        let verdict = self.run_steps(peer, workload, workload.after).map(|_| ());
        let round = measured(round, outcome, &spent);
        Ok(Driven { round, peak_bytes: peer.resident_bytes().1, counts: None, verdict })
    }

    /// Runs BGSAVE and waits until the snapshot is written.
    fn write_snapshot(&self, control: &mut Control) -> io::Result<()> {
        control.order(&["BGSAVE"])?;
        loop {
            let info = control.order(&["INFO", "persistence"])?;
            let Value::Bulk(info) = info else { return Err(io::Error::other("INFO replied no text")) };
            let info = String::from_utf8_lossy(&info);
            let has = |line: &str| info.lines().any(|other| other == line);
            if has("rdb_bgsave_in_progress:0") {
                let is_ok = has("rdb_last_bgsave_status:ok");
                return if is_ok { Ok(()) } else { Err(io::Error::other("BGSAVE failed")) };
            }
            check_interrupted(self.stop)?;
            thread::sleep(CHECK);
        }
    }
}

/// Returns the path of the server's snapshot.
fn snapshot_file(control: &mut Control) -> io::Result<PathBuf> {
    let mut setting = |name| match control.order(&["CONFIG", "GET", name])? {
        Value::Array(pair) => match pair.into_iter().nth(1) {
            Some(Value::Bulk(text)) => Ok(String::from_utf8_lossy(&text).into_owned()),
            _ => Err(io::Error::other(format!("CONFIG GET {name} replied no value"))),
        },
        _ => Err(io::Error::other(format!("CONFIG GET {name} replied no array"))),
    };
    Ok(Path::new(&setting("dir")?).join(setting("dbfilename")?))
}

/// Copies `file` to a file in the same folder, syncs the copy and removes it. Returns the seconds
/// until the copy was synced.
fn copy_s(file: &Path) -> io::Result<f64> {
    let copy = file.with_extension("copy");
    let begin = Instant::now();
    let (mut from, mut to) = (File::open(file)?, File::create(&copy)?);
    let mut block = vec![0; COPY_BYTES];
    loop {
        match from.read(&mut block)? {
            0 => break,
            len => to.write_all(&block[..len])?,
        }
    }
    to.sync_all()?;
    let elapsed_s = begin.elapsed().as_secs_f64();
    fs::remove_file(&copy)?;
    Ok(elapsed_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("dump.rdb");
        fs::write(&file, vec![7; 3 * COPY_BYTES + 1]).unwrap();
        assert!(copy_s(&file).unwrap() > 0.0);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
