// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A file that is replaced as a whole: even if the writing process is killed, the file has either
//! its old or its new content.
//!
//! Another file beside it, which only its owner can open, is locked: a lock needs no more than an
//! open file, so every user could lock a folder or file that is readable for all.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::fs::{
    flock, fstat, fsync, openat, renameat, unlinkat, AtFlags, FileType, FlockOperation, Mode,
    OFlags,
};
use rustix::io::Errno;

use crate::broker::{Broker, Errand};
use crate::directory::{open_directory, Sticky};
use crate::{is_trusted, left, OTHERS_WRITE, PRIVATE};

/// Maximum length of the content in bytes.
pub(crate) const MAX_CONTENT: usize = 8 << 20;
/// Maximum number of attempts to lock the file, and the pause between two attempts. If a process is
/// killed, its broker ends a little later, and holds the lock until then.
const ATTEMPTS: u32 = 30;
const PAUSE: Duration = Duration::from_millis(100);

/// Mode bits of users other than the owner of a file.
const OTHERS: u32 = 0o077;

/// A file, and its folder. The file is locked against other processes.
#[derive(Debug)]
pub struct KeptFile {
    directory: OwnedFd,
    name: OsString,
    lock: OwnedFd,
    /// The errand to replace the file, if there is a broker. With a broker, the daemon itself may
    /// not replace the file.
    errand: Option<Errand>,
}

impl KeptFile {
    /// Locks the file `path`. Returns its content too, if it exists.
    ///
    /// # Errors
    ///
    /// Other users may replace the file, another process has locked it, or it can't be read.
    pub fn open(path: &Path) -> io::Result<(Self, Option<Vec<u8>>)> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let directory = open_directory(path, OFlags::RDONLY, Sticky::Refused);
        let directory = directory.map_err(io::Error::other)?;
        let lock = lock(&directory, name)?;
        let content = read(&directory, name)?;
        let file = Self {
            directory,
            name: name.to_owned(),
            lock,
            errand: None,
        };
        Ok((file, content))
    }

    /// Has `broker` replace the file from now on, and seals its list of errands. The broker holds
    /// the lock as well.
    ///
    /// # Errors
    ///
    /// The broker has ended, or could not be confined.
    pub fn replace_by(&mut self, broker: &Broker) -> io::Result<()> {
        let errand = Errand::replace(broker, self.directory.as_fd(), &self.name)?;
        broker.hold(self.lock.as_fd())?;
        broker.seal()?;
        self.errand = Some(errand);
        Ok(())
    }

    /// Replaces the content.
    ///
    /// # Errors
    ///
    /// The content can't be written, for example for lack of space. The file is as it was.
    pub fn replace(&self, content: &[u8]) -> io::Result<()> {
        match &self.errand {
            Some(errand) => errand.run_with(content),
            None => replace(&self.directory, &self.name, content, || {}),
        }
    }
}

/// Locks the file `name` in `directory`, by another file.
fn lock(directory: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    let beside = beside(name, ".lock");
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mode = Mode::from_raw_mode(PRIVATE);
    let file = openat(directory, &beside, flags | OFlags::CLOEXEC, mode)?;
    let stat = fstat(&file)?;
    if !is_trusted(stat.st_uid) || stat.st_mode & OTHERS != 0 {
        return Err(io::Error::other(format!(
            "others than root and the user of the daemon may open {}, and lock it; \
             take that from them (chmod 600, chown)",
            Path::new(&beside).display()
        )));
    }
    // The lock of the last engine, which may not have ended yet.
    let file = left::take_same(&file).unwrap_or(file);
    for _ in 0..ATTEMPTS {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => thread::sleep(PAUSE),
            done => return Ok(done.map(|()| file)?),
        }
    }
    let beside = Path::new(&beside).display();
    Err(io::Error::other(format!(
        "another process uses it, and has locked {beside}"
    )))
}

