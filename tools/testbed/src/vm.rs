// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One virtual machine: its file system server and its QEMU.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use attach::{Backend, Link, Memory, Port};
use clap::ValueEnum;

use crate::agent::PORT_NAME;
use crate::places::Places;
use crate::tsc;

/// QEMU's status when a guest ends through isa-debug-exit with value 1, as guest/init does.
const GUEST_ENDED: i32 = 3;
/// The kernel's last message in a guest that is powered off, which QEMU ends with status 0 for as
/// for a reset.
const POWERED_OFF: &str = "reboot: Power down";
/// How long a guest has to end after it was asked to.
const END_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// The accelerator that runs the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Accel {
    /// The host's processor.
    Kvm,
    /// QEMU's translator.
    Tcg,
    /// The same, with one processor at a time and a clock that goes by what is executed: the time
    /// stamp counter ticks once an instruction.
    Counted,
}

/// Parameters of the kernel for an emulated processor, whose time stamp counter ticks at `tsc_khz`.
fn emulated(tsc_khz: u64) -> String {
    format!(
        " init_on_alloc=1 tsc_early_khz={tsc_khz} tsc=reliable no_timer_check \
         watchdog_thresh=30 rcupdate.rcu_cpu_stall_timeout=60 \
         sysctl.kernel.hung_task_timeout_secs=240"
    )
}

impl Accel {
    /// KVM if it can run a guest. Its device file can be there and open on a host whose processor
    /// offers no virtualization, so both are looked at.
    pub fn detect() -> Self {
        let flags = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let able = flags
            .lines()
            .filter(|line| line.starts_with("flags"))
            .any(|line| line.split(' ').any(|flag| flag == "vmx" || flag == "svm"));
        let opens = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/kvm")
            .is_ok();
        if able && opens {
            Self::Kvm
        } else {
            Self::Tcg
        }
    }

    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Kvm => &["-accel", "kvm", "-cpu", "host"],
            Self::Tcg => &[
                "-accel",
                "tcg,thread=multi",
                // With ERMS and FSRM the kernel clears and copies pages by a string instruction
                // that is translated byte by byte: starting a program takes more than twice as
                // long.
                "-cpu",
                "max,-erms,-fsrm",
            ],
            Self::Counted => &[
                "-accel",
                "tcg,thread=single",
                "-icount",
                "shift=0",
                "-cpu",
                "max,-erms,-fsrm",
            ],
        }
    }

    /// Parameters of the kernel about it.
    fn command_line(self) -> String {
        match self {
            Self::Kvm => String::new(),
            // - A page that virtiofsd fills behind QEMU's back may still be cached as translated
            //   code, unless the guest itself writes the page first.
            // - The guest's time stamp counter is the host's. On a busy host the kernel measures it
            //   wrongly, by a factor of 30 even, and takes it for broken when it watches it.
            // - By that counter it gives the timer ten ticks for five interrupts, and panics
            //   without them. Under KVM it knows not to.
            // - Where an instruction costs twenty, what hangs is told from what is slow by a longer
            //   wait.
            Self::Tcg => emulated(tsc::khz()),
            // An instruction is a nanosecond.
            Self::Counted => emulated(1_000_000),
        }
    }
}

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
    /// The kernel image.
    pub kernel: PathBuf,
    /// A tree with lib/modules for this kernel, if the sysroot's does not serve.
    pub modules: Option<PathBuf>,
    /// More for the kernel's command line.
    pub append: String,
    /// Whether each has two virtio entropy devices, of which the second one never answers.
    pub rng: bool,
}

/// Where a guest's network and RDMA device come from.
#[derive(Clone, Debug)]
pub struct Wiring {
    /// The datagram socket that QEMU binds.
    pub local: PathBuf,
    /// The socket that it sends to.
    pub remote: PathBuf,
    /// The network interface's address.
    pub mac: String,
    /// Its RDMA device.
    pub rdma: Rdma,
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
    /// The name that the guest's scripts give it.
    fn name(&self) -> &'static str {
        match self {
            Self::Virtio(_) => "virtio",
            Self::Rxe => "rxe",
            Self::None => "none",
        }
    }
}

