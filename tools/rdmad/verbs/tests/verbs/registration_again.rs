// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! REREG_MR: changes of an MR's access flags, PD and memory. The keys stay the same.

use testkit::engine::*;
use verbs::{Limits, PathPolicy};
use virtio_rdma_abi::ctrl::{
    CmdAllocMw, CmdCreateMr, CmdCreatePd, CmdDeallocMw, CmdDestroyPd, CmdRegUserMr,
    CmdRegUserMrPages, CmdReregMr, ReregFlags,
};
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{AccessFlags, MwType, WcStatus, WrOpcode};
use virtio_rdma_abi::number::{MrNumber, Pdn};
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::{BindMw, Member, SqHeader};

const EINVAL: u8 = 22;
const EFAULT: u8 = 14;
const EBUSY: u8 = 16;
const ENOMEM: u8 = 12;

const READ_ONLY: AccessFlags = AccessFlags::REMOTE_READ;

/// A REREG_MR of `mr` that changes the attributes in `flags`. The new memory has two pages and the
/// address 0x5000; PD and access flags stay the same unless the caller changes the command.
fn rereg(vm: &Vm, mr: &Mr, flags: ReregFlags) -> CmdReregMr {
    let at = vm.alloc(0x2000);
    CmdReregMr {
        mrn: mr.mrn,
        flags,
        memory: CmdRegUserMrPages {
            base: CmdRegUserMr {
                pdn: vm.pdn,
                access_flags: FULL,
                start: 0x5000,
                length: 0x2000,
                virt_addr: 0x5000,
                pages: vm.page_list(&[at, at + 0x1000]),
                npages: 2,
            },
            page_shift: 12,
            depth: 0,
            reserved: [0; 6],
        },
    }
}

/// Checks that a WRITE of A to the start of `mr` ends with `status`.
fn writes(p: &Pair<'_>, mr: &Mr, status: WcStatus) {
    p.qa.post(&p.wr(7, WrOpcode::RdmaWrite, 64).remote(mr, 0));
    p.cq_a.expect(7, status);
}

// abi
#[test]
fn access_flags_change_under_the_key() {
    each(|p| {
        let mr = p.b.register(p.b.pdn, p.b.alloc(4096), 4096, READ_ONLY);
        let mut cmd = rereg(p.b, &mr, ReregFlags::ACCESS);
        p.b.call(cmd).unwrap();
        p.a.write(p.ma.iova, &pattern(64, 1));
        writes(p, &mr, WcStatus::Success);
        assert_eq!(p.b.read(mr.iova, 64), pattern(64, 1));
        cmd.memory.base.access_flags = READ_ONLY;
        p.b.call(cmd).unwrap();
        writes(p, &mr, WcStatus::RemAccessErr);
    });
}

// abi
#[test]
fn memory_changes_under_the_key() {
    each(|p| {
        let mr = p.b.mr(4096);
        let cmd = rereg(p.b, &mr, ReregFlags::TRANSLATION);
        p.b.call(cmd).unwrap();
        let page = u64::from_le_bytes(p.b.read(cmd.memory.base.pages, 8).try_into().unwrap());
        let new = Mr {
            addr: 0x5000,
            iova: page,
            ..mr
        };
        p.a.write(p.ma.iova, &pattern(64, 2));
        writes(p, &new, WcStatus::Success);
        assert_eq!(p.b.read(page, 64), pattern(64, 2));
        assert_eq!(p.b.read(mr.iova, 64), [0; 64]);
        writes(p, &mr, WcStatus::RemAccessErr);
    });
}

// abi: R-324
#[test]
fn another_pd() {
    each(|p| {
        let mr = p.b.mr(4096);
        let pdn = p.b.call(CmdCreatePd::ZERO).unwrap().pdn;
        let mut cmd = rereg(p.b, &mr, ReregFlags::PD);
        cmd.memory.base.pdn = pdn;
        p.b.call(cmd).unwrap();
        assert_eq!(p.b.call(CmdDestroyPd { pdn }).err(), Some(EBUSY));
        // Changes the PD back, together with access flags and memory.
        cmd.memory.base.pdn = p.b.pdn;
        cmd.flags = ReregFlags::ALL;
        p.b.call(cmd).unwrap();
        assert_eq!(p.b.call(CmdDestroyPd { pdn }).err(), None);
        let new = Mr { addr: 0x5000, ..mr };
        writes(p, &new, WcStatus::Success);
        cmd.flags = ReregFlags::PD;
        cmd.memory.base.pdn = p.b.call(CmdCreatePd::ZERO).unwrap().pdn;
        p.b.call(cmd).unwrap();
        writes(p, &new, WcStatus::RemAccessErr);
    });
}

