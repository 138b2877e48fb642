// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Directories that no other user can replace.
//!
//! A file is at its path for every process only if no other user can rename or replace a directory
//! or a symbolic link on the way there. So each of them must belong to root or to the user of this
//! process, and only its owner may write to it. Other users may write to a sticky directory on the
//! way: only the owner of a file can rename it there.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{self, Component, Path, PathBuf};

use rustix::fs::{fstat, open, openat, readlinkat, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::{is_trusted, OTHERS_WRITE};

/// Mode bit of a directory in which only the owner of a file may remove or rename it.
const STICKY: u32 = 0o1000;
/// Maximum number of symbolic links on a path, like that of the kernel.
const MAX_LINKS: u32 = 40;

/// Why a directory can't be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Other users may write to the directory, so they could replace files in it.
    #[error(
        "others than the owner may write to {0}; \
         take that from them (chmod go-w) or use a directory of your own (mode 0700)"
    )]
    Exposed(PathBuf),
    /// Other users may create files in the directory.
    #[error(
        "others than the owner may create files in {0}, so they could take the name first; \
         use a directory of your own (mode 0700)"
    )]
    Shared(PathBuf),
    /// Another user owns the directory or the symbolic link, so this user could replace it or files
    /// in it.
    #[error(
        "{path} belongs to user {owner}, who could replace it or files there; \
         use a directory of your own (mode 0700)"
    )]
    Foreign {
        /// The directory or symbolic link.
        path: PathBuf,
        owner: u32,
    },
    /// The directory can't be opened.
    #[error("can't open the directory {0}: {1}")]
    Io(PathBuf, io::Error),
}

/// Whether other users may create files in a directory, if it is sticky.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sticky {
    Accepted,
    Refused,
}

/// Opens the directory of the file `path` with these flags. Fails if another user can replace a
/// directory or symbolic link on the way, or a file in the directory. `sticky` concerns the
/// directory itself.
pub(crate) fn open_directory(
    path: &Path,
    flags: OFlags,
    sticky: Sticky,
) -> Result<OwnedFd, DirectoryError> {
    let parent = path.parent().unwrap_or(Path::new(""));
    let failure = |at: &Path| {
        let at = at.to_owned();
        |error: io::Error| DirectoryError::Io(at, error)
    };
    let absolute = match parent.as_os_str().is_empty() {
        true => path::absolute("."),
        false => path::absolute(parent),
    };
    let absolute = absolute.map_err(failure(parent))?;
    let mut at = PathBuf::from("/");
    let mut names = names(&absolute);
    let mut links = 0;
    let access = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = || open("/", access | OFlags::DIRECTORY, Mode::empty());
    let mut directory = root().map_err(|error| failure(&at)(error.into()))?;
    let mut stat = look(&directory, &at)?;
    loop {
        check(
            &stat,
            &at,
            if names.is_empty() {
                sticky
            } else {
                Sticky::Accepted
            },
        )?;
        let Some(name) = names.pop_front() else {
            break;
        };
        let failure = |error: Errno| DirectoryError::Io(parent.to_owned(), error.into());
        let next = openat(&directory, &name, access, Mode::empty()).map_err(failure)?;
        let place = match name == ".." {
            true => at.parent().unwrap_or(Path::new("/")).to_owned(),
            false => at.join(&name),
        };
        let found = look(&next, &place)?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => (directory, stat, at) = (next, found, place),
            FileType::Symlink => {
                check_owner(&found, &place)?;
                links += 1;
                if links > MAX_LINKS {
                    return Err(failure(Errno::LOOP));
                }
                let target = readlinkat(&next, "", Vec::new()).map_err(failure)?;
                let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                if target.is_absolute() {
                    at = "/".into();
                    directory = root().map_err(failure)?;
                    stat = look(&directory, &at)?;
                }
                for name in self::names(&target).into_iter().rev() {
                    names.push_front(name);
                }
            }
            _ => return Err(failure(Errno::NOTDIR)),
        }
    }
    let flags = flags | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(&directory, ".", flags, Mode::empty()).map_err(|error| failure(&at)(error.into()))
}

