// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Virtqueue mode: CQs, SQs and RQs are virtqueues, as in the virtio-rdma RFC.

use std::path::Path;

use crate::daemon;
use crate::driver::until;
use crate::driver::Driver;
use crate::driver::ENTRIES;
use crate::modify::modify;
use crate::modify::to_init;
use crate::modify::to_rtr;
use crate::modify::to_rts;
use crate::modify::Peer;
use crate::pattern;
use crate::port::active_mtu;
use crate::port::add_gid;
use crate::port::identity;
use crate::port::link_local;
use crate::region::Region;
use crate::virtqueue::Piece;
use crate::virtqueue::Virtqueue;
use crate::wire::*;

/// The interrupt vector of CQs.
const VECTOR: u16 = 1;
/// Distance in bytes between the buffers of a queue. The two descriptors of a chain share a buffer.
const ROOM: u64 = 256;

/// A virtqueue and its buffers.
struct Queue {
    index: u16,
    ring: Virtqueue,
    notify: u64,
    /// DMA address of the page of the buffers.
    buffers: u64,
    /// Number of buffers made available so far.
    offered: u16,
}

impl Queue {
    fn new(driver: &mut Driver, index: u16) -> Queue {
        let ring = Virtqueue::new(&driver.memory, ENTRIES);
        let notify = driver.enable(index, ring.parts(), VECTOR);
        Queue {
            index,
            ring,
            notify,
            buffers: driver.memory.page(),
            offered: 0,
        }
    }

    /// Address of the buffer of the chain at `head`. A chain has two descriptors.
    fn buffer(&self, head: u16) -> u64 {
        self.buffers + u64::from(head / 2) * ROOM
    }

    /// Makes a buffer of `len` bytes available by two descriptors. The first one has `part` bytes.
    fn offer(&mut self, part: u32, len: u32, is_writable: bool) {
        let head = self.offered * 2 % ENTRIES;
        let address = self.buffer(head);
        let piece = |address, len| Piece {
            address,
            len,
            is_writable,
        };
        let rest = piece(address + u64::from(part), len - part);
        // abi: R-895
        self.ring.offer(head, &[piece(address, part), rest]);
        self.offered += 1;
    }

    /// Posts a work request. The buffer is longer than the WQE.
    fn post(&mut self, driver: &mut Driver, wqe: &[u8]) {
        let address = self.buffer(self.offered * 2 % ENTRIES);
        driver.memory.write(address, wqe);
        // abi
        self.offer(11, wqe.len() as u32 + 9, false);
        driver.notify(self.index, self.notify);
    }

    /// Asserts that the device has returned the oldest work request's buffer. The device must
    /// return the buffer before the driver can see the completion.
    fn is_given_back(&mut self) {
        // abi: R-900
        assert!(matches!(self.ring.take(), Some((_, 0))));
    }

    /// Polls a CQ, and makes the buffer of the completion available again.
    fn poll(&mut self, driver: &mut Driver) -> Option<Cqe> {
        let (head, written) = self.ring.take()?;
        // abi: R-902
        assert_eq!(written as usize, Cqe::SIZE);
        let cqe = Cqe::new(&driver.memory.read(self.buffer(head), Cqe::SIZE));
        // abi: R-894
        self.offer(20, Cqe::SIZE as u32, true);
        driver.notify(self.index, self.notify);
        Some(cqe)
    }
}

/// One side of a connection.
struct Side {
    driver: Driver,
    pd: u32,
    region: Region,
    /// The CQ of sends and the CQ of receives.
    cqs: [Queue; 2],
    sq: Queue,
    rq: Queue,
    peer: Peer,
}

impl Side {
    /// QPN of the side's only QP. QPN 1 belongs to the GSI QP.
    const QPN: u16 = 2;

    fn new(socket: &Path) -> Side {
        let mut driver = Driver::new(socket, 0);
        let mac = identity(&mut driver);
        let gid = link_local(mac);
        let mtu = active_mtu(&mut driver);
        add_gid(&mut driver, gid).unwrap();
        let pd = le32(&driver.command(command::CREATE_PD, &[], 4).unwrap(), 0);
        let region = Region::new(&mut driver, pd, 0);
        let cqs = [0, 1].map(|cqn| {
            // abi: R-23
            let mut cq = Queue::new(&mut driver, 1 + cqn);
            for _ in 0..ENTRIES / 2 {
                cq.offer(20, Cqe::SIZE as u32, true);
            }
            // abi: R-165
            let request = Fields::default().le32(u32::from(ENTRIES) / 2);
            let made = driver.command(command::CREATE_CQ, &request.0, 4);
            // abi: R-166
            assert_eq!(le32(&made.unwrap(), 0), u32::from(cqn));
            cq
        });
        let max_cq = le32(&driver.config(&[(68, 4)])[0], 0) as u16;
        // abi: R-24
        let sq = Queue::new(&mut driver, max_cq + 2 * Self::QPN - 1);
        let rq = Queue::new(&mut driver, max_cq + 2 * Self::QPN);
        let qpn = Self::QPN.into();
        let peer = Peer { gid, mac, mtu, qpn };
        let mut side = Side {
            driver,
            pd,
            region,
            cqs,
            sq,
            rq,
            peer,
        };
        side.create_qp().unwrap();
        side
    }

