// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A QP as people are told of it: the saved state of its halves, what they wait for, and why work
//! does not go on.

use std::time::Duration;

use roce::rc::RNR_RETRY_FOREVER;
use roce::saved::{Epoch, NONE};
use scheduler::{Flow, FlowKey};
use serde::Serialize;
use virtio_rdma_abi::ib::QpState;
use virtio_rdma_abi::number::{Qpn, Srqn};

use super::requester::{RequesterMachine, Stopped};
use super::saved::{
    RequesterMachineState, RequesterState, ResponderMachineState, ResponderState, UnderWay,
};
use super::Qp;
use crate::direct::{DirectRoute, RouteEnd, Transfer, TransferState, ANSWER, PAUSE};
use crate::memory::QueueView;
use crate::status::QpStatus;
use crate::Hca;

/// The state of a QP. Times are in nanoseconds from the moment at which the state was read; those
/// that have passed are 0.
#[derive(Debug, Serialize)]
pub struct QpDetails {
    /// Number of the worker for which the QP becomes ready.
    worker: Option<usize>,
    /// Why the QP's work does not proceed; `None` if it has no work, or is in a turn.
    pub why: Option<String>,
    /// The requester; `None` while a turn uses it.
    send: Option<RequesterDetails>,
    /// The responder; `None` while a turn uses it.
    recv: Option<ResponderDetails>,
}

/// The state of a requester.
#[derive(Debug, Serialize)]
struct RequesterDetails {
    /// Number of work requests that are posted and not fetched.
    posted: u32,
    /// Causes of the next turn.
    waits_for: Vec<&'static str>,
    /// Time since the QP's last turn began.
    since_last_turn: Option<u64>,
    /// Number of packets that may be unacknowledged.
    window: Option<u64>,
    /// Time for which a rate limit holds the QP back.
    paced: Option<u64>,
    state: RequesterState,
}

/// The state of a responder.
#[derive(Debug, Serialize)]
struct ResponderDetails {
    /// Number of receives that are posted and not fetched.
    posted: u32,
    /// The SRQ from which the QP takes its receives.
    srq: Option<u32>,
    /// Number of completions in the QP's CQ that the driver has not polled; `None` if its position
    /// is invalid.
    unpolled: Option<u32>,
    /// Causes of the next turn.
    waits_for: Vec<&'static str>,
    state: ResponderState,
}

impl Hca {
    /// The status of each QP, in the order of their numbers.
    pub fn qp_status(&self) -> Vec<QpStatus> {
        self.objects
            .qps
            .iter()
            .filter_map(|qp| qp_status(&qp))
            .collect()
    }

    /// The numbers of all QPs, in order.
    pub fn qpns(&self) -> Vec<Qpn> {
        self.objects.qps.iter().map(|qp| qp.number).collect()
    }

    /// The state of QP `qpn` with the causes for which it waits. Waits for the end of a turn, or
    /// leaves out the halves that are in a turn.
    pub fn qp_details(&self, qpn: Qpn, waits: bool) -> Option<(QpStatus, QpDetails)> {
        let qp = self.objects.qps.get(qpn)?;
        Some((qp_status(&qp)?, qp.details(self, waits)))
    }
}

/// The status of a QP; `None` if the QP is destroyed.
fn qp_status(qp: &Qp) -> Option<QpStatus> {
    Some(QpStatus {
        qpn: qp.number,
        qp_type: qp.init.qp_type,
        state: qp.state()?,
        user: qp.init.user,
        peer: qp.summary.peer(),
        rate_limit: Some(qp.summary.rate()).filter(|&rate| rate != 0),
    })
}

impl QpDetails {
    /// Numbers that change if work of the QP proceeds.
    pub fn progress(&self) -> [u64; 3] {
        let Some(RequesterDetails { state, .. }) = &self.send else {
            return [0; 3];
        };
        let machine = match state.machine {
            RequesterMachineState::None => 0,
            RequesterMachineState::Rc(state) => state.una,
            RequesterMachineState::Uc(state) => state.next.into(),
            RequesterMachineState::Ud(next) => next.into(),
        };
        let copied = match state.under_way {
            UnderWay::Transfer(transfer) => transfer.done,
            UnderWay::Nothing | UnderWay::Blocked(_) => 0,
        };
        [state.queue.done.into(), machine, copied.into()]
    }
}

