// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A port whose guest memory is lost stops, and other ports continue.

use std::fs::File;

use testkit::engine::*;
use virtio_rdma_abi::ctrl::CmdCreatePd;
use virtio_rdma_abi::ib::{QpType, WcStatus, WrOpcode};
use virtio_rdma_abi::ring::Doorbell;
use virtio_rdma_abi::wire::Wire;

const EIO: u8 = 5;
/// DMA address of memory that the test can take away.
const AT: u64 = 1 << 40;
const PAGE: u64 = 4096;
const LEN: u64 = 0x4000;

#[test]
fn a_work_request_on_lost_memory_does_not_complete() {
    on_both_paths(|path| {
        let world = World::new(3, path);
        let [first, second, third] = &world.vms[..] else {
            panic!("three VMs");
        };
        let pair = Pair::between([first, second], Options::default(), Options::default());
        let other = Pair::between([second, third], Options::default(), Options::default());
        let file = File::from(dma::testing::shrinkable_memory(LEN).unwrap());
        let copy = file.try_clone().unwrap();
        first.space.map(AT, copy.into(), 0, LEN, true).unwrap();
        let mr = first.register(first.pdn, AT, LEN, FULL);
        let write = |id| {
            let wr = Wr::new(id, WrOpcode::RdmaWrite);
            pair.qa.post(&wr.local(&mr, 0, 64).remote(&pair.mb, 0));
        };
        write(1);
        pair.cq_a.expect(1, WcStatus::Success);
        file.set_len(0).unwrap();
        write(2);
        wait("the loss", || first.space.lost());
        write(3);
        for id in 0..10 {
            other.write_and_wait(id);
        }
        assert_eq!(pair.cq_a.poll(), None);
        assert_eq!(first.call(CmdCreatePd::ZERO).err(), Some(EIO));
        assert!(second.sink.failure().is_none() && third.sink.failure().is_none());
    });
}

/// A VM's memory that the test can take away, registered as a whole.
struct Fragile<'vm> {
    vm: &'vm Vm,
    file: File,
    mr: Mr,
}

impl<'vm> Fragile<'vm> {
    fn new(vm: &'vm Vm, pages: u64) -> Self {
        let len = pages * PAGE;
        let file = File::from(dma::testing::shrinkable_memory(len).unwrap());
        let copy = file.try_clone().unwrap();
        vm.space.map(AT, copy.into(), 0, len, true).unwrap();
        let mr = vm.register(vm.pdn, AT, len, FULL);
        Self { vm, file, mr }
    }
}

/// The first lost page ends the turn, so the others are not accessed, whoever has lost them.
#[test]
fn a_turn_ends_at_a_loss() {
    /// Number of work requests. Each has a page of its own.
    const COUNT: u64 = 32;
    let kinds = [
        (QpType::Rc, WrOpcode::Send),
        (QpType::Rc, WrOpcode::RdmaWrite),
        (QpType::Rc, WrOpcode::RdmaRead),
        (QpType::Uc, WrOpcode::Send),
        (QpType::Ud, WrOpcode::Send),
    ];
    on_both_paths(|path| {
        for (qp_type, opcode) in kinds {
            for loser in 0..2 {
                let world = World::stepped(1, path);
                let memory = [0, 1].map(|n| Fragile::new(&world.vms[n], COUNT));
                let cqs = [0, 1].map(|n| Cq::new(&world.vms[n], 64));
                let [qa, qb] = [0, 1].map(|n| {
                    let (vm, cq) = (&world.vms[n], &cqs[n]);
                    Qp::new(vm, cq, cq, Options::of(qp_type))
                });
                if qp_type == QpType::Ud {
                    connect(&qa, &qa);
                    connect(&qb, &qb);
                } else {
                    connect(&qa, &qb);
                }
                world.rest(&[0]);
                let [from, to] = &memory;
                let wqes: Vec<_> = (0..COUNT)
                    .map(|id| {
                        if opcode == WrOpcode::Send {
                            qb.put_recv(id, &[sge(&to.mr, id * PAGE, 64)]);
                        }
                        let wr = Wr::new(id, opcode).local(&from.mr, id * PAGE, 8);
                        let wr = match opcode {
                            WrOpcode::Send => wr,
                            _ => wr.remote(&to.mr, id * PAGE),
                        };
                        match qp_type {
                            QpType::Ud => wr.to(&qb).bytes(),
                            _ => wr.bytes(),
                        }
                    })
                    .collect();
                qa.post_all(&wqes);
                let lost = &memory[loser];
                lost.file.set_len(0).unwrap();
                qa.ring_doorbell(Doorbell::Sq);
                world.rest(&[0]);
                assert!(lost.vm.space.has_lost());
                let pages = lost.vm.space.spare_pages();
                assert!(
                    pages <= 2,
                    "{pages} pages of VM {loser}: {qp_type:?}, {opcode:?}, {path:?}"
                );
            }
        }
    });
}
