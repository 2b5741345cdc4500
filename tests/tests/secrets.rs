//! Passwords of users, of the server and of private keys must not appear in the log, in a reply to
//! another client, or in the output of `MONITOR` or `SLOWLOG`. The text of a script is an
//! exception: it is shown, even if it contains a password.

use pantala_tests::server::{free_port, run_to_exit};
use pantala_tests::tls::Certificates;
use pantala_tests::{Backend, Client, Reply, Server, for_each_backend};

/// Part of every password below.
const SECRET: &str = "hunter2";

/// Commands that contain a password. Together they cover different paths through the server.
const COMMANDS: &[&str] = &[
    "ACL SETUSER max on >hunter2 +@all ~*",
    "AUTH max hunter2",
    "AUTH default hunter2",
    "AUTH hunter2",
    "AUTH max my hunter2",
    "AUTH nobody hunter2",
    "HELLO 2 AUTH max hunter2",
    "HELLO 2 AUTH max hunter2-wrong SETNAME name",
    "CONFIG SET requirepass hunter2",
    "CONFIG SET masterauth hunter2",
    "CONFIG SET masteruser hunter2-user",
    "CONFIG SET tls-key-file-pass hunter2",
    "CONFIG SET tls-client-key-file-pass hunter2",
    "CONFIG SET maxmemory 0 masterauth hunter2",
    "CONFIG SET masterauth hunter2 nosuch 1",
    "ACL SETUSER max <hunter2",
    "ACL SETUSER max <hunter2",
    "ACL SETUSER max +nosuch >hunter2",
    "ACL SETUSER max >hunter2 (",
    "ACL DRYRUN max AUTH hunter2",
    "ACL DRYRUN max HELLO 3 AUTH max hunter2",
    "COMMAND GETKEYS ACL SETUSER max >hunter2",
    "COMMAND GETKEYS AUTH max hunter2",
    "COMMAND GETKEYSANDFLAGS MIGRATE 127.0.0.1 1 key 0 100 AUTH hunter2",
    "SET key value",
    "MIGRATE 127.0.0.1 1 key 0 100 AUTH hunter2",
    "MIGRATE 127.0.0.1 1 key 0 100 COPY AUTH2 hunter2-user hunter2",
    "MIGRATE 127.0.0.1 1  0 100 AUTH2 hunter2-user hunter2 KEYS key",
    "MULTI",
    "AUTH max hunter2",
    "ACL SETUSER max >hunter2-2",
    "CONFIG SET masterauth hunter2",
    "MIGRATE 127.0.0.1 1 key 0 100 AUTH hunter2",
    "EXEC",
    "ACL SETUSER limited on >hunter2 +ping +auth",
    "AUTH limited hunter2",
    // These commands are denied, so they are recorded in `ACL LOG`.
    "CONFIG SET masterauth hunter2",
    "ACL SETUSER max >hunter2",
    "MIGRATE 127.0.0.1 1 key 0 100 AUTH hunter2",
];

/// Commands whose replies show other clients, past commands or the server's state.
const REPORTS: &[&str] = &[
    "SLOWLOG GET 1000",
    "ACL LOG 1000",
    "ACL LIST",
    "ACL GETUSER max",
    "CLIENT LIST",
    "INFO everything",
    "LATENCY DOCTOR",
    "MEMORY DOCTOR",
    "CONFIG GET maxmemory*",
];

/// Panics if a text contains the secret, as such or as bytes that `Debug` shows as numbers.
#[track_caller]
fn assert_hidden(what: &str, text: &str) {
    let numbers = SECRET.bytes().map(|byte| byte.to_string()).collect::<Vec<_>>().join(", ");
    assert!(!text.contains(SECRET) && !text.contains(&numbers), "{what}: {text}");
}

#[test]
fn passwords_are_never_shown() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--slowlog-log-slower-than", "0", "--loglevel", "debug"]);
        let mut monitor = server.connect();
        assert_eq!(monitor.call("MONITOR"), Reply::ok());
        let mut observer = server.connect();
        observer.call("CONFIG SET slowlog-max-len 1000");
        let mut client: Client = server.connect();
        for command in COMMANDS {
            client.call(command);
        }
        assert_eq!(observer.call("PING end").text(), "end");
        let mut shown = Vec::new();
        while !shown.last().is_some_and(|line: &String| line.contains("\"end\"")) {
            shown.push(monitor.receive().text());
        }
        assert!(shown.iter().any(|line| line.contains("\"(redacted)\"")), "{shown:?}");
        assert_hidden("MONITOR", &shown.join("\n"));
        let slow = observer.call("SLOWLOG GET 1000");
        // The slow log doesn't contain all commands: denied calls and the queuing of a
        // transaction's commands are missing.
        assert!(slow.elements().len() > COMMANDS.len() / 2, "{} entries", slow.elements().len());
        for report in REPORTS {
            let reply = observer.call(report);
            assert!(!reply.is_error(), "{report}: {reply:?}");
            assert_hidden(report, &format!("{reply:?}"));
        }
        assert!(!server.log().is_empty());
        assert_hidden("the log", &server.log());
    });
}

