// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The saved state of an HCA: all that another process needs to go on with it.
//!
//! Each object describes its own state in a module `saved` beside it; this file puts the parts
//! together. Not saved are frames in queues, which a reliable connection sends again, and the
//! credit of the port's rate limits. State is written when the HCA rests: no worker gives it a
//! turn. The next engine trusts nothing in it: each value is checked like that of a command, as far
//! as memory and other ports depend on it.
//!
//! The encoding is that of the `postcard` format: structures have neither names nor lengths, so a
//! change of any of them is a change of [`FORMAT`](Hca::FORMAT).

use std::sync::atomic::Ordering;
use std::sync::Arc;

use chaos::RuleState;
use roce::saved::Epoch;
use sandbox::contain;
use serde::{Deserialize, Serialize};
use virtio_rdma_abi::event::FIRST_EVENT_QUEUE;
use virtio_rdma_abi::feature::Features;
use virtio_rdma_abi::number::{Pdn, Qpn};

use crate::counter_sets::CounterSetsState;
use crate::cq::CqState;
use crate::error::{exactly, refusal, require, Reason, Refusal, Result, What};
use crate::event::{EventQueue, EventState};
use crate::gid::{Address, Gid};
use crate::memory::{MrState, VariantsState, WindowState};
use crate::pd::Pd;
use crate::qp::{Qp, QpSaved};
use crate::srq::SrqState;
use crate::Hca;

/// The state of an HCA.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct HcaState {
    features: u64,
    link: (u8, u32),
    refused_gids: u64,
    /// Packets with a bad P_Key and with a bad Q_Key.
    violations: (u32, u32),
    /// Number of QPs that the driver has created.
    created_qps: u32,
    created_cqs: u32,
    /// Number of MRs that the driver has registered.
    registered_mrs: u32,
    /// The rules of the scenario, with their counts.
    rules: Vec<RuleState>,
    counters: Vec<u64>,
    counter_sets: CounterSetsState,
    gids: Vec<(u16, Address)>,
    pds: Vec<u32>,
    mrs: Vec<MrState>,
    mr_variants: VariantsState,
    windows: Vec<WindowState>,
    window_variants: VariantsState,
    cqs: Vec<CqState>,
    srqs: Vec<SrqState>,
    qps: Vec<QpSaved>,
    groups: Vec<(Gid, Vec<u32>)>,
    events: Vec<EventState>,
}

/// The state of an HCA can't be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The bytes are not a state.
    #[error("the state is damaged: {0}")]
    Damaged(#[from] postcard::Error),
    /// A value is not permitted.
    #[error("{0}")]
    Refused(String),
}

impl From<Refusal> for RestoreError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal.to_string())
    }
}

impl Hca {
    /// Version of the state: of all structures of which it consists.
    pub const FORMAT: u32 = 4;

    /// The state of the HCA. No worker may give the HCA a turn meanwhile.
    ///
    /// # Errors
    ///
    /// The HCA has failed, or is in virtqueue mode: the reason, in words.
    pub fn save(&self) -> std::result::Result<Vec<u8>, String> {
        let _control = self.control.lock();
        if let Some(why) = self.failure() {
            return Err(why);
        }
        if !self.has_own_rings() {
            return Err("its queues are virtqueues, which can't be handed over".to_owned());
        }
        let state = self
            .state(self.runtime().epoch)
            .map_err(|refusal| refusal.to_string())?;
        postcard::to_stdvec(&state).map_err(|error| error.to_string())
    }

    fn state(&self, epoch: Epoch) -> Result<HcaState> {
        let objects = &self.objects;
        let (mrs, mr_variants) = objects.mrs.save();
        let (windows, window_variants) = objects.mrs.windows().save();
        let violations = &self.violations;
        Ok(HcaState {
            features: self.negotiated().0,
            link: self.link.save(),
            refused_gids: self.refused_gids.load(Ordering::Relaxed),
            violations: (
                violations.pkey.load(Ordering::Relaxed),
                violations.qkey.load(Ordering::Relaxed),
            ),
            created_qps: self.created_qps.load(Ordering::Relaxed),
            created_cqs: self.created_cqs.load(Ordering::Relaxed),
            registered_mrs: objects.mrs.registered.load(Ordering::Relaxed),
            rules: self.rules().save(),
            counters: self.counters.save(),
            counter_sets: objects.counter_sets.save(),
            gids: objects.gids.all(),
            pds: objects.pds.iter().map(|pd| pd.number().get()).collect(),
            mrs,
            mr_variants,
            windows,
            window_variants,
            cqs: objects
                .cqs
                .iter()
                .map(|cq| cq.save(epoch))
                .collect::<Result<_>>()?,
            srqs: objects.srqs.iter().map(|srq| srq.save()).collect(),
            qps: objects
                .qps
                .iter()
                .map(|qp| qp.save(epoch))
                .collect::<Result<_>>()?,
            groups: objects.groups.all(),
            events: self.events().save(),
        })
    }

