//! Starts the server, waits for the workers, and stops the server. The binary calls only [`main`].

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock, mpsc};

use pantala_base::allocator::{self, HugePages};
use pantala_base::{Clock, Random, SystemClock};
use pantala_engine::acl::Line;
use pantala_engine::keyspace::{self, Keyspace, Layout, WorkerPort};
use pantala_engine::message::Message;
use pantala_engine::ownership::Ownership;
use pantala_engine::tuning::WATCHING;
use pantala_runtime::{Backend, Choice, Doorbell, EpollLoop, EventLoop, UringLoop, choose};

use crate::aof;
use crate::cli::{self, Request};
use crate::config::{self, BUS_PORT_OFFSET, ConfigStore, DICTIONARIES_MAX, Execution, IoBackend, Settings};
use crate::host::{Facts, Server};
use crate::process;
use crate::process::placement::Wanted;
use crate::renames::Renames;
use crate::replication::Replica;
use crate::snapshot::{self, Files, has_snapshot, load_at_start, loading};
use crate::worker::Worker;

/// Size of a worker's stack, bytes. This is more than enough, because handlers don't recurse over
/// client input.
const WORKER_STACK_BYTES: usize = 4 * 1024 * 1024;

/// Runs the process and returns its exit code.
pub fn main() -> ExitCode {
    allocator::place_huge_pages(HugePages::None);
    let is_command =
        |name: &[u8]| pantala_commands::lookup(name).is_some() || pantala_commands::unimplemented(name).is_some();
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(checked) = snapshot::Arguments::parse(&arguments) {
        return snapshot::check_rdb(&checked);
    }
    if let Some(checked) = aof::Arguments::parse(&arguments) {
        return aof::check_aof(&checked);
    }
    let arguments = cli::arguments();
    let sources = match cli::parse(arguments.iter().cloned()) {
        Request::Run(sources) => sources,
        Request::Print(text) => return print(&text),
    };
    let boot = match process::boot(&arguments, &sources, config::host_defaults, is_command) {
        Ok(boot) => boot,
        Err(code) => return code,
    };
    let (loaded, listeners, cleanup) = boot.into_parts();
    let ended = serve(ConfigStore::new(&loaded), Renames::new(&loaded.renames), listeners, &loaded.users);
    cleanup.run();
    match ended {
        Ok(()) => {
            tracing::warn!("Pantala is now ready to exit, bye bye...");
            ExitCode::SUCCESS
        }
        Err(message) => {
            tracing::error!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// Prints help or the version to standard output.
fn print(text: &str) -> ExitCode {
    // An error is ignored: the reader may have exited, as in `pantala --help | head -1`.
    let _ = io::stdout().lock().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

/// Builds the server and runs it until it is stopped.
///
/// # Errors
/// Returns the reason why the server can't start or continue, as text for the operator.
fn serve(config: ConfigStore, renames: Renames, sockets: Vec<process::Listener>, users: &[Line]) -> Result<(), String> {
    let settings = config.settings();
    let choice = match settings.io_backend {
        IoBackend::Auto => Choice::Auto,
        IoBackend::IoUring => Choice::IoUring,
        IoBackend::Epoll => Choice::Epoll,
    };
    let sandbox = settings.process.is_sandboxed.then(process::Sandbox::new).transpose()?;
    let (backend, backend_reason) = choose(choice).map_err(|error| error.to_string())?;
    let (shards, partitions) = (settings.shards as u32, settings.partitions as u32);
    // Workers other than I/O workers are limited to one per shard: with `execution owner`, a worker
    // without a shard would be idle.
    let homes = (settings.workers as u32).min(shards);
    let io_workers = if settings.execution == Execution::Owner { settings.io_threads as u32 } else { 0 };
    let workers = homes + io_workers;
    let dictionaries = u64::from(partitions) * settings.databases as u64;
    if dictionaries > DICTIONARIES_MAX {
        return Err(format!(
            "{partitions} partitions times {} databases are {dictionaries} dictionaries, more than {DICTIONARIES_MAX}: use fewer of either",
            settings.databases
        ));
    }
    if settings.cluster_enabled && settings.bus_port() == 0 {
        return Err(format!(
            "Port {} is too high for cluster mode: the port for other nodes would be {BUS_PORT_OFFSET} above it. Use a lower one, or 'cluster-port'",
            settings.port
        ));
    }
    if settings.cluster_enabled && settings.replica.primary.is_some() {
        return Err("replicaof directive not allowed in cluster mode".to_owned());
    }
    let wanted = Wanted { homes, io_workers, pin_threads: settings.pin_threads, numa: settings.numa };
    let mut placement = process::Placement::of_process(wanted);
    let memory_nodes = placement.memory_nodes(homes);
    let mut random = Random::from_entropy();
    let facts = Facts {
        backend,
        backend_reason,
        executable: std::env::current_exe().map(|path| path.display().to_string()).unwrap_or_default(),
        config_file: config.file().map(|path| path.display().to_string()).unwrap_or_default(),
        run_id: run_id(&mut random),
        node_id: run_id(&mut random),
        started_ms: SystemClock::new().now_us() / 1000,
        startup_bytes: process::allocated_resident_bytes().unwrap_or(0),
        workers,
        placement,
        first_io_worker: if io_workers > 0 { homes } else { 0 },
    };
    announce(&settings, &facts, homes, &sockets);

    let doorbells = (0..workers)
        .map(|_| Doorbell::new())
        .collect::<io::Result<Vec<_>>>()
        .map_err(|error| format!("Can't create an eventfd for a worker: {error}"))?;
    let ports = doorbells
        .iter()
        .map(|doorbell| {
            let doorbell = doorbell.clone();
            WorkerPort::new(Box::new(move || doorbell.ring()))
        })
        .collect();
    let layout = Layout {
        shards,
        partitions,
        databases: settings.databases as u32,
        homes,
        workers,
        execution: match settings.execution {
            Execution::Inline => keyspace::Execution::Inline,
            Execution::Owner => keyspace::Execution::Owner,
        },
        // This seed is secret. It is not taken from `random`, because `INFO` shows numbers of that
        // generator.
        seed: Random::from_entropy().next_u64(),
        random_seed: random.next_u64(),
    };
    let mut keyspace = Keyspace::new(layout, ports);
    keyspace.place_entries(&memory_nodes);
    let server = Arc::new(Server::new(keyspace, config, renames, facts, sockets));
    let encryption = process::Encryption::read(&settings.tls);
    server.listening().set_encryption(encryption.map_err(|_| "Failed to configure TLS. Check logs for more info.")?);
    server.load_users(users)?;
    let stopped = Arc::clone(&server);
    process::watch_signals(move |signal| stopped.signalled(signal))
        .map_err(|error| format!("Can't watch for signals: {error}"))?;
    server.snapshots().background.set_server(Arc::downgrade(&server));
    let files = Files(Arc::downgrade(&server));
    server.keyspace().set_storage(Box::new(files));
    server.replication().set_server(Arc::downgrade(&server));
    let load = |owned: &mut Vec<Ownership>| match settings.aof.is_on {
        true => aof::start(&server, owned),
        false => load_at_start(&server, owned),
    };
    let mut owned = server.keyspace().take_all();
    let has_dataset = if settings.aof.is_on { aof::has_files(&server) } else { has_snapshot(&server) };
    if has_dataset {
        loading::begin(&server, true);
    } else {
        load(&mut owned)?;
    }
    Replica::start(&server);
    // As in Redis, the server starts even if this fails. The function logs the reason.
    process::adjust_oom_score(&settings.process, settings.replica.primary.is_some());
    if !WATCHING {
        tracing::warn!("This build is for measuring only: it can't watch commands (feature `unwatched`).");
    }
    let ended = if has_dataset {
        // The workers run during the load. They serve connections once the load has ended or no
        // longer counts as short (`loading::wait_while_short`).
        run_workers(&server, &settings, sandbox.as_ref(), doorbells, || {
            load(&mut owned)?;
            server.snapshots().loading.set_incomplete(false);
            server.port(server.facts().first_io_worker).send(Message::Release(owned));
            loading::end(&server);
            Ok(())
        })
    } else {
        server.keyspace().release_all(owned);
        run_workers(&server, &settings, sandbox.as_ref(), doorbells, || Ok(()))
    };
    aof::end(&server);
    server.snapshots().background.end_at_exit();
    ended
}

/// Starts a thread for each worker, enters the sandbox once all event loops exist, loads the
/// dataset, and waits for the workers to end.
fn run_workers(
    server: &Server,
    settings: &Settings,
    sandbox: Option<&process::Sandbox>,
    doorbells: Vec<Doorbell>,
    load: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    pantala_engine::faults::set_from_environment();
    let failed = AtomicBool::new(false);
    // With a sandbox, this lock is held for writing until the sandbox has been entered, so that no
    // worker serves a client earlier. Without a sandbox, each worker serves clients as soon as it
    // is set up.
    let barrier = RwLock::new(());
    std::thread::scope(|scope| {
        let (ready, started) = mpsc::channel();
        let closed = sandbox.map(|_| barrier.write().unwrap_or_else(PoisonError::into_inner));
        for (number, doorbell) in doorbells.into_iter().enumerate() {
            let number = number as u32;
            let (ready, failed, barrier) = (ready.clone(), &failed, &barrier);
            let thread = std::thread::Builder::new()
                .name(format!("pantala-worker-{number}"))
                .stack_size(WORKER_STACK_BYTES)
                .spawn_scoped(scope, move || {
                    if let Err(error) = server.facts().placement.bind(number) {
                        tracing::warn!("Can't bind worker {number}: {error}");
                    }
                    let ended = match server.facts().backend {
                        Backend::IoUring => run_worker::<UringLoop>(server, number, doorbell, ready, barrier),
                        Backend::Epoll => run_worker::<EpollLoop>(server, number, doorbell, ready, barrier),
                    };
                    if let Err(error) = ended {
                        tracing::error!("Worker {number} ended: {error}");
                        failed.store(true, Relaxed);
                        server.stop();
                    }
                });
            if let Err(error) = thread {
                server.stop();
                return Err(format!("Can't start a thread for worker {number}: {error}"));
            }
        }
        drop(ready);
        // Each worker sends a message once its event loop is set up, or fails and drops its sender.
        // The iteration ends when all senders have been dropped.
        let set_up = started.iter().count();
        if let Some(sandbox) = sandbox {
            sandbox.enter().inspect_err(|_| server.stop())?;
            tracing::info!("Sandbox: only the system calls that the server needs are left");
        }
        drop(closed);
        let loaded = load();
        if server.is_stopping() {
            // Either the server was asked to stop, which is no error, or a worker has failed and
            // has already reported its error.
            return Ok(());
        }
        loaded.inspect_err(|_| server.stop())?;
        if set_up == server.facts().workers as usize {
            tracing::info!("Ready to accept connections");
            let how = match settings.replica.primary {
                Some(_) => " in read-only mode. Waiting for MASTER <-> REPLICA sync",
                None => "",
            };
            process::notify(&format!("STATUS=Ready to accept connections{how}"));
            process::notify("READY=1");
        }
        Ok(())
    })?;
    if failed.load(Relaxed) {
        return Err("A worker has failed, see the lines above".to_owned());
    }
    Ok(())
}

fn run_worker<L: EventLoop>(
    server: &Server,
    number: u32,
    doorbell: Doorbell,
    ready: mpsc::Sender<()>,
    barrier: &RwLock<()>,
) -> io::Result<()> {
    let mut worker = Worker::new(server, number, L::new(doorbell)?);
    worker.listen()?;
    // Can't fail: the receiver lives until all senders have been dropped.
    let _ = ready.send(());
    drop(ready);
    drop(barrier.read());
    loading::wait_while_short(server);
    worker.run()
}

/// Logs how the server is configured.
fn announce(settings: &Settings, facts: &Facts, homes: u32, sockets: &[process::Listener]) {
    let execution = match settings.execution {
        Execution::Inline => "inline",
        Execution::Owner => "owner",
    };
    tracing::info!(
        "Pantala version={}, compatible with Redis 7.0.15, pid={}, just started",
        env!("CARGO_PKG_VERSION"),
        std::process::id()
    );
    tracing::info!(
        "workers={} (shard homes={homes}), shards={}, partitions={}, execution={execution}, backend={} ({}), maxclients={}, open files={}",
        facts.workers,
        settings.shards,
        settings.partitions,
        facts.backend,
        facts.backend_reason,
        settings.maxclients,
        process::open_files_limit()
    );
    tracing::info!("{}", facts.placement.describe(process::cpu_quota()));
    let (limit, base) = (settings.maxmemory_bytes, facts.startup_bytes);
    if limit > 0 && limit <= base {
        tracing::warn!(
            "WARNING: maxmemory ({limit} bytes) is not more than the memory that the server takes without any key ({base} bytes). \
             Keys will be evicted at once, or commands that may take memory rejected, depending on the maxmemory-policy."
        );
    }
    for socket in sockets {
        tracing::info!("Listening on {}", socket.address);
    }
    let mode = if settings.cluster_enabled { "cluster" } else { "standalone" };
    if settings.always_show_logo {
        // Pantala shows no picture, only the lines that programs look for.
        let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
        tracing::info!("\n Pantala {version}\n Running in {mode} mode\n Port: {}\n PID: {pid}\n", settings.port);
    } else {
        tracing::info!("Running mode={mode}, port={}.", settings.port);
    }
}

/// Returns 40 random hexadecimal digits.
fn run_id(random: &mut Random) -> String {
    let mut bytes = [0u8; 20];
    random.fill(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
