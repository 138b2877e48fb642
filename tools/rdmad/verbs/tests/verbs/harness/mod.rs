// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Simulated VMs: drivers with guest memory, rings and control commands, and a network between the
//! VMs.

pub mod cq;
mod daemon;
#[path = "../../../../testing/net.rs"]
pub mod interface;
pub mod joined;
pub mod mode;
mod net;
mod pair;
pub mod qp;
pub mod ring;
pub mod srq;
#[path = "../../../../testing/wait.rs"]
pub mod waiting;
mod wr;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use dma::DmaSpace;
use roce::FramePort;
use verbs::{Hca, HcaConfig, Limits, PathPolicy, Runtime, RuntimeConfig, Virtqueues};
use virtio_rdma_abi::cqe::{Cqe, OPCODE_RECV};
use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::event::{Event, EventKind};
use virtio_rdma_abi::feature::{Feature, Features};
use virtio_rdma_abi::ib::{AccessFlags, AsyncEvent};
use virtio_rdma_abi::number::{MrNumber, Pdn, Qpn};
use virtio_rdma_abi::wire::Wire;
use virtqueue::Split;
use vswitch::Caller;

pub use cq::Cq;
pub use daemon::Daemon;
pub use mode::{is_virtqueue_mode, Mode};
pub use net::{frame, frame_between, Net};
pub use pair::{each, each_with, Pair};
pub use qp::{connect, Options, Qp};
pub use ring::Ring;
pub use srq::Srq;
pub use waiting::wait;
pub use wr::{local_inv, sge, split, wqe, Wr};

/// Bytes of memory of a VM.
const MEMORY: u64 = 96 << 20;

/// All access flags of local memory and of peers.
pub const FULL: AccessFlags = AccessFlags(
    AccessFlags::LOCAL_WRITE.0
        | AccessFlags::REMOTE_WRITE.0
        | AccessFlags::REMOTE_READ.0
        | AccessFlags::REMOTE_ATOMIC.0,
);

/// Whether the device ever raises events of this kind. The harness checks each event of each test.
fn is_raised(kind: EventKind) -> bool {
    !matches!(
        kind,
        EventKind::Async(
            AsyncEvent::PathMig
                | AsyncEvent::PathMigErr
                | AsyncEvent::DeviceFatal
                | AsyncEvent::LidChange
                | AsyncEvent::PkeyChange
                | AsyncEvent::SmChange
                | AsyncEvent::ClientReregister
                | AsyncEvent::GidChange
        )
    )
}

// abi: R-589
#[test]
fn events_that_are_never_raised() {
    let never = AsyncEvent::ALL
        .iter()
        .filter(|&&event| !is_raised(EventKind::Async(event)));
    assert_eq!(never.count(), 8);
    assert!(is_raised(EventKind::Completion));
}

/// Virtqueue, kind and cookie of an event.
type Sent = (u16, EventKind, u64);
/// The events of a VM.
type Events = Arc<Mutex<Vec<Sent>>>;

thread_local! {
    /// Events that this thread has written, for any VM, and whose interrupts it has not sent.
    static UNSENT: RefCell<Vec<(Events, Sent)>> = const { RefCell::new(Vec::new()) };
}

/// Event virtqueues of a VM, with a limited number of buffers. The driver sees an event when its
/// interrupt is sent.
#[derive(Default)]
pub struct Sink {
    pub buffers: AtomicUsize,
    pub events: Events,
    /// Whether the next write of an event panics.
    pub panics: AtomicBool,
    /// Reason for which the device needs a reset.
    failure: Mutex<Option<String>>,
    /// Enabled virtqueues of CQs and QPs.
    virtqueues: Mutex<BTreeMap<u16, Split>>,
}

impl Virtqueues for Sink {
    fn push(&self, queue: u16, event: Event) -> bool {
        if self.panics.swap(false, Ordering::SeqCst) {
            panic!("planted");
        }
        let took = self
            .buffers
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        if took.is_ok() {
            let kind = event.kind().expect("a known event");
            assert!(is_raised(kind), "{kind:?}");
            self.write((queue, kind, event.cookie));
        }
        took.is_ok()
    }

    fn split(&self, queue: u16) -> Option<Split> {
        self.virtqueues.lock().unwrap().get(&queue).copied()
    }

