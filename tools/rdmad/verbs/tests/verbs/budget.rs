// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The memory that a driver can make the device allocate is limited, and it is freed with the
//! objects of the driver.

use testkit::engine::*;
use verbs::{Limits, MemoryStatus, PathPolicy};
use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{AccessFlags, MwType, QpAttrMask, QpState, QpType, WcStatus, WrOpcode};
use virtio_rdma_abi::number::{Cqn, MrNumber, MwNumber, Pdn, Qpn, Srqn};
use virtio_rdma_abi::qp::QpAttr;
use virtio_rdma_abi::ring::{RingAddr, RingKind, RingLayout};
use virtio_rdma_abi::wire::Wire;

use crate::commands::ENOMEM;

const MEMORY: u64 = 40 << 20;
/// Slots of the longest ring.
const SLOTS: u32 = 32_768;
/// Binary logarithm of the slot size: the size of a page.
const SLOT_SHIFT: u8 = 12;
/// Bytes that the device stores for each page of a ring.
const PAGE_ENTRY: u64 = 8;
/// Least memory in bytes that the device needs for a QP with two of the longest rings, if no two
/// pages are contiguous.
const LONG_QP: u64 = 2 * SLOTS as u64 * PAGE_ENTRY;

fn world(vms: usize, path: PathPolicy) -> World {
    let limits = Limits {
        memory: MEMORY,
        ..Limits::default()
    };
    World::with_limits(vms, path, limits)
}

fn used(vm: &Vm) -> u64 {
    let MemoryStatus { used, limit } = vm.hca.status().memory;
    assert_eq!(limit, MEMORY);
    assert!(used <= limit, "{used} of {limit} bytes");
    used
}

/// The longest ring, whose page list alternates between two pages, so that no two consecutive pages
/// are contiguous.
fn long_ring(vm: &Vm) -> RingAddr {
    let layout = RingLayout::new(RingKind::Work, SLOTS, SLOT_SHIFT).unwrap();
    let npages = u64::from(layout.size()).div_ceil(4096);
    let two = vm.alloc(3 * 4096);
    let pages: Vec<u64> = (0..npages).map(|n| two + (n % 2) * 2 * 4096).collect();
    RingAddr {
        pages: vm.page_list(&pages),
        npages: npages as u32,
        slots: SLOTS,
        page_shift: 12,
        slot_shift: SLOT_SHIFT,
        depth: 0,
        reserved: [0; 5],
    }
}

/// The command that creates a QP with two of the longest rings.
fn long_qp(vm: &Vm, cqn: Cqn, ring: RingAddr) -> CmdCreateQpRings {
    CmdCreateQpRings {
        base: CmdCreateQp {
            pdn: vm.pdn,
            qp_type: QpType::Rc.value(),
            max_send_wr: SLOTS,
            max_send_sge: 32,
            send_cqn: cqn,
            max_recv_wr: SLOTS,
            max_recv_sge: 32,
            recv_cqn: cqn,
            max_inline_data: 1024,
            flags: CreateFlags::USER,
            ..CmdCreateQp::ZERO
        },
        sq: ring,
        rq: ring,
        doorbell_page: qp::PAGE,
        cookie: 1,
    }
}

/// Creates objects until the device refuses one, and returns their numbers. Checks that the
/// objects, each of at least `least` bytes, fit a budget of `memory` bytes.
fn fill<N>(memory: u64, least: u64, mut make: impl FnMut() -> Result<N, u8>) -> Vec<N> {
    let mut made = Vec::new();
    loop {
        let taken = made.len() as u64 * least;
        assert!(taken <= memory, "{} objects and no end", made.len());
        match make() {
            Ok(number) => made.push(number),
            Err(errno) => {
                assert_eq!(errno, ENOMEM, "after {} objects", made.len());
                return made;
            }
        }
    }
}

/// Objects that use up the rest of a VM's memory budget.
struct Rest<'vm> {
    vm: &'vm Vm,
    mrs: Vec<MrNumber>,
    pds: Vec<Pdn>,
}

impl<'vm> Rest<'vm> {
    /// Uses up the budget, first with large objects, then with small ones.
    fn take(vm: &'vm Vm) -> Self {
        let request = CmdCreateMr {
            pdn: vm.pdn,
            access_flags: AccessFlags::NONE,
            max_num_sg: 512,
        };
        let rest = Self {
            vm,
            mrs: fill(MEMORY, 512 * PAGE_ENTRY, || {
                vm.call(request).map(|rsp| rsp.mrn)
            }),
            pds: fill(MEMORY, 1, || vm.call(CmdCreatePd::ZERO).map(|rsp| rsp.pdn)),
        };
        assert!(used(vm) > MEMORY - 1024, "{} of {MEMORY} bytes", used(vm));
        rest
    }

