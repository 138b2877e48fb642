// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The device's daemon, and how guests are wired to it or to each other.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use clap::{Args, ValueEnum};
use rustix::process::{kill_process, Pid, Signal};

use crate::places::Places;
use crate::vm::{Logged, Rdma, Wiring};

/// How long the daemon has until its sockets listen.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// How long it has to end when it is asked to.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// How two QPs of one daemon exchange data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DataPath {
    /// By copying guest memory to guest memory.
    Direct,
    /// As RoCEv2 packets.
    Wire,
}

/// What is passed on to the daemon.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Device")]
pub struct DeviceOptions {
    /// No RDMA device: guests with a network only
    #[arg(long)]
    pub no_device: bool,
    /// So many of the VMs, the last ones, have rdma_rxe instead: stock Linux as a peer on the device's switch
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub rxe: u8,
    /// How two guests exchange data
    #[arg(long, value_name = "PATH")]
    pub path: Option<DataPath>,
    /// Write what crosses the switch and the wire path to a file
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Withhold a feature of the device (may be repeated)
    #[arg(long, value_name = "FEATURE")]
    pub withhold: Vec<String>,
    /// Join the switch to others: unix:LOCAL:REMOTE, udp:BIND:PEER or tap:NAME
    #[arg(long, value_name = "UPLINK")]
    pub uplink: Option<String>,
    /// Faults on the wire path: drop=0.01,seed=7,...
    #[arg(long, value_name = "FAULTS")]
    pub faults: Option<String>,
    /// Worker threads of the daemon
    #[arg(long, value_name = "N")]
    pub workers: Option<u32>,
    /// The daemon's program, if not the one built here
    #[arg(long, value_name = "FILE")]
    pub daemon: Option<PathBuf>,
}

/// The address of guest `vm`'s network interface and of its RDMA port.
fn mac(vm: usize) -> String {
    format!("52:54:00:09:00:{vm:02x}")
}

/// Joins guests without a daemon: each sends to the other, or nowhere if it is alone.
pub fn wire_directly(places: &Places, vms: usize) -> Result<Vec<Wiring>> {
    if vms > 2 {
        bail!("without the device's switch, two VMs are the most that can be joined");
    }
    let socket = |vm| places.run.join(format!("vm{vm}.net"));
    Ok((1..=vms)
        .map(|vm| Wiring {
            local: socket(vm),
            remote: socket(3 - vm),
            mac: mac(vm),
            rdma: Rdma::None,
        })
        .collect())
}

/// The running daemon. It is ended with this.
pub struct Daemon {
    child: Child,
    /// What it prints.
    pub log: PathBuf,
}

impl Daemon {
    /// Starts the daemon with one port a guest, an uplink for those with rxe, and waits until its sockets listen.
    pub fn start(
        places: &Places,
        vms: usize,
        options: &DeviceOptions,
    ) -> Result<(Self, Vec<Wiring>)> {
        let program = options
            .daemon
            .clone()
            .unwrap_or_else(|| places.sibling("virtio-rdmad"));
        if !program.is_file() {
            bail!("no {}: run `make build`", program.display());
        }
        let devices = vms
            .checked_sub(usize::from(options.rxe))
            .filter(|devices| *devices > 0)
            .with_context(|| format!("with --rxe {} there are too few VMs", options.rxe))?;
        let wirings: Vec<_> = (1..=vms)
            .map(|vm| Wiring {
                local: places.run.join(format!("vm{vm}.net")),
                remote: places.run.join(format!("vm{vm}.switch")),
                mac: mac(vm),
                rdma: if vm <= devices {
                    Rdma::Virtio(places.run.join(format!("vm{vm}.vfio")))
                } else {
                    Rdma::Rxe
                },
            })
            .collect();

        // Inherited, by its number, by this one child: the pipe's end here is closed right after.
        let (ready, signal) = rustix::pipe::pipe()?;
        let mut command = Command::new(&program);
        for (wiring, vm) in wirings.iter().zip(1..) {
            command.args(port(vm, wiring));
        }
        command
            .args(arguments(options))
            .arg("--ready-fd")
            .arg(signal.as_raw_fd().to_string());
        let log = places.logs.join("rdmad.log");
        let child = command
            .logged(&log)?
            .spawn()
            .with_context(|| format!("can't start {}", program.display()))?;
        let mut daemon = Self { child, log };
        drop(signal);
        daemon.await_ready(File::from(ready))?;
        Ok((daemon, wirings))
    }

