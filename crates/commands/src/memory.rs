//! `MEMORY`, but for `USAGE`: what the server as a whole takes.

use pantala_engine::client::{LocalContext, MemoryFigures};
use pantala_engine::keyspace::Keyspace;
use pantala_resp::{Args, Reply};

use crate::help;

/// A database that has keys.
struct Database {
    number: u32,
    keys: u64,
    dict_bytes: u64,
    heap_bytes: u64,
}

fn databases(keyspace: &Keyspace) -> Vec<Database> {
    let all = (0..keyspace.databases()).map(|number| {
        let ((keys, _), (dict_bytes, heap_bytes)) = (keyspace.database_size(number), keyspace.memory_bytes(number));
        Database { number, keys, dict_bytes, heap_bytes }
    });
    all.filter(|database| database.keys > 0).collect()
}

/// A share in percent; 0 of nothing.
fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

/// How many times `whole` goes into `part`; 0 of nothing.
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn difference(a: u64, b: u64) -> i64 {
    i64::try_from(i128::from(a) - i128::from(b)).unwrap_or(i64::MAX)
}

/// Fields before those of the databases, and after them.
const FIELDS_BEFORE: usize = 10;
const FIELDS_AFTER: usize = 17;

/// `MEMORY STATS`. Redis's fields; what Pantala doesn't have is 0. Keys and small values lie in the dictionary itself, so that
/// `overhead.hashtable.main` holds them too, and all but the process and the clients is the data
/// set. The caches of scripts and functions don't count in any sum.
pub fn stats(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    let memory = context.host.memory();
    let databases = databases(context.keyspace);
    reply.map(FIELDS_BEFORE + databases.len() + FIELDS_AFTER);
    let before: [(&str, u64); FIELDS_BEFORE] = [
        ("peak.allocated", memory.peak_bytes),
        ("total.allocated", memory.used_bytes),
        ("startup.allocated", memory.startup_bytes),
        ("replication.backlog", 0),
        ("clients.slaves", 0),
        ("clients.normal", memory.clients_bytes),
        ("cluster.links", 0),
        ("aof.buffer", 0),
        ("lua.caches", memory.scripts_bytes),
        ("functions.caches", memory.libraries_bytes),
    ];
    for (name, value) in before {
        integer_field(reply, name, value as i64);
    }
    for database in &databases {
        reply.bulk(format!("db.{}", database.number).as_bytes());
        reply.map(3);
        integer_field(reply, "overhead.hashtable.main", database.dict_bytes as i64);
        integer_field(reply, "overhead.hashtable.expires", 0);
        integer_field(reply, "overhead.hashtable.slot-to-keys", 0);
    }
    summary(reply, &memory, databases.iter().map(|database| database.keys).sum());
}

/// The fields after those of the databases.
fn summary(reply: &mut Reply<'_>, memory: &MemoryFigures, keys: u64) {
    let overhead_bytes = memory.startup_bytes + memory.clients_bytes;
    let data_bytes = memory.used_bytes.saturating_sub(overhead_bytes);
    let since_start_bytes = memory.used_bytes.saturating_sub(memory.startup_bytes);
    let beyond_used_bytes = difference(memory.resident_bytes, memory.used_bytes);
    integer_field(reply, "overhead.total", overhead_bytes as i64);
    integer_field(reply, "keys.count", keys as i64);
    integer_field(reply, "keys.bytes-per-key", since_start_bytes.checked_div(keys).unwrap_or(0) as i64);
    integer_field(reply, "dataset.bytes", data_bytes as i64);
    double_field(reply, "dataset.percentage", percent(data_bytes, since_start_bytes));
    double_field(reply, "peak.percentage", percent(memory.used_bytes, memory.peak_bytes));
    integer_field(reply, "allocator.allocated", memory.used_bytes as i64);
    integer_field(reply, "allocator.active", memory.used_bytes as i64);
    integer_field(reply, "allocator.resident", memory.resident_bytes as i64);
    double_field(reply, "allocator-fragmentation.ratio", 1.0);
    integer_field(reply, "allocator-fragmentation.bytes", 0);
    double_field(reply, "allocator-rss.ratio", ratio(memory.resident_bytes, memory.used_bytes));
    integer_field(reply, "allocator-rss.bytes", beyond_used_bytes);
    double_field(reply, "rss-overhead.ratio", 1.0);
    integer_field(reply, "rss-overhead.bytes", 0);
    double_field(reply, "fragmentation", ratio(memory.resident_bytes, memory.used_bytes));
    integer_field(reply, "fragmentation.bytes", beyond_used_bytes);
}

fn integer_field(reply: &mut Reply<'_>, name: &str, value: i64) {
    reply.bulk(name.as_bytes());
    reply.integer(value);
}

fn double_field(reply: &mut Reply<'_>, name: &str, value: f64) {
    reply.bulk(name.as_bytes());
    reply.double(value);
}

/// Below this there is nothing to say about memory, bytes.
const JUDGED_BYTES_MIN: u64 = 5 * 1024 * 1024;

/// Peak above this share of what is used now: worth a word, percent.
const PEAK_PERCENT_MAX: f64 = 150.0;

/// Resident memory above this multiple of what is used: worth a word.
const RESIDENT_RATIO_MAX: f64 = 1.4;

/// Mean memory of a client above this: worth a word, bytes.
const CLIENT_BYTES_MAX: u64 = 200 * 1024;

