// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The saved state of a CQ.

use roce::saved::Epoch;
use scheduler::shared::Mutex;
use serde::{Deserialize, Serialize};
use virtio_rdma_abi::number::Cqn;
use virtio_rdma_abi::ring::RingKind;
use virtio_rdma_ring::ArmLatchState;

use super::held::Held;
use super::{Cq, CqInner, Life};
use crate::error::{refusal, Reason, Result, What};
use crate::memory::{CompletionProducer, LatchDef, RingMem, RingState};
use crate::moderation::{Moderator, ModeratorState};
use crate::users::Users;
use crate::Hca;

/// A CQ with an own ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CqState {
    number: u32,
    doorbell_page: u32,
    event_queue: u16,
    cookie: u64,
    order: u32,
    ring: RingState,
    #[serde(with = "LatchDef")]
    latch: ArmLatchState,
    moderator: ModeratorState,
    /// Whether a rule holds a completion event back. It is sent at once.
    has_event: bool,
    is_dead: bool,
}

impl CqState {
    pub(crate) fn number(&self) -> Cqn {
        Cqn::new(self.number)
    }

    /// The CQ with this state, which must be given a turn.
    ///
    /// # Errors
    ///
    /// The state is invalid, or the budget is used up.
    pub(crate) fn restored(&self, hca: &Hca, epoch: Epoch) -> Result<Cq> {
        let (budget, space, kind) = (hca.budget(), &hca.space, RingKind::Completion);
        let ring = RingMem::restored(budget, space, kind, &self.ring, !self.is_dead)?;
        Ok(Cq {
            number: self.number(),
            doorbell_page: self.doorbell_page,
            event_queue: self.event_queue,
            cookie: self.cookie,
            order: self.order,
            inner: Mutex::new(CqInner {
                queue: CompletionProducer::resumed(ring, &self.latch),
                moderator: Moderator::restored(hca, self.number(), &self.moderator, epoch),
                held: Held::restored(hca, self.has_event),
                state: match self.is_dead {
                    true => Life::Dead,
                    false => Life::Live,
                },
            }),
            users: Users::default(),
            _charge: hca.charge::<Cq>()?,
        })
    }
}

impl Cq {
    /// The state from which another process can restore the CQ. Completions and an event that rules
    /// hold back come when it has its first turn. Refused for a virtqueue.
    pub(crate) fn save(&self, epoch: Epoch) -> Result<CqState> {
        let inner = self.inner.lock();
        let in_virtqueue = refusal(Reason::NotSupported, What::Cqn, self.number.get());
        let (ring, latch) = inner.queue.save().ok_or(in_virtqueue)?;
        Ok(CqState {
            number: self.number.get(),
            doorbell_page: self.doorbell_page,
            event_queue: self.event_queue,
            cookie: self.cookie,
            order: self.order,
            ring,
            latch,
            moderator: inner.moderator.save(epoch),
            has_event: inner.held.has_event(),
            is_dead: inner.state != Life::Live,
        })
    }
}
