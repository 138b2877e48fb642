// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The lists that depmod makes in a directory of kernel modules.

use std::fs;
use std::path::Path;

/// A module's file, followed by the files of its dependencies. `list` is the content of
/// `modules.dep`. It has thousands of lines, so an emulated processor has no time to build a table
/// of all.
pub fn files<'a>(list: &'a str, name: &str) -> Option<Vec<&'a str>> {
    list.lines().find_map(|line| {
        let (file, needed) = line.split_once(':')?;
        let files = || [file].into_iter().chain(needed.split_whitespace());
        is_of(file, name).then(|| files().collect())
    })
}

/// Whether a module is a part of the kernel's image. Without `modules.builtin`, none is.
pub fn is_built_in(dir: &Path, name: &str) -> bool {
    let list = fs::read_to_string(dir.join("modules.builtin")).unwrap_or_default();
    list.lines().any(|file| is_of(file, name))
}

/// Whether a file has the module of this name. The kernel treats `-` and `_` alike.
fn is_of(file: &str, name: &str) -> bool {
    let (_, last) = file.rsplit_once('/').unwrap_or(("", file));
    let plain = |byte: u8| if byte == b'-' { b'_' } else { byte };
    let name = name.bytes().map(plain);
    last.bytes()
        .map(plain)
        .take_while(|byte| *byte != b'.')
        .eq(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_with_what_they_need() {
        let list = "kernel/a/iw-cm.ko.xz: kernel/b.ko\nkernel/b.ko:\n";
        let found = files(list, "iw_cm").unwrap();
        assert_eq!(found, ["kernel/a/iw-cm.ko.xz", "kernel/b.ko"]);
        assert_eq!(files(list, "b").unwrap(), ["kernel/b.ko"]);
        assert_eq!(files(list, "iw"), None);
        assert_eq!(files(list, "a"), None);
    }

    #[test]
    fn modules_that_are_built_in_are_listed() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_built_in(dir.path(), "over_lay"));
        let list = dir.path().join("modules.builtin");
        fs::write(list, "kernel/fs/over-lay.ko\n").unwrap();
        assert!(is_built_in(dir.path(), "over_lay"));
        assert!(!is_built_in(dir.path(), "over"));
    }
}
