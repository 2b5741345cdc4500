//! Tests of the formats of the append-only file.

use super::*;

const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$3\r\nabc\r\n";

fn listed(name: &str, seq: u64) -> Listed {
    Listed { name: name.as_bytes().to_vec(), seq }
}

#[test]
fn a_manifest_is_written_as_redis_writes_it() {
    let mut manifest = Manifest::default();
    assert!(manifest.is_empty());
    assert_eq!(manifest.replace_base(b"appendonly.aof", true), b"appendonly.aof.1.base.rdb");
    assert_eq!(manifest.add_increment(b"appendonly.aof"), b"appendonly.aof.1.incr.aof");
    let text = "file appendonly.aof.1.base.rdb seq 1 type b\nfile appendonly.aof.1.incr.aof seq 1 type i\n";
    assert_eq!(String::from_utf8_lossy(&manifest.text()), text);
    assert_eq!(Manifest::parse(text.as_bytes()).expect("written by us"), manifest);
    manifest.add_increment(b"appendonly.aof");
    manifest.add_increment(b"appendonly.aof");
    manifest.replace_base(b"appendonly.aof", false);
    manifest.retire_increments(1);
    assert_eq!(
        String::from_utf8_lossy(&manifest.text()),
        "file appendonly.aof.2.base.aof seq 2 type b\nfile appendonly.aof.1.incr.aof seq 1 type h\n\
         file appendonly.aof.2.incr.aof seq 2 type h\nfile appendonly.aof.1.base.rdb seq 1 type h\n\
         file appendonly.aof.3.incr.aof seq 3 type i\n"
    );
    assert_eq!(Manifest::parse(&manifest.text()).expect("written by us"), manifest);
    assert_eq!(manifest.take_history().len(), 3);
    assert!(manifest.history().is_empty());
    assert_eq!(manifest.to_load().count(), 2);
}

#[test]
fn names_with_spaces_are_quoted() {
    let mut manifest = Manifest::default();
    manifest.replace_base(b"my \"file\"\n", true);
    assert_eq!(manifest.text(), b"file \"my \\\"file\\\"\\n.1.base.rdb\" seq 1 type b\n");
    // As in Redis, a name with a backslash is rejected, because the backslash is read as part of a
    // path.
    let mut plain = Manifest::default();
    plain.replace_base(b"my file", true);
    assert_eq!(Manifest::parse(&plain.text()), Ok(plain));
}

#[test]
fn comments_and_unknown_pairs_are_skipped() {
    let text = b"# a comment\nFILE a.1.base.rdb SEQ 1 TYPE b other 7\n#\nfile a.4.incr.aof seq 4 type i\n";
    let manifest = Manifest::parse(text).expect("right");
    assert_eq!(manifest.base(), Some(&listed("a.1.base.rdb", 1)));
    assert_eq!(manifest.increments(), [listed("a.4.incr.aof", 4)]);
}

/// A file of the history may be about to be deleted, so its name must not be reused.
#[test]
fn new_files_have_later_numbers_than_the_history() {
    let text = b"file a.1.base.rdb seq 1 type b\nfile a.4.incr.aof seq 4 type h\n";
    let mut manifest = Manifest::parse(text).expect("right");
    assert_eq!(manifest.add_increment(b"a"), b"a.5.incr.aof");
}

#[test]
fn wrong_manifests_are_rejected_as_redis_rejects_them() {
    let long = format!("file {} seq 1 type b\n", "x".repeat(manifest::LINE_BYTES_MAX));
    for (text, line, why) in [
        ("", 0, "Found an empty AOF manifest"),
        ("\n", 1, "Invalid AOF manifest file format"),
        ("file a seq 1\n", 1, "Invalid AOF manifest file format"),
        ("file a seq 1 type b x\n", 1, "Invalid AOF manifest file format"),
        ("file a seq x type b\n", 1, "Invalid AOF manifest file format"),
        ("file a/b seq 1 type b\n", 1, "File can't be a path, just a filename"),
        ("file a seq 1 type x\n", 1, "Unknown AOF file type"),
        ("file a seq 1 type b\nfile b seq 2 type b\n", 2, "Found duplicate base file information"),
        ("file a seq 2 type i\nfile b seq 2 type i\n", 2, "Found a non-monotonic sequence number"),
        ("file a seq 1 type b", 1, "The AOF manifest file contains too long line"),
        (&long, 1, "The AOF manifest file contains too long line"),
    ] {
        let error = Manifest::parse(text.as_bytes()).expect_err(text);
        assert_eq!((error.line, error.why), (line, why), "{text}");
    }
}

