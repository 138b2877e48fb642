// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Captures of the frames of ports.

use std::mem;
use std::time::SystemTime;

use crate::index::PortIndex;
use crate::pcap::PcapWriter;

use super::port::{Destination, Forwarding};
use super::Forwarder;

impl Forwarder {
    /// Whether the frames of any port are captured.
    pub(crate) fn captures(&self) -> bool {
        self.captures > 0
    }

    /// Starts or ends the capture of a port's frames. Returns the previous capture.
    pub(crate) fn set_capture(
        &mut self,
        index: PortIndex,
        capture: Option<PcapWriter>,
    ) -> Option<PcapWriter> {
        let port = &mut self.ports[index.0];
        self.captures += usize::from(capture.is_some());
        self.captures -= usize::from(port.capture.is_some());
        port.engine.set_watched(capture.is_some());
        mem::replace(&mut port.capture, capture)
    }

    /// Adds a frame to the captures of its source port and its destination ports.
    pub(crate) fn capture(&mut self, forwarding: Forwarding, frame: &[u8]) {
        let Forwarding {
            origin,
            destination,
        } = forwarding;
        let is_for_all = matches!(destination, Destination::Multicast { .. });
        for index in (0..self.ports.len()).map(PortIndex) {
            let is_of = forwarding.is_of(index) || (is_for_all && self.reaches(origin, index));
            if let Some(capture) = self.ports[index.0].capture.as_mut().filter(|_| is_of) {
                capture.write(frame, SystemTime::now());
            }
        }
    }

    /// Passes captured frames to the writing threads.
    pub(crate) fn flush_captures(&mut self) {
        for index in (0..self.ports.len()).map(PortIndex) {
            if let Some(capture) = &mut self.ports[index.0].capture {
                capture.flush();
                if capture.has_failed() {
                    // The writer has logged the failure.
                    self.set_capture(index, None);
                }
            }
        }
    }
}
