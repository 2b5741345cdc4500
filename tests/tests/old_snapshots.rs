//! RDB files in the formats of older versions of Redis, constructed byte by byte. redis-server and
//! Pantala must load the same dataset from them.

use pantala_tests::{Backend, Client, Reply, Server, tool};

/// Returns a string in the form of an RDB file: the length, then the bytes.
fn string(bytes: &[u8]) -> Vec<u8> {
    let mut out = if bytes.len() < 64 {
        vec![bytes.len() as u8]
    } else {
        [&[0x80][..], &(bytes.len() as u32).to_be_bytes()].concat()
    };
    out.extend_from_slice(bytes);
    out
}

/// An element of a ziplist.
#[derive(Clone, Copy)]
enum Element<'a> {
    Text(&'a [u8]),
    /// An integer, and the number of bytes that follow its encoding byte. If this number is 0, the
    /// encoding byte contains the integer.
    Int(i64, usize),
}

use Element::{Int, Text};

fn ziplist(elements: &[Element<'_>]) -> Vec<u8> {
    let (mut entries, mut before, mut last) = (Vec::new(), 0usize, 10usize);
    for element in elements {
        let start = entries.len();
        last = 10 + start;
        if before < 254 {
            entries.push(before as u8);
        } else {
            entries.push(254);
            entries.extend_from_slice(&(before as u32).to_le_bytes());
        }
        match *element {
            Text(text) if text.len() < 64 => entries.push(text.len() as u8),
            Text(text) if text.len() < 1 << 14 => {
                entries.extend_from_slice(&(0x4000 | text.len() as u16).to_be_bytes());
            }
            Text(text) => {
                entries.push(0x80);
                entries.extend_from_slice(&(text.len() as u32).to_be_bytes());
            }
            Int(value, 0) => entries.push(0xf1 + value as u8),
            Int(_, 1) => entries.push(0xfe),
            Int(_, 2) => entries.push(0xc0),
            Int(_, 3) => entries.push(0xf0),
            Int(_, 4) => entries.push(0xd0),
            Int(..) => entries.push(0xe0),
        }
        match *element {
            Text(text) => entries.extend_from_slice(text),
            Int(value, bytes) => entries.extend_from_slice(&value.to_le_bytes()[..bytes]),
        }
        before = entries.len() - start;
    }
    let total = 10 + entries.len() + 1;
    let head =
        [&(total as u32).to_le_bytes()[..], &(last as u32).to_le_bytes(), &(elements.len() as u16).to_le_bytes()];
    [head.concat(), entries, vec![0xff]].concat()
}

fn zipmap(pairs: &[(&[u8], &[u8])]) -> Vec<u8> {
    let len = |bytes: &[u8]| {
        if bytes.len() < 254 {
            vec![bytes.len() as u8]
        } else {
            [&[254][..], &(bytes.len() as u32).to_le_bytes()].concat()
        }
    };
    let mut out = vec![pairs.len() as u8];
    for (field, value) in pairs {
        out.extend([len(field), field.to_vec(), len(value)].concat());
        // The value, preceded by the number of unused bytes (2) that follow it.
        out.extend([&[2], *value, &[0, 0]].concat());
    }
    out.push(0xff);
    out
}

fn intset(width: u32, values: &[i64]) -> Vec<u8> {
    let mut out = [width.to_le_bytes(), (values.len() as u32).to_le_bytes()].concat();
    values.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()[..width as usize]));
    out
}

/// Returns an entry without an expiry.
fn entry(kind: u8, key: &str, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &string(key.as_bytes()), body].concat()
}

/// Returns a score as text.
fn score(text: &str) -> Vec<u8> {
    match text {
        "inf" => vec![254],
        "-inf" => vec![255],
        text => [&[text.len() as u8][..], text.as_bytes()].concat(),
    }
}

