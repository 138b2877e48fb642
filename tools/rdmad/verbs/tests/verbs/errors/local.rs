// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Work requests that the requester refuses.

use testkit::engine::*;
use virtio_rdma_abi::cqe::OPCODE_RECV;
use virtio_rdma_abi::ctrl::{CmdCreatePd, CmdDeregMr};
use virtio_rdma_abi::ib::{AccessFlags, QpState, WcStatus, WrOpcode};
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::Sge;

#[test]
fn local_protection() {
    type Change = fn(&Pair<'_>, &mut Wr);
    let changes: [(&str, Change); 7] = [
        // abi: R-611
        ("unknown key", |_, wr| wr.sges[0].lkey ^= 0x100_0000),
        ("key zero", |_, wr| wr.sges[0].lkey = 0),
        ("stale variant", |_, wr| wr.sges[0].lkey ^= 1),
        // abi: R-609
        ("before the MR", |_, wr| wr.sges[0].addr -= 1),
        // abi: R-610
        ("past the MR", |p, wr| wr.sges[0].addr += p.ma.len - 99),
        ("wrapping", |_, wr| wr.sges[0].addr = u64::MAX),
        ("second SGE", |_, wr| {
            wr.sges.push(Sge {
                lkey: 1,
                ..wr.sges[0]
            })
        }),
    ];
    for (name, change) in changes {
        eprintln!("{name}");
        each_setup(|p| {
            let mut wr = p.send(1, 100);
            change(p, &mut wr);
            p.qb.post_recv(1, &[]);
            // abi
            p.fails(&wr, WcStatus::LocProtErr);
            // abi: R-648
            p.responder_lives();
        });
    }
}

// abi
#[test]
fn local_key_of_another_pd() {
    each_setup(|p| {
        let other = p.qa.vm.call(CmdCreatePd::ZERO).unwrap().pdn;
        let mr = p.qa.vm.register(other, p.qa.vm.alloc(64), 64, FULL);
        p.fails(
            &Wr::new(1, WrOpcode::Send).local(&mr, 0, 64),
            WcStatus::LocProtErr,
        );
    });
}

// abi
#[test]
fn local_key_of_a_deregistered_mr() {
    each_setup(|p| {
        let mr = p.qa.vm.mr(64);
        p.qa.vm.call(CmdDeregMr { mrn: mr.mrn }).unwrap();
        p.fails(
            &Wr::new(1, WrOpcode::Send).local(&mr, 0, 64),
            WcStatus::LocProtErr,
        );
    });
}

// abi
#[test]
fn read_into_memory_that_may_not_be_written() {
    each_setup(|p| {
        let vm = p.qa.vm;
        let mr = vm.register(vm.pdn, vm.alloc(64), 64, AccessFlags::NONE);
        p.fails(
            &Wr::new(1, WrOpcode::RdmaRead)
                .local(&mr, 0, 64)
                .remote(&p.mb, 0),
            WcStatus::LocProtErr,
        );
    });
}

#[test]
fn malformed_requests() {
    type Change = fn(&Pair<'_>, &mut Vec<u8>);
    let changes: [(&str, Change, WcStatus); 6] = [
        // abi
        ("opcode", |_, wqe| wqe[8] = 100, WcStatus::LocQpOpErr),
        (
            "opcode of a receive",
            |_, wqe| wqe[8] = OPCODE_RECV,
            WcStatus::LocQpOpErr,
        ),
        // abi: R-355
        (
            "opcode of the kernel",
            |_, wqe| wqe[8] = 0x20,
            WcStatus::LocQpOpErr,
        ),
        // abi
        ("SGEs", |_, wqe| wqe[0] = 5, WcStatus::LocQpOpErr),
        ("SGEs", |_, wqe| wqe[..4].fill(0xff), WcStatus::LocQpOpErr),
        // abi
        (
            "inline length",
            |_, wqe| {
                wqe[4] |= 8;
                wqe[83..87].copy_from_slice(&201u32.to_le_bytes());
            },
            WcStatus::LocLenErr,
        ),
    ];
    for (name, change, status) in changes {
        eprintln!("{name}");
        each_setup(|p| {
            let mut wqe = p.send(7, 100).bytes();
            change(p, &mut wqe);
            p.qa.post_bytes(&wqe);
            // abi: R-714
            let cqe = p.cq_a.expect(7, status);
            assert!(cqe.opcode < OPCODE_RECV, "tells that it was sent");
            // abi: R-204
            assert_eq!(p.qa.state(), QpState::Err);
            p.responder_lives();
        });
    }
}

// abi: R-642
#[test]
fn a_qp_without_sges_or_inline_data() {
    in_all_setups(|setup| {
        let world = World::new(2, setup);
        let bare = Options {
            sge: 0,
            inline: 0,
            ..Options::default()
        };
        let p = Pair::with(&world, bare, bare);
        p.qb.post_recv(2, &[]);
        p.qa.post(&Wr::new(1, WrOpcode::Send));
        p.cq_a.expect(1, WcStatus::Success);
        p.cq_b.expect(2, WcStatus::Success);
        // Inline data with a length of 1, although the QP has no room for inline data.
        let mut wqe = Wr::new(3, WrOpcode::Send).inline(&[]).bytes();
        wqe[83] = 1;
        p.qa.post_bytes(&wqe);
        p.cq_a.expect(3, WcStatus::LocLenErr);
    });
}

// abi
#[test]
fn message_too_long_for_any_qp() {
    each_setup(|p| {
        let vm = p.qa.vm;
        let all = vm
            .call(virtio_rdma_abi::ctrl::CmdGetDmaMr {
                pdn: vm.pdn,
                access_flags: FULL,
            })
            .unwrap();
        let mut wr = Wr::new(1, WrOpcode::RdmaWrite).remote(&p.mb, 0);
        wr.sges = vec![
            Sge {
                addr: 0,
                length: u32::MAX,
                lkey: all.lkey,
            };
            3
        ];
        p.fails(&wr, WcStatus::LocLenErr);
    });
}

// abi
#[test]
fn reads_without_resources() {
    in_all_setups(|setup| {
        let world = World::new(2, setup);
        let none = Options {
            rd_atomic: 0,
            ..Options::default()
        };
        let p = Pair::with(&world, none, Options::default());
        let wr = Wr::new(1, WrOpcode::RdmaRead)
            .local(&p.ma, 0, 8)
            .remote(&p.mb, 0);
        p.fails(&wr, WcStatus::LocQpOpErr);
    });
}