/// The names in a path: `..` is one, `.` and the root are not.
fn names(path: &Path) -> VecDeque<OsString> {
    let name = |component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsStr::from_bytes(b"..").to_owned()),
        _ => None,
    };
    path.components().filter_map(name).collect()
}

fn look(file: &OwnedFd, at: &Path) -> Result<Stat, DirectoryError> {
    fstat(file).map_err(|error| DirectoryError::Io(at.to_owned(), error.into()))
}

fn check(stat: &Stat, at: &Path, sticky: Sticky) -> Result<(), DirectoryError> {
    check_owner(stat, at)?;
    if stat.st_mode & OTHERS_WRITE == 0 {
        return Ok(());
    }
    match (stat.st_mode & STICKY != 0, sticky) {
        (true, Sticky::Accepted) => Ok(()),
        (true, Sticky::Refused) => Err(DirectoryError::Shared(at.to_owned())),
        (false, _) => Err(DirectoryError::Exposed(at.to_owned())),
    }
}

fn check_owner(stat: &Stat, at: &Path) -> Result<(), DirectoryError> {
    match is_trusted(stat.st_uid) {
        true => Ok(()),
        false => Err(DirectoryError::Foreign {
            path: at.to_owned(),
            owner: stat.st_uid,
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{lchown, symlink, MetadataExt, PermissionsExt};

    use super::*;

    fn opened(path: &Path) -> Result<(u64, u64), DirectoryError> {
        let directory = open_directory(&path.join("file"), OFlags::PATH, Sticky::Refused)?;
        let stat = fstat(directory).unwrap();
        Ok((stat.st_dev, stat.st_ino))
    }

    fn refused(path: &Path, complaint: &str) {
        let error = opened(path).unwrap_err().to_string();
        assert!(error.contains(complaint), "{error}");
    }

    fn is_found(path: &Path, expected: &Path) {
        let stat = fs::metadata(expected).unwrap();
        assert_eq!(opened(path).unwrap(), (stat.dev(), stat.ino()));
    }

    /// This test must run as root, or by tools/dev/enter, because it changes the owner of
    /// files.
    #[test]
    fn each_directory_and_link_on_the_way_is_checked() {
        let top = tempfile::tempdir().unwrap();
        let at = |name: &str| top.path().join(name);
        fs::create_dir_all(at("theirs/ours")).unwrap();
        fs::create_dir_all(at("ours/deep")).unwrap();
        lchown(at("theirs"), Some(1), None).unwrap();
        let theirs = format!("{} belongs to user 1", at("theirs").display());
        refused(&at("theirs/ours"), &theirs);
        is_found(&at("ours/deep"), &at("ours/deep"));
        is_found(&at("ours/../ours/./deep"), &at("ours/deep"));
        refused(&at("theirs/../ours"), &theirs);

        // Links of root, absolute and relative, and what they lead through.
        symlink(at("ours"), at("absolute")).unwrap();
        symlink("../ours/deep", at("ours/relative")).unwrap();
        symlink("theirs/link", at("around")).unwrap();
        symlink(at("ours"), at("theirs/link")).unwrap();
        is_found(&at("absolute/deep"), &at("ours/deep"));
        is_found(&at("absolute/relative"), &at("ours/deep"));
        refused(&at("around"), &theirs);
        symlink("loop", at("loop")).unwrap();
        refused(&at("loop"), "Too many levels");
        fs::write(at("file"), "").unwrap();
        refused(&at("file"), "Not a directory");

        // A link of another user in a sticky directory.
        fs::create_dir(at("sticky")).unwrap();
        fs::set_permissions(at("sticky"), Permissions::from_mode(0o1777)).unwrap();
        fs::create_dir(at("sticky/ours")).unwrap();
        symlink(at("ours"), at("sticky/link")).unwrap();
        lchown(at("sticky/link"), Some(1), None).unwrap();
        is_found(&at("sticky/ours"), &at("sticky/ours"));
        refused(&at("sticky/link"), "belongs to user 1");
        refused(&at("sticky"), "could take the name first");
        fs::set_permissions(at("sticky"), Permissions::from_mode(0o777)).unwrap();
        refused(&at("sticky/ours"), "may write to");
    }
}