    /// Stores the interrupt of a virtqueue as a completion event with the queue number as cookie.
    fn interrupt(&self, queue: u16) {
        self.write((queue, EventKind::Completion, queue.into()));
    }

    fn send_interrupts(&self) {
        for (events, event) in UNSENT.take() {
            events.lock().unwrap().push(event);
        }
    }

    fn fail(&self, why: &str) {
        *self.failure.lock().unwrap() = Some(why.to_owned());
    }
}

impl Sink {
    fn write(&self, event: Sent) {
        UNSENT.with_borrow_mut(|unsent| unsent.push((self.events.clone(), event)));
    }

    /// Waits for an event and removes it. Does not wait for asynchronous events in virtqueue mode,
    /// which has none.
    pub fn expect(&self, kind: EventKind, cookie: u64) {
        if is_virtqueue_mode() && kind != EventKind::Completion {
            return;
        }
        wait(&format!("event {kind:?} of {cookie:#x}"), || {
            let mut events = self.events.lock().unwrap();
            let at = events
                .iter()
                .position(|event| (event.1, event.2) == (kind, cookie))?;
            Some(events.remove(at))
        });
    }

    /// Reason for which the device needs a reset, if it does.
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap().clone()
    }

    /// Waits until the device needs a reset because of a panic that the test caused.
    pub fn expect_failure(&self) {
        let why = wait("a failure of the device", || self.failure());
        assert_eq!(why, "panicked: planted");
    }

    fn is_free(&self, queue: Option<u16>) -> bool {
        queue.is_some_and(|queue| self.split(queue).is_none())
    }

    pub fn enable(&self, queue: Option<u16>, split: Split) {
        let queue = queue.expect("a virtqueue");
        self.virtqueues.lock().unwrap().insert(queue, split);
    }

    pub fn disable(&self, queue: u16) {
        self.virtqueues.lock().unwrap().remove(&queue);
    }

    pub fn is_empty(&self) -> bool {
        self.events.lock().unwrap().is_empty()
    }
}

/// MAC address of VM number `n`, counted from 1.
pub fn mac(n: usize) -> [u8; 6] {
    [0x52, 0x54, 0, 9, 0, n as u8]
}

/// A further MAC address of VM number `n`.
pub fn more_mac(n: usize) -> [u8; 6] {
    [0x52, 0x54, 0, 9, 1, n as u8]
}

/// Notifies a device, if it exists, that its port has frames, as a thread of the switch that is
/// busy or idle.
pub fn notify(hca: &Weak<Hca>, caller: Caller) {
    if let Some(hca) = hca.upgrade() {
        match caller {
            Caller::Busy => hca.frames_ready(),
            Caller::Idle => hca.serve_frames_here(),
        }
    }
}

/// VMs whose devices share one runtime.
pub struct World {
    // The runtime is dropped last, because its threads serve the devices.
    pub vms: Vec<Vm>,
    pub net: Arc<Net>,
    pub runtime: Runtime,
}

impl World {
    pub fn new(vms: usize, path: PathPolicy) -> Self {
        Self::with_limits(vms, path, Limits::default())
    }

    pub fn with_limits(vms: usize, path: PathPolicy, limits: Limits) -> Self {
        let config = RuntimeConfig {
            path,
            ..RuntimeConfig::default()
        };
        Self::with_config(vms, config, limits)
    }

    /// VMs with a runtime of this configuration, by default with two workers.
    pub fn with_config(vms: usize, mut config: RuntimeConfig, limits: Limits) -> Self {
        let net = Arc::new(Net::default());
        config.workers.get_or_insert(2);
        let runtime = Runtime::new(config).unwrap();
        let vms = (1..=vms)
            .map(|n| {
                let port = net.port(mac(n));
                let vm = Vm::new(n, &runtime, port.clone(), &limits);
                port.attach(&vm.hca);
                vm
            })
            .collect();
        Self { vms, net, runtime }
    }

