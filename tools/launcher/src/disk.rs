// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The disk with a guest's changes of its root: a disk image that belongs to the caller.
//!
//! A directory of the host can't be used instead: overlayfs needs attributes and modes that only
//! root can set on files of the host.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};
use rustix::fs::{flock, FlockOperation};
use rustix::io::Errno;

use crate::install::Program;
use crate::vm::value;

/// The size of a disk. The file is sparse: it has only the blocks that the guest has written.
const SIZE: &str = "16G";
/// The offset of ext4's magic number, and the number.
const MARK: (u64, [u8; 2]) = (0x438, [0x53, 0xef]);

/// A disk, locked against other runs.
#[derive(Debug)]
pub struct Disk {
    file: PathBuf,
    locked: File,
}

impl Disk {
    /// Locks the disk of guest `number` in a directory. Creates the disk if it does not exist.
    pub fn open(mke2fs: &Program, dir: &Path, number: usize) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("can't make {}", dir.display()))?;
        let file = dir.join(format!("vm{number}.img"));
        let disk = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&file)
            .with_context(|| format!("--overlay: can't open {}", file.display()))?;
        match flock(&disk, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => bail!(
                "--overlay: another run uses {}: wait for its end, or give another directory",
                file.display()
            ),
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("--overlay: can't lock {}", file.display()))
            }
        }
        if disk.metadata()?.len() == 0 {
            format(mke2fs, &file)
                .with_context(|| format!("--overlay: no file system on {}", file.display()))?;
        } else if !is_formatted(&disk) {
            bail!(
                "--overlay: {} is not a disk of an earlier run, or was never finished: remove it, \
                 or give another directory",
                file.display()
            );
        }
        Ok(Self { file, locked: disk })
    }

    /// QEMU's arguments for the disk.
    pub fn arguments(&self) -> [String; 4] {
        // QEMU's own lock of the file could conflict with this program's.
        let file = format!(
            "if=none,id=disk,format=raw,discard=unmap,file.locking=off,file={}",
            value(&self.file)
        );
        ["-drive", &file, "-device", "virtio-blk-pci,drive=disk"].map(str::to_owned)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Closing the file would not end the lock while a process that was just started has a copy
        // of the descriptor. An error leaves the lock to the last copy.
        let _ = flock(&self.locked, FlockOperation::Unlock);
    }
}

fn format(mke2fs: &Program, file: &Path) -> Result<()> {
    let output = mke2fs
        .command()?
        // The system's mke2fs.conf may enable features that the guest's kernel lacks. Without the
        // file, mke2fs uses built-in defaults.
        .env("MKE2FS_CONFIG", "/nonexistent")
        .args(["-q", "-F", "-t", "ext4", "-m", "0"])
        .args(["-E", "assume_storage_prezeroed=1"])
        .arg(file)
        .arg(SIZE)
        .output()
        .context("can't start mke2fs")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("mke2fs: {}: {}", output.status, said.trim());
    }
    Ok(())
}

fn is_formatted(disk: &File) -> bool {
    let (at, mark) = MARK;
    let mut found = [0; 2];
    disk.read_exact_at(&mut found, at).is_ok() && found == mark
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that is removed on drop.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let name = format!("disk.{name}.{}", std::process::id());
            let dir = std::env::temp_dir().join(name);
            fs::create_dir(&dir).unwrap();
            Self(dir)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn put(dir: &Dir, content: &[u8]) -> Program {
        fs::write(dir.0.join("vm1.img"), content).unwrap();
        // The test fails if this program is started.
        Program::new("/none")
    }

    #[test]
    fn a_disk_has_one_user() {
        let dir = Dir::new("user");
        let mut content = vec![0; 0x440];
        content[0x438..0x43a].copy_from_slice(&MARK.1);
        let mke2fs = put(&dir, &content);
        let disk = Disk::open(&mke2fs, &dir.0, 1).unwrap();
        let error = Disk::open(&mke2fs, &dir.0, 1).unwrap_err().to_string();
        assert!(error.contains("another run uses"), "{error}");
        // A process that another thread starts has copies of all descriptors until it executes its
        // program.
        let _copy = disk.locked.try_clone().unwrap();
        drop(disk);
        Disk::open(&mke2fs, &dir.0, 1).unwrap();
    }

    #[test]
    fn other_files_are_left_alone() {
        let dir = Dir::new("other");
        let mke2fs = put(&dir, b"my own image");
        let error = Disk::open(&mke2fs, &dir.0, 1).unwrap_err().to_string();
        assert!(error.contains("not a disk of an earlier run"), "{error}");
        assert_eq!(fs::read(dir.0.join("vm1.img")).unwrap(), b"my own image");
    }
}
