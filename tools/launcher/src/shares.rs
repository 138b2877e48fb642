// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The virtiofsd servers of a guest's shares.

use std::env;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use rustix::process::{getegid, geteuid, getrlimit, Resource};

use crate::child;
use crate::host_check::FILES;
use crate::install::{Install, SharedDirectory};
use crate::reaper::ReapedChild;
use crate::run_dirs::RunDirs;
use crate::untrusted::{end, printable};
use crate::vm::chardev;

/// Shell script that prepares the root of a checkout's guests in the directory `$1` of a mount
/// namespace, and starts a program. The root has the sysroot without the mounts over it (`/dev`,
/// `/proc`, `/sys`, `/tmp` of the host), the checkout `$2`, and the directory `$3` from which the
/// test bed was called. The root is read-only.
const SYSROOT: &str = r#"
set -e
shared=$1 top=$2 called_from=$3
shift 3
mkdir "$shared"
mount --bind / "$shared"
show() {
	mkdir -p "$shared$1"
	mount --bind "$1" "$shared$1"
	mount -o remount,bind,ro "$shared$1"
}
show "$top"
case $called_from/ in
"$top"/*) ;;
*) show "$called_from" ;;
esac
mount -o remount,bind,ro "$shared"
exec "$@"
"#;

/// A server, and QEMU's arguments for its device.
pub struct Server {
    /// The virtiofsd process.
    pub process: ReapedChild,
    /// QEMU's arguments.
    pub arguments: Vec<String>,
    /// The directory that it serves.
    dir: PathBuf,
    /// The file with its messages.
    log: PathBuf,
}

impl Server {
    /// Why the server has ended, if it has failed: its last messages and a likely cause.
    pub fn death(&mut self) -> Option<String> {
        let status = self.process.0.try_wait().ok()??;
        // A server ends with its QEMU.
        if status.success() {
            return None;
        }
        let said = printable(&end(&self.log));
        let hint = match getrlimit(Resource::Nofile).current {
            Some(files) if files < FILES => format!(
                "\n{files} open files are allowed, and virtiofsd needs {FILES} or more: raise the \
                 hard limit (`ulimit -Hn`), as root"
            ),
            _ => String::new(),
        };
        let dir = self.dir.display();
        let said = said.trim();
        Some(format!(
            "virtiofsd of {dir} has ended: {status}\n{said}{hint}"
        ))
    }
}

/// Starts the server of a source for guest `number`. QEMU can connect at once: the server inherits
/// a socket that listens already.
pub fn serve(
    dirs: &RunDirs,
    install: &Install,
    source: &SharedDirectory,
    number: usize,
) -> Result<Server> {
    let tag = &source.share.tag;
    let socket = dirs.run().join(format!("vm{number}.{tag}"));
    let log = dirs.logs.join(format!("vm{number}.{tag}.virtiofsd"));
    let (mut command, dir, sandbox) = match &install.checkout {
        Some(top) => {
            let (command, dir) = confined(dirs, install, top, number)?;
            (command, dir, "chroot")
        }
        None => (install.virtiofsd.command()?, source.dir.clone(), "none"),
    };
    let listener =
        UnixListener::bind(&socket).with_context(|| format!("can't bind {}", socket.display()))?;
    command
        .args(["--fd", &listener.as_raw_fd().to_string()])
        .arg("--shared-dir")
        .arg(&dir)
        // Confines a server that a guest has compromised.
        .args(["--seccomp", "kill"])
        // overlayfs does not support a lower directory with automatic mount points.
        .args(["--no-announce-submounts", "--log-level", "warn"])
        .args(["--sandbox", sandbox]);
    if source.share.writable {
        // The host may change the files too, so the guest must not cache them for ever.
        command.args(["--cache", "auto", "--xattr"]);
        command.args(as_one_user());
    } else {
        // Without caching, the guest would read a file again at each open: all of libc at each
        // start of a program. TCG would drop its translated code of libc each time. Files below an
        // overlay must not change anyway.
        command.args(["--readonly", "--cache", "always"]);
    }
    let id = format!("fs-{tag}");
    let [option, value] = chardev(&id, &socket);
    let device = format!("vhost-user-fs-pci,chardev={id},tag={tag}");
    Ok(Server {
        process: ReapedChild::spawn_with(&mut command, &log, &[listener.as_fd()])?,
        arguments: vec![option, value, "-device".into(), device],
        dir: source.dir.clone(),
        log,
    })
}

/// Returns a command that runs a virtiofsd in its own mount namespace, and the directory that this
/// virtiofsd is to serve. The directory contains only the sysroot, the checkout and the caller's
/// working directory.
fn confined(
    dirs: &RunDirs,
    install: &Install,
    top: &Path,
    number: usize,
) -> Result<(Command, PathBuf)> {
    let shared = dirs.run().join(format!("vm{number}.root.d"));
    let mut command = child::command()?;
    command
        .arg("unshare")
        // The test bed's root is not a mount point, so its propagation can't be changed.
        .args(["--net", "--mount", "--propagation", "unchanged"])
        .args(["sh", "-c", SYSROOT, "sh"])
        .args([shared.as_path(), top, env::current_dir()?.as_path()])
        .args(install.virtiofsd.words());
    Ok((command, shared))
}

/// Arguments that map every user of a guest to this process's user, since this process can't write
/// as another user.
fn as_one_user() -> Vec<String> {
    let (uid, gid) = (geteuid(), getegid());
    if uid.is_root() {
        return Vec::new();
    }
    [("uid", uid.as_raw()), ("gid", gid.as_raw())]
        .into_iter()
        .flat_map(|(what, id)| {
            [
                format!("--translate-{what}"),
                format!("squash-guest:0:{id}:{}", u32::MAX),
            ]
        })
        .collect()
}
