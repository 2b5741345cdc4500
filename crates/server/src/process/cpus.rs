//! The CPUs that this process may use, from its affinity mask and its cgroup quota.

use std::path::Path;

use pantala_base::cpus::allowed;

/// Returns the CPUs that the calling thread may run on, in ascending order; never empty.
pub fn allowed_cpus() -> Vec<usize> {
    let cpus = allowed();
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// Returns the CPU quota of the cgroup as a number of CPUs, or `None` if there is no quota. For
/// example, 1.5 means 150 ms of CPU time in each period of 100 ms.
pub fn cpu_quota() -> Option<f64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    quota_of(&groups, Path::new("/sys/fs/cgroup"))
}

/// Returns the default number of workers: one per CPU, but at most the quota.
///
/// The quota is rounded down. If it were rounded up, the workers could use up the quota before the
/// end of a period. The kernel would then stop all workers until the period ends, including workers
/// that hold shards.
pub fn default_workers() -> usize {
    workers_for(allowed_cpus().len(), cpu_quota())
}

fn workers_for(cpus: usize, quota: Option<f64>) -> usize {
    let fed = quota.map_or(cpus, |quota| quota as usize);
    cpus.min(fed).clamp(1, pantala_base::limits::WORKERS_MAX)
}

/// Returns the lowest quota of the groups in `groups` (the text of `/proc/self/cgroup`) and of
/// their ancestors up to `root`.
fn quota_of(groups: &str, root: &Path) -> Option<f64> {
    let mut least: Option<f64> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
        let group = group.trim_start_matches('/');
        let is_v2 = controllers.is_empty();
        if !is_v2 && !controllers.split(',').any(|controller| controller == "cpu") {
            continue;
        }
        let bases =
            if is_v2 { [root.to_path_buf(), root.join("unified")] } else { [root.join(controllers), root.join("cpu")] };
        let read = if is_v2 { quota_v2 } else { quota_v1 };
        // In a container, `groups` may have the path of the group on the host, which doesn't exist
        // here. The group of the process is then at `root`, which is one of the ancestors.
        for (base, path) in bases.iter().flat_map(|base| Path::new(group).ancestors().map(move |path| (base, path))) {
            if let Some(quota) = read(&base.join(path)) {
                least = Some(least.map_or(quota, |least| least.min(quota)));
            }
        }
    }
    least
}

/// Reads `cpu.max`, which has the quota (`max` if there is none) and the period.
fn quota_v2(group: &Path) -> Option<f64> {
    let text = std::fs::read_to_string(group.join("cpu.max")).ok()?;
    let mut words = text.split_whitespace();
    ratio(words.next()?, words.next()?)
}

/// Reads the quota (-1 if there is none) and the period, each from its own file.
fn quota_v1(group: &Path) -> Option<f64> {
    let read = |name: &str| std::fs::read_to_string(group.join(name)).ok();
    ratio(read("cpu.cfs_quota_us")?.trim(), read("cpu.cfs_period_us")?.trim())
}

fn ratio(quota: &str, period: &str) -> Option<f64> {
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (quota > 0.0 && period > 0.0).then_some(quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tree(std::path::PathBuf);

    impl Tree {
        fn with(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("pantala-cgroup-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
                std::fs::write(path, text).expect("a file");
            }
            Tree(root)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn cgroup_v2_uses_the_minimum_quota_of_all_ancestors() {
        let tree = Tree::with(
            "v2",
            &[("a/b/cpu.max", "max 100000\n"), ("a/cpu.max", "150000 100000\n"), ("cpu.max", "400000 100000")],
        );
        assert_eq!(quota_of("0::/a/b\n", &tree.0), Some(1.5));
        assert_eq!(quota_of("0::/not/here\n", &tree.0), Some(4.0));
        assert_eq!(quota_of("", &tree.0), None);
    }

    #[test]
    fn cgroup_v1_reads_quota_and_period() {
        let files = [
            ("cpu,cpuacct/x/cpu.cfs_quota_us", "250000\n"),
            ("cpu,cpuacct/x/cpu.cfs_period_us", "100000\n"),
            ("cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
            ("cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
        ];
        let tree = Tree::with("v1", &files);
        assert_eq!(quota_of("5:memory:/x\n4:cpu,cpuacct:/x\n0::/\n", &tree.0), Some(2.5));
        assert_eq!(quota_of("4:cpu,cpuacct:/\n", &tree.0), None);
    }

    #[test]
    fn workers_follow_cpus_and_quota() {
        assert_eq!(workers_for(8, None), 8);
        assert_eq!(workers_for(8, Some(2.9)), 2);
        assert_eq!(workers_for(2, Some(16.0)), 2);
        assert_eq!(workers_for(8, Some(0.3)), 1);
        assert_eq!(workers_for(5_000, None), 1_024);
        assert!((1..=allowed_cpus().len()).contains(&default_workers()));
    }
}
