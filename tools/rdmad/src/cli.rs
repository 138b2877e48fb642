// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The command line of the daemon.

use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{self, Path, PathBuf};
use std::str::FromStr;

use anyhow::{bail, ensure, Context, Result};
use chaos::Scenario;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand, ValueEnum};
use nix::unistd::{Group, User};
use serde::{Deserialize, Serialize};
use sockets::Access;
use vdev::{F_ACCESS_PLATFORM, F_INDIRECT_DESC, F_RING_RESET, F_VERSION_1, MAX_NAME};
use verbs::{LinkSpeed, PathPolicy, PortRates, MAX_PORTS, MAX_WORKERS};
use virtio_rdma_abi::feature::Features;
use vswitch::{DatagramPath, FaultPlan, Uplink, UplinkConfig};

use crate::ctl::CtlArgs;
use crate::in_use::InUse;
use crate::octal::{self, parse_mode};
use crate::qemu_args::QemuArgs;
use crate::rates::{self, parse_bytes, parse_messages};
use crate::size::{mib, parse_size};
use crate::status::Form;

/// Features of the virtio transport, by their names on the command line.
const TRANSPORT_FEATURES: [(&str, u32); 4] = [
    ("indirect-desc", F_INDIRECT_DESC),
    ("version-1", F_VERSION_1),
    ("access-platform", F_ACCESS_PLATFORM),
    ("ring-reset", F_RING_RESET),
];

/// Software RDMA device for virtual machines.
///
/// Each port is a virtio-rdma PCI function, which QEMU plugs into a VM by vfio-user, and the far
/// end of the VM's Ethernet link: the command qemu-args prints QEMU's arguments. A switch forwards
/// packets between ports. RDMA data between two ports is copied from memory to memory.
#[derive(Debug, Parser)]
#[command(
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub struct Args {
    /// Command to run instead of the daemon.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// A VM: name, socket for QEMU's vfio-user-pci, socket for the network interface (QEMU's
    /// -netdev stream), MAC address, and the reported link speed in Gb/s (100 by default).
    /// May be repeated.
    ///
    /// ip=IP, once for each address, gives the VM its IP addresses: it may use no others, and no
    /// other VM may use these. Without ip=, two VMs of the daemon can't have one address as a GID
    /// at the same time.
    ///
    /// macs=MAC, once for each address, allows additional MAC addresses of the VM's network
    /// interface, for example those of its macvlan interfaces. The RDMA device is reached at them
    /// too, and sends with the address of mac=.
    ///
    /// net-roce=on forwards RoCE from the VM's network interface. By default it is dropped: only
    /// the RDMA device sends RoCE from this MAC address. memory=SIZE limits the memory that the
    /// daemon allocates for the port, guest-memory=SIZE (4G) the memory of the VM that it maps.
    ///
    /// rate=BYTES[:BURST] and messages=COUNT[:BURST] limit the bytes and messages that all QPs of
    /// the VM together send per second.
    ///
    /// group=NAME puts the VM into an isolation group: it reaches only the VMs of this group, and
    /// hosts behind uplinks. VMs without a group form a group too.
    ///
    /// user=USER admits only a QEMU of this user, which gets the sockets. socket-group=GROUP
    /// replaces --socket-group for the sockets of this port.
    #[arg(
        long = "port",
        required = true,
        value_name = "NAME,vfio=SOCKET,net=SOCKET,mac=MAC[,KEY=VALUE...]"
    )]
    pub ports: Vec<PortArgs>,

    /// Maximum memory that the daemon allocates for one port, unless the port has memory=SIZE.
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, default_value = "256M")]
    pub memory: u64,

    /// How two ports of this process exchange data: memory to memory, or always as packets.
    #[arg(long, value_enum, default_value_t = DataPath::Direct)]
    pub path: DataPath,

    /// Write the frames that cross the switch to a capture file, which must not exist.
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,

    /// Only tell, by the exit status, whether this program could take over from one that has
    /// records of this format.
    #[arg(long, value_name = "FORMAT", hide = true)]
    pub takes_over: Option<String>,

    /// Users who may connect to the sockets of ports.
    #[command(flatten)]
    pub sockets: SocketArgs,

    /// Join the switch to another daemon or a host: Unix datagrams, UDP datagrams, or a tap
    /// interface. May be repeated.
    ///
    /// routed=on is for uplinks with IP routers behind them: packets of a connection are accepted
    /// from any MAC address there. Without it, they must come from the MAC address of the peer.
    ///
    /// Both ends of a Unix uplink must belong to the same user: LOCAL has the permissions 600, and
    /// nothing is sent to a REMOTE of another user but root.
    #[arg(
        long = "uplink",
        value_name = "unix:LOCAL:REMOTE|udp:BIND:PEER|tap:NAME[,routed=on]",
        value_parser = parse_uplink
    )]
    pub uplinks: Vec<UplinkConfig>,

    /// Inject faults into RoCE packets with these probabilities. The same seed gives the same
    /// faults.
    #[arg(
        long,
        value_name = "drop=P,duplicate=P,reorder=P,corrupt=P,delay=P,seed=N"
    )]
    pub faults: Option<FaultPlan>,

    /// Let commands, work requests, completions, packets and more fail by the rules of a scenario:
    /// a file, or one of dying-peer, flaky-link, lossy-1pct, port-flap, reg-fails, slow-commands,
    /// slow-receiver, weak-nic and everything[:SEED]. ctl chaos tells how often each rule has
    /// applied, and changes the rules.
    #[arg(long, value_name = "FILE|NAME", value_parser = parse_scenario)]
    pub chaos: Option<Scenario>,

    /// Do not offer this device feature, or all features of the device type. May be repeated.
    #[arg(long = "withhold", value_name = "FEATURE", value_parser = feature_parser())]
    pub withheld: Vec<Features>,

    /// Offer VIRTIO_F_ORDER_PLATFORM: the guest uses memory barriers as for a hardware device. This
    /// device does not need them.
    #[arg(long)]
    pub order_platform: bool,

    /// Distance between doorbell pages: a power of two from 4K to 64K, and at least the page size
    /// of the guests' kernels.
    #[arg(long, value_name = "SIZE", value_parser = parse_stride, default_value = "4K")]
    pub doorbell_stride: u8,

    /// Number of threads that serve the queues of all ports. The default is one less than the
    /// number of CPUs, from 1 to 4.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(WORKERS))]
    pub workers: Option<u16>,

    /// Serve queues by N threads, each on a CPU of its own. These threads never sleep, and request
    /// no doorbells for queues that they watch. They use the last N of the CPUs that the daemon may
    /// use; its other threads use the rest. Keep other programs, including the VMs, off these CPUs.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(WORKERS),
        conflicts_with_all = ["workers", "poll"])]
    pub dedicate: Option<u16>,

    /// How long to keep polling an idle queue before requesting a doorbell; 0 requests it at once.
    /// A polling thread occupies a CPU. A longer time makes sense if the thread has a CPU of its
    /// own.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = verbs::DEFAULT_POLL_MICROSECONDS,
        value_parser = clap::value_parser!(u32).range(..=100_000))]
    pub poll: u32,

    /// Confinement of the daemon once it is ready. "none" is for debugging.
    #[arg(long, value_enum, default_value_t = Sandbox::On)]
    pub sandbox: Sandbox,

    /// Report the status at this socket: see the command status. Its permissions are 600, or 660
    /// with --status-group.
    #[arg(long, value_name = "SOCKET")]
    pub status: Option<PathBuf>,

    /// Group of users who may read the status, by its name or number.
    #[arg(long, value_name = "GROUP", value_parser = parse_group, requires = "status")]
    pub status_group: Option<u32>,

    /// Accept control commands at this socket: see the command ctl. Its permissions are 600, or 660
    /// with --ctl-group.
    #[arg(long, value_name = "SOCKET")]
    pub ctl: Option<PathBuf>,

    /// Group of users who may control the daemon, by its name or number.
    #[arg(long, value_name = "GROUP", value_parser = parse_group, requires = "ctl")]
    pub ctl_group: Option<u32>,

    /// Number of ports that can be added while the daemon runs, in addition to removed ones
    /// (default 8 with --ctl).
    #[arg(long, value_name = "N", requires = "ctl")]
    pub spare_ports: Option<u16>,

    /// Write what the command ctl changes to this file, and restore it at the next start: ports,
    /// limits, and the level of the log. No other daemon may use the file.
    #[arg(long, value_name = "FILE", requires = "ctl")]
    pub state: Option<PathBuf>,

    /// Restore added ports with sockets below this directory too, in addition to the directories of
    /// the sockets of --port. May be repeated.
    #[arg(long = "port-directory", value_name = "DIRECTORY", requires = "state")]
    pub port_directories: Vec<PathBuf>,

    /// Write a line to this file descriptor, a pipe, once QEMU may be started. A service manager at
    /// NOTIFY_SOCKET is notified too.
    #[arg(long, value_name = "N")]
    pub ready_fd: Option<u32>,
}

