//! Settings of the process: its supervisor, syslog, its title, and its score for the kernel's
//! out-of-memory killer.

use super::values::Values;

/// Number of the syslog facility `user`.
const FACILITY_USER: u8 = 1;
/// Number of the syslog facility `local0`, the first of eight.
const FACILITY_LOCAL0: u8 = 16;

/// `supervised`: the supervisor that waits for the server to be ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Supervised {
    /// None.
    No,
    /// upstart.
    Upstart,
    /// systemd.
    Systemd,
    /// The supervisor, if any, that the environment variables name.
    Auto,
}

/// `syslog-ident` and `syslog-facility`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyslogSettings {
    /// The name before each line.
    pub ident: String,
    /// The number of the facility.
    pub facility: u8,
}

/// `oom-score-adj`: how the server sets its score for the kernel's out-of-memory killer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OomScore {
    /// The score stays as it was at startup.
    Inherited,
    /// The score at startup, plus the configured value.
    Relative,
    /// The configured value.
    Absolute,
}

/// The settings described at the head of this module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessSettings {
    /// `supervised`.
    pub supervised: Supervised,
    /// Settings of syslog; `None` if it is not used (`syslog-enabled`).
    pub syslog: Option<SyslogSettings>,
    /// `proc-title-template`; `None` if the title must not change (`set-proc-title no`).
    pub title_template: Option<Vec<u8>>,
    /// `oom-score-adj`.
    pub oom_score: OomScore,
    /// The values of `oom-score-adj-values` for a primary and for a replica. The third value is for
    /// child processes, which Pantala doesn't have.
    pub oom_score_values: [i32; 2],
    /// `sandbox`: whether to filter the process's system calls once the server has started.
    pub is_sandboxed: bool,
}

impl ProcessSettings {
    pub(super) fn new(values: &Values) -> Self {
        ProcessSettings {
            supervised: match values.text("supervised") {
                b"upstart" => Supervised::Upstart,
                b"systemd" => Supervised::Systemd,
                b"auto" => Supervised::Auto,
                _ => Supervised::No,
            },
            syslog: values.bool("syslog-enabled").then(|| SyslogSettings {
                ident: String::from_utf8_lossy(values.text("syslog-ident")).into_owned(),
                facility: facility(values.text("syslog-facility")),
            }),
            title_template: values.bool("set-proc-title").then(|| values.text("proc-title-template").to_vec()),
            oom_score: match values.text("oom-score-adj") {
                b"yes" => OomScore::Relative,
                b"absolute" => OomScore::Absolute,
                _ => OomScore::Inherited,
            },
            oom_score_values: oom_score_values(values.text("oom-score-adj-values")),
            is_sandboxed: values.bool("sandbox"),
        }
    }
}

/// Parses the first two of three numbers. The caller has already validated the text.
fn oom_score_values(text: &[u8]) -> [i32; 2] {
    let text = String::from_utf8_lossy(text);
    let mut numbers = text.split(' ').map(|word| word.parse().unwrap_or(0));
    [numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)]
}

/// Returns the number of a facility: `user` or `local0` to `local7`.
fn facility(name: &[u8]) -> u8 {
    match name {
        [b'l', b'o', b'c', b'a', b'l', digit @ b'0'..=b'7'] => FACILITY_LOCAL0 + (digit - b'0'),
        _ => FACILITY_USER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facilities_have_their_numbers() {
        assert_eq!([&b"user"[..], b"local0", b"local7"].map(facility), [1, 16, 23]);
    }
}
