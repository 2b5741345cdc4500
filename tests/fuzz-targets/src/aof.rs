//! Append-only files and manifests from arbitrary bytes. The reader returns records with
//! consecutive offsets, or an error with an offset in the file. The result doesn't depend on how
//! the bytes are split into pieces. The reader never panics, and never allocates memory for bytes
//! that the file declares but doesn't contain. The filter that omits `PING` and other commands from
//! a file removes only whole commands.

use pantala_persistence::aof::manifest::LINE_BYTES_MAX;
use pantala_persistence::aof::{Error, Manifest, Next, Reader, Transactions, filter, timestamp_of};

/// Returns the records of a file that is fed in pieces of `step` bytes, and the error, if any.
fn read(file: &[u8], step: usize) -> (Vec<String>, Result<(), Error>) {
    let (mut reader, mut transactions) = (Reader::new(0), Transactions::default());
    let (mut input, mut records) = (file.chunks(step), Vec::new());
    let mut expected = 0;
    loop {
        let record = match reader.next_record() {
            Ok(Next::NeedsInput) => {
                match input.next() {
                    Some(chunk) => reader.feed(chunk),
                    None => reader.end_input(),
                }
                continue;
            }
            Ok(Next::Command(offset, args)) => {
                assert_eq!(offset, expected, "records follow each other");
                format!("{offset} {:?} {args:?}", transactions.note(offset, args.at(0)))
            }
            Ok(Next::Annotation(offset, text)) => {
                assert_eq!(offset, expected, "records follow each other");
                format!("{offset} {:?} {}", timestamp_of(text), text.escape_ascii())
            }
            Ok(Next::End) => {
                assert_eq!(expected, file.len() as u64, "the file is read to its end");
                return (records, Ok(()));
            }
            Err(error) => {
                assert!((expected..=file.len() as u64).contains(&error.offset), "{error}");
                return (records, Err(error));
            }
        };
        expected = reader.offset();
        records.push(record);
    }
}

/// Runs the target on one input, and panics on a defect.
pub fn run(data: &[u8]) {
    let Some((&first, file)) = data.split_first() else { return };
    let whole = read(file, file.len().max(1));
    assert_eq!(whole, read(file, usize::from(first) + 1));
    if whole.1.is_ok() {
        let kept: Vec<u8> = filter::kept(file).into_iter().flat_map(|range| file[range].to_vec()).collect();
        let (kept, end) = read(&kept, usize::MAX);
        assert!(end.is_ok() && kept.len() <= whole.0.len(), "whole commands are left out");
    }
    if let Ok(manifest) = Manifest::parse(file) {
        let text = manifest.text();
        // Quoting a file's name may make its line longer than the limit that the parser accepts, in
        // Redis too.
        let fits = text.split_inclusive(|byte| *byte == b'\n').all(|line| line.len() <= LINE_BYTES_MAX);
        if fits && !text.is_empty() {
            assert_eq!(Manifest::parse(&text), Ok(manifest));
        }
    }
}
