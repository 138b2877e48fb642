// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! SRQs from the view of a driver.

use std::cell::RefCell;
use std::rc::Rc;

use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::number::{Pdn, Srqn};
use virtio_rdma_abi::ring::{slot_shift_for, RingAddr, RingKind};
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::{rq_wqe_size, RqHeader, Sge};
use virtio_rdma_ring::{RingMemory, SharedQueue};

use super::qp::PAGE;
use super::{Ring, Vm};

/// Maximum number of SGEs of a work request.
const MAX_SGE: u32 = 2;

pub struct Srq<'vm> {
    pub vm: &'vm Vm,
    pub srqn: Srqn,
    pub cookie: u64,
    ring: RefCell<Rc<Ring>>,
    queue: RefCell<SharedQueue<Box<[u16]>>>,
}

/// The command that creates an SRQ with the queue `ring`.
pub fn request(vm: &Vm, pdn: Pdn, ring: &Ring) -> CmdCreateSrq {
    CmdCreateSrq {
        pdn,
        max_wr: ring.layout.slots(),
        max_sge: MAX_SGE,
        flags: CreateFlags::USER,
        ring: ring.addr,
        doorbell_page: PAGE,
        cookie: vm.cookie(),
    }
}

pub fn ring(vm: &Vm, slots: u32) -> Ring {
    let shift = slot_shift_for(rq_wqe_size(MAX_SGE as usize)).unwrap();
    Ring::new(vm, RingKind::Shared, slots, shift)
}

fn list(slots: u32) -> Box<[u16]> {
    vec![0; slots as usize].into()
}

impl<'vm> Srq<'vm> {
    pub fn new(vm: &'vm Vm, slots: u32) -> Self {
        Self::in_pd(vm, vm.pdn, slots)
    }

    pub fn in_pd(vm: &'vm Vm, pdn: Pdn, slots: u32) -> Self {
        let ring = ring(vm, slots);
        let request = request(vm, pdn, &ring);
        Self {
            vm,
            srqn: vm.call(request).unwrap().srqn,
            cookie: request.cookie,
            queue: RefCell::new(SharedQueue::new(ring.layout, list(slots))),
            ring: RefCell::new(Rc::new(ring)),
        }
    }

    pub fn ring(&self) -> Rc<Ring> {
        self.ring.borrow().clone()
    }

    /// Posts a work request with `wr_id` `id`, and returns its slot.
    pub fn post(&self, id: u64, sges: &[Sge]) -> u16 {
        let header = RqHeader {
            num_sge: sges.len() as u32,
            wr_id: id,
        };
        let mut bytes = header.to_bytes().to_vec();
        for sge in sges {
            bytes.extend(sge.to_bytes());
        }
        self.post_bytes(&bytes)
    }

    pub fn post_bytes(&self, bytes: &[u8]) -> u16 {
        let (mut queue, ring) = (self.queue.borrow_mut(), self.ring());
        let slot = queue.reserve().expect("room in the SRQ");
        ring.write(ring.layout.slot(slot.into()), bytes);
        queue.offer(&*ring, slot);
        // SRQs need no doorbell.
        let _ = queue.publish(&*ring);
        slot
    }

    /// Frees `slot` after the completion of its work request was polled.
    pub fn complete(&self, slot: u16) {
        self.queue.borrow_mut().complete(slot).unwrap();
    }

    pub fn modify(&self, mask: SrqAttrMask, limit: u32) -> Result<(), u8> {
        let request = CmdModifySrq {
            srqn: self.srqn,
            attr_mask: mask,
            max_wr: 0,
            limit,
            ring: RingAddr::ZERO,
        };
        self.vm.call(request).map(|_| ())
    }

    /// Moves the SRQ to a ring of `slots` slots.
    pub fn resize(&self, slots: u32) -> Result<(), u8> {
        let (target, present) = (ring(self.vm, slots), self.ring());
        if slots >= present.layout.slots() {
            let queue = self.queue.borrow();
            queue.copy_to(&*present, &target.layout, &target, &mut [0; 64]);
        }
        self.vm.call(CmdModifySrq {
            srqn: self.srqn,
            attr_mask: SrqAttrMask::MAX_WR,
            max_wr: slots,
            limit: 0,
            ring: target.addr,
        })?;
        self.queue.borrow_mut().moved(target.layout, list(slots));
        *self.ring.borrow_mut() = Rc::new(target);
        Ok(())
    }

    pub fn query(&self) -> RspQuerySrq {
        self.vm.call(CmdQuerySrq { srqn: self.srqn }).unwrap()
    }

    pub fn destroy(&self) -> Result<Empty, u8> {
        self.vm.call(CmdDestroySrq { srqn: self.srqn })
    }
}
