// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Process 1 of a guest: mounts an overlay over the root that the host shares, starts the agent in
//! this root, and ends the guest when the agent ends.

use std::ffi::{CStr, CString};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{symlink, DirBuilderExt};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use guest::needs::option_of;
use guest::setup::{relative, Setup, Share, ROOT};
use guest::{EARLY_MODULES, HOME, PROGRAM, SETUP};
use rustix::mount::{mount, mount_bind, mount_move, MountFlags};
use rustix::process::{chdir, chroot, setrlimit, wait, Pid, Resource, Rlimit, WaitOptions};

use crate::disk::Disk;
use crate::{marks, modules, restored};

/// Directory where shares are mounted until the root is ready.
const SHARES: &str = "/shares";
/// Mount point of the file system with the changes of the root.
const LAYERS: &str = "/layers";
/// Mount point of the new root.
const NEW_ROOT: &str = "/new";
/// The I/O port of QEMU's isa-debug-exit device. A write to this port ends QEMU, and thus the
/// guest, at once and without ACPI.
const EXIT_PORT: u64 = 0xf4;
/// Soft and hard limit of a process's open files: systemd's defaults.
const FILES: (u64, u64) = (1024, 524_288);

/// Runs as process 1. Never returns, since process 1 must not end.
pub fn run() -> ! {
    if let Err(error) = start() {
        eprintln!("init: {error:#}");
    }
    power_off();
    loop {
        thread::sleep(Duration::from_secs(60));
    }
}

fn power_off() {
    let port = OpenOptions::new().write(true).open("/dev/port");
    let written = port.and_then(|mut port| {
        port.seek(SeekFrom::Start(EXIT_PORT))?;
        port.write_all(&[1])
    });
    if let Err(error) = written {
        eprintln!("init: can't end the guest: {error}");
    }
}

fn start() -> Result<()> {
    let mut marks = marks::line("kernel");
    file_system("proc", Path::new("/proc"), "")?;
    file_system("devtmpfs", Path::new("/dev"), "")?;
    let setup: Setup = if Path::new(SETUP).exists() {
        let text = fs::read_to_string(SETUP).with_context(|| format!("can't read {SETUP}"))?;
        serde_json::from_str(&text).with_context(|| SETUP.to_owned())?
    } else {
        file_system("sysfs", Path::new("/sys"), "")?;
        let (setup, phases) = restored::await_setup()?;
        marks = phases;
        setup
    };

    for module in &setup.early_modules {
        modules::insert(&Path::new(EARLY_MODULES).join(module))?;
    }
    for share in &setup.shares {
        mount_share(share)?;
    }
    marks += &marks::line("virtiofs");
    let modules = setup.modules.as_ref().map(|place| {
        let share = Path::new(SHARES).join(&place.share);
        share.join(relative(&place.path))
    });
    modules::load(modules.as_deref(), &["overlay"])?;
    let layers = Path::new(LAYERS);
    let disk = if setup.disk {
        Some(Disk::mount(modules.as_deref(), layers)?)
    } else {
        file_system("tmpfs", layers, "mode=755")?;
        None
    };
    lay_overlay(layers)?;
    fill_root(&setup)?;
    keep_program(&serde_json::to_string(&setup)?)?;
    enter_root()?;
    marks += &marks::line("root");
    marks::write(&marks)?;

    // RDMA pins memory, for which the default limit is too small.
    limit(Resource::Memlock, None, None)?;
    limit(Resource::Nofile, Some(FILES.0), Some(FILES.1))?;
    limit(Resource::Core, Some(0), Some(0))?;
    let ended = run_agent(&setup);
    if let Some(disk) = disk {
        disk.leave_clean();
    }
    ended
}

fn limit(resource: Resource, current: Option<u64>, maximum: Option<u64>) -> Result<()> {
    setrlimit(resource, Rlimit { current, maximum }).context("can't set a limit")
}

fn file_system(kind: &str, at: &Path, options: &str) -> Result<()> {
    if !at.is_dir() {
        fs::create_dir_all(at).with_context(|| format!("can't make {}", at.display()))?;
    }
    let data = CString::new(options)?;
    mount(kind, at, kind, MountFlags::empty(), data.as_c_str())
        .with_context(|| format!("can't mount {kind} on {}{}", at.display(), lacking(kind)))
}

/// The remark that the kernel may lack a file system, if it does.
fn lacking(kind: &str) -> String {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let is_known = known
        .lines()
        .any(|line| line.ends_with(&format!("\t{kind}")));
    match option_of(kind) {
        Some(option) if !is_known => format!(": the kernel lacks it, {option} is not set"),
        _ => String::new(),
    }
}

