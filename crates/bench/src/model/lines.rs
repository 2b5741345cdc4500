//! The cache lines that a command on a free shard writes and that another worker may have written
//! last.

/// The table of written cache lines. The columns of a row are the command, the number of written
/// lines of the shard, the written part of the key's entry (`-`, `1` line or `all`), how the
/// numbers were determined, and which lines they are.
///
/// `crates/commands/tests/written_lines.rs` checks the `counted` rows: it compares the memory of
/// the process before and after a command.
const TABLE: &str = include_str!("lines.txt");
/// Size of an entry without its value, in bytes: head, lengths, and a key of 16 bytes.
const ENTRY_HEAD_BYTES: f64 = 24.0;
const LINE_BYTES: f64 = 64.0;

/// The part of its key's entry that a command writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Nothing,
    FirstLine,
    All,
}

/// A row of the table.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) command: &'static str,
    /// Number of written lines of the shard, including the line of the shard's gate (the word that
    /// shows whether the shard is held).
    pub(super) shard: f64,
    pub(super) entry: Entry,
    /// How the numbers were determined: `counted` by the test, or `read` from the code.
    pub(super) known: &'static str,
    pub(super) which: &'static str,
}

/// Returns all rows.
///
/// # Panics
/// Panics if the built-in table is malformed. A test checks the table.
pub(super) fn rows() -> Vec<Row> {
    TABLE.lines().map(|line| row(line).unwrap_or_else(|| panic!("lines.txt: {line}"))).collect()
}

fn row(line: &'static str) -> Option<Row> {
    let fields: Vec<&str> = line.split('|').map(str::trim).collect();
    let [command, shard, entry, known, which] = fields[..] else { return None };
    let entry = match entry {
        "-" => Entry::Nothing,
        "1" => Entry::FirstLine,
        "all" => Entry::All,
        _ => return None,
    };
    let known = ["counted", "read"].into_iter().find(|word| *word == known)?;
    Some(Row { command, shard: shard.parse().ok()?, entry, known, which })
}

/// Returns the number of lines of an entry with a value of `value_bytes`.
pub(super) fn of_entry(value_bytes: f64) -> f64 {
    ((ENTRY_HEAD_BYTES + value_bytes) / LINE_BYTES).ceil()
}

impl Row {
    /// Returns the number of lines that the command writes in an entry whose value has
    /// `value_bytes`.
    pub(super) fn entry_lines(&self, value_bytes: f64) -> f64 {
        match self.entry {
            Entry::Nothing => 0.0,
            Entry::FirstLine => 1.0,
            Entry::All => of_entry(value_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_one_and_the_documentation_shows_it() {
        let page = include_str!("../../../../docs/scaling.md");
        let rows = rows();
        assert!(rows.len() > 8 && rows.iter().all(|row| row.shard >= 1.0));
        for Row { command, shard, entry, known, .. } in &rows {
            let entry = match entry {
                Entry::Nothing => "–",
                Entry::FirstLine => "1",
                Entry::All => "all",
            };
            let wanted = format!("| {command} | {shard} | {entry} | {known} |");
            assert!(page.contains(&wanted), "docs/scaling.md has no row {wanted}");
        }
    }

    #[test]
    fn entries_have_the_lines_of_their_values() {
        assert_eq!([10.0, 40.0, 41.0, 256.0].map(of_entry), [1.0, 1.0, 2.0, 5.0]);
        let set = row("SET | 1 | all | counted | x").unwrap();
        assert_eq!((set.entry_lines(256.0), Row { entry: Entry::FirstLine, ..set }.entry_lines(256.0)), (5.0, 1.0));
        for wrong in [
            "SET | 1 | all | counted",
            "SET | x | all | counted | x",
            "SET | 1 | 2 | counted | x",
            "SET | 1 | all | guessed | x",
        ] {
            assert!(row(wrong).is_none(), "{wrong}");
        }
    }
}