    fn give_back(self) {
        for mrn in self.mrs {
            self.vm.call(CmdDeregMr { mrn }).unwrap();
        }
        for pdn in self.pds {
            self.vm.call(CmdDestroyPd { pdn }).unwrap();
        }
    }
}

/// Drivers in several VMs create objects until the device refuses. Each gets its whole budget,
/// other VMs are not affected, and all memory is freed at the end.
// abi
#[test]
fn a_driver_that_takes_all_it_can_get() {
    let world = world(4, PathPolicy::Wire);
    let greedy = &world.vms[2..];
    let before: Vec<u64> = greedy.iter().map(used).collect();
    let mut made = Vec::new();
    for vm in greedy {
        let cq = Cq::new(vm, 64);
        let request = long_qp(vm, cq.cqn, long_ring(vm));
        let qps = fill(MEMORY, LONG_QP, || vm.call(request).map(|rsp| rsp.qpn));
        assert!((10..40).contains(&qps.len()), "{} QPs", qps.len());
        made.push((cq, qps, Rest::take(vm)));
    }
    // Each VM has its own memory limit, so the other VMs still have memory.
    let pair = Pair::new(&world);
    for id in 0..20 {
        pair.qb.post_recv(id, &[sge(&pair.mb, 0, 64)]);
        pair.qa.post(&pair.send(id, 64));
        pair.cq_a.expect(id, WcStatus::Success);
        pair.cq_b.expect(id, WcStatus::Success);
    }
    for ((vm, (cq, qps, rest)), before) in greedy.iter().zip(made).zip(before) {
        for qpn in qps {
            vm.call(CmdDestroyQp { qpn }).unwrap();
        }
        rest.give_back();
        vm.call(CmdDestroyCq { cqn: cq.cqn }).unwrap();
        assert_eq!(used(vm), before);
    }
}

/// Connected QPs continue to work when no memory is left for new objects.
// abi: R-120
#[test]
fn work_needs_no_memory_of_the_budget() {
    on_both_paths(|path| {
        let world = world(2, path);
        let pair = Pair::new(&world);
        let rests: Vec<_> = world.vms.iter().map(Rest::take).collect();
        for id in 0..100 {
            pair.qb.post_recv(id, &[sge(&pair.mb, 0, 10_000)]);
            pair.qa.post(&pair.send(id, 10_000));
            pair.cq_a.expect(id, WcStatus::Success);
            pair.cq_b.expect(id, WcStatus::Success);
            for opcode in [WrOpcode::RdmaWrite, WrOpcode::RdmaRead] {
                pair.qa.post(&pair.wr(id, opcode, 10_000));
                pair.cq_a.expect(id, WcStatus::Success);
            }
        }
        rests.into_iter().for_each(Rest::give_back);
    });
}

