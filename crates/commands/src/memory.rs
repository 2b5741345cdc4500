//! `MEMORY` except `MEMORY USAGE`: memory usage of the whole server.

use pantala_engine::client::{LocalContext, ProcessMemory};
use pantala_engine::keyspace::Keyspace;
use pantala_resp::{Args, Reply};

use crate::help;

/// The statistics of a database that has keys.
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

/// Returns the percentage of `part` in `whole`; 0 if `whole` is 0.
fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

/// Returns `part / whole`; 0 if `whole` is 0.
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn difference(a: u64, b: u64) -> i64 {
    i64::try_from(i128::from(a) - i128::from(b)).unwrap_or(i64::MAX)
}

/// Number of fields before the fields of the databases.
const FIELDS_BEFORE: usize = 10;
/// Number of fields after the fields of the databases.
const FIELDS_AFTER: usize = 17;

/// `MEMORY STATS`: replies with Redis's fields, which are 0 for features that Pantala lacks.
///
/// The dictionary itself stores keys and small values, so `overhead.hashtable.main` includes them.
/// `dataset.bytes` is the memory in use, without that of the process at startup and that of the
/// clients. No sum includes the caches of scripts and functions.
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
    write_totals(reply, &memory, databases.iter().map(|database| database.keys).sum());
}

/// Writes the fields after the fields of the databases.
fn write_totals(reply: &mut Reply<'_>, memory: &ProcessMemory, keys: u64) {
    let overhead_bytes = memory.startup_bytes + memory.clients_bytes;
    let data_bytes = memory.used_bytes.saturating_sub(overhead_bytes);
    let since_start_bytes = memory.used_bytes.saturating_sub(memory.startup_bytes);
    let excess_bytes = difference(memory.resident_bytes, memory.used_bytes);
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
    integer_field(reply, "allocator-rss.bytes", excess_bytes);
    double_field(reply, "rss-overhead.ratio", 1.0);
    integer_field(reply, "rss-overhead.bytes", 0);
    double_field(reply, "fragmentation", ratio(memory.resident_bytes, memory.used_bytes));
    integer_field(reply, "fragmentation.bytes", excess_bytes);
}

fn integer_field(reply: &mut Reply<'_>, name: &str, value: i64) {
    reply.bulk(name.as_bytes());
    reply.integer(value);
}

fn double_field(reply: &mut Reply<'_>, name: &str, value: f64) {
    reply.bulk(name.as_bytes());
    reply.double(value);
}

/// `MEMORY DOCTOR` makes no diagnosis if memory usage has grown by less than this since startup, in
/// bytes.
const DIAGNOSIS_BYTES_MIN: u64 = 5 * 1024 * 1024;

/// `MEMORY DOCTOR` reports a peak above this percentage of the current memory usage.
const PEAK_PERCENT_MAX: f64 = 150.0;

/// `MEMORY DOCTOR` reports resident memory above this multiple of the current memory usage.
const RESIDENT_RATIO_MAX: f64 = 1.4;

/// `MEMORY DOCTOR` reports clients whose average memory usage is above this, in bytes.
const CLIENT_BYTES_MAX: u64 = 200 * 1024;

/// `MEMORY DOCTOR`: reports unusual memory usage.
pub fn doctor(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    let clients = context.host.clients().len() as u64;
    reply.verbatim("txt", diagnosis(&context.host.memory(), clients).as_bytes());
}