/// Returns entries of every form that versions before Redis 7.0 wrote.
fn entries() -> Vec<Vec<u8>> {
    let long = [b'x'; 300];
    let huge = [b'y'; 20_000];
    let mixed = [
        Text(b"a"),
        Int(12, 0),
        Int(-7, 1),
        Text(&long),
        Int(-30_000, 2),
        Int(8_000_000, 3),
        Int(i64::MIN, 8),
        Text(b"end"),
    ];
    let members = |count: usize| -> Vec<u8> {
        (0..count).flat_map(|number| string(format!("member {number}").as_bytes())).collect()
    };
    let counted = |count: u8, body: Vec<u8>| [vec![count], body].concat();
    let zset: Vec<u8> = ["1", "-2.5", "inf", "-inf", "0.1"]
        .iter()
        .enumerate()
        .flat_map(|(number, text)| [string(format!("m{number}").as_bytes()), score(text)].concat())
        .collect();
    let listpacked_stream = {
        // One node (listpack) with one entry. The entry has the same fields as the node's master
        // entry, so it contains only values.
        let entries: &[u8] = &[
            1, 1, 0, 1, 1, 1, // count 1, deleted 0, one master field
            0x81, b'f', 2, 0, 1, // its name, and the end of the master entry
            2, 1, 0, 1, 0, 1, // same fields, id as the master's
            0x81, b'v', 2, 4, 1, // the value, and how many elements the entry has
        ];
        let total = 6 + entries.len() + 1;
        [&(total as u32).to_le_bytes()[..], &10u16.to_le_bytes(), entries, &[0xff]].concat()
    };
    let id: Vec<u8> = [1u64.to_be_bytes(), 1u64.to_be_bytes()].concat();
    let stream = [
        vec![1],
        string(&id),
        string(&listpacked_stream),
        vec![1, 1, 1],
        // A group that has read the entry, with one consumer.
        vec![1],
        string(b"group"),
        vec![1, 1, 1],
        id.clone(),
        1_600_000_000_000i64.to_le_bytes().to_vec(),
        vec![3, 1],
        string(b"consumer"),
        1_600_000_000_000i64.to_le_bytes().to_vec(),
        vec![1],
        id.clone(),
    ]
    .concat();
    vec![
        entry(0, "string", &string(b"value")),
        entry(0, "int8", &[0xc0, 0x85]),
        entry(0, "int16", &[0xc1, 0x39, 0x30]),
        entry(0, "int32", &[0xc2, 0, 0, 0, 0x80]),
        // "aaaaaaaaaa": one literal, and a match of nine.
        entry(0, "lzf", &[0xc3, 5, 10, 0, b'a', 0xe0, 0, 0]),
        entry(1, "list", &counted(3, members(3))),
        entry(10, "list-ziplist", &string(&ziplist(&mixed))),
        entry(14, "quicklist", &counted(2, [string(&ziplist(&mixed)), string(&ziplist(&[Text(&huge)]))].concat())),
        entry(2, "set", &counted(5, members(5))),
        entry(11, "intset16", &string(&intset(2, &[-5, 0, 300]))),
        entry(11, "intset64", &string(&intset(8, &[i64::MIN, 0, i64::MAX]))),
        entry(3, "zset", &counted(5, zset)),
        entry(
            12,
            "zset-ziplist",
            &string(&ziplist(&[Text(b"a"), Int(1, 0), Text(b"b"), Text(b"2.5"), Int(3, 0), Int(77, 1)])),
        ),
        entry(4, "hash", &counted(3, members(6))),
        entry(13, "hash-ziplist", &string(&ziplist(&[Text(b"f"), Int(1, 0), Text(b"g"), Text(&long)]))),
        entry(9, "hash-zipmap", &string(&zipmap(&[(b"f", b"v"), (b"g", &long), (b"12", b"34")]))),
        entry(15, "stream", &stream),
        // Expiries in seconds and in milliseconds, an idle time and an access counter.
        [&[253][..], &2_000_000_000i32.to_le_bytes(), &entry(0, "expires-s", &string(b"v"))].concat(),
        [&[252][..], &4_102_444_800_123i64.to_le_bytes(), &entry(0, "expires-ms", &string(b"v"))].concat(),
        [&[253][..], &1_000_000_000i32.to_le_bytes(), &entry(0, "expired", &string(b"v"))].concat(),
        [&[248, 0x40, 100][..], &entry(0, "idle", &string(b"v"))].concat(),
        [&[249, 100][..], &entry(0, "frequent", &string(b"v"))].concat(),
    ]
}

/// Returns the bytes of a file. Versions before 5 have no checksum. From version 5 the checksum is
/// 0, which disables the check.
fn file(version: u32) -> Vec<u8> {
    let mut file = format!("REDIS{version:04}").into_bytes();
    file.extend([254, 0]);
    entries().iter().for_each(|entry| file.extend_from_slice(entry));
    file.extend([254, 9]);
    file.extend(entry(0, "elsewhere", &string(b"v")));
    file.push(255);
    if version >= 5 {
        file.extend([0; 8]);
    }
    file
}

fn content(client: &mut Client) -> Vec<(String, Vec<Reply>)> {
    let mut keys: Vec<String> = client.call("KEYS *").elements().iter().map(Reply::text).collect();
    keys.sort_unstable();
    let questions = ["DEBUG DIGEST-VALUE", "OBJECT ENCODING", "PEXPIRETIME"];
    keys.into_iter()
        .map(|key| {
            let seen = questions.map(|question| client.call(&format!("{question} {key}"))).to_vec();
            (key, seen)
        })
        .collect()
}

#[test]
fn files_of_older_versions_are_loaded_as_by_redis() {
    for version in 1..=10 {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("dump.rdb"), file(version)).expect("the file is written");
        let dir = ["--dir", folder.path().to_str().expect("UTF-8"), "--save", ""];
        let server = Server::pantala(*Backend::all().first().expect("a backend"), &dir);
        let mut client = server.connect();
        assert_eq!(client.call("GET lzf").text(), "a".repeat(10));
        assert_eq!(client.call("EXISTS expired idle expires-s"), Reply::Integer(2));
        assert_eq!(client.call("HGET hash-zipmap 12").text(), "34");
        assert_eq!(client.call("ZSCORE zset m2").text(), "inf");
        assert_eq!(client.call("LINDEX list-ziplist 6").text(), i64::MIN.to_string());
        let Some(reference) = Server::redis(&dir) else {
            tool::skipped("redis-server isn't installed");
            continue;
        };
        let mut right = reference.connect();
        let (given, right_content) = (content(&mut client), content(&mut right));
        assert_eq!(given.len(), right_content.len());
        for (given, right) in given.iter().zip(&right_content) {
            assert_eq!(given, right, "version {version}");
        }
        for question in ["DEBUG DIGEST", "XINFO STREAM stream FULL"] {
            assert_eq!(client.call(question), right.call(question), "version {version}: {question}");
        }
    }
}
