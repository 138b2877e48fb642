// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A connection whose WQEs are written only once: posting a work request again just advances the
//! producer's position.

use testkit::engine::{connect, Cq, Mr, Options, Qp, Vm, Wr, FULL};
use virtio_rdma_abi::ib::{Mtu, SigType, WrOpcode};
use virtio_rdma_abi::ring::{Doorbell, WORK_SLOTS};
use virtio_rdma_ring::{RingMemory, WorkQueue};

/// Number of message buffers of a guest. The buffers are contiguous.
pub const BUFFERS: u32 = 64;

/// A guest and its message buffers.
pub struct Guest<'vm> {
    pub vm: &'vm Vm,
    pub buffers: Mr,
}

impl<'vm> Guest<'vm> {
    /// A guest with buffers of `size` bytes.
    pub fn new(vm: &'vm Vm, size: u32) -> Self {
        let len = u64::from(size) * u64::from(BUFFERS);
        Self {
            buffers: vm.register(vm.pdn, vm.alloc(len), len, FULL),
            vm,
        }
    }

    /// DMA address of a buffer.
    pub fn address(&self, index: u32, size: u32) -> u64 {
        self.buffers.iova + offset(index, size)
    }
}

fn offset(index: u32, size: u32) -> u64 {
    u64::from(index % BUFFERS) * u64::from(size)
}

/// A QP that writes to its peer's guest.
pub struct Lane<'vm> {
    qp: Qp<'vm>,
    queue: WorkQueue,
    ended: u32,
}

impl<'vm> Lane<'vm> {
    /// Makes both QPs of a connection with `depth` outstanding work requests of `size` bytes. All
    /// work requests have the id `id`. The first one uses buffer `first`, the others use the
    /// buffers after it.
    pub fn new(
        (from, to): (&Guest<'vm>, &Guest<'vm>),
        (send, recv): (&Cq<'vm>, &Cq<'vm>),
        depth: u32,
        size: u32,
        (id, first): (u64, u32),
    ) -> Self {
        let options = Options {
            slots: depth,
            sge: 1,
            inline: 0,
            signal: SigType::All,
            mtu: Mtu::Mtu4096,
            // A timeout of about a second.
            timeout: 18,
            ..Options::default()
        };
        let qp = Qp::new(from.vm, send, send, options);
        let passive = Options {
            slots: *WORK_SLOTS.start(),
            ..options
        };
        connect(&qp, &Qp::new(to.vm, recv, recv, passive));
        for slot in 0..depth {
            let at = offset(first + slot, size);
            let wr = Wr::new(id, WrOpcode::RdmaWrite)
                .local(&from.buffers, at, size)
                .remote(&to.buffers, at);
            qp.sq.write(qp.sq.layout.slot(slot), &wr.bytes());
        }
        Self {
            queue: WorkQueue::new(qp.sq.layout),
            ended: 0,
            qp,
        }
    }

    /// Posts `count` work requests.
    pub fn post(&mut self, count: u32) {
        for _ in 0..count {
            self.queue.reserve().expect("room in the SQ");
        }
        if self.queue.publish(&self.qp.sq) {
            self.qp.ring_doorbell(Doorbell::Sq);
        }
    }

    /// Notes that `count` completions were polled.
    pub fn complete(&mut self, count: u32) {
        self.ended = self.ended.wrapping_add(count);
        self.queue.reclaim(self.ended).expect("it was posted");
    }
}
