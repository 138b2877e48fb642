// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Checks of the receives of a shared receive queue.

use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::ib::{AsyncEvent, WcStatus};

use super::{Member, Shared, AREA, FILL};

const LIMIT: EventKind = EventKind::Async(AsyncEvent::SrqLimitReached);
const LAST: EventKind = EventKind::Async(AsyncEvent::QpLastWqeReached);

impl Shared<'_> {
    /// Smallest number of receives that may be in the SRQ: each QP may have taken one receive that
    /// is not complete.
    fn least(&self) -> u64 {
        let held = self.members.len() as u64;
        self.receives.outstanding(&self.cq).saturating_sub(held)
    }

    /// Updates `fewest`. Must be called before a receive is posted.
    pub(super) fn note_fewest(&mut self) {
        self.fewest = self.fewest.min(self.least());
    }

    /// Takes and checks the events of the SRQ and its QPs. Returns whether there were any.
    pub(super) fn check_events(&mut self) -> bool {
        // Counted before the events are taken, so an event that is due for this count has arrived.
        let left = self.receives.outstanding(&self.cq);
        let is_starved = self.guest.is_starved();
        let events = self.guest.take_events(self.receives.srq.cookie);
        if !events.is_empty() {
            assert_eq!(events, [LIMIT], "of SRQ");
            self.note_fewest();
            assert!(
                self.fewest < self.limit.into(),
                "{} receives or more are left, the limit is {}",
                self.fewest,
                self.limit
            );
            self.limit = 0;
        }
        assert!(
            left >= self.limit.into() || is_starved,
            "{left} receives are left, the limit is {}",
            self.limit
        );
        let mut any = !events.is_empty();
        for at in 0..self.members.len() {
            let member = &mut self.members[at];
            let events = self.guest.take_events(member.to.cookie);
            if events.is_empty() {
                continue;
            }
            assert_eq!(events, [LAST], "of its QP");
            assert!(member.ending, "it takes receives");
            assert!(!member.closed, "told of twice");
            any = true;
            while self.poll_cq() {}
            self.members[at].closed = true;
        }
        any
    }

    /// Polls the CQs. Returns whether there was a completion.
    pub(super) fn poll_one(&mut self) -> bool {
        let mut any = self.poll_cq();
        for member in &mut self.members {
            while let Some(cqe) = member.cq.poll() {
                member.send_ended(&cqe);
                any = true;
            }
        }
        any
    }

    fn poll_cq(&mut self) -> bool {
        let cqe = self.cq.poll();
        if let Some(cqe) = &cqe {
            self.received(cqe);
        }
        cqe.is_some()
    }

    /// Checks the completion of a receive.
    fn received(&mut self, cqe: &Cqe) {
        let whose = |member: &&mut Member<'_>| member.to.qpn == cqe.qp_num;
        let others = self.members.len() - 1;
        let member = self.members.iter_mut().find(whose);
        let member = member.unwrap_or_else(|| panic!("a QP of nobody: {cqe:?}"));
        assert!(!member.closed, "it took its last receive: {cqe:?}");
        let area = self.areas.remove(&cqe.wr_id);
        let area = area.unwrap_or_else(|| panic!("not posted: {cqe:?}"));
        assert!(member.last < cqe.wr_id, "out of order: {cqe:?}");
        member.last = cqe.wr_id;
        let older = self.areas.range(..cqe.wr_id).count();
        assert!(older <= others, "{older} older receives are left: {cqe:?}");
        self.receives.complete(cqe.wr_id);
        self.free.push(area);
        if cqe.status == WcStatus::WrFlushErr.value() {
            assert!(member.ending, "nothing was wrong: {cqe:?}");
            return;
        }
        assert_eq!(cqe.status, WcStatus::Success.value(), "{cqe:?}");
        let message = member.messages.pop_front();
        let message = message.unwrap_or_else(|| panic!("nobody sent that: {cqe:?}"));
        assert_eq!(cqe.byte_len as usize, message.len(), "{cqe:?}");
        let mut expected = message;
        expected.resize(AREA, FILL);
        let iova = self.mr.iova + (area * AREA) as u64;
        let bytes = self.guest.vm.read(iova, AREA);
        assert!(bytes == expected, "other bytes: {cqe:?}");
    }

    /// Checks at the end of a run that all sends are complete and all messages were received.
    pub(super) fn check_end(&mut self) {
        self.check_events();
        for member in &self.members {
            assert!(member.sent.is_empty(), "no completion");
            assert!(member.ending || member.messages.is_empty(), "not received");
            assert!(!member.ending || member.closed, "no last receive");
        }
        // Areas of receives that are still posted must be unchanged.
        for (id, area) in &self.areas {
            let iova = self.mr.iova + (area * AREA) as u64;
            let bytes = self.guest.vm.read(iova, AREA);
            assert!(bytes == [FILL; AREA], "receive {id} was written to");
        }
        assert_eq!(self.receives.outstanding(&self.cq), self.areas.len() as u64);
    }
}

impl Member<'_> {
    /// Checks the completion of a send.
    fn send_ended(&mut self, cqe: &Cqe) {
        let sent = self.sent.pop_front();
        let (id, _) = sent.unwrap_or_else(|| panic!("nothing posted ends so: {cqe:?}"));
        assert_eq!(id, cqe.wr_id, "sends end in their order");
        let broken = [WcStatus::WrFlushErr, WcStatus::RetryExcErr].map(|status| status.value());
        assert!(
            cqe.status == WcStatus::Success.value() || self.ending && broken.contains(&cqe.status),
            "{cqe:?}"
        );
    }
}
