// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Files and texts that a guest, or the owner of its root, controls.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Number of bytes at the end of a log that are looked at.
const TAIL: u64 = 1 << 20;

/// A text without control characters, which would control the terminal. A line break and a tab
/// stay.
pub fn printable(text: &str) -> String {
    let shown = |c: char| match c {
        '\n' | '\t' => c.to_string(),
        // Ends of lines on a serial console.
        '\r' => String::new(),
        c if c.is_control() => c.escape_default().to_string(),
        c => c.to_string(),
    };
    text.chars().map(shown).collect()
}

/// The beginning of a file, up to `limit` bytes. The file may be of any size.
pub fn beginning(file: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(file)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The last part of a log as text; empty if there is no log.
pub fn end(file: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut log = File::open(file)?;
        let len = log.metadata()?.len();
        log.seek(SeekFrom::Start(len.saturating_sub(TAIL)))?;
        let mut bytes = Vec::new();
        log.take(TAIL).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

/// Creates or empties a file of the caller. A symbolic link is not followed: in a directory with
/// files of others it could lead to a file of the caller. Links of the system, such as
/// /dev/stdout, are.
pub fn create(file: &Path) -> io::Result<File> {
    let flags = if file.starts_with("/dev") || file.starts_with("/proc") {
        OFlags::empty()
    } else {
        OFlags::NOFOLLOW
    };
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        // The flags are those of `open`, which fit.
        .custom_flags(flags.bits() as i32)
        .open(file)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn no_text_controls_the_terminal() {
        let text = "[ 1.0] BUG: \u{1b}]0;title\u{7}\u{1b}[2J\u{9b}1m x\r\n\ty\u{fffd}";
        let shown = printable(text);
        assert!(!shown.contains(['\u{1b}', '\u{7}', '\u{9b}', '\r']));
        assert!(shown.starts_with("[ 1.0] BUG: \\u{1b}]0;title\\u{7}"));
        assert!(shown.ends_with(" x\n\ty\u{fffd}"));
    }

    #[test]
    fn large_files_are_read_in_part() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("large");
        let mut file = create(&path).unwrap();
        file.set_len(1 << 40).unwrap();
        file.seek(SeekFrom::End(0)).unwrap();
        file.write_all(b"\nthe end").unwrap();
        assert_eq!(beginning(&path, 100).unwrap(), [0; 100]);
        let text = end(&path);
        assert_eq!(text.len(), TAIL as usize);
        assert!(text.ends_with("\nthe end"));
        assert_eq!(end(&dir.path().join("missing")), "");
    }

    #[test]
    fn links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let [private, link] = ["private", "link"].map(|name| dir.path().join(name));
        fs::write(&private, "kept").unwrap();
        symlink(&private, &link).unwrap();
        assert!(create(&link).is_err());
        assert_eq!(fs::read(&private).unwrap(), b"kept");
        create(&private).unwrap();
        assert_eq!(fs::read(&private).unwrap(), b"");
        create(Path::new("/dev/null")).unwrap();
    }
}