/// Users who may connect to the sockets of ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SocketArgs {
    /// Permissions of the sockets of ports; by default 600, or 660 with a group.
    #[arg(long, value_name = "OCTAL", value_parser = parse_mode)]
    #[serde(
        rename = "mode",
        default,
        with = "octal",
        skip_serializing_if = "Option::is_none"
    )]
    socket_mode: Option<u32>,

    /// Group of the sockets of ports, by its name or number. Its members can take the place of any
    /// VM without user= or socket-group=.
    #[arg(long, value_name = "GROUP", value_parser = parse_group)]
    #[serde(rename = "group", default, skip_serializing_if = "Option::is_none")]
    socket_group: Option<u32>,

    /// Accept sockets in sticky directories in which other users may create files, like /tmp: these
    /// users can take the name of a socket before it is made.
    #[arg(long)]
    #[serde(default, skip_serializing_if = "is_off")]
    sticky_directories: bool,
}

/// Whether a switch has its default value.
fn is_off(switch: &bool) -> bool {
    !switch
}

impl SocketArgs {
    /// Whether users who are neither the owner nor in the group may connect.
    pub fn admits_others(&self) -> bool {
        self.socket_mode.is_some_and(|mode| mode & OTHERS != 0)
    }

    /// Whether no option is given.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Users who may connect to the sockets of `port`.
    pub fn access(&self, port: &PortArgs) -> Access {
        let access = self.access_of(port.socket_group.or(self.socket_group));
        Access {
            mode: self.socket_mode.unwrap_or(access.mode),
            user: port.user,
            ..access
        }
    }

    /// Access to a socket for its owner, and for `group` if there is one.
    fn access_of(&self, group: Option<u32>) -> Access {
        let private = Access::default();
        Access {
            mode: group.map_or(private.mode, |_| 0o660),
            group,
            in_sticky: self.sticky_directories,
            ..private
        }
    }
}

