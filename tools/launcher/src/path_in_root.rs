// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Paths within a root file system, resolved as a process with this root resolves them.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Maximum number of symbolic links in a path. The kernel has the same limit.
const LINKS: usize = 40;

/// The path on this system of `path` in the root file system `root`. Absolute symbolic links begin
/// at `root`, and `..` does not leave it. `None` for a loop of links. The file need not exist.
pub fn resolve(root: &Path, path: &Path) -> Option<PathBuf> {
    let mut rest: VecDeque<OsString> = names(path).collect();
    let mut resolved = Vec::new();
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            resolved.pop();
            continue;
        }
        resolved.push(name);
        let Ok(target) = fs::read_link(below(root, &resolved)) else {
            continue;
        };
        links += 1;
        if links > LINKS {
            return None;
        }
        if target.is_absolute() {
            resolved.clear();
        } else {
            resolved.pop();
        }
        for name in names(&target).collect::<Vec<_>>().into_iter().rev() {
            rest.push_front(name);
        }
    }
    Some(below(root, &resolved))
}

fn below(root: &Path, names: &[OsString]) -> PathBuf {
    root.components()
        .map(|component| component.as_os_str())
        .chain(names.iter().map(OsString::as_os_str))
        .collect()
}

/// The names of a path, `..` among them.
fn names(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_lead_to_places_of_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("usr/lib/sub")).unwrap();
        fs::write(root.join("usr/lib/file"), "").unwrap();
        symlink("/usr/lib", root.join("absolute")).unwrap();
        symlink("usr/lib", root.join("relative")).unwrap();
        symlink("../../../../usr/lib/file", root.join("usr/lib/sub/up")).unwrap();
        symlink("/absolute/sub/up", root.join("chain")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let file = Some(root.join("usr/lib/file"));
        for path in [
            "absolute/file",
            "/relative/./file",
            "usr/lib/sub/up",
            "chain",
            "../usr/lib/sub/../file",
        ] {
            assert_eq!(resolve(root, Path::new(path)), file, "{path}");
        }
        assert_eq!(
            resolve(root, Path::new("nothing/at/all")),
            Some(root.join("nothing/at/all"))
        );
        assert_eq!(resolve(root, Path::new("loop/file")), None);
    }
}
