// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Completions and completion events that rules of a scenario lose, repeat or [hold
//! back](super::held).

use chaos::{Event, Hook, What};
use dma::DmaView;
use virtio_rdma_abi::ib::GSI_QPN;

use super::held::Held;
use super::{Cq, CqInner, Life, PendingCqe};
use crate::moderation::Due;
use crate::Hca;

impl Cq {
    /// Like [`complete`](Self::complete), if there are rules about completions.
    #[cold]
    pub(super) fn complete_on_order(&self, hca: &Hca, view: &DmaView, completions: &[PendingCqe]) {
        for completion in completions {
            let qp = hca.objects.qps.get(completion.cqe.qp_num);
            let event = qp.and_then(|qp| qp.event()).map(|event| Event {
                cq: self.order,
                ..event
            });
            let applied = event.and_then(|event| hca.ordered(Hook::Completion, &event));
            match applied.map(|applied| applied.what) {
                Some(What::Drop) => continue,
                Some(What::Raise(_)) => {
                    self.update(hca, view, 0, |_| false);
                    continue;
                }
                Some(What::Hold(time)) => {
                    let held = &mut self.inner.lock().held;
                    let until = hca.now() + time;
                    hca.objects.deadlines.change(
                        hca,
                        Due::Held(self.number),
                        held.completions.replace(until),
                        Some(until),
                    );
                }
                _ => {}
            }
            self.update(hca, view, 1, |queue| {
                queue.push(&completion.cqe, completion.solicited).is_ok()
            });
        }
    }

    /// How often a completion event that is due is sent now, if there are rules about such events.
    #[cold]
    pub(super) fn events_on_order(&self, hca: &Hca, held: &mut Held) -> u32 {
        // The CQ of the GSI QP belongs to the kernel.
        if self.users.qpns().contains(&GSI_QPN) {
            return 1;
        }
        let event = Event {
            cq: self.order,
            ..Event::default()
        };
        let Some(applied) = hca.ordered(Hook::Event, &event) else {
            return 1;
        };
        match applied.what {
            What::Repeat => 2,
            What::Hold(time) => {
                let at = hca.now() + time;
                let old = held.event.replace(at);
                let due = Due::Late(self.number);
                hca.objects.deadlines.change(hca, due, old, Some(at));
                0
            }
            _ => 0,
        }
    }

    /// Publishes completions and sends an event that rules hold back.
    pub(crate) fn let_go(&self, hca: &Hca, view: &DmaView) {
        self.let_locked_go(hca, view, &mut self.inner.lock());
    }

    /// Like [`let_go`](Self::let_go), for a CQ that the caller has locked.
    pub(super) fn let_locked_go(&self, hca: &Hca, view: &DmaView, inner: &mut CqInner) {
        let Held { completions, event } = self.forget_held(hca, inner);
        if inner.state != Life::Live || hca.has_failed() {
            return;
        }
        let is_due = completions.is_some() && inner.queue.enter(view).publish();
        if is_due || event.is_some() {
            self.send_event(hca, inner);
        }
    }

    /// Holds nothing back any more. Returns what was held.
    pub(super) fn forget_held(&self, hca: &Hca, inner: &mut CqInner) -> Held {
        let held = std::mem::take(&mut inner.held);
        for (due, at) in [
            (Due::Held(self.number), held.completions),
            (Due::Late(self.number), held.event),
        ] {
            if at.is_some() {
                hca.objects.deadlines.change(hca, due, at, None);
            }
        }
        held
    }
}
