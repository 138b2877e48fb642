// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The objects of one side of a connection: PD, GID, MR, two CQs and an RC QP.

use std::path::Path;

use crate::driver::Driver;
use crate::modify::modify;
use crate::modify::state_of;
use crate::modify::to_init;
use crate::modify::to_rtr;
use crate::modify::to_rts;
use crate::modify::Peer;
use crate::port::active_mtu;
use crate::port::add_gid;
use crate::port::identity;
use crate::port::link_local;
use crate::port::GID_INDEX;
use crate::region::Region;
use crate::rings::CompletionQueue;
use crate::rings::SharedQueue;
use crate::rings::WorkQueue;
use crate::wire::*;

/// Maximum number of work requests of each queue.
pub const DEPTH: u32 = 64;
const SGES: u32 = 2;
/// Maximum number of work requests of an SRQ.
pub const SHARED_DEPTH: u32 = 8;
/// Maximum length of the inline data of a send work request, in bytes.
pub const INLINE_LEN: u32 = 32;
/// Base-2 logarithms of the slot sizes. A send WQE has at most 91 + 32 bytes, a receive WQE has at
/// most 12 + 2 * 16 bytes.
const SEND_SHIFT: u8 = 7;
pub const RECEIVE_SHIFT: u8 = 6;
/// Cookies of the objects, which their events carry.
pub const SEND_COOKIE: u64 = 0x5e4d_0000_dead_beef;
pub const RECEIVE_COOKIE: u64 = 0x4ec5_0000_dead_beef;
pub const SRQ_COOKIE: u64 = 0x0001_0002_0003_0004;
pub const QP_COOKIE: u64 = u64::MAX;

/// Options of one side of a connection.
#[derive(Clone, Copy)]
pub struct Options {
    pub features: u64,
    /// Depth of the page lists of rings: 0 for flat, 1 for a directory.
    pub depth: u8,
    pub qp_type: u8,
    /// Whether the QP uses an SRQ.
    pub is_shared: bool,
}

/// Options of a side with own rings and no other optional feature.
pub const PLAIN: Options = Options {
    features: 0,
    depth: 0,
    qp_type: RC,
    is_shared: false,
};

/// One side of a connection.
pub struct Endpoint {
    pub driver: Driver,
    pub pd: u32,
    pub region: Region,
    pub send_cq: CompletionQueue,
    pub recv_cq: CompletionQueue,
    pub sq: WorkQueue,
    /// The RQ, which is unused if the QP uses an SRQ.
    pub rq: WorkQueue,
    pub srq: Option<SharedQueue>,
    pub mac: [u8; 6],
    pub gid: [u8; 16],
    mtu: u8,
}

impl Endpoint {
    /// Initializes the device at `socket` and creates all objects. The QP is not connected.
    pub fn new(socket: &Path, options: Options) -> Endpoint {
        Self::of(Driver::new(socket, options.features | RING_ADDR), options)
    }

    /// Initializes the device again, and creates all objects.
    pub fn again(mut self, options: Options) -> Endpoint {
        self.driver.initialize();
        Self::of(self.driver, options)
    }

    fn of(mut driver: Driver, options: Options) -> Endpoint {
        let depth = options.depth;
        let mac = identity(&mut driver);
        let gid = link_local(mac);
        let mtu = active_mtu(&mut driver);
        // abi: R-1148
        add_gid(&mut driver, gid).unwrap();
        let pd = driver.command(command::CREATE_PD, &[], 4).unwrap();
        let pd = le32(&pd, 0);
        let region = Region::new(&mut driver, pd, depth);
        let send_cq = completion_queue(&mut driver, depth, SEND_COOKIE);
        let recv_cq = completion_queue(&mut driver, depth, RECEIVE_COOKIE);
        let srq = options
            .is_shared
            .then(|| shared_queue(&mut driver, pd, depth));
        let memory = &driver.memory;
        let sq = WorkQueue::new(memory, doorbell::SQ, DEPTH, SEND_SHIFT, depth);
        let rq = WorkQueue::new(memory, doorbell::RQ, DEPTH, RECEIVE_SHIFT, depth);
        let mut side = Endpoint {
            driver,
            pd,
            region,
            send_cq,
            recv_cq,
            sq,
            rq,
            srq,
            mac,
            gid,
            mtu,
        };
        side.create_qp(options.qp_type);
        side
    }

