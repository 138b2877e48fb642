// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Every error ends in the completion that the IBTA names, on both paths, and harms the QPs concerned only.

use virtio_rdma_abi::ctrl::{CmdCreatePd, CmdDeregMr};
use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::ib::{
    AccessFlags, AsyncEvent, QpAttrMask, QpState, SendFlags, SigType, WcStatus, WrOpcode,
};
use virtio_rdma_abi::qp::QpAttr;
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::Sge;

use crate::harness::*;

/// A connection between two VMs, and an MR on each side.
struct Pair<'vm> {
    cq_a: Cq<'vm>,
    cq_b: Cq<'vm>,
    qa: Qp<'vm>,
    qb: Qp<'vm>,
    ma: Mr,
    mb: Mr,
}

impl<'vm> Pair<'vm> {
    fn new(world: &'vm World) -> Self {
        Self::with(world, Options::default(), Options::default())
    }

    fn with(world: &'vm World, ours: Options, theirs: Options) -> Self {
        let [a, b] = [&world.vms[0], &world.vms[1]];
        let (cq_a, cq_b) = (Cq::new(a, 64), Cq::new(b, 64));
        let qa = Qp::new(a, &cq_a, &cq_a, ours);
        let qb = Qp::new(b, &cq_b, &cq_b, theirs);
        connect(&qa, &qb);
        Self {
            ma: a.mr(1 << 16),
            mb: b.mr(1 << 16),
            cq_a,
            cq_b,
            qa,
            qb,
        }
    }

    fn send(&self, id: u64, len: u32) -> Wr {
        Wr::new(id, WrOpcode::Send).local(&self.ma, 0, len)
    }

    /// Posts `wr` at A and two more, of which the device must flush the rest, and expects `status`.
    fn fails(&self, wr: &Wr, status: WcStatus) {
        self.qa.post(wr);
        self.qa.post(&self.send(98, 1));
        self.qa.post_recv(99, &[]);
        self.cq_a.expect(wr.id, status);
        self.cq_a.expect(98, WcStatus::WrFlushErr);
        self.cq_a.expect(99, WcStatus::WrFlushErr);
        assert_eq!(self.qa.state(), QpState::Err);
    }

    /// B is in ERR with this event, and flushes.
    fn responder_failed(&self, event: Option<AsyncEvent>) {
        self.qb.wait_for(QpState::Err);
        if let Some(event) = event {
            self.qb
                .vm
                .sink
                .expect(EventKind::Async(event), self.qb.cookie);
        }
        assert!(self.qb.vm.sink.is_empty());
    }

    fn responder_lives(&self) {
        assert_eq!(self.qb.state(), QpState::Rts);
        assert!(self.qb.vm.sink.is_empty());
    }
}

