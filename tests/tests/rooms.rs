//! Checks the source text of the server: which *rooms* (top-level modules) may import which others.
//! Also checks how large the types of the server, of sessions and of the engine may be.

use std::collections::BTreeMap;
use std::path::Path;

use pantala_tests::binary::workspace_root;
use pantala_tests::tidy;

/// Rooms, from the lowest to the highest. A room may import lower rooms, and files outside of all
/// rooms.
const ROOMS: [&str; 6] = ["reactor", "clients", "dispatch", "windows", "control", "worker"];

/// Maximum number of fields of a type.
const FIELDS_MAX: usize = 15;
/// Maximum number of methods of a type, in all its `impl` blocks without a trait.
const METHODS_MAX: usize = 40;

/// Types whose fields are independent, and therefore aren't counted: settings and statistics, the
/// declaration of a command, the state of a connection (`Session`, and `Client`, the part that
/// other threads see), and a command with all that a thread needs to run it (`Request`).
const RECORDS: [&str; 7] = ["Settings", "WorkerStats", "Tuning", "Command", "Session", "Client", "Request"];

/// Types that may have more methods, each with its maximum. Each method of `Db` is an operation on
/// a key; the files of `store/db` group these methods by family. `Db` can't be split into several
/// views of a database, because each view would need the others to commit a change. The methods of
/// `Tuning` combine settings, and are also grouped by file.
const WIDE: [(&str, usize); 2] = [("Db", 53), ("Tuning", 44)];

/// Returns the files of a crate: path relative to `src`, and code without comments, strings and
/// tests.
fn files(of: &str) -> Vec<(String, String)> {
    let folder = workspace_root().join("crates").join(of).join("src");
    let name = |path: &Path| path.strip_prefix(&folder).expect("in src").display().to_string();
    tidy::rust_files(&folder)
        .into_iter()
        .filter(|(path, _)| !is_test(path))
        .map(|(path, text)| {
            // A module of tests within a file is its last item.
            let is_inline = |start: &usize| text[*start..].lines().nth(1).is_some_and(|line| line.ends_with('{'));
            let tests = ["#[cfg(test)]\nmod ", "#[cfg(all(test, not(loom)))]\nmod "];
            let end =
                tests.iter().flat_map(|tests| text.match_indices(tests)).map(|(at, _)| at).filter(is_inline).min();
            let code = &text[..end.unwrap_or(text.len())];
            (name(&path), tidy::code_only(code))
        })
        .collect()
}

/// Returns whether a file contains only tests.
fn is_test(path: &Path) -> bool {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    stem == "tests" || stem == "testing" || stem.ends_with("_tests")
}

/// Returns the room of a file, or `None` if it is outside of all rooms.
fn room(file: &str) -> Option<usize> {
    let first = file.split('/').next().unwrap_or_default();
    ROOMS.iter().position(|room| first == *room || first == format!("{room}.rs"))
}

