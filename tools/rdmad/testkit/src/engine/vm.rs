// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A VM: its device, guest memory and control commands.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dma::DmaSpace;
use roce::FramePort;
use verbs::{Hca, HcaConfig, Limits, Runtime};
use virtio_rdma_abi::cqe::{Cqe, OPCODE_RECV};
use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::feature::{Feature, Features};
use virtio_rdma_abi::ib::AccessFlags;
use virtio_rdma_abi::number::{MrNumber, Pdn, Qpn};
use virtio_rdma_abi::wire::Wire;

use super::{Mode, Sink, FULL};

/// Bytes of memory of a VM.
const MEMORY: u64 = 96 << 20;

/// MAC address of VM number `n`, counted from 1.
pub fn mac(n: usize) -> [u8; 6] {
    [0x52, 0x54, 0, 9, 0, n as u8]
}

/// A further MAC address of VM number `n`.
pub fn more_mac(n: usize) -> [u8; 6] {
    [0x52, 0x54, 0, 9, 1, n as u8]
}

/// The configuration of the device of VM number `n`.
pub fn hca_config(n: usize, limits: &Limits, addresses: &[IpAddr]) -> HcaConfig {
    HcaConfig {
        limits: limits.clone(),
        addresses: addresses.to_vec(),
        more_macs: vec![more_mac(n)],
        ..HcaConfig::new(mac(n))
    }
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
    pub mode: Mode,
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
    /// VM number `n` with own rings and its frame port. The caller must notify the device of
    /// received frames.
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
        let config = hca_config(n, limits, addresses);
        Self::in_mode(Mode::OwnRings, n, runtime, port, config)
    }

    /// Like [`new`](Self::new), with a device configuration, and queues as `mode` says.
    pub fn in_mode(
        mode: Mode,
        n: usize,
        runtime: &Runtime,
        port: Arc<dyn FramePort>,
        config: HcaConfig,
    ) -> Self {
        let mac = config.mac;
        let space = Arc::new(DmaSpace::anonymous(0, MEMORY));
        let sink = Arc::new(Sink::new(mode));
        let hca = Hca::new(config, space.clone(), runtime, sink.clone(), port);
        hca.set_link(true);
        sink.events.lock().unwrap().clear();
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, n as u8]);
        let mut vm = Self {
            mode,
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
        self.sink.forget_failure();
        self.negotiate(&[]);
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
        let own_rings = match self.mode {
            Mode::OwnRings => &[Feature::RingAddr, Feature::Srq, Feature::ResizeCq][..],
            Mode::Virtqueues => &[],
        };
        let features = Features::of(own_rings).union(Features::of(others));
        self.hca.set_features(features);
    }

    /// Whether the driver's queues are virtqueues.
    pub fn is_virtqueue_mode(&self) -> bool {
        self.mode == Mode::Virtqueues
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
