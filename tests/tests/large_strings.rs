//! Strings of half a gigabyte, at the limits of `SETBIT` and `SETRANGE`, compared with
//! redis-server.

use pantala_tests::{Backend, Reply, Server};

/// Length of a string that holds bits 0 to 2^32.
const BYTES: u64 = (1 << 29) + 1;

/// The replies to these commands must equal those of redis-server.
const COMMANDS: &[&str] = &[
    "SETBIT k 4294967296 1",
    "CONFIG SET proto-max-bulk-len 536870913",
    "SETBIT k 4294967295 1",
    "STRLEN k",
    "SETBIT k 4294967296 1",
    "STRLEN k",
    "GETBIT k 4294967295",
    "GETBIT k 4294967296",
    "GETBIT k 4294967297",
    "BITPOS k 1",
    "BITPOS k 1 536870912",
    "BITCOUNT k",
    "BITCOUNT k 4294967295 4294967296 BIT",
    "BITFIELD k GET u8 4294967296 SET u8 4294967296 255 GET i8 4294967296",
    "SETRANGE k 536870912 x",
    "SETRANGE k 536870912 xy",
    "SETRANGE k 536870913 x",
    "SETRANGE k 4294967295 x",
    "APPEND k x",
    "GETRANGE k 536870910 -1",
    "STRLEN k",
    "SETBIT k 4294967304 1",
    "SETBIT k 9223372036854775807 1",
    "DEL k",
    "SETRANGE new 536870912 x",
    "STRLEN new",
    "DEL new",
];

#[test]
#[ignore = "takes half a gigabyte in each of two servers: run by .ci/nightly"]
fn bits_and_ranges_near_the_longest_string() {
    for &backend in Backend::all() {
        let Some(reference) = Server::redis(&[]) else { return };
        let mut server = Server::pantala(backend, &["--workers", "2", "--shards", "7"]);
        let (mut ours, mut theirs) = (server.connect(), reference.connect());
        let mut longest = 0;
        for command in COMMANDS {
            let (given, right) = (ours.call(command), theirs.call(command));
            assert_eq!(given, right, "{command}");
            if let (true, Reply::Integer(length)) = (command.starts_with("STRLEN"), right) {
                longest = longest.max(length as u64);
            }
        }
        assert_eq!(longest, BYTES, "the longest string reaches the last bit");
        server.assert_sound();
    }
}