/// Mode bits of users who are neither the owner of a file nor in its group.
const OTHERS: u32 = 0o007;

/// Name of the hidden command that runs a broker. The daemon and ctl start it.
pub const BROKER: &str = "broker";
/// The arguments of a broker that ends together with the process that starts it.
pub const BOUND_BROKER: &[&str] = &[BROKER, "--bound"];

/// A command to run instead of the daemon.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the ports, QPs and counters of a running daemon.
    Status(StatusArgs),
    /// Control a running daemon: its ports and its log.
    Ctl(CtlArgs),
    /// Print QEMU arguments, or XML for libvirt, that attach a VM to a port.
    QemuArgs(QemuArgs),
    /// Access paths for a daemon in its sandbox. Only the daemon starts this.
    #[command(name = BROKER, hide = true)]
    Broker {
        /// Ends when the process ends that has started the broker.
        #[arg(long)]
        bound: bool,
    },
}

/// The socket of the daemon, and the format of the status.
#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    /// Status socket of the daemon: the value of its option --status.
    #[arg(long, value_name = "SOCKET")]
    pub socket: PathBuf,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    /// Print OpenMetrics, for Prometheus.
    #[arg(long, conflicts_with = "json")]
    metrics: bool,
}

impl StatusArgs {
    /// The requested format.
    pub fn form(&self) -> Form {
        if self.json {
            Form::Json
        } else if self.metrics {
            Form::Metrics
        } else {
            Form::Text
        }
    }
}

/// How data is transferred between two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DataPath {
    /// Copied from memory to memory, where possible.
    Direct,
    /// Sent as RoCEv2 packets.
    Wire,
}

impl From<DataPath> for PathPolicy {
    fn from(path: DataPath) -> Self {
        match path {
            DataPath::Direct => Self::Direct,
            DataPath::Wire => Self::Wire,
        }
    }
}

/// Confinement of the daemon once it is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sandbox {
    /// The daemon keeps only the rights that it needs.
    On,
    /// The daemon keeps all rights of its user.
    None,
}

/// The value of one `--port`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PortArgs {
    /// Name of the port in the log.
    pub name: String,
    /// Socket that QEMU's vfio-user-pci connects to.
    pub vfio: PathBuf,
    /// Socket that QEMU's `-netdev stream` connects to, if the port has a network interface.
    pub net: Option<PathBuf>,
    /// MAC address of the VM's network interface and of the device.
    pub mac: Mac,
    /// Additional MAC addresses that interfaces of the VM may have.
    pub more_macs: Box<[Mac]>,
    /// IP addresses that the VM may use. If the list is empty, it may use any address.
    pub addresses: Vec<IpAddr>,
    /// Whether RoCE from the VM's network interface is forwarded.
    pub net_roce: bool,
    /// Maximum number of bytes that the daemon allocates for the port. `None` for the default.
    pub memory: Option<u64>,
    /// Maximum number of bytes of guest memory that the port maps. `None` for the default.
    pub guest_memory: Option<u64>,
    /// Link speed that the port reports.
    pub speed: LinkSpeed,
    /// Rate limits that all QPs of the port share.
    pub rates: PortRates,
    /// Name of the isolation group, if configured.
    pub group: Option<String>,
    /// User of the VM's QEMU. `None` for every user whom the permissions of the sockets admit.
    pub user: Option<u32>,
    /// Group of the sockets, if it is not that of all ports.
    pub socket_group: Option<u32>,
}

impl PortArgs {
    /// Maximum number of bytes of guest memory that the port maps.
    pub fn most_guest_memory(&self) -> u64 {
        self.guest_memory.unwrap_or(GUEST_MEMORY)
    }
}

/// Valid numbers of workers.
const WORKERS: RangeInclusive<i64> = 1..=MAX_WORKERS as i64;
/// Minimum value of a port's memory limit in bytes: twice the size of its tables and frames.
const LEAST_MEMORY: u64 = 64 << 20;
/// Valid distances between doorbell pages, as base-2 logarithms of bytes. With a distance of
/// 64 KiB, the region of 4,096 pages occupies 256 MiB of a guest's address space.
const DOORBELL_STRIDES: RangeInclusive<u8> = 12..=16;
/// Default maximum of the guest memory of a port, in bytes.
const GUEST_MEMORY: u64 = 4 << 30;
/// Maximum guest memory of all ports together, in bytes: an x86 process has 128 TiB of address
/// space, of which the daemon itself needs a part.
const ALL_GUEST_MEMORY: u64 = 96 << 40;

/// Default number of ports that can be added while the daemon runs, with `--ctl`.
const SPARE_PORTS: usize = 8;

/// A unicast MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mac(pub [u8; 6]);

impl Args {
    /// Users who may send to the sockets of uplinks: only the daemon's user.
    pub fn uplink_access(&self) -> Access {
        self.sockets.access_of(None)
    }

    /// Users who may connect to the status socket.
    pub fn status_access(&self) -> Access {
        self.sockets.access_of(self.status_group)
    }

    /// Users who may connect to the control socket.
    pub fn ctl_access(&self) -> Access {
        self.sockets.access_of(self.ctl_group)
    }

    /// Number of ports that can be added while the daemon runs.
    pub fn spare_ports(&self) -> usize {
        let default = if self.ctl.is_some() { SPARE_PORTS } else { 0 };
        self.spare_ports.map_or(default, usize::from)
    }