#[test]
fn changes_that_are_refused() {
    type Edit = fn(&Vm, &mut CmdReregMr);
    let edits: [(&str, Edit, u8); 11] = [
        ("no MR", |_, c| c.mrn = MrNumber::new(0), EINVAL),
        // abi: R-327
        ("nothing", |_, c| c.flags = ReregFlags::NONE, EINVAL),
        ("unknown", |_, c| c.flags = ReregFlags(8), EINVAL),
        // abi: R-326
        ("PD", |_, c| c.memory.base.pdn = Pdn::new(99), EINVAL),
        (
            "access flags",
            |_, c| c.memory.base.access_flags = AccessFlags::REMOTE_WRITE,
            EINVAL,
        ),
        ("length", |_, c| c.memory.base.length = 0, EINVAL),
        ("pages", |_, c| c.memory.base.npages = 3, EINVAL),
        ("list", |_, c| c.memory.base.pages = 1 << 40, EFAULT),
        ("page size", |_, c| c.memory.page_shift = 11, EINVAL),
        ("depth", |_, c| c.memory.depth = 2, EINVAL),
        // abi: R-327
        (
            "fast registration",
            |vm, c| {
                let cmd = CmdCreateMr {
                    pdn: vm.pdn,
                    access_flags: AccessFlags::NONE,
                    max_num_sg: 1,
                };
                c.mrn = vm.call(cmd).unwrap().mrn;
            },
            EINVAL,
        ),
    ];
    each(|p| {
        let mr = p.b.mr(4096);
        for (name, edit, errno) in edits {
            // abi: R-321
            let mut cmd = rereg(p.b, &mr, ReregFlags::ALL);
            edit(p.b, &mut cmd);
            assert_eq!(p.b.call(cmd).err(), Some(errno), "{name}");
        }
        let mut moved = rereg(p.b, &mr, ReregFlags::ACCESS);
        moved.memory.base.access_flags = FULL | AccessFlags::ZERO_BASED;
        // abi: R-328
        assert_eq!(p.b.call(moved).err(), Some(EINVAL), "another base");
        // The refused changes had no effect.
        // abi: R-330
        writes(p, &mr, WcStatus::Success);
    });
}

#[test]
fn pages_stay_counted() {
    let limits = Limits {
        max_mr_pages: 4,
        ..Limits::default()
    };
    let world = World::with_limits(1, PathPolicy::Direct, limits);
    let vm = &world.vms[0];
    let mr = vm.mr(4096);
    let cmd = rereg(vm, &mr, ReregFlags::TRANSLATION);
    for _ in 0..10 {
        vm.call(cmd).unwrap();
    }
    // Two of the four pages are in use. During the change, old and new pages both count.
    let other = vm.mr(4096);
    assert_eq!(vm.call(cmd).err(), Some(ENOMEM));
    vm.call(virtio_rdma_abi::ctrl::CmdDeregMr { mrn: other.mrn })
        .unwrap();
    vm.call(cmd).unwrap();
}

// abi: R-329
#[test]
fn windows_keep_it_as_it_is() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    vm.negotiate(&[Feature::MemWindows]);
    let p = Pair::between([vm, vm], Options::default(), Options::default());
    let access = FULL | AccessFlags::MW_BIND;
    let mr = vm.register(vm.pdn, vm.alloc(4096), 4096, access);
    let mw = vm
        .call(CmdAllocMw {
            pdn: vm.pdn,
            mw_type: MwType::One.value(),
            reserved: [0; 3],
        })
        .unwrap();
    let bind = BindMw {
        addr: mr.addr,
        length: 100,
        mw_rkey: mw.rkey,
        rkey: mw.rkey,
        lkey: mr.key,
        access: AccessFlags::REMOTE_READ,
        reserved: [0; 4],
    };
    let mut wqe = Wr::new(1, WrOpcode::BindMw).bytes();
    let mut header = SqHeader::from_bytes(wqe[..SqHeader::SIZE].try_into().unwrap());
    bind.store(&mut header.wr);
    wqe[..SqHeader::SIZE].copy_from_slice(&header.to_bytes());
    p.qa.post_bytes(&wqe);
    p.cq_a.expect(1, WcStatus::Success);
    let cmd = rereg(vm, &mr, ReregFlags::ACCESS);
    assert_eq!(vm.call(cmd).err(), Some(EBUSY));
    vm.call(CmdDeallocMw { mwn: mw.mwn }).unwrap();
    assert_eq!(vm.call(cmd).err(), None);
}
