// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! One side of a connection: its objects, memory and work.

use std::collections::VecDeque;

use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_abi::ib::WrOpcode;
use virtio_rdma_abi::ring::ArmKind;

use super::drain::Drain;
use super::pace::Pace;
use crate::driver;
use crate::guest::Guest;
use crate::harness::cq::Moving;
use crate::harness::{sge, Cq, Mr, Options, Qp};

/// Bytes of an area: a work request has one of each kind to itself until it is complete.
pub(super) const AREA: u64 = 8192;
/// Areas of a kind.
pub(super) const AREAS: usize = 12;
/// The byte of an area where nothing was written.
const FILL: u8 = 0xee;
/// The kinds of areas of an end's memory: for its own work requests, its receives, those of its
/// peer.
pub(super) const LOCAL: usize = 0;
pub(super) const RECEIVE: usize = 1;
pub(super) const REMOTE: usize = 2;
const KINDS: usize = 3;

/// A work request of a send queue.
#[derive(Debug)]
pub(super) struct Sent {
    pub id: u64,
    pub opcode: WrOpcode,
    pub signaled: bool,
    pub local: usize,
    /// Another work request has the local area, too.
    pub is_shared: bool,
    pub remote: Option<usize>,
    /// Bytes that must be where the opcode moves data to.
    pub data: Vec<u8>,
}

/// A message that takes a receive of the peer.
#[derive(Debug)]
pub(super) struct Message {
    pub data: Vec<u8>,
    pub imm: Option<[u8; 4]>,
    /// Its data goes to the receive's memory.
    pub placed: bool,
    pub solicited: bool,
}

#[derive(Debug)]
pub(super) struct Received {
    pub id: u64,
    pub area: usize,
}

/// One side.
pub(super) struct End<'w> {
    pub guest: &'w Guest,
    pub cq: Cq<'w>,
    pub qp: Qp<'w>,
    pub mr: Mr,
    pub free: [Vec<usize>; KINDS],
    pub sent: VecDeque<Sent>,
    /// Messages to the peer that it has not taken.
    pub messages: VecDeque<Message>,
    pub received: VecDeque<Received>,
    /// The value of its word for atomic operations when all that the peer posted is done.
    pub word: u64,
    pub armed: Option<ArmKind>,
    /// The ring that the device has moved the CQ to, and completions that were left in the old one.
    pub moving: Option<Moving>,
    pub left: VecDeque<Cqe>,
    /// Completions in the new ring that were there before the CQ was armed in it.
    pub early: u32,
    /// When the device looks at the new ring, the event may come, or must.
    pub late: bool,
    pub owed: bool,
    /// Completions were polled since the CQ was armed. An event may still tell of them: what was
    /// asked for first holds.
    pub polled: bool,
    /// The doorbell of the CQ was rung since the last event. It may come when the device has moved.
    pub rang: bool,
    /// The QP is in SQD. The event of an earlier time there may come yet.
    pub drain: Option<Drain>,
    pub may_drain: bool,
    pub pace: Option<Pace>,
    pub posted: u64,
    /// A work request of the SQ failed: those behind it are flushed.
    pub failed: bool,
    /// The QP is in ERR, or its peer is gone: work may end in error.
    pub ending: bool,
}

impl<'w> End<'w> {
    pub fn new(guest: &'w Guest, options: Options) -> Self {
        let vm = &guest.vm;
        let cq = Cq::new(vm, 64);
        let qp = Qp::in_pd(vm, guest.pd(), &cq, &cq, options);
        let mr = guest.mr(word() + 8);
        vm.write(mr.iova, &vec![FILL; word() as usize]);
        vm.write(mr.iova + word(), &[0; 8]);
        Self {
            guest,
            cq,
            qp,
            mr,
            free: [(); KINDS].map(|()| (0..AREAS).collect()),
            sent: VecDeque::new(),
            messages: VecDeque::new(),
            received: VecDeque::new(),
            word: 0,
            armed: None,
            moving: None,
            left: VecDeque::new(),
            early: 0,
            late: false,
            owed: false,
            polled: false,
            rang: false,
            drain: None,
            may_drain: false,
            pace: None,
            posted: 0,
            failed: false,
            ending: false,
        }
    }

    /// Whether messages wait for receives that are not posted.
    pub fn has_receives_for(&self, messages: usize) -> bool {
        self.received.len() >= messages
    }

    pub fn messages(&self) -> usize {
        self.messages.len()
    }

    /// Posts a receive, if there is room.
    pub fn post_recv(&mut self) {
        let Some(area) = self.free[RECEIVE].pop() else {
            return;
        };
        self.posted += 1;
        let id = (self.posted << 1) | 1;
        self.clear(RECEIVE, area);
        self.received.push_back(Received { id, area });
        let sge = sge(&self.mr, offset(RECEIVE, area), AREA as u32);
        driver::post_recv(&self.qp, id, &[sge]);
    }

    /// Arms the CQ, which the caller has polled until it was empty.
    pub fn arm(&mut self, kind: ArmKind) {
        self.take_events();
        // All that came is polled.
        self.settle_move();
        self.polled &= self.armed.is_some();
        // Solicited does not take the place of next.
        if self.armed != Some(ArmKind::Next) {
            self.armed = Some(kind);
        }
        if self.cq.arm_silently(kind) {
            self.rang = true;
            self.cq.ring_doorbell();
        }
    }

    /// Takes the event of the CQ. Returns whether there was one.
    pub fn take_events(&mut self) -> bool {
        let count = self.guest.take_events(self.cq.cookie).len();
        if count > 0 {
            assert!(
                count == 1 && self.armed.is_some(),
                "{count} events, armed: {:?}",
                self.armed
            );
            assert!(
                self.has_news() || self.late || self.polled || self.guest.is_starved(),
                "an event of no completion"
            );
            self.armed = None;
            (self.polled, self.rang) = (false, false);
            self.settle_move();
            self.cq.event_received();
        }
        let events = self.guest.take_events(self.qp.cookie);
        for event in &events {
            self.qp_event(*event);
        }
        count + events.len() > 0
    }

    /// The last move of the CQ can't have kept an event back any more.
    fn settle_move(&mut self) {
        self.early = 0;
        (self.late, self.owed) = (false, false);
    }

    /// Whether there are completions that were not polled, or may be in another ring.
    fn has_news(&self) -> bool {
        driver::unpolled(&self.cq) > 0 || self.moving.is_some() || !self.left.is_empty()
    }

    pub fn area(&self, kind: usize, area: usize) -> Vec<u8> {
        self.guest
            .vm
            .read(self.mr.iova + offset(kind, area), AREA as usize)
    }

    pub fn holds(&self, kind: usize, area: usize, data: &[u8], sent: &Sent) {
        assert!(
            self.area(kind, area) == filled(data),
            "other bytes than those of {sent:?}"
        );
    }

    pub fn clear(&self, kind: usize, area: usize) {
        self.put(kind, area, &[FILL; AREA as usize]);
    }

    pub fn put(&self, kind: usize, area: usize, data: &[u8]) {
        self.guest.vm.write(self.mr.iova + offset(kind, area), data);
    }
}

/// An area that begins with `data`.
pub(super) fn filled(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    bytes.resize(AREA as usize, FILL);
    bytes
}

/// Where an area begins in the memory of its end.
pub(super) fn offset(kind: usize, area: usize) -> u64 {
    (kind * AREAS + area) as u64 * AREA
}

/// Where the word for atomic operations is.
pub(super) fn word() -> u64 {
    offset(KINDS, 0)
}
