// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The disk that keeps a guest's changes of its root.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::fs::{open, sync, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{mount, mount_remount, MountFlags};
use rustix::process::{fchdir, getpid, kill_process, wait, Pid, Signal, WaitOptions};

/// The guest's only disk.
const DEVICE: &str = "/dev/vda";
const KIND: &str = "ext4";
/// Number of attempts to make the disk read-only. Together they take less than the host's time
/// limit for the end of a guest.
const TRIES: usize = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// The disk, mounted.
pub struct Disk {
    /// A handle of the mount point, which has no path once the guest has changed its root.
    at: OwnedFd,
}

impl Disk {
    /// Mounts the disk. `modules` has the drivers, unless the kernel has them.
    pub fn mount(modules: Option<&Path>, at: &Path) -> Result<Self> {
        crate::modules::load(modules, &["virtio_blk", KIND])?;
        fs::create_dir_all(at)?;
        // With discard, the host's file shrinks when the guest deletes files.
        mount(DEVICE, at, KIND, MountFlags::empty(), c"discard")
            .with_context(|| format!("can't mount {DEVICE}"))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let at = open(at, flags, Mode::empty())?;
        Ok(Self { at })
    }

    /// Kills all other processes and remounts the disk read-only, so that its file system is clean.
    /// If this fails, writes all data to the disk; the next run recovers the file system from its
    /// journal.
    pub fn leave_clean(&self) {
        for _ in 0..TRIES {
            end_others();
            while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
            match self.make_read_only() {
                Err(Errno::BUSY) => thread::sleep(PAUSE),
                Ok(()) => return,
                Err(error) => {
                    eprintln!("init: can't unmount the disk: {error}");
                    break;
                }
            }
        }
        sync();
    }

    /// Remounts the disk read-only. The disk can't be unmounted, since this process's root is an
    /// overlay that uses it.
    fn make_read_only(&self) -> Result<(), Errno> {
        fchdir(&self.at)?;
        mount_remount(".", MountFlags::RDONLY, c"")
    }
}

fn end_others() {
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let number = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        if let Some(pid) = number
            .and_then(Pid::from_raw)
            .filter(|pid| *pid != getpid())
        {
            // Kernel threads ignore the signal.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}
