//! `INFO`: the server's statistics. It has the sections and fields of Redis 7.0, and two more
//! sections that only Pantala has.
//!
//! | module | sections |
//! | --- | --- |
//! | this file | the list of sections and their order |
//! | `server` | Server, Clients, Replication, CPU, Modules, Cluster |
//! | `memory` | Memory, Persistence |
//! | `stats` | Stats, Commandstats, Errorstats, Latencystats, Keyspace |
//! | `own` | Shards, Workers: only if named, or with `all` or `everything` |
//!
//! `server` uses two more modules: `replica` writes the role and the fields of a replica, and
//! `usage` measures CPU times.
//!
//! A field of an unimplemented feature has the value that Redis shows while the feature isn't used.
//! The statistics are read one after another while the workers run, so they describe slightly
//! different moments.

use std::fmt::{Display, Write};

use crate::host::Server;

mod memory;
mod own;
mod replica;
mod server;
pub(crate) mod stats;
mod usage;

/// A section of `INFO`.
struct Section {
    /// The name of the section in requests.
    name: &'static str,
    /// Another name in requests, or "".
    alias: &'static str,
    /// The name in the first line of the section.
    title: &'static str,
    /// Whether the section is shown if the request names no section.
    is_default: bool,
    write: fn(&mut Text, &Server),
}

const fn section(name: &'static str, title: &'static str, write: fn(&mut Text, &Server)) -> Section {
    Section { name, alias: "", title, is_default: true, write }
}

const fn extra(name: &'static str, title: &'static str, write: fn(&mut Text, &Server)) -> Section {
    Section { name, alias: "", title, is_default: false, write }
}

/// All sections: those of Redis in Redis's order, then Pantala's own.
const SECTIONS: [Section; 15] = [
    section("server", "Server", server::server),
    section("clients", "Clients", server::clients),
    section("memory", "Memory", memory::memory),
    section("persistence", "Persistence", memory::persistence),
    section("stats", "Stats", stats::stats),
    section("replication", "Replication", server::replication),
    section("cpu", "CPU", server::cpu),
    Section { name: "module_list", alias: "modules", title: "Modules", is_default: true, write: server::modules },
    extra("commandstats", "Commandstats", stats::commandstats),
    section("errorstats", "Errorstats", stats::errorstats),
    extra("latencystats", "Latencystats", stats::latencystats),
    section("cluster", "Cluster", server::cluster),
    section("keyspace", "Keyspace", stats::keyspace),
    extra("shards", "Shards", own::shards),
    extra("workers", "Workers", own::workers),
];

impl Section {
    fn is_wanted(&self, wanted: &[String]) -> bool {
        let is_asked_for = |name: &String| match name.as_str() {
            "all" | "everything" => true,
            "default" => self.is_default,
            name => name == self.name || name == self.alias,
        };
        if wanted.is_empty() { self.is_default } else { wanted.iter().any(is_asked_for) }
    }
}

/// Returns the text of `INFO` for the sections with these names (in lower case), or for the default
/// sections if `sections` is empty. Skips unknown names.
pub fn info(server: &Server, sections: &[String]) -> String {
    let mut text = Text(String::new());
    for section in SECTIONS.iter().filter(|section| section.is_wanted(sections)) {
        if !text.0.is_empty() {
            text.0.push_str("\r\n");
        }
        text.line(format_args!("# {}", section.title));
        (section.write)(&mut text, server);
    }
    text.0
}

/// The text of `INFO`, as far as it is written.
struct Text(String);

impl Text {
    fn line(&mut self, line: impl Display) {
        // Writing to a String can't fail.
        let _ = write!(self.0, "{line}\r\n");
    }

    fn field(&mut self, name: &str, value: impl Display) {
        self.line(format_args!("{name}:{value}"));
    }

    /// Appends lines that are already complete.
    fn lines(&mut self, lines: &str) {
        self.0.push_str(lines);
    }

    /// Writes the value 0 for fields of unimplemented features.
    fn zeros(&mut self, names: &[&str]) {
        for name in names {
            self.field(name, 0);
        }
    }

    /// Writes a number of bytes in two fields: as a plain number and in human-readable form.
    fn bytes(&mut self, name: &str, bytes: u64) {
        self.field(name, bytes);
        self.field(&format!("{name}_human"), human(bytes));
    }
}

/// Formats a number of bytes for people: `0B`, `1.50K`, `2.00M`.
fn human(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    let mut value = bytes as f64;
    let mut unit = 'B';
    for larger in ['K', 'M', 'G', 'T', 'P'] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    format!("{value:.2}{unit}")
}

/// Returns `part` as a percentage of `whole`; 0 if `whole` is 0.
fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod choice_tests {
    use super::*;

    fn titles(wanted: &[&str]) -> String {
        let wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
        let sections = SECTIONS.iter().filter(|section| section.is_wanted(&wanted));
        sections.map(|section| section.title).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn sections_are_chosen_as_in_redis() {
        let default = "Server Clients Memory Persistence Stats Replication CPU Modules Errorstats Cluster Keyspace";
        assert_eq!(titles(&[]), default);
        assert_eq!(titles(&["default"]), default);
        let all = "Server Clients Memory Persistence Stats Replication CPU Modules Commandstats Errorstats Latencystats \
                   Cluster Keyspace Shards Workers";
        assert_eq!(titles(&["all"]), all);
        assert_eq!(titles(&["everything"]), all);
        assert_eq!(titles(&["keyspace", "foo", "server"]), "Server Keyspace");
        assert_eq!(titles(&["modules"]), "Modules");
        assert_eq!(titles(&["foo"]), "");
        assert_eq!(titles(&["default", "workers"]), format!("{default} Workers"));
    }

    #[test]
    fn bytes_are_human_readable() {
        for (bytes, text) in
            [(0, "0B"), (1023, "1023B"), (1024, "1.00K"), (1_437_240, "1.37M"), (25_276_510_208, "23.54G")]
        {
            assert_eq!(human(bytes), text);
        }
        assert_eq!(human(u64::MAX), "16384.00P");
    }
}
