//! Checks the host before a preset (a published set-up) runs: finds settings that change results,
//! and gives advice on them.
//!
//! Every check takes the texts of files in `/proc` and `/sys` as arguments, so tests can use
//! recorded texts.

use std::collections::BTreeMap;
use std::fs;

use serde::Serialize;

use pantala_base::cpus::{parse, ranges};

/// Maximum load average per CPU. Above it, the host counts as busy.
const LOAD_MAX: f64 = 0.1;
/// The listen backlog that redis-server requests.
const BACKLOG: u64 = 511;
/// Number of file descriptors that a server or the generator needs besides its connections.
const DESCRIPTORS_SPARE: u64 = 100;
/// Maximum number of interrupts or mitigations that a finding names.
const NAMED_MAX: usize = 6;

/// A setting of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) what: &'static str,
    pub(super) found: String,
    /// Advice, or `None` if nothing should change.
    pub(super) advice: Option<String>,
}

impl Finding {
    fn fine(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, found: found.into(), advice: None }
    }

    fn with(what: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { what, found: found.into(), advice: Some(advice.into()) }
    }
}

/// The properties of a set-up that the checks use.
pub(super) struct Needs<'a> {
    pub(super) connections: u64,
    pub(super) server_cpus: &'a [usize],
    /// All CPUs of the run.
    pub(super) cpus: &'a [usize],
}

/// Checks this host.
pub(super) fn look(needs: &Needs<'_>) -> Vec<Finding> {
    checked(needs, &|path| fs::read_to_string(path).ok(), &|path| {
        let entries = fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_unstable();
        names
    })
}

