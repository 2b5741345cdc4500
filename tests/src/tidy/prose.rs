//! Prose of the source tree (comments of Rust files, and Markdown), and the rules for it.
//!
//! Each rule returns the lines that violate it. The test `tidy` compares their number with the
//! budget of the file's directory.

use super::{is_word, opaque_len};

/// Maximum number of columns of a line of prose.
pub const COLUMNS_MAX: usize = 100;
/// Maximum number of lines of a source file, without its tests.
pub const LINES_MAX: usize = 600;

/// Forbidden idioms in lower case, each with the term to write instead.
///
/// An idiom matches whole words only. The list contains only terms that are wrong in every
/// sentence.
pub const IDIOMS: &[(&str, &str)] = &[
    ("anew", "again, rerun"),
    ("are told", "are notified, receive"),
    ("begins again", "reruns, starts again"),
    ("comes to its end", "ends"),
    ("gave back", "released, rolled back"),
    ("give back", "release, roll back"),
    ("given back", "released, rolled back"),
    ("gives back", "releases, rolls back"),
    ("goes on", "continues"),
    ("hear of", "are notified of"),
    ("hears of", "is notified of"),
    ("in the midst", "within, in the middle"),
    ("is put out", "is evicted, is deleted"),
    ("is set back", "is reset"),
    ("is told", "is notified, receives"),
    ("news", "event, invalidation, message"),
    ("on its way", "pending, queued, in flight"),
    ("on their way", "pending, queued, in flight"),
    ("parcel", "request"),
    ("put back", "rolled back, returned"),
    ("puts back", "rolls back, returns"),
    ("somebody", "a client, another worker"),
    ("taken back", "rolled back"),
    ("the one at hand", "the current one"),
    ("time is over", "expired"),
    ("to be told", "to be notified"),
    ("told of", "notified of"),
    ("was told", "was notified, received"),
    ("weighing", "client memory accounting"),
    ("who waits", "a blocked client, a waiter"),
    ("whoever", "the client, the caller, the worker"),
];

/// Words that end in s like verbs in the third person, but aren't verbs.
const NOT_VERBS: &[&str] = &[
    "always",
    "arguments",
    "as",
    "bounds",
    "bytes",
    "commands",
    "cpus",
    "elements",
    "entries",
    "fields",
    "figures",
    "has",
    "ids",
    "integers",
    "is",
    "its",
    "keys",
    "members",
    "nodes",
    "numbers",
    "objects",
    "partitions",
    "perhaps",
    "pieces",
    "positions",
    "powers",
    "requests",
    "roots",
    "seconds",
    "shards",
    "slots",
    "this",
    "values",
    "words",
    "workers",
];

/// One line of prose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Number of the line, counted from 1.
    pub number: usize,
    /// Columns of the whole line, including code and indentation.
    pub columns: usize,
    /// The prose, without the marker of a comment.
    pub text: &'a str,
}

/// Returns the comments of a Rust file, without code examples and tables.
#[must_use]
pub fn of_rust(text: &str) -> Vec<Line<'_>> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let (mut at, mut number, mut is_example) = (0, 1, false);
    while at < bytes.len() {
        let length = opaque_len(&bytes[at..], at > 0 && is_word(bytes[at - 1])).max(1);
        let piece = &bytes[at..at + length];
        if piece.starts_with(b"//") {
            let start = text[..at].rfind('\n').map_or(0, |end| end + 1);
            let comment = text[at..at + length].trim_end_matches('\n');
            let prose = comment.trim_start_matches('/').trim_start_matches('!').trim();
            let is_fence = prose.starts_with("```");
            if !is_example && !is_fence && !prose.starts_with('|') {
                found.push(Line {
                    number,
                    columns: text[start..at].chars().count() + comment.chars().count(),
                    text: prose,
                });
            }
            is_example ^= is_fence;
        }
        number += piece.iter().filter(|byte| **byte == b'\n').count();
        at += length;
    }
    found
}

/// Returns the prose of a Markdown file: everything but code blocks. Rows of tables may have any
/// width.
#[must_use]
pub fn of_markdown(text: &str) -> Vec<Line<'_>> {
    let mut is_code = false;
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let prose = line.trim();
        let is_fence = prose.starts_with("```");
        if !is_code && !is_fence {
            let columns = if prose.starts_with('|') { 0 } else { line.chars().count() };
            found.push(Line { number: index + 1, columns, text: prose });
        }
        is_code ^= is_fence;
    }
    found
}

