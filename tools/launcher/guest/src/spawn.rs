// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Starts a command as a user, with pipes or a terminal of its own.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;

use guest::proto::{Exec, User};
use guest::PROGRAM;
use rustix::fs::{access, Access};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::pty::{grantpt, ioctl_tiocgptpeer, openpt, unlockpt, OpenptFlags};
use rustix::termios::{tcsetwinsize, Winsize};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// A running command.
pub struct Running {
    /// The command's process, the leader of its process group.
    pub child: Child,
    /// The controlling end of the command's terminal, if it has one.
    pub terminal: Option<File>,
}

/// The status for a command that does not exist (127) or can't be run (126), as in a shell, and the
/// message. `path` is the command's PATH. If a folder in it may not be searched, the kernel's error
/// for a command that is nowhere is that of this folder.
pub fn cannot_run(program: &str, path: Option<&OsStr>, error: io::Error) -> (u8, String) {
    let folders = path.map(env::split_paths).into_iter().flatten();
    let is_nowhere = error.kind() == io::ErrorKind::PermissionDenied
        && !program.contains('/')
        && !folders
            .into_iter()
            .any(|folder| folder.join(program).exists());
    let error = match is_nowhere {
        true => Errno::NOENT.into(),
        false => error,
    };
    let status = match error.kind() {
        io::ErrorKind::NotFound => 127,
        _ => 126,
    };
    (status, format!("can't run {program}: {error}"))
}

/// Starts a command. An error consists of a status and a message.
pub fn spawn(exec: &Exec) -> Result<Running, (u8, String)> {
    let Some((program, arguments)) = exec.argv.split_first() else {
        return Err((2, "no command".into()));
    };
    let started = as_user(exec.user.as_ref(), || match exec.terminal {
        Some(size) => in_terminal(exec, size),
        None => {
            let mut command = Command::new(program);
            let child = prepared(&mut command, exec)
                .args(arguments)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .process_group(0)
                .spawn()?;
            Ok(Running {
                child,
                terminal: None,
            })
        }
    });
    let path = exec.env.iter().find(|(name, _)| name == "PATH");
    let path = path.map(|(_, path)| OsStr::new(path));
    started.map_err(|error| cannot_run(program, path, error))
}

/// Calls `start` in a new thread that has the user's identity, which the child inherits. This
/// process keeps its own identity.
fn as_user(
    user: Option<&User>,
    start: impl FnOnce() -> io::Result<Running> + Send,
) -> io::Result<Running> {
    let Some(user) = user.filter(|user| user.uid != 0) else {
        return start();
    };
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let groups: Vec<_> = user
                .groups
                .iter()
                .map(|group| Gid::from_raw(*group))
                .collect();
            set_thread_groups(&groups)?;
            let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
            set_thread_res_gid(gid, gid, gid)?;
            set_thread_res_uid(uid, uid, uid)?;
            start()
        });
        thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    })
}

fn prepared<'a>(command: &'a mut Command, exec: &Exec) -> &'a mut Command {
    if exec.user.is_some() {
        command.env_clear();
    }
    if let Some(dir) = directory(exec) {
        command.current_dir(dir);
    }
    command.envs(exec.env.iter().cloned())
}

/// The directory in which a command starts; `None` for the agent's directory. The caller's
/// directory may not exist in this root, and the command's user may have no access to the agent's.
fn directory(exec: &Exec) -> Option<&str> {
    let is_there = |dir: &&str| {
        fs::metadata(dir).is_ok_and(|at| at.is_dir()) && access(*dir, Access::EXEC_OK).is_ok()
    };
    let home = exec.env.iter().find(|(name, _)| name == "HOME");
    let home = home.map(|(_, home)| home.as_str());
    let fallback = exec.user.is_some().then_some("/");
    Some(exec.cwd.as_str())
        .into_iter()
        .chain(home)
        .chain(fallback)
        .find(is_there)
}

/// Starts a command in a new terminal, whose owner is the user of the calling thread.
fn in_terminal(exec: &Exec, size: (u16, u16)) -> io::Result<Running> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let terminal = openpt(flags)?;
    grantpt(&terminal)?;
    unlockpt(&terminal)?;
    let inner: OwnedFd = ioctl_tiocgptpeer(&terminal, flags)?;
    resize(&terminal, size)?;
    let mut command = Command::new(PROGRAM);
    let child = prepared(&mut command, exec)
        .arg("terminal")
        .args(&exec.argv)
        .stdin(inner.try_clone()?)
        .stdout(inner.try_clone()?)
        .stderr(inner)
        .spawn()?;
    Ok(Running {
        child,
        terminal: Some(File::from(terminal)),
    })
}

/// Sets the size of a terminal: rows and columns.
pub fn resize(terminal: impl std::os::fd::AsFd, (rows, columns): (u16, u16)) -> io::Result<()> {
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(tcsetwinsize(terminal, size)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_start_where_they_may() {
        let mut exec = Exec {
            cwd: "/usr".into(),
            env: vec![("HOME".into(), "/etc".into())],
            user: Some(User::default()),
            ..Exec::default()
        };
        assert_eq!(directory(&exec), Some("/usr"));
        exec.cwd = "/not there".into();
        assert_eq!(directory(&exec), Some("/etc"));
        exec.env.clear();
        assert_eq!(directory(&exec), Some("/"));
        exec.user = None;
        assert_eq!(directory(&exec), None);
    }

    #[test]
    fn a_command_that_is_nowhere_is_told_from_one_that_may_not_be_run() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("there"), "").unwrap();
        let path = Some(folder.path().as_os_str());
        let denied = || io::Error::from(Errno::ACCESS);
        let (status, message) = cannot_run("missing", path, denied());
        assert_eq!(status, 127);
        assert!(
            message.starts_with("can't run missing: No such file"),
            "{message}"
        );
        assert_eq!(cannot_run("there", path, denied()).0, 126);
        assert_eq!(cannot_run("/missing", path, denied()).0, 126);
        assert_eq!(cannot_run("missing", None, Errno::NOENT.into()).0, 127);
    }
}