/// Panics if a text contains part of a private key in PEM format, as such or as a list of bytes.
#[track_caller]
fn assert_no_key(key: &str, text: &str) {
    const PART_CHARS: usize = 8;
    for line in key.lines().filter(|line| !line.starts_with("-----")) {
        for part in line.as_bytes().windows(PART_CHARS) {
            let part = std::str::from_utf8(part).expect("base64");
            assert!(!text.contains(part), "part of the key is shown: {text}");
        }
    }
    let mut runs = text.split(|char: char| !char.is_ascii_digit() && char != ',' && char != ' ');
    assert!(!runs.any(|run| run.matches(", ").count() > 2), "a list of bytes is shown: {text}");
}

/// Damages the text of a key.
type Damage = fn(&str) -> String;

/// The file of a key may be damaged. For example, it may be written from an environment variable in
/// which the key has lost its line breaks. Neither the log nor an error reply shows any part of the
/// key.
#[test]
fn damaged_private_keys_are_never_shown() {
    let Some(certificates) = Certificates::make() else { return };
    let key = std::fs::read_to_string(certificates.key("rsa")).expect("it is read");
    let damages: [(&str, Damage); 7] = [
        ("spaces", |key| key.replace('\n', " ")),
        ("no-breaks", |key| key.replace('\n', "")),
        ("escaped", |key| key.replace('\n', "\\n")),
        ("first-break", |key| key.replacen('\n', "", 1)),
        ("truncated", |key| key[..key.len() / 2].into()),
        ("no-base64", |key| key.replacen('M', "*", 1)),
        ("encrypted", |key| key.replace("PRIVATE", "ENCRYPTED PRIVATE").replace('\n', " ")),
    ];
    let port = free_port();
    let args = certificates.server_args(port, "rsa");
    let args: Vec<&str> = args.iter().map(String::as_str).chain(["--loglevel", "debug"]).collect();
    let server = Server::pantala(Backend::Epoll, &args);
    let mut admin = server.connect();
    for (name, damage) in damages {
        let (file, client_cert) = (certificates.file(name), certificates.cert("rsa"));
        std::fs::write(&file, damage(&key)).expect("it is written");
        let set = ["CONFIG", "SET", "tls-key-file", &file];
        let set_client = ["CONFIG", "SET", "tls-client-cert-file", &client_cert, "tls-client-key-file", &file];
        for command in [&set[..], &set_client] {
            let reply = admin.command(command);
            assert!(reply.is_error(), "{name}: {reply:?}");
            assert_no_key(&key, &reply.text());
        }
        let (other, tls_port) = (free_port().to_string(), free_port().to_string());
        let more = ["--port", &other, "--tls-port", &tls_port, "--tls-key-file", &file];
        let exit = run_to_exit(&[&args[..], &more].concat(), b"");
        assert!(!exit.status.success(), "{name}");
        for text in [&server.log(), &exit.output] {
            let expected = format!("Failed to load private key: {file}: not valid PEM");
            assert!(text.contains(&expected) || name == "encrypted", "{name}: {text}");
            assert_no_key(&key, text);
        }
        // By mistake, the key's file is set as the certificate's file.
        assert!(admin.command(&["CONFIG", "SET", "tls-cert-file", &file]).is_error(), "{name}");
        assert_no_key(&key, &server.log());
    }
}

/// The configuration contains a password with an unquoted space, which is a syntax error.
#[test]
fn configuration_errors_show_no_password() {
    for name in ["requirepass", "masterauth", "tls-key-file-pass", "tls-client-key-file-pass"] {
        let escaped = format!("\"\\x{:02x}{}\"", name.as_bytes()[0], &name[1..]);
        for written in [name.to_owned(), format!("\"{}\"", name.to_uppercase()), format!("'{name}'"), escaped] {
            let exit = run_to_exit(&["-"], format!("{written} {SECRET} {SECRET}\n").as_bytes());
            assert!(!exit.status.success(), "{written}");
            assert!(exit.output.contains(" ...'") && !exit.output.contains(SECRET), "{}", exit.output);
        }
    }
}