    /// Maximum number of ports at a time.
    pub fn most_ports(&self) -> usize {
        self.ports.len() + self.spare_ports()
    }

    /// Paths of all sockets of the daemon except those of ports.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let uplinks = self.uplinks.iter().filter_map(|uplink| match &uplink.link {
            Uplink::Unix(link) => Some([&*link.local, &*link.remote]),
            _ => None,
        });
        let servers = [&self.status, &self.ctl].into_iter().flatten();
        uplinks.flatten().chain(servers.map(|path| &**path))
    }

    /// Checks the rules that concern several arguments.
    pub fn check(&self) -> Result<()> {
        let mut in_use = InUse::default();
        self.paths().try_for_each(|path| in_use.path(path))?;
        ensure!(
            self.most_ports() <= MAX_PORTS as usize,
            "there are {} ports, and a daemon has at most {MAX_PORTS}",
            self.most_ports()
        );
        let mapped = self.ports.iter().map(PortArgs::most_guest_memory);
        check_guest_memory(mapped)?;
        self.ports.iter().try_for_each(|port| in_use.port(port))
    }
}

/// Fails if the guest memory of all ports is more than a process can map.
pub fn check_guest_memory(mapped: impl Iterator<Item = u64>) -> Result<()> {
    ensure!(
        mapped.fold(0, u64::saturating_add) <= ALL_GUEST_MEMORY,
        "the guest memory of all ports is more than the {}T that a process can map",
        ALL_GUEST_MEMORY >> 40
    );
    Ok(())
}

/// Parses a distance between doorbell pages. Returns its base-2 logarithm.
fn parse_stride(text: &str) -> Result<u8> {
    let size = parse_size(text)?;
    let mut strides = DOORBELL_STRIDES;
    let shift = strides.find(|shift| size == 1 << shift);
    shift.with_context(|| format!("{text} is not 4K, 8K, 16K, 32K or 64K"))
}

/// Parser of feature names.
fn feature_parser() -> impl TypedValueParser<Value = Features> {
    let all = [("all", Features::ALL)];
    let of_device = Features::ALL.iter();
    let of_device = of_device.map(|feature| (feature.name(), Features::of(&[feature])));
    let of_transport = TRANSPORT_FEATURES.map(|(name, bit)| (name, Features(1 << bit)));
    let known: Vec<_> = all
        .into_iter()
        .chain(of_device)
        .chain(of_transport)
        .collect();
    PossibleValuesParser::new(known.iter().map(|&(name, _)| name)).try_map(move |given| {
        known
            .iter()
            .find(|&&(name, _)| name == given)
            .map(|&(_, features)| features)
            .context("no such feature")
            .map_err(Into::<Box<dyn std::error::Error + Send + Sync>>::into)
    })
}

impl PortArgs {
    /// Paths of the port's sockets.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        [&*self.vfio].into_iter().chain(self.net.as_deref())
    }

    /// The port with absolute paths, which don't depend on the working directory.
    ///
    /// # Errors
    ///
    /// There is no working directory, or the text form of a port can't express a path.
    pub fn absolute(&self) -> Result<Self> {
        let mut port = self.clone();
        port.vfio = path::absolute(&port.vfio)?;
        port.net = port.net.map(path::absolute).transpose()?;
        ensure!(
            port.to_string()
                .parse()
                .is_ok_and(|read: Self| read == port),
            "port {}: no path may have a comma, a colon or bytes that are not text",
            port.name
        );
        Ok(port)
    }
}