/// Each kind of object is charged to the budget, refused beyond the budget, and credited back.
// abi
#[test]
fn every_object_is_charged() {
    let world = world(1, PathPolicy::Direct);
    world.negotiate(&[Feature::MemWindows, Feature::RegPages]);
    let vm = &world.vms[0];
    let cq = Cq::new(vm, 64);
    let ring = Ring::new(vm, RingKind::Completion, 64, 6).addr;
    let scattered: Vec<u64> = (0..64).map(|_| vm.alloc(2 * 4096)).collect();
    let list = vm.page_list(&scattered);
    let cq_request = CmdCreateCqRing {
        base: CmdCreateCq { cqe: 64 },
        flags: CreateFlags::USER,
        ring,
        doorbell_page: qp::PAGE,
        event_queue: 1,
        cookie: 1,
        reserved: [0; 8],
    };
    let mut qp_request = long_qp(
        vm,
        cq.cqn,
        Ring::new(vm, RingKind::Work, 64, SLOT_SHIFT).addr,
    );
    (qp_request.base.max_send_wr, qp_request.base.max_recv_wr) = (64, 64);
    let mr = CmdRegUserMr {
        pdn: vm.pdn,
        access_flags: AccessFlags::LOCAL_WRITE,
        start: 0,
        length: 64 * 4096,
        virt_addr: 0,
        pages: list,
        npages: 64,
    };
    let fast = CmdCreateMr {
        pdn: vm.pdn,
        access_flags: AccessFlags::NONE,
        max_num_sg: 100,
    };
    let window = CmdAllocMw {
        pdn: vm.pdn,
        mw_type: MwType::One.value(),
        reserved: [0; 3],
    };
    let srq_request = srq::request(vm, vm.pdn, &srq::ring(vm, 2));
    let before = used(vm);
    type Make<'a> = &'a dyn Fn() -> Result<u32, u8>;
    type Destroy<'a> = &'a dyn Fn(u32) -> Result<Empty, u8>;
    let kinds: [(&str, u64, Make<'_>, Destroy<'_>); 6] = [
        (
            "CQ",
            256,
            &|| vm.call(cq_request).map(|rsp| rsp.cqn.get()),
            &|cqn| vm.call(CmdDestroyCq { cqn: Cqn::new(cqn) }),
        ),
        (
            "QP",
            1500,
            &|| vm.call(qp_request).map(|rsp| rsp.qpn.get()),
            &|qpn| vm.call(CmdDestroyQp { qpn: Qpn::new(qpn) }),
        ),
        (
            "SRQ",
            256,
            &|| vm.call(srq_request).map(|rsp| rsp.srqn.get()),
            &|srqn| {
                vm.call(CmdDestroySrq {
                    srqn: Srqn::new(srqn),
                })
            },
        ),
        (
            "MR",
            64 * 16,
            &|| vm.call(mr).map(|rsp| rsp.mrn.get()),
            &|mrn| {
                vm.call(CmdDeregMr {
                    mrn: MrNumber::new(mrn),
                })
            },
        ),
        (
            "fast MR",
            100 * 16,
            &|| vm.call(fast).map(|rsp| rsp.mrn.get()),
            &|mrn| {
                vm.call(CmdDeregMr {
                    mrn: MrNumber::new(mrn),
                })
            },
        ),
        (
            "window",
            256,
            &|| vm.call(window).map(|rsp| rsp.mwn.get()),
            &|mwn| {
                vm.call(CmdDeallocMw {
                    mwn: MwNumber::new(mwn),
                })
            },
        ),
    ];
    for (kind, least, make, destroy) in kinds {
        let number = make().unwrap();
        let charged = used(vm) - before;
        assert!((least..4 * least).contains(&charged), "{kind}: {charged}");
        assert_eq!(destroy(number), Ok(Empty::ZERO), "{kind}");
        assert_eq!(used(vm), before, "{kind}");
    }
    let rest = Rest::take(vm);
    for (kind, _, make, _) in kinds {
        assert_eq!(make(), Err(ENOMEM), "{kind}");
    }
    rest.give_back();
    assert_eq!(used(vm), before);
}

/// On the wire path, the change to RTS needs memory for packets. If this memory is refused, the
/// driver can retry the change. The direct path needs no such memory.
// abi
#[test]
fn memory_for_packets() {
    on_both_paths(|path| {
        let world = world(2, path);
        let [a, b] = [&world.vms[0], &world.vms[1]];
        let before = used(a);
        let (cq_a, cq_b) = (Cq::new(a, 64), Cq::new(b, 64));
        let qa = Qp::new(a, &cq_a, &cq_a, Options::default());
        let qb = Qp::new(b, &cq_b, &cq_b, Options::default());
        let (ma, mb) = (a.mr(4096), b.mr(4096));
        qa.to_init().unwrap();
        qb.to_init().unwrap();
        qb.to_rtr(a, qa.qpn).unwrap();
        qb.to_rts().unwrap();
        qa.to_rtr(b, qb.qpn).unwrap();
        let rest = Rest::take(a);
        let rts = qa.to_rts();
        match path {
            PathPolicy::Direct => assert_eq!(rts, Ok(())),
            _ => {
                assert_eq!((rts, qa.state()), (Err(ENOMEM), QpState::Rtr));
            }
        }
        rest.give_back();
        if rts.is_err() {
            let idle = used(a);
            qa.to_rts().unwrap();
            assert!(used(a) > idle + 64 * 300, "64 WQEs and their state");
        }
        for id in 0..200 {
            qb.post_recv(id, &[sge(&mb, 0, 64)]);
            let wr = Wr::new(id, WrOpcode::Send).local(&ma, 0, 64);
            qa.post(&wr);
            cq_a.expect(id, WcStatus::Success);
            cq_b.expect(id, WcStatus::Success);
        }
        // RESET frees the memory for packets.
        qa.to(QpState::Reset);
        qa.destroy().unwrap();
        a.call(CmdDeregMr { mrn: ma.mrn }).unwrap();
        a.call(CmdDestroyCq { cqn: cq_a.cqn }).unwrap();
        assert_eq!(used(a), before);
    });
}

