// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Descriptor chains in virtqueue mode, in virtqueues that change while they are served. Bad chains
//! may break only their own QP or CQ.

use std::ops::Range;

use testkit::engine::ring::{F_INDIRECT, F_NEXT, F_WRITE};
use testkit::engine::{connect, mode, sge, Cq, Mode, Mr, Options, Qp, Ring, Setup, World, Wr};
use verbs::PathPolicy;
use virtio_rdma_abi::ib::{QpState, WrOpcode};
use virtio_rdma_abi::ring::{ArmKind, Doorbell};
use virtio_rdma_ring::RingMemory;

use crate::input::Input;
use crate::stage::{self, Neighbour};

const ACTS: usize = 60;
const SLOTS: u32 = 16;

/// Runs the target.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let path = input.of(&[PathPolicy::Direct, PathPolicy::Wire]);
    let mode = Mode::Virtqueues;
    let world = stage::world(2, Setup { path, mode });
    let vm = &world.vms[0];
    // A second connection of the same VM, whose driver follows the rules.
    let mut neighbour = Neighbour::new(&world, [0, 1]);
    let before = stage::memory(vm);
    {
        let mut bench = Bench::new(&world, neighbour.memory());
        for _ in 0..ACTS {
            if !input.has_more() {
                break;
            }
            bench.act(&mut input);
        }
        stage::run_until_idle(&world.runtime);
        neighbour.works();
        bench.end();
    }
    neighbour.works();
    stage::is_sound(&world.runtime, &world.vms);
    assert_eq!(stage::memory(vm), before, "not given back");
}

struct Bench<'w> {
    world: &'w World,
    cq: Cq<'w>,
    qp: Qp<'w>,
    mr: Mr,
    published: [u16; 3],
    /// Memory of the VM's honest connection.
    honest: Range<u64>,
}

impl<'w> Bench<'w> {
    fn new(world: &'w World, honest: Range<u64>) -> Self {
        let vm = &world.vms[0];
        let cq = Cq::new(vm, SLOTS);
        let options = Options {
            slots: SLOTS,
            timeout: 8,
            retry_cnt: 1,
            rnr_retry: 1,
            ..Options::default()
        };
        let qp = Qp::new(vm, &cq, &cq, options);
        connect(&qp, &qp);
        // The driver starts with all buffers of the CQ made available.
        let published = SLOTS as u16;
        Self {
            world,
            mr: vm.mr(8192),
            cq,
            qp,
            published: [0, 0, published],
            honest,
        }
    }

    fn rings(&self) -> [&Ring; 3] {
        [&self.qp.sq, &self.qp.rq, &self.cq.ring]
    }

    fn act(&mut self, input: &mut Input<'_>) {
        match input.below(12) {
            0..=2 => self.post(input),
            3..=5 => {
                let ring = self.rings()[input.below(3)];
                // Indices of the descriptor table, and of the indirect tables that follow it.
                let index = u64::from(input.any::<u8>()) % (3 * u64::from(SLOTS));
                let (address, len, flags, next) = self.descriptor(input, ring);
                ring.descriptor(index, (address, len), flags, next);
            }
            6 => {
                let ring = self.rings()[input.below(3)];
                let at = input.any::<u16>();
                let head = match input.below(4) {
                    0 => input.any::<u16>(),
                    _ => input.below(SLOTS as usize) as u16,
                };
                ring.set_available_entry(at, head);
            }
            7 => {
                let which = input.below(3);
                let index = input.edge32(self.published[which].into()) as u16;
                self.publish(which, index);
            }
            8 => {
                stage::step(&self.world.runtime, input.below(2));
            }
            9 => {
                stage::work(&self.world.runtime);
                stage::pass(&self.world.runtime);
            }
            10 => self.cq.arm(input.of(&[ArmKind::Next, ArmKind::Solicited])),
            _ => self.reset(input),
        }
    }

