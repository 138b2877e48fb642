// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Limits of the ports that `ctl` adds and the state file restores.
//!
//! The next daemon makes the sockets of such ports with its own rights, perhaps those of root, and
//! before it is in its sandbox. A daemon that was taken over, or a user of `--ctl-group`, may have
//! written the file. So the sockets must be where the command line says that sockets of
//! ports are.

use std::path::{self, Component, Path, PathBuf};

use anyhow::{ensure, Result};

use crate::cli::{Args, PortArgs, SocketArgs};

/// Where the sockets of added ports may be, and who may connect to them.
pub struct Scope {
    directories: Vec<PathBuf>,
    admits_others: bool,
}

impl Scope {
    /// The scope that a command line sets.
    ///
    /// # Errors
    ///
    /// A path is relative, and there is no working directory.
    pub fn of(args: &Args) -> Result<Self> {
        let sockets = args
            .ports
            .iter()
            .flat_map(PortArgs::paths)
            .map(path::absolute);
        let parents = sockets.map(|path| path.map(|path| path.with_file_name("")));
        let named = args.port_directories.iter().map(path::absolute);
        Ok(Self {
            directories: parents.chain(named).collect::<Result<_, _>>()?,
            admits_others: args.sockets.admits_others(),
        })
    }

    /// Checks a port that `ctl` adds or the state file restores.
    ///
    /// # Errors
    ///
    /// The port is out of the scope.
    pub fn check(&self, port: &PortArgs, sockets: &SocketArgs) -> Result<()> {
        for path in port.paths() {
            ensure!(
                self.has(path),
                "{} is in none of the directories of the sockets of --port, and below no \
                 --port-directory: with --state, the sockets of added ports must be",
                path.display()
            );
        }
        ensure!(
            self.admits_others || !sockets.admits_others(),
            "with --state, the sockets of added ports are not open to all users unless \
             --socket-mode opens those of --port"
        );
        Ok(())
    }

    fn has(&self, path: &Path) -> bool {
        // Without `..`, a path that begins with a directory is below it.
        let is_direct = path.components().all(|part| part != Component::ParentDir);
        let is_below = |directory: &PathBuf| path.starts_with(directory);
        path.is_absolute() && is_direct && self.directories.iter().any(is_below)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn sockets_are_where_the_command_line_says() {
        let given = [
            "virtio-rdmad",
            "--port=a,vfio=/run/a/vfio,net=/srv/net/a,mac=52:54:00:09:00:01",
            "--ctl=/run/ctl",
            "--state=/run/state",
            "--port-directory=/var/ports/",
        ];
        let check = |more: &[&str], paths: &str, sockets: &str| {
            let args = Args::try_parse_from(given.iter().chain(more)).unwrap();
            let port = format!("x,{paths},mac=52:54:00:09:00:02").parse().unwrap();
            let sockets = serde_json::from_str(sockets).unwrap();
            Scope::of(&args).unwrap().check(&port, &sockets).is_ok()
        };
        for paths in [
            "vfio=/run/a/x",
            "vfio=/run/a/deep/x",
            "vfio=/srv/net/x,net=/var/ports/x",
        ] {
            assert!(check(&[], paths, "{}"), "{paths}");
        }
        for paths in [
            "vfio=/run/x",
            "vfio=/run/ab/x",
            "vfio=/run/a/../x",
            "vfio=/run/a/x,net=/etc/x",
            "vfio=run/a/x",
            "vfio=x",
        ] {
            assert!(!check(&[], paths, "{}"), "{paths}");
        }
        for (mode, may) in [("660", true), ("700", true), ("661", false), ("666", false)] {
            let sockets = format!("{{\"mode\":{mode:?}}}");
            assert_eq!(check(&[], "vfio=/run/a/x", &sockets), may, "{mode}");
            assert!(check(&["--socket-mode=666"], "vfio=/run/a/x", &sockets));
        }
    }
}