/// Puts what a guest may see into the directory `$1` of a mount namespace, and starts a program:
/// the sysroot without what is mounted over it (`/dev`, `/proc`, `/sys`, `/tmp` of the host), the
/// checkout `$2` and the directory `$3` from which the test bed was called. All of it is read-only.
const SHARE: &str = r#"
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

/// A running guest.
pub struct Vm {
    /// Its number, from 1.
    pub number: usize,
    /// Output of its kernel and its first process.
    pub console: PathBuf,
    /// Messages of QEMU itself.
    pub messages: PathBuf,
    qemu: Child,
    virtiofsd: Child,
}

impl Vm {
    /// Starts a guest. Returns it with the link to its agent.
    pub fn start(
        places: &Places,
        shape: &Shape,
        number: usize,
        wiring: &Wiring,
    ) -> Result<(Self, UnixStream)> {
        let fs_socket = places.run.join(format!("vm{number}.fs"));
        let agent_socket = places.run.join(format!("vm{number}.agent"));
        let console = places.logs.join(format!("vm{number}.console"));
        let messages = places.logs.join(format!("vm{number}.qemu"));

        let listener = UnixListener::bind(&agent_socket)
            .with_context(|| format!("can't bind {}", agent_socket.display()))?;
        let shared = places.run.join(format!("vm{number}.root"));
        let virtiofsd = Command::new("unshare")
            // The root of the test bed is no mount point, whose propagation could be changed.
            .args(["--net", "--mount", "--propagation", "unchanged"])
            .args(["sh", "-c", SHARE, "sh"])
            .args([&shared, &places.top, &env::current_dir()?])
            .arg("/usr/libexec/virtiofsd")
            .arg(format!("--socket-path={}", fs_socket.display()))
            .arg("--shared-dir")
            .arg(&shared)
            // A guest that takes it over gets no further.
            .args(["--readonly", "--sandbox", "chroot", "--seccomp", "kill"])
            // An automatic mount point can't lie below the guest's overlay.
            .args(["--no-announce-submounts", "--log-level", "warn"])
            // Otherwise the guest reads a file again each time that it is opened: all of libc for
            // each program that starts, and all translated code of it is thrown away. Files that
            // change below an overlay are not to be looked at anyway.
            .args(["--cache", "always"])
            .logged(&places.logs.join(format!("vm{number}.virtiofsd")))?
            .spawn()
            .context("can't start virtiofsd")?;
        let mut virtiofsd = Reaped(Some(virtiofsd));
        await_socket(&fs_socket, virtiofsd.child()?)?;

        let mut command = qemu(shape, number, wiring);
        command
            .args(chardev("fs", &fs_socket))
            .args(["-device", "vhost-user-fs-pci,chardev=fs,tag=root"])
            .args(chardev("agent", &agent_socket))
            .args(["-device", "virtio-serial-pci", "-device"])
            .arg(format!("virtserialport,chardev=agent,name={PORT_NAME}"))
            .arg("-serial")
            .arg(format!("file:{}", console.display()))
            .arg("-append")
            .arg(command_line(places, shape, number, wiring));
        let qemu = command
            .logged(&messages)?
            .spawn()
            .context("can't start qemu-system-x86_64")?;
        let mut qemu = Reaped(Some(qemu));

        let link = await_connection(&listener, qemu.child()?).with_context(|| {
            let said = fs::read_to_string(&messages).unwrap_or_default();
            format!("QEMU of VM {number} did not start: {}", said.trim())
        })?;
        let vm = Self {
            number,
            console,
            messages,
            qemu: qemu.take()?,
            virtiofsd: virtiofsd.take()?,
        };
        Ok((vm, link))
    }

    /// Whether it has not ended.
    pub fn runs(&mut self) -> bool {
        matches!(self.qemu.try_wait(), Ok(None))
    }

