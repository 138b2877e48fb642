// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The command `qemu-args`: prints the arguments that attach a VM to a port, and checks whether
//! this host supports them.

use std::io::Write;
use std::ops::RangeInclusive;
use std::path::{self, Path, PathBuf};
use std::process::Command;

use anyhow::{bail, ensure, Context, Result};
use attach::{domain, shell, Argument, Backend, Port, VmMemory};
use rustix::fs::statfs;

use crate::cli::PortArgs;
use crate::size::parse_size;

/// The first version of QEMU with a vfio-user client.
const LEAST_QEMU: (u32, u32) = (10, 1);

const MIB: u64 = 1 << 20;

/// File systems in memory, by their numbers in statfs(2).
const TMPFS: i64 = 0x0102_1994;
const HUGETLBFS: i64 = 0x9584_58f6;

/// File with the number of free huge pages of 2 MiB.
const FREE_HUGE_PAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

/// The port, the VM's memory, and the output format.
#[derive(Debug, clap::Args)]
pub struct QemuArgs {
    /// The port, in the form of the daemon's option --port.
    #[arg(
        long,
        value_name = "NAME,vfio=SOCKET,net=SOCKET,mac=MAC[,KEY=VALUE...]"
    )]
    port: PortArgs,

    /// Size of the VM's memory.
    #[arg(long, value_name = "SIZE", value_parser = parse_mib, default_value = "2G")]
    mem: u64,

    /// Files that hold the memory: a memfd, a memfd of huge pages of 2 MiB, or files in a directory
    /// of tmpfs or hugetlbfs.
    #[arg(
        long,
        value_name = "memfd|hugepages|DIRECTORY",
        value_parser = parse_backend,
        default_value = "memfd"
    )]
    backend: Backend,

    /// PCI slot of the network interface and the device on the root bus, in hexadecimal.
    #[arg(long, value_name = "HEX", value_parser = parse_slot, default_value = "1d")]
    slot: u8,

    /// Print XML for libvirt, with absolute paths.
    #[arg(long, conflicts_with = "json")]
    libvirt: bool,

    /// Print a JSON array of strings.
    #[arg(long)]
    json: bool,

    /// The QEMU program whose version and devices are checked.
    #[arg(long, value_name = "PROGRAM", default_value = "qemu-system-x86_64")]
    qemu: PathBuf,

    /// Check neither QEMU nor the memory of this host.
    #[arg(long)]
    no_check: bool,
}

/// Free slots on the root bus of a q35 machine. Slots 0 and 0x1f hold functions of the machine.
const SLOTS: RangeInclusive<u8> = 1..=0x1e;

fn parse_slot(text: &str) -> Result<u8> {
    let slot = u8::from_str_radix(text, 16).ok();
    slot.filter(|slot| SLOTS.contains(slot)).with_context(|| {
        let (first, last) = SLOTS.into_inner();
        format!("{text:?} is not a free slot of a q35 machine, from {first:x} to {last:x}")
    })
}

fn parse_mib(text: &str) -> Result<u64> {
    let bytes = parse_size(text)?;
    ensure!(
        bytes > 0 && bytes % MIB == 0,
        "{text:?} is not a whole number of MiB"
    );
    Ok(bytes / MIB)
}

fn parse_backend(text: &str) -> Result<Backend> {
    Ok(match text {
        "memfd" => Backend::Memfd,
        "hugepages" => Backend::HugePages,
        _ if text.starts_with('/') => Backend::Directory(text.to_owned()),
        _ => bail!("{text:?} is neither memfd, hugepages nor an absolute path"),
    })
}

/// Checks the host, and prints the arguments for `args.port`.
pub fn show(args: &QemuArgs, out: &mut impl Write) -> Result<()> {
    let memory = VmMemory {
        mib: args.mem,
        backend: args.backend.clone(),
    };
    if !args.no_check {
        check_qemu(&args.qemu)?;
        check_memory(&memory)?;
    }
    let most = args.port.most_guest_memory() / MIB;
    ensure!(
        memory.mib <= most,
        "the port maps {most} MiB of the VM's {}: add guest-memory={}M to the port",
        memory.mib,
        memory.mib
    );
    // libvirt starts QEMU in another working directory, so it needs absolute paths.
    let port = port(&args.port, args.slot, args.libvirt)?;
    let text = if args.libvirt {
        domain(&memory.backend, &port.arguments())
    } else if args.json {
        serde_json::to_string(&all(&memory, &port).concat())?
    } else {
        shell(&all(&memory, &port))
    };
    writeln!(out, "{text}").context("can't write the arguments")
}

