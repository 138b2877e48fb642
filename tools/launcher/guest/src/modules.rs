// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Loads kernel modules and their dependencies, since a root may have no modprobe.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{bail, Context, Result};
use guest::module_list::{files, is_built_in};
use guest::needs::option_of;
use rustix::io::Errno;
use rustix::system::finit_module;

/// Flag of finit_module(2): the kernel decompresses the file.
const COMPRESSED: i32 = 4;

/// Loads modules and, before each, its dependencies. `dir` has modules.dep. Modules in
/// modules.builtin, if the file exists, are part of the kernel's image. Without a directory, all
/// are.
pub fn load(dir: Option<&Path>, names: &[&str]) -> Result<()> {
    let Some(dir) = dir else {
        return Ok(());
    };
    let names: Vec<_> = names.iter().filter(|name| !is_loaded(name)).collect();
    if names.is_empty() {
        return Ok(());
    }
    let list = dir.join("modules.dep");
    let list =
        fs::read_to_string(&list).with_context(|| format!("can't read {}", list.display()))?;
    for name in names {
        match files(&list, name) {
            // The list has the module first, then its dependencies, which must be loaded before it.
            Some(files) => {
                for file in files.into_iter().rev() {
                    insert(&dir.join(file))?;
                }
            }
            None if is_built_in(dir, name) => {}
            None => {
                let option = option_of(name).map(|option| format!(" ({option})"));
                bail!(
                    "no module {name}{} in {}",
                    option.unwrap_or_default(),
                    dir.display()
                );
            }
        }
    }
    Ok(())
}

/// Loads one module, unless it is loaded.
pub fn insert(file: &Path) -> Result<()> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    // The kernel would read the whole file before it refused a second one.
    if is_loaded(name.split('.').next().unwrap_or_default()) {
        return Ok(());
    }
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

/// Whether a module is loaded. A part of the kernel's image is not.
fn is_loaded(name: &str) -> bool {
    let module = Path::new("/sys/module").join(name.replace('-', "_"));
    module.join("initstate").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_module_is_named_with_its_option() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("modules.dep"), "").unwrap();
        let load = |name| load(Some(dir.path()), &[name]);
        let error = load("overlay").unwrap_err().to_string();
        assert!(
            error.starts_with("no module overlay (CONFIG_OVERLAY_FS) in "),
            "{error}"
        );
        fs::write(dir.path().join("modules.builtin"), "kernel/overlay.ko\n").unwrap();
        load("overlay").unwrap();
        super::load(None, &["overlay"]).unwrap();
    }
}
