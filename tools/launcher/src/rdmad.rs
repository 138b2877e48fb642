// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The device's daemons, and the connections of guests to them or to each other.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{mpsc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use clap::{Args, ValueEnum};
use rustix::pipe::{pipe_with, PipeFlags};
use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;

use crate::ctl::{self, DAEMON};
use crate::daemon_links::{DaemonLinks, Uplinks};
use crate::install::{Install, Program};
use crate::reaper::{Log, ReapedChild};
use crate::run_dirs::RunDirs;
use crate::vm::{Nic, Rdma, Wiring};

/// Time limit until a daemon's sockets listen.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit of the requests to all daemons.
const CTL_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of requests to a daemon at a time. It serves twice as many clients.
const AT_ONCE: usize = 8;
/// How long a daemon may take to replace its program.
const UPGRADE: Duration = Duration::from_secs(15);
/// How long a tracer may take until it watches an engine.
const ATTACH: Duration = Duration::from_secs(20);
/// Time limit for a daemon's end after a SIGTERM.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// The data path between two QPs of one daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DataPath {
    /// By copying guest memory to guest memory.
    Direct,
    /// As RoCEv2 packets.
    Wire,
}

/// Options of the daemons.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Device")]
pub struct DeviceOptions {
    /// No RDMA device: guests with a network only
    #[arg(long)]
    pub no_device: bool,
    /// Number of VMs, the last ones, that have rdma_rxe instead: stock Linux as a peer on the
    /// device's switch
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub rxe: u8,
    /// Ports of each VM: each is an RDMA device of its own (default 1)
    ///
    /// Port P of VM N has the address 10.9.(P-1).N and, from the second on, the name vmN-pP.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub ports: Option<u8>,
    /// Both devices in each VM: rdma_rxe too, on a second network interface at the same switch
    #[arg(long, conflicts_with = "ports")]
    pub rxe_beside: bool,
    /// A daemon for each VM, joined by uplinks of this kind, instead of one daemon for all VMs
    #[arg(long, value_name = "KIND")]
    pub joined: Option<Uplinks>,
    /// Data path between guests
    #[arg(long, value_name = "PATH")]
    pub path: Option<DataPath>,
    /// Write the switch's packets to a file; with several switches, those of VM 1's switch
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Withhold a feature of the device (may be repeated)
    #[arg(long, value_name = "FEATURE")]
    pub withhold: Vec<String>,
    /// Offer VIRTIO_F_ORDER_PLATFORM
    #[arg(long)]
    pub order_platform: bool,
    /// Distance of doorbell pages: 4K to 64K
    #[arg(long, value_name = "SIZE")]
    pub doorbell_stride: Option<String>,
    /// Join the switch of VM 1 to others: unix:LOCAL:REMOTE, udp:BIND:PEER or tap:NAME
    #[arg(long, value_name = "UPLINK")]
    pub uplink: Option<String>,
    /// Faults on the wire path; with --joined, to and from VM 1 only: drop=0.01,seed=7,...
    #[arg(long, value_name = "FAULTS")]
    pub faults: Option<String>,
    /// Failures by the rules of a scenario: a file or a name that virtio-rdmad knows
    #[arg(long, value_name = "FILE|NAME")]
    pub chaos: Option<String>,
    /// Worker threads of a daemon
    #[arg(long, value_name = "N")]
    pub workers: Option<u32>,
    /// How long a daemon polls an idle queue
    #[arg(long, value_name = "MICROSECONDS")]
    pub poll: Option<u32>,
    /// Another daemon program than this checkout's
    #[arg(long, value_name = "FILE")]
    pub daemon: Option<PathBuf>,
}

/// The MAC address of a port of guest `vm`, and of the port's network interface.
fn mac(vm: usize, port: u8) -> String {
    format!("52:54:00:09:{:02x}:{vm:02x}", port - 1)
}

/// The MAC address of the additional network interface for rxe.
fn mac_beside(vm: usize) -> String {
    format!("52:54:00:0a:00:{vm:02x}")
}