/// Formats the port as the value of `--port`.
impl fmt::Display for PortArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            vfio,
            net,
            mac,
            more_macs,
            addresses,
            net_roce,
            memory,
            guest_memory,
            speed,
            rates,
            group,
            user,
            socket_group,
        } = self;
        write!(f, "{name},vfio={}", vfio.display())?;
        if let Some(net) = net {
            write!(f, ",net={}", net.display())?;
        }
        write!(f, ",mac={mac},speed={}", speed.gbps())?;
        for mac in more_macs {
            write!(f, ",macs={mac}")?;
        }
        for address in addresses {
            write!(f, ",ip={address}")?;
        }
        if *net_roce {
            write!(f, ",net-roce=on")?;
        }
        for (key, size) in [("memory", memory), ("guest-memory", guest_memory)] {
            if let Some(size) = size {
                write!(f, ",{key}={size}")?;
            }
        }
        for (key, rate) in [("rate", rates.bytes), ("messages", rates.messages)] {
            if rate.is_some() {
                write!(f, ",{key}={}", rates::text(rate))?;
            }
        }
        if let Some(group) = group {
            write!(f, ",group={group}")?;
        }
        for (key, number) in [("user", user), ("socket-group", socket_group)] {
            if let Some(number) = number {
                write!(f, ",{key}={number}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for PortArgs {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut parts = text.split(',');
        let name = parts.next().unwrap_or_default();
        check_name(name)?;
        let (mut vfio, mut net, mut mac) = (None, None, None);
        let (mut speed, mut net_roce) = (None, None);
        let (mut more_macs, mut addresses) = (Vec::new(), Vec::new());
        let (mut memory, mut guest_memory) = (None, None);
        let (mut rates, mut group) = (PortRates::default(), None);
        let (mut user, mut socket_group) = (None, None);
        for part in parts {
            let (key, value) = part
                .split_once('=')
                .with_context(|| format!("{part:?} is not KEY=VALUE"))?;
            ensure!(!value.is_empty(), "{key} has no value");
            let repeated = match key {
                "vfio" => vfio.replace(PathBuf::from(value)).is_some(),
                "net" => net.replace(parse_net(value)?).is_some(),
                "mac" => mac.replace(value.parse()?).is_some(),
                "macs" => {
                    let mac = value.parse()?;
                    let known = more_macs.contains(&mac);
                    more_macs.push(mac);
                    known
                }
                "ip" => {
                    let address = parse_address(value)?;
                    let known = addresses.contains(&address);
                    addresses.push(address);
                    known
                }
                "net-roce" => net_roce.replace(parse_switch(value)?).is_some(),
                "speed" => speed.replace(parse_speed(value)?).is_some(),
                "memory" => memory.replace(parse_memory(value)?).is_some(),
                "guest-memory" => guest_memory.replace(parse_size(value)?).is_some(),
                "group" => {
                    check_name(value)?;
                    group.replace(value.to_owned()).is_some()
                }
                "user" => user.replace(parse_user(value)?).is_some(),
                "socket-group" => socket_group.replace(parse_group(value)?).is_some(),
                "rate" => rates.bytes.replace(parse_bytes(value)?).is_some(),
                "messages" => rates.messages.replace(parse_messages(value)?).is_some(),
                _ => bail!(
                    "unknown key {key:?}; there are vfio, net, mac, macs, speed, ip, net-roce, memory, \
                     guest-memory, rate, messages, group, user and socket-group"
                ),
            };
            ensure!(!repeated, "{key} is given twice");
        }
        let vfio = vfio.context("vfio=SOCKET is missing")?;
        let mac = mac.context("mac=MAC is missing")?;
        ensure!(
            !more_macs.contains(&mac),
            "macs={mac} is the address of mac="
        );
        Ok(Self {
            name: name.to_owned(),
            vfio,
            net,
            mac,
            more_macs: more_macs.into(),
            addresses,
            net_roce: net_roce.unwrap_or(false),
            memory,
            guest_memory,
            speed: speed.unwrap_or_default(),
            rates,
            group,
            user,
            socket_group,
        })
    }
}

fn check_name(name: &str) -> Result<()> {
    ensure!(
        !name.is_empty()
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)),
        "the name {name:?} must be of letters, digits, '-', '_' and '.'"
    );
    ensure!(
        name.len() <= MAX_NAME,
        "the name {name:?} has {} bytes, at most {MAX_NAME} are possible",
        name.len()
    );
    Ok(())
}

fn parse_address(text: &str) -> Result<IpAddr> {
    let address: IpAddr = text
        .parse()
        .with_context(|| format!("{text:?} is not an IP address like 10.9.0.1 or fd09::1"))?;
    let address = address.to_canonical();
    ensure!(
        !address.is_multicast() && !address.is_unspecified() && !address.is_loopback(),
        "{text} is not the address of one host"
    );
    Ok(address)
}

fn parse_switch(text: &str) -> Result<bool> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => bail!("{text:?} is neither on nor off"),
    }
}

fn parse_speed(text: &str) -> Result<LinkSpeed> {
    text.parse()
        .ok()
        .and_then(LinkSpeed::from_gbps)
        .with_context(|| {
            let known: Vec<_> = LinkSpeed::all().map(|gbps| gbps.to_string()).collect();
            format!(
                "{text:?} is not a speed of a port in Gb/s: {}",
                known.join(", ")
            )
        })
}

/// Parses the path of the socket of a network interface. A colon is refused: the path is one, not a
/// pair of paths as an uplink has.
fn parse_net(text: &str) -> Result<PathBuf> {
    ensure!(
        !text.contains(':'),
        "{text:?} is not one socket: QEMU connects to it by -netdev stream"
    );
    Ok(text.into())
}

fn parse_link(text: &str) -> Result<DatagramPath> {
    let (local, remote) = text
        .split_once(':')
        .filter(|(local, remote)| !local.is_empty() && !remote.is_empty())
        .with_context(|| format!("{text:?} is not LOCAL:REMOTE"))?;
    Ok(DatagramPath {
        local: local.into(),
        remote: remote.into(),
    })
}

fn parse_group(text: &str) -> Result<u32> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let group = Group::from_name(text).with_context(|| format!("can't look up group {text:?}"))?;
    Ok(group
        .with_context(|| format!("no group {text:?}"))?
        .gid
        .as_raw())
}

fn parse_user(text: &str) -> Result<u32> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let user = User::from_name(text).with_context(|| format!("can't look up user {text:?}"))?;
    Ok(user
        .with_context(|| format!("no user {text:?}"))?
        .uid
        .as_raw())
}

fn parse_memory(text: &str) -> Result<u64> {
    let memory = parse_size(text)?;
    ensure!(
        memory >= LEAST_MEMORY,
        "a port needs {} at least, not {text}",
        mib(LEAST_MEMORY)
    );
    Ok(memory)
}

/// The scenario with this name, or in this file.
fn parse_scenario(text: &str) -> Result<Scenario> {
    if let Some(preset) = Scenario::preset(text) {
        return Ok(preset.parse()?);
    }
    let content = fs::read_to_string(text).with_context(|| {
        let names = Scenario::names();
        format!("there is no scenario of this name ({names}), and the file can't be read")
    })?;
    let scenario: Scenario = content.parse()?;
    if let Some(name) = scenario.missing() {
        bail!("a rule is after {name:?}, which is no rule before it");
    }
    Ok(scenario)
}