    /// Restores the state that another process has [saved](Self::save), of a port with the same
    /// configuration. The HCA must have no objects. [`resume`](Self::resume) must follow when the
    /// event queues work again.
    ///
    /// # Errors
    ///
    /// The state is damaged or invalid, or does not fit the configuration. The HCA is reset then.
    pub fn restore(&self, bytes: &[u8]) -> std::result::Result<(), RestoreError> {
        let state = postcard::from_bytes(bytes)?;
        let restored = contain(|| {
            let _control = self.control.lock();
            self.restore_objects(&state, self.runtime().epoch)
        });
        let restored = match restored {
            Ok(restored) => restored.map_err(RestoreError::from),
            Err(panicked) => Err(RestoreError::Refused(panicked.to_string())),
        };
        if restored.is_err() {
            self.reset();
        }
        restored
    }

    fn restore_objects(&self, state: &HcaState, epoch: Epoch) -> Result<()> {
        let objects = &self.objects;
        let old = objects.pds.len() as u64;
        exactly(What::Pdn, old, 0u8)?;
        let features = Features(state.features).in_force();
        self.restore_features(features);
        // No other state is saved.
        let has_own_rings = self.has_own_rings();
        require(has_own_rings, Reason::Unsuitable, What::Flags, features.0)?;
        // The driver knows the state that it has been told.
        self.events().clear();
        let was_up = self.link.restore(state.link);
        self.refused_gids
            .store(state.refused_gids, Ordering::Relaxed);
        let (pkey, qkey) = state.violations;
        self.violations.pkey.store(pkey, Ordering::Relaxed);
        self.violations.qkey.store(qkey, Ordering::Relaxed);
        self.created_qps.store(state.created_qps, Ordering::Relaxed);
        self.created_cqs.store(state.created_cqs, Ordering::Relaxed);
        objects
            .mrs
            .registered
            .store(state.registered_mrs, Ordering::Relaxed);
        let restored = self.rules().restore(&state.rules);
        restored.ok_or_else(|| refusal(Reason::Undefined, What::Command, 0u8))?;
        self.counters.restore(&state.counters);
        let workers = self.runtime().scheduler.workers();
        objects
            .counter_sets
            .restore(self.budget(), workers, &state.counter_sets)?;
        for (index, address) in &state.gids {
            // It was logged. Connections have their paths, and others can't use the address.
            let _ = self.set_gid(*index, *address);
        }
        for &number in &state.pds {
            let reserved = objects.pds.reserve_again(What::Pdn, Pdn::new(number))?;
            let pd = Pd::new(reserved.number(), self.charge::<Pd>()?);
            reserved.insert(Arc::new(pd));
        }
        objects.mrs.restore_variants(&state.mr_variants);
        for mr in &state.mrs {
            objects.mrs.restore(self.use_pd(mr.pdn())?, mr)?;
        }
        let windows = objects.mrs.windows();
        windows.restore_variants(&state.window_variants);
        for window in &state.windows {
            windows.restore(&objects.mrs, self.use_pd(window.pdn())?, window)?;
        }
        for cq in &state.cqs {
            let reserved = objects.cqs.reserve_again(What::Cqn, cq.number())?;
            reserved.insert(Arc::new(cq.restored(self, epoch)?));
        }
        for srq in &state.srqs {
            let reserved = objects.srqs.reserve_again(What::Srqn, srq.number())?;
            let pd = self.use_pd(srq.pdn())?;
            reserved.insert(Arc::new(srq.restored(self, pd)?));
        }
        for qp in &state.qps {
            Qp::restore(self, qp, epoch)?;
        }
        for (mgid, members) in &state.groups {
            for &qpn in members {
                self.attach_qp(*mgid, Qpn::new(qpn))?;
            }
        }
        self.events().restore(&state.events)?;
        if self.link_is_up() != was_up {
            self.tell_link(self.link_is_up());
        }
        Ok(())
    }

    /// Gives all restored objects a turn: doorbells may have been lost, and timers have no entries.
    pub fn resume(&self) {
        for qp in self.objects.qps.iter() {
            self.qp_ready(qp.number);
        }
        for cq in self.objects.cqs.iter() {
            self.flows.doorbells.ready_cqs.insert(cq.number());
        }
        let queues = self.config().limits.event_queues.min(u16::MAX.into());
        for queue in (FIRST_EVENT_QUEUE..).take(queues as usize) {
            let ready = &self.flows.doorbells.ready_events;
            ready.insert(EventQueue(queue));
        }
        self.flows.notifications_ready();
        self.frames_ready();
    }
}
