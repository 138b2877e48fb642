// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Memory windows: commands, BIND_MW, access of peers, invalidation and deallocation.

use testkit::engine::*;
use verbs::{Limits, PathPolicy};
use virtio_rdma_abi::ctrl::{CmdAllocMw, CmdCreatePd, CmdDeallocMw, CmdDeregMr, CmdDestroyPd};
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{
    AccessFlags, AsyncEvent, MwType, QpState, QpType, SendFlags, WcFlags, WcStatus, WrOpcode,
};
use virtio_rdma_abi::number::{MrNumber, MwNumber, Pdn};
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::BindMw;

const EINVAL: u8 = 22;
const ENOMEM: u8 = 12;
const EBUSY: u8 = 16;
const EOPNOTSUPP: u8 = 95;

/// Access flags of an MR for windows. Only the windows grant peers anything.
const BINDABLE: AccessFlags = AccessFlags(AccessFlags::LOCAL_WRITE.0 | AccessFlags::MW_BIND.0);
const WRITE: AccessFlags = AccessFlags::REMOTE_WRITE;
const READ: AccessFlags = AccessFlags::REMOTE_READ;
const ATOMIC: AccessFlags = AccessFlags::REMOTE_ATOMIC;
/// Offset of windows in their MRs, in bytes.
const AT: u64 = 0x1801;
/// Length of windows in bytes.
const LEN: u64 = 0x2100;
/// Length of the MRs in bytes.
const MR_LEN: u64 = 0x5000;

