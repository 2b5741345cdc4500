use super::super::host::fake::Fake;
use super::super::host_defaults;
use super::super::load::{Sources, load};
use super::super::table::DIRECTIVES;
use super::*;
use std::cell::RefCell;

fn store(options: &str) -> ConfigStore {
    let sources = Sources { file: None, stdin: false, options: options.into() };
    let mut host = Fake::with(&[]);
    // The store uses the working directory of the process.
    host.dir = System.current_dir();
    let loaded = load(&sources, host_defaults(2), &mut host);
    ConfigStore::new(&loaded.expect("a configuration"))
}

/// A client on another host sends a command to a server that isn't loading.
const REMOTE: Circumstances = Circumstances { is_local: false, is_loading: false };

/// Sets all of `pairs`, or none.
fn set_all(
    store: &ConfigStore,
    pairs: &[(&[u8], &[u8])],
    circumstances: Circumstances,
    apply: Apply<'_>,
) -> Result<(), String> {
    store.set(&store.plan(pairs, circumstances)?.prepare()?, || circumstances, apply).map_err(|wrong| match wrong {
        NotSet::Failed(reply) => reply,
        NotSet::Outdated => unreachable!("nobody else changes the settings"),
    })
}

fn set(store: &ConfigStore, pairs: &[(&str, &str)]) -> Result<(), String> {
    let pairs: Vec<(&[u8], &[u8])> = pairs.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
    set_all(store, &pairs, REMOTE, &|_, _| Ok(()))
}

fn get(store: &ConfigStore, patterns: &[&str]) -> Vec<(String, String)> {
    let patterns: Vec<&[u8]> = patterns.iter().map(|pattern| pattern.as_bytes()).collect();
    let text = |value: Vec<u8>| String::from_utf8(value).expect("text");
    store.get(&patterns).into_iter().map(|(name, value)| (name, text(value))).collect()
}

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

/// Each case was verified with redis-server 7.0.15.
#[test]
fn get_finds_by_name_and_pattern() {
    let store = store("port 7000");
    assert_eq!(get(&store, &["PORT"]), pairs(&[("PORT", "7000")]));
    assert_eq!(get(&store, &["Po*"]), pairs(&[("port", "7000")]));
    assert_eq!(get(&store, &["port", "PORT", "p[o]rt"]), pairs(&[("port", "7000")]));
    assert_eq!(get(&store, &["key-load-delay", "key-load*"]), pairs(&[("key-load-delay", "0")]));
    assert_eq!(get(&store, &["key-load*"]), []);
    assert_eq!(get(&store, &["nothing"]), []);
    assert_eq!(
        get(&store, &["*slave-prio*", "replica-prio*"]),
        pairs(&[("slave-priority", "100"), ("replica-priority", "100")])
    );
    assert_eq!(get(&store, &["shards", "workers"]), pairs(&[("shards", "32"), ("workers", "2")]));
}

#[test]
fn own_immutable_directives_may_be_set_to_their_current_value() {
    let store = store("shards 32");
    assert_eq!(set(&store, &[("SHARDS", "32"), ("execution", "inline"), ("timeout", "7")]), Ok(()));
    let refused = set(&store, &[("timeout", "8"), ("shards", "33")]).expect_err("shards are fixed");
    assert!(refused.ends_with("can't set immutable config"), "{refused}");
    assert_eq!(get(&store, &["shards", "timeout"]), pairs(&[("shards", "32"), ("timeout", "7")]));
}