/// The name of a port of guest `vm`, in the daemon's options and in names of sockets.
fn name(vm: usize, port: u8) -> String {
    match port {
        1 => format!("vm{vm}"),
        _ => format!("vm{vm}p{port}"),
    }
}

/// A network interface of the daemon, and the socket of its port's RDMA device.
fn interface(dirs: &RunDirs, vm: usize, port: u8) -> (Nic, PathBuf) {
    let socket = |kind| dirs.run().join(format!("{}.{kind}", name(vm, port)));
    let nic = Nic {
        local: socket("net"),
        remote: socket("switch"),
        mac: mac(vm, port),
    };
    (nic, socket("vfio"))
}

/// Joins at most two guests without a daemon: each sends to the other one.
pub fn wire_directly(dirs: &RunDirs, vms: usize) -> Result<Vec<Wiring>> {
    if vms > 2 {
        bail!("without the device's switch, at most two VMs can be joined");
    }
    let socket = |vm| dirs.run().join(format!("vm{vm}.net"));
    Ok((1..=vms)
        .map(|vm| Wiring {
            nic: Nic {
                local: socket(vm),
                remote: socket(3 - vm),
                mac: mac(vm, 1),
            },
            rdma: Rdma::None,
            further: Vec::new(),
            beside: None,
        })
        .collect())
}

/// The running daemons. They are ended on drop.
#[derive(Default)]
pub struct Daemons {
    /// Number of daemons that were started.
    started: usize,
    running: Mutex<Vec<Daemon>>,
    /// The links between the daemons, dropped after the daemons.
    _links: Option<DaemonLinks>,
}