    /// Negotiates `features` and the features of the mode with the drivers of all VMs.
    pub fn negotiate(&self, features: &[Feature]) {
        for vm in &self.vms {
            vm.negotiate(features);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for vm in &self.vms {
            vm.hca.detach();
        }
    }
}

/// `others`, and the features that own rings need unless this is virtqueue mode.
fn features(others: &[Feature]) -> Features {
    let mode = match is_virtqueue_mode() {
        true => &[][..],
        false => &[Feature::RingAddr, Feature::Srq, Feature::ResizeCq],
    };
    Features::of(mode).union(Features::of(others))
}

/// A registered MR.
#[derive(Clone, Copy, Debug)]
pub struct Mr {
    pub mrn: MrNumber,
    pub key: u32,
    /// Start address of the MR in work requests.
    pub addr: u64,
    /// DMA address of the memory. Tests that use it register contiguous memory.
    pub iova: u64,
    pub len: u64,
}

/// A VM and its driver.
pub struct Vm {
    /// The MAC address by which peers name the port.
    pub mac: [u8; 6],
    pub gid: [u8; 16],
    pub pdn: Pdn,
    pub space: Arc<DmaSpace>,
    pub hca: Arc<Hca>,
    pub sink: Arc<Sink>,
    next: AtomicU64,
    cookies: AtomicU64,
    /// Ids of polled completions of each QP since the last [`take_ended`](Self::take_ended). The
    /// boolean is true for receives.
    ended: Mutex<HashMap<(Qpn, bool), Vec<u64>>>,
}

impl Vm {
    /// VM number `n` with its frame port. The caller must notify the device of received frames.
    pub fn new(n: usize, runtime: &Runtime, port: Arc<dyn FramePort>, limits: &Limits) -> Self {
        Self::with_addresses(n, runtime, port, limits, &[])
    }

    /// Like [`new`](Self::new), for a VM that may use only the IP addresses `addresses`.
    pub fn with_addresses(
        n: usize,
        runtime: &Runtime,
        port: Arc<dyn FramePort>,
        limits: &Limits,
        addresses: &[IpAddr],
    ) -> Self {
        let config = HcaConfig {
            limits: limits.clone(),
            addresses: addresses.to_vec(),
            more_macs: vec![more_mac(n)],
            ..HcaConfig::new(mac(n))
        };
        Self::with_config(n, runtime, port, config)
    }

