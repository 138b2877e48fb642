// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Work for the device, in rounds.
//!
//! In each round, the guests fill their rings while the device sleeps, ring the doorbells, sleep
//! until all work is done, and check every completion. All work requests are signaled.

use std::cell::Cell;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::thread;
use std::time::Duration;

use testkit::engine::{connect, sge, wait, Cq, Daemon, Mr, Options, Qp, Vm, Wr, FULL};
use verbs::{Limits, PathPolicy};
use virtio_rdma_abi::ib::{Mtu, SigType, WcStatus, WrOpcode};
use virtio_rdma_abi::ring::Doorbell;
use vswitch::{Config, DatagramPath, Uplink};

use super::cpu::device_time;

/// Maximum number of messages and of bytes of a pair of VMs in a round.
const MESSAGES: u32 = 16_384;
const BYTES: u32 = 64 << 20;
/// Number of message buffers of a VM. They are contiguous and used in turn.
const BUFFERS: u32 = 64;
/// Minimum processor time of a sample.
const SPAN: Duration = Duration::from_millis(60);
/// Time after which a thread without work sleeps.
const REST: Duration = Duration::from_millis(1);

/// The path of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From memory to memory.
    Direct,
    /// As packets, in one daemon.
    Wire,
    /// As packets from one daemon to another, over UDP.
    Udp,
    /// As packets from one daemon to another, over Unix sockets.
    Unix,
}

impl Way {
    /// The data path that QPs of one daemon take.
    pub fn policy(self) -> PathPolicy {
        match self {
            Self::Direct => PathPolicy::Direct,
            Self::Wire | Self::Udp | Self::Unix => PathPolicy::Wire,
        }
    }
}

/// A load whose cost is measured.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub way: Way,
    pub opcode: WrOpcode,
    /// Bytes of a message.
    pub size: u32,
    /// Number of pairs of VMs. In each pair, one VM sends to the other.
    pub pairs: u32,
    /// Number of other VMs of each daemon, which do nothing. Only for [`Way::Unix`].
    pub idle: u32,
    /// Number of connections of each pair.
    pub qps: u32,
    /// Number of MRs of each VM, all for the same memory. Work requests use all of them.
    pub mrs: u32,
    /// The layout of the buffers in a VM's memory.
    pub pages: Pages,
}

/// The layout of an MR's pages in a VM's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// All pages are contiguous.
    Adjacent,
    /// No two pages are contiguous, as in a process that allocated its memory page by page.
    Apart,
}

/// The number of messages, and the processor time of the device for them.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    messages: u64,
    time: Duration,
}

impl Cost {
    /// The number of messages per second of the device's processor time, multiplied by `what`, for
    /// example by the bytes of a message.
    pub fn rate(&self, what: f64) -> f64 {
        what * self.messages as f64 / self.time.as_secs_f64()
    }
}

/// Bytes of all buffers of a VM, for messages of this size.
pub fn area(size: u32) -> u64 {
    u64::from(size) * u64::from(BUFFERS)
}

impl Load {
    /// The smallest messages, with one pair, one QP and one MR.
    pub const SMALL: Self = Self {
        way: Way::Direct,
        opcode: WrOpcode::RdmaWrite,
        size: super::SMALL,
        pairs: 1,
        idle: 0,
        qps: 1,
        mrs: 1,
        pages: Pages::Adjacent,
    };

    /// Measures the cost of the load.
    pub fn cost(&self) -> Cost {
        let dir = tempfile::tempdir().expect("a directory");
        let daemons = self.daemons(dir.path());
        let vms: Vec<&Vm> = daemons.iter().flat_map(|daemon| &daemon.vms).collect();
        let (ours, theirs) = vms.split_at(vms.len() / 2);
        let pairs: Vec<_> = ours
            .iter()
            .zip(theirs)
            .take(self.pairs as usize)
            .map(|(ours, theirs)| Pair::new(self, ours, theirs))
            .collect();
        // The first round is not measured: it allocates the memory.
        round(&pairs);
        let before = device_time();
        let mut messages = 0;
        loop {
            messages += round(&pairs);
            thread::sleep(REST);
            let time = device_time() - before;
            if time >= SPAN {
                return Cost { messages, time };
            }
        }
    }

    /// Starts the daemons of the load. The first half of their VMs sends, the second half receives.
    /// Each daemon has one worker. Its processor time and that of the switch's thread are measured.
    fn daemons(&self, dir: &Path) -> Vec<Daemon> {
        let pairs = self.pairs as usize;
        let uplinks = match self.way {
            Way::Direct | Way::Wire => {
                let policy = self.way.policy();
                return vec![Daemon::new(1..=2 * pairs, 1, policy, Config::default())];
            }
            Way::Udp => udp(),
            Way::Unix => unix(dir),
        };
        let vms = pairs + self.idle as usize;
        [1..=vms, vms + 1..=2 * vms]
            .into_iter()
            .zip(uplinks)
            .map(|(vms, uplink)| {
                let config = Config {
                    uplinks: vec![uplink.into()],
                    ..Config::default()
                };
                Daemon::new(vms, 1, PathPolicy::Wire, config)
            })
            .collect()
    }

    /// Number of messages of a connection in a round.
    fn depth(&self) -> u32 {
        let messages = MESSAGES.min(BYTES / self.size) / self.qps / self.pairs;
        1 << messages.max(4).ilog2()
    }
}

/// Both ends of a UDP uplink between two ports that are free now.
fn udp() -> [Uplink; 2] {
    let [one, two] = [(); 2].map(|()| {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        socket.local_addr().expect("an address")
    });
    [(one, two), (two, one)].map(|(bind, remote)| Uplink::Udp { bind, remote })
}

