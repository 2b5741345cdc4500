//! Parses the shebang of a script: a first line such as `#!lua flags=no-writes,allow-stale`, which
//! declares the script's flags.

use bitflags::bitflags;
use pantala_resp::words_of;

bitflags! {
    /// The flags of a script or function.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Flags: u8 {
        /// Writes nothing.
        const NO_WRITES = 1 << 0;
        /// May run while the server is out of memory.
        const ALLOW_OOM = 1 << 1;
        /// May run on a replica that has lost its primary.
        const ALLOW_STALE = 1 << 2;
        /// Must not run in a cluster.
        const NO_CLUSTER = 1 << 3;
        /// May use keys of several slots in a cluster.
        const ALLOW_CROSS_SLOT_KEYS = 1 << 4;
        /// The script has no shebang, so the rules of Redis before version 7 apply.
        const COMPATIBLE = 1 << 7;
    }
}

impl Flags {
    /// The names of the flags, in the order of their bits.
    pub const NAMES: [&'static str; 5] =
        ["no-writes", "allow-oom", "allow-stale", "no-cluster", "allow-cross-slot-keys"];

    /// Returns the flags that a script declares, or `None` if its shebang is invalid.
    pub fn of(body: &[u8]) -> Option<Self> {
        parse(body).ok().map(|(flags, _)| flags)
    }

    /// Returns the names of the set flags.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let is_set = move |(bit, _): &(usize, &str)| self.bits() & 1 << bit != 0;
        Self::NAMES.into_iter().enumerate().filter(is_set).map(|(_, name)| name)
    }

    /// Returns the flag with this name.
    pub fn by_name(name: &[u8]) -> Option<Self> {
        let bit = Self::NAMES.iter().position(|known| known.as_bytes() == name)?;
        Some(Flags::from_bits_retain(1 << bit))
    }
}

/// Parses the shebang of a script. Returns its flags and the start of the code.
///
/// # Errors
/// Returns the whole error reply if the shebang is invalid.
pub fn parse(body: &[u8]) -> Result<(Flags, usize), Vec<u8>> {
    if !body.starts_with(b"#!") {
        return Ok((Flags::COMPATIBLE, 0));
    }
    let Some(line) = first_line(body) else {
        return Err(b"ERR Invalid script shebang".to_vec());
    };
    let words = words_of(line).map_err(|_| b"ERR Invalid engine in script shebang".to_vec())?;
    let (engine, options) = words.split_first().map_or((&b""[..], &[][..]), |(first, rest)| (first, rest));
    if to_nul(engine) != b"#!lua" {
        return Err([b"ERR Unexpected engine in script shebang: ", to_nul(engine)].concat());
    }
    let mut flags = Flags::empty();
    for option in options {
        let Some(names) = option.strip_prefix(b"flags=") else {
            return Err([b"ERR Unknown lua shebang option: ", to_nul(option)].concat());
        };
        for name in names.split(|&byte| byte == b',').filter(|_| !names.is_empty()).map(to_nul) {
            match Flags::by_name(name) {
                Some(flag) => flags |= flag,
                None => return Err([b"ERR Unexpected flag in script shebang: ", name].concat()),
            }
        }
    }
    Ok((flags, line.len()))
}

/// Returns the first line without its end, or `None` if no line ends before the first NUL byte.
pub(crate) fn first_line(text: &[u8]) -> Option<&[u8]> {
    let end = text.iter().position(|byte| matches!(byte, b'\n' | 0))?;
    (text[end] == b'\n').then(|| &text[..end])
}

/// Returns the part before the first NUL byte. Only an escape (`\x00`) can put a NUL byte into a
/// word.
fn to_nul(word: &[u8]) -> &[u8] {
    word.split(|&byte| byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(body: &str) -> String {
        match parse(body.as_bytes()) {
            Ok((flags, from)) => format!("{:02x} {from}", flags.bits()),
            Err(error) => String::from_utf8_lossy(&error).into_owned(),
        }
    }

    #[test]
    fn shebangs_are_parsed() {
        assert_eq!(shown("return 1"), "80 0");
        assert_eq!(shown("#!lua\nreturn 1"), "00 5");
        assert_eq!(shown("#!lua  flags=no-writes,allow-oom \nreturn 1"), "03 33");
        assert_eq!(shown("#!lua flags=\n"), "00 12");
        assert_eq!(shown("#!lua"), "ERR Invalid script shebang");
        assert_eq!(shown("#!\n"), "ERR Unexpected engine in script shebang: #!");
        assert_eq!(shown("#!lua flags=a\n"), "ERR Unexpected flag in script shebang: a");
        assert_eq!(shown("#!lua flags=no-writes,\n"), "ERR Unexpected flag in script shebang: ");
        assert_eq!(shown("#!lua a=b\n"), "ERR Unknown lua shebang option: a=b");
        assert_eq!(shown("#!lua a\0\n"), "ERR Invalid script shebang");
    }

    #[test]
    fn quoted_shebangs_are_parsed() {
        assert_eq!(shown("#!lua flags=\"no-writes\"\n"), "01 23");
        assert_eq!(shown("#!lua \"flags=no-writes\"\n"), "01 23");
        assert_eq!(shown("#!lua flags='allow-oom,no-writes'\n"), "03 33");
        assert_eq!(shown("#!lua flags=\"\"\n"), "00 14");
        assert_eq!(shown("#!\"lua\"\n"), "00 7");
        assert_eq!(shown("#!lua flags=\"no-\\x77rites\\x00s,allow-oom\"\n"), "03 41");
        assert_eq!(shown("#!lua \"a\\x00b\"\n"), "ERR Unknown lua shebang option: a");
        assert_eq!(shown("#!lua flags=\"no-writes\n"), "ERR Invalid engine in script shebang");
        assert_eq!(shown("#!lua flags=\"no-writes\"x\n"), "ERR Invalid engine in script shebang");
    }
}
