// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Directories of files that later runs use again, and that may be removed at any time.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The directory for one kind of files, of a checkout or of the user. It may not exist.
pub fn dir(checkout: Option<&Path>, kind: &str) -> Option<PathBuf> {
    let caches = match checkout {
        Some(top) => top.join("build/cache"),
        None => of_user()?,
    };
    Some(caches.join(kind))
}

fn of_user() -> Option<PathBuf> {
    let dir = |name| env::var_os(name).map(PathBuf::from);
    let caches = dir("XDG_CACHE_HOME").or_else(|| Some(dir("HOME")?.join(".cache")));
    let is_absolute = |dir: &PathBuf| dir.is_absolute();
    Some(caches.filter(is_absolute)?.join("virtio-rdma"))
}

/// Marks a file as the newest one of its directory.
pub fn touch(file: &Path) {
    let touched = fs::File::options().append(true).open(file);
    // Without the mark, the file is removed sooner.
    let _ = touched.and_then(|file| file.set_modified(SystemTime::now()));
}

/// Removes all files of a directory but the newest, also those of runs that were killed.
pub fn remove_oldest(dir: &Path, kept: usize) -> io::Result<()> {
    let written = |file: &fs::DirEntry| {
        let time = file.metadata().and_then(|file| file.modified());
        time.unwrap_or(SystemTime::UNIX_EPOCH)
    };
    let mut files: Vec<_> = fs::read_dir(dir)?.flatten().collect();
    files.sort_by_key(written);
    for file in files.iter().rev().skip(kept) {
        // Another run may remove the file at the same time.
        let _ = fs::remove_file(file.path());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_files_stay() {
        let dir = tempfile::tempdir().unwrap();
        for age in 0..4 {
            let file = fs::File::create(dir.path().join(age.to_string())).unwrap();
            let time = SystemTime::now() - std::time::Duration::from_secs((age + 1) * 60);
            file.set_modified(time).unwrap();
        }
        touch(&dir.path().join("3"));
        remove_oldest(dir.path(), 3).unwrap();
        let names = fs::read_dir(dir.path()).unwrap().flatten();
        let mut names: Vec<_> = names.map(|file| file.file_name()).collect();
        names.sort();
        assert_eq!(names, ["0", "1", "3"]);
    }
}
