// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The objects of an HCA: their tables, and how objects end.
//!
//! Commands create objects. They end by a command or by a reset of the HCA. In virtqueue mode a CQ
//! or QP fails if the driver resets its virtqueue.

use budget::MemoryBudget;
use crossbeam_utils::CachePadded;
use virtio_rdma_abi::ib::GSI_QPN;
use virtio_rdma_abi::number::{Cqn, MrNumber, MwNumber, Pdn, Qpn, Srqn};
use virtio_rdma_abi::queues::Role;

use crate::config::Limits;
use crate::counter_sets::CounterSets;
use crate::cq::Cq;
use crate::error::Result;
use crate::gid::GidTable;
use crate::memory::MrTable;
use crate::moderation::Deadlines;
use crate::multicast::Groups;
use crate::pd::Pd;
use crate::qp::Qp;
use crate::shuffle::Secret;
use crate::srq::Srq;
use crate::table::Table;
use crate::Hca;

/// The objects of an HCA.
pub(crate) struct Objects {
    pub pds: Table<Pdn, Pd>,
    pub mrs: MrTable,
    pub cqs: Table<Cqn, Cq>,
    pub qps: Table<Qpn, Qp>,
    pub srqs: Table<Srqn, Srq>,
    pub gids: GidTable,
    pub groups: Groups,
    pub counter_sets: CounterSets,
    /// Deadlines of CQs that delay events.
    pub deadlines: CachePadded<Deadlines>,
}

impl Objects {
    /// Empty tables. `secret` determines the numbers of objects, and `budget` pays for MRs.
    pub(crate) fn new(secret: &Secret, budget: &MemoryBudget, limits: &Limits) -> Self {
        Self {
            pds: Table::new(secret, 1..limits.max_pd + 1),
            mrs: MrTable::new(
                secret,
                budget,
                limits.max_mr,
                limits.max_mw,
                limits.max_mr_pages,
            ),
            cqs: Table::new(secret, 0..limits.max_cq),
            // QPN 0 does not exist. The GSI QP counts in `max_qp`.
            qps: Table::with_special(secret, 1, GSI_QPN.get()..limits.max_qp + 1),
            srqs: Table::new(secret, 1..limits.max_srq + 1),
            gids: GidTable::new(limits.max_gids),
            groups: Groups::default(),
            counter_sets: CounterSets::new(secret, limits.max_counter_sets),
            deadlines: CachePadded::default(),
        }
    }
}

impl Hca {
    /// Handles the driver's reset of only virtqueue `queue`. On return the virtqueue's memory is
    /// not accessed any more. If the virtqueue still belongs to an object, that object has failed.
    pub fn virtqueue_reset(&self, queue: u16) {
        if !self.has_own_rings() {
            self.release_virtqueue(queue);
            self.virtqueues().send_interrupts();
        }
    }

    fn release_virtqueue(&self, queue: u16) {
        let _control = self.control.lock();
        match self.assigned_virtqueues().numbers().role(queue) {
            Role::Cq(cqn) => {
                if let Some(cq) = self.objects.cqs.get(cqn) {
                    cq.virtqueue_reset(self);
                }
            }
            Role::Sq(qpn) | Role::Rq(qpn) => {
                if let Some(qp) = self.objects.qps.get(qpn) {
                    qp.virtqueue_reset(queue);
                    self.runtime().scheduler.quiesce.synchronize();
                    self.fail_qp(qpn);
                }
            }
            Role::Control => {}
        }
        self.assigned_virtqueues().mark_reset(queue);
    }