/// Checks a host. `file` returns the contents of a file, and `folder` the names of the files in a
/// folder.
fn checked(
    needs: &Needs<'_>,
    file: &dyn Fn(&str) -> Option<String>,
    folder: &dyn Fn(&str) -> Vec<String>,
) -> Vec<Finding> {
    let text = |path: &str| file(path).unwrap_or_default();
    let governor_of = |cpu: &usize| file(&format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"));
    let governors: Vec<String> = needs.cpus.iter().filter_map(governor_of).collect();
    let balances = folder("/proc").iter().any(|entry| {
        entry.bytes().all(|byte| byte.is_ascii_digit()) && text(&format!("/proc/{entry}/comm")).trim() == "irqbalance"
    });
    let vulnerabilities = "/sys/devices/system/cpu/vulnerabilities";
    let state = |name: String| {
        let state = text(&format!("{vulnerabilities}/{name}")).trim().to_owned();
        (name, state)
    };
    let states: Vec<(String, String)> = folder(vulnerabilities).into_iter().map(state).collect();
    let affinity = |interrupt: u32| file(&format!("/proc/irq/{interrupt}/smp_affinity_list"));
    let mut findings = vec![
        governor(&governors),
        interrupts(&text("/proc/interrupts"), &affinity, needs.server_cpus, balances),
        backlog("net.core.somaxconn", &text("/proc/sys/net/core/somaxconn"), needs.connections),
        backlog("net.ipv4.tcp_max_syn_backlog", &text("/proc/sys/net/ipv4/tcp_max_syn_backlog"), needs.connections),
        open_files(&text("/proc/self/limits"), needs.connections),
        huge_pages(&text("/sys/kernel/mm/transparent_hugepage/enabled")),
        mitigations(&states, &text("/proc/cmdline")),
        load(&text("/proc/loadavg"), needs.cpus.len()),
    ];
    findings.extend(numa_balancing(&text("/proc/sys/kernel/numa_balancing"), &text("/sys/devices/system/node/online")));
    findings
}

/// Checks the frequency governors of the CPUs that have one.
fn governor(governors: &[String]) -> Finding {
    const WHAT: &str = "frequency governor";
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    governors.iter().for_each(|name| *counts.entry(name.trim()).or_default() += 1);
    let found = counts.iter().map(|(name, count)| format!("{name} (CPUs: {count})")).collect::<Vec<_>>().join(", ");
    match counts.keys().copied().collect::<Vec<_>>().as_slice() {
        [] => Finding::fine(WHAT, "none: the hypervisor or firmware sets the frequency"),
        ["performance"] => Finding::fine(WHAT, found),
        _ => Finding::with(
            WHAT,
            found,
            "cpupower frequency-set -g performance: at low rates an idle CPU's low frequency counts as the server's cost",
        ),
    }
}

/// Checks which interrupts of devices may be handled on the servers' CPUs.
fn interrupts(table: &str, affinity: &dyn Fn(u32) -> Option<String>, server_cpus: &[usize], balances: bool) -> Finding {
    const WHAT: &str = "interrupts";
    let devices = devices(table);
    let is_on_servers = |(number, _): &&(u32, &str)| {
        let cpus = affinity(*number).and_then(|text| parse(text.trim()).ok()).unwrap_or_default().0;
        cpus.iter().any(|cpu| server_cpus.contains(cpu))
    };
    let on_servers: Vec<String> =
        devices.iter().filter(is_on_servers).map(|(number, name)| format!("{number} {name}")).collect();
    if on_servers.is_empty() && !balances {
        return Finding::fine(WHAT, format!("none of {} devices' on the servers' CPUs", devices.len()));
    }
    let (balancer, stop) = if balances { (", irqbalance runs", "systemctl stop irqbalance; ") } else { ("", "") };
    Finding::with(
        WHAT,
        format!(
            "{} of {} devices' may be handled on the servers' CPUs {}: {}{balancer}",
            on_servers.len(),
            devices.len(),
            ranges(server_cpus),
            named(&on_servers)
        ),
        format!("{stop}write the generator's CPUs to /proc/irq/N/smp_affinity_list"),
    )
}

/// Joins the names, at most [`NAMED_MAX`] of them.
fn named(names: &[String]) -> String {
    let more = if names.len() > NAMED_MAX { ", …" } else { "" };
    format!("{}{more}", names[..names.len().min(NAMED_MAX)].join(", "))
}

/// Returns the number and name of each device interrupt that has occurred. `table` is the text of
/// `/proc/interrupts`.
fn devices(table: &str) -> Vec<(u32, &str)> {
    let mut lines = table.lines();
    let cpus = lines.next().map_or(0, |head| head.split_whitespace().count());
    lines
        .filter_map(|line| {
            let (number, rest) = line.split_once(':')?;
            let counts = rest.split_whitespace().take(cpus).filter_map(|word| word.parse::<u64>().ok());
            let name = rest.split_whitespace().last()?;
            (counts.sum::<u64>() > 0).then_some((number.trim().parse().ok()?, name))
        })
        .collect()
}

/// Checks a limit on the number of connections that wait to be accepted.
fn backlog(what: &'static str, text: &str, connections: u64) -> Finding {
    let needed = connections.max(BACKLOG);
    match text.trim().parse::<u64>() {
        Ok(bound) if bound >= needed => Finding::fine(what, bound.to_string()),
        Ok(bound) => Finding::with(
            what,
            bound.to_string(),
            format!("sysctl -w {what}={needed}: {connections} clients connect at once"),
        ),
        Err(_) => Finding::fine(what, "not shown by this kernel"),
    }
}

/// Checks the limit of open files, which servers inherit. `limits` is the text of
/// `/proc/self/limits`.
fn open_files(limits: &str, connections: u64) -> Finding {
    const WHAT: &str = "open files";
    let needed = connections + DESCRIPTORS_SPARE;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap_or_default();
    let mut words = line.split_whitespace();
    let (soft, hard) = (words.next().unwrap_or("?"), words.next().unwrap_or("?"));
    let found = format!("soft limit {soft}, hard limit {hard}");
    if soft.parse::<u64>().map_or(soft == "unlimited", |limit| limit >= needed) {
        Finding::fine(WHAT, found)
    } else {
        Finding::with(WHAT, found, format!("ulimit -n {needed}: servers and generator have {connections} connections"))
    }
}

/// Checks transparent huge pages. In `text`, the kernel marks the current choice with brackets.
fn huge_pages(text: &str) -> Finding {
    const WHAT: &str = "transparent huge pages";
    let choice = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or("none", |(choice, _)| choice);
    if choice == "always" {
        Finding::with(
            WHAT,
            choice,
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: redis-server warns of latency and memory with always",
        )
    } else {
        Finding::fine(WHAT, choice)
    }
}

/// Checks the mitigations of the processor's vulnerabilities. `states` has the name and state of
/// each.
fn mitigations(states: &[(String, String)], command_line: &str) -> Finding {
    const WHAT: &str = "mitigations";
    let active: Vec<String> =
        states.iter().filter(|(_, state)| state.starts_with("Mitigation")).map(|(name, _)| name.clone()).collect();
    let option = command_line.split_whitespace().find(|word| word.starts_with("mitigations="));
    let option = option.map_or_else(String::new, |option| format!(" ({option})"));
    if active.is_empty() {
        return Finding::fine(WHAT, format!("none is active{option}"));
    }
    Finding::with(
        WHAT,
        format!("{} active: {}{option}", active.len(), named(&active)),
        "leave them on: production has them. They make system calls dearer, so name them beside figures",
    )
}

/// Checks the load average of the last minute.
fn load(text: &str, cpus: usize) -> Finding {
    const WHAT: &str = "load";
    let average = text.split_whitespace().next().unwrap_or("?");
    let found = format!("{average} on {cpus} CPUs");
    if average.parse::<f64>().is_ok_and(|average| average > LOAD_MAX * cpus as f64) {
        Finding::with(WHAT, found, "stop other programs: they take CPU time and caches from one side")
    } else {
        Finding::fine(WHAT, found)
    }
}

/// Checks automatic NUMA balancing on a host with several nodes.
fn numa_balancing(text: &str, nodes: &str) -> Option<Finding> {
    const WHAT: &str = "NUMA balancing";
    if parse(nodes.trim()).is_ok_and(|nodes| nodes.0.len() < 2) {
        return None;
    }
    match text.trim() {
        "" => None,
        "0" => Some(Finding::fine(WHAT, "off")),
        _ => Some(Finding::with(WHAT, "on", "sysctl -w kernel.numa_balancing=0: moving pages delays requests")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice(finding: &Finding) -> &str {
        finding.advice.as_deref().unwrap_or_default()
    }

    #[test]
    fn governors_are_counted() {
        let governors = |names: &[&str]| governor(&names.iter().map(|name| format!("{name}\n")).collect::<Vec<_>>());
        assert!(governors(&[]).found.starts_with("none"));
        assert_eq!(governors(&["performance"; 3]), Finding::fine("frequency governor", "performance (CPUs: 3)"));
        let mixed = governors(&["performance", "powersave", "powersave"]);
        assert_eq!(mixed.found, "performance (CPUs: 1), powersave (CPUs: 2)");
        assert!(advice(&mixed).contains("cpupower"));
    }

    /// The text of a virtual machine's `/proc/interrupts`, shortened.
    const INTERRUPTS: &str = "           CPU0       CPU1       \n \
        24:          1          0  IO-APIC   5-edge      ACPI:Ged\n \
        28:          0          0 PCI-MSIX-0000:00:01.0   0-edge      virtio0-config\n \
        36:          0     182624 PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0\n \
        41:       2731          0 PCI-MSIX-0000:00:04.0   1-edge      virtio3-rx\n\
        NMI:          0          0   Non-maskable interrupts\n\
        LOC:     457033     445723   Local timer interrupts\n\
        MCP:          8          8   Machine check polls\n";

    #[test]
    fn interrupts_of_devices_are_found() {
        assert_eq!(devices(INTERRUPTS), [(24, "ACPI:Ged"), (36, "virtio1-req.0"), (41, "virtio3-rx")]);
        let affinity = |interrupt: u32| match interrupt {
            36 => Some("1\n".to_owned()),
            41 => Some("0-1\n".to_owned()),
            _ => None,
        };
        let on = |cpus: &[usize], balances| interrupts(INTERRUPTS, &affinity, cpus, balances);
        let found = on(&[1], false);
        assert!(found.found.starts_with("2 of 3 devices' may be"), "{found:?}");
        assert!(found.found.ends_with("CPUs 1: 36 virtio1-req.0, 41 virtio3-rx"), "{found:?}");
        assert!(advice(&found).starts_with("write the generator's CPUs"), "{found:?}");
        assert_eq!(on(&[2, 3], false).advice, None);
        let balanced = on(&[2, 3], true);
        assert!(balanced.found.ends_with("irqbalance runs") && advice(&balanced).starts_with("systemctl stop"));
        assert_eq!(interrupts("", &affinity, &[0], false).advice, None);
    }

    #[test]
    fn backlogs_cover_all_clients() {
        assert_eq!(backlog("net.core.somaxconn", "4096\n", 1_650).advice, None);
        let small = backlog("net.core.somaxconn", "128\n", 50);
        assert!(advice(&small).starts_with("sysctl -w net.core.somaxconn=511"), "{small:?}");
        assert!(advice(&backlog("x", "1000", 1_001)).contains("x=1001"));
        assert_eq!(backlog("x", "", 1).found, "not shown by this kernel");
    }

    #[test]
    fn limits_of_files_are_read() {
        // The text is that of a real host's `/proc/self/limits`, shortened.
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
            Max processes             96364                96364                processes \n\
            Max open files            1024                 524288               files     \n";
        let found = open_files(limits, 1_000);
        assert_eq!(found.found, "soft limit 1024, hard limit 524288");
        assert!(advice(&found).starts_with("ulimit -n 1100:"), "{found:?}");
        assert_eq!(open_files(limits, 900).advice, None);
        assert_eq!(open_files(&limits.replace("1024  ", "unlimited"), 1 << 40).advice, None);
    }

    #[test]
    fn the_choice_of_huge_pages_is_in_brackets() {
        assert_eq!(huge_pages("always [madvise] never\n"), Finding::fine("transparent huge pages", "madvise"));
        assert!(advice(&huge_pages("[always] madvise never\n")).starts_with("echo madvise"));
        assert_eq!(huge_pages("").found, "none");
    }

    #[test]
    fn active_mitigations_are_named() {
        let state = |name: &str, state: &str| (name.to_owned(), state.to_owned());
        let states = [state("meltdown", "Not affected"), state("spectre_v2", "Mitigation: Retpolines; IBPB")];
        let found = mitigations(&states, "quiet mitigations=auto,nosmt panic=1\n");
        assert_eq!(found.found, "1 active: spectre_v2 (mitigations=auto,nosmt)");
        assert!(found.advice.is_some());
        assert_eq!(mitigations(&states[..1], "").found, "none is active");
        assert!(named(&vec!["x".to_owned(); NAMED_MAX + 1]).ends_with("x, …"));
    }

    #[test]
    fn a_busy_host_is_reported() {
        assert_eq!(load("6.01 5.4 5.0 1/200 99\n", 64).advice, None);
        assert!(load("6.5 5.4 5.0 1/200 99\n", 64).advice.is_some());
        assert_eq!(load("", 2).found, "? on 2 CPUs");
    }

    #[test]
    fn numa_balancing_matters_with_nodes() {
        assert_eq!(numa_balancing("1\n", "0\n"), None);
        assert!(numa_balancing("1\n", "0-1\n").unwrap().advice.is_some());
        assert_eq!(numa_balancing("0\n", "0-1\n").unwrap().advice, None);
    }

    #[test]
    fn every_check_reads_its_file() {
        let file = |path: &str| {
            let text = match path {
                "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor" => "powersave",
                "/proc/interrupts" => INTERRUPTS,
                "/proc/irq/41/smp_affinity_list" => "0-1",
                "/proc/77/comm" => "irqbalance\n",
                "/proc/sys/net/core/somaxconn" | "/proc/sys/net/ipv4/tcp_max_syn_backlog" => "100",
                "/proc/self/limits" => "Max open files  100  100  files",
                "/sys/kernel/mm/transparent_hugepage/enabled" => "[always] never",
                "/sys/devices/system/cpu/vulnerabilities/mds" => "Mitigation: Clear CPU buffers",
                "/proc/loadavg" => "9.0 1 1 1/1 1",
                "/proc/sys/kernel/numa_balancing" => "1",
                "/sys/devices/system/node/online" => "0-1",
                _ => return None,
            };
            Some(text.to_owned())
        };
        let folder = |path: &str| match path {
            "/proc" => vec!["77".to_owned(), "uptime".to_owned()],
            _ => vec!["mds".to_owned()],
        };
        let findings = checked(&Needs { connections: 500, server_cpus: &[0], cpus: &[0, 1] }, &file, &folder);
        assert_eq!(findings.len(), 9);
        assert!(findings.iter().all(|finding| finding.advice.is_some()), "{findings:#?}");
        assert!(findings[1].found.ends_with("irqbalance runs"));
    }
}