/// Returns the lines that are too wide. A line without a blank, such as a link, can't be wrapped,
/// so it isn't reported.
#[must_use]
pub fn too_wide(lines: &[Line<'_>]) -> Vec<String> {
    let is_wide = |line: &&Line<'_>| line.columns > COLUMNS_MAX && line.text.contains(' ');
    lines.iter().filter(is_wide).map(|line| format!("{}: {} columns", line.number, line.columns)).collect()
}

/// Returns the idioms of [`IDIOMS`] in `lines`. Ignores names in backquotes.
#[must_use]
pub fn idioms(lines: &[Line<'_>]) -> Vec<String> {
    let mut found = Vec::new();
    for line in lines {
        let prose: String = line.text.split('`').step_by(2).collect::<Vec<_>>().join("`").to_lowercase();
        for (idiom, instead) in IDIOMS {
            if super::has_word(&prose, idiom) {
                found.push(format!("{}: \"{idiom}\": write {instead}", line.number));
            }
        }
    }
    found
}

/// Returns the public functions of a Rust file whose documentation doesn't start with a verb in the
/// third person. The documentation of a command's handler may start with the command's syntax, in
/// backquotes.
#[must_use]
pub fn functions_without_verb(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    // First line of the doc comment of the next item.
    let mut first: Option<&str> = None;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(doc) = line.strip_prefix("///") {
            first = first.or(Some(doc.trim()));
        } else if !line.starts_with("#[") {
            let doc = first.take();
            if is_public_function(line) && doc.is_some_and(|doc| !begins_with_verb(doc)) {
                found.push(format!("{}: {}", index + 1, doc.unwrap_or_default()));
            }
        }
    }
    found
}

fn is_public_function(line: &str) -> bool {
    let Some(mut rest) = line.strip_prefix("pub ") else { return false };
    for word in ["const ", "async ", "unsafe ", "extern \"C\" "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    rest.starts_with("fn ")
}

fn begins_with_verb(doc: &str) -> bool {
    if doc.starts_with('`') {
        return true;
    }
    let first = doc.split_whitespace().next().unwrap_or_default();
    let word = first.trim_end_matches([',', ':', '.']).to_lowercase();
    word.ends_with('s') && !word.ends_with("'s") && !NOT_VERBS.contains(&word.as_str())
}

/// Returns the number of lines before the tests of a Rust file.
#[must_use]
pub fn lines_of_code(text: &str) -> usize {
    text.lines().take_while(|line| *line != "#[cfg(test)]").count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_found_and_strings_are_not() {
        let text = "//! Head.\nlet a = \"// no\"; // Trailing.\n/// ```\n/// code // no\n/// ```\n/// | a | b |\n";
        let found: Vec<(usize, &str)> = of_rust(text).iter().map(|line| (line.number, line.text)).collect();
        assert_eq!(found, [(1, "Head."), (2, "Trailing.")]);
        assert_eq!(of_rust(text)[1].columns, "let a = \"// no\"; // Trailing.".len());
    }

    #[test]
    fn width_is_checked_at_the_limit_and_one_past_it() {
        let wide = |columns: usize| format!("// a {}", "x".repeat(columns - 5));
        assert!(too_wide(&of_rust(&wide(COLUMNS_MAX))).is_empty());
        assert_eq!(too_wide(&of_rust(&wide(COLUMNS_MAX + 1))).len(), 1);
        assert!(too_wide(&of_rust(&format!("// {}", "x".repeat(200)))).is_empty(), "can't be divided");
        let prose = |columns: usize| format!("{} {}", "é".repeat(columns - 2), "x");
        assert!(too_wide(&of_markdown(&prose(COLUMNS_MAX))).is_empty(), "columns are characters");
        assert_eq!(too_wide(&of_markdown(&prose(COLUMNS_MAX + 1))).len(), 1);
        let table = format!("| {} |\n```sh\n{} x\n```\n", "a ".repeat(100), "a".repeat(100));
        assert!(too_wide(&of_markdown(&table)).is_empty());
    }

    #[test]
    fn idioms_are_found_as_words_and_outside_of_names() {
        let found = |text: &str| idioms(&of_rust(text)).len();
        assert_eq!(found("// Whoever watches is told of it."), 3);
        assert_eq!(found("// `put back` is a name, newsletter a word."), 0);
        assert_eq!(found("let whoever = 1; // fine"), 0);
        assert_eq!(idioms(&of_markdown("| it goes on |")).len(), 1);
    }

    #[test]
    fn public_functions_begin_with_a_verb() {
        let wrong =
            |doc: &str| functions_without_verb(&format!("/// {doc}\n#[must_use]\npub const fn f() {{}}\n")).len();
        assert_eq!([wrong("Returns it."), wrong("Rings."), wrong("`GET key`.")], [0, 0, 0]);
        assert_eq!([wrong("Whether it is."), wrong("The name."), wrong("Its name."), wrong("Redis's name.")], [1; 4]);
        assert!(
            functions_without_verb("/// The name.\nfn f() {}\n/// A type.\npub struct S;\npub fn g() {}\n").is_empty()
        );
    }

    #[test]
    fn tests_do_not_count_as_lines_of_code() {
        assert_eq!(lines_of_code("a\nb\n#[cfg(test)]\nmod tests {}\n"), 2);
    }
}