impl Daemons {
    /// Starts one daemon for all guests or, with `--joined`, one for each guest. Guests with rxe
    /// have an uplink instead of a port. Each guest has `mem` MiB of memory.
    pub fn start(
        dirs: &RunDirs,
        install: &Install,
        (vms, mem): (usize, u32),
        options: &DeviceOptions,
    ) -> Result<(Self, Vec<Wiring>)> {
        let program = match &options.daemon {
            Some(file) => Program::new(file),
            None => install.daemon.clone(),
        };
        let devices = vms
            .checked_sub(usize::from(options.rxe))
            .filter(|devices| *devices > 0)
            .with_context(|| format!("--rxe {} leaves no VM for the device", options.rxe))?;
        let ports = options.ports.unwrap_or(1);
        let wirings: Vec<_> = (1..=vms)
            .map(|vm| {
                let has_device = vm <= devices;
                let (nic, vfio) = interface(dirs, vm, 1);
                let beside = has_device && options.rxe_beside;
                Wiring {
                    nic,
                    rdma: if has_device {
                        Rdma::Virtio(vfio)
                    } else {
                        Rdma::Rxe
                    },
                    further: (2..=ports)
                        .filter(|_| has_device)
                        .map(|port| interface(dirs, vm, port))
                        .collect(),
                    beside: beside.then(|| Nic {
                        local: dirs.run().join(format!("vm{vm}.net2")),
                        remote: dirs.run().join(format!("vm{vm}.switch2")),
                        mac: mac_beside(vm),
                    }),
                }
            })
            .collect();

        let number = options.joined.map_or(1, |_| devices);
        let links = options
            .joined
            .map(|uplinks| DaemonLinks::new(uplinks, dirs.run(), number))
            .transpose()?;
        if let Some(pcap) = &options.pcap {
            // The daemon does not overwrite the capture of an earlier run.
            match fs::remove_file(pcap) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("can't remove {}", pcap.display()));
                }
                _ => {}
            }
        }
        let mut running = Vec::new();
        for at in 0..number {
            let mut command = match &links {
                Some(links) => links.command(&program)?,
                None => program.command()?,
            };
            command.args(arguments(options, at));
            let daemon = match number {
                1 => DAEMON.to_owned(),
                _ => format!("{DAEMON}{}", at + 1),
            };
            let log = dirs.logs.join(format!("{daemon}.log"));
            let socket = ctl::socket(dirs.run(), &daemon);
            // No ports are added, so the daemon need not prepare for any.
            command
                .arg("--ctl")
                .arg(&socket)
                .args(["--spare-ports", "0"]);
            let mut vms = Vec::new();
            let mut ports = Vec::new();
            for (wiring, vm) in wirings.iter().zip(1..) {
                // Guests without the device are connected to the last daemon.
                if number == 1 || vm.min(number) == at + 1 {
                    command.args(places_at_switch(vm, wiring, mem));
                    if let Some(nic) = &wiring.beside {
                        command
                            .arg("--uplink")
                            .arg(unix_uplink(&nic.remote, &nic.local));
                    }
                    vms.push(vm);
                    if matches!(wiring.rdma, Rdma::Virtio(_)) {
                        let further = wiring.further.iter().zip(2..).map(|(_, number)| number);
                        ports.extend([1].into_iter().chain(further).map(|port| name(vm, port)));
                    }
                }
            }
            if let Some(links) = &links {
                for uplink in links.arguments(at, number) {
                    command.arg("--uplink").arg(uplink);
                }
            }
            let control = Control {
                program: program.clone(),
                socket,
                ports,
            };
            running.push(Daemon::start(command, log, control, vms)?);
        }
        let daemons = Self {
            started: running.len(),
            running: Mutex::new(running),
            _links: links,
        };
        Ok((daemons, wirings))
    }

    /// Waits until the sockets of all daemons listen.
    pub fn await_ready(&self) -> Result<()> {
        self.lock().iter_mut().try_for_each(Daemon::await_ready)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Daemon>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all daemons are running.
    pub fn all_run(&self) -> bool {
        let mut running = self.lock();
        let mut daemons = running.iter_mut();
        daemons.len() == self.started && daemons.all(|daemon| daemon.process.runs())
    }

    /// Failures since the last call: daemons or their engines that have ended before their guests,
    /// and violations by guests' drivers.
    pub fn complaints(&self) -> Vec<String> {
        let mut found = Vec::new();
        self.lock().retain_mut(|daemon| {
            let status = daemon.process.0.try_wait().ok().flatten();
            for new in daemon.log.new_lines() {
                found.extend(violations(&new));
                found.extend(deaths(&new, &mut daemon.crashes));
            }
            if let Some(status) = status.filter(|_| !daemon.killed) {
                found.push(format!("virtio-rdmad ended by itself: {status}"));
            }
            status.is_none()
        });
        found
    }

    /// The QPs whose work stands still, each with the reason. Ports about which no daemon has
    /// responded in time are left out.
    pub fn stalled(&self) -> Vec<String> {
        let until = Instant::now() + CTL_TIMEOUT;
        let running = self.lock();
        let controls = running.iter().map(|daemon| &daemon.control);
        let request = |port| vec!["qp", port, "--why"];
        controls
            .flat_map(|control| control.told(request, until))
            .collect()
    }

    /// The rules of the scenarios of all ports, each with how often it has applied.
    pub fn rules(&self) -> Vec<String> {
        let until = Instant::now() + CTL_TIMEOUT;
        let running = self.lock();
        let controls = running.iter().map(|daemon| &daemon.control);
        controls
            .flat_map(|control| control.told(|port| vec!["chaos", port], until))
            .collect()
    }

    /// Executes a guest's request to the host: `daemon kill VM` kills the daemon of a VM's
    /// device, `daemon crash VM` kills its engine, which the daemon starts again, at once or
    /// when one of its threads begins its Nth system call of a kind (`daemon crash VM CALL N`),
    /// `daemon upgrade VM` replaces the running program by that at its path, `daemon stop VM`
    /// stops the engine, `daemon continue VM` lets it continue, `daemon chaos VM OPTION...`
    /// changes the rules of the scenario of the VM's first port, and `daemon applied VM RULE`
    /// fails if this rule of it has not applied.
    pub fn command(&self, words: &[String]) -> Result<()> {
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let (act, vm, change) = match words[..] {
            ["daemon", act @ ("kill" | "crash" | "upgrade" | "stop" | "continue"), vm] => {
                (act, vm, &[][..])
            }
            ["daemon", act @ ("chaos" | "applied"), vm, ref change @ ..] if !change.is_empty() => {
                (act, vm, change)
            }
            ["daemon", act @ "crash", vm, ref at @ ..] if at.len() == 2 => (act, vm, at),
            _ => bail!(
                "unknown command: the host knows only \"daemon kill|crash|upgrade|stop|continue \
                 VM\", \"daemon crash VM CALL N\", \"daemon chaos VM OPTION...\" and \"daemon \
                 applied VM RULE\""
            ),
        };
        let vm: usize = vm.parse().context("not the number of a VM")?;
        let mut running = self.lock();
        let daemon = running.iter_mut().find(|daemon| daemon.vms.contains(&vm));
        let daemon = daemon.with_context(|| format!("VM {vm} has no daemon, or it ended"))?;
        match act {
            "crash" => {
                let engine = daemon.engine()?;
                match change {
                    [call, nth] => daemon.trace(engine, call, nth)?,
                    _ => kill_process(engine, Signal::KILL)?,
                }
                daemon.crashes += 1;
            }
            "upgrade" => daemon.upgrade()?,
            "stop" => kill_process(daemon.engine()?, Signal::STOP)?,
            "continue" => kill_process(daemon.engine()?, Signal::CONT)?,
            "chaos" => daemon.control.change_rules(&name(vm, 1), change)?,
            "applied" => daemon.control.has_applied(&name(vm, 1), change)?,
            _ => {
                daemon.killed = true;
                daemon.process.0.kill()?;
                daemon.process.0.wait()?;
            }
        }
        Ok(())
    }
}

