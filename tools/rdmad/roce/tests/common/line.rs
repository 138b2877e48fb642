// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! One direction of an unreliable connection: a requester and the responder of its peer.

use budget::MemoryBudget;
use roce::headers::{Body, Bth, Headers, Part};
use roce::net::Addresses;
use roce::uc::{Requester, Responder};
use roce::work::{AccessFlags, Mtu, RecvWr, SendFlags, SendOp, SendWr, WcStatus};
use roce::{Connection, Packet, Path, Psn, QpError};
use virtio_rdma_abi::number::Qpn;

use super::endpoint::{length, Pieces, World};
use super::setup::sealed;
use super::sim::Rng;

pub const MTU: usize = 256;
pub const PSN: u32 = 0xff_fff0;
pub const FULL: [u8; MTU] = [7; MTU];

/// The requester of one end and the responder of the other end, with their environments.
pub struct Line {
    pub requester: Requester<Pieces>,
    pub near: World,
    pub responder: Responder<Pieces>,
    pub far: World,
}

impl Line {
    pub fn new(memory: usize) -> Self {
        let addresses = Addresses::V4([10, 9, 0, 1].into(), [10, 9, 0, 2].into());
        let connection = Connection::new(
            Path::new([2; 6], [4; 6], addresses),
            Qpn::new(2),
            Mtu::Mtu256,
        );
        let mut requester = Requester::new(connection, PSN);
        requester
            .make_room(&MemoryBudget::new(u64::MAX), 8)
            .unwrap();
        let mut line = Self {
            requester,
            near: World::new(memory),
            responder: Responder::new(Mtu::Mtu256, PSN, AccessFlags::ALL),
            far: World::new(memory),
        };
        Rng(1).fill(&mut line.near.memory);
        line
    }

    pub fn post(&mut self, id: u64, op: SendOp, local: Pieces) {
        let wr = SendWr {
            id,
            op,
            length: length(&local),
            flags: SendFlags::SOLICITED,
            local,
        };
        self.requester.post(wr).expect("there is room");
    }

    pub fn post_recv(&mut self, id: u64, local: Pieces) {
        self.far.receives.push_back(RecvWr {
            id,
            length: length(&local),
            local,
        });
    }

    /// Sends all posted work requests and returns their frames.
    pub fn sent(&mut self) -> Vec<Vec<u8>> {
        let _ = self.requester.transmit(usize::MAX, &mut self.near);
        self.near
            .out
            .drain(..)
            .map(|frame| frame.to_vec())
            .collect()
    }

    pub fn deliver(&mut self, frame: &[u8]) -> Result<bool, QpError> {
        let packet = Packet::parse(frame).expect("a sound frame");
        self.responder.on_packet(&packet, &mut self.far)
    }

    /// Delivers a packet with PSN `psn` to the responder. Returns whether it was executed.
    pub fn feed(&mut self, part: Part, psn: u32, payload: &[u8]) -> bool {
        let bth = Bth::new(0xffff, Qpn::new(2), Psn::new(psn));
        let frame = sealed(&Headers::new(bth, Body::Uc(part)), payload);
        self.deliver(&frame).expect("the QP lives")
    }

    /// Id and message length in bytes of each completed receive. Checks that all were successful.
    pub fn received(&self) -> Vec<(u64, u32)> {
        let received = self.far.received.iter();
        received
            .map(|(id, how)| {
                assert_eq!(how.status(), WcStatus::Success);
                (*id, how.byte_len)
            })
            .collect()
    }
}
