//! If two cores take turns on a shard, they exchange the cache lines that both of them write. This
//! test counts these lines for each command.
//!
//! The test measures the counts: it compares all memory of this process before and after a command.
//! A line counts if one worker writes it with one command and another worker writes it with the
//! next command. So the count excludes memory that only one worker writes (its reply, its queues),
//! and includes every shared line, wherever the line is.
//!
//! `crates/bench/src/model/lines.txt` contains the expected counts. `pantala-bench model` uses
//! them, and docs/scaling.md shows them.
//!
//! The test can't detect a line that is overwritten with the same bytes, so the commands write
//! different values. The gate of a shard (the word that shows whether the shard is held) changes
//! back to its former value. The gate's line is detected nevertheless, because the line also
//! contains counters.
//!
//! The test also can't detect a line that one worker writes and another only reads. Such lines
//! occur only in requests (the messages to the holder of a shard), so the counts of requests are
//! derived from the code.
//!
//! This file has only one test, so that no other thread of this process is active.
#![cfg(all(target_os = "linux", not(miri)))]

use std::collections::BTreeSet;
use std::fs::{DirEntry, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use pantala_base::mailbox::Node;
use pantala_commands::lookup;
use pantala_engine::access::{KeyPlace, SessionView};
use pantala_engine::command::Permit;
use pantala_engine::executor::{Call, Executor, Ran};
use pantala_engine::keyspace::{Execution, Keyspace, Layout, WorkerPort};
use pantala_engine::request::Request;
use pantala_resp::{ArgRange, Args, Version};

const LINE_BYTES: usize = 64;
const PAGE_BYTES: usize = 4096;
/// Maximum number of pages of this process. Only the part of the buffers that is used is resident.
const PAGES_MAX: usize = 32 * 1024;
/// Maximum number of lines that a command of this test writes.
const LINES_MAX: usize = 4096;
const START_MS: i64 = 1_700_000_000_000;
const VALUE_BYTES: usize = 256;
/// Length of an entry before its value, in bytes: a head and two lengths (8 bytes together), and
/// the key.
const ENTRY_HEAD_BYTES: usize = 8 + KEY_BYTES;
const KEY_BYTES: usize = 4;
/// The time that a thread needs to start.
const START_TIME: Duration = Duration::from_millis(20);

/// The memory of this process, as seen by the kernel.
struct Memory {
    bytes: File,
    pages: File,
    /// Writable mappings, without this thread's stack.
    mappings: Vec<Range<usize>>,
    /// Contents and addresses of the pages before a command. The comparison excludes the memory of
    /// these buffers.
    before: Vec<u8>,
    before_at: Vec<usize>,
}

impl Memory {
    fn new() -> Self {
        let open = |path: &str| File::open(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        Memory {
            bytes: open("/proc/self/mem"),
            pages: open("/proc/self/pagemap"),
            mappings: Vec::with_capacity(1024),
            before: Vec::with_capacity(PAGES_MAX * PAGE_BYTES),
            before_at: Vec::with_capacity(PAGES_MAX),
        }
    }

    /// Takes a snapshot of the mappings and their contents.
    fn snapshot(&mut self) {
        let on_stack = 0_u8;
        let here = std::ptr::from_ref(&on_stack).addr();
        let maps = std::fs::read_to_string("/proc/self/maps").expect("read /proc/self/maps");
        self.mappings.clear();
        for line in maps.lines() {
            let mut words = line.split(' ');
            let (Some(range), Some(rights)) = (words.next(), words.next()) else { continue };
            let (begin, end) = range.split_once('-').expect("an address range");
            let address = |text| usize::from_str_radix(text, 16).expect("an address");
            let mapping = address(begin)..address(end);
            if rights.starts_with("rw") && !mapping.contains(&here) {
                self.mappings.push(mapping);
            }
        }
        // If the text were freed after the snapshot, its memory would count as changed.
        drop(maps);
        self.before.clear();
        self.before_at.clear();
        let (mut page, mut at) = ([0; PAGE_BYTES], 0);
        while let Some(address) = self.next_page(&mut at) {
            if self.read(address, &mut page) {
                assert!(self.before_at.len() < PAGES_MAX, "more memory than expected");
                self.before.extend_from_slice(&page);
                self.before_at.push(address);
            }
        }
    }

    /// Appends the lines that differ from the last [`Memory::snapshot`].
    fn changed(&self, lines: &mut Vec<usize>) {
        let (mut page, mut at, mut known) = ([0; PAGE_BYTES], 0, 0);
        const NOTHING: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
        while let Some(address) = self.next_page(&mut at) {
            if !self.read(address, &mut page) {
                continue;
            }
            while self.before_at.get(known).is_some_and(|&before| before < address) {
                known += 1;
            }
            let before = match self.before_at.get(known) {
                Some(&before) if before == address => &self.before[known * PAGE_BYTES..][..PAGE_BYTES],
                _ => &NOTHING[..],
            };
            let pairs = page.chunks_exact(LINE_BYTES).zip(before.chunks_exact(LINE_BYTES));
            for (number, _) in pairs.enumerate().filter(|(_, (now, before))| now != before) {
                assert!(lines.len() < LINES_MAX, "more lines than a command writes");
                lines.push(address + number * LINE_BYTES);
            }
        }
    }

    /// Returns the next resident page at or after `at`, and moves `at` past this page.
    fn next_page(&self, at: &mut usize) -> Option<usize> {
        const PRESENT: u64 = 1 << 63;
        const SWAPPED: u64 = 1 << 62;
        for mapping in &self.mappings {
            let mut address = mapping.start.max(*at);
            while address < mapping.end {
                let mut words = [0; 8 * 512];
                let count = ((mapping.end - address) / PAGE_BYTES).min(512);
                let words = &mut words[..8 * count];
                self.pages.read_exact_at(words, (address / PAGE_BYTES * 8) as u64).expect("read /proc/self/pagemap");
                for (number, word) in words.chunks_exact(8).enumerate() {
                    let word = u64::from_ne_bytes(word.try_into().expect("eight bytes"));
                    if word & (PRESENT | SWAPPED) != 0 {
                        *at = address + (number + 1) * PAGE_BYTES;
                        return Some(address + number * PAGE_BYTES);
                    }
                }
                address += count * PAGE_BYTES;
            }
        }
        None
    }

    /// Reads a page. Returns whether the page takes part in the comparison.
    fn read(&self, address: usize, page: &mut [u8; PAGE_BYTES]) -> bool {
        let overlaps = |begin: usize, bytes: usize| address < begin + bytes && begin < address + PAGE_BYTES;
        let is_own = overlaps(self.before.as_ptr().addr(), self.before.capacity())
            || overlaps(self.before_at.as_ptr().addr(), self.before_at.capacity() * size_of::<usize>());
        // A mapping without memory behind it can't be read.
        !is_own && self.bytes.read_exact_at(page, address as u64).is_ok()
    }
}

/// A command with everything needed to run it, so that the run doesn't allocate.
struct Command {
    bytes: Vec<u8>,
    ranges: Vec<ArgRange>,
    shards: Vec<u32>,
    first_key: KeyPlace,
    now_ms: i64,
}

impl Command {
    /// Creates a call of the command `name`. Its arguments are the keys, each followed by the
    /// arguments that belong to this key.
    fn new(keyspace: &Keyspace, name: &str, keys: &[(&str, &[&[u8]])], now_ms: i64) -> Self {
        let mut command = Command {
            bytes: Vec::new(),
            ranges: Vec::new(),
            shards: keys.iter().map(|(key, _)| keyspace.place(key.as_bytes()).shard).collect(),
            first_key: keyspace.place(keys[0].0.as_bytes()),
            now_ms,
        };
        command.shards.sort_unstable();
        command.shards.dedup();
        command.push(name.as_bytes());
        for (key, others) in keys {
            command.push(key.as_bytes());
            others.iter().for_each(|argument| command.push(argument));
        }
        command
    }

    fn push(&mut self, argument: &[u8]) {
        self.ranges.push(ArgRange::new(self.bytes.len(), argument.len()));
        self.bytes.extend_from_slice(argument);
    }
}

/// A worker. All workers of this test run on one thread.
struct Worker<'k> {
    executor: Executor<'k>,
    reply: Vec<u8>,
    /// The lines that the worker's last command wrote.
    lines: Vec<usize>,
}

impl<'k> Worker<'k> {
    fn new(keyspace: &'k Keyspace, number: u32) -> Self {
        let (reply, lines) = (Vec::with_capacity(PAGE_BYTES), Vec::with_capacity(LINES_MAX));
        Worker { executor: Executor::new(keyspace, number), reply, lines }
    }

    fn run(&mut self, command: &Command) -> Ran {
        let args = Args::new(&command.bytes, &command.ranges);
        let call = Call {
            command: lookup(args.at(0)).expect("a known command"),
            args,
            first_key: Some(command.first_key),
            session: SessionView {
                client: 1,
                db: 0,
                version: Version::Resp2,
                no_touch: false,
                of_primary: false,
                in_script: false,
                permit: Permit::default(),
            },
            reads_as: None,
            connection: 0,
            now_ms: command.now_ms,
        };
        self.reply.clear();
        match command.shards.as_slice() {
            [_] => self.executor.run_single(&call, command.first_key, &mut self.reply),
            shards => self.executor.run_many(&call, shards, &mut self.reply),
        }
    }

    /// Runs a command and records the lines it writes.
    fn count(&mut self, memory: &mut Memory, command: &Command) {
        self.lines.clear();
        memory.snapshot();
        assert_eq!(self.run(command), Ran::Done);
        memory.changed(&mut self.lines);
        assert!(!self.reply.starts_with(b"-"), "{}", self.reply.escape_ascii());
    }
}

/// Two workers and their shared shards.
struct Scene<'k> {
    keyspace: &'k Keyspace,
    memory: Memory,
    workers: [Worker<'k>; 2],
    spacers: u32,
}

impl<'k> Scene<'k> {
    fn command(&self, name: &str, key: &str, arguments: &[&[u8]]) -> Command {
        Command::new(self.keyspace, name, &[(key, arguments)], START_MS)
    }

    fn run(&mut self, name: &str, key: &str, arguments: &[&[u8]]) {
        let command = self.command(name, key, arguments);
        assert_eq!(self.workers[0].run(&command), Ran::Done, "{name} {key}");
    }

    /// Runs each command on its own worker. Returns the number of lines that both workers wrote.
    /// Between the two commands, creates other entries, so that entries created by the two commands
    /// share no line.
    fn both(&mut self, first: &Command, second: &Command) -> usize {
        self.workers[0].count(&mut self.memory, first);
        for size in (64..4 * VALUE_BYTES).step_by(16) {
            self.spacers += 1;
            let key = format!("s{:05}", self.spacers);
            self.run("SET", &key, &[&vec![b's'; size]]);
        }
        let [one, other] = &mut self.workers;
        other.count(&mut self.memory, second);
        let lines: BTreeSet<usize> = one.lines.iter().copied().collect();
        other.lines.iter().filter(|line| lines.contains(line)).count()
    }

    /// Runs commands on two keys, which share only the shard, and then commands on the same key.
    /// Returns the result of [`Scene::both`] for each pair.
    fn apart_and_together(&mut self, name: &str, arguments: [&[&[u8]]; 4]) -> (usize, usize) {
        let (first, second) = (self.command(name, "key1", arguments[0]), self.command(name, "key2", arguments[1]));
        let apart = self.both(&first, &second);
        let (first, second) = (self.command(name, "key1", arguments[2]), self.command(name, "key1", arguments[3]));
        (apart, self.both(&first, &second))
    }
}

/// Returns a row of `lines.txt`: the number of the shard's lines, and which lines of the key's
/// entry are written.
fn row(name: &str) -> (usize, &'static str) {
    let text = include_str!("../../bench/src/model/lines.txt");
    let fields = |line: &'static str| line.split('|').map(str::trim).collect::<Vec<_>>();
    let row = text.lines().map(fields).find(|fields| fields[0] == name).unwrap_or_else(|| panic!("no row {name}"));
    (row[1].parse().expect("a number of lines"), row[2])
}

/// Asserts the number of lines of the shard. A number above 1 may differ from `lines.txt` by one,
/// because the allocator decides whether the shard's table and its counters are in one line or in
/// two.
#[track_caller]
fn assert_shard(name: &str, apart: usize) {
    let shard = row(name).0;
    let around = usize::from(shard > 1);
    assert!(apart.abs_diff(shard) <= around, "{name}: {apart} lines of the shard, not {shard}");
}

#[track_caller]
fn assert_row(name: &str, (apart, together): (usize, usize), value_bytes: usize) {
    assert_shard(name, apart);
    let entry = row(name).1;
    let entry_bytes = ENTRY_HEAD_BYTES + value_bytes;
    let expected = match entry {
        "-" => 0..=0,
        "1" => 1..=1,
        "all" => entry_bytes.div_ceil(LINE_BYTES)..=entry_bytes.div_ceil(LINE_BYTES) + 1,
        other => panic!("{name}: {other}"),
    };
    assert!(expected.contains(&(together - apart)), "{name}: {} lines of a key's entry, {entry}", together - apart);
}

/// Waits until all other threads of this process sleep. Otherwise the test would attribute their
/// writes to a command.
fn wait_until_other_threads_sleep() {
    let this = std::fs::read_link("/proc/thread-self").expect("read /proc/thread-self");
    let sleeps = |task: std::io::Result<DirEntry>| {
        let task = task.expect("read /proc/self/task");
        let stat = std::fs::read_to_string(task.path().join("stat")).expect("read the thread's state");
        // The state follows the name of the thread, which is in parentheses.
        this.ends_with(task.file_name()) || stat.rsplit(") ").next().is_some_and(|fields| fields.starts_with('S'))
    };
    loop {
        // A thread may also sleep for a moment while it starts.
        std::thread::sleep(START_TIME);
        if std::fs::read_dir("/proc/self/task").expect("read /proc/self/task").all(sleeps) {
            return;
        }
    }
}

/// Creates a keyspace and waits until the keyspace's thread for deferred freeing sleeps.
fn keyspace(shards: u32) -> Keyspace {
    let layout = Layout {
        shards,
        partitions: shards,
        databases: 16,
        homes: 2,
        workers: 2,
        execution: Execution::Inline,
        seed: 42,
        random_seed: 42,
    };
    let keyspace = Keyspace::new(layout, (0..2).map(|_| WorkerPort::new(Box::new(|| {}))).collect());
    wait_until_other_threads_sleep();
    keyspace
}

#[test]
fn written_lines_equal_the_table() {
    let keyspace = keyspace(1);
    let workers = [0, 1].map(|number| Worker::new(&keyspace, number));
    let mut scene = Scene { keyspace: &keyspace, memory: Memory::new(), workers, spacers: 0 };
    strings(&mut scene);
    collections(&mut scene);
    requests();
}

fn strings(scene: &mut Scene<'_>) {
    let values: Vec<Vec<u8>> = (0..8).map(|number| vec![b'a' + number; VALUE_BYTES]).collect();
    let value = |number: usize| values[number].as_slice();
    scene.run("SET", "key1", &[value(0)]);
    // The entries between the two keys keep them out of each other's lines. There are so many of
    // these entries that the dictionary won't grow soon.
    for number in 0..100 {
        scene.run("SET", &format!("k{number:03}"), &[value(0)]);
    }
    scene.run("SET", "key2", &[value(0)]);
    let counts = scene.apart_and_together("GET", [&[], &[], &[], &[]]);
    assert_row("GET", counts, VALUE_BYTES);
    let touching = |later_s: i64| Command::new(scene.keyspace, "GET", &[("key1", &[])], START_MS + later_s * 1000);
    let touched = scene.both(&touching(100), &touching(200));
    assert_row("GET that changes the key's access time", (counts.0, touched), VALUE_BYTES);
    let missing = ["none", "neno"].map(|key| scene.command("GET", key, &[]));
    assert_eq!(scene.both(&missing[0], &missing[1]), counts.0, "a key that isn't there");

    let counts = scene.apart_and_together("SET", [&[value(1)], &[value(2)], &[value(3)], &[value(4)]]);
    assert_row("SET over a value of the same size", counts, VALUE_BYTES);
    // Both entries are made to move to a dictionary cell (the memory block of an entry) of another
    // size.
    let other = vec![b'x'; VALUE_BYTES / 2];
    let commands = ["key1", "key2"].map(|key| scene.command("SET", key, &[&other]));
    let counts = scene.both(&commands[0], &commands[1]);
    assert_shard("SET over a value of another size", counts);
    let commands = ["new1", "new2"].map(|key| scene.command("SET", key, &[&other]));
    let counts = scene.both(&commands[0], &commands[1]);
    assert_shard("SET of a new key", counts);
    let commands = ["new1", "new2"].map(|key| scene.command("DEL", key, &[]));
    let counts = scene.both(&commands[0], &commands[1]);
    assert_shard("DEL", counts);
    for key in ["key1", "key2"] {
        scene.run("DEL", key, &[]);
    }
}

/// Tests small collections, which are stored in dictionary entries. A command changes them in the
/// shard's scratch memory (`Shard::scratch`).
fn collections(scene: &mut Scene<'_>) {
    let members: Vec<Vec<u8>> = (0..64).map(|number| vec![b'0' + number; 32]).collect();
    let member = |number: usize| members[number].as_slice();
    for key in ["key1", "key2"] {
        scene.run("HSET", key, &[b"f1", member(0), b"f2", member(0), b"f3", member(0)]);
    }
    let counts = scene.apart_and_together("HGET", [&[b"f2"], &[b"f2"], &[b"f2"], &[b"f2"]]);
    assert_row("HGET, LRANGE, SISMEMBER, ZRANGE", counts, 0);
    let all = [1, 2, 3, 4].map(|number| [&b"f2"[..], member(number)]);
    let counts = scene.apart_and_together("HSET", all.each_ref().map(|arguments| &arguments[..]));
    assert_row("HSET over a value of the same size", counts, 3 * 36);
    for key in ["key1", "key2"] {
        scene.run("DEL", key, &[]);
        scene.run("ZADD", key, &[b"1", b"a", b"2", b"b", b"7", member(0)]);
    }
    let counts = scene.apart_and_together("ZADD", [&[b"7", member(0)]; 4]);
    assert_row("SADD, ZADD of an existing member", counts, 0);
    for (round, key) in ["key1", "key2"].into_iter().enumerate() {
        scene.run("DEL", key, &[]);
        // The members differ, so that the second worker doesn't overwrite the scratch memory with
        // the bytes that the first worker left there.
        (0..6).for_each(|number| scene.run("RPUSH", key, &[member(10 + 10 * round + number)]));
        scene.run("LPOP", key, &[]);
        scene.run("LPOP", key, &[]);
    }
    let arguments = [40, 41, 42, 43].map(|number| [member(number)]);
    let counts = scene.apart_and_together("RPUSH", arguments.each_ref().map(|arguments| &arguments[..]));
    assert_shard("RPUSH, LPOP", counts.0);
    let counts = scene.apart_and_together("LPOP", [&[], &[], &[], &[]]);
    assert_shard("RPUSH, LPOP", counts.0);
}

/// Checks the row of a request. Only the size of the request is measured. The other lines are
/// derived from the code: the gate, the request's four vectors, the mailbox of the requesting
/// worker, the reply message, and the reply.
fn requests() {
    let request = size_of::<Node<Request>>().div_ceil(LINE_BYTES);
    assert_eq!(row("a request to a shard that is held").0, 1 + request + 4 + 3);
}