/// Reads `bytes` in pieces of `piece` bytes. Returns the records and the result of reading.
fn read(bytes: &[u8], piece: usize) -> (Vec<String>, Result<u64, Error>) {
    let (mut reader, mut records, mut pieces) = (Reader::new(0), Vec::new(), bytes.chunks(piece));
    loop {
        match reader.next_record() {
            Ok(Next::NeedsInput) => match pieces.next() {
                Some(piece) => reader.feed(piece),
                None => reader.end_input(),
            },
            Ok(Next::Command(offset, args)) => {
                let words: Vec<_> = args.iter().map(|word| word.escape_ascii().to_string()).collect();
                records.push(format!("{offset} {}", words.join(" ")));
            }
            Ok(Next::Annotation(offset, text)) => records.push(format!("{offset} {}", text.escape_ascii())),
            Ok(Next::End) => return (records, Ok(reader.offset())),
            Err(error) => return (records, Err(error)),
        }
    }
}

#[test]
fn records_are_read_from_any_pieces() {
    let file = [SET, b"#TS:1700000000\r\n", b"*1\r\n$0\r\n\r\n", b"#other\n", SET].concat();
    for piece in [1, 2, 3, 7, 1000] {
        let (records, end) = read(&file, piece);
        assert_eq!(records, ["0 SET k abc", "29 #TS:1700000000", "45 ", "55 #other", "62 SET k abc"]);
        assert_eq!(end, Ok(file.len() as u64));
    }
    assert_eq!(read(b"", 1), (vec![], Ok(0)));
}

#[test]
fn a_cut_file_is_truncated_at_every_byte() {
    let file = [SET, SET].concat();
    for len in SET.len() + 1..file.len() {
        let (records, end) = read(&file[..len], 5);
        let error = end.expect_err("cut");
        assert!(error.fault.is_truncation(), "{len}: {error}");
        assert_eq!(records.len(), 1);
        assert!(error.offset >= SET.len() as u64 && error.offset <= len as u64);
    }
}

#[test]
fn damage_is_located() {
    for (bytes, offset, fault) in [
        (&b"x"[..], 0, Fault::Start(b'x')),
        (b"*0\r\n", 0, Fault::Count(0)),
        (b"*-1\r\n", 0, Fault::Count(-1)),
        (b"*1\r\n+OK\r\n", 4, Fault::Prefix(b'+')),
        (b"*1\r\n$-1\r\n", 4, Fault::Length(-1)),
        (b"*1x\r\n", 0, Fault::LineEnd(*b"x\r")),
        (b"*1\r\n$1\r\nabc\r\n", 8, Fault::StringEnd(*b"bc")),
        (b"*1\r\n$999999999999999999999999999999999999\r\n", 4, Fault::LineEnd([0, 0])),
    ] {
        let file = [SET, bytes].concat();
        let error = read(&file, 3).1.expect_err("damaged");
        assert_eq!((error.offset - SET.len() as u64, error.fault), (offset, fault), "{}", bytes.escape_ascii());
        assert!(!fault.is_truncation());
    }
    let annotation = [b"#".repeat(reader::ANNOTATION_BYTES_MAX - 1), b"\n".to_vec()].concat();
    assert_eq!(read(&annotation, 9999).0.len(), 1);
    let longer = [b"#", &annotation[..]].concat();
    assert_eq!(read(&longer, 9999).1.expect_err("too long").fault, Fault::LongAnnotation);
}