/// The arguments for machine, memory and devices.
fn all(memory: &VmMemory, port: &Port) -> Vec<Argument> {
    let machine = ["-machine".into(), "q35,memory-backend=mem".into()];
    [machine]
        .into_iter()
        .chain(memory.arguments())
        .chain(port.arguments())
        .collect()
}

fn port(args: &PortArgs, slot: u8, absolute: bool) -> Result<Port> {
    let text = |path: &PathBuf| -> Result<String> {
        let path = if absolute {
            path::absolute(path).context("the working directory is gone")?
        } else {
            path.clone()
        };
        let text = path.to_str();
        Ok(text
            .with_context(|| format!("{path:?} is not UTF-8"))?
            .to_owned())
    };
    Ok(Port {
        vfio: text(&args.vfio)?,
        net: args.net.as_ref().map(text).transpose()?,
        mac: args.mac.to_string(),
        slot,
    })
}

/// Fails unless the program is a QEMU of sufficient version with all needed devices.
fn check_qemu(program: &Path) -> Result<()> {
    let told = ask(program, &["--version"])?;
    let version = version(&told).with_context(|| {
        let first = told.lines().next().unwrap_or_default();
        format!("{} is no QEMU: it says {first:?}", program.display())
    })?;
    let (major, minor) = version;
    let (least_major, least_minor) = LEAST_QEMU;
    ensure!(
        version >= LEAST_QEMU,
        "{} is QEMU {major}.{minor}, which has no vfio-user: take {least_major}.{least_minor} or \
         later (--qemu PROGRAM)",
        program.display()
    );
    for (option, names) in [
        ("-device", &["vfio-user-pci", "virtio-net-pci"] as &[_]),
        ("-object", &["memory-backend-memfd"]),
    ] {
        let known = ask(program, &[option, "help"])?;
        for name in names {
            ensure!(
                known.contains(name),
                "{} was built without {name}: take another one (--qemu PROGRAM)",
                program.display()
            );
        }
    }
    Ok(())
}

/// Runs QEMU with these arguments, and returns its output.
fn ask(program: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(["-machine", "none"])
        .args(arguments)
        .output()
        .with_context(|| {
            format!(
                "can't run {}: install QEMU, name it by --qemu, or skip the checks by --no-check",
                program.display()
            )
        })?;
    ensure!(
        output.status.success(),
        "{} {} ended with {}",
        program.display(),
        arguments.join(" "),
        output.status
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Parses major and minor version from `QEMU emulator version 10.1.2 (...)`.
fn version(told: &str) -> Option<(u32, u32)> {
    let (_, rest) = told.split_once("QEMU emulator version ")?;
    let mut numbers = rest.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Fails unless the host can provide the memory.
fn check_memory(memory: &VmMemory) -> Result<()> {
    match &memory.backend {
        Backend::Memfd => Ok(()),
        Backend::HugePages => {
            let free = std::fs::read_to_string(FREE_HUGE_PAGES)
                .with_context(|| format!("no huge pages: can't read {FREE_HUGE_PAGES}"))?;
            let free: u64 = free.trim().parse().context(FREE_HUGE_PAGES)?;
            let needed = memory.mib.div_ceil(2);
            ensure!(
                free >= needed,
                "{needed} huge pages of 2 MiB are needed, {free} are free: \
                 sysctl vm.nr_hugepages=N makes some"
            );
            Ok(())
        }
        Backend::Directory(path) => {
            let kind = statfs(path.as_str()).with_context(|| format!("can't examine {path}"))?;
            match kind.f_type as i64 {
                TMPFS | HUGETLBFS => Ok(()),
                _ => bail!("{path} is neither on tmpfs nor on hugetlbfs, as /dev/shm is"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        let debian = "QEMU emulator version 10.1.2 (Debian 1:10.1.2+ds-3)\nCopyright ...";
        assert_eq!(version(debian), Some((10, 1)));
        assert_eq!(version("QEMU emulator version 9.2.50 (v9)"), Some((9, 2)));
        assert_eq!(version("bash 5.2"), None);
    }

    #[test]
    fn a_program_that_is_no_qemu_is_named() {
        let error = check_qemu(Path::new("/bin/echo")).unwrap_err();
        assert!(format!("{error:#}").contains("/bin/echo is no QEMU"));
        let error = check_qemu(Path::new("/nonexistent")).unwrap_err();
        assert!(format!("{error:#}").contains("--no-check"), "{error:#}");
    }

    #[test]
    fn a_directory_on_a_disk_is_refused() {
        let memory = |path: &str| VmMemory {
            mib: 64,
            backend: Backend::Directory(path.into()),
        };
        let error = check_memory(&memory("/proc")).unwrap_err();
        assert!(format!("{error:#}").contains("/proc is neither"));
        assert!(check_memory(&memory("/nonexistent")).is_err());
        check_memory(&memory("/dev/shm")).unwrap();
    }
}
