// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! State SQD of one end of a connection: work requests that have begun are completed, and no other
//! work request begins before RTS.

use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::ib::{AsyncEvent, QpAttrMask, QpState};
use virtio_rdma_abi::qp::QpAttr;
use virtio_rdma_abi::wire::Wire;

use super::end::{End, Sent};
use super::Connection;
use crate::choices::Choices;

const DRAINED: EventKind = EventKind::Async(AsyncEvent::SqDrained);

/// State of one end of a connection while its QP is in SQD.
#[derive(Debug)]
pub(super) struct Drain {
    /// Whether the driver requested the event SQ_DRAINED.
    notify: bool,
    /// Whether the event SQ_DRAINED has arrived.
    told: bool,
    /// Work requests whose ids are below this one were posted before SQD.
    end: u64,
    /// Whether all work requests that had begun are complete.
    over: bool,
}

impl Connection<'_> {
    /// Moves the QP of a side to SQD. If the QP is in SQD already, moves it back to RTS or queries
    /// whether its SQ is drained.
    pub(super) fn drain(&mut self, side: usize, choices: &mut Choices) {
        let ours = &mut self.ends[side];
        if ours.ending {
            return;
        }
        match &ours.drain {
            None => ours.begin_drain(choices.once_in(2)),
            Some(_) if choices.once_in(2) => ours.go_on(),
            Some(drain) if drain.over => {}
            Some(_) => {
                if ours.qp.query().sq_draining == 0 {
                    while self.poll_one(side) {}
                    if let Some(drain) = &mut self.ends[side].drain {
                        drain.over = true;
                    }
                }
            }
        }
    }

    /// Checks that the SQs of QPs in SQD are drained, and moves the QPs back to RTS. Returns
    /// whether a QP was in SQD.
    pub(super) fn go_on(&mut self) -> bool {
        let mut any = false;
        for ours in &mut self.ends {
            let Some(drain) = &ours.drain else {
                continue;
            };
            any = true;
            if !ours.ending {
                assert_eq!(ours.qp.query().sq_draining, 0, "it does not drain");
                assert!(drain.told || !drain.notify, "drained, and nobody is told");
            }
            ours.go_on();
        }
        any
    }
}

impl End<'_> {
    fn begin_drain(&mut self, notify: bool) {
        let attr = QpAttr {
            en_sqd_async_notify: notify.into(),
            ..QpAttr::ZERO
        };
        let mask = QpAttrMask::EN_SQD_ASYNC_NOTIFY;
        self.qp.modify(QpState::Sqd, mask, attr).unwrap();
        self.drain = Some(Drain {
            notify,
            told: false,
            end: (self.posted + 1) << 1,
            over: false,
        });
    }

    /// Moves the QP from SQD to RTS, unless it has failed.
    fn go_on(&mut self) {
        self.take_events();
        let drain = self.drain.take();
        let is_due = drain.is_some_and(|drain| drain.notify && !drain.told);
        self.drainable |= is_due && self.guest.is_starved();
        if self.qp.state() == QpState::Sqd {
            self.qp.to(QpState::Rts);
        }
    }

    /// Checks an event of the QP.
    pub(super) fn qp_event(&mut self, event: EventKind) {
        assert_eq!(event, DRAINED, "nothing happened to it");
        let is_drained = self.qp.query().sq_draining == 0;
        match &mut self.drain {
            Some(drain) if drain.notify && !drain.told && is_drained => drain.told = true,
            // The event of an earlier SQD may arrive late because it had no buffer.
            _ => assert!(
                std::mem::take(&mut self.drainable),
                "{event:?}, which is not due"
            ),
        }
    }

    /// If the QP is in SQD, checks that the work request `sent`, which was executed, began before
    /// the SQ was drained and was posted before SQD.
    pub(super) fn check_drain(&self, sent: &Sent) {
        if let Some(drain) = &self.drain {
            assert!(!drain.over, "{sent:?} began although the SQ was drained");
            assert!(sent.id < drain.end, "{sent:?} was posted in SQD");
        }
    }
}