#[test]
fn commands_only_for_replicas_are_removed() {
    let (ping, publish) = (&b"*1\r\n$4\r\nPING\r\n"[..], &b"*3\r\n$7\r\npublish\r\n$1\r\nc\r\n$1\r\nm\r\n"[..]);
    let kept = |parts: &[&[u8]]| {
        let part = parts.concat();
        let ranges = filter::kept(&part);
        (ranges.len(), ranges.into_iter().map(|range| part[range].to_vec()).collect::<Vec<_>>().concat())
    };
    assert_eq!(kept(&[]), (0, vec![]));
    assert_eq!(kept(&[ping]), (0, vec![]));
    assert_eq!(kept(&[SET, SET]), (1, [SET, SET].concat()));
    assert_eq!(kept(&[ping, SET, SET, publish, ping, SET]), (2, [SET, SET, SET].concat()));
    assert_eq!(kept(&[SET, publish]), (1, SET.to_vec()));
    assert_eq!(kept(&[SET, &SET[..9]]), (1, [SET, &SET[..9]].concat()));
}

#[test]
fn times_are_read_from_annotations() {
    assert_eq!(timestamp_of(b"#TS:1700000000"), Some(Ok(1_700_000_000)));
    assert_eq!(timestamp_of(b"#TS:x"), Some(Err(NoTimestamp)));
    assert_eq!(timestamp_of(b"#other"), None);
    assert_eq!(timestamp(7), b"#TS:7\r\n");
}

#[test]
fn commands_are_assigned_to_transactions() {
    let mut transactions = Transactions::default();
    for (offset, name, found, open) in [
        (0, "set", Found::Alone, None),
        (1, "exec", Found::UnexpectedExec, None),
        (2, "Multi", Found::Start, Some(2)),
        (3, "set", Found::Within, Some(2)),
        (4, "multi", Found::UnexpectedMulti, Some(2)),
        (5, "EXEC", Found::End, None),
    ] {
        assert_eq!((transactions.note(offset, name.as_bytes()), transactions.open_since()), (found, open));
    }
}

/// Checks `bytes` in pieces of four bytes.
fn check(bytes: &[u8], until_s: Option<i64>) -> Outcome {
    let mut check = Check::new(0, "f".to_owned(), until_s);
    let mut pieces = bytes.chunks(4).chain(std::iter::repeat(&[][..]));
    loop {
        if let Some(outcome) = check.feed(pieces.next().expect("repeats")) {
            return outcome;
        }
    }
}

#[test]
fn a_check_reports_the_valid_part_of_a_file() {
    let multi = b"*1\r\n$5\r\nMULTI\r\n";
    let exec = b"*1\r\n$4\r\nEXEC\r\n";
    let whole = [SET, multi, SET, exec].concat();
    let set_end = SET.len() as u64;
    for (file, ok_up_to, error) in [
        (whole.clone(), whole.len() as u64, None),
        (whole[..whole.len() - exec.len()].to_vec(), set_end, Some("Reached EOF before reading EXEC for MULTI")),
        ([SET, exec].concat(), set_end, Some("Unexpected EXEC in AOF f")),
        ([SET, multi, multi].concat(), set_end, Some("Unexpected MULTI in AOF f")),
        (SET[..SET.len() - 3].to_vec(), 0, Some("Expected to read 5 bytes, got 2 bytes")),
    ] {
        let Outcome::Read(analysis) = check(&file, None) else { panic!("read") };
        assert_eq!(analysis.ok_up_to, ok_up_to);
        assert_eq!(analysis.error.as_ref().map(|text| text.split_once(": ").expect("has an offset").1), error);
    }
    let file = [b"#TS:5\r\n", SET, b"#TS:6\r\n", SET].concat();
    assert_eq!(check(&file, Some(5)), Outcome::Later(7 + set_end));
    assert!(matches!(check(&file, Some(6)), Outcome::Read(analysis) if analysis.ok_up_to == file.len() as u64));
    assert_eq!(check(b"#TS:?\r\n", Some(5)), Outcome::InvalidTimestamp);
}

