// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The initramfs of a guest: a cpio archive with its first program, its description and modules.

use std::collections::BTreeSet;
use std::io::{self, Write};

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;

/// Writes the archive: `/init`, and files (path, content) with their parent directories.
pub fn write(to: &mut impl Write, init: &[u8], files: &[(String, Vec<u8>)]) -> io::Result<()> {
    entry(to, "init", PROGRAM, init)?;
    let mut written = BTreeSet::new();
    for (path, content) in files {
        let path = path.trim_start_matches('/');
        for (at, _) in path.match_indices('/') {
            let directory = &path[..at];
            if written.insert(directory) {
                entry(to, directory, DIRECTORY, &[])?;
            }
        }
        entry(to, path, FILE, content)?;
    }
    entry(to, "TRAILER!!!", 0, &[])
}

/// Writes an entry in the format "newc".
fn entry(to: &mut impl Write, name: &str, mode: u32, data: &[u8]) -> io::Result<()> {
    let too_long = |_| io::Error::from(io::ErrorKind::FileTooLarge);
    let name_size = u32::try_from(name.len() + 1).map_err(too_long)?;
    let size = u32::try_from(data.len()).map_err(too_long)?;
    let mut head = String::from("070701");
    // ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor,
    // namesize, check
    for field in [0, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0] {
        head.push_str(&format!("{field:08x}"));
    }
    head.push_str(name);
    head.push('\0');
    to.write_all(head.as_bytes())?;
    pad(to, head.len())?;
    to.write_all(data)?;
    pad(to, data.len())
}

fn pad(to: &mut impl Write, length: usize) -> io::Result<()> {
    to.write_all(&[0; 3][..length.next_multiple_of(4) - length])
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn cpio_reads_the_archive() {
        let mut archive = Vec::new();
        let files = ["/run/x/setup", "/run/y"].map(|path| (path.to_owned(), b"abc".to_vec()));
        write(&mut archive, b"12345", &files).unwrap();
        assert_eq!(archive.len() % 4, 0);
        let mut cpio = Command::new("cpio")
            .args(["--list", "--quiet"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        cpio.stdin.take().unwrap().write_all(&archive).unwrap();
        let output = cpio.wait_with_output().unwrap();
        assert!(output.status.success());
        let names = String::from_utf8(output.stdout).unwrap();
        let names: Vec<_> = names.lines().collect();
        assert_eq!(names, ["init", "run", "run/x", "run/x/setup", "run/y"]);
    }
}
