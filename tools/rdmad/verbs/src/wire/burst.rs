// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Bursts: successive frames of a QP, which are passed to the frame port together.
//!
//! A burst takes over a kilobyte of a stack frame. Functions that make one are not inlined where
//! turns on the direct path, which need none, would get its stack frame too.

use std::thread;

use roce::frame::{self, Frames, Lane, FRAMES_AT_ONCE};
use roce::net::Mac;
use roce::Frame;

use crate::counters::Counter;
use crate::qp::Qp;
use crate::turn::done;
use crate::Hca;

/// Frames that a QP sends. They are passed to the frame port when the burst is full or dropped.
pub(super) struct Burst<'a> {
    qp: &'a Qp,
    hca: &'a Hca,
    /// Complete frames.
    frames: Frames,
    /// Buffers for next frames, the one to take next at the end.
    spares: Frames,
    /// Number of buffers to take when there is no spare. It grows with the burst: most bursts are
    /// short.
    ahead: usize,
    /// The receiver of the frames for which `spares` are.
    to: Mac,
    /// The lane of the frames to this receiver.
    lane: Lane,
}

impl<'a> Burst<'a> {
    pub(super) fn new(qp: &'a Qp, hca: &'a Hca) -> Self {
        Self {
            qp,
            hca,
            frames: Frames::new(),
            spares: Frames::new(),
            ahead: 1,
            to: Mac::default(),
            lane: Lane::default(),
        }
    }

    /// A buffer for a frame of `len` bytes to `to`, or the lane of such frames if it has no room.
    pub(super) fn frame(&mut self, to: &Mac, len: usize) -> Result<Frame, Lane> {
        if let Some(mut spare) = self.spares.pop() {
            if self.to == *to && spare.resize(len) {
                return Ok(spare);
            }
            // All spares are returned first, so that none is refused while there are some.
            self.spares.push(spare);
            self.return_spares();
            self.ahead = 1;
        }
        let port = &self.hca.frames.port;
        self.to = *to;
        self.lane = port.reserve(to, len, self.ahead, &mut self.spares);
        self.ahead = match self.spares.len() < self.ahead {
            true => 1,
            false => (2 * self.ahead).min(FRAMES_AT_ONCE),
        };
        // The first one was returned last, and is taken first.
        self.spares.reverse();
        self.spares.pop().ok_or(self.lane)
    }

    /// The ticket of the last frame to `to`, apart from spares.
    pub(super) fn ticket(&self, to: &Mac) -> u64 {
        let spares = if self.to == *to { self.spares.len() } else { 0 };
        let taken = self.hca.frames.port.ticket(to);
        taken.saturating_sub(spares as u64)
    }

    fn return_spares(&mut self) {
        let count = self.spares.len();
        frame::discard(&mut self.spares, count);
    }

    pub(super) fn send(&mut self, frame: Frame) {
        if self.frames.is_full() {
            self.flush();
        }
        self.frames.push(frame);
    }

    /// Passes the frames to the port. Drops them if the link is down, or if the HCA has failed
    /// in this turn.
    fn flush(&mut self) {
        let Self { qp, hca, .. } = *self;
        if hca.link_is_up() && !thread::panicking() {
            let bytes: usize = self.frames.iter().map(|frame| frame.len()).sum();
            qp.count(hca, Counter::TxPackets, self.frames.len() as u64);
            qp.count(hca, Counter::TxBytes, bytes as u64);
            done::sent(bytes);
            hca.frames.port.send(&mut self.frames);
        } else {
            let count = self.frames.len();
            frame::discard(&mut self.frames, count);
        }
    }
}

impl Drop for Burst<'_> {
    fn drop(&mut self) {
        if !self.frames.is_empty() {
            self.flush();
        }
        self.return_spares();
    }
}
