//! The older part of the replication backlog is on disk (`repl-backlog-disk-size`). A replica whose
//! next bytes are only on disk stays connected, or reconnects with a partial sync. The primary's
//! memory is bounded all the time.

use std::time::{Duration, Instant};

use pantala_tests::following::{PRIMARY, assert_same, follow, info, wait_until_applied};
use pantala_tests::small_disk::SmallDisk;
use pantala_tests::waiting::{PATIENCE, eventually};
use pantala_tests::{Backend, Client, Reply, Server, for_each_backend, tool};
use rustix::process::Signal;

const MIB: usize = 1 << 20;

/// Length of a value in bytes.
const VALUE_BYTES: usize = 32 * 1024;

/// Arguments of a primary with a small memory limit for slow replicas.
const SPILLING: [&str; 10] = [
    "--workers",
    "2",
    "--repl-diskless-sync-delay",
    "0",
    "--repl-backlog-disk-size",
    "1gb",
    "--client-output-buffer-limit",
    "replica 8mb 4mb 1",
    "--repl-ping-replica-period",
    "1",
];

/// Maximum memory of the stream in the tests: 16 MiB for the lag of slow replicas, 64 MiB that wait
/// to be written to disk, and the output of the connections.
const MEMORY_MAX: usize = 88 * MIB;

/// Number of bytes that exceeds [`MEMORY_MAX`] even if the sockets buffer some of them.
const MUCH: usize = 150 * MIB;

fn number(server: &Server, section: &str, field: &str) -> usize {
    let value = info(server, section, field);
    value.parse().unwrap_or_else(|_| panic!("INFO has no {field}"))
}

fn replication(server: &Server, field: &str) -> usize {
    number(server, "replication", field)
}

fn memory(server: &Server) -> usize {
    number(server, "memory", "mem_total_replication_buffers")
}

/// Sets keys to different values, `bytes` bytes in total. Returns the highest memory usage of the
/// stream that was observed meanwhile.
fn write_values(server: &Server, bytes: usize) -> usize {
    let mut client = server.connect();
    let first = client.call("INCR count").integer();
    let mut most = 0;
    for at in 0..bytes / VALUE_BYTES {
        let digits = format!("{first}:{at}:");
        let value = digits.repeat(VALUE_BYTES / digits.len() + 1);
        assert_eq!(client.command(&["SET", &format!("key:{}", at % 300), &value[..VALUE_BYTES]]), Reply::ok());
        if at % 32 == 0 {
            most = most.max(memory(server));
        }
    }
    most
}

/// Waits until at least `bytes` bytes are on disk.
fn wait_for_disk(server: &Server, bytes: usize) {
    eventually("the stream is on disk", || {
        assert!(!server.log().contains("can't be kept on disk"), "{}", server.log());
        replication(server, "repl_backlog_disk_histlen") > bytes
    });
}

fn set(client: &mut Client, directive: &str, value: &str) {
    assert_eq!(client.command(&["CONFIG", "SET", directive, value]), Reply::ok());
}

/// Makes a server follow a primary, and waits until it receives the stream.
fn follow_stream(replica: &Server, primary: &Server) {
    follow(replica, primary);
    receive_stream(replica, primary);
}

/// Writes to the server at the root of a chain, and waits until a replica has received the write.
/// The replica has then certainly acknowledged its snapshot.
fn receive_stream(replica: &Server, root: &Server) {
    root.connect().call("SET early 1");
    wait_until_applied(replica, root);
}

/// Starts replicas: a Pantala server, and redis-server if it is installed.
fn replicas(backend: Backend) -> Vec<Server> {
    let mut all = vec![Server::pantala(backend, &["--workers", "2"])];
    all.extend(Server::redis(&PRIMARY));
    all
}

#[test]
fn a_stopped_replica_catches_up_from_the_disk() {
    for_each_backend(|backend| {
        for mut replica in replicas(backend) {
            let mut primary = Server::pantala(backend, &SPILLING);
            follow_stream(&replica, &primary);
            replica.signal(Signal::STOP);
            let most = write_values(&primary, MUCH);
            assert!(most <= MEMORY_MAX, "{most} bytes of memory");
            wait_for_disk(&primary, MUCH - 10 * MIB);
            eventually("the memory is freed", || memory(&primary) < 20 * MIB);
            assert_eq!(replication(&primary, "connected_slaves"), 1);
            replica.signal(Signal::CONT);
            assert_same(&replica, &primary);
            assert_eq!(syncs(&primary), [1, 0], "the link was never lost");
            assert_eq!(primary.log().matches("is behind").count(), 0);
            write_values(&primary, MIB);
            assert_same(&replica, &primary);
            primary.assert_sound();
            if replica.log().contains("Pantala") {
                replica.assert_sound();
            }
        }
    });
}

