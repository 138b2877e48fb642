// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Brings a guest up: its name, its network, its RDMA device and the provider.

use std::fmt::Write;
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{bail, Context, Result};
use guest::setup::{Rdma, Setup};
use guest::{needs, SETUP};
use rustix::system::{sethostname, uname};

use crate::hosts::{addresses, hosts};
use crate::{marks, modules, netlink, ports, tools};

/// Directories of shared libraries. Each one that exists gets a link to the provider.
const LIBRARIES: [&str; 3] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];

/// Brings this guest up, and prints the phases of its start.
pub fn run() -> Result<()> {
    marks::end("request")?;
    let setup = fs::read_to_string(SETUP).with_context(|| format!("can't read {SETUP}"))?;
    let setup: Setup = serde_json::from_str(&setup)?;
    name_hosts(&setup)?;
    let tree = setup.modules.as_ref().map(|place| setup.path(place));
    let tree = tree.as_deref();
    if let Some(tree) = tree {
        show_modules(tree)?;
    }
    modules::load(tree, &needed(&setup))?;
    marks::end("modules")?;
    bring_network_up(&setup)?;
    marks::end("network")?;
    match setup.rdma {
        Rdma::None => {}
        Rdma::Rxe => netlink::add_rxe("rxe0", "eth0")?,
        Rdma::Virtio => {
            install_provider(&setup.path(&setup.provider))?;
            match &setup.driver {
                Some(place) => modules::insert(&setup.path(place))?,
                None => modules::load(tree, &["virtio_rdma"])?,
            }
        }
    }
    if setup.beside {
        modules::load(tree, &["rdma_rxe"])?;
        let number = u8::try_from(setup.number).context("the number of a VM must be below 256")?;
        netlink::add_address("eth1", Ipv4Addr::new(10, 8, 0, number).into(), 24)?;
        netlink::set_up("eth1")?;
        netlink::add_rxe("rxe1", "eth1")?;
    }
    marks::end("driver")?;
    ports::await_active(rdma_ports(&setup))?;
    marks::end("port")?;
    tools::install(&setup)?;
    marks::end("tools")?;
    print!("{}", marks::read()?);
    Ok(())
}

/// Number of RDMA ports that the guest gets.
fn rdma_ports(setup: &Setup) -> usize {
    let ports = match setup.rdma {
        Rdma::None => 0,
        Rdma::Rxe => 1,
        Rdma::Virtio => setup.ports,
    };
    ports + usize::from(setup.beside)
}

/// Kernel modules that the guest needs.
fn needed(setup: &Setup) -> Vec<&'static str> {
    needs::modules(match setup.rdma {
        Rdma::None => &["vm"],
        Rdma::Virtio => &["vm", "device"],
        Rdma::Rxe => &["vm", "rxe"],
    })
}

fn name_hosts(setup: &Setup) -> Result<()> {
    sethostname(format!("vm{}", setup.number).as_bytes())?;
    let mut lines = String::from("127.0.0.1 localhost\n::1 localhost\n");
    for host in hosts(setup.vms, setup.ports)? {
        writeln!(lines, "{} {}", host.address, host.name)?;
    }
    fs::create_dir_all("/etc")?;
    fs::write("/etc/hosts", lines).context("can't write /etc/hosts")
}

fn bring_network_up(setup: &Setup) -> Result<()> {
    netlink::set_up("lo")?;
    if setup.beside || setup.ports > 1 {
        // All interfaces are on one switch, so each must answer ARP requests for its own addresses
        // only.
        for (name, value) in [("arp_ignore", "1"), ("arp_announce", "2")] {
            fs::write(format!("/proc/sys/net/ipv4/conf/all/{name}"), value)?;
        }
    }
    for port in 0..setup.ports {
        let interface = format!("eth{port}");
        let (v4, v6) = addresses(setup.number, port)?;
        netlink::add_address(&interface, v4.into(), 24)?;
        netlink::add_address(&interface, v6.into(), 64)?;
        netlink::set_up(&interface)?;
    }
    Ok(())
}

/// Links the modules' directory into the root for modprobe, unless the root has modules of the
/// running kernel.
fn show_modules(tree: &Path) -> Result<()> {
    let parent = Path::new("/usr/lib/modules");
    let system = uname();
    let release = system.release().to_str().context("kernel release")?;
    let at = parent.join(release);
    if at.exists() {
        return Ok(());
    }
    fs::create_dir_all(parent)?;
    symlink(tree, &at).with_context(|| format!("can't link {}", at.display()))
}

/// Installs the provider for libibverbs. There may be several provider files, one for each number
/// of libibverbs's private ABI. They are linked into the distribution's directory of providers.
/// Without such a directory, the configuration names a path, and libibverbs appends the number of
/// its private ABI to this path.
fn install_provider(dir: &Path) -> Result<()> {
    let library = dir.join("libvirtio_rdma.so.1");
    if !library.is_file() {
        bail!("no {}: run `make provider`", library.display());
    }
    let mut driver = dir.join("libvirtio_rdma").display().to_string();
    for place in LIBRARIES.map(Path::new).iter().filter(|at| at.is_dir()) {
        // Programs that are linked with the provider need this link.
        link_into(place, &library)?;
        let providers = place.join("libibverbs");
        if !providers.is_dir() {
            continue;
        }
        for entry in fs::read_dir(dir)?.flatten() {
            if entry.file_name().to_string_lossy().contains("-rdmav") {
                link_into(&providers, &entry.path())?;
            }
        }
        driver = "virtio_rdma".into();
    }
    let drivers = Path::new("/etc/libibverbs.d");
    fs::create_dir_all(drivers)?;
    fs::write(
        drivers.join("virtio_rdma.driver"),
        format!("driver {driver}\n"),
    )?;
    Ok(())
}

fn link_into(dir: &Path, file: &Path) -> Result<()> {
    let link = dir.join(file.file_name().unwrap_or_default());
    let _ = fs::remove_file(&link);
    symlink(file, &link).with_context(|| format!("can't link {}", link.display()))
}
