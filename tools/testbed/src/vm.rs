// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One virtual machine: its file system server and its QEMU.

use std::fs::{self, File};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use attach::{Backend, Link, Memory, Port};
use guest::setup::{self, Setup};
use guest::{PORT_NAME, SETUP};

use crate::accel::Accel;
use crate::disk::Disk;
use crate::initramfs;
use crate::install::{Install, Source};
use crate::places::Places;
use crate::shares::serve;

/// QEMU's status when a guest ends through isa-debug-exit with value 1, as the first program does.
const GUEST_ENDED: i32 = 3;
/// The slot of the first port. The others follow.
const FIRST_SLOT: u8 = 5;
/// The kernel's last message in a guest that is powered off, which QEMU ends with status 0 for as
/// for a reset.
const POWERED_OFF: &str = "reboot: Power down";
/// How long a guest has to end after it was asked to.
pub const END_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a wait looks again.
pub const POLL: Duration = Duration::from_millis(20);

/// How the guests are made.
#[derive(Clone, Debug)]
pub struct Shape {
    /// How many guests there are.
    pub vms: usize,
    /// Processors of each.
    pub smp: u32,
    /// Memory of each, in MiB.
    pub mem: u32,
    /// The accelerator.
    pub accel: Accel,
    /// Their programs and files.
    pub install: Install,
    /// The directories that they see.
    pub sources: Vec<Source>,
    /// The description of each, but for its number and its device.
    pub setup: Setup,
    /// The directory of the disks that keep what they change in their root.
    pub overlay: Option<PathBuf>,
    /// More for the kernel's command line.
    pub append: String,
    /// Whether each has two virtio entropy devices, of which the second one never answers.
    pub rng: bool,
}

/// Where a guest's network and RDMA device come from.
#[derive(Clone, Debug)]
pub struct Wiring {
    /// Its network interface.
    pub nic: Nic,
    /// Its RDMA device.
    pub rdma: Rdma,
    /// Further network interfaces, and the sockets of their RDMA devices.
    pub further: Vec<(Nic, PathBuf)>,
    /// A second network interface, for rdma_rxe beside that device.
    pub beside: Option<Nic>,
}

/// A network interface.
#[derive(Clone, Debug)]
pub struct Nic {
    /// The datagram socket that QEMU binds.
    pub local: PathBuf,
    /// The socket that it sends to.
    pub remote: PathBuf,
    /// Its address.
    pub mac: String,
}

impl Nic {
    fn link(&self) -> Link {
        Link {
            local: self.local.display().to_string(),
            remote: self.remote.display().to_string(),
        }
    }

    /// QEMU's arguments for the interface alone.
    fn arguments(&self, id: &str, slot: u8) -> Vec<String> {
        let address = format!("{slot:x}.0");
        let arguments = self.link().interface(id, &self.mac, &address, false);
        arguments.concat()
    }
}

/// A guest's RDMA device.
#[derive(Clone, Debug)]
pub enum Rdma {
    /// Ours, at a vfio-user socket.
    Virtio(PathBuf),
    /// Stock Linux's software device over the network interface.
    Rxe,
    /// None.
    None,
}

impl Rdma {
    /// The device's name in the guest's description.
    fn name(&self) -> setup::Rdma {
        match self {
            Self::Virtio(_) => setup::Rdma::Virtio,
            Self::Rxe => setup::Rdma::Rxe,
            Self::None => setup::Rdma::None,
        }
    }
}

/// A running guest.
pub struct Vm {
    /// Its number, from 1.
    pub number: usize,
    /// Output of its kernel and its first process.
    pub console: PathBuf,
    /// Messages of QEMU itself.
    pub messages: PathBuf,
    qemu: Reaped,
    _servers: Vec<Reaped>,
    _disk: Option<Disk>,
}

impl Vm {
    /// Starts a guest. Returns it with the link to its agent.
    pub fn start(
        places: &Places,
        shape: &Shape,
        number: usize,
        wiring: &Wiring,
    ) -> Result<(Self, UnixStream)> {
        let agent_socket = places.run().join(format!("vm{number}.agent"));
        let initramfs = places.run().join(format!("vm{number}.initramfs"));
        let console = places.logs.join(format!("vm{number}.console"));
        let messages = places.logs.join(format!("vm{number}.qemu"));

        let overlay = shape.overlay.as_deref();
        let disk = overlay.map(|dir| Disk::open(&shape.install.mke2fs, dir, number));
        let disk = disk.transpose()?;
        let listener = UnixListener::bind(&agent_socket)
            .with_context(|| format!("can't bind {}", agent_socket.display()))?;
        write_initramfs(&initramfs, shape, number, wiring)?;
        let mut servers = Vec::new();
        let mut command = qemu(shape, number, wiring)?;
        for source in &shape.sources {
            let server = serve(places, &shape.install, source, number)?;
            command.args(&server.arguments);
            servers.push(server.process);
        }
        if let Some(disk) = &disk {
            command.args(disk.arguments());
        }
        command
            .arg("-initrd")
            .arg(&initramfs)
            .args(chardev("agent", &agent_socket))
            .args(["-device", "virtio-serial-pci", "-device"])
            .arg(format!("virtserialport,chardev=agent,name={PORT_NAME}"))
            .args(["-chardev"])
            .arg(format!("file,id=console,path={}", value(&console)))
            .args(["-serial", "chardev:console"])
            .arg("-append")
            .arg(command_line(shape));
        let qemu = command
            .logged(&messages)?
            .spawn()
            .context("can't start qemu-system-x86_64")?;
        let mut qemu = Reaped::new(qemu);

        let link = await_connection(&listener, qemu.child()).with_context(|| {
            let said = fs::read_to_string(&messages).unwrap_or_default();
            format!("QEMU of VM {number} did not start: {}", said.trim())
        })?;
        let vm = Self {
            number,
            console,
            messages,
            qemu,
            _servers: servers,
            _disk: disk,
        };
        Ok((vm, link))
    }