fn diagnosis(memory: &ProcessMemory, clients: u64) -> String {
    let data_bytes = memory.used_bytes.saturating_sub(memory.startup_bytes);
    if data_bytes < DIAGNOSIS_BYTES_MIN {
        return format!("Hi Sam, there is too little data for a diagnosis ({data_bytes} bytes).\n");
    }
    let mut findings = String::new();
    if percent(memory.peak_bytes, memory.used_bytes) > PEAK_PERCENT_MAX {
        findings.push_str(
            " * Peak: memory usage was far higher than it is now. The allocator may keep freed memory, so resident memory \
             can exceed what the data needs. It will be reused when the data grows.\n",
        );
    }
    if ratio(memory.resident_bytes, memory.used_bytes) > RESIDENT_RATIO_MAX {
        findings.push_str(
            " * Resident memory: far more than the accounted memory. It is fragmented, or freed but not yet returned to \
             the system.\n",
        );
    }
    if memory.clients_bytes.checked_div(clients).unwrap_or(0) > CLIENT_BYTES_MAX {
        findings.push_str(
            " * Clients: their buffers are large on average. Look in CLIENT LIST for clients that don't read their replies \
             (omem) or send large commands (qbuf), and consider client-output-buffer-limit.\n",
        );
    }
    if findings.is_empty() {
        "Hi Sam, no memory problems found.\n".to_owned()
    } else {
        format!("Sam, these are memory problems:\n\n{findings}")
    }
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
        "accounted: {} bytes\nresident: {} bytes\nprocess at startup: {} bytes\nclients: {} bytes\n",
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
pub fn help(_: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    help::write(
        reply,
        args,
        &[
            "DOCTOR",
            "    Return a report of memory problems.",
            "MALLOC-STATS",
            "    Return the distribution of memory over clients and databases.",
            "PURGE",
            "    Return free memory from the allocator to the system.",
            "STATS",
            "    Return the memory usage of the server in detail.",
            "USAGE <key> [SAMPLES <count>]",
            "    Return the memory usage of a key in bytes. Always exact; SAMPLES has no effect.",
        ],
    );
}

#[cfg(test)]
mod tests {
    use pantala_resp::value::{Value, parse_reply};

    use super::*;
    use crate::testing_host::LocalTest;

    const MEMORY: ProcessMemory = ProcessMemory {
        used_bytes: 20 << 20,
        peak_bytes: 25 << 20,
        startup_bytes: 8 << 20,
        clients_bytes: 2 << 20,
        resident_bytes: 24 << 20,
        scripts_bytes: 300,
        libraries_bytes: 200,
    };

    #[test]
    fn stats_in_both_protocol_versions() {
        let mut test = LocalTest::new();
        test.host.memory = MEMORY;
        let text = test.run("MEMORY STATS");
        assert!(text.starts_with("*54|$14|peak.allocated|:26214400|$15|total.allocated|:20971520|"), "{text}");
        assert!(text.contains("|$13|dataset.bytes|:10485760|$18|dataset.percentage|$18|83.333333333333329|"), "{text}");
        assert!(text.ends_with("|$19|fragmentation.bytes|:4194304|"), "{text}");
        test.run("HELLO 3");
        let reply = test.raw(&[b"MEMORY", b"STATS"]);
        let (value, _) = parse_reply(&reply).expect("well-formed").expect("complete");
        assert!(matches!(&value, Value::Map(pairs) if pairs.len() == FIELDS_BEFORE + FIELDS_AFTER), "{value:?}");
        test.expect(&[("MEMORY PURGE", "+OK|")]);
    }

    #[test]
    fn an_empty_server_has_no_nan_in_its_stats() {
        let mut test = LocalTest::new();
        let text = test.run("MEMORY STATS");
        assert!(!text.contains("nan") && !text.contains("inf"), "{text}");
    }

    #[test]
    fn doctor_reports_memory_problems() {
        let empty = ProcessMemory { used_bytes: 9 << 20, ..MEMORY };
        assert!(diagnosis(&empty, 1).contains(" too little data for a diagnosis (1048576 bytes)"));
        assert_eq!(diagnosis(&MEMORY, 20), "Hi Sam, no memory problems found.\n");
        let peak = ProcessMemory { peak_bytes: 31 << 20, ..MEMORY };
        assert!(diagnosis(&peak, 20).contains("* Peak"));
        let resident = ProcessMemory { resident_bytes: 29 << 20, ..MEMORY };
        assert!(diagnosis(&resident, 20).contains("* Resident"));
        assert!(diagnosis(&MEMORY, 2).contains("* Clients"));
    }
}
