//! The resident memory of the program's code.
//!
//! The kernel maps pages of code when they first run, and up to 15 pages around each of them. A
//! server that has started never again runs most of this code: the parsers of arguments and
//! configuration, the dynamic linker, the setup of threads and TLS.

use core::ops::Range;

use rustix::mm::{Advice, madvise};

/// Removes all code of the program and its shared libraries from the resident memory of this
/// process. Code that runs again is mapped again from the page cache, at the cost of a page fault.
///
/// Reads `/proc/self/maps`. Takes about a tenth of a millisecond. Does nothing if the file can't be
/// read.
pub fn release() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    for range in maps.lines().filter_map(code) {
        let start = core::ptr::with_exposed_provenance_mut(range.start);
        // SAFETY: the pages are those of a file, so the kernel reads them again. The bytes are the
        // same, because neither this process nor the dynamic linker writes to code (a debugger may,
        // and its breakpoints are then lost). The mapping still exists, because this process
        // unloads no library. An error leaves the pages mapped.
        let _ = unsafe { madvise(start, range.len(), Advice::LinuxDontNeed) };
    }
}

/// Parses a line of `/proc/self/maps`. Returns the addresses of a mapping of code from a file.
/// Other read-only mappings are not returned: some were writable until the dynamic linker had
/// relocated their addresses.
fn code(line: &str) -> Option<Range<usize>> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    // The remaining fields are permissions, offset, device and inode, then the name of the file.
    let is_code = fields.next() == Some("r-xp") && fields.nth(2)? != "0" && fields.next()?.starts_with('/');
    let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
    is_code.then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_from_files_is_released() {
        let line = |permissions, inode, name: &str| {
            format!("7f1c0000-7f1c3000 {permissions} 00215000 fe:00 {inode}                    {name}")
        };
        assert_eq!(code(&line("r-xp", 42, "/usr/bin/pantala")), Some(0x7f1c_0000..0x7f1c_3000));
        assert_eq!(code(&line("r--p", 42, "/usr/bin/pantala")), None, "may contain relocated addresses");
        assert_eq!(code(&line("rwxp", 42, "/usr/bin/pantala")), None, "may have been written");
        assert_eq!(code(&line("r-xp", 0, "[vdso]")), None);
        assert_eq!(code(&line("r-xp", 0, "")), None);
        assert_eq!(code("7f1c0000"), None);
        assert_eq!(code(""), None);
    }

    /// The code still runs afterwards, in the threads too, and less of it is resident.
    #[test]
    fn released_code_is_mapped_again() {
        let resident_kib = || {
            let smaps = std::fs::read_to_string("/proc/self/smaps").expect("Linux has this file");
            let (mut is_code, mut kib) = (false, 0);
            for line in smaps.lines() {
                if let Some(rss) = line.strip_prefix("Rss:").filter(|_| is_code) {
                    let number = rss.split_ascii_whitespace().next().expect("a number of KiB");
                    kib += number.parse::<u64>().expect("a number of KiB");
                } else if line.split_ascii_whitespace().next().is_some_and(|first| first.contains('-')) {
                    is_code = code(line).is_some();
                }
            }
            kib
        };
        let _ = resident_kib();
        let before = resident_kib();
        // Other tests may map code between the release and the measurement.
        let is_released = std::thread::scope(|scope| {
            let releasing = scope.spawn(|| {
                (0..100).any(|_| {
                    release();
                    resident_kib() < before
                })
            });
            (0..1000_u32).for_each(|number| assert_eq!(number.to_string().parse(), Ok(number)));
            releasing.join().expect("the thread reads its memory")
        });
        assert!(is_released, "never less than {before} KiB");
    }
}
