// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The kernel's setting for programs' memory: single pages, or large folios.
//!
//! With multi-size THP (Linux 6.8, Documentation/admin-guide/mm/transhuge.rst), an unmodified
//! program that touches memory gets the largest aligned folio that is available. Debian's kernel
//! has multi-size THP, but disabled.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{ensure, Context, Result};

/// The directory in sysfs with a subdirectory for each folio size.
const SIZES: &str = "/sys/kernel/mm/transparent_hugepage";
/// Minimum folio size in KiB. Smaller folios are hardly better than pages.
const LEAST: u64 = 64;

/// Sets whether the kernel allocates large folios or only pages from now on. The setting for the
/// processor's huge pages is not changed.
pub fn set(large: bool) -> Result<()> {
    let huge: u64 = fs::read_to_string(Path::new(SIZES).join("hpage_pmd_size"))
        .and_then(|size| size.trim().parse().map_err(std::io::Error::other))
        .context("the kernel has no transparent huge pages")?;
    let switches = switches(Path::new(SIZES), huge >> 10)?;
    ensure!(!switches.is_empty(), "the kernel has no multi-size THP");
    let word = if large { "always" } else { "never" };
    for switch in switches {
        fs::write(&switch, word).with_context(|| format!("can't write {}", switch.display()))?;
    }
    Ok(())
}

/// The files that enable the folio sizes below `huge`, in KiB.
fn switches(folder: &Path, huge: u64) -> Result<Vec<PathBuf>> {
    let mut switches = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let size = name
            .to_str()
            .and_then(|name| name.strip_prefix("hugepages-")?.strip_suffix("kB"))
            .and_then(|size| size.parse().ok());
        if size.is_some_and(|size| (LEAST..huge).contains(&size)) {
            switches.push(entry.path().join("enabled"));
        }
    }
    Ok(switches)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_between_pages_and_huge_pages() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["16kB", "64kB", "1024kB", "2048kB", "oddkB"] {
            fs::create_dir(dir.path().join(format!("hugepages-{name}"))).unwrap();
        }
        fs::create_dir(dir.path().join("khugepaged")).unwrap();
        let mut found = switches(dir.path(), 2048).unwrap();
        found.sort();
        let expected = ["1024kB", "64kB"]
            .map(|size| dir.path().join(format!("hugepages-{size}")).join("enabled"));
        assert_eq!(found, expected);
    }
}