    /// Waits for a guest that was asked to end, or that a test has powered off, and ends one that
    /// does not. False if it ended otherwise.
    pub fn end(&mut self) -> bool {
        let until = Instant::now() + END_TIMEOUT;
        loop {
            match self.qemu.try_wait() {
                Ok(Some(status)) => {
                    return status.code() == Some(GUEST_ENDED)
                        || status.success() && self.said(POWERED_OFF);
                }
                Ok(None) if Instant::now() < until => thread::sleep(POLL),
                _ => break,
            }
        }
        self.kill();
        false
    }

    fn said(&self, what: &str) -> bool {
        let console = fs::read(&self.console).unwrap_or_default();
        String::from_utf8_lossy(&console).contains(what)
    }

    fn kill(&mut self) {
        for child in [&mut self.qemu, &mut self.virtiofsd] {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A child that is ended if nobody takes it over.
struct Reaped(Option<Child>);

impl Reaped {
    fn child(&mut self) -> Result<&mut Child> {
        self.0.as_mut().context("the process was taken over")
    }

    fn take(&mut self) -> Result<Child> {
        self.0.take().context("the process was taken over")
    }
}

impl Drop for Reaped {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
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

fn chardev(id: &str, socket: &Path) -> [String; 2] {
    let socket = socket.display();
    ["-chardev".into(), format!("socket,id={id},path={socket}")]
}

fn qemu(shape: &Shape, number: usize, wiring: &Wiring) -> Command {
    let memory = Memory {
        mib: shape.mem.into(),
        backend: Backend::Memfd,
    };
    let mut command = Command::new("qemu-system-x86_64");
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
        .arg(&shape.kernel);
    let link = |local: &Path, remote: &Path| Link {
        local: local.display().to_string(),
        remote: remote.display().to_string(),
    };
    let net = link(&wiring.local, &wiring.remote);
    match &wiring.rdma {
        Rdma::Virtio(vfio) => {
            let port = Port {
                vfio: vfio.display().to_string(),
                link: Some(net),
                mac: wiring.mac.clone(),
                slot: 5,
            };
            command.args(port.arguments().concat());
        }
        _ => {
            command.args(net.interface("rnet", &wiring.mac, "5.0", false).concat());
        }
    }
    if let Some(nic) = &wiring.beside {
        // In a slot of its own, where the driver does not take it for the device's.
        let net = link(&nic.local, &nic.remote);
        command.args(net.interface("net2", &nic.mac, "6.0", false).concat());
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
    command
}

/// The kernel's command line. Parameters that it does not know itself go to the environment of
/// guest/init.
fn command_line(places: &Places, shape: &Shape, number: usize, wiring: &Wiring) -> String {
    let mut line = format!(
        "console=ttyS0 loglevel=5 panic=-1 root=root rootfstype=virtiofs ro init={} \
         TESTBED_AGENT={} TESTBED_VM={number} TESTBED_VMS={} TESTBED_RDMA={}",
        places.top.join("tools/testbed/guest/init").display(),
        places.program.display(),
        shape.vms,
        wiring.rdma.name(),
    );
    if wiring.beside.is_some() {
        line.push_str(" TESTBED_BESIDE=rxe");
    }
    line.push_str(&shape.accel.command_line());
    if let Some(modules) = &shape.modules {
        line.push_str(&format!(" TESTBED_MODULES={}", modules.display()));
    }
    if !shape.append.is_empty() {
        line.push(' ');
        line.push_str(&shape.append);
    }
    line
}

fn await_socket(socket: &Path, server: &mut Child) -> Result<()> {
    let until = Instant::now() + END_TIMEOUT;
    while !socket.exists() {
        if let Some(status) = server.try_wait()? {
            bail!("the server of {} ended: {status}", socket.display());
        }
        if Instant::now() > until {
            bail!("the server of {} did not start", socket.display());
        }
        thread::sleep(POLL);
    }
    Ok(())
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
