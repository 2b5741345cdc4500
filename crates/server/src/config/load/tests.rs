use super::super::host::fake::Fake;
use super::super::host_defaults;
use super::*;

fn load_from(host: &mut Fake, sources: &Sources) -> Result<Loaded, LoadError> {
    load(sources, host_defaults(2), host)
}

fn load_text(text: &str) -> Result<Loaded, LoadError> {
    let sources = Sources { file: Some("a.conf".into()), ..Sources::default() };
    load_from(&mut Fake::with(&[("/a.conf", text), ("/log/x", "")]), &sources)
}

fn settings(text: &str) -> Settings {
    load_text(text).unwrap_or_else(|error| panic!("{text:?}: {error}")).settings
}

/// The expected texts are those that redis-server 7.0.15 prints, except for its name and version.
#[test]
fn errors_name_the_line_and_the_reason() {
    for (text, number, line, reason) in [
        ("port 1\ntimeout \"a", 2, "timeout \"a", "Unbalanced quotes in configuration line"),
        ("port 1\ntimeout \"5\"x", 2, "timeout \"5\"x", "Unbalanced quotes in configuration line"),
        ("port 1\n  TimeOut 5   \n\n hz 3 4", 4, "hz 3 4", "wrong number of arguments"),
        ("port", 1, "port", "wrong number of arguments"),
        ("foo bar", 1, "foo bar", "Bad directive or wrong number of arguments"),
        ("rename-command get", 1, "rename-command get", "Bad directive or wrong number of arguments"),
        ("include", 1, "include", "Bad directive or wrong number of arguments"),
        ("sentinel foo", 1, "sentinel foo", "sentinel directive while not in sentinel mode"),
        ("dir /nonexist", 1, "dir /nonexist", "No such file or directory"),
        ("bind ::1 \"a b\"", 1, "bind ::1 \"a b\"", "A bind address can't have a space."),
        ("save 1", 1, "save 1", "Invalid save parameters"),
        ("save\nsave 1", 2, "save 1", "Invalid save parameters"),
        (
            "shutdown-on-sigint",
            1,
            "shutdown-on-sigint",
            "argument(s) must be one of the following: default, save, nosave, now, force",
        ),
        (
            "loglevel \"\"",
            1,
            "loglevel \"\"",
            "argument(s) must be one of the following: debug, verbose, notice, warning",
        ),
        ("shards 0", 1, "shards 0", "argument must be between 1 and 16384 inclusive"),
        ("shards 16385", 1, "shards 16385", "argument must be between 1 and 16384 inclusive"),
        ("workers 1025", 1, "workers 1025", "argument must be between 1 and 1024 inclusive"),
        ("databases 16385", 1, "databases 16385", "argument must be between 1 and 16384 inclusive"),
    ] {
        let expected = LoadError::Line { number, line: line.into(), reason: reason.into() };
        assert_eq!(load_text(text).err(), Some(expected), "{text:?}");
    }
    let shown = load_text("# x\nfoo bar").expect_err("an unknown directive").to_string();
    let version = env!("CARGO_PKG_VERSION");
    let expected = format!(
        "\n*** FATAL CONFIG FILE ERROR (Pantala {version}) ***\nReading the configuration file, at line 2\n>>> 'foo bar'\n\
         Bad directive or wrong number of arguments"
    );
    assert_eq!(shown, expected);
}

#[test]
fn values_at_the_bounds_are_accepted() {
    assert_eq!(settings("shards 16384\nworkers 1024\ndatabases 1").shards, 16_384);
    assert_eq!(settings("shards 1\nworkers 1").workers, 1);
    assert_eq!(settings("hz 0").hz, 1);
    assert_eq!(settings("hz 1000").hz, 500);
}