/// A QP is charged for the answers that it may owe its peer: for as many as `max_dest_rd_atomic`
/// permits, and for no more.
// abi
#[test]
fn memory_for_answers() {
    let world = world(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    let cq = Cq::new(vm, 64);
    let connect = |rd_atomic| {
        let options = Options {
            rd_atomic,
            ..Options::default()
        };
        let qp = Qp::new(vm, &cq, &cq, options);
        qp.to_init().unwrap();
        let before = used(vm);
        qp.to_rtr(vm, qp.qpn).unwrap();
        (used(vm) - before, qp)
    };
    let change = |qp: &Qp<'_>, max_dest_rd_atomic| {
        let attrs = QpAttr {
            max_dest_rd_atomic,
            ..QpAttr::ZERO
        };
        qp.modify(QpState::Sqd, QpAttrMask::MAX_DEST_RD_ATOMIC, attrs)
    };
    let (few, qp) = connect(1);
    let (many, _other) = connect(128);
    assert!(many > few + 64 * 100, "{many} and {few} bytes");
    qp.to_rts().unwrap();
    qp.to(QpState::Sqd);
    let idle = used(vm);
    assert_eq!((change(&qp, 128), used(vm)), (Ok(()), idle + many - few));
    // The queues may have grown, and they do not shrink.
    assert_eq!((change(&qp, 1), used(vm)), (Ok(()), idle + many - few));
    qp.to(QpState::Reset);
    assert_eq!(used(vm), idle - few);
    // Without memory, the change is refused, and the old number holds.
    let (_, qp) = connect(1);
    qp.to_rts().unwrap();
    qp.to(QpState::Sqd);
    let rest = Rest::take(vm);
    assert_eq!(change(&qp, 128), Err(ENOMEM));
    assert_eq!(qp.query().max_dest_rd_atomic, 1);
    rest.give_back();
    assert_eq!(change(&qp, 128), Ok(()));
}

/// A reset frees the memory of the objects that the driver did not destroy.
// abi: R-124
#[test]
fn a_reset_gives_all_back() {
    let mut world = world(2, PathPolicy::Wire);
    let reset = |vm: &Vm| {
        vm.hca.reset();
        used(vm)
    };
    let idle = Vec::from_iter(world.vms.iter().map(reset));
    world.vms.iter_mut().for_each(Vm::start);
    world.negotiate(&[Feature::MemWindows]);
    let pair = Pair::new(&world);
    for (vm, idle) in world.vms.iter().zip(&idle) {
        let window = CmdAllocMw {
            pdn: vm.pdn,
            mw_type: MwType::One.value(),
            reserved: [0; 3],
        };
        vm.call(window).unwrap();
        assert!(used(vm) > *idle);
    }
    drop(pair);
    assert_eq!(Vec::from_iter(world.vms.iter().map(reset)), idle);
}

/// 64 greedy drivers get no more memory than their limits, and other VMs are served. `make
/// check-more` runs this test.
#[test]
#[ignore = "takes a minute without optimization"]
fn sixty_four_drivers_with_small_limits() {
    sixty_four_drivers(Limits {
        memory: 32 << 20,
        ..Limits::default()
    });
}

/// 64 greedy drivers with the default limits. Run this test by
/// `cargo test -p verbs --release --test verbs budget:: -- --ignored --nocapture`.
#[test]
#[ignore = "takes gigabytes and minutes"]
fn sixty_four_greedy_drivers() {
    sixty_four_drivers(Limits::default());
}

fn sixty_four_drivers(limits: Limits) {
    const GREEDY: u64 = 64;
    /// Allowance in bytes for memory of the process that belongs to no port.
    const COMMON: u64 = 500 << 20;
    let memory = limits.memory;
    let world = World::with_limits(2 + GREEDY as usize, PathPolicy::Wire, limits);
    let before = resident();
    let mut charged = 0;
    for vm in &world.vms[2..] {
        let used = || {
            let MemoryStatus { used, limit } = vm.hca.status().memory;
            assert!(limit == memory && used <= limit, "{used} of {limit}");
            used
        };
        let idle = used();
        let cq = Cq::new(vm, 64);
        let request = long_qp(vm, cq.cqn, long_ring(vm));
        fill(memory, LONG_QP, || vm.call(request).map(|rsp| rsp.qpn));
        charged += used() - idle;
    }
    let taken = resident().saturating_sub(before);
    let most = GREEDY * memory;
    println!(
        "{GREEDY} greedy drivers: {} MiB resident, {} MiB charged, {} MiB allowed",
        taken >> 20,
        charged >> 20,
        most >> 20
    );
    // `used` has checked that each charge is within its limit.
    assert!(taken <= charged + COMMON);
    let pair = Pair::new(&world);
    for id in 0..1000 {
        pair.qb.post_recv(id, &[sge(&pair.mb, 0, 64)]);
        pair.qa.post(&pair.send(id, 64));
        pair.cq_a.expect(id, WcStatus::Success);
        pair.cq_b.expect(id, WcStatus::Success);
    }
}

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}
