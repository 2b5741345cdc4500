//! The values of all directives.

use super::directive::{Directive, Kind, State};
use super::settings::Settings;
use super::table::{DIRECTIVES, find};
use super::title::is_title_template;
use super::value::{Source, Value, parse};

/// The values of all directives, in the order of the table, and whether each was configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Values {
    values: Vec<Value>,
    given: Vec<bool>,
}

/// Returns the default of `directive`.
pub fn default_value(directive: &Directive) -> Value {
    let word = directive.default;
    match directive.kind {
        Kind::Bool => Value::Bool(word == "yes"),
        // Can't fail: numbers in the table are decimal, and a unit test parses every default.
        Kind::Integer(..) | Kind::Octal(..) | Kind::Memory(..) | Kind::MemoryOrPercent => {
            Value::Number(word.parse().unwrap_or(0))
        }
        Kind::KeyspaceEvents => Value::Number(0),
        _ => Value::Text(word.into()),
    }
}

impl Values {
    /// Creates values with every directive at its default.
    pub fn new() -> Self {
        Values { values: DIRECTIVES.iter().map(default_value).collect(), given: vec![false; DIRECTIVES.len()] }
    }

    /// Returns the value of the directive at `index` of the table.
    pub fn at(&self, index: usize) -> &Value {
        &self.values[index]
    }

    /// Returns whether a file, an option or `CONFIG SET` has set the directive at `index`.
    pub fn is_given(&self, index: usize) -> bool {
        self.given[index]
    }

    /// Sets the directive at `index`.
    pub fn set(&mut self, index: usize, value: Value) {
        self.values[index] = value;
        self.given[index] = true;
    }

    /// Sets a default that depends on the host, unless the directive was configured.
    pub fn set_default(&mut self, name: &str, value: Value) {
        let index = self.index(name);
        if !self.given[index] {
            self.values[index] = value;
        }
    }

    /// Parses `words` as the value of the directive at `index`. Does not set it.
    ///
    /// # Errors
    ///
    /// Redis's error text.
    pub fn parse(&self, index: usize, words: &[Vec<u8>], from_file: bool) -> Result<Value, String> {
        let source = if from_file { Source::File { first: !self.given[index] } } else { Source::Command };
        let value = parse(&DIRECTIVES[index], words, &self.values[index], source)?;
        match (DIRECTIVES[index].kind, &value) {
            (Kind::TitleTemplate, Value::Text(text)) if !is_title_template(text, &Settings::from_values(self)) => {
                Err("template format is invalid or contains unknown variables".into())
            }
            _ => Ok(value),
        }
    }

    /// Returns whether `value` can't be set, because the directive isn't supported.
    pub fn is_unsupported_value(&self, index: usize, value: &Value) -> bool {
        DIRECTIVES[index].state == State::Known && *value != self.values[index]
    }

    /// Returns the index of the directive `name` in the table. Panics if there is none. `name` is a
    /// literal in the source, so an unknown name is a bug.
    fn index(&self, name: &str) -> usize {
        find(name.as_bytes()).unwrap_or_else(|| panic!("the table has no directive {name}")).index
    }

    /// Returns the value of a numeric directive.
    pub fn number(&self, name: &str) -> i128 {
        match self.at(self.index(name)) {
            Value::Number(number) => *number,
            other => panic!("{name} isn't a number but {other:?}"),
        }
    }

    /// Returns the value of a `yes` or `no` directive.
    pub fn bool(&self, name: &str) -> bool {
        match self.at(self.index(name)) {
            Value::Bool(bool) => *bool,
            other => panic!("{name} isn't yes or no but {other:?}"),
        }
    }

    /// Returns the value of a directive of any other kind.
    pub fn text(&self, name: &str) -> &[u8] {
        match self.at(self.index(name)) {
            Value::Text(text) => text,
            other => panic!("{name} isn't a text but {other:?}"),
        }
    }
}

impl Default for Values {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::super::value::show;
    use super::*;

    #[test]
    fn shown_defaults_parse_to_the_defaults() {
        let values = Values::new();
        for (index, directive) in DIRECTIVES.iter().enumerate() {
            if matches!(directive.name, "shards" | "partitions" | "workers" | "replicaof") {
                continue; // The default depends on the host, or is absent.
            }
            let words: Vec<Vec<u8>> = if directive.kind.is_multi_argument() {
                directive.default.split(' ').map(|word| word.into()).collect()
            } else {
                vec![directive.default.into()]
            };
            let value =
                values.parse(index, &words, false).unwrap_or_else(|wrong| panic!("{}: {wrong}", directive.name));
            assert_eq!(&value, values.at(index), "{}", directive.name);
            assert_eq!(show(directive.kind, &value), directive.default.as_bytes(), "{}", directive.name);
        }
    }

    #[test]
    fn names_are_unique_and_lower_case() {
        let mut names: Vec<&str> = super::super::table::names().map(|found| found.name()).collect();
        assert!(names.iter().all(|name| *name == name.to_ascii_lowercase()));
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
