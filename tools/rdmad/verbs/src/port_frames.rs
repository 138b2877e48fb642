// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The frames of a port: those that have arrived, and the room for those to be sent.
//!
//! A QP that finds no room waits on the lane on which it sends, and gets a turn when there is room
//! again. The frame port bounds the frames of its lanes. One more lane stands for the responses
//! that the QPs' requests will cause: [`PortLoad`] bounds them.

use std::sync::atomic::{fence, AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Instant;

use crossbeam_utils::CachePadded;
use roce::frame::{Lane, FRAMES_AT_ONCE};
use roce::FramePort;
use scheduler::Exclusive;
use virtio_rdma_abi::number::Qpn;

use crate::blocked::Blocked;
use crate::flows::Flows;
use crate::port_load::{Outstanding, PortLoad, QpLoad};
use crate::wire::ReceiveBacklog;

/// Proof that the QP is registered for a turn once the frame port has room.
#[derive(Debug)]
#[must_use]
pub(crate) struct ForFrames(());

pub(crate) struct PortFrames {
    /// The port of the switch.
    pub port: Arc<dyn FramePort>,
    pub arrivals: CachePadded<Arrivals>,
    /// The packets that are on the way.
    load: CachePadded<PortLoad>,
    /// QPs that wait for room in the frame port, or for room for responses.
    blocked: CachePadded<Blocked>,
    /// The lane of `blocked` for QPs that wait for room for responses.
    responses: Lane,
}

/// State that deliveries of frames write. It has cache lines of its own: every turn reads the other
/// words of an HCA.
pub(crate) struct Arrivals {
    /// Whether frames have arrived, or the frame port has room again.
    has_frames: AtomicBool,
    /// Only one worker at a time receives frames, so frames stay in order.
    pub receiving: Exclusive,
    /// Received frames that are left for the next turn.
    pub backlog: ReceiveBacklog,
}

/// The lane after these lanes of the frame port.
fn responses_after(lanes: usize) -> Lane {
    Lane::new(u16::try_from(lanes).unwrap_or(u16::MAX))
}

impl PortFrames {
    /// State without frames. QPNs are below `qpns`.
    pub(crate) fn new(port: Arc<dyn FramePort>, qpns: u32) -> Self {
        Self {
            arrivals: CachePadded::new(Arrivals {
                has_frames: AtomicBool::new(false),
                receiving: Exclusive::default(),
                backlog: ReceiveBacklog::default(),
            }),
            load: CachePadded::new(PortLoad::default()),
            blocked: CachePadded::new(Blocked::new(port.lanes() + 1, qpns)),
            responses: responses_after(port.lanes()),
            port,
        }
    }

    /// Requests a turn for the frames, after some have arrived or there is room again.
    pub(crate) fn are_ready(&self, flows: &Flows) {
        if self.become_ready() {
            flows.frames_ready();
        }
    }

    /// Like [`are_ready`](Self::are_ready), for a thread that may [serve the
    /// frames](Flows::serve_frames_here).
    pub(crate) fn are_ready_here(&self, flows: &Flows) {
        if self.become_ready() {
            flows.serve_frames_here();
        }
    }

    /// Sets `has_frames`. Returns whether it was clear, so that the caller must make the flow
    /// ready.
    fn become_ready(&self) -> bool {
        !self.arrivals.has_frames.swap(true, Ordering::AcqRel)
    }

    /// Returns and clears `has_frames`. Later frames set it again.
    #[inline]
    pub(crate) fn take_ready(&self) -> bool {
        self.arrivals.has_frames.load(Ordering::Relaxed)
            && self.arrivals.has_frames.swap(false, Ordering::AcqRel)
    }

    /// Notes that the turn in progress leaves frames. Its worker makes the flow ready when the turn
    /// ends.
    pub(crate) fn note_left(&self) {
        self.arrivals.has_frames.store(true, Ordering::Release);
    }

    /// Registers QP `qpn`, which has a turn, for another turn once there is room on `lane`. At the
    /// end of the turn [`pass_room_on`](Self::pass_room_on) finds room that has come before.
    pub(crate) fn await_room(&self, qpn: Qpn, lane: Lane) -> ForFrames {
        self.blocked.insert(lane, qpn);
        ForFrames(())
    }

    /// Number of QPs that may find room on `lane`.
    fn room(&self, lane: Lane) -> usize {
        if lane == self.responses {
            // If several QPs were woken and too few responses fit, they would lose their turn.
            usize::from(self.load.has_room())
        } else {
            self.port.room(lane).div_ceil(FRAMES_AT_ONCE)
        }
    }

    /// Takes QPs for which there is room. For each of them calls `ready` with its QPN, and with
    /// whether the QP has waited for room for responses.
    pub(crate) fn wake(&self, mut ready: impl FnMut(Qpn, bool)) {
        let room = |lane| self.room(lane);
        self.blocked
            .wake(room, |lane, qpn| ready(qpn, lane == self.responses));
    }

    /// Requests a turn for the next QPs that wait for room in the frame port, if there is room.
    pub(crate) fn pass_room_on(&self, flows: &Flows) {
        if self.blocked.any(|lane| self.room(lane)) {
            self.are_ready(flows);
        }
    }

    /// Books responses of `packets` packets in all for a QP, whose requester the caller has locked.
    /// If there is no room, or other QPs wait for room and this QP is not the next of them, returns
    /// the lane on which to [wait](Self::await_room).
    pub(crate) fn book_responses(
        &self,
        load: &mut QpLoad,
        packets: u32,
        is_next: bool,
    ) -> Result<(), Lane> {
        let may_book = is_next || !self.blocked.has(self.responses);
        // A retransmission does not wait: it would no longer count as outstanding meanwhile.
        let booked = load.covers(packets) || may_book && self.load.book(load, packets);
        booked.then_some(()).ok_or(self.responses)
    }

    /// Records the packets of a QP that its peer has yet to answer at `now`.
    pub(crate) fn update_load(
        &self,
        flows: &Flows,
        load: &mut QpLoad,
        now: Instant,
        outstanding: Outstanding,
    ) {
        if self.load.update(load, now, outstanding) {
            self.load_has_fallen(flows);
        }
    }

    /// Removes the load of a QP that stops.
    pub(crate) fn release_load(&self, flows: &Flows, load: &mut QpLoad) {
        if self.load.release(load) {
            self.load_has_fallen(flows);
        }
    }

    /// Wakes the next QP that waits for room for responses, if there is room.
    fn load_has_fallen(&self, flows: &Flows) {
        // A QP that is added to the set after this fence finds the room itself.
        fence(Ordering::SeqCst);
        if self.blocked.has(self.responses) && self.load.has_room() {
            self.are_ready(flows);
        }
    }

    /// The number of packets with which a QP starts.
    pub(crate) fn share(&self) -> u64 {
        self.load.share()
    }
}
