// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One virtual machine: its file system servers and its QEMU.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use attach::{interface, Backend, Port, VmMemory};
use guest::proto::{Frame, Kind};
use guest::setup::{self, Resumption, Setup};
use guest::{EARLY_MODULES, PORT_NAME, SETUP};

use crate::accel::{self, Accel};
use crate::disk::Disk;
use crate::initramfs;
use crate::install::{Install, SharedDirectory};
use crate::kernel::KernelOptions;
use crate::reaper::{Log, ReapedChild};
use crate::run_dirs::RunDirs;
use crate::saved::SavedGuest;
use crate::shares::{serve, Server};
use crate::untrusted::{create, end};

/// QEMU's exit status after the guest's first program has written 1 to isa-debug-exit.
const GUEST_ENDED: i32 = 3;
/// The PCI slot of the first port. The slots of the other ports follow.
const FIRST_SLOT: u8 = 5;
/// The PCI slot of the port to the agent. It is the same in a saved guest, which lacks the others.
const AGENT_SLOT: u8 = 0x1e;
/// The kernel's last message before a power-off. QEMU's status, 0, is the same after a reset.
const POWERED_OFF: &str = "reboot: Power down";
/// Time limit for a guest's end after the request to end.
pub const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Number, size and other properties that all guests of a run share.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Number of guests.
    pub vms: usize,
    /// Processors of each guest.
    pub smp: u32,
    /// Memory of each guest, in MiB.
    pub mem: u32,
    /// The accelerator.
    pub accel: Accel,
    /// Locations of programs and files.
    pub install: Install,
    /// The host's directories that guests see.
    pub sources: Vec<SharedDirectory>,
    /// The description of each guest, except its number and its device.
    pub setup: Setup,
    /// The directory of the disks that keep the guests' changes of their root.
    pub overlay: Option<PathBuf>,
    /// The user's options for the kernel.
    pub options: KernelOptions,
    /// Whether all guests have a virtio-rdma device.
    pub all_have_device: bool,
    /// Whether each guest has two virtio entropy devices, of which the second one never answers.
    pub rng: bool,
}

/// The sockets of a guest's network interfaces and RDMA devices.
#[derive(Clone, Debug)]
pub struct Wiring {
    /// The network interface of the first port.
    pub nic: Nic,
    /// The RDMA device of the first port.
    pub rdma: Rdma,
    /// The network interfaces of the other ports, and the sockets of their RDMA devices.
    pub further: Vec<(Nic, PathBuf)>,
    /// An additional network interface for rdma_rxe, beside the device.
    pub beside: Option<Nic>,
}

/// A network interface.
#[derive(Clone, Debug)]
pub struct Nic {
    /// The datagram socket that QEMU binds, unless the interface is of a port.
    pub local: PathBuf,
    /// The datagram socket to which QEMU sends, or the stream socket of a port.
    pub remote: PathBuf,
    /// The MAC address.
    pub mac: String,
}

impl Nic {
    /// QEMU's arguments for the interface, without an RDMA device.
    fn arguments(&self, id: &str, slot: u8) -> Vec<String> {
        let address = format!("{slot:x}.0");
        let backend = format!(
            "dgram,id={id},local.type=unix,local.path={},remote.type=unix,remote.path={}",
            self.local.display(),
            self.remote.display()
        );
        let backend = ["-netdev".into(), backend];
        [backend, interface(id, &self.mac, &address, false)].concat()
    }
}

/// A guest's RDMA device.
#[derive(Clone, Debug)]
pub enum Rdma {
    /// virtio-rdma, at this vfio-user socket.
    Virtio(PathBuf),
    /// rxe, Linux's software device, over the network interface.
    Rxe,
    /// No RDMA device.
    None,
}

impl Rdma {
    /// The kind of the device for the guest's description.
    fn name(&self) -> setup::Rdma {
        match self {
            Self::Virtio(_) => setup::Rdma::Virtio,
            Self::Rxe => setup::Rdma::Rxe,
            Self::None => setup::Rdma::None,
        }
    }
}

/// The servers and files that a guest needs before it starts.
pub struct Prepared {
    number: usize,
    setup: Setup,
    /// QEMU's arguments for the servers and files.
    arguments: Vec<String>,
    servers: Vec<Server>,
    disk: Option<Disk>,
}

impl Prepared {
    /// Starts a guest's servers and writes its files.
    pub fn new(dirs: &RunDirs, shape: &Shape, number: usize, wiring: &Wiring) -> Result<Self> {
        let overlay = shape.overlay.as_deref();
        let disk = overlay.map(|dir| Disk::open(&shape.install.mke2fs, dir, number));
        let disk = disk.transpose()?;
        let mut servers = Vec::new();
        let mut arguments = Vec::new();
        for source in &shape.sources {
            let server = serve(dirs, &shape.install, source, number)?;
            arguments.extend(server.arguments.iter().cloned());
            servers.push(server);
        }
        arguments.extend(disk.iter().flat_map(Disk::arguments));
        Ok(Self {
            number,
            setup: describe(shape, number, wiring),
            arguments,
            servers,
            disk,
        })
    }
}