/// Both ends of an uplink over Unix sockets in this directory.
fn unix(dir: &Path) -> [Uplink; 2] {
    [("left", "right"), ("right", "left")].map(|(local, remote)| {
        Uplink::Unix(DatagramPath {
            local: dir.join(local),
            remote: dir.join(remote),
        })
    })
}

/// Runs one round of all pairs. Returns the number of messages.
fn round(pairs: &[Pair<'_>]) -> u64 {
    for pair in pairs {
        pair.fill();
    }
    let messages = pairs.iter().map(Pair::ring).sum();
    for pair in pairs {
        pair.finish();
    }
    messages
}

/// A pair of VMs and the connections between them.
struct Pair<'vm> {
    lanes: Vec<Lane<'vm>>,
    sent: Completions<'vm>,
    received: Completions<'vm>,
    receives: bool,
}

/// A connection.
struct Lane<'vm> {
    qp: Qp<'vm>,
    peer: Qp<'vm>,
    wqes: Vec<Vec<u8>>,
    recv: Vec<Mr>,
    size: u32,
}

impl<'vm> Pair<'vm> {
    fn new(load: &Load, a: &'vm Vm, b: &'vm Vm) -> Self {
        let entries = (load.qps * load.depth()).next_power_of_two();
        let (sent, received) = (Completions::new(a, entries), Completions::new(b, entries));
        let [ours, theirs] = [a, b].map(|vm| mrs(vm, load));
        let mut random = fastrand::Rng::with_seed(1);
        let options = Options {
            slots: load.depth(),
            sge: 1,
            inline: 0,
            signal: SigType::All,
            // Packets over UDP have to fit the default MTU of network interfaces, 1500.
            mtu: match load.way {
                Way::Udp => Mtu::Mtu1024,
                Way::Direct | Way::Wire | Way::Unix => Mtu::Mtu4096,
            },
            // A timeout of about a second.
            timeout: 18,
            rd_atomic: Limits::default().max_rd_atomic,
            ..Options::default()
        };
        let lanes = (0..load.qps).map(|lane| {
            let qp = Qp::new(a, &sent.cq, &sent.cq, options);
            let peer = Qp::new(b, &received.cq, &received.cq, options);
            connect(&qp, &peer);
            let wqes = (0..load.depth()).map(|index| {
                let number = lane * load.depth() + index;
                let offset = u64::from(number % BUFFERS) * u64::from(load.size);
                let mut any = |mrs: &[Mr]| mrs[random.usize(..mrs.len())];
                Wr::new(number.into(), load.opcode)
                    .local(&any(&ours), offset, load.size)
                    .remote(&any(&theirs), offset)
                    .bytes()
            });
            Lane {
                wqes: wqes.collect(),
                recv: theirs.clone(),
                size: load.size,
                qp,
                peer,
            }
        });
        Self {
            lanes: lanes.collect(),
            sent,
            received,
            receives: load.opcode == WrOpcode::Send,
        }
    }

    /// Posts all work requests of a round to the rings.
    fn fill(&self) {
        for lane in &self.lanes {
            if self.receives {
                for index in 0..lane.wqes.len() as u32 {
                    let offset = u64::from(index % BUFFERS) * u64::from(lane.size);
                    let mr = &lane.recv[0];
                    lane.peer
                        .post_recv(index.into(), &[sge(mr, offset, lane.size)]);
                }
            }
            // The doorbells are rung when all rings are full.
            let _ = lane.qp.post_all(&lane.wqes);
        }
    }

    /// Rings the doorbells. Returns the number of messages.
    fn ring(&self) -> u64 {
        self.lanes
            .iter()
            .map(|lane| {
                lane.qp.ring_doorbell(Doorbell::Sq);
                lane.wqes.len() as u64
            })
            .sum()
    }

    /// Waits until all work is done, and polls the completions.
    fn finish(&self) {
        let messages = self.lanes.iter().map(|lane| lane.wqes.len()).sum();
        self.sent.drain(messages);
        if self.receives {
            self.received.drain(messages);
        }
    }
}

/// MRs for the message buffers of a VM.
fn mrs(vm: &Vm, load: &Load) -> Vec<Mr> {
    let len = area(load.size);
    let iova = vm.alloc(len);
    let register = match load.pages {
        Pages::Adjacent => Vm::register,
        Pages::Apart => Vm::register_reversed,
    };
    (0..load.mrs)
        .map(|_| register(vm, vm.pdn, iova, len, FULL))
        .collect()
}

/// A CQ, and the producer's position at the end of the present round.
struct Completions<'vm> {
    cq: Cq<'vm>,
    end: Cell<u32>,
}

impl<'vm> Completions<'vm> {
    fn new(vm: &'vm Vm, entries: u32) -> Self {
        Self {
            cq: Cq::new(vm, entries),
            end: Cell::new(0),
        }
    }

    /// Waits until `messages` completions have arrived, and only then polls them.
    fn drain(&self, messages: usize) {
        // LOSSLESS: a CQ has fewer than 2^32 entries.
        let end = self.end.get().wrapping_add(messages as u32);
        self.end.set(end);
        let ring = &self.cq.ring;
        wait("the end of a round", || {
            (ring.device() == end).then_some(())
        });
        for _ in 0..messages {
            let cqe = self.cq.poll().expect("a completion");
            assert_eq!(WcStatus::try_from(cqe.status), Ok(WcStatus::Success));
        }
    }
}
