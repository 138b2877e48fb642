// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Valid and invalid commands for MRs.

use testkit::engine::*;
use verbs::{Limits, PathPolicy};
use virtio_rdma_abi::config::Config;
use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{AccessFlags, WcStatus, WrOpcode};
use virtio_rdma_abi::number::{MrNumber, Pdn};

use super::{register, EFAULT, EINVAL, ENOMEM, EOPNOTSUPP};

/// Invalid access flags, with the error for each.
const BAD_ACCESS: [(AccessFlags, u8); 7] = [
    // abi: R-299
    (AccessFlags::REMOTE_WRITE, EINVAL),
    (AccessFlags::REMOTE_ATOMIC, EINVAL),
    // abi: R-303
    (AccessFlags(1 << 30), EINVAL),
    // abi: R-300
    (AccessFlags::MW_BIND, EOPNOTSUPP),
    // abi
    (AccessFlags::ON_DEMAND, EOPNOTSUPP),
    // abi: R-301
    (AccessFlags::FLUSH_GLOBAL, EOPNOTSUPP),
    // abi: R-302
    (AccessFlags::FLUSH_PERSISTENT, EOPNOTSUPP),
];

#[test]
fn memory_of_processes() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    let err = |change: fn(&mut CmdRegUserMr)| register(vm, change).err();
    // abi: R-271
    assert_eq!(err(|_| ()), None);
    // abi: R-117
    assert_eq!(err(|cmd| cmd.pdn = Pdn::new(99)), Some(EINVAL));
    // abi: R-282
    assert_eq!(err(|cmd| cmd.length = 0), Some(EINVAL));
    assert_eq!(
        err(|cmd| cmd.length = 4096),
        Some(EINVAL),
        "longer than its pages"
    );
    // abi: R-282
    assert_eq!(err(|cmd| cmd.length = u64::MAX), Some(EINVAL));
    // abi: R-312
    assert_eq!(err(|cmd| cmd.npages = 0), Some(EINVAL));
    // abi: R-312
    assert_eq!(err(|cmd| cmd.npages = 2), Some(EINVAL), "one too many");
    assert_eq!(err(|cmd| cmd.npages = u32::MAX), Some(EINVAL));
    // abi: R-282
    assert_eq!(
        err(|cmd| cmd.virt_addr = u64::MAX - 98),
        Some(EINVAL),
        "ends beyond the address space"
    );
    assert_eq!(err(|cmd| cmd.virt_addr = u64::MAX - 99), None);
    // abi: R-316
    assert_eq!(err(|cmd| cmd.pages = 1 << 40), Some(EFAULT), "no list");
    let pages_of = |page| {
        let pages = vm.page_list(&[page]);
        register(vm, |cmd| cmd.pages = pages).err()
    };
    // abi: R-317
    assert_eq!(pages_of(1 << 40), Some(EFAULT), "no memory");
    // abi: R-313
    assert_eq!(pages_of(0x1001), Some(EINVAL), "no page");
    assert_eq!(
        pages_of(!0xfff),
        Some(EINVAL),
        "at the end of all addresses"
    );
    for (access, errno) in BAD_ACCESS {
        let refused = register(vm, |cmd| cmd.access_flags = access);
        assert_eq!(refused.err(), Some(errno), "{access:?}");
    }
    let hints = FULL | AccessFlags::HUGETLB | AccessFlags::RELAXED_ORDERING;
    // abi
    assert!(register(vm, |cmd| cmd.access_flags = hints).is_ok());
    let mr = register(vm, |_| ()).unwrap();
    // abi: R-277
    assert_eq!(vm.call(CmdDeregMr { mrn: mr.mrn }).err(), None);
    // abi: R-117
    assert_eq!(vm.call(CmdDeregMr { mrn: mr.mrn }).err(), Some(EINVAL));
    assert_eq!(
        vm.call(CmdDeregMr {
            mrn: MrNumber::new(0)
        })
        .err(),
        Some(EINVAL)
    );
}

#[test]
fn all_memory() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    let dma = |pdn, access_flags| vm.call(CmdGetDmaMr { pdn, access_flags }).err();
    // abi
    assert_eq!(dma(vm.pdn, AccessFlags::LOCAL_WRITE), None);
    assert_eq!(dma(vm.pdn, AccessFlags::NONE), None);
    assert_eq!(dma(Pdn::new(0), AccessFlags::LOCAL_WRITE), Some(EINVAL));
    for (access, errno) in BAD_ACCESS {
        assert_eq!(dma(vm.pdn, access), Some(errno), "{access:?}");
    }
}

