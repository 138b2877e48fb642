// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Requests that the responder refuses.

use virtio_rdma_abi::ctrl::CmdCreatePd;
use virtio_rdma_abi::ib::{AccessFlags, AsyncEvent, WcStatus, WrOpcode};
use virtio_rdma_abi::wire::Wire;

use crate::harness::*;

// abi
#[test]
fn remote_access() {
    type Change = fn(&Pair<'_>, &mut Wr);
    let changes: [(&str, Change); 5] = [
        ("unknown key", |_, wr| wr.remote.rkey ^= 0x100_0000),
        ("stale variant", |_, wr| wr.remote.rkey ^= 1),
        ("before the MR", |_, wr| wr.remote.remote_addr -= 1),
        ("behind the MR", |p, wr| {
            wr.remote.remote_addr += p.mb.len - 99
        }),
        ("wrapping", |_, wr| wr.remote.remote_addr = u64::MAX - 10),
    ];
    for (name, change) in changes {
        for opcode in [
            WrOpcode::RdmaWrite,
            WrOpcode::RdmaRead,
            WrOpcode::RdmaWriteWithImm,
        ] {
            eprintln!("{name}, {opcode:?}");
            each(|p| {
                let mut wr = Wr::new(1, opcode).local(&p.ma, 0, 100).remote(&p.mb, 0);
                change(p, &mut wr);
                p.qb.post_recv(5, &[]);
                p.fails(&wr, WcStatus::RemAccessErr);
                p.responder_failed(Some(AsyncEvent::QpAccessErr));
                p.cq_b.expect(5, WcStatus::WrFlushErr);
            });
        }
    }
}

// abi
#[test]
fn remote_rights() {
    let cases = [
        (WrOpcode::RdmaWrite, AccessFlags::REMOTE_READ),
        (
            WrOpcode::RdmaRead,
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE,
        ),
    ];
    for (opcode, rights) in cases {
        each(|p| {
            let vm = p.qb.vm;
            let mr = vm.register(vm.pdn, vm.alloc(64), 64, rights);
            p.fails(
                &Wr::new(1, opcode).local(&p.ma, 0, 64).remote(&mr, 0),
                WcStatus::RemAccessErr,
            );
            p.responder_failed(Some(AsyncEvent::QpAccessErr));
        });
        each(|p| {
            let vm = p.qb.vm;
            let other = vm.call(CmdCreatePd::ZERO).unwrap().pdn;
            let mr = vm.register(other, vm.alloc(64), 64, FULL);
            p.fails(
                &Wr::new(1, opcode).local(&p.ma, 0, 64).remote(&mr, 0),
                WcStatus::RemAccessErr,
            );
        });
        // The QP itself does not admit the operation.
        on_both_paths(|path| {
            let world = World::new(2, path);
            let theirs = Options {
                access: rights.without(AccessFlags::LOCAL_WRITE),
                ..Options::default()
            };
            let p = Pair::with(&world, Options::default(), theirs);
            p.fails(
                &Wr::new(1, opcode).local(&p.ma, 0, 64).remote(&p.mb, 0),
                WcStatus::RemInvReqErr,
            );
            p.responder_failed(Some(AsyncEvent::QpReqErr));
        });
    }
}

// abi: R-659
#[test]
fn an_empty_range_needs_no_key() {
    each(|p| {
        for opcode in [WrOpcode::RdmaWrite, WrOpcode::RdmaRead] {
            p.qa.post(&Wr::new(1, opcode));
            p.cq_a.expect(1, WcStatus::Success);
        }
        p.responder_lives();
    });
}

// abi
#[test]
fn receive_too_small() {
    for len in [65, 1025, 5000] {
        each(|p| {
            p.qb.post_recv(3, &[sge(&p.mb, 0, 32), sge(&p.mb, 64, 32)]);
            p.qb.post_recv(4, &[]);
            p.fails(&p.send(1, len), WcStatus::RemInvReqErr);
            p.cq_b.expect(3, WcStatus::LocLenErr);
            p.cq_b.expect(4, WcStatus::WrFlushErr);
            p.responder_failed(None);
        });
    }
}

// abi
#[test]
fn receive_with_a_bad_key() {
    each(|p| {
        let mut bad = sge(&p.mb, 0, 4096);
        bad.lkey ^= 1;
        p.qb.post_recv(3, &[bad]);
        p.fails(&p.send(1, 100), WcStatus::RemOpErr);
        p.cq_b.expect(3, WcStatus::LocProtErr);
        p.responder_failed(None);
    });
}

// abi
#[test]
fn receive_into_memory_that_may_not_be_written() {
    each(|p| {
        let vm = p.qb.vm;
        let mr = vm.register(vm.pdn, vm.alloc(64), 64, AccessFlags::REMOTE_READ);
        p.qb.post_recv(3, &[sge(&mr, 0, 64)]);
        p.fails(&p.send(1, 64), WcStatus::RemOpErr);
        p.cq_b.expect(3, WcStatus::LocProtErr);
    });
}

// abi
#[test]
fn malformed_receive() {
    each(|p| {
        // More SGEs than the QP allows, though they fit into the slot.
        let too_many = [sge(&p.mb, 0, 1); 5];
        p.qb.post_recv(3, &too_many);
        p.fails(&p.send(1, 1), WcStatus::RemOpErr);
        p.cq_b.expect(3, WcStatus::LocQpOpErr);
        p.responder_failed(None);
    });
}
