// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Trains: successive frames of a QP, which are passed to the frame port together.
//!
//! A train takes over a kilobyte of a stack frame. Functions that make one are not inlined where
//! turns on the direct path, which need none, would get its stack frame too.

use std::thread;

use roce::frame::{self, Frames, FRAMES_AT_ONCE};
use roce::Frame;

use crate::counters::Counter;
use crate::qp::Qp;
use crate::Device;

/// Frames that a QP sends. They are passed to the frame port when the train is full or dropped.
pub(super) struct Train<'a> {
    qp: &'a Qp,
    device: &'a Device,
    /// Complete frames.
    frames: Frames,
    /// Buffers for next frames, the one to take next at the end.
    spares: Frames,
    /// Number of buffers to take when there is no spare. It grows with the train: most trains are
    /// short.
    ahead: usize,
}

impl<'a> Train<'a> {
    pub(super) fn new(qp: &'a Qp, device: &'a Device) -> Self {
        Self {
            qp,
            device,
            frames: Frames::new(),
            spares: Frames::new(),
            ahead: 1,
        }
    }

    /// A buffer for a frame of `len` bytes, or `None` if all buffers of the port are in use.
    pub(super) fn frame(&mut self, len: usize) -> Option<Frame> {
        if let Some(mut spare) = self.spares.pop() {
            if spare.resize(len) {
                return Some(spare);
            }
            // All spares are returned first, so that none is refused while there are some.
            self.spares.push(spare);
            self.return_spares();
            self.ahead = 1;
        }
        let port = &self.device.frames;
        port.reserve(len, self.ahead, &mut self.spares);
        self.ahead = match self.spares.len() < self.ahead {
            true => 1,
            false => (2 * self.ahead).min(FRAMES_AT_ONCE),
        };
        // The first one was returned last, and is taken first.
        self.spares.reverse();
        self.spares.pop()
    }

    fn return_spares(&mut self) {
        let count = self.spares.len();
        frame::discard(&mut self.spares, count);
    }

    /// Sends a frame.
    pub(super) fn send(&mut self, frame: Frame) {
        if self.frames.is_full() {
            self.flush();
        }
        self.frames.push(frame);
    }

    /// Passes the frames to the port. Drops them if the link is down, or if the device has failed
    /// in this turn.
    fn flush(&mut self) {
        let Self { qp, device, .. } = *self;
        if device.link_is_up() && !thread::panicking() {
            let bytes: usize = self.frames.iter().map(|frame| frame.len()).sum();
            qp.count(device, Counter::TxPackets, self.frames.len() as u64);
            qp.count(device, Counter::TxBytes, bytes as u64);
            device.frames.send(&mut self.frames);
        } else {
            let count = self.frames.len();
            frame::discard(&mut self.frames, count);
        }
    }
}

impl Drop for Train<'_> {
    fn drop(&mut self) {
        if !self.frames.is_empty() {
            self.flush();
        }
        self.return_spares();
    }
}
