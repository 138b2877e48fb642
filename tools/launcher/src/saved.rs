// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A guest whose kernel has started and that has no devices and no description yet, saved in a
//! file. Guests that are restored from it start in a fraction of the time that an emulated kernel
//! takes.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use guest::needs;
use guest::proto::{Frame, Kind};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{access, statvfs, Access};
use serde_json::json;

use crate::accel::Accel;
use crate::bed::Limits;
use crate::cache;
use crate::initramfs;
use crate::kernel::{module_files, KernelOptions};
use crate::qmp::Qmp;
use crate::reaper::ReapedChild;
use crate::run_dirs::RunDirs;
use crate::untrusted::{end, printable};
use crate::vm::{connections, files_of, machine, Shape, END_TIMEOUT};

/// Interval at which a wait checks the limits of the run.
const POLL: Duration = Duration::from_millis(20);
/// Time after which a guest that is to be saved or restored has failed, unless it is up. A busy
/// host needs less.
pub const LIMIT: Duration = Duration::from_secs(100);
/// Number of saved guests that later runs find.
const KEPT: usize = 4;
/// Space that the file of a guest needs besides the guest's memory, in MiB.
const ROOM: u64 = 1024;
/// The greatest difference of the time stamp counter's rate to that of the saved guest, as a
/// fraction: the error of its measurements. A restored guest counts time by the saved rate.
const DRIFT: u64 = 1000;

/// A guest that can be restored.
#[derive(Clone, Debug)]
pub struct SavedGuest {
    file: PathBuf,
    /// The rate of the time stamp counter in kHz, in the guest's command line.
    pub tsc_khz: u64,
}

impl SavedGuest {
    /// The saved guest for guests of a shape, which is made if there is none. `None` if guests of
    /// this shape can't be restored.
    pub fn of(
        dirs: &RunDirs,
        shape: &Shape,
        tsc_khz: Option<u64>,
        limits: &Limits,
    ) -> Result<Option<Self>> {
        let fits =
            shape.accel == Accel::Tcg && shape.options == KernelOptions::default() && !shape.rng;
        let cache = shape.install.cache("guests").filter(|_| fits);
        let (Some(cache), Some(tsc_khz)) = (cache, tsc_khz) else {
            return Ok(None);
        };
        let modules = modules(shape)?;
        let identity = identity(shape, &modules)?;
        if let Some(found) = find(&cache, &identity, tsc_khz) {
            cache::touch(&found.file);
            return Ok(Some(found));
        }
        if !has_room(&cache, shape.mem) {
            return Ok(None);
        }
        // The name of the run's directory is unique.
        let partial = cache.join(dirs.run().file_name().unwrap_or_default());
        let file = cache.join(format!("{identity}-{tsc_khz}"));
        let made = save(dirs, shape, (tsc_khz, &modules), &partial, limits)
            .and_then(|()| Ok(fs::rename(&partial, &file)?));
        if made.is_err() {
            // It may not exist.
            let _ = fs::remove_file(&partial);
        }
        cache::remove_oldest(&cache, KEPT)?;
        made.map(|()| Some(Self { file, tsc_khz }))
    }

    /// QEMU's arguments that restore it.
    pub fn arguments(&self) -> [String; 4] {
        [
            "-global".into(),
            "migration.mapped-ram=on".into(),
            "-incoming".into(),
            // An address, in which a comma is not doubled.
            format!("file:{}", self.file.display()),
        ]
    }

    /// Removes it from the cache.
    pub fn forget(&self) {
        // Another run may have removed it at the same time.
        let _ = fs::remove_file(&self.file);
    }
}

/// Whether a guest with `mem` MiB of memory can be saved in a directory, which may not exist.
fn has_room(dir: &Path, mem: u32) -> bool {
    let is_there = fs::create_dir_all(dir).is_ok() && access(dir, Access::WRITE_OK).is_ok();
    let free = statvfs(dir).map_or(0, |free| free.f_bavail.saturating_mul(free.f_frsize) >> 20);
    is_there && free >= u64::from(mem) + ROOM
}

/// The saved guest of an identity whose time stamp counter runs at the present rate.
fn find(cache: &Path, identity: &str, tsc_khz: u64) -> Option<SavedGuest> {
    fs::read_dir(cache).ok()?.flatten().find_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let (of, rate) = name.split_once('-')?;
        let rate: u64 = rate.parse().ok()?;
        let fits = of == identity && rate.abs_diff(tsc_khz) <= rate / DRIFT;
        fits.then(|| SavedGuest {
            file: entry.path(),
            tsc_khz: rate,
        })
    })
}

