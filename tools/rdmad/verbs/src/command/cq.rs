// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! CREATE_CQ, DESTROY_CQ, RESIZE_CQ, MODIFY_CQ, REQ_NOTIFY_CQ.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use virtio_rdma_abi::ctrl::CONTROL_QUEUE;
use virtio_rdma_abi::ctrl::{
    CmdCreateCq, CmdCreateCqRing, CmdDestroyCq, CmdModifyCq, CmdReqNotify, CmdResizeCq,
    CreateFlags, Empty, NotifyFlags, RspCreateCq, RspResizeCq,
};
use virtio_rdma_abi::event::FIRST_EVENT_QUEUE;
use virtio_rdma_abi::number::Cqn;
use virtio_rdma_abi::ring::{RingAddr, RingKind};

use super::{DONE, NO_DOORBELL_PAGE};
use crate::cq::{Cq, CqAttr};
use crate::error::{
    at_least, at_most, bits, full, in_use, refusal, reserved, within, Reason, Result, What,
};
use crate::memory::{CompletionProducer, RingMem};
use crate::moderation::Moderation;
use crate::table::Reserved;
use crate::Hca;

impl Hca {
    /// Creates a CQ in memory that the driver provides.
    pub(super) fn create_cq_ring(&self, cmd: CmdCreateCqRing) -> Result<RspCreateCq> {
        let limits = &self.config().limits;
        bits(What::Flags, cmd.flags.0, CreateFlags::USER.0)?;
        reserved(&cmd.reserved)?;
        self.check_doorbell_page(cmd.doorbell_page)?;
        let first = u32::from(FIRST_EVENT_QUEUE);
        let last = (first + limits.event_queues - 1).min(u16::MAX.into());
        within(What::EventQueue, cmd.event_queue, &(first..=last))?;
        let attr = CqAttr {
            doorbell_page: cmd.doorbell_page,
            // At most `last`, so the cast does not truncate.
            event_queue: cmd.event_queue as u16,
            cookie: cmd.cookie,
            order: self.next_cq(),
        };
        let ring = self.cq_ring(&cmd.ring, cmd.base.cqe)?;
        let reserved = self.objects.cqs.number(What::Cqn)?;
        let queue = CompletionProducer::own(ring);
        self.insert_cq(reserved, queue, attr)
    }

    /// The order of the next CQ.
    fn next_cq(&self) -> u32 {
        self.created_cqs.load(Ordering::Relaxed).saturating_add(1)
    }

    fn insert_cq(
        &self,
        reserved: Reserved<'_, Cqn, Cq>,
        queue: CompletionProducer,
        attr: CqAttr,
    ) -> Result<RspCreateCq> {
        let cq = Cq::new(reserved.number(), queue, attr, self.charge::<Cq>()?);
        // Commands are executed one after the other.
        self.created_cqs.store(attr.order, Ordering::Relaxed);
        Ok(RspCreateCq {
            cqn: reserved.insert(Arc::new(cq)),
        })
    }

    /// Maps the ring of a CQ with `cqe` entries.
    fn cq_ring(&self, ring: &RingAddr, cqe: u32) -> Result<RingMem> {
        let max_cqe = self.config().limits.max_cqe;
        within(What::Cqe, cqe, &(1..=max_cqe))?;
        at_most(What::Cqe, cqe, ring.slots)?;
        at_most(What::Slots, ring.slots, max_cqe.next_power_of_two())?;
        RingMem::new(self.budget(), &self.space, RingKind::Completion, ring)
    }

    pub(super) fn resize_cq(&self, cmd: CmdResizeCq) -> Result<RspResizeCq> {
        let cq = self.objects.cqs.find(What::Cqn, cmd.cqn)?;
        let ring = self.cq_ring(&cmd.ring, cmd.cqe)?;
        Ok(RspResizeCq {
            end: cq.resize(self, ring, cmd.cqe)?,
        })
    }

    pub(super) fn modify_cq(&self, cmd: CmdModifyCq) -> Result<Empty> {
        let limits = &self.config().limits;
        at_most(What::Count, cmd.count, limits.max_cq_moderation_count)?;
        at_most(What::Period, cmd.period, limits.max_cq_moderation_period)?;
        let cq = self.objects.cqs.find(What::Cqn, cmd.cqn)?;
        cq.moderate(self, Moderation::new(cmd.count, cmd.period));
        Ok(DONE)
    }

    /// Creates a CQ in virtqueue mode: it is one of the device's virtqueues.
    pub(super) fn create_cq_virtqueue(&self, cmd: CmdCreateCq) -> Result<RspCreateCq> {
        let limits = self.config().limits.virtqueue_mode();
        within(What::Cqe, cmd.cqe, &(1..=limits.max_cqe))?;
        let numbers = self.assigned_virtqueues().numbers();
        let reserved = self
            .objects
            .cqs
            .reserve_below(limits.max_cq, |cqn| {
                self.assigned_virtqueues().is_usable(numbers.cq(cqn))
            })
            .ok_or(full(What::Cqn, limits.max_cq))?;
        let queue = self
            .assigned_virtqueues()
            .take(numbers.cq(reserved.number()))?;
        // The driver need not notify the device of new buffers: the device looks for a buffer when
        // it has a completion.
        queue
            .suppress_notifications(&self.space.enter())
            .map_err(|_| refusal(Reason::Unmapped, What::Virtqueue, queue.number()))?;
        let attr = CqAttr {
            doorbell_page: NO_DOORBELL_PAGE,
            event_queue: CONTROL_QUEUE,
            cookie: 0,
            order: self.next_cq(),
        };
        let queue = CompletionProducer::virtqueue(queue, cmd.cqe);
        self.insert_cq(reserved, queue, attr)
    }

    pub(super) fn req_notify_cq(&self, cmd: CmdReqNotify) -> Result<Empty> {
        bits(What::Flags, cmd.flags.0, NotifyFlags::ALL.0)?;
        at_least(What::Flags, cmd.flags.0, 1u8)?;
        let cq = self.objects.cqs.find(What::Cqn, cmd.cqn)?;
        cq.request_notify(self, cmd.flags);
        Ok(DONE)
    }

    pub(super) fn destroy_cq_command(&self, cmd: CmdDestroyCq) -> Result<Empty> {
        let cq = self.objects.cqs.find(What::Cqn, cmd.cqn)?;
        if cq.users.any() {
            return Err(in_use(What::Cqn, cmd.cqn));
        }
        self.destroy_cq(&cq);
        Ok(DONE)
    }
}
