// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The places at which the rules of a scenario apply.

use std::thread;

use chaos::{Applied, Event, What as Effect, When};
use recorder::Kind;
use roce::work::{WcFault, WcReason};
use virtio_rdma_abi::ctrl::Command;
use virtio_rdma_abi::ib::WcStatus;

use crate::error::{Reason, Refusal, What};
use crate::qp::Qp;
use crate::Hca;

/// The effect of a rule on the next receive of a QP.
pub(crate) enum Ordered {
    /// It is not there now.
    Withheld,
    Fails(WcFault),
    /// The QP or the device has failed.
    Useless,
}

impl Hca {
    /// Whether connections send packets, since a rule is about packets.
    #[inline]
    pub(crate) fn wants_packets(&self) -> bool {
        self.rules().has(When::Packet(None))
    }

    fn note_applied(&self, qpn: u32, applied: &Applied) {
        let Applied { number, what, .. } = applied;
        self.note_event(recorder::Event {
            kind: Kind::Ordered,
            qpn,
            a: *number,
            b: what.number(),
            c: 0,
        });
        if applied.is_first {
            let (port, rule) = (self.recorder().port(), &applied.name);
            tracing::info!(port, qpn, "rule {rule} applies for the first time");
        }
    }

    /// Refuses a command or delays it, if a rule says so. To be called without locks.
    pub(crate) fn ordered_refusal(&self, command: u8) -> Option<Refusal> {
        let command = Command::try_from(command).ok()?;
        let applied = self.rules().command(command)?;
        self.note_applied(0, &applied);
        match applied.what {
            Effect::Refuse(errno) => Some(Refusal {
                limit: errno.value().into(),
                ..Refusal::new(Reason::Ordered, What::Command, command.value())
            }),
            Effect::Wait(time) => {
                thread::sleep(time);
                None
            }
            Effect::Crash => {
                self.fail_on_order(&applied);
                None
            }
            _ => None,
        }
    }

    fn fail_on_order(&self, applied: &Applied) {
        self.note_failure(&format!("rule {} of the scenario", applied.name));
    }
}

impl Qp {
    /// The rule that applies to an event of the QP, of a kind of which `any` is any.
    #[inline]
    fn ordered(&self, hca: &Hca, any: When, opcode: impl FnOnce() -> u32) -> Option<Applied> {
        let event = || {
            let (qp, opcode) = (self.init.order, opcode());
            // The GSI QP belongs to the kernel.
            (qp != 0).then_some(Event { qp, opcode })
        };
        let applied = hca.rules().event(any, event)?;
        hca.note_applied(self.number.get(), &applied);
        Some(applied)
    }

    /// Lets the QP or the device fail as a rule has ordered. The caller holds the lock of a half of
    /// the QP.
    pub(crate) fn fail_on_order(&self, hca: &Hca, applied: &Applied) {
        match applied.what {
            Effect::Raise(event) => self.fail(hca, Some(event)),
            Effect::Crash => hca.fail_on_order(applied),
            _ => {}
        }
    }

    /// The rule that applies to a send work request that begins, and its fault.
    #[inline]
    pub(crate) fn ordered_fault(
        &self,
        hca: &Hca,
        opcode: impl FnOnce() -> u32,
    ) -> Option<(Applied, WcFault)> {
        let applied = self.ordered(hca, const { When::Send(None, None) }, opcode)?;
        let fault = match applied.what {
            Effect::Fail(status) => fault(status),
            _ => WcFault::FLUSHED,
        };
        Some((applied, fault))
    }

    /// The effect of a rule on the receive that a message is about to take. The caller holds the
    /// lock of the responder.
    #[inline]
    pub(crate) fn ordered_receive(&self, hca: &Hca) -> Option<Ordered> {
        let applied = self.ordered(hca, const { When::Receive(None) }, || 0)?;
        match applied.what {
            Effect::Withhold => Some(Ordered::Withheld),
            Effect::Fail(status) => Some(Ordered::Fails(fault(status))),
            _ => {
                self.fail_on_order(hca, &applied);
                Some(Ordered::Useless)
            }
        }
    }

    /// Whether a rule orders that a packet is lost which is sent for the first time.
    #[inline]
    pub(crate) fn is_lost_on_order(&self, hca: &Hca) -> bool {
        let any = const { When::Packet(None) };
        hca.wants_packets() && self.is_connected() && self.ordered(hca, any, || 0).is_some()
    }
}

/// A fault with this status, with a reason that is usual for it.
fn fault(status: WcStatus) -> WcFault {
    let local = |reason| WcFault { status, reason };
    match status {
        WcStatus::LocLenErr => WcFault::TOO_LONG,
        WcStatus::LocProtErr => local(WcReason::NoSuchKey),
        WcStatus::MwBindErr => local(WcReason::UnsuitableKey),
        WcStatus::BadRespErr => WcFault::BAD_RESPONSE,
        WcStatus::RemInvReqErr => WcFault::PEER_INVALID_REQUEST,
        WcStatus::RemAccessErr => WcFault::PEER_ACCESS,
        WcStatus::RemOpErr => WcFault::PEER_OPERATION,
        WcStatus::RetryExcErr => WcFault::PEER_SILENT,
        WcStatus::RnrRetryExcErr => WcFault::PEER_NOT_READY,
        _ => WcFault::NOT_PERMITTED,
    }
}