/// Whether all threads of a process are traced.
fn is_traced(process: Pid) -> Result<bool> {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()))?;
    let statuses = tasks.flatten().map(|task| task.path().join("status"));
    // A thread may have ended.
    let mut told = statuses.filter_map(|status| fs::read_to_string(status).ok());
    Ok(told.all(|status| !status.contains("TracerPid:\t0\n")))
}

/// A running daemon.
struct Daemon {
    process: ReapedChild,
    /// The daemon's output.
    log: Log,
    control: Control,
    /// The guests at the daemon's switch.
    vms: Vec<usize>,
    /// Whether the daemon was killed at a guest's request.
    killed: bool,
    /// Number of engines that were killed at a guest's request and whose deaths were not seen in
    /// the log yet.
    crashes: usize,
    /// The process that kills the engine at a system call.
    tracer: Option<ReapedChild>,
    /// The pipe into which the daemon writes a byte when its sockets listen.
    ready: File,
}

impl Daemon {
    fn start(
        mut command: Command,
        log: PathBuf,
        control: Control,
        vms: Vec<usize>,
    ) -> Result<Self> {
        // The pipe ends with the child, since this process closes its own copy of the write end.
        let (ready, signal) = pipe_with(PipeFlags::CLOEXEC)?;
        command.args(["--ready-fd", &signal.as_raw_fd().to_string()]);
        Ok(Self {
            process: ReapedChild::spawn_with(&mut command, &log, &[signal.as_fd()])?,
            log: Log::new(log),
            control,
            vms,
            killed: false,
            crashes: 0,
            tracer: None,
            ready: File::from(ready),
        })
    }

    /// The process of the daemon's engine.
    fn engine(&self) -> Result<Pid> {
        let process = self.process.0.id();
        let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children"))?;
        let engine = children
            .split_whitespace()
            .next()
            .and_then(|child| child.parse().ok());
        let engine = engine.and_then(Pid::from_raw);
        engine.context("the daemon has no engine now")
    }

