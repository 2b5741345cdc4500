//! Scripts and functions. Scripts use only strings, because other commands of a stream test the
//! other types.

use super::{Check, Generator, Step};

/// Names of libraries.
const LIBRARIES: &[&str] = &["one", "two", "three"];
/// Names of functions. Several libraries may define the same name.
const FUNCTIONS: &[&str] = &["f", "g", "h", "i"];

/// Bodies of functions with the parameters `keys` and `args`.
const BODIES: &[&str] = &[
    "return redis.call('SET', keys[1], args[1])",
    "return redis.call('GET', keys[1])",
    "return redis.pcall('INCR', keys[1])",
    "return {redis.call('APPEND', keys[1], args[1]), redis.call('STRLEN', keys[1])}",
    "if redis.call('EXISTS', keys[1]) == 1 then return redis.call('TYPE', keys[1]) end return args",
    "redis.call('DEL', keys[1]) redis.call('SET', keys[1] .. 'x', #args) return redis.call('DEL', keys[1] .. 'x', keys[2])",
    "return {#keys, #args, keys, args}",
    "return redis.call('MSET', keys[1], 'a', keys[2], 'b')",
    "error('wrong ' .. #keys)",
    "return redis.error_reply('MINE ' .. #args)",
];

/// Bodies that don't write.
const READING: &[&str] = &[
    "return redis.call('GET', keys[1])",
    "return {#keys, #args, keys, args}",
    "return redis.call('MGET', keys[1], keys[1])",
    "return redis.call('STRLEN', keys[1])",
];

impl Generator {
    /// Returns the code of a function. If `only_reads`, most bodies don't write.
    fn script_body(&mut self, only_reads: bool) -> &'static str {
        let bodies = if only_reads && !self.random.one_in(5) { READING } else { BODIES };
        bodies[self.random.below(bodies.len())]
    }

    pub(super) fn script_command(&mut self) -> Step {
        let (library, function) = (*self.random.pick(LIBRARIES), *self.random.pick(FUNCTIONS));
        let body = self.script_body(false);
        let mut check = Check::Exact;
        let text = |text: &str| text.as_bytes().to_vec();
        let args = match self.random.below(20) {
            0..=3 => {
                let mut code = format!(
                    "#!lua name={library}\nredis.register_function('{function}', function(keys, args) {body} end)\n"
                );
                if self.random.one_in(2) {
                    // No other library uses this name. If several names conflicted, the error would
                    // contain a random one of them.
                    let (other, flags) = (
                        format!("{library}_j"),
                        *self.random.pick(&[
                            "",
                            "'no-writes'",
                            "'no-writes'",
                            "'no-writes'",
                            "'no-writes'",
                            "'nosuch'",
                        ]),
                    );
                    let body = self.script_body(flags == "'no-writes'");
                    let callback = format!("function(keys, args) {body} end");
                    code += &format!(
                        "redis.register_function{{function_name = '{other}', callback = {callback}, flags = {{{flags}}}}}"
                    );
                }
                let mut args = vec![text("FUNCTION"), self.word("LOAD")];
                if !self.random.one_in(3) {
                    args.push(self.word("REPLACE"));
                }
                args.push(text(&code));
                args
            }
            4 => vec![text("FUNCTION"), self.word("DELETE"), text(library)],
            5 if self.random.one_in(2) => vec![text("FUNCTION"), self.word("FLUSH")],
            5 | 6 => {
                // The order of a library's functions differs between servers.
                check = Check::Length;
                vec![
                    text("FUNCTION"),
                    self.word("LIST"),
                    self.word("LIBRARYNAME"),
                    text(&library[..1]),
                    self.word("WITHCODE"),
                ]
            }
            7 => vec![text("FUNCTION"), self.word("STATS")],
            kind => {
                let (name, what) = match kind {
                    8..=11 => ("EVAL", format!("local keys, args = KEYS, ARGV {body}")),
                    12 | 13 => ("EVAL_RO", format!("local keys, args = KEYS, ARGV {}", self.script_body(true))),
                    14 | 15 => ("FCALL_RO", format!("{library}_j")),
                    16 => ("FCALL", format!("{library}_j")),
                    _ => ("FCALL", function.to_owned()),
                };
                let keys = 1 + self.random.below(2);
                let mut args = vec![text(name), what.into_bytes(), text(&keys.to_string())];
                for _ in 0..keys {
                    args.push(self.key());
                }
                for _ in 0..self.random.below(3) {
                    args.push(self.value());
                }
                args
            }
        };
        Step::new(args, check)
    }
}
