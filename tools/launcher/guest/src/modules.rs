// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Loads kernel modules and their dependencies, since a root may have no modprobe.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{bail, Context, Result};
use rustix::io::Errno;
use rustix::system::finit_module;

/// Flag of finit_module(2): the kernel decompresses the file.
const COMPRESSED: i32 = 4;

/// Loads modules and, before each, its dependencies. `dir` has modules.dep. Modules in
/// modules.builtin, if the file exists, are part of the kernel's image.
pub fn load(dir: &Path, names: &[&str]) -> Result<()> {
    let list = dir.join("modules.dep");
    let list =
        fs::read_to_string(&list).with_context(|| format!("can't read {}", list.display()))?;
    for name in names {
        let Some(files) = files(&list, name) else {
            // Without modules.builtin, a built-in module is reported as missing.
            let built_in = fs::read_to_string(dir.join("modules.builtin")).unwrap_or_default();
            if built_in.lines().any(|file| is_of(file, name)) {
                continue;
            }
            bail!("no module {name} in {}", dir.display());
        };
        // The list has the module first, then its dependencies, which must be loaded before it.
        for file in files.into_iter().rev() {
            insert(&dir.join(file))?;
        }
    }
    Ok(())
}

/// Loads one module, unless it is loaded.
pub fn insert(file: &Path) -> Result<()> {
    let open = File::open(file).with_context(|| format!("can't open {}", file.display()))?;
    let flags = match file.extension() {
        Some(ending) if ending != "ko" => COMPRESSED,
        _ => 0,
    };
    match finit_module(&open, c"", flags) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("can't load {}", file.display())),
    }
}

/// A module's file, followed by the files of its dependencies. The list has thousands of lines, so
/// an emulated processor has no time to build a table of all.
fn files<'a>(list: &'a str, name: &str) -> Option<Vec<&'a str>> {
    list.lines().find_map(|line| {
        let (file, needed) = line.split_once(':')?;
        let files = || [file].into_iter().chain(needed.split_whitespace());
        is_of(file, name).then(|| files().collect())
    })
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
    fn modules_that_are_built_in_have_no_file() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("modules.dep"), "").unwrap();
        assert!(load(dir.path(), &["over_lay"]).is_err());
        fs::write(
            dir.path().join("modules.builtin"),
            "kernel/fs/over-lay.ko\n",
        )
        .unwrap();
        load(dir.path(), &["over_lay"]).unwrap();
        assert!(load(dir.path(), &["over"]).is_err());
    }
}