/// Runs `test` with a pair of QPs with these options, on each data path.
fn each_with(options: Options, test: impl Fn(&Pair<'_>)) {
    on_both_paths(|path| {
        let world = World::new(2, path);
        world.negotiate(&[Feature::MemWindows]);
        test(&Pair::with(&world, options, options));
    });
}

fn each(test: impl Fn(&Pair<'_>)) {
    each_with(Options::default(), test);
}

/// A window of B, and its current R_Key.
#[derive(Clone, Copy)]
struct Window {
    mwn: MwNumber,
    key: u32,
}

impl Window {
    fn new(vm: &Vm, mw_type: MwType) -> Self {
        let mw = vm.call(alloc(vm.pdn, mw_type)).unwrap();
        assert_eq!(mw.rkey >> 8, mw.mwn.get());
        Self {
            mwn: mw.mwn,
            key: mw.rkey,
        }
    }

    /// Advances the key, and returns a BIND_MW that binds the window to a part of `mr` under the
    /// new key.
    fn bind(&mut self, mr: &Mr, access: AccessFlags) -> BindMw {
        let before = self.key;
        self.key = (before & !0xff) | (before.wrapping_add(1) & 0xff);
        BindMw {
            addr: mr.addr + AT,
            length: LEN,
            mw_rkey: before,
            rkey: self.key,
            lkey: mr.key,
            access,
            reserved: [0; 4],
        }
    }

    /// The window as an MR that peers can address.
    fn seen(&self, mr: &Mr) -> Mr {
        Mr {
            mrn: MrNumber::new(0),
            key: self.key,
            addr: mr.addr + AT,
            iova: mr.iova + AT,
            len: LEN,
        }
    }
}

fn alloc(pdn: Pdn, mw_type: MwType) -> CmdAllocMw {
    CmdAllocMw {
        pdn,
        mw_type: mw_type.value(),
        reserved: [0; 3],
    }
}

fn bindable(vm: &Vm) -> Mr {
    vm.register(vm.pdn, vm.alloc(MR_LEN), MR_LEN, BINDABLE)
}

fn bind(id: u64, bind: &BindMw) -> Vec<u8> {
    wqe(id, WrOpcode::BindMw, 0, bind)
}

/// Posts the BIND_MW `wanted` at B and waits for its completion.
fn bound(p: &Pair<'_>, id: u64, wanted: &BindMw) {
    p.qb.post_bytes(&bind(id, wanted));
    let cqe = p.cq_b.expect(id, WcStatus::Success);
    assert_eq!(cqe.opcode, WrOpcode::BindMw.value() as u8);
}

#[test]
fn windows_are_allocated_and_deallocated() {
    let limits = Limits {
        max_mw: 2,
        ..Limits::default()
    };
    let world = World::with_limits(1, PathPolicy::Direct, limits);
    world.negotiate(&[Feature::MemWindows]);
    let vm = &world.vms[0];
    let pdn = vm.call(CmdCreatePd::ZERO).unwrap().pdn;
    for bad in [
        // abi: R-394
        CmdAllocMw {
            mw_type: 0,
            ..alloc(pdn, MwType::One)
        },
        CmdAllocMw {
            mw_type: 3,
            ..alloc(pdn, MwType::One)
        },
        // abi: R-394
        CmdAllocMw {
            reserved: [0, 0, 1],
            ..alloc(pdn, MwType::One)
        },
        alloc(Pdn::new(99), MwType::One),
    ] {
        assert_eq!(vm.call(bad).err(), Some(EINVAL), "{bad:?}");
    }
    // abi: R-374
    let one = vm.call(alloc(pdn, MwType::One)).unwrap();
    // abi: R-376
    let two = vm.call(alloc(pdn, MwType::Two)).unwrap();
    // abi
    assert_eq!(vm.call(alloc(pdn, MwType::Two)).err(), Some(ENOMEM));
    assert_ne!(one.mwn, two.mwn);
    // abi
    assert_eq!(
        [one.rkey >> 8, two.rkey >> 8],
        [one.mwn.get(), two.mwn.get()],
        "the number is in the key"
    );
    // Numbers of MRs and windows are in different ranges.
    let mr = vm.mr(1);
    // abi: R-380
    assert!(mr.mrn.get() < one.mwn.get());
    // abi: R-121
    assert_eq!(vm.call(CmdDestroyPd { pdn }).err(), Some(EBUSY));
    for mwn in [one.mwn, two.mwn] {
        // abi: R-379
        assert_eq!(vm.call(CmdDeallocMw { mwn }).err(), None);
    }
    for number in [one.mwn.get(), mr.mrn.get(), 0, u32::MAX] {
        let mwn = MwNumber::new(number);
        // abi: R-117
        assert_eq!(vm.call(CmdDeallocMw { mwn }).err(), Some(EINVAL));
    }
    assert_eq!(vm.call(CmdDestroyPd { pdn }).err(), None);
}

// abi
#[test]
fn without_the_feature_there_are_none() {
    on_both_paths(|path| {
        let world = World::new(2, path);
        let p = Pair::new(&world);
        let none = vm_without(p.b);
        assert_eq!(none, [Some(EOPNOTSUPP); 2]);
        p.qa.post_bytes(&bind(1, &BindMw::ZERO));
        let cqe = p.cq_a.expect(1, WcStatus::LocQpOpErr);
        assert_eq!(cqe.opcode, WrOpcode::BindMw.value() as u8);
        assert_eq!(p.qa.state(), QpState::Err);
        p.responder_lives();
    });
}

fn vm_without(vm: &Vm) -> [Option<u8>; 2] {
    [
        vm.call(alloc(vm.pdn, MwType::One)).err(),
        vm.call(CmdDeallocMw {
            mwn: MwNumber::new(65_537),
        })
        .err(),
    ]
}

// abi
#[test]
fn peers_write_read_and_operate_in_a_window() {
    for mw_type in [MwType::One, MwType::Two] {
        for qp_type in [QpType::Rc, QpType::Uc] {
            each_with(Options::of(qp_type), |p| {
                let mr = bindable(p.b);
                let mut mw = Window::new(p.b, mw_type);
                bound(p, 1, &mw.bind(&mr, WRITE | READ | ATOMIC));
                let seen = mw.seen(&mr);
                let data = pattern(LEN as usize, 5);
                p.a.write(p.ma.iova, &data);
                p.qa.post(&p.wr(2, WrOpcode::RdmaWrite, LEN as u32).remote(&seen, 0));
                p.cq_a.expect(2, WcStatus::Success);
                wait("the data", || {
                    (p.b.read(seen.iova, LEN as usize) == data).then_some(())
                });
                if qp_type == QpType::Uc {
                    return;
                }
                let read = Wr::new(3, WrOpcode::RdmaRead).local(&p.ma, 0x8000, 100);
                p.qa.post(&read.remote(&seen, LEN - 100));
                p.cq_a.expect(3, WcStatus::Success);
                assert_eq!(p.a.read(p.ma.iova + 0x8000, 100), data[data.len() - 100..]);
                // The word has an aligned address in the MR, but an odd offset in the window.
                let add = Wr::new(4, WrOpcode::AtomicFetchAndAdd)
                    .local(&p.ma, 0, 8)
                    .remote(&seen, 7)
                    .operands(1, 0);
                p.qa.post(&add);
                p.cq_a.expect(4, WcStatus::Success);
                let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
                let before = word(&data[7..15]);
                assert_eq!(word(&p.b.read(seen.iova + 7, 8)), before.wrapping_add(1));
                p.responder_lives();
            });
        }
    }
}

// abi: R-403
#[test]
fn the_key_may_follow_the_binding_at_once() {
    each(|p| {
        let mr = bindable(p.b);
        let mut mw = Window::new(p.b, MwType::One);
        // B binds a window and sends the key to A on the same QP, without waiting for the
        // completion of the binding. A then writes with this key.
        for round in 0..20 {
            p.qa.post_recv(1, &[sge(&p.ma, 0, 4)]);
            let wanted = mw.bind(&mr, WRITE);
            p.qb.post_bytes(&bind(2, &wanted));
            p.qb.post(&Wr::new(3, WrOpcode::Send).inline(&mw.key.to_le_bytes()));
            p.cq_a.expect(1, WcStatus::Success);
            let told = p.a.read(p.ma.iova, 4);
            let key = u32::from_le_bytes(told.try_into().unwrap());
            let seen = Mr {
                key,
                ..mw.seen(&mr)
            };
            p.a.write(p.ma.iova, &pattern(50, round));
            p.qa.post(&p.wr(4, WrOpcode::RdmaWrite, 50).remote(&seen, round));
            p.cq_a.expect(4, WcStatus::Success);
            assert_eq!(p.b.read(seen.iova + round, 50), pattern(50, round));
            p.cq_b.expect(2, WcStatus::Success);
            p.cq_b.expect(3, WcStatus::Success);
        }
    });
}

/// Posts an operation at A on remote memory, and checks that B refuses the access.
fn refused(p: &Pair<'_>, wr: Wr) {
    p.qa.post(&wr);
    p.cq_a.expect(wr.id, WcStatus::RemAccessErr);
    p.responder_failed(Some(AsyncEvent::QpAccessErr));
}

// abi
#[test]
fn what_a_window_does_not_admit() {
    type Ask = fn(&Pair<'_>, &Mr) -> Wr;
    let asks: [(&str, Ask); 5] = [
        ("read", |p, mw| p.wr(2, WrOpcode::RdmaRead, 8).remote(mw, 0)),
        ("atomic", |p, mw| {
            p.wr(2, WrOpcode::AtomicFetchAndAdd, 8).remote(mw, 7)
        }),
        ("before", |p, mw| {
            let before = Mr {
                addr: mw.addr - 1,
                ..*mw
            };
            p.wr(2, WrOpcode::RdmaWrite, 8).remote(&before, 0)
        }),
        ("past the end", |p, mw| {
            p.wr(2, WrOpcode::RdmaWrite, 8).remote(mw, LEN - 7)
        }),
        ("old key", |p, mw| {
            let old = Mr {
                key: (mw.key & !0xff) | (mw.key.wrapping_sub(1) & 0xff),
                ..*mw
            };
            p.wr(2, WrOpcode::RdmaWrite, 8).remote(&old, 0)
        }),
    ];
    for (name, ask) in asks {
        eprintln!("{name}");
        each(|p| {
            let mr = bindable(p.b);
            let mut mw = Window::new(p.b, MwType::One);
            bound(p, 1, &mw.bind(&mr, WRITE));
            refused(p, ask(p, &mw.seen(&mr)));
        });
    }
}

#[test]
fn bindings_that_fail() {
    type Change = fn(&Pair<'_>, &mut BindMw);
    let changes: [(&str, Change); 9] = [
        // abi
        ("window", |_, b| b.mw_rkey ^= 1),
        // abi: R-385
        ("new key", |_, b| b.rkey ^= 0x100),
        // abi: R-386
        ("MR", |_, b| b.lkey ^= 1),
        // abi: R-401
        ("past the MR", |_, b| b.length = MR_LEN - AT + 1),
        // abi: R-387
        ("access flags", |_, b| b.access = AccessFlags::MW_BIND),
        // abi: R-388
        ("reserved", |_, b| b.reserved[0] = 1),
        // abi
        ("no MW_BIND", |p, b| {
            let mr = p.b.register(p.b.pdn, p.b.alloc(MR_LEN), MR_LEN, FULL);
            (b.lkey, b.addr) = (mr.key, mr.addr);
        }),
        // abi: R-400
        ("no local write", |p, b| {
            let access = AccessFlags::MW_BIND;
            let mr = p.b.register(p.b.pdn, p.b.alloc(MR_LEN), MR_LEN, access);
            (b.lkey, b.addr) = (mr.key, mr.addr);
        }),
        // abi: R-396
        ("PD of the MR", |p, b| {
            let pdn = p.b.call(CmdCreatePd::ZERO).unwrap().pdn;
            let mr = p.b.register(pdn, p.b.alloc(MR_LEN), MR_LEN, BINDABLE);
            (b.lkey, b.addr) = (mr.key, mr.addr);
        }),
    ];
    for qp_type in [QpType::Rc, QpType::Uc] {
        for (name, change) in changes {
            eprintln!("{qp_type:?}: {name}");
            each_with(Options::of(qp_type), |p| {
                let mr = bindable(p.b);
                let mut mw = Window::new(p.b, MwType::One);
                let mut wanted = mw.bind(&mr, WRITE);
                change(p, &mut wanted);
                p.qb.post_bytes(&bind(1, &wanted));
                p.qb.post(&Wr::new(2, WrOpcode::Send));
                // abi: R-718
                p.cq_b.expect(1, WcStatus::MwBindErr);
                p.cq_b.expect(2, WcStatus::WrFlushErr);
                let state = match qp_type {
                    QpType::Rc => QpState::Err,
                    _ => QpState::Sqe,
                };
                assert_eq!(p.qb.state(), state);
                // No window is bound to the MR, so it can be deregistered.
                assert_eq!(p.b.call(CmdDeregMr { mrn: mr.mrn }).err(), None);
            });
        }
    }
}

// abi: R-396
#[test]
fn windows_of_another_pd() {
    each(|p| {
        let pdn = p.b.call(CmdCreatePd::ZERO).unwrap().pdn;
        let mr = bindable(p.b);
        let mw = p.b.call(alloc(pdn, MwType::One)).unwrap();
        let mut mw = Window {
            mwn: mw.mwn,
            key: mw.rkey,
        };
        p.qb.post_bytes(&bind(1, &mw.bind(&mr, WRITE)));
        p.cq_b.expect(1, WcStatus::MwBindErr);
        assert_eq!(p.b.call(CmdDeallocMw { mwn: mw.mwn }).err(), None);
    });
}

// abi: R-395
#[test]
fn datagram_qps_bind_nothing() {
    each_with(Options::of(QpType::Ud), |p| {
        let mr = bindable(p.b);
        let mut mw = Window::new(p.b, MwType::One);
        p.qb.post_bytes(&bind(1, &mw.bind(&mr, WRITE)));
        p.cq_b.expect(1, WcStatus::LocQpOpErr);
        assert_eq!(p.qb.state(), QpState::Sqe);
    });
}

// abi
#[test]
fn a_length_of_zero_unbinds_type_1() {
    each(|p| {
        let mr = bindable(p.b);
        let mut mw = Window::new(p.b, MwType::One);
        bound(p, 1, &mw.bind(&mr, WRITE));
        assert_eq!(p.b.call(CmdDeregMr { mrn: mr.mrn }).err(), Some(EBUSY));
        let none = BindMw {
            addr: 0,
            length: 0,
            lkey: 0,
            ..mw.bind(&mr, AccessFlags::NONE)
        };
        bound(p, 2, &none);
        assert_eq!(p.b.call(CmdDeregMr { mrn: mr.mrn }).err(), None);
        refused(p, p.wr(3, WrOpcode::RdmaWrite, 8).remote(&mw.seen(&mr), 0));
    });
    each(|p| {
        let mr = bindable(p.b);
        let mut mw = Window::new(p.b, MwType::Two);
        let none = BindMw {
            length: 0,
            ..mw.bind(&mr, AccessFlags::NONE)
        };
        p.qb.post_bytes(&bind(1, &none));
        p.cq_b.expect(1, WcStatus::MwBindErr);
    });
}

// abi
#[test]
fn a_new_binding_takes_the_place_of_the_old() {
    each(|p| {
        let (first, second) = (bindable(p.b), bindable(p.b));
        let mut mw = Window::new(p.b, MwType::One);
        bound(p, 1, &mw.bind(&first, WRITE));
        let old = mw.seen(&first);
        bound(p, 2, &mw.bind(&second, WRITE));
        assert_eq!(p.b.call(CmdDeregMr { mrn: first.mrn }).err(), None);
        assert_eq!(p.b.call(CmdDeregMr { mrn: second.mrn }).err(), Some(EBUSY));
        p.qa.post(&p.wr(3, WrOpcode::RdmaWrite, 8).remote(&mw.seen(&second), 0));
        p.cq_a.expect(3, WcStatus::Success);
        refused(p, p.wr(4, WrOpcode::RdmaWrite, 8).remote(&old, 0));
    });
}

// abi
#[test]
fn either_side_invalidates_type_2() {
    each(|p| {
        let mr = bindable(p.b);
        let mut mw = Window::new(p.b, MwType::Two);
        p.a.write(p.ma.iova, &pattern(64, 8));
        for round in 0..10 {
            bound(p, 1, &mw.bind(&mr, WRITE));
            let seen = mw.seen(&mr);
            p.qa.post(&p.wr(2, WrOpcode::RdmaWrite, 64).remote(&seen, 64 * round));
            p.cq_a.expect(2, WcStatus::Success);
            if round % 2 == 0 {
                p.qb.post_bytes(&local_inv(3, mw.key));
                p.cq_b.expect(3, WcStatus::Success);
            } else {
                p.qb.post_recv(4, &[]);
                let send = Wr::new(5, WrOpcode::SendWithInv).imm(mw.key.to_le_bytes());
                p.qa.post(&send);
                p.cq_a.expect(5, WcStatus::Success);
                let cqe = p.cq_b.expect(4, WcStatus::Success);
                assert!(cqe.wc_flags.contains(WcFlags::WITH_INVALIDATE));
                assert_eq!(u32::from_le_bytes(cqe.ex), mw.key);
            }
            assert_eq!(p.b.read(seen.iova + 64 * round, 64), pattern(64, 8));
        }
        refused(p, p.wr(6, WrOpcode::RdmaWrite, 8).remote(&mw.seen(&mr), 0));
        assert_eq!(p.b.call(CmdDeregMr { mrn: mr.mrn }).err(), None);
    });
}

// abi: R-409
#[test]
fn invalidations_that_fail() {
    // Invalidation of a type 1 window, by its own side and by the peer, and of an unbound window.
    each(|p| {
        let mr = bindable(p.b);
        let mut mw = Window::new(p.b, MwType::One);
        bound(p, 1, &mw.bind(&mr, WRITE));
        p.qb.post_bytes(&local_inv(2, mw.key));
        p.cq_b.expect(2, WcStatus::MwBindErr);
    });
    each(|p| {
        let mr = bindable(p.b);
        let mut mw = Window::new(p.b, MwType::One);
        bound(p, 1, &mw.bind(&mr, WRITE));
        p.qb.post_recv(2, &[]);
        let send = Wr::new(3, WrOpcode::SendWithInv).imm(mw.key.to_le_bytes());
        p.qa.post(&send);
        p.cq_a.expect(3, WcStatus::RemAccessErr);
        p.cq_b.expect(2, WcStatus::RemInvReqErr);
    });
    each(|p| {
        let mw = Window::new(p.b, MwType::Two);
        p.qb.post_bytes(&local_inv(1, mw.key));
        p.cq_b.expect(1, WcStatus::MwBindErr);
    });
}

/// A second pair of QPs between the VMs of `p`, with the same CQs.
fn second_pair<'vm>(p: &Pair<'vm>) -> (Qp<'vm>, Qp<'vm>) {
    let qa = Qp::new(p.a, &p.cq_a, &p.cq_a, p.qa.options);
    let qb = Qp::new(p.b, &p.cq_b, &p.cq_b, p.qb.options);
    connect(&qa, &qb);
    (qa, qb)
}

// abi
#[test]
fn type_1_is_reached_through_any_qp_and_type_2_through_its_own() {
    for mw_type in [MwType::One, MwType::Two] {
        each(|p| {
            let mr = bindable(p.b);
            let mut mw = Window::new(p.b, mw_type);
            bound(p, 1, &mw.bind(&mr, WRITE));
            let (qa, qb) = second_pair(p);
            qa.post(&p.wr(2, WrOpcode::RdmaWrite, 8).remote(&mw.seen(&mr), 0));
            if mw_type == MwType::One {
                p.cq_a.expect(2, WcStatus::Success);
                return;
            }
            p.cq_a.expect(2, WcStatus::RemAccessErr);
            qb.wait_for(QpState::Err);
            // The other QP can't invalidate the window either.
            let (_, qb) = second_pair(p);
            qb.post_bytes(&local_inv(3, mw.key));
            p.cq_b.expect(3, WcStatus::MwBindErr);
            p.qa.post(&p.wr(4, WrOpcode::RdmaWrite, 8).remote(&mw.seen(&mr), 0));
            p.cq_a.expect(4, WcStatus::Success);
        });
    }
}

// abi
#[test]
fn the_end_of_a_qp_unbinds_its_windows_of_type_2() {
    each(|p| {
        let mr = bindable(p.b);
        let mut mws = [MwType::One, MwType::Two, MwType::Two].map(|t| Window::new(p.b, t));
        for mw in &mut mws {
            bound(p, 1, &mw.bind(&mr, WRITE));
        }
        let (qa, qb) = second_pair(p);
        // One type 2 window is deallocated before the QP is destroyed.
        assert_eq!(p.b.call(CmdDeallocMw { mwn: mws[2].mwn }).err(), None);
        p.qb.destroy().unwrap();
        assert_eq!(p.b.call(CmdDeregMr { mrn: mr.mrn }).err(), Some(EBUSY));
        qa.post(&p.wr(2, WrOpcode::RdmaWrite, 8).remote(&mws[0].seen(&mr), 0));
        p.cq_a.expect(2, WcStatus::Success);
        // Another QP can bind the remaining type 2 window.
        let again = mws[1].bind(&mr, WRITE);
        qb.post_bytes(&bind(3, &again));
        p.cq_b.expect(3, WcStatus::Success);
        qa.post(&p.wr(4, WrOpcode::RdmaWrite, 8).remote(&mws[1].seen(&mr), 0));
        p.cq_a.expect(4, WcStatus::Success);
        for mw in &mws[..2] {
            assert_eq!(p.b.call(CmdDeallocMw { mwn: mw.mwn }).err(), None);
        }
        assert_eq!(p.b.call(CmdDeregMr { mrn: mr.mrn }).err(), None);
    });
}

// abi
#[test]
fn a_deallocated_window_is_unbound() {
    for mw_type in [MwType::One, MwType::Two] {
        each(|p| {
            let mr = bindable(p.b);
            let mut mw = Window::new(p.b, mw_type);
            bound(p, 1, &mw.bind(&mr, WRITE));
            assert_eq!(p.b.call(CmdDeregMr { mrn: mr.mrn }).err(), Some(EBUSY));
            assert_eq!(p.b.call(CmdDeallocMw { mwn: mw.mwn }).err(), None);
            assert_eq!(p.b.call(CmdDeregMr { mrn: mr.mrn }).err(), None);
            refused(p, p.wr(2, WrOpcode::RdmaWrite, 8).remote(&mw.seen(&mr), 0));
        });
    }
}

// abi: R-390
#[test]
fn zero_based_windows() {
    for mw_type in [MwType::One, MwType::Two] {
        each(|p| {
            let mr = bindable(p.b);
            let mut mw = Window::new(p.b, mw_type);
            bound(p, 1, &mw.bind(&mr, WRITE | AccessFlags::ZERO_BASED));
            let zero = Mr {
                addr: 0,
                ..mw.seen(&mr)
            };
            let data = pattern(LEN as usize, 3);
            p.a.write(p.ma.iova, &data);
            p.qa.post(&p.wr(2, WrOpcode::RdmaWrite, LEN as u32).remote(&zero, 0));
            p.cq_a.expect(2, WcStatus::Success);
            assert_eq!(p.b.read(zero.iova, LEN as usize), data);
            refused(p, p.wr(3, WrOpcode::RdmaWrite, 1).remote(&zero, LEN));
        });
    }
}

// abi: R-707
#[test]
fn an_unsignalled_binding_is_silent() {
    each(|p| {
        let mr = bindable(p.b);
        let mut mw = Window::new(p.b, MwType::One);
        let mut wqe = bind(1, &mw.bind(&mr, WRITE));
        wqe[4..8].copy_from_slice(&SendFlags::NONE.0.to_le_bytes());
        p.qb.post_bytes(&wqe);
        p.qb.post_bytes(&bind(2, &mw.bind(&mr, WRITE)));
        p.cq_b.expect(2, WcStatus::Success);
        assert_eq!(p.cq_b.poll(), None);
    });
}

#[test]
fn a_binding_is_no_message() {
    each(|p| {
        let mr = bindable(p.b);
        let mut mw = Window::new(p.b, MwType::One);
        p.qa.post_recv(9, &[]);
        let mut wqe = bind(1, &mw.bind(&mr, WRITE));
        let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
        wqe[4..8].copy_from_slice(&flags.0.to_le_bytes());
        p.qb.post_bytes(&wqe);
        p.cq_b.expect(1, WcStatus::Success);
        // The binding completed no receive of the peer: the next message takes the first one.
        p.qb.post(&Wr::new(2, WrOpcode::Send));
        p.cq_b.expect(2, WcStatus::Success);
        p.cq_a.expect(9, WcStatus::Success);
        p.responder_lives();
    });
}

// abi
#[test]
fn a_binding_waits_behind_a_fence() {
    each(|p| {
        let mr = bindable(p.a);
        let mut mw = Window::new(p.a, MwType::One);
        p.b.write(p.mb.iova, &pattern(0x8000, 4));
        p.qa.post(&p.wr(1, WrOpcode::RdmaRead, 0x8000));
        let mut wqe = bind(2, &mw.bind(&mr, WRITE));
        let flags = SendFlags::SIGNALED | SendFlags::FENCE;
        wqe[4..8].copy_from_slice(&flags.0.to_le_bytes());
        p.qa.post_bytes(&wqe);
        p.cq_a.expect(1, WcStatus::Success);
        p.cq_a.expect(2, WcStatus::Success);
        assert_eq!(p.a.read(p.ma.iova, 0x8000), pattern(0x8000, 4));
    });
}
