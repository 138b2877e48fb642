// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A QP as people are told of it: the saved state of its sides, what they wait for, and why work
//! does not go on.

use std::sync::Arc;
use std::time::Duration;

use roce::rc::RNR_RETRY_FOREVER;
use roce::saved::{Epoch, NONE};
use serde::Serialize;
use virtio_rdma_abi::ib::QpState;
use virtio_rdma_abi::number::{Qpn, Srqn};

use super::saved::{RecvMachine, RecvState, SendMachine, SendState, UnderWay};
use super::send::Stopped;
use super::{Qp, Requester};
use crate::direct::{TransferState, ANSWER, PAUSE};
use crate::memory::QueueView;
use crate::runtime::{Flow, FlowKey};
use crate::status::QpStatus;
use crate::Hca;

/// The state of a QP. Times are in nanoseconds from the moment at which the state was read; those
/// that have passed are 0.
#[derive(Debug, Serialize)]
pub struct QpDetails {
    /// Number of the worker for which the QP becomes ready.
    worker: Option<usize>,
    /// Why the QP's work does not go on; `None` if it has no work, or is in a turn.
    pub why: Option<String>,
    /// The send side; `None` while a turn uses it.
    send: Option<SendDetails>,
    /// The receive side; `None` while a turn uses it.
    recv: Option<RecvDetails>,
}

/// The state of a send side.
#[derive(Debug, Serialize)]
struct SendDetails {
    /// Number of work requests that are posted and not fetched.
    posted: u32,
    /// Causes of the side's next turn.
    waits_for: Vec<&'static str>,
    /// Time since the QP's last turn began.
    waits_since: Option<u64>,
    /// Number of packets that may be unacknowledged.
    window: Option<u64>,
    /// Time for which a rate limit holds the QP back.
    paced: Option<u64>,
    state: SendState,
}

/// The state of a receive side.
#[derive(Debug, Serialize)]
struct RecvDetails {
    /// Number of receives that are posted and not fetched.
    posted: u32,
    /// The SRQ from which the QP takes its receives.
    srq: Option<u32>,
    /// Causes of the side's next turn.
    waits_for: Vec<&'static str>,
    state: RecvState,
}

impl Hca {
    /// The status of each QP, in the order of their numbers.
    pub fn qp_status(&self) -> Vec<QpStatus> {
        self.qps.iter().filter_map(|qp| qp_status(&qp)).collect()
    }

    /// The state of QP `qpn` with the causes for which it waits. Waits for the end of a turn.
    pub fn qp_details(&self, qpn: Qpn) -> Option<(QpStatus, QpDetails)> {
        let qp = self.qps.get(qpn)?;
        Some((qp_status(&qp)?, qp.details(self, true)))
    }

    /// Like [`qp_details`](Self::qp_details), of each QP. Waits for no turn: sides that are in a
    /// turn are left out.
    pub fn all_qp_details(&self) -> impl Iterator<Item = (QpStatus, QpDetails)> + '_ {
        let details = |qp: Arc<Qp>| Some((qp_status(&qp)?, qp.details(self, false)));
        self.qps.iter().filter_map(details)
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
    /// Numbers that change if work of the QP goes on.
    pub fn progress(&self) -> [u64; 3] {
        let Some(SendDetails { state, .. }) = &self.send else {
            return [0; 3];
        };
        let machine = match state.machine {
            SendMachine::None => 0,
            SendMachine::Rc(state) => state.una,
            SendMachine::Uc(state) => state.next.into(),
            SendMachine::Ud(next) => next.into(),
        };
        let copied = match state.under_way {
            UnderWay::Transfer(transfer) => transfer.done,
            UnderWay::Nothing | UnderWay::Blocked(_) => 0,
        };
        [state.queue.done.into(), machine, copied.into()]
    }
}

impl Qp {
    /// The state of the QP. If a turn uses a side, this waits for the turn's end, or leaves the
    /// side out.
    pub(crate) fn details(&self, hca: &Hca, waits: bool) -> QpDetails {
        let now = hca.runtime().scheduler.clock.now();
        let epoch = Epoch::new(now);
        let view = hca.space.enter();
        let mut stopped = None;
        let send = match waits {
            true => Some(self.send.lock()),
            false => self.send.try_lock(),
        };
        let send = send.map(|side| {
            stopped = side.stopped;
            SendDetails {
                posted: side
                    .io
                    .queue
                    .available(&QueueView::new(&self.init.sq, &view)),
                waits_for: names(side.stopped, |stopped| stopped.send),
                waits_since: side
                    .stopped
                    .map(|stopped| nanos(now.saturating_duration_since(stopped.at))),
                window: side.requester.as_ref().and_then(Requester::window),
                paced: side
                    .io
                    .paced
                    .map(|until| nanos(until.saturating_duration_since(now))),
                state: SendState::of(&side, epoch),
            }
        });
        let recv = match waits {
            true => Some(self.recv.lock()),
            false => self.recv.try_lock(),
        };
        let recv = recv.map(|side| RecvDetails {
            posted: match &self.init.srq {
                Some(srq) => srq.posted(&view),
                None => side
                    .io
                    .queue
                    .available(&QueueView::new(&self.init.rq, &view)),
            },
            srq: self.init.srq.as_ref().map(|srq| Srqn::get(srq.number())),
            waits_for: names(stopped, |stopped| stopped.recv),
            state: RecvState::of(&side),
        });
        let not_sent = send
            .as_ref()
            .and_then(|send| self.why_not_sent(send, stopped));
        QpDetails {
            worker: hca.runtime().home(FlowKey {
                port: hca.port(),
                flow: Flow::of(self.number),
            }),
            why: not_sent.or_else(|| recv.as_ref().and_then(why_not_received)),
            send,
            recv,
        }
    }

    /// Why the work of the send side does not go on.
    fn why_not_sent(&self, send: &SendDetails, stopped: Option<Stopped>) -> Option<String> {
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
        if stopped.is_some_and(|stopped| stopped.send.is_for_frames()) {
            return Some("the port has no room for its frames".into());
        }
        if let SendMachine::Rc(state) = &state.machine {
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
        if posted > 0 && stopped.is_some_and(|stopped| stopped.send.is_for_doorbell()) {
            return Some(format!(
                "{posted} work requests are posted, but their doorbell has not come"
            ));
        }
        match self.state()? {
            QpState::Rts => Some("its next turn has not come".into()),
            state => Some(format!("it sends only in RTS, and is in {state:?}")),
        }
    }
}

/// Why a transfer on the direct path does not go on.
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

/// Why a message of the peer is not received.
fn why_not_received(recv: &RecvDetails) -> Option<String> {
    let RecvMachine::Rc(responder) = &recv.state.machine else {
        return None;
    };
    (responder.awaiting != 0 && recv.posted == 0).then(|| match recv.srq {
        Some(srq) => format!("a request of its peer waits: SRQ {srq} has no receive"),
        None => "a request of its peer waits: no receive is posted".into(),
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

/// The names of the callers that `of` selects.
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
