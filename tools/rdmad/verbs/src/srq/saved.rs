// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The saved state of an SRQ.

use scheduler::shared::Mutex;
use serde::{Deserialize, Serialize};
use virtio_rdma_abi::number::{Pdn, Srqn};
use virtio_rdma_abi::ring::RingKind;
use virtio_rdma_ring::{DevicePositions, DeviceSharedQueue};

use super::{Life, Srq, SrqInner, SrqQueue};
use crate::error::{at_most, Result, What};
use crate::memory::{PositionsDef, RingMem, RingState};
use crate::pd::PdUse;
use crate::users::Users;
use crate::Hca;

/// An SRQ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SrqState {
    number: u32,
    pdn: u32,
    cookie: u64,
    max_sge: u32,
    max_wr: u32,
    limit: u32,
    ring: RingState,
    #[serde(with = "PositionsDef")]
    positions: DevicePositions,
    returned: Vec<u16>,
    is_broken: bool,
}

impl SrqState {
    pub(crate) fn number(&self) -> Srqn {
        Srqn::new(self.number)
    }

    pub(crate) fn pdn(&self) -> Pdn {
        Pdn::new(self.pdn)
    }

    /// The SRQ with this state, in `pd`.
    ///
    /// # Errors
    ///
    /// The state is invalid, or the budget is used up.
    pub(crate) fn restored(&self, hca: &Hca, pd: PdUse) -> Result<Srq> {
        let limits = &hca.config().limits;
        at_most(What::MaxSge, self.max_sge, limits.max_sge)?;
        let (budget, space, kind) = (hca.budget(), &hca.space, RingKind::Shared);
        let mem = RingMem::restored(budget, space, kind, &self.ring, !self.is_broken)?;
        let slots = mem.layout().slots();
        at_most(What::Slots, self.positions.outstanding(), slots)?;
        at_most(What::Slots, self.returned.len() as u64, slots)?;
        for &slot in &self.returned {
            at_most(What::Slots, slot, slots - 1)?;
        }
        Ok(Srq {
            number: self.number(),
            pd,
            cookie: self.cookie,
            max_sge: self.max_sge,
            inner: Mutex::new(SrqInner {
                queue: SrqQueue {
                    ring: DeviceSharedQueue::resumed(*mem.layout(), self.positions),
                    returned: self.returned.clone(),
                    max_wr: self.max_wr,
                    limit: self.limit,
                    state: match self.is_broken {
                        true => Life::Broken,
                        false => Life::Live,
                    },
                },
                mem,
            }),
            users: Users::default(),
            _charge: hca.charge::<Srq>()?,
        })
    }
}

impl Srq {
    /// The state from which another process can restore the SRQ.
    pub(crate) fn save(&self) -> SrqState {
        let SrqInner { mem, queue } = &*self.inner.lock();
        SrqState {
            number: self.number.get(),
            pdn: self.pd.number().get(),
            cookie: self.cookie,
            max_sge: self.max_sge,
            max_wr: queue.max_wr,
            limit: queue.limit,
            ring: mem.save(),
            positions: queue.ring.positions(),
            returned: queue.returned.clone(),
            is_broken: queue.state != Life::Live,
        }
    }
}