/// The error of a wrong line end contains both bytes, even if they arrive separately.
#[test]
fn errors_do_not_depend_on_how_the_input_is_cut() {
    let error_of = |pieces: &[&[u8]]| {
        let mut reader = Reader::new(0);
        for piece in pieces {
            reader.feed(piece);
            match reader.next_record() {
                Ok(Next::NeedsInput) => {}
                Ok(record) => panic!("{record:?}"),
                Err(error) => return error,
            }
        }
        reader.end_input();
        reader.next_record().expect_err("the file is wrong")
    };
    let whole = error_of(&[b"*1\r\n$\xea\r\n"]);
    assert_eq!(whole, Error { offset: 4, fault: Fault::LineEnd([0xea, b'\r']) });
    assert_eq!(error_of(&[b"*1\r\n$\xea", b"\r\n"]), whole);
    // A wrong byte at the end of the file is not a truncation.
    assert!(!error_of(&[b"*1\r\n$\xea"]).fault.is_truncation());
}

/// Returns a file with two groups, and three offsets: the starts of the two groups, and the end of
/// the file.
fn checked_groups() -> (Vec<u8>, [usize; 3]) {
    let groups =
        [[b"#TS:5\r\n", SET, SET].concat(), [SET, b"*1\r\n$5\r\nMULTI\r\n", SET, b"*1\r\n$4\r\nEXEC\r\n"].concat()];
    let [first, second] = groups.map(|group| {
        // The checksum doesn't depend on how the group is split into parts.
        let (start, end) = group.split_at(11);
        let line = Group::of([start, end].into_iter()).line();
        [line, group].concat()
    });
    let starts = [0, first.len(), first.len() + second.len()];
    ([first, second].concat(), starts)
}

#[test]
fn groups_with_checksums_are_read_from_any_pieces() {
    let (file, _) = checked_groups();
    // Effects and annotations of Redis, before and between groups.
    let mixed = [SET, b"#other\r\n", &file, SET, &file].concat();
    for piece in [1, 3, 16, 1000] {
        let (records, end) = read(&mixed, piece);
        assert_eq!(end, Ok(mixed.len() as u64));
        assert_eq!(records.iter().filter(|record| record.ends_with("SET k abc")).count(), 10);
    }
    assert!(matches!(check(&mixed, None), Outcome::Read(analysis) if analysis.ok_up_to == mixed.len() as u64));
    // Annotations that may be damaged checksum lines are rejected: an annotation that isn't text,
    // and an unknown annotation after a group with a checksum.
    for damaged in [[b"#\x80garbage\r\n", SET].concat(), [&file, &b"#other\r\n"[..], SET].concat()] {
        assert_eq!(read(&damaged, 9).1.expect_err("damaged").fault, Fault::ChecksumLine);
    }
    let empty = Group::of(std::iter::empty()).line();
    assert_eq!(read(&[&empty[..], SET].concat(), 2).1, Ok((empty.len() + SET.len()) as u64));
}

/// No command of a damaged group is returned, and `check-aof` would cut the file before the group.
#[test]
fn every_flipped_bit_is_located() {
    let (file, starts) = checked_groups();
    for bit in 0..8 * file.len() {
        let mut flipped = file.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let group = usize::from(bit / 8 >= starts[1]);
        for piece in [7, 1000] {
            let (records, end) = read(&flipped, piece);
            let error = end.expect_err("damaged");
            assert!(!error.fault.is_truncation(), "bit {bit}: {error}");
            assert_eq!(error.offset as usize, starts[group], "bit {bit}: {error}");
            assert_eq!(records.iter().filter(|record| record.contains("SET")).count(), 2 * group, "bit {bit}");
        }
        let Outcome::Read(analysis) = check(&flipped, None) else { panic!("read") };
        assert_eq!(analysis.ok_up_to as usize, starts[group], "bit {bit}");
        let located = format!("0x{:16x}: ", starts[group]);
        assert!(analysis.is_format_error || analysis.error.is_some_and(|text| text.starts_with(&located)), "bit {bit}");
    }
}