    /// Its exit status, as text, if it has ended, which it should not before its guests.
    pub fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        Some(status.to_string())
    }

    fn await_ready(&mut self, mut pipe: File) -> Result<()> {
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let mut byte = [0];
            let _ = sender.send(matches!(pipe.read(&mut byte), Ok(1)));
        });
        if receiver.recv_timeout(READY_TIMEOUT) == Ok(true) {
            return Ok(());
        }
        let said = fs::read_to_string(&self.log).unwrap_or_default();
        let what = match self.child.try_wait()? {
            Some(status) => format!("ended ({status})"),
            None => "is not ready".into(),
        };
        bail!("virtio-rdmad {what}: {}", said.trim());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Asked first: it may have a capture to complete.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let until = Instant::now() + END_TIMEOUT;
        while let Ok(None) = self.child.try_wait() {
            if Instant::now() > until {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A guest's place on the switch as the daemon sees it, which binds what QEMU sends to.
fn port(vm: usize, wiring: &Wiring) -> [String; 2] {
    let (bind, peer) = (wiring.remote.display(), wiring.local.display());
    match &wiring.rdma {
        Rdma::Virtio(vfio) => [
            "--port".into(),
            format!(
                "vm{vm},net={bind}:{peer},mac={},vfio={}",
                wiring.mac,
                vfio.display()
            ),
        ],
        // At a port of the device's the switch would keep RoCE frames from the network function.
        Rdma::Rxe | Rdma::None => ["--uplink".into(), format!("unix:{bind}:{peer}")],
    }
}

fn arguments(options: &DeviceOptions) -> Vec<String> {
    let path = options.path.and_then(|path| path.to_possible_value());
    let single = [
        ("--path", path.map(|path| path.get_name().to_owned())),
        (
            "--pcap",
            options.pcap.as_ref().map(|file| file.display().to_string()),
        ),
        ("--uplink", options.uplink.clone()),
        ("--faults", options.faults.clone()),
        ("--workers", options.workers.map(|count| count.to_string())),
    ];
    let single = single
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    let withheld = options
        .withhold
        .iter()
        .map(|feature| ("--withhold", feature.clone()));
    single
        .chain(withheld)
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_reach_the_daemon_as_they_were_given() {
        let options = DeviceOptions {
            path: Some(DataPath::Wire),
            withhold: vec!["a".into(), "b".into()],
            faults: Some("drop=0.1,seed=7".into()),
            workers: Some(2),
            ..DeviceOptions::default()
        };
        assert_eq!(
            arguments(&options).join(" "),
            "--path wire --faults drop=0.1,seed=7 --workers 2 --withhold a --withhold b"
        );
        assert!(arguments(&DeviceOptions::default()).is_empty());
    }

    #[test]
    fn a_port_binds_what_qemu_sends_to() {
        let wiring = |rdma| Wiring {
            local: "/q".into(),
            remote: "/d".into(),
            mac: mac(10),
            rdma,
        };
        assert_eq!(
            port(10, &wiring(Rdma::Virtio("/v".into()))).join(" "),
            "--port vm10,net=/d:/q,mac=52:54:00:09:00:0a,vfio=/v"
        );
        assert_eq!(
            port(11, &wiring(Rdma::Rxe)).join(" "),
            "--uplink unix:/d:/q"
        );
    }
}