/// How a guest starts.
#[derive(Debug)]
pub enum Start {
    /// Its kernel boots, on a host whose time stamp counter runs at this rate.
    Boot {
        /// The rate in kHz; `None` if the kernel need not know it.
        tsc_khz: Option<u64>,
    },
    /// It is restored from a saved guest.
    Restore(SavedGuest),
}

/// A running guest.
pub struct Vm {
    /// The number of the guest, from 1.
    pub number: usize,
    /// The output of the guest's kernel and first process.
    pub console: Log,
    /// The file with the messages of QEMU itself.
    pub messages: PathBuf,
    qemu: ReapedChild,
    servers: Vec<Server>,
    _disk: Option<Disk>,
}

impl Vm {
    /// Starts a guest, or restores a saved one as this guest. Returns the guest and the link to its
    /// agent, which ends with QEMU.
    pub fn start(
        dirs: &RunDirs,
        shape: &Shape,
        prepared: Prepared,
        wiring: &Wiring,
        start: &Start,
    ) -> Result<(Self, UnixStream)> {
        let number = prepared.number;
        let console = dirs.logs.join(format!("vm{number}.console"));
        let messages = dirs.logs.join(format!("vm{number}.qemu"));
        let (mut link, port) = UnixStream::pair()?;
        let mut command = machine(shape)?;
        command.args(["-name", &format!("vm{number}")]);
        command.args(devices(shape, number, wiring));
        command.args(prepared.arguments);
        let tsc_khz = match start {
            Start::Boot { tsc_khz } => {
                let initramfs = dirs.run().join(format!("vm{number}.initramfs"));
                write_initramfs(&initramfs, shape, prepared.setup)?;
                command.arg("-initrd").arg(initramfs);
                *tsc_khz
            }
            Start::Restore(saved) => {
                command.args(saved.arguments());
                let resumption = Resumption {
                    setup: prepared.setup,
                    time: SystemTime::now().duration_since(UNIX_EPOCH)?,
                };
                let resumption = serde_json::to_vec(&resumption)?;
                Frame::new(Kind::Setup, 0, resumption).write(&mut link)?;
                Some(saved.tsc_khz)
            }
        };
        command.args(connections(shape, &port, &console, tsc_khz));
        let vm = Self {
            number,
            qemu: ReapedChild::spawn_with(&mut command, &messages, &[port.as_fd()])?,
            console: Log::new(console),
            messages,
            servers: prepared.servers,
            _disk: prepared.disk,
        };
        Ok((vm, link))
    }

    /// The failures of ended servers of the guest's files, with their last messages.
    pub fn dead_servers(&mut self) -> Vec<String> {
        self.servers.iter_mut().filter_map(Server::death).collect()
    }

    /// Whether the guest is running.
    pub fn runs(&mut self) -> bool {
        self.qemu.runs()
    }

    /// Processor time of QEMU: of the guest's processors, if they are emulated.
    pub fn processor_time(&self) -> Duration {
        self.qemu.processor_time()
    }

    /// Waits for the end of a guest that was requested to end, or that a test has powered off.
    /// Returns false if the guest did not end by itself within [`END_TIMEOUT`], or failed.
    pub fn end(&mut self) -> bool {
        let is_expected = |status: ExitStatus| {
            let powered_off = end(&self.console.file).contains(POWERED_OFF);
            status.code() == Some(GUEST_ENDED) || status.success() && powered_off
        };
        self.qemu.ends_within(END_TIMEOUT).is_some_and(is_expected)
    }
}

/// QEMU's arguments for a socket to which QEMU connects.
pub fn chardev(id: &str, socket: &Path) -> [String; 2] {
    let socket = value(socket);
    ["-chardev".into(), format!("socket,id={id},path={socket}")]
}

