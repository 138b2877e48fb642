// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Leak checks: after all parties are destroyed, a device has as many objects and as much memory in
//! use as before, and its tables have room up to their limits.

use std::sync::atomic::Ordering;

use testkit::engine::{Cq, Options, Qp, Srq, FULL};
use virtio_rdma_abi::ctrl::{
    CmdAllocMw, CmdCreatePd, CmdDeallocMw, CmdDeregMr, CmdDestroyPd, CmdRegUserMr,
};
use virtio_rdma_abi::ib::MwType;
use virtio_rdma_abi::wire::Wire;

use crate::guest::{limits, Guest};
use crate::party::{destroy_cq, destroy_qp};

/// Number of slots of the shortest possible queue.
const SLOTS: u32 = 2;

/// Number of PDs, CQs, MRs and QPs of a device, and bytes that it has allocated for them.
#[derive(Debug, PartialEq, Eq)]
pub struct Size {
    pds: usize,
    cqs: usize,
    mrs: usize,
    qps: usize,
    memory: u64,
}

impl Guest {
    /// Current number of objects and memory of the guest's device.
    pub fn size(&self) -> Size {
        let status = self.vm.hca.status();
        Size {
            pds: status.pds,
            cqs: status.cqs,
            mrs: status.mrs,
            qps: status.qps,
            memory: status.memory.used,
        }
    }

    /// Checks that destroyed objects have returned all numbers, frames and event buffers.
    pub fn check_room(&self, before: &Size) {
        self.destroy_counter_sets();
        assert_eq!(self.size(), *before, "what is not given back");
        assert!(self.vm.sink.is_empty(), "an event of nobody");
        let buffers = self.vm.sink.buffers.load(Ordering::SeqCst);
        assert_eq!(buffers, self.buffers, "buffers for events");
        assert!(self.port.has_all_frames(), "frames are lost");
        assert!(self.port.is_in_no_group(), "a group without members");
        self.check_tables();
        assert_eq!(self.size().memory, before.memory, "what is not given back");
    }

    /// Checks that the tables of the device have room up to their limits.
    fn check_tables(&self) {
        let (vm, limits, size) = (&self.vm, limits(), self.size());
        let room = |max: u32, present: usize| 0..max - present as u32;
        for pdn in room(limits.max_pd, size.pds)
            .map(|_| vm.call(CmdCreatePd::ZERO).expect("room for a PD").pdn)
            .collect::<Vec<_>>()
        {
            self.give_back(CmdDestroyPd { pdn });
        }
        let at = vm.alloc(1);
        let mr = CmdRegUserMr {
            pdn: self.pd(),
            access_flags: FULL,
            start: at,
            length: 1,
            virt_addr: at,
            pages: vm.page_list(&[at]),
            npages: 1,
        };
        for mrn in room(limits.max_mr, size.mrs)
            .map(|_| vm.call(mr).expect("room for an MR").mrn)
            .collect::<Vec<_>>()
        {
            self.give_back(CmdDeregMr { mrn });
        }
        let mw = CmdAllocMw {
            pdn: self.pd(),
            mw_type: MwType::One.value(),
            reserved: [0; 3],
        };
        for mwn in room(limits.max_mw, 0)
            .map(|_| vm.call(mw).expect("room for a window").mwn)
            .collect::<Vec<_>>()
        {
            self.give_back(CmdDeallocMw { mwn });
        }
        let srqs: Vec<_> = room(limits.max_srq, 0)
            .map(|_| Srq::in_pd(vm, self.pd(), SLOTS))
            .collect();
        for srq in srqs {
            assert!(srq.destroy().is_ok());
        }
        let cqs: Vec<_> = room(limits.max_cq, size.cqs)
            .map(|_| Cq::new(vm, SLOTS))
            .collect();
        let options = Options {
            slots: SLOTS,
            ..Options::default()
        };
        // One QPN is reserved for the GSI QP.
        let qps: Vec<_> = room(limits.max_qp - 1, size.qps)
            .map(|_| Qp::in_pd(vm, self.pd(), &cqs[0], &cqs[0], options))
            .collect();
        qps.iter().for_each(|qp| destroy_qp(self, qp));
        cqs.iter().for_each(|cq| destroy_cq(self, cq));
    }
}
