// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Atomic operations on 64-bit words of the peer.

use std::sync::atomic::{AtomicBool, Ordering};

use testkit::engine::*;
use verbs::PathPolicy;
use virtio_rdma_abi::ctrl::CmdCreatePd;
use virtio_rdma_abi::ib::{AccessFlags, AsyncEvent, SendFlags, WcStatus, WrOpcode};
use virtio_rdma_abi::wire::Wire;

const OPCODES: [WrOpcode; 2] = [WrOpcode::AtomicCmpAndSwp, WrOpcode::AtomicFetchAndAdd];

fn word(vm: &Vm, iova: u64) -> u64 {
    u64::from_le_bytes(vm.read(iova, 8).try_into().unwrap())
}

#[test]
fn the_original_value_comes_back() {
    each_setup(|p| {
        let run = |opcode, compare_add, swap| {
            p.a.write(p.ma.iova, &[0xee; 8]);
            // abi
            let wr = p.wr(1, opcode, 8).operands(compare_add, swap);
            p.qa.post(&wr);
            let cqe = p.cq_a.expect(1, WcStatus::Success);
            assert_eq!((cqe.byte_len, cqe.opcode), (8, opcode.value() as u8));
            (word(p.a, p.ma.iova), word(p.b, p.mb.iova))
        };
        let start = 0x0102_0304_0506_0708u64;
        p.b.write(p.mb.iova, &start.to_le_bytes());
        let add = |add| run(WrOpcode::AtomicFetchAndAdd, add, 0xdead);
        // abi
        assert_eq!(add(0x10), (start, start + 0x10));
        // abi: R-638
        assert_eq!(add(u64::MAX), (start + 0x10, start + 0xf), "modulo 2^64");
        let swap = |compare, swap| run(WrOpcode::AtomicCmpAndSwp, compare, swap);
        // abi: R-618
        assert_eq!(swap(start, 1), (start + 0xf, start + 0xf), "not equal");
        // abi
        assert_eq!(swap(start + 0xf, 7), (start + 0xf, 7));
        assert_eq!(p.cq_b.poll(), None);
        p.responder_lives();
    });
}

// abi: R-668
#[test]
fn local_memory_in_pieces() {
    each_setup(|p| {
        p.b.write(p.mb.iova, &77u64.to_le_bytes());
        let mut wr = p.wr(1, WrOpcode::AtomicFetchAndAdd, 0).operands(1, 0);
        wr.sges = vec![sge(&p.ma, 16, 3), sge(&p.ma, 40, 5)];
        p.qa.post(&wr);
        p.cq_a.expect(1, WcStatus::Success);
        let mut original = p.a.read(p.ma.iova + 16, 3);
        original.extend(p.a.read(p.ma.iova + 40, 5));
        assert_eq!(original, 77u64.to_le_bytes());
    });
}

