// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The QPs that use a CQ or an SRQ.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use virtio_rdma_abi::number::Qpn;

use crate::Device;

/// QPs that use an object, with how many of their queues. They keep it from being destroyed, and
/// fail with it.
#[derive(Debug, Default)]
pub(crate) struct Users(Mutex<BTreeMap<Qpn, u32>>);

impl Users {
    /// A queue of QP `qpn` uses the object from now on.
    pub(crate) fn attach(&self, qpn: Qpn) {
        *self.0.lock().entry(qpn).or_default() += 1;
    }

    /// A queue of QP `qpn` does not use the object any more.
    pub(crate) fn detach(&self, qpn: Qpn) {
        let mut users = self.0.lock();
        if let Some(queues) = users.get_mut(&qpn) {
            *queues -= 1;
            if *queues == 0 {
                users.remove(&qpn);
            }
        }
    }

    /// Whether a QP uses the object.
    pub(crate) fn any(&self) -> bool {
        !self.0.lock().is_empty()
    }

    /// The object failed: the next turn of each QP takes it to ERR.
    pub(crate) fn fail(&self, device: &Device) {
        for qpn in self.0.lock().keys() {
            device.fail_qp(*qpn);
        }
    }
}