    /// Destroys all objects. On return no worker uses them any more.
    pub(crate) fn destroy_all(&self) {
        let objects = &self.objects;
        let qps = Vec::from_iter(objects.qps.iter());
        for qp in &qps {
            self.remove_qp(qp);
        }
        let windows = objects.mrs.windows();
        let numbers = windows.numbers().into_iter();
        let removed = Vec::from_iter(numbers.filter_map(|number| windows.remove(number)));
        // Only QPs use MRs and windows, and no QP has a turn after this.
        self.runtime().scheduler.quiesce.synchronize();
        for qp in &qps {
            self.release_qp(qp);
        }
        for window in &removed {
            windows.release(window);
        }
        for srq in objects.srqs.iter() {
            self.destroy_srq(&srq);
        }
        for cq in objects.cqs.iter() {
            self.destroy_cq(&cq);
        }
        for number in objects.mrs.numbers() {
            // No window is bound to the MR any more.
            if let Ok(mr) = objects.mrs.remove(number) {
                objects.mrs.release(number, mr);
            }
        }
        objects.counter_sets.clear(&self.counters);
        for pd in objects.pds.iter() {
            objects.pds.remove(pd.number());
            objects.pds.release(pd.number());
        }
        let addresses = Vec::from_iter(objects.gids.clear());
        let now = self.runtime().scheduler.clock.now();
        let leases = &self.runtime().address_leases;
        leases.cleared(self.port(), &addresses, now);
    }

    /// Destroys a QP. On return no worker uses it any more.
    pub(crate) fn destroy_qp(&self, qp: &Qp) {
        self.remove_qp(qp);
        // Workers that looked the QP up before its removal may still use it and its PD.
        self.runtime().scheduler.quiesce.synchronize();
        self.release_qp(qp);
    }

    fn remove_qp(&self, qp: &Qp) {
        self.objects.qps.remove(qp.number);
        self.leave_groups(qp.number);
        qp.destroy(self);
    }

    /// Releases a removed QP, which no worker uses any more.
    fn release_qp(&self, qp: &Qp) {
        qp.unbind_windows(self);
        qp.leave_counter_set(self);
        self.objects.qps.release(qp.number);
    }

    /// Destroys a CQ that no QP uses. On return no worker uses it any more.
    pub(crate) fn destroy_cq(&self, cq: &Cq) {
        self.objects.cqs.remove(cq.number());
        cq.destroy(self);
        self.objects.cqs.release(cq.number());
    }

    /// Destroys an SRQ that no QP uses. On return no worker uses it any more.
    pub(crate) fn destroy_srq(&self, srq: &Srq) {
        self.objects.srqs.remove(srq.number());
        srq.destroy(self);
        self.objects.srqs.release(srq.number());
    }

    /// Destroys an MR. On return its memory is not used any more. Refused if the MR does not
    /// exist, and while windows are bound to it.
    pub(crate) fn destroy_mr(&self, number: MrNumber) -> Result<()> {
        let mr = self.objects.mrs.remove(number)?;
        self.runtime().scheduler.quiesce.synchronize();
        self.objects.mrs.release(number, mr);
        Ok(())
    }

    /// Unbinds and destroys a memory window. On return memory is not accessed through it any more.
    /// Returns whether the window existed.
    pub(crate) fn destroy_mw(&self, number: MwNumber) -> bool {
        let Some(window) = self.objects.mrs.windows().remove(number) else {
            return false;
        };
        // After this no worker can bind the window.
        self.runtime().scheduler.quiesce.synchronize();
        if let Some(qpn) = self.objects.mrs.windows().release(&window) {
            self.objects.qps.with(qpn, |qp| qp.forget_window(number));
        }
        true
    }

    /// Revokes the memory of an MR. On return that memory is not used any more. Refused if
    /// there is no such MR, or if it can't be revoked.
    pub(crate) fn revoke_mr(&self, number: MrNumber) -> Result<()> {
        let revoked = self.objects.mrs.revoke(number);
        self.runtime().scheduler.quiesce.synchronize();
        revoked
    }

    /// Requests that QP `qpn` go to ERR because a CQ or SRQ that it uses failed.
    pub(crate) fn fail_qp(&self, qpn: Qpn) {
        if self.objects.qps.with(qpn, Qp::request_failure).is_some() {
            self.qp_ready(qpn);
        }
    }
}