// abi
#[test]
fn what_the_requester_refuses() {
    type Change = fn(&Pair<'_>, &mut Wr);
    let changes: [(&str, Change, WcStatus); 5] = [
        ("short", |_, wr| wr.sges[0].length = 7, WcStatus::LocLenErr),
        ("long", |_, wr| wr.sges[0].length = 9, WcStatus::LocLenErr),
        ("none", |_, wr| wr.sges.clear(), WcStatus::LocLenErr),
        ("key", |_, wr| wr.sges[0].lkey ^= 1, WcStatus::LocProtErr),
        (
            "inline",
            |_, wr| *wr = wr.clone().inline(&[0; 8]),
            WcStatus::LocQpOpErr,
        ),
    ];
    for (name, change, status) in changes {
        eprintln!("{name}");
        each_setup(|p| {
            let mut wr = p.wr(1, WrOpcode::AtomicFetchAndAdd, 8).operands(1, 0);
            change(p, &mut wr);
            p.fails(&wr, status);
            p.responder_lives();
            assert_eq!(word(p.b, p.mb.iova), 0);
        });
    }
}

// abi
#[test]
fn local_memory_that_may_not_be_written() {
    each_setup(|p| {
        let mr = p.a.register(p.a.pdn, p.a.alloc(8), 8, AccessFlags::NONE);
        let mut wr = p.wr(1, WrOpcode::AtomicFetchAndAdd, 8);
        wr.sges = vec![sge(&mr, 0, 8)];
        p.fails(&wr, WcStatus::LocProtErr);
    });
}

// abi
#[test]
fn without_resources() {
    in_all_setups(|setup| {
        for (ours, theirs, status) in [(0, 4, WcStatus::LocQpOpErr), (4, 0, WcStatus::RemInvReqErr)]
        {
            let world = World::new(2, setup);
            let options = |rd_atomic| Options {
                rd_atomic,
                ..Options::default()
            };
            let p = Pair::with(&world, options(ours), options(theirs));
            p.fails(&p.wr(1, WrOpcode::AtomicFetchAndAdd, 8), status);
        }
    });
}

// abi
#[test]
fn misaligned_words() {
    for opcode in OPCODES {
        each_setup(|p| {
            let wr = p.wr(1, opcode, 8).remote(&p.mb, 4).operands(0, 1);
            p.fails(&wr, WcStatus::RemInvReqErr);
            p.responder_failed(Some(AsyncEvent::QpReqErr));
            assert_eq!(p.b.read(p.mb.iova, 16), [0; 16]);
        });
    }
}

// abi
#[test]
fn remote_access() {
    type Change = fn(&Pair<'_>, &mut Wr);
    let changes: [(&str, Change); 5] = [
        ("unknown key", |_, wr| wr.remote.rkey ^= 0x100_0000),
        ("stale variant", |_, wr| wr.remote.rkey ^= 1),
        ("before the MR", |_, wr| wr.remote.remote_addr -= 8),
        ("past the MR", |p, wr| wr.remote.remote_addr += p.mb.len),
        ("another PD", |p, wr| {
            let other = p.b.call(CmdCreatePd::ZERO).unwrap().pdn;
            wr.remote.rkey = p.b.register(other, p.b.alloc(8), 8, FULL).key;
        }),
    ];
    for (name, change) in changes {
        for opcode in OPCODES {
            eprintln!("{name}, {opcode:?}");
            each_setup(|p| {
                let mut wr = p.wr(1, opcode, 8);
                change(p, &mut wr);
                p.fails(&wr, WcStatus::RemAccessErr);
                p.responder_failed(Some(AsyncEvent::QpAccessErr));
            });
        }
    }
}

#[test]
fn remote_access_flags() {
    let access = FULL.without(AccessFlags::REMOTE_ATOMIC);
    for opcode in OPCODES {
        each_setup(|p| {
            let mr = p.b.register(p.b.pdn, p.b.alloc(8), 8, access);
            // abi
            p.fails(&p.wr(1, opcode, 8).remote(&mr, 0), WcStatus::RemAccessErr);
            p.responder_failed(Some(AsyncEvent::QpAccessErr));
        });
        in_all_setups(|setup| {
            let world = World::new(2, setup);
            let theirs = Options {
                access,
                ..Options::default()
            };
            let p = Pair::with(&world, Options::default(), theirs);
            // abi
            p.fails(&p.wr(1, opcode, 8), WcStatus::RemInvReqErr);
            p.responder_failed(Some(AsyncEvent::QpReqErr));
        });
    }
}

/// QPs of two VMs and the CPU of a third VM add to a word in the memory of the third VM at the same
/// time.
// abi
#[test]
fn nothing_is_lost_between_qps_and_cpu() {
    const TIMES: u64 = 400;
    in_all_setups(|setup| {
        let world = World::new(3, setup);
        let owner = &world.vms[2];
        let counter = owner.mr(8);
        let (counted, done) = (AtomicBool::new(false), AtomicBool::new(false));
        let by_cpu = std::thread::scope(|scope| {
            let cpu = scope.spawn(|| {
                let mut times = 0u64;
                while !done.load(Ordering::Relaxed) {
                    let view = owner.space.enter();
                    let word = view.slice_mut(counter.iova, 8).unwrap();
                    word.fetch_add_u64(0, 1).unwrap();
                    times += 1;
                    counted.store(true, Ordering::Relaxed);
                }
                times
            });
            let adders: Vec<_> = world.vms[..2]
                .iter()
                .map(|vm| scope.spawn(move || add(vm, owner, &counter, TIMES)))
                .collect();
            let added: Vec<_> = adders.into_iter().map(|adder| adder.join()).collect();
            wait("the CPU to count", || {
                counted.load(Ordering::Relaxed).then_some(())
            });
            // Ends the CPU's thread before an `unwrap` can panic, since the scope waits for the
            // thread.
            done.store(true, Ordering::Relaxed);
            let by_cpu = cpu.join().unwrap();
            for result in added {
                result.unwrap();
            }
            by_cpu
        });
        assert_eq!(word(owner, counter.iova), by_cpu + 2 * TIMES);
    });
}

/// Adds 1 to `counter`, in memory of the VM `owner`, over a new QP. Repeats this `times` times and
/// checks that the original values increase.
fn add(vm: &Vm, owner: &Vm, counter: &Mr, times: u64) {
    let p = Pair::between([vm, owner], Options::default(), Options::default());
    let mut last = None;
    for id in 0..times {
        let wr = p.wr(id, WrOpcode::AtomicFetchAndAdd, 8).operands(1, 0);
        p.qa.post(&wr.remote(counter, 0));
        p.cq_a.expect(id, WcStatus::Success);
        let seen = Some(word(vm, p.ma.iova));
        assert!(seen > last, "{seen:?} after {last:?}");
        last = seen;
    }
}

/// More atomic operations are posted than may be outstanding: the others wait. A work request with
/// a fence waits for all of them.
// abi
#[test]
fn many_at_once_and_a_fence() {
    each_setup(|p| {
        for id in 0..16 {
            let mut wr = p.wr(id, WrOpcode::AtomicFetchAndAdd, 0).operands(1, 0);
            wr.sges = vec![sge(&p.ma, id * 8, 8)];
            p.qa.post(&wr);
        }
        let mut read = p.wr(16, WrOpcode::RdmaRead, 0);
        read.sges = vec![sge(&p.ma, 16 * 8, 8)];
        p.qa.post(&read);
        // The SEND transfers the values that the earlier operations fetched.
        let mut send = p.wr(17, WrOpcode::Send, 17 * 8);
        send.flags = SendFlags::SIGNALED | SendFlags::FENCE;
        p.qb.post_recv(1, &[sge(&p.mb, 4096, 17 * 8)]);
        p.qa.post(&send);
        for id in 0..18 {
            p.cq_a.expect(id, WcStatus::Success);
        }
        p.cq_b.expect(1, WcStatus::Success);
        for n in 0..17 {
            assert_eq!(word(p.b, p.mb.iova + 4096 + n * 8), n);
        }
    });
}

/// A request that is repeated because its response got lost is not executed again.
#[test]
fn each_is_executed_once_on_a_lossy_network() {
    in_both_modes(PathPolicy::Wire, |setup| {
        const TIMES: u64 = 300;
        let world = World::new(2, setup);
        let p = Pair::new(&world);
        world.net.lose_one_in.store(10, Ordering::Relaxed);
        for n in 0..TIMES {
            let wr = p.wr(n, WrOpcode::AtomicFetchAndAdd, 8).operands(1, 0);
            p.qa.post(&wr);
            p.cq_a.expect(n, WcStatus::Success);
            assert_eq!(word(p.a, p.ma.iova), n);
        }
        assert_eq!(word(p.b, p.mb.iova), TIMES);
    });
}
