// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! One end of a connection: its objects, memory and work requests.

use std::collections::VecDeque;

use testkit::engine::cq::Moving;
use testkit::engine::{sge, Cq, Mr, Options, Qp};
use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_abi::ib::WrOpcode;
use virtio_rdma_abi::ring::ArmKind;

use super::count::Count;
use super::drain::Drain;
use super::moderation::Moderation;
use super::pace::Pace;
use crate::driver;
use crate::guest::Guest;

/// Bytes of an area of memory. A work request has exclusive use of its areas until it is complete.
pub(super) const AREA: u64 = 8192;
/// Number of areas of each kind.
pub(super) const AREAS: usize = 12;
/// Initial value of all bytes of an area.
const FILL: u8 = 0xee;
/// Kind of area: local memory of send work requests.
pub(super) const LOCAL: usize = 0;
/// Kind of area: receive buffers.
pub(super) const RECEIVE: usize = 1;
/// Kind of area: memory that work requests of the peer access.
pub(super) const REMOTE: usize = 2;
const KINDS: usize = 3;

/// A posted send work request.
#[derive(Debug)]
pub(super) struct Sent {
    pub id: u64,
    pub opcode: WrOpcode,
    pub signaled: bool,
    pub local: usize,
    /// Whether another work request uses the same local area.
    pub shared: bool,
    pub remote: Option<usize>,
    /// Data that must be at the destination when the work request is complete.
    pub data: Vec<u8>,
}

/// A message that takes a receive of the peer.
#[derive(Debug)]
pub(super) struct Message {
    pub data: Vec<u8>,
    pub imm: Option<[u8; 4]>,
    /// Whether the data is stored in the receive buffer; false for a WRITE with immediate data.
    pub placed: bool,
    pub solicited: bool,
}

#[derive(Debug)]
pub(super) struct Received {
    pub id: u64,
    pub area: usize,
}

/// One end of a connection.
pub(super) struct End<'w> {
    pub guest: &'w Guest,
    pub cq: Cq<'w>,
    pub qp: Qp<'w>,
    pub mr: Mr,
    pub free: [Vec<usize>; KINDS],
    pub sent: VecDeque<Sent>,
    /// Messages to the peer that the peer has not received.
    pub messages: VecDeque<Message>,
    pub received: VecDeque<Received>,
    /// Value that this end's atomic word will have when all work requests that the peer has posted
    /// are executed.
    pub word: u64,
    pub armed: Option<ArmKind>,
    /// The new ring of the CQ, if the device uses it already and the driver does not use it yet.
    pub moving: Option<Moving>,
    /// Completions of the CQ's old ring that were not polled yet.
    pub left: VecDeque<Cqe>,
    /// Number of completions in the new ring that were written before the CQ was armed there.
    pub early: u32,
    /// Whether an event may still be raised because of the last move of the CQ.
    pub late: bool,
    /// Whether an event must still be raised because of the last move of the CQ.
    pub owed: bool,
    /// Whether completions were polled since the CQ was armed. The device may still raise an event
    /// for these completions.
    pub polled: bool,
    /// Whether the doorbell of the CQ was rung since the last event. The device may handle the
    /// doorbell after a move of the CQ.
    pub rang: bool,
    pub moderation: Moderation,
    /// State of draining; `Some` while the QP is in SQD.
    pub drain: Option<Drain>,
    /// Whether the event SQ_DRAINED of an earlier SQD may still arrive.
    pub drainable: bool,
    pub pace: Option<Pace>,
    pub count: Count,
    pub posted: u64,
    /// Whether a work request of the SQ has failed, so later ones are flushed.
    pub failed: bool,
    /// Whether the QP or its peer is in ERR, so work requests may complete in error.
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
            moderation: Moderation::new(),
            drain: None,
            drainable: false,
            pace: None,
            count: Count::default(),
            posted: 0,
            failed: false,
            ending: false,
        }
    }

    /// Whether enough receives are posted for this number of messages.
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

    /// Arms the CQ. The caller has polled all completions before.
    pub fn arm(&mut self, kind: ArmKind) {
        self.take_events();
        // All completions are polled, so the last move is no longer a reason to expect an event.
        self.forget_move();
        self.polled &= self.armed.is_some();
        // A CQ that is armed for the next completion stays so.
        if self.armed != Some(ArmKind::Next) {
            self.armed = Some(kind);
            // Completions that were polled since the CQ was armed qualify now.
            if self.polled {
                self.may_become_due();
            }
        }
        if self.cq.arm_silently(kind) {
            self.rang = true;
            self.may_become_due();
            self.cq.ring_doorbell();
        }
    }

    /// Takes and checks the events of the CQ and the QP. Returns whether there were any.
    pub fn take_events(&mut self) -> bool {
        self.observe();
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
            self.note_taken();
            self.forget_move();
            self.cq.event_received();
        }
        let events = self.guest.take_events(self.qp.cookie);
        for event in &events {
            self.qp_event(*event);
        }
        count + events.len() > 0
    }

    /// Records that the last move of the CQ is no longer a reason to expect an event.
    fn forget_move(&mut self) {
        self.early = 0;
        (self.late, self.owed) = (false, false);
    }

    /// Whether there may be completions that were not polled.
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

/// The content of an area that begins with `data` and is unchanged after it.
pub(super) fn filled(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    bytes.resize(AREA as usize, FILL);
    bytes
}

/// Offset of an area in the memory of its end, in bytes.
pub(super) fn offset(kind: usize, area: usize) -> u64 {
    (kind * AREAS + area) as u64 * AREA
}

/// Offset of the word for atomic operations in the memory of its end.
pub(super) fn word() -> u64 {
    offset(KINDS, 0)
}
