// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Asynchronous events of several objects while the event virtqueue has no buffers.

use std::sync::atomic::Ordering;

use testkit::engine::*;
use verbs::PathPolicy;
use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::ib::{AsyncEvent, QpState, WcStatus, WrOpcode};

// abi
#[test]
fn they_wait_for_buffers() {
    let world = World::new(2, PathPolicy::Direct);
    let pairs: Vec<_> = (0..3).map(|_| Pair::new(&world)).collect();
    let b = &world.vms[1];
    b.sink.buffers.store(0, Ordering::SeqCst);
    for p in &pairs {
        // An R_Key that B does not have.
        let mut wr = p.wr(1, WrOpcode::RdmaWrite, 8);
        wr.remote.rkey = 0;
        p.qa.post(&wr);
        p.cq_a.expect(1, WcStatus::RemAccessErr);
        p.qb.wait_for(QpState::Err);
    }
    for up in [false, true, false] {
        b.hca.set_link(up);
    }
    pairs[1].qb.destroy().unwrap();
    assert!(b.sink.is_empty());
    b.sink.buffers.store(100, Ordering::SeqCst);
    b.hca.notified(1);
    for index in [0, 2] {
        let access = EventKind::Async(AsyncEvent::QpAccessErr);
        b.sink.expect(access, pairs[index].qb.cookie);
    }
    b.sink.expect(EventKind::Async(AsyncEvent::PortErr), 1);
    b.sink.expect(EventKind::Async(AsyncEvent::PortActive), 1);
    assert!(b.sink.is_empty(), "none of what is gone, and none twice");
}
