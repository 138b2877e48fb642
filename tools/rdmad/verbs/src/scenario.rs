// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The places at which the rules of a scenario apply.

use std::thread;
use std::time::Duration;

use chaos::{Applied, Event, Hook, What as Effect};
use recorder::Kind;
use roce::env::RemoteFault;
use roce::work::{WcFault, WcReason};
use virtio_rdma_abi::ctrl::Command;
use virtio_rdma_abi::ib::{AccessFlags, AsyncEvent, WcStatus};

use crate::error::{Reason, Refusal, What};
use crate::moderation::Due;
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
        self.rules().has(Hook::Packet)
    }

    /// The rule that applies to an event of this kind. It is recorded, and ends the process if it
    /// says so.
    pub(crate) fn ordered(&self, hook: Hook, event: &Event) -> Option<Applied> {
        let applied = self.rules().event(hook, event)?;
        self.note_applied(event.qpn, &applied);
        Some(applied)
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
        let (port, rule) = (self.recorder().port(), &applied.name);
        if applied.is_first {
            tracing::info!(port, qpn, "rule {rule} applies for the first time");
        }
        if matches!(what, Effect::Kill) {
            sandbox::end_process(format!("rule {rule} of port {port} kills the engine"));
        }
    }

    /// Refuses a command or delays it, if a rule says so. To be called without locks.
    pub(crate) fn ordered_refusal(&self, command: u8) -> Option<Refusal> {
        let command = Command::try_from(command).ok()?;
        let applied = self.rules().command(command)?;
        self.note_applied(0, &applied);
        match applied.what {
            Effect::Refuse(errno) => {
                return Some(Refusal {
                    limit: errno.value().into(),
                    ..Refusal::new(Reason::Ordered, What::Command, command.value())
                })
            }
            Effect::Wait(time) => thread::sleep(time),
            Effect::Flap(time) => self.lower_link(time),
            Effect::Crash => self.fail_on_order(&applied),
            _ => {}
        }
        None
    }

    fn fail_on_order(&self, applied: &Applied) {
        self.note_failure(&format!("rule {} of the scenario", applied.name));
    }

    /// Takes the link down for a time, unless a rule has done this already.
    fn lower_link(&self, time: Duration) {
        let Some(went_down) = self.link.lower() else {
            return;
        };
        self.note(Kind::Link, 0, 0);
        if went_down {
            self.tell_link(false);
        }
        let until = self.now() + time;
        let deadlines = &self.objects.deadlines;
        deadlines.change(self, Due::LinkUp, None, Some(until));
    }

    /// Lets the link go up that a rule has taken down.
    pub(crate) fn raise_link(&self) {
        self.note(Kind::Link, 1, 0);
        if self.link.raise() {
            self.tell_link(true);
        }
    }

    /// Whether the message of the connection manager with this attribute ID is lost by a rule.
    pub(crate) fn is_message_lost(&self, qpn: u32, attribute: u16) -> bool {
        let message = Event {
            qpn,
            of: attribute.into(),
            ..Event::default()
        };
        self.ordered(Hook::Cm, &message).is_some()
    }
}

impl Qp {
    /// The rule that applies to an event of this kind of the QP, among those with the number `of`.
    fn ordered(&self, hca: &Hca, hook: Hook, of: u32) -> Option<Applied> {
        self.ordered_for(hca, hook, of, 0)
    }

    /// Like [`ordered`](Self::ordered), for an access to the MR with this order.
    fn ordered_for(&self, hca: &Hca, hook: Hook, of: u32, mr: u32) -> Option<Applied> {
        let event = Event {
            of,
            mr,
            ..self.event()?
        };
        hca.ordered(hook, &event)
    }

    /// An event of the QP. `None` for the GSI QP, which belongs to the kernel.
    pub(crate) fn event(&self) -> Option<Event> {
        (self.init.order != 0).then(|| Event {
            qp: self.init.order,
            qpn: self.number.get(),
            service: Some(self.init.qp_type),
            peer: self.summary.address(),
            has_srq: self.init.srq.is_some(),
            ..Event::default()
        })
    }

    /// Lets the QP or another object fail as a rule has ordered, or raises the event. Returns
    /// whether the QP works on. The caller holds the lock of a half of the QP.
    pub(crate) fn act_on_order(&self, hca: &Hca, applied: &Applied) -> bool {
        use AsyncEvent::*;
        match applied.what {
            Effect::Raise(event @ (QpFatal | QpReqErr | QpAccessErr)) => {
                self.fail(hca, Some(event));
                false
            }
            Effect::Raise(event @ (SrqErr | SrqLimitReached)) => {
                let srq = self.init.srq.as_ref();
                srq.is_none_or(|srq| srq.raise_on_order(hca, event))
            }
            Effect::Raise(event @ (CommEst | SqDrained)) => {
                self.raise(hca, event);
                true
            }
            Effect::Raise(event) => {
                hca.raise(event);
                true
            }
            Effect::Flap(time) => {
                hca.lower_link(time);
                true
            }
            Effect::Crash => {
                hca.fail_on_order(applied);
                false
            }
            _ => true,
        }
    }

    /// The rule that ends a send work request that begins, and the fault with which it ends. The
    /// caller holds the lock of the requester.
    pub(crate) fn ordered_fault(&self, hca: &Hca, opcode: u32) -> Option<(Applied, WcFault)> {
        use AsyncEvent::{QpAccessErr, QpFatal, QpReqErr};
        let applied = self.ordered(hca, Hook::Send, opcode)?;
        let fault = match applied.what {
            Effect::Fail(status) => fault(status),
            // The QP or the device fails when the work requests before this one have ended.
            Effect::Crash | Effect::Raise(QpFatal | QpReqErr | QpAccessErr) => WcFault::FLUSHED,
            _ => {
                self.act_on_order(hca, &applied);
                return None;
            }
        };
        Some((applied, fault))
    }

    /// The effect of a rule on the receive that a message is about to take. The caller holds the
    /// lock of the responder.
    pub(crate) fn ordered_receive(&self, hca: &Hca) -> Option<Ordered> {
        let applied = self.ordered(hca, Hook::Receive, 0)?;
        match applied.what {
            Effect::Withhold => Some(Ordered::Withheld),
            Effect::Fail(status) => Some(Ordered::Fails(fault(status))),
            _ => (!self.act_on_order(hca, &applied)).then_some(Ordered::Useless),
        }
    }

    /// Why a rule refuses a request of the peer that needs `access` to the memory of `rkey`.
    #[inline]
    pub(crate) fn refused_on_order(
        &self,
        hca: &Hca,
        rkey: u32,
        access: AccessFlags,
    ) -> Option<RemoteFault> {
        match hca.rules().has(Hook::Access) {
            true => self.refuse_on_order(hca, rkey, access),
            false => None,
        }
    }

    #[cold]
    fn refuse_on_order(&self, hca: &Hca, rkey: u32, access: AccessFlags) -> Option<RemoteFault> {
        let mr = hca.objects.mrs.order(rkey);
        let applied = self.ordered_for(hca, Hook::Access, access.0, mr)?;
        Some(match applied.what {
            Effect::Fail(WcStatus::RemAccessErr) => RemoteFault::Access,
            Effect::Fail(WcStatus::RemInvReqErr) => RemoteFault::Invalid,
            _ => RemoteFault::Operational,
        })
    }

    /// The effect of a rule on a packet that is sent for the first time.
    pub(crate) fn ordered_packet(&self, hca: &Hca) -> Option<Effect> {
        let applied = self
            .is_connected()
            .then(|| self.ordered(hca, Hook::Packet, 0))??;
        Some(applied.what)
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
