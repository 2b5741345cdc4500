//! Parses lines of rules: `user` lines of redis.conf, and the ACL file.

use std::collections::BTreeMap;

use super::catalog::Catalog;
use super::rules::{RuleError, Rules};
use super::{has_spaces, is_user_name};

/// The words of a line, or a list of rules.
pub type Words = Vec<Vec<u8>>;

/// A user as defined by a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Name of the user.
    pub name: Vec<u8>,
    /// Rules of the user. Each selector is one word.
    pub rules: Words,
}

/// Joins the words of each selector into one word.
///
/// # Errors
/// The word that opens an unclosed selector.
pub fn merge_selectors<'w>(words: &[&'w [u8]]) -> Result<Words, &'w [u8]> {
    let mut merged = Words::new();
    let mut open: Option<(&'w [u8], Vec<u8>)> = None;
    for word in words {
        if word.starts_with(b"(") && !word.ends_with(b")") {
            open = Some((*word, word.to_vec()));
        } else if let Some((first, mut selector)) = open.take() {
            selector.push(b' ');
            selector.extend_from_slice(word);
            if word.ends_with(b")") {
                merged.push(selector);
            } else {
                open = Some((first, selector));
            }
        } else {
            merged.push(word.to_vec());
        }
    }
    match open {
        Some((first, _)) => Err(first),
        None => Ok(merged),
    }
}

/// Checks the words after `user` in a line of redis.conf. Accepts unknown commands: as in Redis,
/// they are looked up only after all lines have been read
/// ([`Users::add_configured`](super::Users::add_configured)).
///
/// # Errors
/// The error message. It does not quote the invalid rule, which may be a password.
pub fn check_line(catalog: &'static Catalog, words: &[&[u8]]) -> Result<Line, String> {
    let [name, rules @ ..] = words else { return Err("A user needs a name".to_owned()) };
    let of_user = || format!("Error in the declaration of user '{}'", name.escape_ascii());
    let merged = merge_selectors(rules).map_err(|_| format!("{}: Unmatched parenthesis in a selector", of_user()))?;
    let mut trial = Rules::new(catalog, false);
    for (at, rule) in merged.iter().enumerate() {
        match trial.apply(rule) {
            Ok(()) | Err(RuleError::UnknownCommand) => {}
            Err(error) => return Err(format!("{}, rule {}: {error}", of_user(), at + 1)),
        }
    }
    Ok(Line { name: name.to_vec(), rules: merged })
}

/// Reads an ACL file.
///
/// # Errors
/// The errors of all lines, in one text, in Redis's words. `path` is the file's name in this text.
pub fn parse_file(
    text: &[u8],
    path: &str,
    catalog: &'static Catalog,
    channels_by_default: bool,
) -> Result<BTreeMap<Vec<u8>, Rules>, String> {
    let mut users = BTreeMap::new();
    let mut errors = String::new();
    for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = trim(line, b" \t\r\n");
        if line.is_empty() {
            continue;
        }
        let number = number + 1;
        // Unlike redis.conf, an ACL file has no quoted words.
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let [b"user", name, rules @ ..] = words.as_slice() else {
            errors += &format!("{path}:{number} should start with user keyword followed by the username. ");
            continue;
        };
        let shown = String::from_utf8_lossy(name);
        if !is_user_name(name) {
            errors += &format!("'{path}:{number}: username '{shown}' contains invalid characters. ");
            continue;
        }
        if users.contains_key(*name) {
            errors += &format!("WARNING: Duplicate user '{shown}' found on line {number}. ");
            continue;
        }
        let mut made = Rules::new(catalog, channels_by_default);
        match merge_selectors(rules) {
            Ok(rules) => apply_all(&mut made, &rules, &format!("{path}:{number}"), &mut errors),
            Err(_) => errors += &format!("{path}:{number}: Unmatched parenthesis in selector definition."),
        }
        users.insert(name.to_vec(), made);
    }
    if errors.is_empty() {
        return Ok(users);
    }
    errors += "WARNING: ACL errors detected, no change to the previously active ACL rules was performed";
    Err(errors)
}

/// Applies the rules of a line and appends errors to `errors`. An error about an unknown command
/// quotes the rule. Of all other errors, only the first is appended. That error does not quote the
/// rule, which may be a password.
fn apply_all(made: &mut Rules, rules: &Words, place: &str, errors: &mut String) {
    let mut is_logged = false;
    for rule in rules {
        let rule = trim(rule, b"\t\r\n");
        match made.apply(rule) {
            Ok(()) => {}
            Err(error @ RuleError::UnknownCommand) => {
                let rule = String::from_utf8_lossy(rule);
                *errors += &format!("{place}: Error in applying operation '{rule}': {error}. ");
            }
            Err(error) if !is_logged => {
                *errors += &format!("{place}: {error}. ");
                is_logged = true;
            }
            Err(_) => {}
        }
    }
}

fn trim<'t>(text: &'t [u8], bytes: &[u8]) -> &'t [u8] {
    let is_kept = |byte: &u8| !bytes.contains(byte);
    let start = text.iter().position(is_kept).unwrap_or(text.len());
    let end = text.iter().rposition(is_kept).map_or(start, |last| last + 1);
    &text[start..end]
}

/// Returns a user's line for an ACL file.
pub(super) fn line_of(name: &[u8], rules: &Rules) -> Vec<u8> {
    debug_assert!(!has_spaces(name), "a user name with spaces");
    [b"user ", name, b" ", &rules.text()].concat()
}