#[test]
fn a_replica_that_was_away_continues_from_the_disk() {
    for_each_backend(|backend| {
        for replica in replicas(backend) {
            let primary = Server::pantala(backend, &SPILLING);
            follow_stream(&replica, &primary);
            // `CLIENT KILL` closes a replica only after its first acknowledgement.
            let mut client = primary.connect();
            client.call("SET started 1");
            assert_eq!(client.call("WAIT 1 20000"), Reply::Integer(1));
            // The replica can't reconnect while it is stopped.
            replica.signal(Signal::STOP);
            assert_eq!(primary.connect().call("CLIENT KILL TYPE replica"), Reply::Integer(1));
            eventually("it is away", || replication(&primary, "connected_slaves") == 0);
            let most = write_values(&primary, MUCH);
            assert!(most <= MEMORY_MAX, "{most} bytes of memory");
            let first = replication(&primary, "repl_backlog_first_byte_offset");
            assert_eq!(first, replication(&primary, "repl_backlog_disk_first_byte_offset"));
            replica.signal(Signal::CONT);
            assert_same(&replica, &primary);
            assert_eq!(syncs(&primary), [1, 1]);
        }
    });
}

/// Returns the number of files of a server that are open and have no name.
fn unnamed_files(server: &Server) -> usize {
    let open = std::fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("the server runs");
    let target = |entry: std::io::Result<std::fs::DirEntry>| std::fs::read_link(entry.ok()?.path()).ok();
    let folder = server.folder().to_string_lossy().into_owned();
    open.filter_map(target)
        .filter(|target| {
            let target = target.to_string_lossy();
            target.starts_with(&folder) && target.ends_with("(deleted)")
        })
        .count()
}

/// Returns the numbers of full and partial syncs of a primary.
fn syncs(server: &Server) -> [usize; 2] {
    ["sync_full", "sync_partial_ok"].map(|field| number(server, "stats", field))
}

/// Starts a primary, and a replica whose next bytes are on the primary's disk. The replica is
/// stopped.
fn stopped_far_behind(args: &[&str]) -> (Server, Server) {
    let backend = Backend::all()[0];
    let primary = Server::pantala(backend, &[&SPILLING, args].concat());
    let replica = Server::pantala(backend, &["--workers", "2"]);
    follow_stream(&replica, &primary);
    replica.signal(Signal::STOP);
    write_values(&primary, MUCH);
    wait_for_disk(&primary, MUCH - 10 * MIB);
    (primary, replica)
}

