// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Packets of requests that rules of a scenario lose, damage, repeat or delay.

use chaos::What;
use roce::{packet, Frame};

use super::burst::Burst;
use crate::qp::Qp;
use crate::Hca;

/// Effects of rules on the packets of a QP, until its reset.
#[derive(Debug, Default)]
pub(crate) struct PacketsOnOrder {
    /// Whether all packets are lost.
    is_silent: bool,
    /// A packet, and the number of packets that are to be sent before it.
    delayed: Option<(u8, Frame)>,
}

impl PacketsOnOrder {
    /// Sends a packet as rules order it. If `is_again` is true, the packet was sent before and no
    /// rule is about it.
    pub(super) fn send(
        &mut self,
        qp: &Qp,
        hca: &Hca,
        mut frame: Frame,
        is_again: bool,
        burst: &mut Burst<'_>,
    ) {
        if self.is_silent {
            return;
        }
        let effect = match is_again {
            true => None,
            false => qp.ordered_packet(hca),
        };
        match effect {
            Some(What::Silence) => self.is_silent = true,
            Some(What::Drop) => {}
            Some(What::Delay(packets)) => {
                if let Some((_, earlier)) = self.delayed.replace((packets, frame)) {
                    burst.send(earlier);
                }
            }
            Some(What::Corrupt) => {
                packet::complete(&mut frame);
                // The packet ends with its ICRC.
                if let Some(last) = frame.last_mut() {
                    *last ^= 1;
                }
                self.pass(frame, burst);
            }
            Some(What::Repeat) => {
                // If there is no buffer, the copy is lost.
                let copy = frame.duplicate();
                self.pass(frame, burst);
                if let Some(copy) = copy {
                    self.pass(copy, burst);
                }
            }
            _ => self.pass(frame, burst),
        }
    }

    /// Ends a turn. A delayed packet that too few others have followed is lost, since it would keep
    /// a buffer of the port.
    pub(super) fn end_turn(&mut self) {
        self.delayed = None;
    }

    /// Sends a packet, and then the delayed one if its time has come.
    fn pass(&mut self, frame: Frame, burst: &mut Burst<'_>) {
        burst.send(frame);
        if let Some((left, _)) = &mut self.delayed {
            *left -= 1;
            if *left == 0 {
                if let Some((_, delayed)) = self.delayed.take() {
                    burst.send(delayed);
                }
            }
        }
    }
}
