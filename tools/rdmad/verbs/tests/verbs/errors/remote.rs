// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Requests that the responder refuses.

use testkit::engine::*;
use virtio_rdma_abi::ctrl::CmdCreatePd;
use virtio_rdma_abi::ib::{AccessFlags, AsyncEvent, QpType, WcStatus, WrOpcode};
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::Sge;

#[test]
fn remote_access() {
    type Change = fn(&Pair<'_>, &mut Wr);
    let changes: [(&str, Change); 5] = [
        // abi: R-635
        ("unknown key", |_, wr| wr.remote.rkey ^= 0x100_0000),
        ("stale variant", |_, wr| wr.remote.rkey ^= 1),
        // abi: R-634
        ("before the MR", |_, wr| wr.remote.remote_addr -= 1),
        ("past the MR", |p, wr| {
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
            each_setup(|p| {
                let mut wr = Wr::new(1, opcode).local(&p.ma, 0, 100).remote(&p.mb, 0);
                change(p, &mut wr);
                p.qb.post_recv(5, &[]);
                // abi
                p.fails(&wr, WcStatus::RemAccessErr);
                // abi: R-589
                p.responder_failed(Some(AsyncEvent::QpAccessErr));
                // abi: R-683
                p.cq_b.expect(5, WcStatus::WrFlushErr);
            });
        }
    }
}

#[test]
fn remote_access_flags() {
    let cases = [
        // abi: R-289
        (WrOpcode::RdmaWrite, AccessFlags::REMOTE_READ),
        // abi: R-290
        (
            WrOpcode::RdmaRead,
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE,
        ),
    ];
    for (opcode, access) in cases {
        each_setup(|p| {
            let vm = p.qb.vm;
            let mr = vm.register(vm.pdn, vm.alloc(64), 64, access);
            // abi
            p.fails(
                &Wr::new(1, opcode).local(&p.ma, 0, 64).remote(&mr, 0),
                WcStatus::RemAccessErr,
            );
            // abi: R-589
            p.responder_failed(Some(AsyncEvent::QpAccessErr));
        });
        each_setup(|p| {
            let vm = p.qb.vm;
            let other = vm.call(CmdCreatePd::ZERO).unwrap().pdn;
            let mr = vm.register(other, vm.alloc(64), 64, FULL);
            // abi: R-280
            p.fails(
                &Wr::new(1, opcode).local(&p.ma, 0, 64).remote(&mr, 0),
                WcStatus::RemAccessErr,
            );
        });
        // The QP itself does not admit the operation.
        in_all_setups(|setup| {
            let world = World::new(2, setup);
            let theirs = Options {
                access: access.without(AccessFlags::LOCAL_WRITE),
                ..Options::default()
            };
            let p = Pair::with(&world, Options::default(), theirs);
            // abi
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
    each_setup(|p| {
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
        each_setup(|p| {
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
    each_setup(|p| {
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
    each_setup(|p| {
        let vm = p.qb.vm;
        let mr = vm.register(vm.pdn, vm.alloc(64), 64, AccessFlags::REMOTE_READ);
        p.qb.post_recv(3, &[sge(&mr, 0, 64)]);
        p.fails(&p.send(1, 64), WcStatus::RemOpErr);
        p.cq_b.expect(3, WcStatus::LocProtErr);
    });
}

/// Pages of the memory around the MR that a receive reaches beyond.
const AROUND: usize = 4 * 4096;

/// An MR of two pages in the middle of [`AROUND`] bytes, and the DMA address of these. Its end is
/// not the end of its last page in DMA space if its pages are `reversed`.
fn mr_in_the_middle(vm: &Vm, reversed: bool) -> (Mr, u64) {
    let start = vm.alloc(AROUND as u64);
    vm.write(start, &[0x77; AROUND]);
    let (at, len) = (start + 4096, 2 * 4096);
    let mr = match reversed {
        true => vm.register_reversed(vm.pdn, at, len, AccessFlags::LOCAL_WRITE),
        false => vm.register(vm.pdn, at, len, AccessFlags::LOCAL_WRITE),
    };
    (mr, start)
}

/// The pages of an MR made by [`mr_in_the_middle`], in its order, and the pages around it.
fn contents(vm: &Vm, start: u64, reversed: bool) -> (Vec<u8>, Vec<u8>) {
    let bytes = vm.read(start, AROUND);
    let page = |number: usize| &bytes[number * 4096..][..4096];
    let inside = match reversed {
        true => [page(2), page(1)],
        false => [page(1), page(2)],
    };
    (inside.concat(), [page(0), page(3)].concat())
}

/// Posts a receive at B whose second SGE reaches from `at` to far beyond its MR, and runs `check`.
fn with_long_receive(
    qp_type: QpType,
    at: u64,
    check: impl Fn(&Pair<'_>, &dyn Fn() -> (Vec<u8>, Vec<u8>)),
) {
    for reversed in [false, true] {
        each_setup_with(Options::of(qp_type), |p| {
            let (mr, start) = mr_in_the_middle(p.b, reversed);
            let pattern: Vec<u8> = (0..1 << 16).map(|byte| byte as u8 % 0x70).collect();
            p.a.write(p.ma.iova, &pattern);
            let long = Sge {
                addr: mr.addr + at,
                length: 1 << 16,
                lkey: mr.key,
            };
            let first = match qp_type {
                // The GRH of a datagram.
                QpType::Ud => sge(&p.mb, 0, 40),
                _ => sge(&mr, 0, 0),
            };
            p.qb.post_recv(3, &[first, long]);
            check(p, &|| contents(p.b, start, reversed));
        });
    }
}

/// The device checks the memory that it writes: an SGE may reach beyond its MR as long as the
/// message ends inside it.
// abi: R-675
#[test]
fn receive_that_reaches_beyond_its_mr() {
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        for (at, len) in [(7936, 64), (7936, 256), (8191, 1), (4000, 1000), (0, 8192)] {
            if qp_type == QpType::Ud && len > 1024 {
                continue;
            }
            with_long_receive(qp_type, at, |p, contents| {
                p.qa.post(&p.send(1, len));
                p.cq_a.expect(1, WcStatus::Success);
                p.cq_b.expect(3, WcStatus::Success);
                p.responder_lives();
                let (at, len) = (at as usize, len as usize);
                let (inside, around) = contents();
                let sent: Vec<u8> = (0..len).map(|byte| byte as u8 % 0x70).collect();
                assert_eq!(inside[at..at + len], sent, "{qp_type:?}, {at}, {len}");
                assert!(inside[..at].iter().all(|byte| *byte == 0x77));
                assert!(inside[at + len..].iter().all(|byte| *byte == 0x77));
                assert!(around.iter().all(|byte| *byte == 0x77));
            });
        }
    }
}

/// A message that goes beyond the MR of its receive fails, and writes nothing past the MR.
// abi: R-676
#[test]
fn message_that_goes_beyond_the_mr_of_its_receive() {
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        for (at, len) in [
            (7936, 257),
            (8192, 1),
            (7936, 1000),
            (7936, 5000),
            (0, 8193),
        ] {
            if qp_type == QpType::Ud && len > 1024 {
                continue;
            }
            with_long_receive(qp_type, at, |p, contents| {
                let wr = p.send(1, len);
                match qp_type {
                    QpType::Rc => p.fails(&wr, WcStatus::RemOpErr),
                    _ => {
                        p.qa.post(&wr);
                        p.cq_a.expect(1, WcStatus::Success);
                    }
                }
                p.cq_b.expect(3, WcStatus::LocProtErr);
                p.responder_failed(None);
                let (inside, around) = contents();
                assert!(inside[..at as usize].iter().all(|byte| *byte == 0x77));
                assert!(
                    around.iter().all(|byte| *byte == 0x77),
                    "{qp_type:?}, {at}, {len}"
                );
            });
        }
    }
}

// abi
#[test]
fn malformed_receive() {
    each_setup(|p| {
        // More SGEs than the QP allows, though they fit into the slot.
        let too_many = [sge(&p.mb, 0, 1); 5];
        p.qb.post_recv(3, &too_many);
        p.fails(&p.send(1, 1), WcStatus::RemOpErr);
        p.cq_b.expect(3, WcStatus::LocQpOpErr);
        p.responder_failed(None);
    });
}
