// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Every error ends in the completion that the IBTA names, on both paths, and harms the QPs concerned only.

mod flush;
mod local;
mod remote;
mod retry;

use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::ib::{AsyncEvent, QpState, WcStatus, WrOpcode};

use crate::harness::*;

/// A connection between two VMs, and an MR on each side.
pub struct Pair<'vm> {
    pub cq_a: Cq<'vm>,
    pub cq_b: Cq<'vm>,
    pub qa: Qp<'vm>,
    pub qb: Qp<'vm>,
    pub ma: Mr,
    pub mb: Mr,
}

impl<'vm> Pair<'vm> {
    pub fn new(world: &'vm World) -> Self {
        Self::with(world, Options::default(), Options::default())
    }

    pub fn with(world: &'vm World, ours: Options, theirs: Options) -> Self {
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

    pub fn send(&self, id: u64, len: u32) -> Wr {
        Wr::new(id, WrOpcode::Send).local(&self.ma, 0, len)
    }

    /// Posts `wr` at A and two more, of which the device must flush the rest, and expects `status`.
    pub fn fails(&self, wr: &Wr, status: WcStatus) {
        self.qa.post(wr);
        self.qa.post(&self.send(98, 1));
        self.qa.post_recv(99, &[]);
        self.cq_a.expect(wr.id, status);
        self.cq_a.expect(98, WcStatus::WrFlushErr);
        self.cq_a.expect(99, WcStatus::WrFlushErr);
        assert_eq!(self.qa.state(), QpState::Err);
    }

    /// B is in ERR with this event, and flushes.
    pub fn responder_failed(&self, event: Option<AsyncEvent>) {
        self.qb.wait_for(QpState::Err);
        if let Some(event) = event {
            self.qb
                .vm
                .sink
                .expect(EventKind::Async(event), self.qb.cookie);
        }
        assert!(self.qb.vm.sink.is_empty());
    }

    pub fn responder_lives(&self) {
        assert_eq!(self.qb.state(), QpState::Rts);
        assert!(self.qb.vm.sink.is_empty());
    }
}

/// Runs `test` on a fresh pair, on both paths.
pub fn each(test: impl Fn(&Pair<'_>)) {
    on_both_paths(|path| test(&Pair::new(&World::new(2, path))));
}