fn parse_uplink(text: &str) -> Result<UplinkConfig> {
    let (link, routed) = match text.rsplit_once(",routed=") {
        Some((link, routed)) => (link, parse_switch(routed)?),
        None => (text, false),
    };
    let link = parse_uplink_link(link)?;
    Ok(UplinkConfig { link, routed })
}

fn parse_uplink_link(text: &str) -> Result<Uplink> {
    match text.split_once(':') {
        Some(("unix", link)) => parse_link(link).map(Uplink::Unix),
        Some(("udp", addresses)) => addresses
            .match_indices(':')
            // Addresses contain colons, so each colon is tried. Only one separates two valid
            // addresses.
            .find_map(|(at, _)| {
                let (bind, remote) = (
                    addresses[..at].parse().ok()?,
                    addresses[at + 1..].parse().ok()?,
                );
                Some(Uplink::Udp { bind, remote })
            })
            .with_context(|| format!("{addresses:?} is not BIND-ADDRESS:PORT:PEER-ADDRESS:PORT")),
        Some(("tap", name)) if !name.is_empty() => Ok(Uplink::Tap(name.to_owned())),
        _ => bail!("an uplink is unix:LOCAL:REMOTE, udp:BIND:PEER or tap:NAME"),
    }
}

impl FromStr for Mac {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let malformed = || format!("{text:?} is not a MAC address like 52:54:00:12:34:56");
        let bytes = text
            .split(':')
            .map(|part| match part.len() {
                2 => u8::from_str_radix(part, 16).ok(),
                _ => None,
            })
            .collect::<Option<Vec<u8>>>()
            .with_context(malformed)?;
        let bytes: [u8; 6] = bytes.try_into().ok().with_context(malformed)?;
        ensure!(bytes[0] & 1 == 0, "{text} is a multicast address");
        ensure!(bytes != [0; 6], "the MAC address is zero");
        Ok(Self(bytes))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use verbs::Rate;
    use virtio_rdma_abi::feature::Feature;

    use super::*;

    fn parse(args: &[&str]) -> Result<Args> {
        let args = Args::try_parse_from([&["virtio-rdmad"], args].concat())?;
        args.check()?;
        Ok(args)
    }

    const PORT: &str = "a,vfio=/run/a.sock,net=/run/a.net,mac=52:54:00:09:00:01";

