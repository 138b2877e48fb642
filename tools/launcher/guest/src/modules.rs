// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Loads kernel modules and their dependencies, since a root may have no modprobe.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::system::finit_module;

/// Flag of finit_module(2): the kernel decompresses the file.
const COMPRESSED: i32 = 4;

/// Loads modules and, before each, its dependencies. `dir` has modules.dep. Modules in
/// modules.builtin, if that exists, are part of the kernel's image.
pub fn load(dir: &Path, names: &[String]) -> Result<()> {
    let list = dir.join("modules.dep");
    let list =
        fs::read_to_string(&list).with_context(|| format!("can't read {}", list.display()))?;
    // Without modules.builtin, a built-in module is reported as missing.
    let built_in = fs::read_to_string(dir.join("modules.builtin")).unwrap_or_default();
    let known = parse(&list, &built_in);
    for name in names {
        let files = known
            .get(&plain(name))
            .with_context(|| format!("no module {name} in {}", dir.display()))?;
        // The list has the module first, then its dependencies, which must be loaded before it.
        for file in files.iter().rev() {
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

/// Each module's file, followed by the files of its dependencies. Built-in modules have no files.
fn parse<'a>(list: &'a str, built_in: &str) -> HashMap<String, Vec<&'a str>> {
    let loadable = list.lines().filter_map(|line| {
        let (file, needed) = line.split_once(':')?;
        let files = [file].into_iter().chain(needed.split_whitespace());
        Some((name(file), files.collect()))
    });
    let built_in = built_in.lines().map(|file| (name(file), Vec::new()));
    built_in.chain(loadable).collect()
}

/// Name of the module in a file.
fn name(file: &str) -> String {
    let last = file.rsplit('/').next().unwrap_or(file);
    plain(last.split('.').next().unwrap_or(last))
}

/// A module's name with underscores: the kernel treats `-` and `_` alike.
fn plain(name: &str) -> String {
    name.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_with_what_they_need() {
        let known = parse("kernel/a/iw-cm.ko.xz: kernel/b.ko\nkernel/b.ko:\n", "");
        assert_eq!(known["iw_cm"], ["kernel/a/iw-cm.ko.xz", "kernel/b.ko"]);
        assert_eq!(known["b"], ["kernel/b.ko"]);
    }

    #[test]
    fn modules_that_are_built_in_have_no_file() {
        let known = parse("kernel/b.ko:\n", "kernel/fs/over-lay.ko\n");
        assert_eq!(known["over_lay"], [""; 0]);
        assert!(!known.contains_key("c"));
    }
}
