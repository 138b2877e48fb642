// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The number of read-modify-writes of words that other threads write too. Each such operation
//! costs a transfer of a cache line between processors.

use testkit::engine::*;
use verbs::{shared_writes, HcaStatus, PathPolicy};
use virtio_rdma_abi::ib::{SigType, WrOpcode};
use virtio_rdma_abi::ring::Doorbell;

/// Number of messages.
const MESSAGES: u64 = 64;
/// Length of a message in bytes.
const SIZE: u32 = 64;
/// Maximum mean number of read-modify-writes for each message, including those of the turn.
const MOST: u64 = 2;

/// Lets a worker execute messages with `opcode` between MRs whose pages are not contiguous. Returns
/// the number of read-modify-writes of the worker.
fn writes(opcode: WrOpcode) -> u64 {
    let world = World::stepped(1, PathPolicy::Direct);
    let [a, b] = [&world.vms[0], &world.vms[1]];
    let cqs = [a, b].map(|vm| Cq::new(vm, MESSAGES as u32));
    let options = Options {
        signal: SigType::All,
        ..Options::default()
    };
    let (ours, theirs) = (
        Qp::new(a, &cqs[0], &cqs[0], options),
        Qp::new(b, &cqs[1], &cqs[1], options),
    );
    connect(&ours, &theirs);
    let len = MESSAGES * u64::from(SIZE) * 2;
    let scattered = |vm: &Vm| vm.register_reversed(vm.pdn, vm.alloc(len), len, FULL);
    // Work requests alternate between two MRs of each VM, so none has the key of the previous one.
    let [ours_mrs, their_mrs] = [a, b].map(|vm| [scattered(vm), scattered(vm)]);
    let wqe = |id: u64| {
        let [mr, peer] = [ours_mrs, their_mrs].map(|mrs| mrs[id as usize % 2]);
        let at = id * u64::from(SIZE);
        Wr::new(id, opcode)
            .local(&mr, at, SIZE)
            .remote(&peer, at)
            .bytes()
    };
    let _ = ours.post_all(&Vec::from_iter((0..MESSAGES).map(wqe)));
    ours.ring_doorbell(Doorbell::Sq);
    let before = shared_writes();
    let rests = (0..1000).any(|_| !world.runtime.step(0));
    let count = shared_writes() - before;
    assert!(rests, "a worker that does not come to rest");
    for id in 0..MESSAGES {
        assert_eq!(cqs[0].next().wr_id, id);
    }
    count
}

#[test]
fn messages_of_scattered_memory_write_to_few_shared_words() {
    for opcode in [WrOpcode::RdmaWrite, WrOpcode::RdmaRead] {
        let count = writes(opcode);
        let text = format!("{opcode:?}: {count} for {MESSAGES} messages");
        assert!((1..=MOST * MESSAGES).contains(&count), "{text}");
    }
}

/// The status of a device takes no reference to a single object, however many there are.
#[test]
fn the_status_visits_no_object() {
    const QPS: u64 = 50;
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    let cq = Cq::new(vm, 16);
    let cost = |work: &dyn Fn()| {
        let before = shared_writes();
        work();
        shared_writes() - before
    };
    let status = || {
        cost(&|| {
            let _ = vm.hca.status();
        })
    };
    let (before, without) = (vm.hca.status(), status());
    let _objects: Vec<_> = (0..QPS)
        .map(|_| {
            let qp = Qp::new(vm, &cq, &cq, Options::default());
            (Cq::new(vm, 16), vm.mr(4096), qp)
        })
        .collect();
    assert_eq!(status(), without);
    let after = vm.hca.status();
    let counts = |status: &HcaStatus| [status.qps, status.cqs, status.mrs];
    let expected = counts(&before).map(|count| count + QPS as usize);
    assert_eq!(counts(&after), expected);
    // Each QP is visited only if it is asked for.
    let each = cost(&|| assert_eq!(vm.hca.qp_status().len(), after.qps));
    assert!(each >= QPS, "{each}");
}