#[test]
fn pages_of_other_sizes() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    vm.negotiate(&[Feature::MrPages]);
    // The MR covers two pages of 64 KiB.
    let at = vm.alloc(3 << 16).next_multiple_of(1 << 16);
    let list = vm.page_list(&[at, at]);
    let good = || CmdRegUserMrPages {
        base: CmdRegUserMr {
            pdn: vm.pdn,
            access_flags: FULL,
            start: 0,
            length: 0x1_0000,
            virt_addr: 0x12_8000,
            pages: list,
            npages: 2,
        },
        page_shift: 16,
        depth: PageListDepth::Flat.value(),
        reserved: [0; 6],
    };
    let err = |change: fn(&mut CmdRegUserMrPages)| {
        let mut cmd = good();
        change(&mut cmd);
        vm.call(cmd).err()
    };
    // abi: R-309
    assert_eq!(err(|_| ()), None);
    for shift in [0, 11, 31, 64, 255] {
        let cmd = CmdRegUserMrPages {
            page_shift: shift,
            ..good()
        };
        // abi
        assert_eq!(vm.call(cmd).err(), Some(EINVAL), "page shift {shift}");
    }
    // abi: R-312
    assert_eq!(err(|cmd| cmd.page_shift = 17), Some(EINVAL), "too many");
    assert_eq!(err(|cmd| cmd.page_shift = 14), Some(EINVAL), "too few");
    // abi
    assert_eq!(err(|cmd| cmd.depth = 2), Some(EINVAL));
    // abi: R-315
    assert_eq!(err(|cmd| cmd.reserved[5] = 1), Some(EINVAL));
    // abi: R-311
    assert_eq!(err(|cmd| cmd.base.virt_addr = 0), Some(EINVAL), "too many");
    // abi: R-299
    assert_eq!(
        err(|cmd| cmd.base.access_flags = AccessFlags::REMOTE_WRITE),
        Some(EINVAL)
    );
    let misaligned = vm.page_list(&[at + 4096, at]);
    let mut cmd = good();
    cmd.base.pages = misaligned;
    // abi: R-313
    assert_eq!(vm.call(cmd).err(), Some(EINVAL));
    // A two-level list with the same list as its only block.
    let mut cmd = good();
    cmd.depth = PageListDepth::TwoLevels.value();
    cmd.base.pages = vm.page_list(&[list]);
    // abi: R-310
    assert!(vm.call(cmd).is_ok());
    cmd.base.pages = vm.page_list(&[list + 8]);
    // abi: R-314
    assert_eq!(vm.call(cmd).err(), Some(EINVAL), "misaligned block");
}

/// The driver may overwrite the page list and its directory after the response.
// abi
#[test]
fn a_list_is_copied_before_the_answer() {
    let world = World::new(2, PathPolicy::Direct);
    let p = Pair::new(&world);
    let vm = p.b;
    vm.negotiate(&[Feature::MrPages]);
    p.a.write(p.ma.iova, &[0x5a; 8]);
    for (id, depth) in (1..).zip(PageListDepth::ALL) {
        let [page, other] = [(); 2].map(|()| vm.alloc(4096));
        let list = vm.page_list(&[page]);
        let top = match depth {
            PageListDepth::Flat => list,
            PageListDepth::TwoLevels => vm.page_list(&[list]),
        };
        let virt_addr = 0x12_8000;
        let request = CmdRegUserMrPages {
            base: CmdRegUserMr {
                pdn: vm.pdn,
                access_flags: FULL,
                start: virt_addr,
                length: 4096,
                virt_addr,
                pages: top,
                npages: 1,
            },
            page_shift: 12,
            depth: depth.value(),
            reserved: [0; 6],
        };
        let mr = vm.call(request).unwrap();
        for at in [list, top] {
            vm.write(at, &other.to_le_bytes());
        }
        let mut wr = p.wr(id, WrOpcode::RdmaWrite, 8);
        wr.remote.remote_addr = virt_addr;
        wr.remote.rkey = mr.rkey;
        p.qa.post(&wr);
        p.cq_a.expect(id, WcStatus::Success);
        assert_eq!(vm.read(page, 8), [0x5a; 8], "{depth:?}");
        assert_eq!(vm.read(other, 8), [0; 8], "{depth:?}");
    }
}

// abi
#[test]
fn a_large_mr_has_a_list_of_two_levels() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    vm.negotiate(&[Feature::MrPages]);
    // The MR has 8 GiB and repeats one page.
    const PAGES: u32 = 1 << 21;
    let page = vm.alloc(4096);
    let block = vm.page_list(&[page; 512]);
    let directory = vm.page_list(&vec![block; PAGES as usize / 512]);
    let cmd = CmdRegUserMrPages {
        base: CmdRegUserMr {
            pdn: vm.pdn,
            access_flags: FULL,
            start: 0,
            length: u64::from(PAGES) << 12,
            virt_addr: 0x7000_0000_0000,
            pages: directory,
            npages: PAGES,
        },
        page_shift: 12,
        depth: PageListDepth::TwoLevels.value(),
        reserved: [0; 6],
    };
    let mr = vm.call(cmd).unwrap();
    vm.call(CmdDeregMr { mrn: mr.mrn }).unwrap();
    let config = Config::decode(&vm.hca.config_space()).unwrap();
    let huge = CmdRegUserMrPages {
        base: CmdRegUserMr {
            length: config.max_mr_size + 1,
            npages: 65,
            ..cmd.base
        },
        page_shift: 30,
        ..cmd
    };
    assert_eq!(vm.call(huge).err(), Some(EINVAL), "larger than the largest");
}