#[test]
fn missing_files_and_logs_prevent_startup() {
    let sources = Sources { file: Some("none.conf".into()), ..Sources::default() };
    let error = load_from(&mut Fake::with(&[]), &sources).expect_err("no such file");
    assert_eq!(error.to_string(), "Fatal error, can't open config file '/none.conf': No such file or directory");
    let error = load_text("include none.conf").expect_err("no such file");
    assert_eq!(error.to_string(), "Fatal error, can't open config file 'none.conf': No such file or directory");
    let error = load_text("logfile /nonexist/x").expect_err("no such directory");
    assert_eq!(error, LoadError::Whole("Can't open the log file: No such file or directory".into()));
    assert!(load_text("logfile /log/y").is_ok());
}

#[test]
fn the_last_line_of_a_directive_wins() {
    let mut host = Fake::with(&[("/a.conf", "timeout 1\nport 1\nhz 20\nbind 1.1.1.1 ::1")]);
    host.stdin = b"port 2\nhz 30".to_vec();
    let sources = Sources { file: Some("a.conf".into()), stdin: true, options: b"hz 40".to_vec() };
    let settings = load_from(&mut host, &sources).expect("a configuration").settings;
    assert_eq!((settings.timeout_s, settings.port, settings.hz), (1, 2, 40));
    assert_eq!(settings.bind, ["1.1.1.1", "::1"]);
}

#[test]
fn options_without_a_file_begin_at_line_2() {
    let sources = Sources { options: b"foo".to_vec(), ..Sources::default() };
    assert!(matches!(load_from(&mut Fake::with(&[]), &sources), Err(LoadError::Line { number: 2, .. })));
}

#[test]
fn repeated_lines_add_up_where_redis_adds() {
    let settings =
        settings("client-output-buffer-limit normal 1 2 3\nclient-output-buffer-limit replica 4 5 6\nbind a\nbind b c");
    assert_eq!(
        settings.output_limit_normal,
        super::super::OutputLimit { hard_bytes: 1, soft_bytes: 2, soft_seconds: 3 }.with_reply_buffer()
    );
    assert_eq!(settings.output_limit_replica.hard_bytes, 4);
    assert_eq!(settings.output_limit_pubsub.hard_bytes, (32 << 20) + (16 << 10));
    assert_eq!(settings.bind, ["b", "c"]);
}

/// A lone argument of these directives is a line of its own. A line with a quote that isn't closed
/// has no words.
#[test]
fn a_single_argument_may_contain_all_words_with_quotes() {
    let line = |directive: &str, word: &str| {
        let mut line = format!("{directive} ").into_bytes();
        super::super::quote::quote(&mut line, word.as_bytes());
        String::from_utf8(line).expect("text")
    };
    for (word, save) in
        [("''", ""), ("\"\"", ""), ("'", ""), ("60 \"1\"", "60 1"), ("60\t1 '900' 5", "60 1 900 5"), (" ", "")]
    {
        let loaded = load_text(&line("save", word)).expect(word);
        assert_eq!(loaded.values.text("save"), save.as_bytes(), "{word}");
    }
    assert_eq!(settings(&line("bind", "'127.0.0.1' ::1")).bind, ["127.0.0.1", "::1"]);
    assert!(load_text(&line("oom-score-adj-values", "'")).is_err());
}

#[test]
fn unsupported_directives_cause_one_warning_and_keep_their_default() {
    let text = "save 60 5\nsave 900 1\nactivedefrag yes\nappendfsync everysec\ndbfilename x\nactiverehashing yes\n\
        io-threads 4\nset-proc-title no\nlua-replicate-commands yes\ndbfilename dump.rdb";
    let loaded = load_text(text).expect("a configuration");
    let named: Vec<&str> = loaded.warnings.iter().map(|warning| warning.directive.as_str()).collect();
    assert_eq!(named, ["activedefrag", "activerehashing", "io-threads"]);
    assert_eq!(loaded.values.text("save"), b"60 5 900 1");
    assert!(!loaded.values.bool("activedefrag"));
    assert!(loaded.warnings[0].text.contains("'activedefrag'"));
}

