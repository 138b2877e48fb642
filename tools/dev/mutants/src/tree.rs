// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The copy of the sources that has the changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::draw::Mutant;
use crate::plant::{self, Number};

const SWITCH: &str = include_str!("../switch/lib.rs");
const SWITCH_MANIFEST: &str = "[package]\nname = \"mutant\"\nversion = \"0.0.0\"\n\
	edition = \"2021\"\npublish = false\n[lib]\npath = \"lib.rs\"\n";

/// A copy of the sources below `root`.
pub struct Tree {
    pub root: PathBuf,
    /// Files with changes: their text without any.
    originals: BTreeMap<String, String>,
}

impl Tree {
    /// Brings a copy of the files of `list` in `top` up to date. Files that are up to date keep
    /// their times, so that only what has changed is built. `edit` returns the text of a file that
    /// differs in the copy even without changes.
    pub fn copy(
        top: &Path,
        list: &Path,
        root: PathBuf,
        mutants: &[Mutant],
        edit: impl Fn(&str) -> Result<Option<String>>,
    ) -> Result<Self> {
        let changed: BTreeSet<_> = mutants.iter().map(|m| m.file.as_str()).collect();
        let mut originals = BTreeMap::new();
        let list =
            fs::read_to_string(list).with_context(|| format!("can't read {}", list.display()))?;
        for name in list.lines() {
            let from = top.join(name);
            if changed.contains(name) {
                originals.insert(name.to_owned(), fs::read_to_string(&from)?);
            } else if let Some(text) = edit(name)? {
                write(&root.join(name), &text)?;
            } else if from.is_symlink() {
                let to = root.join(name);
                if !to.is_symlink() {
                    fs::create_dir_all(to.parent().expect("files are below a directory"))?;
                    std::os::unix::fs::symlink(fs::read_link(&from)?, &to)?;
                }
            } else if from.is_file() {
                let bytes = fs::read(&from)?;
                let to = root.join(name);
                if fs::read(&to).ok().as_ref() != Some(&bytes) {
                    fs::create_dir_all(to.parent().expect("files are below a directory"))?;
                    fs::copy(&from, &to)?;
                }
            }
        }
        Ok(Self { root, originals })
    }

    /// Brings a copy of cargo's workspace up to date. Packages with changes depend on the switch.
    pub fn workspace(top: &Path, list: &Path, root: PathBuf, mutants: &[Mutant]) -> Result<Self> {
        let packages: BTreeSet<_> = mutants.iter().map(|m| m.package.as_str()).collect();
        let tree = Self::copy(top, list, root, mutants, |name| {
            if !name.ends_with("Cargo.toml") {
                return Ok(None);
            }
            let text = fs::read_to_string(top.join(name))?;
            Ok(Some(match name.matches('/').count() {
                0 => with_member(&text),
                depth => with_switch(&text, depth, &packages),
            }))
        })?;
        write(&tree.root.join("mutant/Cargo.toml"), SWITCH_MANIFEST)?;
        write(&tree.root.join("mutant/lib.rs"), SWITCH)?;
        Ok(tree)
    }

    /// Writes the files with all changes but those that were dropped.
    pub fn plant(&self, mutants: &[Mutant], dropped: &BTreeSet<Number>) -> Result<()> {
        for (name, text) in &self.originals {
            let here: Vec<_> = mutants
                .iter()
                .enumerate()
                .filter(|(number, mutant)| mutant.file == *name && !dropped.contains(number))
                .collect();
            let planted = plant::plant(text, &here).with_context(|| name.clone())?;
            write(&self.root.join(name), &planted)?;
        }
        Ok(())
    }

    /// The changes that an error at a line of a file may come from.
    pub fn blamed(&self, file: &str, line: usize, mutants: &[Mutant]) -> Result<Vec<Number>> {
        // The kernel's build names files by absolute paths and by symbolic links.
        let path = fs::canonicalize(self.root.join(file)).unwrap_or_default();
        let file = path
            .strip_prefix(&self.root)
            .map_or_else(|_| file.to_owned(), |path| path.display().to_string());
        if !self.originals.contains_key(&file) {
            return Ok(Vec::new());
        }
        let numbers: Vec<_> = (0..mutants.len())
            .filter(|&number| mutants[number].file == file)
            .collect();
        let planted = fs::read_to_string(self.root.join(&file))?;
        Ok(plant::blamed(&planted, &numbers, line))
    }
}

fn with_member(manifest: &str) -> String {
    manifest.replacen("members = [", "members = [\n    \"mutant\",", 1)
}

/// Adds the switch to the dependencies of a package that has changes.
fn with_switch(manifest: &str, depth: usize, packages: &BTreeSet<&str>) -> String {
    let is_changed = manifest.lines().any(|line| {
        line.strip_prefix("name = \"")
            .and_then(|rest| rest.strip_suffix('"'))
            .is_some_and(|name| packages.contains(name))
    });
    if !is_changed {
        return manifest.to_owned();
    }
    let up = "../".repeat(depth);
    let dependency = format!("[dependencies]\nmutant = {{ path = \"{up}mutant\" }}\n");
    if manifest.contains("[dependencies]\n") {
        manifest.replacen("[dependencies]\n", &dependency, 1)
    } else {
        format!("{manifest}\n{dependency}")
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    if fs::read_to_string(path).ok().as_deref() != Some(text) {
        fs::create_dir_all(path.parent().expect("files are below a directory"))?;
        fs::write(path, text).with_context(|| format!("can't write {}", path.display()))?;
    }
    Ok(())
}