/// A path in a list of `KEY=VALUE`, where a comma is written twice.
pub fn value(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// QEMU with the devices that all guests of a shape have, and that can be saved. The caller adds
/// its [`connections`].
pub fn machine(shape: &Shape) -> Result<Command> {
    let memory = VmMemory {
        mib: shape.mem.into(),
        backend: Backend::Memfd,
    };
    let mut command = shape.install.qemu.command()?;
    if let Some(firmware) = &shape.install.firmware {
        command.arg("-L").arg(firmware);
    }
    command
        // Without the PIT, the kernel calibrates its clock by the HPET. Calibrated by the PIT, the
        // clock and thus all timeouts in the guest may be far off on a busy host.
        .args(["-machine", "q35,pit=off,memory-backend=mem", "-nodefaults"])
        .args(["-no-user-config", "-display", "none", "-no-reboot"])
        .args(shape.accel.arguments())
        .args(["-smp", &shape.accel.processors(shape.smp)])
        // Shared: virtiofsd and the RDMA device's daemon read and write the guest's memory.
        .args(memory.arguments().concat())
        .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=1"])
        // A restored guest has another identity than the saved one, by which it notices.
        .args(["-device", "vmgenid,guid=auto"])
        .arg("-device")
        .arg(format!("virtio-serial-pci,addr={AGENT_SLOT:x}.0"))
        .arg("-device")
        .arg(format!("virtserialport,chardev=agent,name={PORT_NAME}"))
        .args(["-serial", "chardev:console"])
        .arg("-kernel")
        .arg(&shape.install.kernel.image);
    Ok(command)
}

/// QEMU's arguments for the character devices of [`machine`], and for the kernel's command line.
pub fn connections(
    shape: &Shape,
    agent: &UnixStream,
    console: &Path,
    tsc_khz: Option<u64>,
) -> [String; 6] {
    let agent = format!("socket,id=agent,fd={}", agent.as_raw_fd());
    let console = format!("file,id=console,path={}", value(console));
    let line = command_line(shape, tsc_khz);
    let options = ["-chardev", &agent, "-chardev", &console, "-append", &line];
    options.map(str::to_owned)
}

/// QEMU's arguments for the devices of a guest.
fn devices(shape: &Shape, number: usize, wiring: &Wiring) -> Vec<String> {
    let mut arguments = Vec::new();
    let first = match &wiring.rdma {
        Rdma::Virtio(vfio) => Some((&wiring.nic, vfio)),
        Rdma::Rxe | Rdma::None => {
            arguments.extend(wiring.nic.arguments("rnet", FIRST_SLOT));
            None
        }
    };
    let further = wiring.further.iter().map(|(nic, vfio)| (nic, vfio));
    for ((nic, vfio), slot) in first.into_iter().chain(further).zip(FIRST_SLOT..) {
        let port = Port {
            vfio: vfio.display().to_string(),
            net: Some(nic.remote.display().to_string()),
            mac: nic.mac.clone(),
            slot,
        };
        arguments.extend(port.arguments().concat());
    }
    if let Some(port) = shape.options.gdb {
        let port = usize::from(port) + number - 1;
        arguments.extend(["-gdb".into(), format!("tcp:127.0.0.1:{port}")]);
    }
    if let Some(nic) = &wiring.beside {
        // The interface is in another slot than the device, because the driver must not treat it as
        // the device's own interface.
        arguments.extend(nic.arguments("net2", FIRST_SLOT + 1));
    }
    if shape.rng {
        let mut add = |option: &str, value: String| arguments.extend([option.into(), value]);
        add("-object", "rng-builtin,id=rng0".into());
        add("-chardev", "null,id=silent".into());
        add("-object", "rng-egd,id=rng1,chardev=silent".into());
        for number in 0..2 {
            // The function can only be reset below a PCI Express port.
            add(
                "-device",
                format!("pcie-root-port,id=port{number},chassis={number}"),
            );
            let rng = format!("virtio-rng-pci,bus=port{number},rng=rng{number},romfile=");
            add("-device", rng);
        }
    }
    arguments
}

/// The kernel's command line.
fn command_line(shape: &Shape, tsc_khz: Option<u64>) -> String {
    let level = if shape.options.console { 7 } else { 5 };
    let mut line = format!("console=ttyS0 loglevel={level} panic=-1");
    if shape.options.console {
        // A kernel that ends before its console is up is seen too.
        line.push_str(" earlyprintk=serial");
    }
    if shape.options.gdb.is_some() {
        // gdb knows the addresses of the image.
        line.push_str(" nokaslr");
    }
    line.push_str(&accel::command_line(tsc_khz));
    if !shape.options.append.is_empty() {
        line.push(' ');
        line.push_str(&shape.options.append);
    }
    line
}

/// A guest's description.
fn describe(shape: &Shape, number: usize, wiring: &Wiring) -> Setup {
    Setup {
        number,
        vms: shape.vms,
        shares: shape
            .sources
            .iter()
            .map(|source| source.share.clone())
            .collect(),
        disk: shape.overlay.is_some(),
        rdma: wiring.rdma.name(),
        ports: 1 + wiring.further.len(),
        beside: wiring.beside.is_some(),
        ..shape.setup.clone()
    }
}

fn write_initramfs(file: &Path, shape: &Shape, mut setup: Setup) -> Result<()> {
    let Install { guest, kernel, .. } = &shape.install;
    let mut files = files_of(&kernel.early_modules)?;
    let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    setup.early_modules = files.iter().map(|(path, _)| name(path)).collect();
    files.push((SETUP.to_owned(), serde_json::to_vec(&setup)?));
    let init = read(guest)?;
    let mut to = io::BufWriter::new(create(file)?);
    initramfs::write(&mut to, &init, &files)
        .and_then(|()| io::Write::flush(&mut to))
        .with_context(|| format!("can't write {}", file.display()))
}

/// Modules as files of an initramfs. Their names begin with numbers that tell the order.
pub fn files_of(modules: &[PathBuf]) -> Result<Vec<(String, Vec<u8>)>> {
    let file = |(at, module): (usize, &PathBuf)| {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        Ok((format!("{EARLY_MODULES}/{at:03}-{name}"), read(module)?))
    };
    modules.iter().enumerate().map(file).collect()
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("can't read {}", file.display()))
}