impl Qp {
    /// The state of the QP. If a turn uses a half, this waits for the turn's end, or leaves the
    /// half out.
    pub(crate) fn details(&self, hca: &Hca, waits: bool) -> QpDetails {
        let now = hca.runtime().scheduler.clock.now();
        let epoch = Epoch::new(now);
        let view = hca.space.enter();
        let mut stopped = None;
        let mut direct_peer = None;
        let send = match waits {
            true => Some(self.requester.lock()),
            false => self.requester.try_lock(),
        };
        let send = send.map(|requester| {
            stopped = requester.stopped;
            direct_peer = requester.route.as_ref().and_then(DirectRoute::end);
            RequesterDetails {
                posted: requester
                    .io
                    .queue
                    .available(&QueueView::new(&self.init.sq, &view)),
                waits_for: names(requester.stopped, |stopped| stopped.requester),
                since_last_turn: requester
                    .stopped
                    .map(|stopped| nanos(now.saturating_duration_since(stopped.at))),
                window: requester
                    .machine
                    .as_ref()
                    .and_then(RequesterMachine::window),
                paced: requester
                    .io
                    .paced
                    .map(|until| nanos(until.saturating_duration_since(now))),
                state: RequesterState::of(&requester, epoch),
            }
        });
        let recv = match waits {
            true => Some(self.responder.lock()),
            false => self.responder.try_lock(),
        };
        let recv = recv.map(|responder| ResponderDetails {
            posted: match &self.init.srq {
                Some(srq) => srq.posted(&view),
                None => responder
                    .io
                    .queue
                    .available(&QueueView::new(&self.init.rq, &view)),
            },
            srq: self.init.srq.as_ref().map(|srq| Srqn::get(srq.number())),
            unpolled: self.init.recv_cq.unpolled(&view),
            waits_for: names(stopped, |stopped| stopped.responder),
            state: ResponderState::of(&responder),
        });
        let failed = hca
            .failure()
            .map(|why| format!("the device of its port has failed: {why}"));
        let not_sent = || self.why_not_sent(send.as_ref()?, stopped);
        let not_received = || {
            let refuses = direct_peer.is_some_and(|peer| self.has_refused(hca, &peer));
            why_not_received(recv.as_ref()?, refuses)
        };
        let why = not_sent().or_else(not_received);
        QpDetails {
            worker: hca.runtime().home(FlowKey {
                port: hca.port(),
                flow: Flow::of(self.number),
            }),
            why: why.map(|why| failed.unwrap_or(why)),
            send,
            recv,
        }
    }

    /// Whether the requester of the peer, on the direct path, waits for a receive of this QP. If a
    /// turn uses the requester, it does not wait.
    fn has_refused(&self, hca: &Hca, peer: &RouteEnd) -> bool {
        let Some(requester) = peer.qp.requester.try_lock() else {
            return false;
        };
        peer.qp.summary.direct_peer() == Some(hca.key(self.number))
            && requester.transfer.as_ref().is_some_and(Transfer::is_paused)
    }