/// Name of a hidden file beside the file `name`.
fn beside(name: &OsStr, end: &str) -> OsString {
    let mut beside = OsString::from(".");
    beside.push(name);
    beside.push(end);
    beside
}

/// Reads the file `name`. `None` if it does not exist.
fn read(directory: &OwnedFd, name: &OsStr) -> io::Result<Option<Vec<u8>>> {
    // Without `NONBLOCK`, the open of a FIFO would wait for a writer.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(directory, name, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => return Err(io::Error::other("it is a symbolic link")),
        Err(error) => return Err(error.into()),
    };
    let stat = fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is not a regular file"));
    }
    if !is_trusted(stat.st_uid) || stat.st_mode & OTHERS_WRITE != 0 {
        return Err(io::Error::other(
            "others than root and the user of the daemon may write to it; \
             look at its content, and take that from them (chmod 600, chown)",
        ));
    }
    let mut content = Vec::new();
    let longest = MAX_CONTENT as u64;
    File::from(file)
        .take(longest + 1)
        .read_to_end(&mut content)?;
    if content.len() > MAX_CONTENT {
        return Err(Errno::FBIG.into());
    }
    Ok(Some(content))
}

/// Replaces the content of the file `name` in `directory`. Calls `step` before each system call
/// that changes a file.
pub(crate) fn replace(
    directory: &OwnedFd,
    name: &OsStr,
    content: &[u8],
    mut step: impl FnMut(),
) -> io::Result<()> {
    if content.len() > MAX_CONTENT {
        return Err(Errno::FBIG.into());
    }
    let temporary = beside(name, ".new");
    let remove = || unlinkat(directory, &temporary, AtFlags::empty());
    step();
    // A killed process may have left its temporary file.
    match remove() {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let mut exchange = || {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        step();
        let file = openat(directory, &temporary, flags, Mode::from_raw_mode(PRIVATE))?;
        let mut rest = content;
        while !rest.is_empty() {
            step();
            match rustix::io::write(&file, rest) {
                Ok(written) => rest = &rest[written..],
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        step();
        fsync(&file)?;
        step();
        renameat(directory, &temporary, directory, name)
    };
    if let Err(error) = exchange() {
        // An error of the removal is ignored: the caller needs the first error.
        let _ = remove();
        return Err(error.into());
    }
    step();
    // Makes the new name durable.
    Ok(fsync(directory)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;
    use std::fs;
    use std::os::unix::fs::{chown, symlink, PermissionsExt};
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use rustix::process::{getpid, kill_process, Signal};

    const OLD: &[u8] = b"old content";
    const NEW: &[u8] = b"new";

    /// Environment variables of a process that replaces a file and is killed before a step: the
    /// file's folder, and the number of the step.
    const FOLDER: &str = "KEPT_FILE_FOLDER";
    const STEP: &str = "KEPT_FILE_STEP";

    #[test]
    fn a_file_is_made_and_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let (file, content) = KeptFile::open(&path).unwrap();
        assert_eq!(content, None);
        for content in [OLD, NEW, b""] {
            file.replace(content).unwrap();
            assert_eq!(fs::read(&path).unwrap(), content);
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o600);
        }
        let long = vec![b'x'; MAX_CONTENT + 1];
        assert!(file.replace(&long).is_err());
        // The file and its lock.
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        file.replace(NEW).unwrap();
        drop(file);
        fs::write(&path, &long).unwrap();
        let error = KeptFile::open(&path).unwrap_err();
        assert!(error.to_string().contains("too large"), "{error}");
        fs::write(&path, NEW).unwrap();
        let (_, content) = KeptFile::open(&path).unwrap();
        assert_eq!(content.as_deref(), Some(NEW));
    }

    #[test]
    fn two_processes_do_not_keep_one_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let (_file, _) = KeptFile::open(&path).unwrap();
        let error = KeptFile::open(&path).unwrap_err();
        assert!(error.to_string().contains("has locked"), "{error}");
        KeptFile::open(&dir.path().join("other")).unwrap();
    }

    /// A user who may open the folder or the file for reading can lock these, but not the file that
    /// counts.
    #[test]
    fn readers_of_the_folder_lock_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        fs::write(&path, OLD).unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let locked = [dir.path(), &path].map(|path| {
            let file = File::open(path).unwrap();
            flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
            file
        });
        let (file, content) = KeptFile::open(&path).unwrap();
        assert_eq!(content.as_deref(), Some(OLD));
        let lock = dir.path().join(".state.lock");
        let mode = fs::metadata(&lock).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        drop((file, locked));
        fs::set_permissions(&lock, fs::Permissions::from_mode(0o640)).unwrap();
        let error = KeptFile::open(&path).unwrap_err();
        assert!(error.to_string().contains(".state.lock"), "{error}");
    }

    #[test]
    fn what_others_may_replace_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let refused = |name: &str, complaint: &str| {
            let error = KeptFile::open(&at(name)).unwrap_err();
            assert!(error.to_string().contains(complaint), "{error}");
        };
        fs::write(at("state"), OLD).unwrap();
        symlink("state", at("link")).unwrap();
        refused("link", "symbolic link");
        fs::create_dir(at("folder")).unwrap();
        refused("folder", "not a regular file");
        // The FIFO has no writer, so opening it for reading must not block.
        mkfifo(&at("pipe"));
        refused("pipe", "not a regular file");
        let set = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        set(&at("state"), 0o620);
        refused("state", "may write to it");
        set(&at("state"), 0o600);
        set(dir.path(), 0o770);
        refused("state", "may write to");
        set(dir.path(), 0o700);
        KeptFile::open(&at("state")).unwrap();
    }

    fn mkfifo(path: &Path) {
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, mode, 0).unwrap();
    }

    /// This test must run as root, or by tools/dev/enter, because it changes the owner of
    /// files.
    #[test]
    fn the_file_of_another_user_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for (name, file) in [("state", "state"), ("locked", ".locked.lock")] {
            fs::write(at(file), OLD).unwrap();
            fs::set_permissions(at(file), fs::Permissions::from_mode(0o600)).unwrap();
            KeptFile::open(&at(name)).unwrap();
            chown(at(file), Some(1), None).unwrap();
            let error = KeptFile::open(&at(name)).unwrap_err();
            assert!(error.to_string().contains("chown"), "{error}");
        }
    }

    /// Replaces the file in a process of its own, which is killed before each of the steps.
    #[test]
    fn a_killed_writer_leaves_the_old_or_the_new_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let mut contents = Vec::new();
        for step in 1.. {
            fs::write(&path, OLD).unwrap();
            let status = Command::new(env::current_exe().unwrap())
                .args(["kept_file::tests::replaces", "--exact", "--ignored"])
                .env(FOLDER, dir.path())
                .env(STEP, step.to_string())
                .status()
                .unwrap();
            contents.push(fs::read(&path).unwrap());
            if status.success() {
                break;
            }
            assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "{status}");
        }
        // The processes are killed before the removal of the temporary file, open, write, sync,
        // rename, and sync of the folder. The last process is not killed.
        assert_eq!(contents, [OLD, OLD, OLD, OLD, OLD, NEW, NEW]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    #[ignore = "kills its process"]
    fn replaces() {
        let folder = env::var_os(FOLDER).unwrap();
        let path = Path::new(&folder).join("state");
        let directory = open_directory(&path, OFlags::RDONLY, Sticky::Refused).unwrap();
        let mut left: u32 = env::var(STEP).unwrap().parse().unwrap();
        let step = || {
            left -= 1;
            if left == 0 {
                kill_process(getpid(), Signal::KILL).unwrap();
            }
        };
        replace(&directory, OsStr::new("state"), NEW, step).unwrap();
    }
}
