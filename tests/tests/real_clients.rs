//! Runs the workloads of `tests/clients`: job queues, locks, client libraries, and the libraries'
//! calls for users and permissions. The packages are installed from their registries (see
//! `pantala_tests::ecosystem`). With `PANTALA_CLIENTS_AGAINST=redis`, the workloads run on
//! redis-server, where all pass (version 7.0.15).

use pantala_tests::ecosystem::Ecosystem;
use pantala_tests::server::free_port;
use pantala_tests::tls::Certificates;
use pantala_tests::waiting::eventually;
use pantala_tests::{Server, following, for_each_backend};

use super::sentinel::Sentinel;

const NODE: Ecosystem = Ecosystem {
    name: "node",
    programs: &["node", "npm"],
    install: &[&["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"]],
    workloads: &[&["node", "ioredis.mjs"], &["node", "bullmq.mjs"]],
    encrypted: &[&["node", "ioredis.mjs"], &["node", "bullmq.mjs"]],
};

const PYTHON: Ecosystem = Ecosystem {
    name: "python",
    programs: &["python3"],
    install: &[
        &["python3", "-m", "venv", "venv"],
        &["venv/bin/python", "-m", "pip", "install", "--quiet", "--requirement", "requirements.txt"],
    ],
    workloads: &[
        &["venv/bin/python", "redis_py.py"],
        &["venv/bin/python", "redis_py_users.py"],
        &["venv/bin/python", "rq_queue.py"],
        &["venv/bin/python", "celery_tasks.py"],
    ],
    encrypted: &[
        &["venv/bin/python", "redis_py.py"],
        &["venv/bin/python", "redis_py_users.py"],
        &["venv/bin/python", "rq_queue.py"],
        &["venv/bin/python", "celery_tasks.py"],
    ],
};

const GO: Ecosystem = Ecosystem {
    name: "go",
    programs: &["go"],
    install: &[&["go", "build", "-o", "workload", "."]],
    workloads: &[&["./workload"]],
    encrypted: &[&["./workload"]],
};

const JAVA: Ecosystem = Ecosystem {
    name: "java",
    programs: &["java", "javac", "mvn"],
    install: &[
        &["mvn", "--quiet", "--batch-mode", "dependency:copy-dependencies", "-DoutputDirectory=jars"],
        &[
            "javac",
            "-cp",
            "jars/*",
            "-d",
            "out",
            "Check.java",
            "JedisUsers.java",
            "JedisWork.java",
            "RedissonWork.java",
        ],
    ],
    workloads: &[&["java", "-cp", "out:jars/*", "JedisWork"], &["java", "-cp", "out:jars/*", "RedissonWork"]],
    encrypted: &[&["java", "-cp", "out:jars/*", "JedisWork"], &["java", "-cp", "out:jars/*", "RedissonWork"]],
};

fn run(ecosystem: &Ecosystem) {
    let Some(folder) = ecosystem.installed() else { return };
    let Some(certificates) = Certificates::make() else { return };
    // Arguments of an encrypted port, which only some of the workloads use.
    let tls_port = free_port();
    let mut args = certificates.server_args(tls_port, "server");
    // The workloads save and load users.
    let users = certificates.file("users.acl");
    std::fs::write(&users, "").expect("written");
    args.extend(["--aclfile".to_owned(), users]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match std::env::var("PANTALA_CLIENTS_AGAINST").as_deref() {
        Ok("redis") => {
            if let Some(mut server) = Server::redis(&args) {
                ecosystem.run(&folder, &mut server);
                ecosystem.run_encrypted(&folder, &mut server, tls_port, &certificates);
            }
        }
        Ok(other) => panic!("PANTALA_CLIENTS_AGAINST is {other:?}: must be redis"),
        Err(_) => for_each_backend(|backend| {
            // With two workers and eight shards, commands on several keys involve shards of both
            // workers.
            let mut server = Server::pantala(backend, &[&args[..], &["--workers", "2", "--shards", "8"]].concat());
            ecosystem.run(&folder, &mut server);
            ecosystem.run_encrypted(&folder, &mut server, tls_port, &certificates);
        }),
    }
}

/// Runs a workload whose client asks Sentinel for the primary. The workload first makes the replica
/// the primary by `SENTINEL FAILOVER`. Then it kills the new primary, so that Sentinel makes the
/// first server the primary again.
fn run_across_failovers(ecosystem: &Ecosystem, line: &[&str]) {
    let Some(folder) = ecosystem.installed() else { return };
    for_each_backend(|backend| {
        let args = ["--workers", "2", "--save", "", "--repl-diskless-sync-delay", "0"];
        let [mut primary, replica] = [(); 2].map(|()| Server::pantala(backend, &args));
        following::follow(&replica, &primary);
        let Some(sentinel) = Sentinel::of(&primary) else { return };
        let mut client = sentinel.connect();
        eventually("Sentinel knows the replica", || client.call("SENTINEL REPLICAS pair").elements().len() == 1);
        let port = sentinel.port().to_string();
        ecosystem.run_with(line, &folder, &mut primary, &[("PANTALA_SENTINEL_PORT", &port)]);
    });
}

#[test]
#[ignore = "installs packages: run on a release build by .ci/run"]
fn redis_py_continues_across_failovers() {
    run_across_failovers(&PYTHON, &["venv/bin/python", "failover.py"]);
}

#[test]
#[ignore = "installs packages: run on a release build by .ci/run"]
fn go_redis_continues_across_failovers() {
    run_across_failovers(&GO, &["./workload"]);
}

#[test]
#[ignore = "installs packages: run on a release build by .ci/run"]
fn node_bullmq_and_ioredis() {
    run(&NODE);
}

#[test]
#[ignore = "installs packages: run on a release build by .ci/run"]
fn python_rq_celery_and_redis_py() {
    run(&PYTHON);
}

#[test]
#[ignore = "installs packages: run on a release build by .ci/run"]
fn go_redis() {
    run(&GO);
}

#[test]
#[ignore = "installs packages: run on a release build by .ci/run"]
fn java_jedis_and_redisson() {
    run(&JAVA);
}