    /// Why the work of the requester does not go on.
    fn why_not_sent(&self, send: &RequesterDetails, stopped: Option<Stopped>) -> Option<String> {
        let (posted, state) = (send.posted, &send.state);
        let begun = state.queue.outstanding();
        if state.broken != 0 {
            return Some("the send queue is corrupt, so the QP has failed".into());
        }
        if posted + begun == 0 {
            return None;
        }
        if let UnderWay::Transfer(transfer) = &state.under_way {
            if let Some(why) = why_not_copied(transfer) {
                return Some(why);
            }
        }
        if let Some(left) = send.paced {
            return Some(format!("a rate limit holds it back for {}", time(left)));
        }
        if stopped.is_some_and(|stopped| stopped.requester.is_for_frames()) {
            let waited = send.since_last_turn.unwrap_or_default();
            return Some(format!(
                "the port has had no room for its frames for {}",
                time(waited)
            ));
        }
        if let RequesterMachineState::Rc(state) = &state.machine {
            let unacknowledged = state.next - state.una;
            let psn = (u64::from(state.sq_psn) + state.una) & 0xff_ffff;
            if state.rnr_deadline != NONE {
                return Some(not_ready(state.rnr_deadline, state.rnr_retries));
            }
            if unacknowledged > 0 {
                let full = send.window.is_some_and(|window| unacknowledged >= window);
                return Some(format!(
                    "{unacknowledged} packets from PSN {psn} on are not acknowledged{}; the ACK \
                     timeout {}, retries left: {}",
                    if full {
                        ", which is all that the congestion window allows"
                    } else {
                        ""
                    },
                    end(state.ack_deadline),
                    state.retries,
                ));
            }
        }
        if posted > 0 && stopped.is_some_and(|stopped| stopped.requester.is_for_doorbell()) {
            return Some(match posted {
                1 => "1 work request is posted, but its doorbell has not come".into(),
                _ => format!("{posted} work requests are posted, but their doorbell has not come"),
            });
        }
        match self.state()? {
            QpState::Rts => Some("its next turn has not come".into()),
            state => {
                let state = state.c_name().to_string_lossy();
                Some(format!("it sends only in RTS, and is in {state}"))
            }
        }
    }
}

/// Why a transfer on the direct path does not proceed.
fn why_not_copied(transfer: &TransferState) -> Option<String> {
    match transfer.wait {
        PAUSE => Some(not_ready(transfer.deadline, transfer.rnr_retries)),
        ANSWER => Some(format!(
            "its peer does not answer: the QP is gone, connected elsewhere, in a state in which it \
             does not receive, or expects another PSN; the ACK timeout {}, retries left: {}",
            end(transfer.deadline),
            transfer.retries,
        )),
        _ => None,
    }
}

/// Why a message of the peer is not received. `refuses` is whether the peer has been refused on the
/// direct path.
fn why_not_received(recv: &ResponderDetails, refuses: bool) -> Option<String> {
    let ResponderMachineState::Rc(responder) = &recv.state.machine else {
        return None;
    };
    if recv.posted != 0 || responder.awaiting == 0 && !refuses {
        return None;
    }
    let lacks = match recv.srq {
        Some(srq) => format!("SRQ {srq} has no receive"),
        None => "no receive is posted".into(),
    };
    Some(match recv.unpolled {
        Some(unpolled) if unpolled > 0 => format!(
            "a request of its peer waits: {lacks}, and {unpolled} completions of its CQ are not \
             polled"
        ),
        _ => format!("a request of its peer waits: {lacks}"),
    })
}

/// The sentence for a peer that has answered that it is not ready.
fn not_ready(deadline: u64, retries: u8) -> String {
    let left = match retries {
        RNR_RETRY_FOREVER => "without limit".into(),
        retries => retries.to_string(),
    };
    format!(
        "its peer has no receive posted (RNR); the next attempt is due {}, retries left: {left}",
        match deadline {
            0 | NONE => "now".into(),
            left => format!("in {}", time(left)),
        }
    )
}

/// When a timeout ends.
fn end(deadline: u64) -> String {
    match deadline {
        NONE => "is off".into(),
        0 => "has passed".into(),
        left => format!("ends in {}", time(left)),
    }
}

/// The names of the causes that `of` selects.
fn names(
    stopped: Option<Stopped>,
    of: impl Fn(Stopped) -> crate::turn::Parked,
) -> Vec<&'static str> {
    stopped.map_or(Vec::new(), |stopped| of(stopped).names().collect())
}

/// Converts a duration to nanoseconds: a u64 is enough for five centuries.
fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// A time in milliseconds.
fn time(nanos: u64) -> String {
    format!("{:.1} ms", nanos as f64 / 1e6)
}