/// Each case was verified with redis-server 7.0.15, except the last group.
#[test]
fn errors_of_set_match_redis() {
    let store = store("");
    let failed = |name: &str, reason: &str| {
        Err(format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {reason}"))
    };
    let unknown = |name: &str| Err(format!("ERR Unknown option or number of arguments for CONFIG SET - '{name}'"));
    assert_eq!(set(&store, &[("foo", "1")]), unknown("foo"));
    assert_eq!(set(&store, &[("timeout", "1"), ("timeout", "2")]), failed("timeout", "duplicate parameter"));
    assert_eq!(set(&store, &[("DAEMONIZE", "yes")]), failed("DAEMONIZE", "can't set immutable config"));
    assert_eq!(set(&store, &[("dir", "/tmp")]), failed("dir", "can't set protected config"));
    assert_eq!(
        set(&store, &[("Timeout", "-1")]),
        failed("timeout", "argument must be between 0 and 2147483647 inclusive")
    );
    assert_eq!(set(&store, &[("timeout", "5"), ("foo", "7"), ("daemonize", "yes")]), unknown("foo"));
    assert_eq!(set(&store, &[("daemonize", "yes"), ("foo", "3")]), failed("daemonize", "can't set immutable config"));
    assert_eq!(
        set(&store, &[("slave-priority", "x")]),
        failed("slave-priority", "argument couldn't be parsed into an integer")
    );
    for name in
        ["unixsocketperm", "databases", "logfile", "enable-debug-command", "replicaof", "syslog-enabled", "shards"]
    {
        assert_eq!(set(&store, &[(name, "1")]), failed(name, "can't set immutable config"));
    }
    assert_eq!(
        set(&store, &[("activedefrag", "yes")]),
        failed("activedefrag", "Pantala doesn't serve 'activedefrag' yet: it stays as it is")
    );
    assert_eq!(store.generation(), 0);
}

#[test]
fn unsupported_directives_may_be_set_to_their_current_value() {
    let store = store("");
    for (name, value) in [("save", ""), ("activedefrag", "no"), ("maxmemory", "0"), ("notify-keyspace-events", "")] {
        assert_eq!(set(&store, &[(name, value)]), Ok(()), "{name}");
    }
    assert_eq!(set(&store, &[("list-max-listpack-size", "-2"), ("list-max-ziplist-size", "-2")]), Ok(()));
}

#[test]
fn set_is_all_or_nothing() {
    let store = store("");
    let before = store.settings();
    let wrong = set(&store, &[("timeout", "5"), ("proto-max-bulk-len", "x"), ("hz", "3")]);
    assert_eq!(wrong, Err(failed("proto-max-bulk-len", "argument must be a memory value")));
    assert_eq!(*store.settings(), *before);
    assert_eq!(get(&store, &["timeout"]), pairs(&[("timeout", "0")]));

    assert_eq!(set(&store, &[("timeout", "5"), ("hz", "1000"), ("requirepass", "a b")]), Ok(()));
    let after = store.settings();
    assert_eq!((after.timeout_s, after.hz, after.requirepass.as_deref()), (5, 500, Some(&b"a b"[..])));
    assert_eq!(get(&store, &["hz"]), pairs(&[("hz", "500")]));
    assert_eq!(store.generation(), 1);
    assert_eq!(before.timeout_s, 0);
}

#[test]
fn a_rejected_change_leaves_the_settings() {
    let store = store("");
    let seen = RefCell::new(Vec::new());
    let apply = |old: &Settings, new: &Settings| {
        seen.borrow_mut().push((old.port, new.port));
        Err(Refusal { directive: "port", reason: "Unable to listen on this port. Check server logs.".into() })
    };
    let answer = set_all(&store, &[(b"port", b"7001")], REMOTE, &apply);
    assert_eq!(answer, Err(failed("port", "Unable to listen on this port. Check server logs.")));
    assert_eq!(*seen.borrow(), [(6379, 7001)]);
    assert_eq!((store.settings().port, store.generation()), (6379, 0));
}

#[test]
fn protected_directives_follow_their_switch() {
    let dir = System.current_dir().into_os_string().into_encoded_bytes();
    let set_dir = |options: &str, is_local: bool| {
        set_all(&store(options), &[(b"dir", &dir)], Circumstances { is_local, ..REMOTE }, &|_, _| Ok(()))
    };
    assert!(set_dir("enable-protected-configs no", true).is_err());
    assert_eq!(set_dir("enable-protected-configs local", true), Ok(()));
    assert!(set_dir("enable-protected-configs local", false).is_err());
    assert_eq!(set_dir("enable-protected-configs yes", false), Ok(()));
    let missing = set(&store("enable-protected-configs yes"), &[("dir", "/nonexist")]);
    assert_eq!(missing, Err(failed("dir", "No such file or directory")));
}

/// `tests/loading.rs` compares these errors with redis-server.
#[test]
fn some_directives_are_denied_while_loading() {
    let open = store("enable-protected-configs yes");
    let loading = Circumstances { is_loading: true, ..REMOTE };
    let set = |store: &ConfigStore, pairs: &[(&[u8], &[u8])]| set_all(store, pairs, loading, &|_, _| Ok(()));
    let denied = DIRECTIVES.iter().filter(|directive| directive.denied_while_loading);
    assert_eq!(denied.map(|directive| directive.name).collect::<Vec<_>>(), ["dir", "appendonly", "repl-diskless-load"]);
    assert_eq!(set(&open, &[(b"timeout", b"5"), (b"appendonly", b"no")]), Err(LOADING.into()));
    assert_eq!(get(&open, &["timeout"]), pairs(&[("timeout", "0")]));
    assert_eq!(set(&open, &[(b"timeout", b"5")]), Ok(()));
    assert_eq!(set(&store(""), &[(b"dir", b"/")]), Err(failed("dir", "can't set protected config")));
    // A load may start while the change waits for the disk.
    let list: [(&[u8], &[u8]); 1] = [(b"appendonly", b"yes")];
    let prepared = open.plan(&list, REMOTE).and_then(Plan::prepare).expect("no load yet");
    assert_eq!(open.set(&prepared, || loading, &|_, _| Ok(())), Err(NotSet::Failed(LOADING.into())));
    assert_eq!(open.set(&prepared, || REMOTE, &|_, _| Ok(())), Ok(()));
}

#[test]
fn rewrite_needs_a_file() {
    assert_eq!(store("").rewrite(Vec::new), Err(NO_FILE.into()));
    let failed = format!("CONFIG-REWRITE-FORCE-ALL failed: {NO_FILE}");
    assert_eq!(store("").rewrite_all(Vec::new), Err(failed));
}

/// A reader of a generation sees the settings of that generation or of a later one.
#[test]
fn generation_never_runs_ahead_of_the_settings() {
    const CHANGES: u32 = 2_000;
    let store = store("");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for timeout_s in 1..=CHANGES {
                set(&store, &[("timeout", &timeout_s.to_string())]).expect("set");
            }
        });
        scope.spawn(|| {
            loop {
                let generation = store.generation();
                let timeout_s = u64::from(store.settings().timeout_s);
                assert!(timeout_s >= generation, "settings {timeout_s} at generation {generation}");
                if generation == u64::from(CHANGES) {
                    break;
                }
            }
        });
    });
}