    fn descriptor(&self, input: &mut Input<'_>, ring: &Ring) -> (u64, u32, u16, u16) {
        let split = ring.split();
        let near = input.of(&[
            split.descriptors,
            split.descriptors + 16 * u64::from(SLOTS),
            split.available,
            split.used,
            self.mr.iova,
        ]);
        let at = near + 16 * u64::from(input.any::<u8>() & 15);
        let usual = input.of(&[16, 32, 64, 75, 76, 38, 37, 1, 0]);
        let flags = match input.below(4) {
            0 => input.any::<u16>(),
            _ => input.of(&[0, F_NEXT, F_WRITE, F_INDIRECT, F_NEXT | F_WRITE]),
        };
        let next = u16::from(input.any::<u8>()) % (SLOTS as u16 + 2);
        let (address, len) = (input.edge(at), input.edge32(usual));
        // A buffer in memory of the honest connection is moved to other memory: the device does not
        // protect a VM from its own driver.
        let is_outside = address.saturating_add(len.into()) <= self.honest.start;
        match is_outside || address >= self.honest.end {
            true => (address, len, flags, next),
            false => (at, len, flags, next),
        }
    }

    fn post(&mut self, input: &mut Input<'_>) {
        let which = input.of(&[0, 0, 1]);
        let len = u32::from(input.any::<u16>() % 3000);
        let position = self.published[which];
        let bytes = if which == 0 {
            let opcode = input.of(&[WrOpcode::Send, WrOpcode::RdmaWrite, WrOpcode::RdmaRead]);
            let wr = Wr::new(position.into(), opcode)
                .local(&self.mr, 0, len / 2)
                .local(&self.mr, 0, len / 2);
            match input.once_in(4) {
                true => Wr::new(position.into(), opcode).inline(&[7; 100]),
                false => wr.remote(&self.mr, 4096),
            }
            .bytes()
        } else {
            let mut bytes = 1u32.to_le_bytes().to_vec();
            bytes.extend(u64::from(position).to_le_bytes());
            let piece = sge(&self.mr, 0, len);
            bytes.extend(virtio_rdma_abi::wqe::Sge::to_bytes(&piece));
            bytes
        };
        let ring = self.rings()[which];
        ring.write(ring.layout.slot(position.into()), &bytes);
        self.publish(which, position.wrapping_add(1));
    }

    fn publish(&mut self, which: usize, index: u16) {
        self.published[which] = index;
        let ring = self.rings()[which];
        ring.set_available_index(index);
        match which {
            0 => self.qp.ring_doorbell(Doorbell::Sq),
            1 => self.qp.ring_doorbell(Doorbell::Rq),
            _ => self.cq.ring_doorbell(),
        }
    }

    /// Resets or notifies a virtqueue, which a correct driver in virtqueue mode must not do at this
    /// time.
    fn reset(&mut self, input: &mut Input<'_>) {
        let vm = self.qp.vm;
        let numbers = mode::numbers(vm);
        let queue = match input.below(3) {
            0 => numbers.sq(self.qp.qpn),
            1 => numbers.rq(self.qp.qpn),
            _ => numbers.cq(self.cq.cqn),
        };
        match input.below(4) {
            0 => vm.hca.virtqueue_reset(queue.expect("a virtqueue")),
            1 => vm.hca.notified(input.any()),
            _ => {}
        }
    }

    /// Destroys the QP and the CQ, whatever the queues contain.
    fn end(self) {
        let _ = self.qp.modify(
            QpState::Err,
            virtio_rdma_abi::ib::QpAttrMask::STATE,
            virtio_rdma_abi::wire::Wire::ZERO,
        );
        stage::run_until_idle(&self.world.runtime);
        self.qp.destroy().expect("a QP that can go");
        self.cq.destroy().expect("a CQ that can go");
        let vm = self.qp.vm;
        let mrn = self.mr.mrn;
        vm.call(virtio_rdma_abi::ctrl::CmdDeregMr { mrn })
            .expect("an MR that can go");
    }
}