/// Lines that prevent startup, each with the consequence of ignoring the line.
const UNSAFE: [(&str, &str); 3] =
    [("tls-cluster yes", "encrypted"), ("loadmodule /x.so", "no module"), ("loadmodule /x.so argument", "no module")];

#[test]
fn directives_unsafe_to_ignore_prevent_startup() {
    for (line, meaning) in UNSAFE {
        let error = load_text(&format!("port 1\n{line}\nhz 20")).expect_err(line);
        let LoadError::Line { number: 2, line: named, reason } = error else { panic!("{line}: {error:?}") };
        assert_eq!(named, line.as_bytes());
        assert!(reason.contains("isn't served yet") && reason.contains(meaning), "{line}: {reason}");
        let sources = Sources { options: line.into(), ..Sources::default() };
        assert!(load_from(&mut Fake::with(&[]), &sources).is_err(), "{line} as an option");
        for text in [format!("{line}\nignore-unsupported yes"), format!("ignore-unsupported yes\n{line}")] {
            let loaded = load_text(&text).expect(line);
            assert!(loaded.warnings[0].text.contains(meaning), "{line}: {:?}", loaded.warnings);
        }
    }
}

#[test]
fn only_the_last_line_of_a_directive_can_prevent_startup() {
    for text in [
        "tls-cluster yes\ntls-cluster no",
        "replicaof a 1\nreplicaof no one",
        "slaveof a 1\nreplicaof no one",
        "user default on nopass ~* &* +@all",
        "aclfile /etc/users.acl",
        "tls-cluster no\nmasterauth \"\"",
    ] {
        let loaded = load_text(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert!(loaded.warnings.is_empty(), "{text}: {:?}", loaded.warnings);
    }
    assert!(load_text("tls-cluster no\ntls-cluster yes").is_err());
    // This directive is safe to ignore.
    let text = "activedefrag yes";
    assert_eq!(load_text(text).expect(text).warnings.len(), 1, "{text}");
}

#[test]
fn users_are_read_and_their_rules_are_not_shown() {
    let text = "user alice on >secret (+get\n".to_owned() + "port 1";
    let error = load_text(&text).expect_err("a selector is left open");
    assert!(error.to_string().contains("line 1") && !error.to_string().contains("secret"), "{error}");
    let loaded = load_text("user alice on (+get ~x ) +nosuch\nuser bob").expect("users");
    assert_eq!(loaded.users.len(), 2, "commands are looked up later");
    assert_eq!(loaded.users[0].rules.len(), 3);
    for (wrong, reason) in [
        ("user a on\nuser a on", "Duplicate user found"),
        ("user a nonsense", "rule 1: Syntax error"),
        ("user a >p <q", "rule 2: The password you are trying to remove"),
        ("user", "Bad directive"),
    ] {
        let error = load_text(wrong).expect_err(wrong).to_string();
        assert!(error.contains(reason), "{wrong}: {error}");
    }
}

#[test]
fn bad_values_of_unsupported_directives_are_rejected() {
    assert!(load_text("activedefrag maybe").is_err());
    assert!(load_text("slave-priority x").is_err());
    assert!(load_text("foo.bar 1").is_err());
}

#[test]
fn includes_are_relative_and_may_have_wildcards() {
    let files = [
        ("/a.conf", "include conf.d/*.conf\ndir /sub\ninclude c.conf\ninclude none/*.conf"),
        ("/conf.d/1.conf", "timeout 1"),
        ("/conf.d/2.conf", "\ntimeout 2"),
        ("/sub/c.conf", "hz 33"),
    ];
    let mut host = Fake::with(&files);
    let sources = Sources { file: Some("a.conf".into()), ..Sources::default() };
    let loaded = load_from(&mut host, &sources).expect("a configuration");
    assert_eq!((loaded.settings.timeout_s, loaded.settings.hz), (2, 33));
    assert_eq!(loaded.settings.dir, Path::new("/sub"));
    assert_eq!(loaded.file.as_deref(), Some(Path::new("/a.conf")));
}

#[test]
fn depth_and_number_of_includes_are_bounded() {
    let chain = |length: usize| {
        let mut host = Fake::with(&[]);
        for at in 0..length {
            let line = if at + 1 < length { format!("include {}.conf", at + 1) } else { "hz 11".into() };
            host.files.insert(format!("/{at}.conf").into(), line.into_bytes());
        }
        load_from(&mut host, &Sources { file: Some("0.conf".into()), ..Sources::default() })
    };
    assert_eq!(chain(INCLUDE_DEPTH_MAX + 1).expect("at the bound").settings.hz, 11);
    assert!(chain(INCLUDE_DEPTH_MAX + 2).expect_err("beyond the bound").to_string().contains("deeper than 16"));
    let fan = |count: usize| {
        let mut host = Fake::with(&[("/b.conf", "hz 11")]);
        host.files.insert("/0.conf".into(), "include b.conf\n".repeat(count).into_bytes());
        load_from(&mut host, &Sources { file: Some("0.conf".into()), ..Sources::default() })
    };
    assert!(fan(INCLUDES_MAX).is_ok());
    assert!(fan(INCLUDES_MAX + 1).is_err());
}

#[test]
fn defaults_depend_on_the_host() {
    let automatic = settings("");
    assert_eq!((automatic.workers, automatic.shards), (2, 32));
    let given = settings("workers 3");
    assert_eq!((given.workers, given.shards), (3, 48));
    assert_eq!(settings("shards 5").shards, 5);
    for (workers, shards, partitions) in
        [(1, 5, 5), (8, 1, 1), (2, 5, 35), (2, 40, 40), (64, 40, 640), (64, 1_024, 1_024), (1_024, 9_000, 9_000)]
    {
        let given = settings(&format!("workers {workers}\nshards {shards}"));
        assert_eq!(given.partitions, partitions, "{workers} workers, {shards} shards");
    }
    // The maximum number of databases for which the default number of partitions fits, and one
    // more.
    assert_eq!(settings("workers 64\nshards 40\ndatabases 1638").partitions, 640);
    assert_eq!(settings("workers 64\nshards 40\ndatabases 1639").partitions, 40);
    assert_eq!(settings("partitions 48\nshards 40").partitions, 48);
    assert_eq!(settings("partitions 40\nshards 40").partitions, 40);
    assert!(matches!(load_text("partitions 39\nshards 40"), Err(LoadError::Whole(_))));
    assert_eq!(settings("daemonize yes").pidfile.as_deref(), Some(Path::new("/var/run/pantala.pid")));
    assert_eq!(settings("daemonize yes\npidfile x").pidfile.as_deref(), Some(Path::new("x")));
    assert_eq!(settings("").pidfile, None);
}

#[test]
fn renames_are_checked_in_order() {
    let exists = |name: &[u8]| name == b"get" || name == b"set";
    let check =
        |text: &str| load_text(text).expect("a configuration").check_renames(exists).map_err(|error| error.to_string());
    assert_eq!(check("rename-command GET foo\nrename-command set get"), Ok(()));
    assert_eq!(check("rename-command get \"\""), Ok(()));
    assert!(check("rename-command foo bar").expect_err("unknown").ends_with("\nNo such command in rename-command"));
    assert!(check("rename-command get set").expect_err("taken").ends_with("\nTarget command name already exists"));
    assert!(check("rename-command get \"\"\nrename-command get x").is_err());
    assert!(check("rename-command get x\nrename-command set x").is_err());
}

#[test]
fn percentages_refer_to_the_final_maxmemory() {
    let loaded = load_text("maxmemory 1gb\nmaxmemory-clients 5%\nmaxmemory 100mb").expect("both are fine");
    assert_eq!(loaded.settings.maxmemory_bytes, 100 << 20);
    assert_eq!(loaded.settings.clients_memory_bytes(), 5 << 20);
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
}