    /// Like [`new`](Self::new), with a device configuration.
    pub fn with_config(
        n: usize,
        runtime: &Runtime,
        port: Arc<dyn FramePort>,
        config: HcaConfig,
    ) -> Self {
        let mac = config.mac;
        let space = Arc::new(DmaSpace::anonymous(0, MEMORY));
        let sink = Arc::new(Sink::default());
        if !is_virtqueue_mode() {
            sink.buffers.store(1_000_000, Ordering::SeqCst);
        }
        let hca = Hca::new(config, space.clone(), runtime, sink.clone(), port);
        hca.set_link(true);
        sink.events.lock().unwrap().clear();
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, n as u8]);
        let mut vm = Self {
            mac,
            gid,
            pdn: Pdn::new(0),
            space,
            hca,
            sink,
            next: AtomicU64::new(4096),
            cookies: AtomicU64::new(((n as u64) << 32) | 1),
            ended: Mutex::default(),
        };
        vm.start();
        vm
    }

    /// Sets up a device that is new or was just reset, as a driver does.
    pub fn start(&mut self) {
        *self.sink.failure.lock().unwrap() = None;
        self.hca.set_features(features(&[]));
        self.pdn = self.call(CmdCreatePd::ZERO).unwrap().pdn;
        self.call(CmdAddGid {
            gid: self.gid,
            gid_type: 2,
            index: 1,
            port_num: 1,
        })
        .unwrap();
    }

    /// Negotiates `others` and the features of the mode.
    pub fn negotiate(&self, others: &[Feature]) {
        self.hca.set_features(features(others));
    }

    /// Executes a control command.
    pub fn call<R: ControlCommand>(&self, request: R) -> Result<R::Response, u8> {
        let mut bytes = vec![R::COMMAND.value()];
        bytes.resize(1 + R::SIZE, 0);
        request.put(&mut bytes[1..]);
        let mut response = Vec::new();
        self.hca
            .command(&bytes, 1 + <R::Response as Wire>::SIZE, &mut response);
        match response[0] {
            RESPONSE_OK => {
                assert_eq!(response.len(), 1 + <R::Response as Wire>::SIZE);
                Ok(<R::Response as Wire>::get(&response[1..]))
            }
            errno => {
                assert_eq!(response.len(), 1);
                Err(errno)
            }
        }
    }

    /// Counters of the port.
    pub fn counters(&self) -> RspQueryCounters {
        self.call(CmdQueryCounters { port: 1 }).unwrap()
    }

    /// Numbers of packets with a wrong P_Key and with a wrong Q_Key.
    pub fn violations(&self) -> (u32, u32) {
        let port = self.call(CmdQueryPort { port: 1 }).unwrap();
        (port.bad_pkey_cntr, port.qkey_viol_cntr)
    }

    /// Allocates `len` bytes of page-aligned memory and returns the DMA address.
    pub fn alloc(&self, len: u64) -> u64 {
        let len = len.div_ceil(4096).max(1) * 4096;
        let at = self.next.fetch_add(len, Ordering::Relaxed);
        assert!(
            at + len <= MEMORY,
            "the VM has too little memory for this test"
        );
        at
    }

    /// Records a polled completion.
    pub fn note_ended(&self, cqe: &Cqe) {
        let key = (cqe.qp_num, cqe.opcode >= OPCODE_RECV);
        let mut ended = self.ended.lock().unwrap();
        ended.entry(key).or_default().push(cqe.wr_id);
    }

    /// Ids of the completions of an SQ or RQ that were polled since the last call.
    pub fn take_ended(&self, qpn: Qpn, is_recv: bool) -> Vec<u64> {
        let mut ended = self.ended.lock().unwrap();
        ended.remove(&(qpn, is_recv)).unwrap_or_default()
    }

    pub fn cookie(&self) -> u64 {
        self.cookies.fetch_add(1, Ordering::Relaxed)
    }

    pub fn write(&self, iova: u64, bytes: &[u8]) {
        let view = self.space.enter();
        view.slice_mut(iova, bytes.len())
            .unwrap()
            .write(0, bytes)
            .unwrap();
    }

    pub fn read(&self, iova: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.space
            .enter()
            .slice(iova, len)
            .unwrap()
            .read(0, &mut bytes)
            .unwrap();
        bytes
    }

    /// Writes a page list to memory and returns its DMA address.
    pub fn page_list(&self, pages: &[u64]) -> u64 {
        let list = self.alloc(8 * pages.len() as u64);
        let bytes: Vec<u8> = pages.iter().flat_map(|page| page.to_le_bytes()).collect();
        self.write(list, &bytes);
        list
    }

    /// Registers memory at DMA address `iova`. Addresses in work requests are unrelated to `iova`.
    pub fn register(&self, pdn: Pdn, iova: u64, len: u64, access: AccessFlags) -> Mr {
        self.register_pages(pdn, iova, len, access, &pages(iova, len))
    }

    /// Registers memory at DMA address `iova` with its pages in reverse order, so that no two
    /// consecutive pages of the MR are contiguous.
    pub fn register_reversed(&self, pdn: Pdn, iova: u64, len: u64, access: AccessFlags) -> Mr {
        let mut pages = pages(iova, len);
        pages.reverse();
        self.register_pages(pdn, iova, len, access, &pages)
    }

    fn register_pages(
        &self,
        pdn: Pdn,
        iova: u64,
        len: u64,
        access: AccessFlags,
        pages: &[u64],
    ) -> Mr {
        let virt_addr = 0x7f00_0000_0000 + iova;
        let mr = self
            .call(CmdRegUserMr {
                pdn,
                access_flags: access,
                start: virt_addr,
                length: len,
                virt_addr,
                pages: self.page_list(pages),
                npages: pages.len() as u32,
            })
            .unwrap();
        assert_eq!(mr.lkey, mr.rkey);
        Mr {
            mrn: mr.mrn,
            key: mr.lkey,
            addr: virt_addr,
            iova,
            len,
        }
    }

    /// Allocates and registers `len` bytes with all access flags.
    pub fn mr(&self, len: u64) -> Mr {
        self.register(self.pdn, self.alloc(len), len.max(1), FULL)
    }
}

/// DMA addresses of the pages of `len` bytes at `iova`.
fn pages(iova: u64, len: u64) -> Vec<u64> {
    let first = iova & !4095;
    (first..iova + len).step_by(4096).collect()
}

/// `len` pseudo-random bytes that depend on `seed`, so that a test detects misplaced bytes.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

/// Both data paths: direct copies between VMs, and packets.
pub const PATHS: [PathPolicy; 2] = [PathPolicy::Direct, PathPolicy::Wire];

/// Runs `test` on both data paths.
pub fn on_both_paths(test: impl Fn(PathPolicy)) {
    for path in PATHS {
        eprintln!("path: {path:?}");
        test(path);
    }
}