fn each(test: impl Fn(&Pair<'_>)) {
    on_both_paths(|path| test(&Pair::new(&World::new(2, path))));
}

#[test]
fn local_protection() {
    type Change = fn(&Pair<'_>, &mut Wr);
    let changes: [(&str, Change); 7] = [
        ("unknown key", |_, wr| wr.sges[0].lkey ^= 0x100_0000),
        ("key zero", |_, wr| wr.sges[0].lkey = 0),
        ("stale variant", |_, wr| wr.sges[0].lkey ^= 1),
        ("before the MR", |_, wr| wr.sges[0].addr -= 1),
        ("behind the MR", |p, wr| wr.sges[0].addr += p.ma.len - 99),
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
        each(|p| {
            let mut wr = p.send(1, 100);
            change(p, &mut wr);
            p.qb.post_recv(1, &[]);
            p.fails(&wr, WcStatus::LocProtErr);
            p.responder_lives();
        });
    }
}

#[test]
fn local_key_of_another_pd() {
    each(|p| {
        let other = p.qa.vm.call(CmdCreatePd::ZERO).unwrap().pdn;
        let mr = p.qa.vm.register(other, p.qa.vm.alloc(64), 64, FULL);
        p.fails(
            &Wr::new(1, WrOpcode::Send).local(&mr, 0, 64),
            WcStatus::LocProtErr,
        );
    });
}

#[test]
fn local_key_of_a_deregistered_mr() {
    each(|p| {
        let mr = p.qa.vm.mr(64);
        p.qa.vm.call(CmdDeregMr { mrn: mr.mrn }).unwrap();
        p.fails(
            &Wr::new(1, WrOpcode::Send).local(&mr, 0, 64),
            WcStatus::LocProtErr,
        );
    });
}

#[test]
fn read_into_memory_that_may_not_be_written() {
    each(|p| {
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
        ("opcode", |_, wqe| wqe[8] = 100, WcStatus::LocQpOpErr),
        (
            "opcode of the kernel",
            |_, wqe| wqe[8] = 0x20,
            WcStatus::LocQpOpErr,
        ),
        ("atomic", |_, wqe| wqe[8] = 5, WcStatus::LocQpOpErr),
        ("SGEs", |_, wqe| wqe[0] = 5, WcStatus::LocQpOpErr),
        ("SGEs", |_, wqe| wqe[..4].fill(0xff), WcStatus::LocQpOpErr),
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
        each(|p| {
            let mut wqe = p.send(7, 100).bytes();
            change(p, &mut wqe);
            p.qa.post_bytes(&wqe);
            p.cq_a.expect(7, status);
            assert_eq!(p.qa.state(), QpState::Err);
            p.responder_lives();
        });
    }
}

#[test]
fn a_qp_without_sges_or_inline_data() {
    on_both_paths(|path| {
        let world = World::new(2, path);
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
        // A WQE with a length where it has none.
        let mut wqe = Wr::new(3, WrOpcode::Send).inline(&[]).bytes();
        wqe[83] = 1;
        p.qa.post_bytes(&wqe);
        p.cq_a.expect(3, WcStatus::LocLenErr);
    });
}

#[test]
fn message_too_long_for_any_qp() {
    each(|p| {
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

#[test]
fn reads_without_resources() {
    on_both_paths(|path| {
        let world = World::new(2, path);
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

#[test]
fn malformed_receive() {
    each(|p| {
        // They fit the slot all the same.
        let too_many = [sge(&p.mb, 0, 1); 5];
        p.qb.post_recv(3, &too_many);
        p.fails(&p.send(1, 1), WcStatus::RemOpErr);
        p.cq_b.expect(3, WcStatus::LocQpOpErr);
        p.responder_failed(None);
    });
}

#[test]
fn no_receive_posted() {
    for (opcode, rnr_retry) in [
        (WrOpcode::Send, 0),
        (WrOpcode::Send, 3),
        (WrOpcode::RdmaWriteWithImm, 1),
    ] {
        on_both_paths(|path| {
            let world = World::new(2, path);
            let ours = Options {
                rnr_retry,
                ..Options::default()
            };
            let p = Pair::with(&world, ours, Options::default());
            let wr = Wr::new(1, opcode).local(&p.ma, 0, 64).remote(&p.mb, 0);
            p.fails(&wr, WcStatus::RnrRetryExcErr);
            p.responder_lives();
        });
    }
}

#[test]
fn a_receive_that_comes_late() {
    for opcode in [WrOpcode::Send, WrOpcode::RdmaWriteWithImm] {
        each(|p| {
            let wr = Wr::new(1, opcode).local(&p.ma, 0, 64).remote(&p.mb, 0);
            p.qa.post(&wr);
            // Retries without a limit, so it is still trying.
            std::thread::sleep(std::time::Duration::from_millis(5));
            assert_eq!(p.cq_a.poll(), None);
            p.qb.post_recv(2, &[sge(&p.mb, 0, 64)]);
            p.cq_a.expect(1, WcStatus::Success);
            p.cq_b.expect(2, WcStatus::Success);
        });
    }
}

#[test]
fn a_peer_that_does_not_answer() {
    type Vanish = fn(&Pair<'_>);
    let ways: [(&str, Vanish); 5] = [
        ("destroyed", |p| assert!(p.qb.destroy().is_ok())),
        ("reset", |p| p.qb.to(QpState::Reset)),
        ("in error", |p| p.qb.to(QpState::Err)),
        ("link down", |p| p.qb.vm.device.set_link(false)),
        ("device reset", |p| p.qb.vm.device.reset()),
    ];
    for (name, vanish) in ways {
        eprintln!("{name}");
        on_both_paths(|path| {
            let world = World::new(2, path);
            let ours = Options {
                retry_cnt: 1,
                timeout: 8,
                ..Options::default()
            };
            let p = Pair::with(&world, ours, Options::default());
            vanish(&p);
            p.fails(&p.send(1, 64), WcStatus::RetryExcErr);
        });
    }
}

#[test]
fn a_peer_that_expects_another_psn() {
    on_both_paths(|path| {
        let world = World::new(2, path);
        let ours = Options {
            retry_cnt: 0,
            timeout: 8,
            psn: 5000,
            ..Options::default()
        };
        let theirs = Options {
            psn: 100,
            ..Options::default()
        };
        let p = Pair::with(&world, ours, theirs);
        p.qb.post_recv(1, &[]);
        p.fails(&p.send(1, 0), WcStatus::RetryExcErr);
        p.responder_lives();
    });
}

#[test]
fn a_peer_that_is_connected_elsewhere() {
    on_both_paths(|path| {
        let world = World::new(2, path);
        let [a, b] = [&world.vms[0], &world.vms[1]];
        let (cq_a, cq_b) = (Cq::new(a, 64), Cq::new(b, 64));
        let options = Options {
            retry_cnt: 0,
            timeout: 8,
            ..Options::default()
        };
        let qa = Qp::new(a, &cq_a, &cq_a, options);
        let qb = Qp::new(b, &cq_b, &cq_b, options);
        qa.to_init().unwrap();
        qb.to_init().unwrap();
        // B expects a peer in its own VM.
        qb.to_rtr(b, qa.qpn).unwrap();
        qb.to_rts().unwrap();
        qa.to_rtr(b, qb.qpn).unwrap();
        qa.to_rts().unwrap();
        qb.post_recv(1, &[]);
        qa.post(&Wr::new(2, WrOpcode::Send));
        cq_a.expect(2, WcStatus::RetryExcErr);
        assert_eq!(cq_b.poll(), None);
    });
}

#[test]
fn error_flushes_everything_in_order() {
    each(|p| {
        // Nothing has room at B: these wait.
        for id in 0..10 {
            let flags = if id % 2 == 0 {
                SendFlags::NONE
            } else {
                SendFlags::SIGNALED
            };
            p.qa.post(&p.send(id, 10).flags(flags));
        }
        for id in 20..30 {
            p.qa.post_recv(id, &[]);
        }
        p.qa.to(QpState::Err);
        for id in (0..10).chain(20..30) {
            p.cq_a.expect(id, WcStatus::WrFlushErr);
        }
        // So does what comes later.
        p.qa.reclaim();
        p.qa.post_recv(40, &[]);
        p.cq_a.expect(40, WcStatus::WrFlushErr);
        p.qa.post(&p.send(41, 1));
        p.cq_a.expect(41, WcStatus::WrFlushErr);
        assert!(p.qa.vm.sink.is_empty(), "the driver asked for it");
    });
}

#[test]
fn reset_gives_back_without_completions_and_starts_anew() {
    each(|p| {
        for round in 0..5 {
            for id in 0..10 {
                p.qa.post(&p.send(id, 10));
                p.qa.post_recv(id, &[]);
            }
            p.qa.to(QpState::Reset);
            p.qb.to(QpState::Reset);
            assert_eq!(p.cq_a.poll(), None);
            connect(&p.qa, &p.qb);
            p.qb.post_recv(round, &[sge(&p.mb, 0, 64)]);
            p.qa.post(&p.send(round, 64));
            p.cq_a.expect(round, WcStatus::Success);
            p.cq_b.expect(round, WcStatus::Success);
        }
    });
}

#[test]
fn a_half_received_message_is_flushed() {
    on_both_paths(|path| {
        let world = World::new(2, path);
        let p = Pair::new(&world);
        // Longer than a turn, and gone before the end.
        let big = p.qa.vm.mr(24 << 20);
        let into = p.qb.vm.mr(24 << 20);
        p.qb.post_recv(1, &[sge(&into, 0, 24 << 20)]);
        p.qb.post_recv(2, &[]);
        p.qa.post(&Wr::new(3, WrOpcode::Send).local(&big, 0, 24 << 20));
        p.qb.to(QpState::Err);
        let first = p.cq_b.next();
        assert_eq!(first.wr_id, 1);
        p.cq_b.expect(2, WcStatus::WrFlushErr);
        p.qa.destroy().unwrap();
    });
}

#[test]
fn draining() {
    each(|p| {
        let sqd = |notify| {
            let attrs = QpAttr {
                en_sqd_async_notify: notify,
                ..QpAttr::ZERO
            };
            p.qa.modify(QpState::Sqd, QpAttrMask::EN_SQD_ASYNC_NOTIFY, attrs)
                .unwrap();
        };
        p.qa.post(&p.send(1, 10));
        wait("the work to be begun", || {
            sqd(1);
            if p.qa.query().sq_draining == 1 {
                return Some(());
            }
            p.qa.vm
                .sink
                .expect(EventKind::Async(AsyncEvent::SqDrained), p.qa.cookie);
            p.qa.modify(QpState::Rts, QpAttrMask::STATE, QpAttr::ZERO)
                .unwrap();
            None
        });
        p.qa.post(&p.send(2, 10));
        p.qb.post_recv(1, &[sge(&p.mb, 0, 64)]);
        p.qb.post_recv(2, &[sge(&p.mb, 0, 64)]);
        p.cq_a.expect(1, WcStatus::Success);
        p.qa.vm
            .sink
            .expect(EventKind::Async(AsyncEvent::SqDrained), p.qa.cookie);
        assert_eq!(p.qa.query().sq_draining, 0);
        assert_eq!(p.cq_a.poll(), None, "new work waits");
        // Attributes may change now.
        let slower = QpAttr {
            timeout: 20,
            min_rnr_timer: 2,
            ..QpAttr::ZERO
        };
        let same_path = QpAttr {
            ah_attr: p.qa.query().ah_attr,
            ..slower
        };
        p.qa.modify(
            QpState::Sqd,
            QpAttrMask::TIMEOUT | QpAttrMask::MIN_RNR_TIMER | QpAttrMask::AV,
            same_path,
        )
        .unwrap();
        assert_eq!((p.qa.query().timeout, p.qa.query().min_rnr_timer), (20, 2));
        p.qa.modify(QpState::Rts, QpAttrMask::STATE, QpAttr::ZERO)
            .unwrap();
        p.cq_a.expect(2, WcStatus::Success);
    });
}

#[test]
fn overflow_kills_the_cq_and_its_qps_only() {
    on_both_paths(|path| {
        let world = World::new(2, path);
        let [a, b] = [&world.vms[0], &world.vms[1]];
        let healthy = Pair::new(&world);
        let (tiny, cq_b) = (Cq::new(a, 4), Cq::new(b, 64));
        let all = Options {
            signal: SigType::All,
            ..Options::default()
        };
        let qa = Qp::new(a, &tiny, &healthy.cq_a, all);
        let qb = Qp::new(b, &cq_b, &cq_b, all);
        connect(&qa, &qb);
        for id in 0..6 {
            qa.post(&Wr::new(id, WrOpcode::RdmaWrite));
        }
        a.sink
            .expect(EventKind::Async(AsyncEvent::CqErr), tiny.cookie);
        a.sink
            .expect(EventKind::Async(AsyncEvent::QpFatal), qa.cookie);
        assert_eq!(qa.state(), QpState::Err);
        for id in 0..4 {
            tiny.expect(id, WcStatus::Success);
        }
        assert_eq!(tiny.poll(), None, "dead");
        // Its receives are flushed to the other CQ, which lives.
        qa.post_recv(50, &[]);
        healthy.cq_a.expect(50, WcStatus::WrFlushErr);
        healthy.qa.post(&Wr::new(7, WrOpcode::RdmaWrite));
        healthy.cq_a.expect(7, WcStatus::Success);
        assert!(b.sink.is_empty());
        assert_eq!(
            tiny.destroy(),
            Err(rustix::io::Errno::BUSY.raw_os_error() as u8)
        );
        qa.destroy().unwrap();
        tiny.destroy().unwrap();
    });
}
