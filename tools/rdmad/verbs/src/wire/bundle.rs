// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Bundles: successive frames of a QP, which are passed to the frame port together.

use std::thread;

use roce::frame::{self, Frames, BUNDLE};
use roce::Frame;

use crate::counters::Counter;
use crate::qp::Qp;
use crate::Device;

/// Frames that a QP sends. They are passed to the frame port when the bundle is full or dropped.
pub(super) struct Bundle<'a> {
    qp: &'a Qp,
    device: &'a Device,
    /// Complete frames.
    frames: Frames,
    /// Buffers for next frames, all of the same length.
    spares: Frames,
    /// Number of buffers to take when there is no spare. It grows with the bundle: most bundles are
    /// short.
    ahead: usize,
}

impl<'a> Bundle<'a> {
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
        match self.spares.last() {
            Some(spare) if spare.len() == len => self.spares.pop(),
            Some(_) => self.device.frames.frame(len),
            None => {
                let port = &self.device.frames;
                port.reserve(len, self.ahead, &mut self.spares);
                self.ahead = (2 * self.ahead).min(BUNDLE);
                self.spares.pop()
            }
        }
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
            frame::release(&mut self.frames);
            self.frames.clear();
        }
    }
}

impl Drop for Bundle<'_> {
    fn drop(&mut self) {
        if !self.frames.is_empty() {
            self.flush();
        }
        frame::release(&mut self.spares);
    }
}
