// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One virtual machine: its file system servers and its QEMU.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result};
use attach::{interface, Backend, Port, VmMemory};
use guest::setup::{self, Setup};
use guest::{PORT_NAME, SETUP};

use crate::accel::Accel;
use crate::disk::Disk;
use crate::initramfs;
use crate::install::{Install, SharedDirectory};
use crate::reaper::{Log, ReapedChild};
use crate::run_dirs::RunDirs;
use crate::shares::{serve, Server};
use crate::tsc::Measurement;
use crate::untrusted::{create, end};

/// QEMU's exit status after the guest's first program has written 1 to isa-debug-exit.
const GUEST_ENDED: i32 = 3;
/// The PCI slot of the first port. The slots of the other ports follow.
const FIRST_SLOT: u8 = 5;
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
    /// Additional arguments for the kernel's command line.
    pub append: String,
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
        let initramfs = dirs.run().join(format!("vm{number}.initramfs"));
        write_initramfs(&initramfs, shape, number, wiring)?;
        arguments.extend(["-initrd".into(), initramfs.display().to_string()]);
        Ok(Self {
            number,
            arguments,
            servers,
            disk,
        })
    }
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
    /// Starts a guest. Returns the guest and the link to its agent, which ends with QEMU.
    pub fn start(
        dirs: &RunDirs,
        shape: &Shape,
        prepared: Prepared,
        wiring: &Wiring,
        tsc: &Measurement,
    ) -> Result<(Self, UnixStream)> {
        let number = prepared.number;
        let console = dirs.logs.join(format!("vm{number}.console"));
        let messages = dirs.logs.join(format!("vm{number}.qemu"));
        let (link, port) = UnixStream::pair()?;
        let mut command = qemu(shape, number, wiring)?;
        command
            .args(prepared.arguments)
            .arg("-chardev")
            .arg(format!("socket,id=agent,fd={}", port.as_raw_fd()))
            .args(["-device", "virtio-serial-pci", "-device"])
            .arg(format!("virtserialport,chardev=agent,name={PORT_NAME}"))
            .args(["-chardev"])
            .arg(format!("file,id=console,path={}", value(&console)))
            .args(["-serial", "chardev:console"])
            .arg("-append")
            .arg(command_line(shape, tsc));
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

fn qemu(shape: &Shape, number: usize, wiring: &Wiring) -> Result<Command> {
    let memory = VmMemory {
        mib: shape.mem.into(),
        backend: Backend::Memfd,
    };
    let mut command = shape.install.qemu.command()?;
    if let Some(firmware) = &shape.install.firmware {
        command.arg("-L").arg(firmware);
    }
    command
        .arg("-name")
        .arg(format!("vm{number}"))
        // Without the PIT, the kernel calibrates its clock by the HPET. Calibrated by the PIT, the
        // clock and thus all timeouts in the guest may be far off on a busy host.
        .args(["-machine", "q35,pit=off,memory-backend=mem", "-nodefaults"])
        .args(["-no-user-config", "-display", "none", "-no-reboot"])
        .args(shape.accel.arguments())
        .args(["-smp", &shape.accel.processors(shape.smp)])
        // Shared: virtiofsd and the RDMA device's daemon read and write the guest's memory.
        .args(memory.arguments().concat())
        .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=1"])
        .arg("-kernel")
        .arg(&shape.install.kernel);
    let first = match &wiring.rdma {
        Rdma::Virtio(vfio) => Some((&wiring.nic, vfio)),
        Rdma::Rxe | Rdma::None => {
            command.args(wiring.nic.arguments("rnet", FIRST_SLOT));
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
        command.args(port.arguments().concat());
    }
    if let Some(nic) = &wiring.beside {
        // The interface is in another slot than the device, because the driver must not treat it as
        // the device's own interface.
        command.args(nic.arguments("net2", FIRST_SLOT + 1));
    }
    if shape.rng {
        command
            .args(["-object", "rng-builtin,id=rng0"])
            .args(["-chardev", "null,id=silent"])
            .args(["-object", "rng-egd,id=rng1,chardev=silent"]);
        for number in 0..2 {
            // The function can only be reset below a PCI Express port.
            command
                .arg("-device")
                .arg(format!("pcie-root-port,id=port{number},chassis={number}"))
                .arg("-device")
                .arg(format!(
                    "virtio-rng-pci,bus=port{number},rng=rng{number},romfile="
                ));
        }
    }
    Ok(command)
}

/// The kernel's command line.
fn command_line(shape: &Shape, tsc: &Measurement) -> String {
    let mut line = String::from("console=ttyS0 loglevel=5 panic=-1");
    line.push_str(&shape.accel.command_line(tsc));
    if !shape.append.is_empty() {
        line.push(' ');
        line.push_str(&shape.append);
    }
    line
}

fn write_initramfs(file: &Path, shape: &Shape, number: usize, wiring: &Wiring) -> Result<()> {
    let setup = Setup {
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
    };
    let program = &shape.install.guest;
    let init = fs::read(program).with_context(|| format!("can't read {}", program.display()))?;
    let setup = serde_json::to_vec(&setup)?;
    let mut to = io::BufWriter::new(create(file)?);
    initramfs::write(&mut to, &init, (SETUP, &setup))
        .and_then(|()| io::Write::flush(&mut to))
        .with_context(|| format!("can't write {}", file.display()))
}
