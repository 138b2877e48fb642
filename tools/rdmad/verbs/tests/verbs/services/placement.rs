// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Atomic WRITE and FLUSH (IBTA annex A19).

use testkit::engine::*;
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{
    AccessFlags, AsyncEvent, FlushLevel, FlushTypes, QpState, QpType, WcStatus, WrOpcode,
};
use virtio_rdma_abi::wqe::{AtomicWrite, Flush};

const GLOBAL: FlushTypes = FlushTypes::GLOBAL;
const PERSISTENT: FlushTypes = FlushTypes::PERSISTENT;
const FLUSHABLE: AccessFlags = AccessFlags(FULL.0 | AccessFlags::FLUSH_GLOBAL.0);

/// Options of a QP that admits FLUSHes of all types.
fn options() -> Options {
    Options {
        access: FULL | AccessFlags::FLUSH_GLOBAL | AccessFlags::FLUSH_PERSISTENT,
        ..Options::default()
    }
}

fn each_with(options: Options, test: impl Fn(&Pair<'_>)) {
    in_all_setups(|setup| {
        let world = World::new(2, setup);
        world.negotiate(&[Feature::AtomicWrite, Feature::Flush, Feature::MemWindows]);
        test(&Pair::with(&world, options, options));
    });
}

fn atomic_write(id: u64, mr: &Mr, offset: u64, data: [u8; 8]) -> Vec<u8> {
    let write = AtomicWrite {
        remote_addr: mr.addr + offset,
        data,
        rkey: mr.key,
    };
    wqe(id, WrOpcode::AtomicWrite, 0, &write)
}

fn flush_of(mr: &Mr) -> Flush {
    Flush {
        remote_addr: mr.addr,
        length: 0x1000,
        // abi: R-744
        rkey: mr.key,
        // abi
        types: GLOBAL,
        level: FlushLevel::Range.value(),
        reserved: [0; 6],
    }
}

fn flush(id: u64, flush: &Flush) -> Vec<u8> {
    wqe(id, WrOpcode::Flush, 0, flush)
}

fn flushable(vm: &Vm) -> Mr {
    vm.register(vm.pdn, vm.alloc(0x1000), 0x1000, FLUSHABLE)
}

// abi
#[test]
fn words_are_written_in_order() {
    each_with(options(), |p| {
        // More atomic WRITEs than may be outstanding.
        for id in 0..40u64 {
            let data = (id + 1).to_le_bytes();
            p.qa.post_bytes(&atomic_write(id, &p.mb, 8 * (id % 5), data));
        }
        for id in 0..40 {
            let cqe = p.cq_a.expect(id, WcStatus::Success);
            assert_eq!(cqe.opcode, WrOpcode::AtomicWrite.value() as u8);
        }
        let words: Vec<u64> = (36..=40).collect();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(p.b.read(p.mb.iova, 40), bytes);
        p.responder_lives();
    });
}

// abi
#[test]
fn words_that_are_refused() {
    type Edit = fn(&Pair<'_>) -> (Mr, u64);
    let edits: [(&str, Edit, WcStatus); 4] = [
        ("misaligned", |p| (p.mb, 4), WcStatus::RemInvReqErr),
        ("past the end", |p| (p.mb, 1 << 16), WcStatus::RemAccessErr),
        (
            "key",
            |p| {
                let key = p.mb.key ^ 1;
                (Mr { key, ..p.mb }, 0)
            },
            WcStatus::RemAccessErr,
        ),
        (
            "access flag",
            |p| {
                let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
                (p.b.register(p.b.pdn, p.b.alloc(64), 64, access), 0)
            },
            WcStatus::RemAccessErr,
        ),
    ];
    for (name, edit, status) in edits {
        eprintln!("{name}");
        each_with(options(), |p| {
            let (mr, offset) = edit(p);
            p.qa.post_bytes(&atomic_write(1, &mr, offset, [1; 8]));
            p.cq_a.expect(1, status);
            let event = match status {
                WcStatus::RemInvReqErr => AsyncEvent::QpReqErr,
                _ => AsyncEvent::QpAccessErr,
            };
            p.responder_failed(Some(event));
            assert_eq!(p.b.read(p.mb.iova, 16), [0; 16]);
        });
    }
    let closed = Options {
        access: AccessFlags::REMOTE_READ,
        ..Options::default()
    };
    each_with(closed, |p| {
        p.qa.post_bytes(&atomic_write(1, &p.mb, 0, [1; 8]));
        p.cq_a.expect(1, WcStatus::RemInvReqErr);
        p.responder_failed(Some(AsyncEvent::QpReqErr));
    });
}

#[test]
fn what_was_written_is_flushed() {
    each_with(options(), |p| {
        // abi: R-296
        let mr = flushable(p.b);
        p.a.write(p.ma.iova, &pattern(0x1000, 3));
        // abi: R-753
        let region = Flush {
            // abi: R-742
            remote_addr: 0,
            // abi: R-743
            length: u32::MAX,
            // abi: R-746
            level: FlushLevel::Mr.value(),
            ..flush_of(&mr)
        };
        let empty = Flush {
            length: 0,
            ..flush_of(&mr)
        };
        // abi: R-752
        for (round, wanted) in [flush_of(&mr), empty, region].iter().enumerate() {
            p.qa.post(&p.wr(1, WrOpcode::RdmaWrite, 0x1000).remote(&mr, 0));
            // abi: R-755
            for id in 2..30 {
                p.qa.post_bytes(&flush(id, wanted));
            }
            p.cq_a.expect(1, WcStatus::Success);
            for id in 2..30 {
                let cqe = p.cq_a.expect(id, WcStatus::Success);
                // abi: R-624
                assert_eq!(cqe.opcode, WrOpcode::Flush.value() as u8);
            }
            assert_eq!(p.b.read(mr.iova, 0x1000), pattern(0x1000, 3), "{round}");
        }
        p.responder_lives();
    });
}

#[test]
fn flushes_that_are_refused() {
    type Edit = fn(&Pair<'_>, &mut Flush);
    let edits: [(&str, Edit, WcStatus); 7] = [
        // abi
        (
            "persistent",
            |_, f| f.types = PERSISTENT,
            WcStatus::RemAccessErr,
        ),
        (
            "both",
            |_, f| f.types = GLOBAL | PERSISTENT,
            WcStatus::RemAccessErr,
        ),
        // abi: R-743
        ("past the end", |_, f| f.length += 1, WcStatus::RemAccessErr),
        // abi
        (
            "access flag of all",
            |p, f| (f.rkey, f.level) = (p.mb.key, FlushLevel::Mr.value()),
            WcStatus::RemAccessErr,
        ),
        // abi: R-754
        (
            "no type",
            |_, f| f.types = FlushTypes::NONE,
            WcStatus::LocQpOpErr,
        ),
        // abi: R-746
        ("level", |_, f| f.level = 2, WcStatus::LocQpOpErr),
        // abi: R-747
        ("reserved", |_, f| f.reserved[5] = 1, WcStatus::LocQpOpErr),
    ];
    for (name, edit, status) in edits {
        eprintln!("{name}");
        each_with(options(), |p| {
            let mut wanted = flush_of(&flushable(p.b));
            edit(p, &mut wanted);
            p.qa.post_bytes(&flush(1, &wanted));
            p.cq_a.expect(1, status);
            match status {
                WcStatus::LocQpOpErr => p.responder_lives(),
                _ => p.responder_failed(Some(AsyncEvent::QpAccessErr)),
            }
        });
    }
    each_with(Options::default(), |p| {
        p.qa.post_bytes(&flush(1, &flush_of(&flushable(p.b))));
        // abi: R-756
        p.cq_a.expect(1, WcStatus::RemInvReqErr);
        p.responder_failed(Some(AsyncEvent::QpReqErr));
    });
}

/// A responder executes atomic WRITEs and FLUSHes if the MR has the access flags, even if its
/// driver has negotiated neither feature now.
// abi: R-760
#[test]
fn a_responder_serves_both_by_access_flags_alone() {
    each_with(options(), |p| {
        let mr = flushable(p.b);
        p.b.negotiate(&[]);
        p.qa.post_bytes(&atomic_write(1, &mr, 8, [0x5a; 8]));
        p.qa.post_bytes(&flush(2, &flush_of(&mr)));
        for id in [1, 2] {
            p.cq_a.expect(id, WcStatus::Success);
        }
        assert_eq!(p.b.read(mr.iova + 8, 8), [0x5a; 8]);
        p.responder_lives();
    });
}

// abi
#[test]
fn without_the_features_there_are_neither() {
    in_all_setups(|setup| {
        for opcode in [WrOpcode::AtomicWrite, WrOpcode::Flush] {
            let world = World::new(2, setup);
            let p = Pair::new(&world);
            p.qa.post(&p.wr(1, opcode, 8));
            p.cq_a.expect(1, WcStatus::LocQpOpErr);
            p.responder_lives();
        }
    });
    for qp_type in [QpType::Uc, QpType::Ud] {
        each_with(Options::of(qp_type), |p| {
            p.qa.post_bytes(&flush(1, &flush_of(&p.mb)));
            p.cq_a.expect(1, WcStatus::LocQpOpErr);
            assert_eq!(p.qa.state(), QpState::Sqe);
        });
    }
}
