// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! CREATE_CQ, DESTROY_CQ.

use std::sync::Arc;

use virtio_rdma_abi::cqe::CQ_SLOT_SHIFT;
use virtio_rdma_abi::ctrl::{CmdCreateCqRing, CmdDestroyCq, Empty, RspCreateCq};
use virtio_rdma_abi::event::FIRST_EVENT_QUEUE;

use super::DONE;
use crate::cq::{Cq, CqAttr};
use crate::error::{require, Errno, Result};
use crate::memory::RingMem;
use crate::Device;

impl Device {
    pub(super) fn create_cq(&self, cmd: CmdCreateCqRing) -> Result<RspCreateCq> {
        let limits = &self.config().limits;
        require((1..=limits.max_cqe).contains(&cmd.base.cqe) && cmd.base.cqe <= cmd.ring.slots)?;
        require(
            cmd.ring.slots <= limits.max_cqe.next_power_of_two()
                && cmd.ring.slot_shift == CQ_SLOT_SHIFT,
        )?;
        require(!cmd.flags.has_unknown() && cmd.reserved == [0; 8])?;
        require(cmd.doorbell_page < limits.doorbell_pages)?;
        let first = u32::from(FIRST_EVENT_QUEUE);
        require((first..first + limits.event_queues).contains(&cmd.event_queue))?;
        let attr = CqAttr {
            doorbell_page: cmd.doorbell_page,
            event_queue: u16::try_from(cmd.event_queue).map_err(|_| Errno::INVAL)?,
            cookie: cmd.cookie,
        };
        let ring = RingMem::new(&self.space, &cmd.ring)?;
        let reserved = self.cqs.reserve().ok_or(Errno::NOMEM)?;
        let cq = Cq::new(reserved.number(), ring, attr);
        Ok(RspCreateCq {
            cqn: reserved.insert(Arc::new(cq)),
        })
    }

    pub(super) fn destroy_cq_command(&self, cmd: CmdDestroyCq) -> Result<Empty> {
        let cq = self.cqs.get(cmd.cqn).ok_or(Errno::INVAL)?;
        if cq.in_use() {
            return Err(Errno::BUSY);
        }
        self.destroy_cq(&cq);
        Ok(DONE)
    }
}