    fn create_qp(&mut self, qp_type: u8) {
        let (sq_list, rq_list) = (self.sq.ring.list(), self.rq.ring.list());
        let mut request = Fields::default()
            .le32(self.pd)
            .u8(qp_type)
            .u8(1) // REQUESTED
            .le32(DEPTH)
            .le32(SGES)
            .le32(self.send_cq.number);
        request = match &self.srq {
            None => request.le32(DEPTH).le32(SGES),
            Some(_) => request.le32(0).le32(0),
        };
        request = request.le32(self.recv_cq.number).le32(INLINE_LEN);
        request = match &self.srq {
            None => request.le32(0).le32(0),
            Some(srq) => request.le32(1 << 2).le32(srq.number),
        };
        // abi: R-508
        request = request.zeroes(66).raw(&self.sq.ring.place(&sq_list));
        request = match &self.srq {
            None => request.raw(&self.rq.ring.place(&rq_list)),
            Some(_) => request.zeroes(114),
        };
        let request = request.le32(0).le64(QP_COOKIE);
        let qpn = self.driver.command(command::CREATE_QP, &request.0, 4);
        self.sq.number = le32(&qpn.unwrap(), 0);
        self.rq.number = self.sq.number;
    }

    pub fn qpn(&self) -> u32 {
        self.sq.number
    }

    /// The address of the QP, which its peer needs.
    pub fn peer(&self) -> Peer {
        Peer {
            gid: self.gid,
            mac: self.mac,
            mtu: self.mtu,
            qpn: self.qpn(),
        }
    }

    /// Moves the QP from RESET to RTS. The first PSN of this side is `psn`, the first PSN of the
    /// peer is `peer_psn`.
    pub fn connect(&mut self, peer: Peer, psn: u32, peer_psn: u32) {
        self.receive_from(peer, peer_psn, |_| {});
        self.send_from(psn);
    }

    /// Moves the QP from RESET to RTR. Calls `between` while the QP is in INIT.
    pub fn receive_from(&mut self, peer: Peer, peer_psn: u32, between: impl FnOnce(&mut Endpoint)) {
        let qpn = self.qpn();
        to_init(&mut self.driver, qpn);
        between(self);
        to_rtr(&mut self.driver, qpn, peer, peer_psn);
    }

    /// Moves the QP from RTR to RTS.
    pub fn send_from(&mut self, psn: u32) {
        let qpn = self.qpn();
        to_rts(&mut self.driver, qpn, psn);
    }

    /// Moves a UD QP from RESET to RTS.
    pub fn open(&mut self, qkey: u32) {
        use attribute::*;
        let mut attrs = [0; 129];
        attrs[4..8].copy_from_slice(&qkey.to_le_bytes());
        attrs[33] = 1; // port_num
        self.modify(state::INIT, PKEY_INDEX | PORT | QKEY, &attrs)
            .unwrap();
        self.modify(state::RTR, 0, &attrs).unwrap();
        self.modify(state::RTS, SQ_PSN, &attrs).unwrap();
    }

    /// Moves the QP to `state` with the attributes of `mask`.
    pub fn modify(&mut self, state: u8, mask: u32, attrs: &[u8; 129]) -> Result<(), u8> {
        let qpn = self.qpn();
        modify(&mut self.driver, qpn, state, mask, attrs)
    }

    /// The state of the QP.
    pub fn state(&mut self) -> Result<u8, u8> {
        let qpn = self.qpn();
        state_of(&mut self.driver, qpn)
    }

