// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! CREATE_CQ, DESTROY_CQ, RESIZE_CQ, MODIFY_CQ, REQ_NOTIFY_CQ.

use std::sync::Arc;

use virtio_rdma_abi::ctrl::CONTROL_QUEUE;
use virtio_rdma_abi::ctrl::{
    CmdCreateCq, CmdCreateCqRing, CmdDestroyCq, CmdModifyCq, CmdReqNotify, CmdResizeCq,
    CreateFlags, Empty, NotifyFlags, RspCreateCq, RspResizeCq,
};
use virtio_rdma_abi::event::FIRST_EVENT_QUEUE;
use virtio_rdma_abi::ring::{RingAddr, RingKind};

use super::{DONE, NO_DOORBELL_PAGE};
use crate::cq::{Cq, CqAttr};
use crate::error::{require, Errno, Result};
use crate::memory::{CompletionProducer, RingMem};
use crate::moderation::Moderation;
use crate::Hca;

impl Hca {
    /// Creates a CQ in memory that the driver provides.
    pub(super) fn create_cq_ring(&self, cmd: CmdCreateCqRing) -> Result<RspCreateCq> {
        let limits = &self.config().limits;
        require(CreateFlags::USER.contains(cmd.flags) && cmd.reserved == [0; 8])?;
        require(cmd.doorbell_page < limits.doorbell_pages)?;
        let first = u32::from(FIRST_EVENT_QUEUE);
        require((first..first + limits.event_queues).contains(&cmd.event_queue))?;
        let attr = CqAttr {
            doorbell_page: cmd.doorbell_page,
            event_queue: u16::try_from(cmd.event_queue).map_err(|_| Errno::INVAL)?,
            cookie: cmd.cookie,
        };
        let ring = self.cq_ring(&cmd.ring, cmd.base.cqe)?;
        let reserved = self.cqs.reserve().ok_or(Errno::NOMEM)?;
        let queue = CompletionProducer::own(ring);
        let cq = Cq::new(reserved.number(), queue, attr, self.charge::<Cq>()?);
        Ok(RspCreateCq {
            cqn: reserved.insert(Arc::new(cq)),
        })
    }

    /// Maps the ring of a CQ with `cqe` entries.
    fn cq_ring(&self, ring: &RingAddr, cqe: u32) -> Result<RingMem> {
        let max_cqe = self.config().limits.max_cqe;
        require((1..=max_cqe).contains(&cqe) && cqe <= ring.slots)?;
        require(ring.slots <= max_cqe.next_power_of_two())?;
        RingMem::new(self.budget(), &self.space, RingKind::Completion, ring)
    }

    pub(super) fn resize_cq(&self, cmd: CmdResizeCq) -> Result<RspResizeCq> {
        let cq = self.cqs.get(cmd.cqn).ok_or(Errno::INVAL)?;
        let ring = self.cq_ring(&cmd.ring, cmd.cqe)?;
        Ok(RspResizeCq {
            end: cq.resize(self, ring, cmd.cqe)?,
        })
    }

    pub(super) fn modify_cq(&self, cmd: CmdModifyCq) -> Result<Empty> {
        let limits = &self.config().limits;
        require(cmd.count <= limits.max_cq_moderation_count)?;
        require(cmd.period <= limits.max_cq_moderation_period)?;
        let cq = self.cqs.get(cmd.cqn).ok_or(Errno::INVAL)?;
        cq.moderate(self, Moderation::new(cmd.count, cmd.period));
        Ok(DONE)
    }

    /// Creates a CQ in virtqueue mode: it is one of the device's virtqueues.
    pub(super) fn create_cq_virtqueue(&self, cmd: CmdCreateCq) -> Result<RspCreateCq> {
        let limits = self.config().limits.virtqueue_mode();
        require((1..=limits.max_cqe).contains(&cmd.cqe))?;
        let numbers = self.assigned_virtqueues().numbers();
        let reserved = self
            .cqs
            .reserve_below(limits.max_cq, |cqn| {
                self.assigned_virtqueues().is_usable(numbers.cq(cqn))
            })
            .ok_or(Errno::NOMEM)?;
        let queue = self
            .assigned_virtqueues()
            .take(numbers.cq(reserved.number()))?;
        // The driver need not notify the device of new buffers: the device looks for a buffer when
        // it has a completion.
        queue
            .suppress_notifications(&self.space.enter())
            .map_err(|_| Errno::FAULT)?;
        let attr = CqAttr {
            doorbell_page: NO_DOORBELL_PAGE,
            event_queue: CONTROL_QUEUE,
            cookie: 0,
        };
        let queue = CompletionProducer::virtqueue(queue, cmd.cqe);
        let cq = Cq::new(reserved.number(), queue, attr, self.charge::<Cq>()?);
        Ok(RspCreateCq {
            cqn: reserved.insert(Arc::new(cq)),
        })
    }

    pub(super) fn req_notify_cq(&self, cmd: CmdReqNotify) -> Result<Empty> {
        require(!cmd.flags.has_unknown() && cmd.flags != NotifyFlags::NONE)?;
        let cq = self.cqs.get(cmd.cqn).ok_or(Errno::INVAL)?;
        cq.request_notify(self, cmd.flags);
        Ok(DONE)
    }

    pub(super) fn destroy_cq_command(&self, cmd: CmdDestroyCq) -> Result<Empty> {
        let cq = self.cqs.get(cmd.cqn).ok_or(Errno::INVAL)?;
        if cq.users.any() {
            return Err(Errno::BUSY);
        }
        self.destroy_cq(&cq);
        Ok(DONE)
    }
}
