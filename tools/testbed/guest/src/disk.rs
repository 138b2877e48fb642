// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The disk that keeps what a guest changes in its root.

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
/// How often the end of all users of the disk is awaited, within the time that the host gives.
const TRIES: usize = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// The disk, mounted.
pub struct Disk {
    /// The directory where it is mounted: paths no longer lead there when the guest has its root.
    at: OwnedFd,
}

impl Disk {
    /// Mounts the disk. `modules` has the drivers.
    pub fn mount(modules: &Path, at: &Path) -> Result<Self> {
        crate::modules::load(modules, &["virtio_blk".into(), KIND.into()])?;
        fs::create_dir_all(at)?;
        // The host's file shrinks when the guest deletes.
        mount(DEVICE, at, KIND, MountFlags::empty(), c"discard")
            .with_context(|| format!("can't mount {DEVICE}"))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let at = open(at, flags, Mode::empty())?;
        Ok(Self { at })
    }

    /// Ends all other processes and leaves the file system clean. If something still writes, all
    /// is written and the journal says so to the next run.
    pub fn settle(&self) {
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

    /// The overlay, which is the root of this process, can't be unmounted.
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
            // Threads of the kernel don't care.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}