#[test]
fn rooms_import_only_those_below_them() {
    let mut wrong = Vec::new();
    let mut rooms = [0; ROOMS.len()];
    for (file, code) in files("server") {
        let Some(own) = room(&file) else { continue };
        rooms[own] += 1;
        for above in &ROOMS[own + 1..] {
            if tidy::has_word(&code, &format!("crate::{above}")) {
                wrong.push(format!("{file} imports {above}, a later room"));
            }
        }
        // In a module of a room's directory, `super` is the room. In the root module of the room,
        // `super` is the crate.
        if file.ends_with("/mod.rs") && file.matches('/').count() == 1 && tidy::has_word(&code, "super::") {
            wrong.push(format!("{file} leaves its room by super"));
        }
    }
    assert!(rooms.iter().all(|files| *files > 0), "files by room: {rooms:?}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// All rooms may use files outside of the rooms. Such a file may import rooms only if it starts
/// workers.
#[test]
fn files_outside_of_rooms_import_none() {
    const MAY_IMPORT: [&str; 2] = ["lib.rs", "startup.rs"];
    let mut wrong = Vec::new();
    for (file, code) in files("server").iter().filter(|(file, _)| room(file).is_none()) {
        for room in ROOMS {
            if !MAY_IMPORT.contains(&file.as_str()) && tidy::has_word(code, &format!("crate::{room}")) {
                wrong.push(format!("{file} names {room}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The modules outside of the rooms, except those that start workers, from the lowest to the
/// highest. A module may import lower ones. The modules of one entry may import each other: `host`
/// contains `Server`, which owns the state of snapshots, the append-only file and replication, and
/// their work needs the whole `Server`.
const MODULES: [&[&str]; 18] = [
    &["config"],
    &["disk"],
    &["admission"],
    &["loads"],
    &["scripting"],
    &["process"],
    &["turns"],
    &["stats"],
    &["rates"],
    &["renames"],
    &["cli"],
    &["net"],
    &["aof", "host", "replication", "snapshot"],
    &["users"],
    &["tune"],
    &["info"],
    &["for_commands"],
    &["file_commands"],
];

/// Files that may change the function libraries without propagating the change, because they load a
/// file or a primary's dataset.
const LIBRARY_LOADERS: [&str; 2] = ["snapshot/load.rs", "aof/start.rs"];

#[test]
fn only_loads_change_libraries_without_an_effect() {
    const PERMISSION: &str = "LibraryChange::loaded()";
    let mut users: Vec<String> = Vec::new();
    for of in ["commands", "session", "engine", "server"] {
        users.extend(files(of).into_iter().filter(|(_, code)| code.contains(PERMISSION)).map(|(file, _)| file));
    }
    users.sort_unstable();
    let mut expected = LIBRARY_LOADERS;
    expected.sort_unstable();
    assert_eq!(users, expected);
}

#[test]
fn modules_outside_of_rooms_import_only_lower_ones() {
    let mut wrong = Vec::new();
    let mut found = 0;
    for (file, code) in files("server").iter().filter(|(file, _)| room(file).is_none()) {
        let module = file.split('/').next().unwrap_or_default().trim_end_matches(".rs");
        if ["lib", "main", "startup"].contains(&module) {
            continue;
        }
        let Some(own) = MODULES.iter().position(|group| group.contains(&module)) else {
            wrong.push(format!("{module} is missing from the table of modules"));
            continue;
        };
        found += 1;
        for higher in MODULES[own + 1..].iter().copied().flatten() {
            if tidy::has_word(code, &format!("crate::{higher}")) {
                wrong.push(format!("{file} imports {higher}, a higher module"));
            }
        }
        // Such paths would hide an import from this test.
        let is_root = !file.contains('/') || file.ends_with("/mod.rs") && file.matches('/').count() == 1;
        if code.contains("crate::{") || is_root && tidy::has_word(code, "super::") {
            wrong.push(format!("{file} imports by crate::{{…}} or super"));
        }
    }
    assert!(found > MODULES.len(), "only {found} files found");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Number of fields and number of methods, by the name of the type. If several types have the same
/// name, these are the fields of the largest type, and the methods of all these types.
type Sizes = BTreeMap<String, (usize, usize)>;

/// Returns the identifier at the start of the code.
fn name(code: &str) -> &str {
    let end = code.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(code.len());
    &code[..end]
}

/// Returns the code between the first brace and its closing brace.
fn block(code: &str) -> Option<&str> {
    let start = code.find('{')?;
    let mut depth = 0;
    for (at, c) in code[start..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&code[start + 1..start + at]);
        }
    }
    None
}

/// Counts the top-level lines of a block for which `is_wanted` returns true.
fn count_at_first_level(block: &str, is_wanted: impl Fn(&str) -> bool) -> usize {
    let (mut depth, mut count) = (0, 0);
    for line in block.lines() {
        count += usize::from(depth == 0 && is_wanted(line.trim_start()));
        depth += line.matches(['{', '(', '[']).count() as i32 - line.matches(['}', ')', ']']).count() as i32;
    }
    count
}

/// Returns the line without `pub`, `pub(crate)`, `pub(in …)` and the like.
fn without_visibility(line: &str) -> &str {
    let Some(rest) = line.strip_prefix("pub") else { return line };
    let rest = rest.strip_prefix('(').and_then(|within| within.split_once(')')).map_or(rest, |(_, rest)| rest);
    rest.trim_start()
}

fn is_field(line: &str) -> bool {
    let line = without_visibility(line);
    !name(line).is_empty() && line[name(line).len()..].starts_with(": ")
}

fn is_method(line: &str) -> bool {
    let line = without_visibility(line);
    line.split("fn ").next().is_some_and(|before| {
        line.contains("fn ") && before.split_whitespace().all(|word| ["const", "async", "unsafe"].contains(&word))
    })
}

/// Adds the sizes of the types in a file.
fn add_sizes(sizes: &mut Sizes, code: &str) {
    for (at, _) in code.match_indices("struct ") {
        let rest = &code[at + "struct ".len()..];
        let is_record = rest.find('{').is_some_and(|brace| rest.find(';').is_none_or(|end| brace < end));
        if let (true, Some(block)) = (is_record, block(rest)) {
            let fields = &mut sizes.entry(name(rest).to_owned()).or_default().0;
            *fields = count_at_first_level(block, is_field).max(*fields);
        }
    }
    for (at, _) in code.match_indices("impl") {
        if !code[..at].ends_with('\n') && at != 0 {
            continue;
        }
        let rest = &code[at + "impl".len()..];
        let Some(head) = rest.split('{').next().filter(|head| !head.contains(" for ")) else { continue };
        // The type's name follows the generic parameters, if any.
        let mut depth = 0;
        let after = head.char_indices().find(|(_, c)| {
            depth += i32::from(*c == '<') - i32::from(*c == '>');
            depth == 0 && (*c == '>' || *c == ' ')
        });
        let Some((after, _)) = after else { continue };
        let named = head[after..].trim_start_matches(['>', ' ']);
        let named = name(named.rsplit("::").next().unwrap_or_default());
        if let (false, Some(block)) = (named.is_empty(), block(rest)) {
            sizes.entry(named.to_owned()).or_default().1 += count_at_first_level(block, is_method);
        }
    }
}

#[test]
fn types_stay_small() {
    let mut wrong = Vec::new();
    for of in ["server", "session", "engine"] {
        let mut sizes = Sizes::new();
        for (_, code) in files(of) {
            add_sizes(&mut sizes, &code);
        }
        assert!(sizes.values().any(|(fields, methods)| fields + methods > 10), "no types found in {of}");
        for (name, (fields, methods)) in sizes {
            let is_record = RECORDS.contains(&name.as_str());
            let wide = WIDE.iter().find(|(wide, _)| *wide == name);
            let methods_max = wide.map_or(METHODS_MAX, |(_, methods_max)| *methods_max);
            if fields > FIELDS_MAX && !is_record || methods > methods_max {
                wrong.push(format!("{name}: {fields} fields, {methods} methods"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// [`add_sizes`] searches text and doesn't parse Rust. This test shows what it counts.
#[test]
fn sizes_are_counted() {
    let code = "pub struct One<'a> {\n    pub a: u8,\n    b: [u8; 2],\n    pub(super) c: &'a str,\n}\nstruct Unit;\n\
                impl<'a, L: Loop<X = u8>> One<'a> {\n    pub fn f(&self) {\n        let x: u8 = 1;\n        fn inner() {}\n    }\n    \
                const fn g() {}\n}\nimpl Drop for One<'_> {\n    fn drop(&mut self) {}\n}\nimpl One<'_> {\n    pub(crate) fn h() {}\n    \
                pub(in crate::room) fn i() {}\n    pub unsafe fn j() {}\n}\n";
    let mut sizes = Sizes::new();
    add_sizes(&mut sizes, code);
    // A smaller type of the same name in another file does not change the number of fields.
    add_sizes(&mut sizes, "struct One {\n    pub(in crate::room) a: u8,\n}\n");
    assert_eq!(sizes.into_iter().collect::<Vec<_>>(), [("One".to_owned(), (3, 5))]);
}

/// Maximum number of files in the path of a GET.
const GET_FILES_MAX: usize = 8;

#[test]
fn the_path_of_a_get_is_as_documented() {
    let docs = workspace_root().join("docs");
    let text = std::fs::read_to_string(docs.join("architecture.md")).expect("the page exists");
    let rows: Vec<(&str, &str)> = text
        .lines()
        .skip_while(|line| !line.starts_with("| file |"))
        .skip(2)
        .take_while(|line| line.starts_with("| [`"))
        .map(|line| {
            let path = line.split_once("](").and_then(|(_, rest)| rest.split_once(')')).expect("a link").0;
            let name = line.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
            (path, name.trim().trim_matches('`'))
        })
        .collect();
    assert!((2..=GET_FILES_MAX).contains(&rows.len()), "{} files", rows.len());
    let code = |path: &str| {
        let text = std::fs::read_to_string(docs.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        tidy::code_only(&text)
    };
    for (number, pair) in rows.windows(2).enumerate() {
        let [(from, name), (to, _)] = [pair[0], pair[1]];
        for path in [from, to] {
            assert!(tidy::has_word(&code(path), name), "step {number}: {path} lacks {name}");
        }
    }
    assert!(rows.last().is_some_and(|(path, name)| Path::new(path).ends_with("dict/src/dict.rs") && name.is_empty()));
}
