// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The QPs that use a CQ or an SRQ.

use std::collections::BTreeMap;

use scheduler::shared::Mutex;
use virtio_rdma_abi::number::Qpn;

use crate::Hca;

/// The QPs that use a CQ or SRQ. For each QPN: the number of the QP's queues that use the CQ or
/// SRQ. A CQ or SRQ with users can't be destroyed. If it fails, its users fail.
#[derive(Debug, Default)]
pub(crate) struct Users(Mutex<BTreeMap<Qpn, u32>>);

impl Users {
    /// Adds a use by a queue of QP `qpn`.
    pub(crate) fn attach(&self, qpn: Qpn) {
        *self.0.lock().entry(qpn).or_default() += 1;
    }

    /// Removes a use by a queue of QP `qpn`.
    pub(crate) fn detach(&self, qpn: Qpn) {
        let mut users = self.0.lock();
        if let Some(queues) = users.get_mut(&qpn) {
            *queues -= 1;
            if *queues == 0 {
                users.remove(&qpn);
            }
        }
    }

    /// The QPs.
    pub(crate) fn qpns(&self) -> Vec<Qpn> {
        self.0.lock().keys().copied().collect()
    }

    /// Whether any QP uses the CQ or SRQ.
    pub(crate) fn any(&self) -> bool {
        !self.0.lock().is_empty()
    }

    /// Fails the QPs after their CQ or SRQ failed: the next turn of each QP takes it to ERR.
    pub(crate) fn fail(&self, hca: &Hca) {
        for qpn in self.0.lock().keys() {
            hca.fail_qp(*qpn);
        }
    }
}