#[test]
fn a_group_that_is_cut_is_truncated_as_a_whole() {
    let (file, starts) = checked_groups();
    for len in 1..file.len() {
        let (records, end) = read(&file[..len], 5);
        let whole = usize::from(len >= starts[1]);
        assert_eq!(records.iter().filter(|record| record.contains("SET")).count(), 2 * whole, "{len}");
        match end {
            Ok(_) => assert_eq!(len, starts[1]),
            Err(error) => {
                assert!(error.fault.is_truncation(), "{len}: {error}");
                assert_eq!(error.offset as usize, starts[whole], "{len}: {error}");
            }
        }
        let Outcome::Read(analysis) = check(&file[..len], None) else { panic!("read") };
        assert_eq!(analysis.ok_up_to as usize, starts[whole], "{len}");
    }
}

#[test]
fn a_group_is_cut_to_a_time_together_with_its_checksum() {
    let group = |text: &[u8]| [Group::of(std::iter::once(text)).line(), text.to_vec()].concat();
    let file = [group(&[b"#TS:5\r\n", SET].concat()), group(SET), group(&[b"#TS:6\r\n", SET].concat())];
    let kept = (file[0].len() + file[1].len()) as u64;
    assert_eq!(check(&file.concat(), Some(5)), Outcome::Later(kept));
    assert_eq!(check(&file.concat(), Some(4)), Outcome::Later(0));
}

#[test]
fn other_annotations_are_no_checksums() {
    for line in [&b"#TS:5\r\n"[..], b"#\n", b"#CRC\n", b"#crc:5:0:0\r\n", b"# CRC:5\r\n"] {
        assert_eq!(Group::read(line), None, "{}", line.escape_ascii());
    }
    let right = Group { bytes: 29, crc: 0x0123_4567_89ab_cdef };
    assert_eq!(Group::read(&right.line()), Some(Ok(right)));
    for line in [&b"#CRC:\r\n"[..], b"#CRC:29:0123456789abcdef\r\n", b"#CRC:29:0123456789abcdef:0000:\r\n"] {
        assert_eq!(Group::read(line), Some(Err(checksum::Damaged)), "{}", line.escape_ascii());
    }
}

/// Returns an RDB file with a string of `long` bytes between short strings.
fn rdb_with_a_long_string(long: u32) -> Vec<u8> {
    let mut file = b"REDIS0010\xfe\x00".to_vec();
    let short = |file: &mut Vec<u8>, name: u8| file.extend_from_slice(&[0, 1, name, 1, b'v']);
    (b'a'..b'e').for_each(|name| short(&mut file, name));
    file.extend_from_slice(b"\x00\x01e\x80");
    file.extend_from_slice(&long.to_be_bytes());
    file.resize(file.len() + long as usize, b'x');
    (b'f'..b'k').for_each(|name| short(&mut file, name));
    file.extend_from_slice(&[0xff, 0, 0, 0, 0, 0, 0, 0, 0]);
    file
}

/// Entries that follow a long entry must be translated too, although the reader waits for as many
/// bytes again as the long entry has.
#[test]
fn a_base_of_commands_has_every_entry() {
    let file = rdb_with_a_long_string(10_000);
    for part_bytes in [1, 7, 1000, 9_990, file.len()] {
        let (mut commands, mut out) = (base::Commands::new(16, 1 << 20), Vec::new());
        for part in file.chunks(part_bytes) {
            commands.feed(part, &mut out).expect("a valid file");
        }
        commands.finish(&mut out).expect("a whole file");
        let restored = out.windows(7).filter(|word| *word == b"RESTORE").count();
        assert_eq!(restored, 10, "parts of {part_bytes} bytes");
    }
    for len in [0, 5, 11, 13, 5_000, file.len() - 10, file.len() - 1] {
        let (mut commands, mut out) = (base::Commands::new(16, 1 << 20), Vec::new());
        commands.feed(&file[..len], &mut out).expect("the start of a valid file");
        assert!(commands.finish(&mut out).is_err(), "{len} bytes of the file are taken for the whole file");
    }
}