/// A hash of all that a saved guest depends on, except for the rate of the time stamp counter.
fn identity(shape: &Shape, modules: &[PathBuf]) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    let command = machine(shape)?;
    for word in command.get_args() {
        // The first argument of a child is this process's number.
        if word.to_string_lossy() != std::process::id().to_string() {
            word.hash(&mut hasher);
        }
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let qemu = shape.install.qemu.words().iter().flat_map(|word| {
        let in_path = env::split_paths(&path).map(|dir| dir.join(word));
        in_path.chain([PathBuf::from(word)]).collect::<Vec<_>>()
    });
    let ours = [&shape.install.guest, &shape.install.kernel.image].map(Clone::clone);
    for file in qemu.chain(ours).chain(modules.iter().cloned()) {
        if let Ok(of) = fs::metadata(&file) {
            (of.dev(), of.ino(), of.len(), of.mtime(), of.mtime_nsec()).hash(&mut hasher);
        }
    }
    Ok(format!("{:016x}", hasher.finish()))
}

/// The modules that all guests load, each after those that it depends on.
fn modules(shape: &Shape) -> Result<Vec<PathBuf>> {
    let kernel = &shape.install.kernel;
    let Some(tree) = &kernel.modules else {
        return Ok(Vec::new());
    };
    let mut files = module_files(tree, &needs::modules(&["vm", "device"]))?;
    if shape.all_have_device {
        files.extend(kernel.driver.clone());
    }
    Ok(files)
}

/// Starts a guest without devices and saves it to a file when it waits for its description.
fn save(
    dirs: &RunDirs,
    shape: &Shape,
    (tsc_khz, modules): (u64, &[PathBuf]),
    to: &Path,
    limits: &Limits,
) -> Result<()> {
    let program = &shape.install.guest;
    let init = fs::read(program).with_context(|| format!("can't read {}", program.display()))?;
    let files = files_of(modules)?;
    let initramfs = dirs.run().join("saved.initramfs");
    let mut archive = Vec::new();
    initramfs::write(&mut archive, &init, &files)?;
    fs::write(&initramfs, archive)
        .with_context(|| format!("can't write {}", initramfs.display()))?;
    // QEMU writes to this file. The state of the kernel's random numbers is not for other users.
    fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(to)
        .with_context(|| format!("can't create {}", to.display()))?;

    let (mut link, port) = UnixStream::pair()?;
    let (qmp, monitor) = UnixStream::pair()?;
    let mut command = machine(shape)?;
    let console = dirs.logs.join("saved.console");
    command
        .args(connections(shape, &port, &console, Some(tsc_khz)))
        .arg("-chardev")
        .arg(format!("socket,id=qmp,fd={}", monitor.as_raw_fd()))
        .args(["-mon", "chardev=qmp,mode=control", "-initrd"])
        .arg(&initramfs);
    let files = [port.as_fd(), monitor.as_fd()];
    let log = dirs.logs.join("saved.qemu");
    let mut vm = ReapedChild::spawn_with(&mut command, &log, &files)?;
    // The links end with QEMU.
    drop((port, monitor));

    let wait = Timespec {
        tv_sec: 0,
        tv_nsec: 100_000_000,
    };
    let began = Instant::now();
    while poll(&mut [PollFd::new(&link, PollFlags::IN)], Some(&wait))? == 0 {
        limits.check()?;
        if began.elapsed() > LIMIT {
            bail!(
                "a VM does not start:\n{}{}",
                printable(&end(&log)),
                printable(&end(&console))
            );
        }
    }
    let hello = Frame::read(&mut link);
    if !hello.is_ok_and(|frame| frame.kind == Kind::Hello) {
        bail!(
            "a VM has ended:\n{}{}",
            printable(&end(&log)),
            printable(&end(&console))
        );
    }
    let mut qmp = Qmp::new(qmp)?;
    let capability = json!({"capability": "mapped-ram", "state": true});
    qmp.execute(
        "migrate-set-capabilities",
        json!({"capabilities": [capability]}),
    )?;
    qmp.execute("migrate", json!({"uri": format!("file:{}", to.display())}))?;
    loop {
        let state = qmp.execute("query-migrate", json!({}))?;
        match state["status"].as_str() {
            Some("completed") => break,
            Some("failed" | "cancelled") => bail!("QEMU can't save the guest: {state}"),
            _ => limits.check()?,
        }
        thread::sleep(POLL);
    }
    qmp.execute("quit", json!({}))?;
    vm.ends_within(END_TIMEOUT);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_guest_fits_the_present_rate() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["aa-2000000", "ab-1000000", "aa", "virtio-rdma.0011"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let rate = |identity: &str, rate| Some(find(dir.path(), identity, rate)?.tsc_khz);
        assert_eq!(rate("aa", 2_000_000), Some(2_000_000));
        assert_eq!(rate("aa", 2_001_999), Some(2_000_000));
        assert_eq!(rate("aa", 2_002_001), None);
        assert_eq!(rate("aa", 1_997_999), None);
        assert_eq!(rate("ab", 2_000_000), None);
        assert_eq!(rate("virtio", 1), None);
        find(dir.path(), "ab", 1_000_000).unwrap().forget();
        assert_eq!(rate("ab", 1_000_000), None);
    }
}
