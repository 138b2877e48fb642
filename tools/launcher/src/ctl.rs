// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `virtio-rdma ctl`: asks the daemon of a run that is under way.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, Result};
use clap::Args;

use crate::install::{Install, Program};
use crate::run_dirs;

/// The name of the daemon of a run that has one.
pub const DAEMON: &str = "rdmad";

/// The control socket of a daemon, in the directory of a run's sockets.
pub fn socket(run: &Path, daemon: &str) -> PathBuf {
    run.join(format!("{daemon}.ctl"))
}

/// A request to the daemon of a run.
#[derive(Args, Clone, Debug)]
pub struct CtlOptions {
    /// Control socket of the daemon, if this user has several runs
    #[arg(long, value_name = "SOCKET")]
    socket: Option<PathBuf>,
    /// The request: arguments of `virtio-rdmad ctl`. Port P of VM N has the name vmN or vmNpP
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    request: Vec<OsString>,
}

/// Executes `virtio-rdmad ctl` in place of this program. Returns only if that fails.
pub fn ctl(options: &CtlOptions) -> Result<u8> {
    let daemon = Install::bundle(None)?.daemon;
    let socket = match &options.socket {
        Some(socket) => socket.clone(),
        None => the_only_one(run_dirs::all().map(|run| socket(&run, DAEMON)))?,
    };
    let mut command = command(&daemon, &socket);
    command.args(&options.request);
    Err(command.exec().into())
}

/// The command `virtio-rdmad ctl`, without its request.
pub fn command(daemon: &Program, socket: &Path) -> Command {
    let (program, first) = daemon.words().split_first().expect("a program has a path");
    let mut command = Command::new(program);
    command.args(first).args(["ctl", "--socket"]).arg(socket);
    command
}

fn the_only_one(sockets: impl Iterator<Item = PathBuf>) -> Result<PathBuf> {
    let mut sockets: Vec<_> = sockets.filter(|socket| socket.exists()).collect();
    match (sockets.pop(), sockets.as_slice()) {
        (Some(socket), []) => Ok(socket),
        (None, _) => bail!("this user has no run: start one with `virtio-rdma run` or `shell`"),
        (Some(last), others) => {
            let list = others.iter().chain([&last]);
            let list: Vec<_> = list.map(|path| path.display().to_string()).collect();
            bail!(
                "this user has {} runs: choose one with --socket:\n  {}",
                list.len(),
                list.join("\n  ")
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_run_is_found_if_there_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a", "b", "c"].map(|name| dir.path().join(name));
        let found = || the_only_one(paths.iter().cloned());
        assert!(found().unwrap_err().to_string().contains("no run"));
        fs::write(&paths[1], "").unwrap();
        assert_eq!(found().unwrap(), paths[1]);
        fs::write(&paths[2], "").unwrap();
        let said = found().unwrap_err().to_string();
        assert!(said.contains("2 runs"), "{said}");
        for path in &paths[1..] {
            assert!(said.contains(path.to_str().unwrap()), "{said}");
        }
    }
}
