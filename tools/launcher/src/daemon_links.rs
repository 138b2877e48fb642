// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The links between the daemons of a bed in which each VM has its own daemon.
//!
//! Links that need a network are in a network namespace of the bed. Any number of beds can run at
//! the same time, and the host's network is not changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{bail, Context, Result};
use clap::ValueEnum;

use crate::child;
use crate::install::Program;
use crate::reaper::ReapedChild;

/// The first UDP port of the daemons.
const FIRST_PORT: usize = 4900;
/// Time limit for the creation of a namespace.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The kind of links between the daemons of a bed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Uplinks {
    /// Unix datagram sockets, from each daemon to the next.
    Unix,
    /// UDP, from each daemon to the next.
    Udp,
    /// Tap interfaces on a bridge.
    Tap,
}

/// The links between daemons. The daemons are numbered from 0. The links are removed on drop.
pub struct DaemonLinks {
    uplinks: Uplinks,
    /// The directory of sockets.
    run: PathBuf,
    namespace: Option<Namespace>,
}

impl DaemonLinks {
    /// Creates the namespace and the interfaces for the links of `daemons` daemons.
    pub fn new(uplinks: Uplinks, run: &Path, daemons: usize) -> Result<Self> {
        let namespace = match uplinks {
            Uplinks::Unix => None,
            Uplinks::Udp => Some(Namespace::new(&["link set lo up".into()])?),
            Uplinks::Tap => Some(Namespace::new(&bridge(daemons))?),
        };
        Ok(Self {
            uplinks,
            run: run.to_path_buf(),
            namespace,
        })
    }

    /// The values of `--uplink` for a daemon. The daemons form a row, so the links have no loops.
    pub fn arguments(&self, daemon: usize, daemons: usize) -> Vec<String> {
        if self.uplinks == Uplinks::Tap {
            return vec![format!("tap:{}", tap(daemon))];
        }
        // Link n joins daemons n and n + 1.
        let to_next = (daemon + 1 < daemons).then(|| {
            let [left, right] = self.ends(daemon);
            format!("{left}:{right}")
        });
        let to_last = daemon.checked_sub(1).map(|link| {
            let [left, right] = self.ends(link);
            format!("{right}:{left}")
        });
        let kind = match self.uplinks {
            Uplinks::Unix => "unix",
            Uplinks::Udp | Uplinks::Tap => "udp",
        };
        to_last
            .into_iter()
            .chain(to_next)
            .map(|ends| format!("{kind}:{ends}"))
            .collect()
    }

    fn ends(&self, link: usize) -> [String; 2] {
        match self.uplinks {
            Uplinks::Unix => ["left", "right"]
                .map(|end| self.run.join(format!("{link}.{end}")).display().to_string()),
            Uplinks::Udp | Uplinks::Tap => {
                [0, 1].map(|end| format!("127.0.0.1:{}", FIRST_PORT + 2 * link + end))
            }
        }
    }

    /// A command that starts a program in the namespace of the links.
    pub fn command(&self, program: &Program) -> Result<Command> {
        match &self.namespace {
            None => program.command(),
            Some(namespace) => {
                let mut command = namespace.command()?;
                command.args(program.words());
                Ok(command)
            }
        }
    }
}

fn tap(daemon: usize) -> String {
    format!("rdma{daemon}")
}

/// Commands of `ip` for a bridge with a tap interface for each daemon.
fn bridge(daemons: usize) -> Vec<String> {
    let taps = (0..daemons).map(tap).flat_map(|tap| {
        [
            format!("tuntap add dev {tap} mode tap"),
            format!("link set {tap} up master br0"),
        ]
    });
    ["link add br0 type bridge", "link set br0 up"]
        .map(str::to_owned)
        .into_iter()
        .chain(taps)
        .collect()
}

/// A network namespace, which exists as long as its process.
struct Namespace(ReapedChild);

impl Namespace {
    fn new(setup: &[String]) -> Result<Self> {
        let mut command = child::command()?;
        command.args(["unshare", "--net", "sleep", "infinity"]);
        let holder = child::spawn(&mut command, &[]).context("can't start unshare")?;
        let mut namespace = Self(ReapedChild(holder));
        namespace
            .await_own()
            .context("can't make a network namespace")?;
        for arguments in setup {
            let output = namespace
                .command()?
                .arg("ip")
                .args(arguments.split(' '))
                .output()
                .context("can't start nsenter")?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                bail!("ip {arguments}: {}", said.trim());
            }
        }
        Ok(namespace)
    }

    /// Waits until the process is in a namespace of its own.
    fn await_own(&mut self) -> Result<()> {
        let own = fs::read_link("/proc/self/ns/net")?;
        let file = self.file();
        let is_apart = || fs::read_link(&file).is_ok_and(|other| other != own);
        self.0.until(TIMEOUT, || Ok(is_apart().then_some(())))
    }

    fn file(&self) -> String {
        format!("/proc/{}/ns/net", self.0 .0.id())
    }

    /// A command to which the caller adds a program, which then runs in the namespace.
    fn command(&self) -> Result<Command> {
        let mut command = child::command()?;
        command.arg("nsenter").arg(format!("--net={}", self.file()));
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(uplinks: Uplinks) -> DaemonLinks {
        DaemonLinks {
            uplinks,
            run: "/r".into(),
            namespace: None,
        }
    }

    #[test]
    fn each_end_sends_to_the_other() {
        let unix = links(Uplinks::Unix);
        assert_eq!(unix.arguments(0, 3), ["unix:/r/0.left:/r/0.right"]);
        assert_eq!(
            unix.arguments(1, 3),
            ["unix:/r/0.right:/r/0.left", "unix:/r/1.left:/r/1.right"]
        );
        assert_eq!(unix.arguments(2, 3), ["unix:/r/1.right:/r/1.left"]);
        let udp = links(Uplinks::Udp);
        assert_eq!(udp.arguments(0, 2), ["udp:127.0.0.1:4900:127.0.0.1:4901"]);
        assert_eq!(udp.arguments(1, 2), ["udp:127.0.0.1:4901:127.0.0.1:4900"]);
    }

    #[test]
    fn one_alone_is_joined_to_nothing() {
        assert!(links(Uplinks::Unix).arguments(0, 1).is_empty());
    }

    #[test]
    fn taps_are_on_one_bridge() {
        assert_eq!(links(Uplinks::Tap).arguments(1, 2), ["tap:rdma1"]);
        assert!(bridge(2).contains(&"link set rdma1 up master br0".into()));
    }
}