fn mount_share(share: &Share) -> Result<()> {
    let at = Path::new(SHARES).join(&share.tag);
    fs::create_dir_all(&at)?;
    let flags = if share.writable {
        MountFlags::empty()
    } else {
        MountFlags::RDONLY
    };
    mount(&share.tag, &at, "virtiofs", flags, None::<&CStr>)
        .with_context(|| format!("can't mount the share {}{}", share.tag, lacking("virtiofs")))
}

/// Mounts the new root: an overlay whose changes are stored in the file system at `layers`.
fn lay_overlay(layers: &Path) -> Result<()> {
    let (upper, work) = (layers.join("upper"), layers.join("work"));
    for dir in [&upper, &work] {
        fs::create_dir_all(dir)?;
    }
    let options = format!(
        "lowerdir={SHARES}/{ROOT},upperdir={},workdir={}",
        upper.display(),
        work.display()
    );
    file_system("overlay", Path::new(NEW_ROOT), &options)
}

/// Mounts the kernel's file systems and the shares in the new root.
fn fill_root(setup: &Setup) -> Result<()> {
    let root = Path::new(NEW_ROOT);
    for (kind, at, options) in [
        ("proc", "proc", ""),
        ("sysfs", "sys", ""),
        ("devtmpfs", "dev", ""),
        ("devpts", "dev/pts", "ptmxmode=666,mode=620,gid=5"),
        ("tmpfs", "dev/shm", "mode=1777"),
        ("tmpfs", "run", "mode=755"),
    ] {
        file_system(kind, &root.join(at), options)?;
    }
    // A kernel that lacks one of these has no directory for it.
    for (kind, at) in [
        ("tracefs", "sys/kernel/tracing"),
        ("debugfs", "sys/kernel/debug"),
    ] {
        let at = root.join(at);
        if at.is_dir() {
            file_system(kind, &at, "")?;
        }
    }
    for at in &setup.empty {
        file_system("tmpfs", &root.join(relative(at)), "mode=1777")?;
    }
    for (link, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        symlink(target, root.join("dev").join(link))?;
    }
    for share in setup.shares.iter().filter(|share| share.tag != ROOT) {
        let at = root.join(relative(&share.at));
        DirBuilder::new().recursive(true).mode(0o755).create(&at)?;
        mount_move(Path::new(SHARES).join(&share.tag), &at)
            .with_context(|| format!("can't move the share {}", share.tag))?;
    }
    Ok(())
}

/// Puts this program and its setup into the new root. The program is not copied: an emulated
/// processor would have to translate the copy's code again.
fn keep_program(setup: &str) -> Result<()> {
    let inside = |path: &str| Path::new(NEW_ROOT).join(relative(Path::new(path)));
    fs::create_dir_all(inside(HOME))?;
    fs::write(inside(PROGRAM), "")?;
    mount_bind("/init", inside(PROGRAM)).context("can't mount /init")?;
    fs::write(inside(SETUP), setup)?;
    let on = inside("/usr/bin/on");
    if let Some(dir) = on.parent() {
        fs::create_dir_all(dir)?;
    }
    // The link may exist already: a disk keeps the root's changes from run to run.
    let _ = fs::remove_file(&on);
    symlink(PROGRAM, &on).context("can't link on")
}

/// Makes the new root the root of this process. The initramfs and its mounts remain, hidden, since
/// pivot_root can't replace an initramfs.
fn enter_root() -> Result<()> {
    chdir(NEW_ROOT)?;
    mount_move(".", "/")?;
    chroot(".")?;
    chdir("/")?;
    Ok(())
}

/// Runs the agent and reaps every process without a parent.
fn run_agent(setup: &Setup) -> Result<()> {
    let home = if Path::new("/root").is_dir() {
        "/root"
    } else {
        "/"
    };
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let agent = Command::new(PROGRAM)
        .arg("agent")
        .env_clear()
        .envs([("PATH", path), ("HOME", home), ("LANG", "C.UTF-8")])
        .envs(setup.env.iter().cloned())
        .current_dir(home)
        .spawn()
        .with_context(|| format!("can't start {PROGRAM}"))?;
    let agent = Pid::from_child(&agent);
    loop {
        match wait(WaitOptions::empty())? {
            Some((pid, _)) if pid == agent => return Ok(()),
            _ => {}
        }
    }
}