#[test]
fn the_disk_holds_what_a_replica_lacks_after_a_slow_load() {
    for_each_backend(|backend| {
        let primary = Server::pantala(backend, &SPILLING);
        primary.connect().call("DEBUG POPULATE 2000 loaded 10");
        let replica = Server::pantala(backend, &["--workers", "2", "--key-load-delay", "10000"]);
        replica.connect().call(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
        eventually("the replica loads", || info(&replica, "persistence", "loading") == "1");
        let most = write_values(&primary, MUCH);
        assert!(most <= MEMORY_MAX, "{most} bytes of memory");
        assert_eq!(info(&replica, "persistence", "loading"), "1", "it still loads");
        set(&mut replica.connect(), "key-load-delay", "0");
        assert_same(&replica, &primary);
        assert_eq!(syncs(&primary), [1, 0]);
    });
}

#[test]
fn a_replica_behind_the_start_of_the_disk_needs_a_full_sync() {
    let (primary, replica) = stopped_far_behind(&[]);
    set(&mut primary.connect(), "repl-backlog-disk-size", "20mb");
    eventually("the replica is disconnected", || replication(&primary, "connected_slaves") == 0);
    assert!(primary.log().contains("bytes behind, of which its limit allows"), "{}", primary.log());
    let on_disk = || replication(&primary, "repl_backlog_disk_histlen");
    eventually("the limit applies", || on_disk() <= 20 * MIB);
    write_values(&primary, 40 * MIB);
    eventually("the limit still applies", || (18 * MIB..=20 * MIB).contains(&on_disk()));
    replica.signal(Signal::CONT);
    assert_same(&replica, &primary);
    assert_eq!(syncs(&primary), [2, 0]);
}

#[test]
fn the_disk_can_be_turned_on_and_off() {
    let (primary, replica) = stopped_far_behind(&[]);
    let mut client = primary.connect();
    let files = unnamed_files(&primary);
    assert!((1..=17).contains(&files), "{files} files");
    let names = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("an entry").file_name();
    let named: Vec<_> = std::fs::read_dir(primary.folder()).expect("a folder").map(names).collect();
    assert!(named.iter().all(|name| !name.to_string_lossy().contains("backlog")), "{named:?}");
    set(&mut client, "repl-backlog-disk-size", "0");
    eventually("the replica is disconnected", || replication(&primary, "connected_slaves") == 0);
    eventually("the files are closed", || unnamed_files(&primary) == 0);
    eventually("the memory is freed", || memory(&primary) <= 2 * MIB);
    assert_eq!(info(&primary, "replication", "repl_backlog_disk_histlen"), "");
    replica.signal(Signal::CONT);
    assert_same(&replica, &primary);
    assert_eq!(syncs(&primary), [2, 0]);
    write_values(&primary, 10 * MIB);
    // The memory also has the part that the replica has not received yet.
    eventually("the replica keeps up", || replication(&primary, "repl_backlog_histlen") <= 2 * MIB);
    set(&mut client, "repl-backlog-disk-size", "100mb");
    assert_eq!(client.call("CONFIG GET repl-backlog-disk-size").elements()[1].text(), "104857600");
    replica.signal(Signal::STOP);
    write_values(&primary, 50 * MIB);
    replica.signal(Signal::CONT);
    assert_same(&replica, &primary);
    assert_eq!(syncs(&primary), [2, 0]);
}

#[test]
fn a_full_disk_ends_spilling() {
    let disk = SmallDisk::new();
    if !disk.mount("size=20m") {
        return tool::skipped("a small file system can't be mounted");
    }
    let dir = disk.path().to_string_lossy().into_owned();
    let backend = Backend::all()[0];
    let primary = Server::pantala(backend, &[&SPILLING[..], &["--dir", &dir, "--save", ""]].concat());
    let replica = Server::pantala(backend, &["--workers", "2"]);
    follow_stream(&replica, &primary);
    replica.signal(Signal::STOP);
    let most = write_values(&primary, MUCH);
    assert!(most <= MEMORY_MAX, "{most} bytes of memory");
    eventually("the replica is disconnected", || replication(&primary, "connected_slaves") == 0);
    let reports = || primary.log().matches("can't be kept on disk: No space left on device").count();
    assert_eq!(reports(), 1, "{}", primary.log());
    assert_eq!(replication(&primary, "repl_backlog_disk_histlen"), 0);
    replica.signal(Signal::CONT);
    assert_same(&replica, &primary);
    assert_eq!(syncs(&primary), [2, 0]);
    // The new limit is so low that the bytes fit on the disk. Changing the limit also ends the
    // pause of spilling that follows a failure.
    set(&mut primary.connect(), "repl-backlog-disk-size", "15mb");
    write_values(&primary, 30 * MIB);
    eventually("the disk is used again", || replication(&primary, "repl_backlog_disk_histlen") > 10 * MIB);
    assert!(primary.log().contains("is written to disk again"));
    assert_same(&replica, &primary);
    assert_eq!((syncs(&primary), reports()), ([2, 0], 1));
}

#[test]
fn an_unreadable_disk_disconnects_the_replica() {
    let (primary, replica) = stopped_far_behind(&[]);
    assert_eq!(primary.connect().call("DEBUG FAULT unreadable-backlog 1000"), Reply::ok());
    replica.signal(Signal::CONT);
    assert_same(&replica, &primary);
    assert_eq!(syncs(&primary), [2, 0]);
    assert!(primary.log().contains("can't be kept on disk: injected fault"), "{}", primary.log());
    eventually("the files are closed", || unnamed_files(&primary) == 0);
}

#[test]
fn no_client_waits_for_a_disk_that_does_not_answer() {
    let (primary, replica) = stopped_far_behind(&[]);
    let mut client = primary.connect();
    assert_eq!(client.call("DEBUG FAULT stuck-disk 1000"), Reply::ok());
    let most = write_values(&primary, MUCH);
    assert!(most <= MEMORY_MAX, "{most} bytes of memory");
    eventually("the replica is disconnected", || replication(&primary, "connected_slaves") == 0);
    replica.signal(Signal::CONT);
    assert_same(&replica, &primary);
    assert_eq!(client.call("DEBUG FAULT stuck-disk 0"), Reply::ok());
    eventually("the log has the reason", || primary.log().contains("can't be kept on disk: the disk is too slow"));
    eventually("the files are closed", || unnamed_files(&primary) == 0);
    write_values(&primary, MIB);
    assert_same(&replica, &primary);
    assert_eq!(syncs(&primary), [2, 0]);
}

#[test]
fn the_disk_is_freed_with_the_backlog() {
    let (primary, replica) = stopped_far_behind(&["--repl-backlog-ttl", "1"]);
    drop(replica);
    eventually("the backlog is freed", || replication(&primary, "repl_backlog_active") == 0);
    assert_eq!(replication(&primary, "repl_backlog_disk_histlen"), 0);
    eventually("the files are closed", || unnamed_files(&primary) == 0);
    write_values(&primary, 5 * MIB);
    assert_eq!((memory(&primary), unnamed_files(&primary)), (0, 0));
}

/// A replica keeps the stream of its primary on disk, too: for its own replicas and, after its
/// promotion, for the other replicas of its former primary.
#[test]
fn a_promoted_replica_continues_its_backlog_on_disk() {
    let backend = Backend::all()[0];
    let [first, second, third] = std::array::from_fn(|_| Server::pantala(backend, &SPILLING));
    follow_stream(&second, &first);
    follow(&third, &second);
    receive_stream(&third, &first);
    third.signal(Signal::STOP);
    write_values(&first, 50 * MIB);
    wait_until_applied(&second, &first);
    wait_for_disk(&second, 40 * MIB);
    third.signal(Signal::CONT);
    assert_same(&third, &first);
    assert_eq!(syncs(&second), [1, 0]);
    third.signal(Signal::STOP);
    write_values(&first, 50 * MIB);
    wait_until_applied(&second, &first);
    // The promotion disconnects the third server, which then sends `PSYNC` with the former
    // replication ID.
    assert_eq!(second.connect().call("REPLICAOF NO ONE"), Reply::ok());
    eventually("it is a primary", || info(&second, "replication", "role") == "master");
    drop(first);
    write_values(&second, 30 * MIB);
    third.signal(Signal::CONT);
    assert_same(&third, &second);
    assert_eq!(syncs(&second), [1, 1]);
}

/// After the primary's restart, a replica continues with a partial sync only if the primary's
/// snapshot has the offset that the replica requests. The backlog on disk does not survive the
/// restart.
#[test]
fn a_restarted_primary_starts_with_an_empty_disk() {
    let backend = Backend::all()[0];
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().to_string_lossy().into_owned();
    let args = [&SPILLING[..], &["--dir", &dir, "--enable-debug-command", "yes"]].concat();
    let mut primary = Server::pantala(backend, &args);
    let replica = Server::pantala(backend, &["--workers", "2"]);
    follow_stream(&replica, &primary);
    write_values(&primary, 30 * MIB);
    wait_for_disk(&primary, 20 * MIB);
    wait_until_applied(&replica, &primary);
    let port = primary.port();
    primary.connect().send_raw(b"SHUTDOWN SAVE\r\n");
    primary.wait_exit(PATIENCE);
    let left: Vec<_> =
        std::fs::read_dir(&dir).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    assert_eq!(left, [folder.path().join("dump.rdb")]);
    let primary = Server::pantala_at(port, backend, &args).expect("the port is free again");
    write_values(&primary, 30 * MIB);
    assert_same(&replica, &primary);
    assert_eq!(syncs(&primary), [0, 1]);
}

/// A replica that is stopped for 60 s while clients write 100 MB/s needs no second full sync.
#[test]
#[ignore = "takes 80 s, and writes 7 GB to the disk"]
fn a_replica_is_stopped_for_a_minute() {
    const BYTES_PER_SECOND: usize = 100_000_000;
    for replica in replicas(Backend::all()[0]) {
        let primary =
            Server::pantala(Backend::all()[0], &[&SPILLING[..], &["--repl-backlog-disk-size", "12gb"]].concat());
        follow_stream(&replica, &primary);
        replica.signal(Signal::STOP);
        let (began, mut written, mut most, mut is_stopped) = (Instant::now(), 0, 0, true);
        while began.elapsed() < Duration::from_secs(75) {
            most = most.max(write_values(&primary, 8 * MIB));
            written += 8 * MIB;
            let due = Duration::from_secs_f64(written as f64 / BYTES_PER_SECOND as f64);
            std::thread::sleep(due.saturating_sub(began.elapsed()));
            if is_stopped && began.elapsed() >= Duration::from_secs(60) {
                replica.signal(Signal::CONT);
                is_stopped = false;
            }
        }
        let rate = written as f64 / began.elapsed().as_secs_f64() / 1e6;
        let resumed = Instant::now();
        assert_same(&replica, &primary);
        println!("{rate:.0} MB/s, {most} bytes of memory, equal {:?} after the last write", resumed.elapsed());
        assert!(most <= MEMORY_MAX, "{most} bytes of memory");
        let [full, partial] = syncs(&primary);
        assert!(full == 1 && partial <= 1, "{full} full and {partial} partial syncs");
    }
}