    /// Whether it has not ended.
    pub fn runs(&mut self) -> bool {
        matches!(self.qemu.0.try_wait(), Ok(None))
    }

    /// Waits for a guest that was asked to end, or that a test has powered off, and ends one that
    /// does not. False if it ended otherwise.
    pub fn end(&mut self) -> bool {
        let until = Instant::now() + END_TIMEOUT;
        loop {
            match self.qemu.0.try_wait() {
                Ok(Some(status)) => {
                    return status.code() == Some(GUEST_ENDED)
                        || status.success() && self.said(POWERED_OFF);
                }
                Ok(None) if Instant::now() < until => thread::sleep(POLL),
                _ => break,
            }
        }
        self.qemu.kill();
        false
    }

    fn said(&self, what: &str) -> bool {
        let console = fs::read(&self.console).unwrap_or_default();
        String::from_utf8_lossy(&console).contains(what)
    }
}

/// A child that is ended with this.
pub struct Reaped(Child);

impl Reaped {
    /// Takes charge of a child.
    pub fn new(child: Child) -> Self {
        Self(child)
    }

    /// The child.
    pub fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    fn kill(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Reaped {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Puts a command's output into a file, and the command out of reach of the terminal's Ctrl-C:
/// ending it is this program's work.
pub trait Logged {
    /// Does so.
    fn logged(&mut self, file: &Path) -> Result<&mut Self>;
}

impl Logged for Command {
    fn logged(&mut self, file: &Path) -> Result<&mut Self> {
        let log = File::create(file).with_context(|| format!("can't create {}", file.display()))?;
        Ok(self
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0))
    }
}

/// QEMU's arguments for a socket that it connects to.
pub fn chardev(id: &str, socket: &Path) -> [String; 2] {
    let socket = value(socket);
    ["-chardev".into(), format!("socket,id={id},path={socket}")]
}

/// A path in a list of `KEY=VALUE`, where a comma is written twice.
pub fn value(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

fn qemu(shape: &Shape, number: usize, wiring: &Wiring) -> Result<Command> {
    let memory = Memory {
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
        // Without the PIT the kernel takes its clock's rate from the HPET. Against the PIT it can
        // be wrong by far when the host is busy, and every timeout in the guest with it.
        .args(["-machine", "q35,pit=off,memory-backend=mem", "-nodefaults"])
        .args(["-no-user-config", "-display", "none", "-no-reboot"])
        .args(shape.accel.arguments())
        .args(["-smp", &shape.smp.to_string()])
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
            link: Some(nic.link()),
            mac: nic.mac.clone(),
            slot,
        };
        command.args(port.arguments().concat());
    }
    if let Some(nic) = &wiring.beside {
        // In a slot of its own, where the driver does not take it for the device's.
        command.args(nic.arguments("net2", FIRST_SLOT + 1));
    }
    if shape.rng {
        command
            .args(["-object", "rng-builtin,id=rng0"])
            .args(["-chardev", "null,id=silent"])
            .args(["-object", "rng-egd,id=rng1,chardev=silent"]);
        for number in 0..2 {
            // Only below a port of PCI Express can such a function be reset.
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
fn command_line(shape: &Shape) -> String {
    let mut line = String::from("console=ttyS0 loglevel=5 panic=-1");
    line.push_str(&shape.accel.command_line());
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
    let init = fs::read(program).with_context(|| format!("no {}", program.display()))?;
    let setup = serde_json::to_vec(&setup)?;
    let mut to = io::BufWriter::new(File::create(file)?);
    initramfs::write(&mut to, &init, (SETUP, &setup))
        .and_then(|()| io::Write::flush(&mut to))
        .with_context(|| format!("can't write {}", file.display()))
}

fn await_connection(listener: &UnixListener, client: &mut Child) -> Result<UnixStream> {
    listener.set_nonblocking(true)?;
    let until = Instant::now() + END_TIMEOUT;
    loop {
        match listener.accept() {
            Ok((link, _)) => {
                link.set_nonblocking(false)?;
                return Ok(link);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        if let Some(status) = client.try_wait()? {
            bail!("{status}");
        }
        if Instant::now() > until {
            bail!("no connection within {} s", END_TIMEOUT.as_secs());
        }
        thread::sleep(POLL);
    }
}