// abi: R-283
#[test]
fn limits_on_pages_bind_all_mrs() {
    let limits = Limits {
        max_mr_pages: 100,
        ..Limits::default()
    };
    let world = World::with_limits(1, PathPolicy::Direct, limits);
    let vm = &world.vms[0];
    let create = |max_num_sg| {
        vm.call(CmdCreateMr {
            pdn: vm.pdn,
            access_flags: AccessFlags::NONE,
            max_num_sg,
        })
    };
    // Pages of an MR for fast registration count twice, because MAP_MR_SG may set the next page
    // list while one is registered.
    let mr = create(40).unwrap();
    assert_eq!(create(11).err(), Some(ENOMEM));
    let other = vm.mr(20 << 12);
    assert_eq!(register(vm, |_| ()).err(), Some(ENOMEM));
    vm.call(CmdDeregMr { mrn: mr.mrn }).unwrap();
    vm.negotiate(&[Feature::RegPages]);
    create(80).unwrap();
    assert_eq!(create(1).err(), Some(ENOMEM));
    vm.call(CmdDeregMr { mrn: other.mrn }).unwrap();
    create(20).unwrap();
}

#[test]
fn fast_registration() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    let create = |pdn, access_flags, max_num_sg| {
        vm.call(CmdCreateMr {
            pdn,
            access_flags,
            max_num_sg,
        })
    };
    let config = Config::decode(&vm.hca.config_space()).unwrap();
    let most = config.max_fast_reg_page_list_len;
    // abi: R-86
    assert!(most >= 512);
    // abi: R-56
    assert!(create(vm.pdn, AccessFlags::NONE, most).is_ok());
    // abi: R-349
    assert_eq!(
        create(vm.pdn, AccessFlags::NONE, most + 1).err(),
        Some(EINVAL)
    );
    assert_eq!(create(vm.pdn, AccessFlags::NONE, 0).err(), Some(EINVAL));
    // abi: R-117
    assert_eq!(
        create(Pdn::new(99), AccessFlags::NONE, 1).err(),
        Some(EINVAL)
    );
    for (access, errno) in BAD_ACCESS {
        // abi: R-300
        assert_eq!(create(vm.pdn, access, 1).err(), Some(errno), "{access:?}");
    }
    vm.negotiate(&[Feature::Flush]);
    let flushable = create(vm.pdn, AccessFlags::FLUSH_GLOBAL, 1);
    // abi: R-301
    assert_eq!(flushable.err(), Some(EOPNOTSUPP), "not for this kind of MR");
    vm.negotiate(&[]);

    // abi: R-272
    let mr = create(vm.pdn, AccessFlags::NONE, 2).unwrap();
    // abi: R-278
    assert_eq!((mr.lkey, mr.lkey >> 8), (mr.rkey, mr.mrn.get()));
    let (a, b) = (vm.alloc(4096), vm.alloc(4096));
    let pages = vm.page_list(&[b, a]);
    let good = CmdMapMrSg {
        mrn: mr.mrn,
        npages: 2,
        start: 0x5_0ff0,
        length: 0x20,
        pages,
    };
    let err = |change: fn(&mut CmdMapMrSg)| {
        let mut cmd = good;
        change(&mut cmd);
        vm.call(cmd).err()
    };
    // abi
    assert_eq!(vm.call(good).unwrap().npages, 2);
    assert_eq!(err(|cmd| cmd.mrn = MrNumber::new(0)), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.mrn = MrNumber::new(77)), Some(EINVAL));
    // abi: R-350
    assert_eq!(err(|cmd| cmd.npages = 1), Some(EINVAL), "too few");
    assert_eq!(err(|cmd| cmd.start = 0x5_0000), Some(EINVAL), "too many");
    // abi: R-350
    assert_eq!(
        err(|cmd| (cmd.npages, cmd.length) = (3, 0x1020)),
        Some(EINVAL),
        "more than the MR was made for"
    );
    assert_eq!(err(|cmd| cmd.length = 0), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.length = u64::MAX), Some(EINVAL), "wraps");
    // abi: R-316
    assert_eq!(err(|cmd| cmd.pages = 1 << 40), Some(EFAULT));
    let unreachable = CmdMapMrSg {
        pages: vm.page_list(&[1 << 40, a]),
        ..good
    };
    // abi: R-317
    assert_eq!(vm.call(unreachable).err(), Some(EFAULT));
    let fixed = CmdMapMrSg {
        mrn: vm.mr(64).mrn,
        ..good
    };
    assert_eq!(vm.call(fixed).err(), Some(EINVAL), "not made for it");
    vm.negotiate(&[Feature::RegPages]);
    // abi
    assert_eq!(
        vm.call(good).err(),
        Some(EOPNOTSUPP),
        "REG_MR brings the pages"
    );
    vm.call(CmdDeregMr { mrn: mr.mrn }).unwrap();
}