    #[test]
    fn the_definition_is_sound() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }

    #[test]
    fn a_port() {
        let args = parse(&["--port", PORT]).unwrap();
        assert_eq!(
            args.ports,
            [PortArgs {
                name: "a".into(),
                vfio: "/run/a.sock".into(),
                net: Some("/run/a.net".into()),
                mac: Mac([0x52, 0x54, 0, 9, 0, 1]),
                more_macs: Box::default(),
                addresses: Vec::new(),
                net_roce: false,
                memory: None,
                guest_memory: None,
                speed: LinkSpeed::default(),
                rates: PortRates::default(),
                group: None,
                user: None,
                socket_group: None,
            }]
        );
        assert_eq!(args.ports[0].mac.to_string(), "52:54:00:09:00:01");
        assert_eq!(args.path, DataPath::Direct);
        let args = parse(&[
            "--port",
            &format!("{PORT},ip=10.9.0.1,ip=::ffff:10.9.0.2,ip=fd09::1"),
        ]);
        let addresses = ["10.9.0.1", "10.9.0.2", "fd09::1"];
        assert_eq!(
            args.unwrap().ports[0].addresses,
            addresses.map(|ip| ip.parse::<IpAddr>().unwrap())
        );
        let more = ",macs=52:54:00:09:00:09,macs=52:54:00:09:00:0a";
        let args = parse(&["--port", &format!("{PORT}{more}")]).unwrap();
        let macs = [9, 10].map(|last| Mac([0x52, 0x54, 0, 9, 0, last]));
        assert_eq!(*args.ports[0].more_macs, macs);
        assert!(args.ports[0].to_string().contains(more));
        for (text, net_roce) in [("on", true), ("off", false)] {
            let args = parse(&["--port", &format!("{PORT},net-roce={text}")]).unwrap();
            assert_eq!(args.ports[0].net_roce, net_roce);
        }
        let fast = parse(&["--port", &format!("{PORT},speed=400")]).unwrap();
        assert_eq!(Some(fast.ports[0].speed), LinkSpeed::from_gbps(400));
    }

    #[test]
    fn limits_of_ports() {
        let second = PORT
            .replace("/a.", "/b.")
            .replace("a,", "b,")
            .replace(":01", ":02");
        let limits = "memory=512M,guest-memory=64T,rate=100M:1M,messages=5000";
        let limited = format!("{second},{limits}");
        let args = parse(&["--port", PORT, "--port", &limited, "--memory", "1G"]).unwrap();
        assert_eq!(args.memory, 1 << 30);
        assert_eq!(
            (args.ports[0].memory, args.ports[1].memory),
            (None, Some(512 << 20))
        );
        assert_eq!(args.ports[0].rates, PortRates::default());
        let rate = |per_second, burst| Some(Rate { per_second, burst });
        let rates = PortRates {
            bytes: rate(100 << 20, Some(1 << 20)),
            messages: rate(5000, None),
        };
        assert_eq!(args.ports[1].rates, rates);
        let mapped: Vec<u64> = args.ports.iter().map(PortArgs::most_guest_memory).collect();
        assert_eq!(mapped, [4 << 30, 64 << 40]);
        assert_eq!(parse(&["--port", PORT]).unwrap().memory, 256 << 20);
        for (limit, complaint) in [
            ("memory=63M", "needs 64M"),
            ("guest-memory=96T", "than the 96T"),
            ("guest-memory=x", "not a size"),
            ("rate=0", "lets nothing through"),
            ("rate=1M,rate=1M", "given twice"),
            ("messages=1M", "not a number"),
        ] {
            let port = format!("{second},{limit}");
            let error = parse(&["--port", PORT, "--port", &port]).unwrap_err();
            assert!(format!("{error:#}").contains(complaint), "{error:#}");
        }
    }

    #[test]
    fn doorbell_pages_are_as_far_apart_as_told() {
        let stride = |text: &str| {
            let args = parse(&["--port", PORT, "--doorbell-stride", text]);
            args.map(|args| args.doorbell_stride)
        };
        assert_eq!(parse(&["--port", PORT]).unwrap().doorbell_stride, 12);
        for (text, shift) in [("4K", 12), ("16384", 14), ("64K", 16)] {
            assert_eq!(stride(text).unwrap(), shift);
        }
        for bad in ["0", "2K", "12K", "128K", "wide"] {
            assert!(stride(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sockets_are_private_unless_told_otherwise() {
        let access = |more: &[&str]| {
            let args = parse(&[&["--port", PORT], more].concat());
            args.map(|args| {
                let port = args.sockets.access(&args.ports[0]);
                let rest = [
                    args.status_access(),
                    args.uplink_access(),
                    args.ctl_access(),
                ];
                let rest = rest.map(|access| (access.mode, access.group));
                assert_eq!(rest, [(0o600, None); 3]);
                (port.mode, port.group)
            })
        };
        assert_eq!(access(&[]).unwrap(), (0o600, None));
        let group = ["--socket-group", "root"];
        assert_eq!(access(&group).unwrap(), (0o660, Some(0)));
        let number = ["--socket-group", "17", "--socket-mode", "620"];
        assert_eq!(access(&number).unwrap(), (0o620, Some(17)));
        for bad in [["--socket-mode", "1777"], ["--socket-group", "no/group"]] {
            assert!(access(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_port_may_have_a_user_and_a_group_of_its_own() {
        let access = |keys: &str, more: &[&str]| {
            let port = format!("{PORT}{keys}");
            let args = parse(&[&["--port", &port], more].concat())?;
            let access = args.sockets.access(&args.ports[0]);
            assert_eq!(
                args.ports[0].to_string().parse::<PortArgs>()?,
                args.ports[0]
            );
            Ok((access.mode, access.user, access.group))
        };
        let all = ["--socket-group", "17"];
        for (keys, more, expected) in [
            (",user=root", &[][..], (0o600, Some(0), None)),
            (",user=7", &all, (0o660, Some(7), Some(17))),
            (",socket-group=9", &all, (0o660, None, Some(9))),
            (",user=7,socket-group=root", &[], (0o660, Some(7), Some(0))),
        ] {
            assert_eq!(access(keys, more).unwrap(), expected, "{keys}");
        }
        let bad: Result<_> = access(",user=no/user", &[]);
        assert!(bad.unwrap_err().to_string().contains("no user"));
    }

    #[test]
    fn features_are_withheld_by_name() {
        let args = parse(&["--port", PORT, "--withhold", "ring-addr"]).unwrap();
        assert_eq!(args.withheld, [Features::of(&[Feature::RingAddr])]);
        let args = parse(&["--port", PORT, "--withhold", "all"]).unwrap();
        assert_eq!(args.withheld, [Features::ALL]);
        assert!(parse(&["--port", PORT, "--withhold", "warp"]).is_err());
    }

    #[test]
    fn a_status_is_asked_for_or_told() {
        let args = parse(&["--port", PORT, "--status", "/run/s"]).unwrap();
        assert_eq!(args.status, Some("/run/s".into()));
        assert!(args.command.is_none());
        for (json, form) in [(false, Form::Text), (true, Form::Json)] {
            let mut line = vec!["status", "--socket", "/run/s"];
            line.extend(json.then_some("--json"));
            let Some(Command::Status(ask)) = parse(&line).unwrap().command else {
                panic!("no command");
            };
            assert_eq!((ask.form(), ask.socket), (form, "/run/s".into()));
        }
        assert!(parse(&["status"]).is_err());
        assert!(parse(&["--port", PORT, "status", "--socket", "/run/s"]).is_err());
        assert!(parse(&["--port", PORT, "--status", "/run/a.sock"]).is_err());
    }

    #[test]
    fn uplinks_and_faults() {
        let args = parse(&[
            "--port",
            PORT,
            "--uplink",
            "unix:/u.local:/u.remote",
            "--uplink",
            "udp:0.0.0.0:5000:10.0.0.2:5001",
            "--uplink",
            "udp:[::]:5000:[fe80::2]:5001",
            "--uplink",
            "tap:tap0,routed=on",
            "--faults",
            "drop=0.5,seed=7",
        ])
        .unwrap();
        assert_eq!(
            args.uplinks,
            [
                Uplink::Unix(DatagramPath {
                    local: "/u.local".into(),
                    remote: "/u.remote".into()
                })
                .into(),
                Uplink::Udp {
                    bind: "0.0.0.0:5000".parse().unwrap(),
                    remote: "10.0.0.2:5001".parse().unwrap()
                }
                .into(),
                Uplink::Udp {
                    bind: "[::]:5000".parse().unwrap(),
                    remote: "[fe80::2]:5001".parse().unwrap()
                }
                .into(),
                UplinkConfig {
                    link: Uplink::Tap("tap0".into()),
                    routed: true
                },
            ]
        );
        let faults = args.faults.unwrap();
        assert_eq!((faults.drop, faults.seed), (0.5, 7));
        for bad in [
            "",
            "unix:/a",
            "udp:1.2.3.4:5",
            "tap:",
            "wire:/a:/b",
            "tap:tap0,routed=maybe",
        ] {
            assert!(parse(&["--port", PORT, "--uplink", bad]).is_err(), "{bad}");
        }
        assert!(parse(&["--port", PORT, "--faults", "drop=2"]).is_err());
        assert!(parse(&["--port", PORT, "--uplink", "unix:/run/a.sock:/x"]).is_err());
    }

    #[test]
    fn what_can_not_work_is_refused_with_a_reason() {
        let cases = [
            ("a", "vfio=SOCKET is missing"),
            ("a b,vfio=/s", "must be of letters"),
            ("a,vfio=/s", "mac=MAC is missing"),
            ("a,vfio=,mac=52:54:00:09:00:01", "has no value"),
            ("a,vfio=/s,vfio=/t,mac=52:54:00:09:00:01", "given twice"),
            ("a,vfio=/s,ip=10.9,mac=52:54:00:09:00:01", "not an IP"),
            ("a,vfio=/s,ip=224.0.0.1,mac=52:54:00:09:00:01", "one host"),
            ("a,vfio=/s,ip=10.9.0.1,ip=10.9.0.1", "given twice"),
            ("a,vfio=/s,net-roce=yes,mac=52:54:00:09:00:01", "nor off"),
            ("a,vfio=/s,color=9,mac=52:54:00:09:00:01", "unknown key"),
            ("a,vfio=/s,speed=9,mac=52:54:00:09:00:01", "10, 25, 40"),
            ("a,vfio=/s,speed=fast,mac=52:54:00:09:00:01", "not a speed"),
            (
                "a,vfio=/s,net=/x:/y,mac=52:54:00:09:00:01",
                "not one socket",
            ),
            ("a,vfio=/s,mac=52:54:00:09:00", "not a MAC address"),
            ("a,vfio=/s,mac=52:54:00:09:00:1", "not a MAC address"),
            ("a,vfio=/s,mac=52:54:00:09:00:0g", "not a MAC address"),
            ("a,vfio=/s,mac=01:00:5e:00:00:01", "multicast"),
            ("a,vfio=/s,mac=00:00:00:00:00:00", "zero"),
            ("a,vfio=/s,macs=01:00:5e:00:00:01", "multicast"),
            (
                "a,vfio=/s,mac=52:54:00:09:00:01,macs=52:54:00:09:00:01",
                "the address of mac=",
            ),
            (
                "a,vfio=/s,macs=52:54:00:09:00:09,macs=52:54:00:09:00:09",
                "given twice",
            ),
        ];
        for (port, reason) in cases {
            let error = parse(&["--port", port]).unwrap_err().to_string();
            assert!(error.contains(reason), "{port}: {error}");
        }
        for (len, is_possible) in [(MAX_NAME, true), (MAX_NAME + 1, false)] {
            let port = format!("{},vfio=/s,mac=52:54:00:09:00:01", "n".repeat(len));
            assert_eq!(parse(&["--port", &port]).is_ok(), is_possible, "{len}");
        }
    }

    #[test]
    fn ports_are_counted() {
        let ports = |count: u32| {
            let [_, _, a, b] = count.to_be_bytes();
            let port = format!("p{count},vfio=/{count},mac=52:54:00:09:{a:02x}:{b:02x}");
            ["--port".to_owned(), port]
        };
        let args = Vec::from_iter((0..=MAX_PORTS).flat_map(ports));
        let args = Vec::from_iter(args.iter().map(String::as_str));
        assert!(parse(&args[2..]).is_ok());
        let error = parse(&args).unwrap_err().to_string();
        assert!(error.contains("4097 ports"), "{error}");
    }

    #[test]
    fn ports_must_differ() {
        let given = format!("{PORT},ip=10.9.0.1,macs=52:54:00:09:00:09");
        for (second, reason) in [
            (
                "b,vfio=/b,mac=52:54:00:09:00:02,ip=10.9.0.1",
                "the IP address 10.9.0.1",
            ),
            ("a,vfio=/b,mac=52:54:00:09:00:02", "the name a"),
            (
                "b,vfio=/run/a.sock,mac=52:54:00:09:00:02",
                "the path /run/a.sock",
            ),
            (
                "b,vfio=/run/a.net,mac=52:54:00:09:00:02",
                "the path /run/a.net",
            ),
            (
                "b,vfio=/b,mac=52:54:00:09:00:01",
                "the MAC address 52:54:00:09:00:01",
            ),
            (
                "b,vfio=/b,mac=52:54:00:09:00:09",
                "the MAC address 52:54:00:09:00:09",
            ),
            (
                "b,vfio=/b,mac=52:54:00:09:00:02,macs=52:54:00:09:00:01",
                "the MAC address 52:54:00:09:00:01",
            ),
        ] {
            let error = parse(&["--port", &given, "--port", second])
                .unwrap_err()
                .to_string();
            assert!(error.contains(reason), "{second}: {error}");
        }
    }
}
