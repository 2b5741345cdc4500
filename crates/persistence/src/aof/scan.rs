//! Reads one file of effects to its end, and finds where it must be cut if it is incomplete.

use std::io;

use pantala_resp::Args;

use super::reader::{self, Next, Reader};

/// Bytes per read.
const INPUT_BYTES: usize = 1024 * 1024;

/// The end of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The file ends after a command or transaction.
    Whole,
    /// The file ends within a record or a group with a checksum, and must be cut at this offset.
    Cut(u64),
    /// The file ends within the transaction that starts at this offset, and must be cut there.
    CutTransaction(u64),
}

/// The reason why a file can't be read to its end.
#[derive(Debug)]
pub enum Stopped<E> {
    /// The system's error.
    Input(io::Error),
    /// The file is damaged.
    Damaged(reader::Error),
    /// A command can't run.
    Refused(E),
}

/// Runs the commands of a file.
pub trait Runner {
    /// The reason why a command can't run.
    type Error;
    /// Runs the command at this offset, or queues it until the end of its transaction.
    ///
    /// # Errors
    /// The command can't run.
    fn run(&mut self, offset: u64, args: &Args<'_>) -> Result<(), Self::Error>;
    /// Returns the offset of the transaction that has not ended, if any.
    fn open_since(&self) -> Option<u64>;
}

/// Runs the commands of a file, starting at the current position of `file`, which must be `offset`.
///
/// # Errors
/// The file can't be read to its end. Commands before the error have run.
pub fn run_all<R: Runner>(offset: u64, file: &mut impl io::Read, commands: &mut R) -> Result<End, Stopped<R::Error>> {
    let mut reader = Reader::new(offset);
    let mut input = vec![0; INPUT_BYTES];
    let mut valid_up_to = offset;
    loop {
        match reader.next_record() {
            Ok(Next::NeedsInput) => match file.read(&mut input) {
                Ok(0) => reader.end_input(),
                Ok(len) => reader.feed(&input[..len]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Stopped::Input(error)),
            },
            Ok(Next::Annotation(..)) => {}
            Ok(Next::Command(offset, args)) => {
                commands.run(offset, &args).map_err(Stopped::Refused)?;
                valid_up_to = reader.offset();
            }
            Ok(Next::End) => return Ok(commands.open_since().map_or(End::Whole, End::CutTransaction)),
            Err(error) if error.fault.is_truncation() => {
                return Ok(End::Cut(commands.open_since().unwrap_or(valid_up_to)));
            }
            Err(error) => return Err(Stopped::Damaged(error)),
        }
    }
}