    fn create_qp(&mut self) -> Result<(), u8> {
        // abi: R-170
        let request = Fields::default()
            .le32(self.pd)
            .u8(RC)
            .u8(1) // REQUESTED
            .le32(8)
            .le32(1)
            .le32(0)
            .le32(8)
            .le32(1)
            .le32(1)
            .le32(0);
        let request = request.zeroes(66);
        let made = self.driver.command(command::CREATE_QP, &request.0, 4)?;
        // abi: R-880
        assert_eq!(le32(&made, 0), u32::from(Self::QPN));
        Ok(())
    }

    fn connect(&mut self, peer: Peer) {
        let qpn = self.peer.qpn;
        to_init(&mut self.driver, qpn);
        to_rtr(&mut self.driver, qpn, peer, 1);
        to_rts(&mut self.driver, qpn, 1);
    }

    /// Requests an interrupt for the next completion of a CQ.
    fn ask(&mut self, cqn: u32) {
        // abi
        let request = Fields::default().le32(cqn).le32(1 << 1);
        let asked = self.driver.command(command::REQ_NOTIFY_CQ, &request.0, 0);
        asked.unwrap();
    }

    fn destroy(&mut self, command: u8, handle: u32) -> Result<(), u8> {
        let done = self.driver.command(command, &handle.to_le_bytes(), 0);
        done.map(drop)
    }
}

/// A message wakes its receiver. After a QP was destroyed and its virtqueues were reset, its number
/// is reused.
#[test]
fn a_message_by_virtqueues() {
    for path in ["direct", "wire"] {
        let dir = tempfile::tempdir().unwrap();
        let _daemon = daemon(dir.path(), path);
        let mut a = Side::new(&dir.path().join("a"));
        let mut b = Side::new(&dir.path().join("b"));
        for round in 0..2 {
            b.connect(a.peer);
            a.connect(b.peer);
            b.ask(1);
            let message = pattern(3000 + round);
            let into = [b.region.sge(100, 3100)];
            b.rq.post(&mut b.driver, &receive(1, &into));
            a.region.write(0, &message);
            let from = [a.region.sge(0, 3000 + round)];
            let send = Send::new(opcode::SEND, 2).with(&from);
            a.sq.post(&mut a.driver, &send);

            // abi: R-914
            b.driver.await_interrupt();
            let received = b.cqs[1].poll(&mut b.driver).unwrap();
            b.rq.is_given_back();
            assert_eq!(received, Cqe::received(b.peer.qpn, 1, 3000 + round));
            let sent = until("the completion", || a.cqs[0].poll(&mut a.driver));
            a.sq.is_given_back();
            assert_eq!(sent, Cqe::sent(a.peer.qpn, 2, opcode::SEND, 3000 + round));
            b.region.expect(&[(100, &message)]);

            // RESET returns the buffer of an unused receive without a completion.
            b.rq.post(&mut b.driver, &receive(3, &[]));
            modify(&mut b.driver, b.peer.qpn, state::RESET, 0, &[0; 129]).unwrap();
            // abi: R-901
            b.rq.is_given_back();
            assert_eq!(b.cqs[1].poll(&mut b.driver), None);
            for side in [&mut a, &mut b] {
                let qpn = side.peer.qpn;
                side.destroy(command::DESTROY_QP, qpn).unwrap();
                // abi
                assert_eq!(side.create_qp(), Err(ENOMEM));
                for queue in [&mut side.sq, &mut side.rq] {
                    side.driver.reset_queue(queue.index);
                    *queue = Queue::new(&mut side.driver, queue.index);
                }
                side.create_qp().unwrap();
            }
        }
        for side in [&mut a, &mut b] {
            let (qpn, pd, region) = (side.peer.qpn, side.pd, side.region.handle);
            assert_eq!(side.destroy(command::DESTROY_CQ, 0), Err(EBUSY));
            side.destroy(command::DESTROY_QP, qpn).unwrap();
            for cqn in [0, 1] {
                side.destroy(command::DESTROY_CQ, cqn).unwrap();
            }
            side.destroy(command::DEREG_MR, region).unwrap();
            side.destroy(command::DESTROY_PD, pd).unwrap();
            side.driver.reset();
        }
    }
}