    pub fn post_send(&mut self, wqe: &[u8]) {
        self.sq.post(&mut self.driver, wqe);
    }

    pub fn post_receive(&mut self, wqe: &[u8]) {
        match &mut self.srq {
            None => self.rq.post(&mut self.driver, wqe),
            Some(srq) => srq.post(wqe),
        }
    }

    /// Destroys one object by its handle.
    pub fn destroy(&mut self, command: u8, handle: u32) -> Result<(), u8> {
        self.driver
            .command(command, &handle.to_le_bytes(), 0)
            .map(drop)
    }

    /// Resets the device, which destroys all objects, and initializes it again. Asserts that the
    /// old handles are invalid.
    pub fn forget(&mut self) {
        let handles = [
            (command::DESTROY_QP, self.qpn()),
            (command::DESTROY_CQ, self.send_cq.number),
            (command::DESTROY_CQ, self.recv_cq.number),
            (command::DEREG_MR, self.region.handle),
            (command::DESTROY_PD, self.pd),
        ];
        assert_eq!(add_gid(&mut self.driver, self.gid), Err(EEXIST));
        self.driver.initialize();
        for (command, handle) in handles {
            assert_eq!(self.destroy(command, handle), Err(EINVAL), "{command}");
        }
        add_gid(&mut self.driver, self.gid).unwrap();
    }

    /// Destroys all objects, each before the objects that it uses, and resets the device.
    pub fn end(mut self) {
        let (qpn, pd, region) = (self.qpn(), self.pd, self.region.handle);
        let cqs = [self.send_cq.number, self.recv_cq.number];
        self.destroy(command::DESTROY_QP, qpn).unwrap();
        assert_eq!(self.state(), Err(EINVAL));
        for cqn in cqs {
            self.destroy(command::DESTROY_CQ, cqn).unwrap();
        }
        if let Some(srqn) = self.srq.as_ref().map(|srq| srq.number) {
            self.destroy(command::DESTROY_SRQ, srqn).unwrap();
        }
        self.destroy(command::DEREG_MR, region).unwrap();
        self.destroy(command::DESTROY_PD, pd).unwrap();
        assert_eq!(self.destroy(command::DESTROY_PD, pd), Err(EINVAL));
        let gid = Fields::default().le16(GID_INDEX).le32(1);
        self.driver.command(command::DEL_GID, &gid.0, 0).unwrap();
        assert_eq!(self.driver.event(), None);
        self.driver.reset();
    }
}

pub fn completion_queue(driver: &mut Driver, depth: u8, cookie: u64) -> CompletionQueue {
    let mut cq = CompletionQueue::new(&driver.memory, DEPTH, depth);
    let list = cq.ring.list();
    let request = cq_request(&cq.ring.place(&list), DEPTH, 0, cookie);
    let cqn = driver.command(command::CREATE_CQ, &request.zeroes(56).0, 4);
    cq.number = le32(&cqn.unwrap(), 0);
    cq
}

/// The request of CREATE_CQ without its reserved bytes.
pub fn cq_request(place: &[u8], cqe: u32, flags: u32, cookie: u64) -> Fields {
    // abi: R-507
    let request = Fields::default().le32(cqe).le32(flags).raw(place);
    request.le32(0).le32(1).le64(cookie)
}

fn shared_queue(driver: &mut Driver, pd: u32, depth: u8) -> SharedQueue {
    let mut srq = SharedQueue::new(&driver.memory, SHARED_DEPTH, RECEIVE_SHIFT, depth);
    let list = srq.ring.list();
    // abi: R-561
    let request = Fields::default()
        .le32(pd)
        .le32(SHARED_DEPTH)
        .le32(SGES)
        .le32(0)
        .raw(&srq.ring.place(&list))
        .le32(0)
        .le64(SRQ_COOKIE);
    let srqn = driver.command(command::CREATE_SRQ, &request.0, 4).unwrap();
    srq.number = le32(&srqn, 0);
    srq
}
