// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The end of a QP of which nobody is to notice, for tests.

use budget::ChargedList;

use crate::qp::{Qp, Requester, Responder};
use crate::wqe::Snapshots;
use crate::Hca;

impl Qp {
    /// Drops what the QP does, as if its process had ended: nothing is completed or sent.
    pub(crate) fn forget(&self, hca: &Hca) {
        let mut requester = self.requester.lock();
        requester.disarm(hca, self.number);
        let snapshots = Snapshots::one(hca.budget(), 1).expect("the budget has a byte");
        *requester = Requester::new(&self.init.sq, snapshots);
        let nothing = ChargedList::new(hca.budget(), 0);
        *self.responder.lock() = Responder::new(&self.init.rq, nothing);
    }
}