/// `MEMORY DOCTOR`: what is out of the ordinary, in words.
pub fn doctor(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    let clients = context.host.clients().len() as u64;
    reply.verbatim("txt", diagnosis(&context.host.memory(), clients).as_bytes());
}

fn diagnosis(memory: &MemoryFigures, clients: u64) -> String {
    let data_bytes = memory.used_bytes.saturating_sub(memory.startup_bytes);
    if data_bytes < JUDGED_BYTES_MIN {
        return format!("There is hardly any data ({data_bytes} bytes): nothing to judge yet.\n");
    }
    let mut findings = String::new();
    if percent(memory.peak_bytes, memory.used_bytes) > PEAK_PERCENT_MAX {
        findings.push_str(
            " * Peak: far more memory was in use once than is now. The allocator may keep what was freed, so resident memory \
             can be above what the data needs. It will be used again when the data grows.\n",
        );
    }
    if ratio(memory.resident_bytes, memory.used_bytes) > RESIDENT_RATIO_MAX {
        findings.push_str(
            " * Resident memory: the process holds much more than it accounts for. Memory is fragmented, or was freed and not \
             yet given back to the system.\n",
        );
    }
    if memory.clients_bytes.checked_div(clients).unwrap_or(0) > CLIENT_BYTES_MAX {
        findings.push_str(
            " * Clients: their buffers are large on average. Look in CLIENT LIST for clients that don't read their replies \
             (omem) or send big commands (qbuf), and consider client-output-buffer-limit.\n",
        );
    }
    if findings.is_empty() { "Memory is in good order.\n".to_owned() } else { format!("Worth a look:\n\n{findings}") }
}

/// `MEMORY PURGE`.
pub fn purge(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    context.host.purge_memory();
    reply.ok();
}

/// `MEMORY MALLOC-STATS`.
pub fn malloc_stats(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    let memory = context.host.memory();
    let mut text = format!(
        "accounted for: {} bytes\nresident: {} bytes\nprocess at its start: {} bytes\nclients: {} bytes\n",
        memory.used_bytes, memory.resident_bytes, memory.startup_bytes, memory.clients_bytes
    );
    for database in databases(context.keyspace) {
        text.push_str(&format!(
            "db{}: {} keys, dictionary {} bytes, large values {} bytes\n",
            database.number, database.keys, database.dict_bytes, database.heap_bytes
        ));
    }
    reply.verbatim("txt", text.as_bytes());
}

/// `MEMORY HELP`.
pub fn help(_: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    help::write(
        reply,
        "MEMORY",
        &[
            "DOCTOR",
            "    What is out of the ordinary about memory, in words.",
            "MALLOC-STATS",
            "    Where the memory is.",
            "PURGE",
            "    Have the allocator give back what is free.",
            "STATS",
            "    What the server takes, in figures.",
            "USAGE <key> [SAMPLES <count>]",
            "    What a key takes, bytes. Always exact: samples are not needed.",
        ],
    );
}

#[cfg(test)]
mod tests {
    use pantala_resp::value::{Value, parse_reply};

    use super::*;
    use crate::testing_host::LocalTest;

    const FIGURES: MemoryFigures = MemoryFigures {
        used_bytes: 20 << 20,
        peak_bytes: 25 << 20,
        startup_bytes: 8 << 20,
        clients_bytes: 2 << 20,
        resident_bytes: 24 << 20,
        scripts_bytes: 300,
        libraries_bytes: 200,
    };

    #[test]
    fn stats_in_both_versions() {
        let mut test = LocalTest::new();
        test.host.memory = FIGURES;
        let text = test.run("MEMORY STATS");
        assert!(text.starts_with("*54|$14|peak.allocated|:26214400|$15|total.allocated|:20971520|"), "{text}");
        assert!(text.contains("|$13|dataset.bytes|:10485760|$18|dataset.percentage|$18|83.333333333333329|"), "{text}");
        assert!(text.ends_with("|$19|fragmentation.bytes|:4194304|"), "{text}");
        test.run("HELLO 3");
        let reply = test.raw(&[b"MEMORY", b"STATS"]);
        let (value, _) = parse_reply(&reply).expect("well-formed").expect("whole");
        assert!(matches!(&value, Value::Map(pairs) if pairs.len() == FIELDS_BEFORE + FIELDS_AFTER), "{value:?}");
        test.expect(&[("MEMORY PURGE", "+OK|")]);
    }

    #[test]
    fn nothing_divides_by_nothing() {
        let mut test = LocalTest::new();
        let text = test.run("MEMORY STATS");
        assert!(!text.contains("nan") && !text.contains("inf"), "{text}");
    }

    #[test]
    fn the_doctor_judges() {
        let empty = MemoryFigures { used_bytes: 9 << 20, ..FIGURES };
        assert!(diagnosis(&empty, 1).starts_with("There is hardly any data (1048576 bytes)"));
        assert_eq!(diagnosis(&FIGURES, 20), "Memory is in good order.\n");
        let peak = MemoryFigures { peak_bytes: 31 << 20, ..FIGURES };
        assert!(diagnosis(&peak, 20).contains("* Peak"));
        let resident = MemoryFigures { resident_bytes: 29 << 20, ..FIGURES };
        assert!(diagnosis(&resident, 20).contains("* Resident"));
        assert!(diagnosis(&FIGURES, 2).contains("* Clients"));
    }
}