    /// Kills the engine when one of its threads begins its `nth` system call of this kind. Returns
    /// when all threads are watched.
    fn trace(&mut self, engine: Pid, call: &str, nth: &str) -> Result<()> {
        if self.tracer.as_mut().is_some_and(ReapedChild::runs) {
            // The engine has not made the call.
            self.crashes = self.crashes.saturating_sub(1);
        }
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-o", "/dev/null"]);
        strace.args(["-e", &format!("trace={call}")]);
        strace.args(["-e", &format!("inject={call}:signal=KILL:when={nth}")]);
        strace.args(["-p", &engine.as_raw_nonzero().to_string()]);
        let said = self.log.file.with_extension("strace");
        let tracer = self.tracer.insert(ReapedChild::spawn(&mut strace, &said)?);
        let until = Instant::now() + ATTACH;
        while !is_traced(engine)? {
            let is_early = Instant::now() < until && tracer.runs();
            let said = || fs::read_to_string(&said).unwrap_or_default();
            ensure!(is_early, "the engine is not traced: {}", said().trim());
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Has the daemon's program replaced, and waits for the next engine.
    fn upgrade(&self) -> Result<()> {
        let before = self.engine()?;
        kill_process(Pid::from_child(&self.process.0), Signal::USR2)?;
        let until = Instant::now() + UPGRADE;
        while self.engine().map_or(true, |engine| engine == before) {
            ensure!(Instant::now() < until, "the daemon was not upgraded");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn await_ready(&mut self) -> Result<()> {
        let (sender, receiver) = mpsc::channel();
        let mut pipe = self.ready.try_clone()?;
        thread::spawn(move || {
            let mut byte = [0];
            let _ = sender.send(matches!(pipe.read(&mut byte), Ok(1)));
        });
        if receiver.recv_timeout(READY_TIMEOUT) == Ok(true) {
            return Ok(());
        }
        let said = fs::read_to_string(&self.log.file).unwrap_or_default();
        let what = match self.process.0.try_wait()? {
            Some(status) => format!("ended ({status})"),
            None => "is not ready".into(),
        };
        bail!("virtio-rdmad {what}: {}", said.trim());
    }
}

/// The control socket of a daemon.
struct Control {
    program: Program,
    socket: PathBuf,
    /// The names of the daemon's ports.
    ports: Vec<String>,
}

impl Control {
    /// The lines with which the daemon answers a request about each port. The ports are asked side
    /// by side, since the request for QPs takes the second in which the work has to stand still.
    fn told<'a>(
        &'a self,
        request: impl Fn(&'a str) -> Vec<&'a str>,
        until: Instant,
    ) -> Vec<String> {
        let mut found = Vec::new();
        for ports in self.ports.chunks(AT_ONCE) {
            let ask = |port: &'a String| self.ask(port, &request(port));
            let asked: Vec<_> = ports.iter().filter_map(ask).collect();
            for (mut asking, output, port) in asked {
                let status = asking.ends_within(until.saturating_duration_since(Instant::now()));
                if status.is_some_and(|status| status.success()) {
                    let said = fs::read_to_string(output).unwrap_or_default();
                    found.extend(said.lines().map(|line| format!("port {port}: {line}")));
                }
            }
        }
        found
    }

    /// Changes the rules of the scenario of a port: `change` are options of `ctl chaos`.
    fn change_rules(&self, port: &str, change: &[&str]) -> Result<()> {
        let mut command = ctl::command(&self.program, &self.socket);
        let output = command.args(["chaos", port]).args(change).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}", said.trim());
        Ok(())
    }

    /// Checks that rules of the scenario of a port have applied.
    fn has_applied(&self, port: &str, rules: &[&str]) -> Result<()> {
        let mut command = ctl::command(&self.program, &self.socket);
        let output = command.args(["--json", "chaos", port]).output()?;
        let reply: Value = serde_json::from_slice(&output.stdout).context("no list of rules")?;
        for rule in rules {
            let told = reply["rules"].as_array().into_iter().flatten();
            let counts = told.filter(|told| told["name"] == *rule);
            let applied: u64 = counts.filter_map(|told| told["applied"].as_u64()).sum();
            ensure!(applied > 0, "rule {rule} of port {port} has not applied");
        }
        Ok(())
    }

    /// Starts a request about a port. Returns it, and the file of its output.
    fn ask<'a>(&self, port: &'a str, request: &[&str]) -> Option<(ReapedChild, PathBuf, &'a str)> {
        let output = self.socket.with_extension(format!("{port}.said"));
        let mut command = ctl::command(&self.program, &self.socket);
        let asking = ReapedChild::spawn(command.args(request), &output);
        Some((asking.ok()?, output, port))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // SIGTERM first: the daemon may have to complete a capture.
        let _ = kill_process(Pid::from_child(&self.process.0), Signal::TERM);
        self.process.ends_within(END_TIMEOUT);
    }
}

/// The lines of a daemon's log about writes to the device configuration. No test does this on
/// purpose, since a process can't write to the configuration.
fn violations(log: &str) -> Vec<String> {
    log.lines()
        .filter(|line| line.contains(" to the device configuration at "))
        .map(|line| format!("virtio-rdmad: {line}"))
        .collect()
}

/// The lines of a daemon's log about deaths of its engine, without as many as are `expected` or
/// were ordered by rules of scenarios.
fn deaths(log: &str, expected: &mut usize) -> Vec<String> {
    let mut unexpected = Vec::new();
    for line in log.lines() {
        if line.contains(" kills the engine") {
            // Rules of several ports may apply before it has ended.
            *expected = (*expected).max(1);
        } else if line.contains(": another one starts in ") {
            match expected.checked_sub(1) {
                Some(rest) => *expected = rest,
                None => unexpected.push(line.to_owned()),
            }
        }
    }
    unexpected
}

/// The daemon's options for a guest's ports and uplinks at the switch.
fn places_at_switch(vm: usize, wiring: &Wiring, mem: u32) -> Vec<String> {
    let first = match &wiring.rdma {
        Rdma::Virtio(vfio) => port(&name(vm, 1), &wiring.nic, vfio, mem),
        // The guest is connected by an uplink. At a port, the switch would pass RoCE frames to the
        // port's RDMA device, and not to the guest's network interface.
        Rdma::Rxe | Rdma::None => [
            "--uplink".into(),
            unix_uplink(&wiring.nic.remote, &wiring.nic.local),
        ],
    };
    let further = wiring.further.iter().zip(2..);
    let further = further.map(|((nic, vfio), number)| port(&name(vm, number), nic, vfio, mem));
    [first].into_iter().chain(further).flatten().collect()
}

/// A port. It has an additional MAC address, for a macvlan interface, which starts with 56.
fn port(name: &str, nic: &Nic, vfio: &Path, mem: u32) -> [String; 2] {
    let net = nic.remote.display();
    let (mac, vfio) = (&nic.mac, vfio.display());
    let more = mac.replacen("52", "56", 1);
    [
        "--port".into(),
        format!("{name},net={net},mac={mac},macs={more},guest-memory={mem}M,vfio={vfio}"),
    ]
}

fn unix_uplink(bind: &Path, peer: &Path) -> String {
    format!("unix:{}:{}", bind.display(), peer.display())
}

/// Arguments of the daemon with number `daemon`, from 0, except its ports. Only the first daemon
/// has faults and captures, so that they apply once to each frame.
fn arguments(options: &DeviceOptions, daemon: usize) -> Vec<String> {
    let first = daemon == 0;
    let path = options.path.and_then(|path| path.to_possible_value());
    let single = [
        ("--path", path.map(|path| path.get_name().to_owned())),
        (
            "--pcap",
            options.pcap.as_deref().map(text).filter(|_| first),
        ),
        ("--uplink", options.uplink.clone().filter(|_| first)),
        ("--faults", options.faults.clone().filter(|_| first)),
        ("--chaos", options.chaos.as_deref().map(scenario)),
        ("--workers", options.workers.map(|count| count.to_string())),
        ("--poll", options.poll.map(|time| time.to_string())),
        ("--doorbell-stride", options.doorbell_stride.clone()),
    ];
    let single = single
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    let withheld = options
        .withhold
        .iter()
        .map(|feature| ("--withhold", feature.clone()));
    let offered = options
        .order_platform
        .then(|| "--order-platform".to_owned());
    single
        .chain(withheld)
        .flat_map(|(name, value)| [name.to_owned(), value])
        .chain(offered)
        .collect()
}

/// A scenario for a daemon with another working directory.
fn scenario(given: &str) -> String {
    if !given.contains(['/', '.']) {
        // A name.
        return given.to_owned();
    }
    fs::canonicalize(given).map_or_else(|_| given.to_owned(), |path| text(&path))
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_damaged_and_captured_once() {
        let options = DeviceOptions {
            pcap: Some("/p".into()),
            faults: Some("drop=0.1".into()),
            chaos: Some("reg-fails".into()),
            ..DeviceOptions::default()
        };
        assert_eq!(
            arguments(&options, 0).join(" "),
            "--pcap /p --faults drop=0.1 --chaos reg-fails"
        );
        assert_eq!(arguments(&options, 1).join(" "), "--chaos reg-fails");
    }

    // abi: R-90
    #[test]
    fn drivers_that_write_to_the_configuration_fail_the_run() {
        let log = "INFO started\n\
            WARN write of 4 bytes to the device configuration at 0x10, which is read-only port=a\n\
            WARN write of 3 bytes to common configuration at 0x0 port=a\n";
        let found = violations(log);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("0x10") && found[0].contains("port=a"));
    }

    #[test]
    fn engines_that_die_by_themselves_fail_the_run() {
        let death = |number| {
            format!(
                "INFO ready\nvirtio-rdmad: the engine, process {number}, was ended by SIGSEGV: \
                 another one starts in 0ns\n"
            )
        };
        let mut expected = 2;
        assert!(deaths(&death(1), &mut expected).is_empty());
        let found = deaths(&[2, 3].map(death).concat(), &mut expected);
        assert_eq!((found.len(), expected), (1, 0));
        let rule = "rule x of port a kills the engine\n";
        let ordered = [rule, rule, &death(4), &death(5)].concat();
        assert_eq!(deaths(&ordered, &mut expected).len(), 1);
        assert!(found[0].contains("process 3, was ended by SIGSEGV"));
    }

    #[test]
    fn commands_for_the_host_name_a_daemon_that_runs() {
        let command = |text: &str| {
            let words: Vec<_> = text.split(' ').map(str::to_owned).collect();
            Daemons::default().command(&words).unwrap_err().to_string()
        };
        assert!(command("rm -r /").contains("knows only"));
        assert!(command("daemon sing 1").contains("knows only"));
        assert!(command("daemon kill one").contains("not the number"));
        assert!(command("daemon kill 1").contains("has no daemon"));
    }

    #[test]
    fn options_reach_the_daemon_as_they_were_given() {
        let options = DeviceOptions {
            path: Some(DataPath::Wire),
            withhold: vec!["a".into(), "b".into()],
            faults: Some("drop=0.1,seed=7".into()),
            workers: Some(2),
            poll: Some(50),
            doorbell_stride: Some("64K".into()),
            order_platform: true,
            ..DeviceOptions::default()
        };
        assert_eq!(
            arguments(&options, 0).join(" "),
            "--path wire --faults drop=0.1,seed=7 --workers 2 --poll 50 --doorbell-stride 64K \
            --withhold a --withhold b --order-platform"
        );
        assert!(arguments(&DeviceOptions::default(), 0).is_empty());
    }

    #[test]
    fn a_port_binds_what_qemu_sends_to() {
        let nic = |port| Nic {
            local: "/q".into(),
            remote: "/d".into(),
            mac: mac(10, port),
        };
        let mut wiring = Wiring {
            nic: nic(1),
            rdma: Rdma::Rxe,
            further: Vec::new(),
            beside: None,
        };
        assert_eq!(
            places_at_switch(10, &wiring, 512).join(" "),
            "--uplink unix:/d:/q"
        );
        wiring.rdma = Rdma::Virtio("/v".into());
        wiring.further.push((nic(2), "/w".into()));
        assert_eq!(
            places_at_switch(10, &wiring, 512).join(" "),
            "--port vm10,net=/d,mac=52:54:00:09:00:0a,macs=56:54:00:09:00:0a,guest-memory=512M,vfio=/v \
             --port vm10p2,net=/d,mac=52:54:00:09:01:0a,macs=56:54:00:09:01:0a,guest-memory=512M,vfio=/w"
        );
    }
}
