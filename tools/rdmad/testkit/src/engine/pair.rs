// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Pairs of connected QPs.

use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::ib::{AsyncEvent, QpState, QpType, WcStatus, WrOpcode};
use virtio_rdma_abi::ring::Doorbell;

use super::{connect, in_all_setups, on_both_paths, Cq, Mr, Options, Qp, Vm, World, Wr};
use crate::wait;

/// Two connected QPs in state RTS, with a CQ and an MR on each side.
pub struct Pair<'vm> {
    pub a: &'vm Vm,
    pub b: &'vm Vm,
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
        Self::between([&world.vms[0], &world.vms[1]], ours, theirs)
    }

    /// A pair in the VMs `a` and `b`, which may be the same VM.
    pub fn between([a, b]: [&'vm Vm; 2], ours: Options, theirs: Options) -> Self {
        let (cq_a, cq_b) = (Cq::new(a, 64), Cq::new(b, 64));
        let qa = Qp::new(a, &cq_a, &cq_a, ours);
        let qb = Qp::new(b, &cq_b, &cq_b, theirs);
        connect(&qa, &qb);
        Self {
            a,
            b,
            ma: a.mr(1 << 16),
            mb: b.mr(1 << 16),
            cq_a,
            cq_b,
            qa,
            qb,
        }
    }

    pub fn send(&self, id: u64, len: u32) -> Wr {
        self.wr(id, WrOpcode::Send, len)
    }

    /// A work request of A with the first `len` bytes of A's MR as local memory and the start of
    /// B's MR as remote memory.
    pub fn wr(&self, id: u64, opcode: WrOpcode, len: u32) -> Wr {
        let wr = Wr::new(id, opcode)
            .local(&self.ma, 0, len)
            .remote(&self.mb, 0);
        match self.qa.options.qp_type {
            QpType::Ud | QpType::Gsi => wr.to(&self.qb),
            _ => wr,
        }
    }

    /// Posts a WRITE at A, and rings the doorbell only if the device requests it. Returns whether
    /// the device requested the doorbell.
    pub fn write(&self, id: u64) -> bool {
        let wr = self.wr(id, WrOpcode::RdmaWrite, 8);
        let asked = self.qa.post_all(&[wr.bytes()]);
        if asked {
            self.qa.ring_doorbell(Doorbell::Sq);
        }
        asked
    }

    /// Like [`write`](Self::write), but also waits for the completion of the WRITE.
    pub fn write_and_wait(&self, id: u64) -> bool {
        let asked = self.write(id);
        self.cq_a.expect(id, WcStatus::Success);
        asked
    }

    /// Posts `wr`, a SEND and a receive at A. Checks that `wr` fails with `status` and that the
    /// device flushes the SEND and the receive.
    pub fn fails(&self, wr: &Wr, status: WcStatus) {
        self.qa.post(wr);
        self.qa.post(&self.send(98, 1));
        self.qa.post_recv(99, &[]);
        self.cq_a.expect(wr.id, status);
        // SEND and receive are flushed in any order: the device may fail the QP before they are
        // posted.
        let mut flushed = [(); 2].map(|()| {
            let cqe = self.cq_a.next();
            (cqe.wr_id, WcStatus::try_from(cqe.status).unwrap())
        });
        flushed.sort_by_key(|(wr_id, _)| *wr_id);
        assert_eq!(flushed, [98, 99].map(|id| (id, WcStatus::WrFlushErr)));
        assert_eq!(self.qa.state(), QpState::Err);
    }

    /// Waits until B has processed all packets that A has sent.
    pub fn await_delivery(&self) {
        // The last packet is a datagram with a wrong Q_Key. When B has counted it, B has processed
        // all earlier packets.
        let options = Options::of(QpType::Ud);
        let (cq_a, cq_b) = (Cq::new(self.a, 64), Cq::new(self.b, 64));
        let from = Qp::new(self.a, &cq_a, &cq_a, options);
        let to = Qp::new(self.b, &cq_b, &cq_b, options);
        connect(&from, &to);
        let before = self.b.violations();
        let mut wr = Wr::new(0, WrOpcode::Send).to(&to);
        if let Some(to) = &mut wr.to {
            to.remote_qkey ^= 1;
        }
        from.post(&wr);
        wait("all to arrive", || {
            (self.b.violations() != before).then_some(())
        });
        from.destroy().unwrap();
        to.destroy().unwrap();
        cq_a.destroy().unwrap();
        cq_b.destroy().unwrap();
    }

    /// Waits until B is in state ERR and has raised exactly the event `event`, if any.
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

/// Runs `test` with a new pair on each data path.
pub fn each(test: impl Fn(&Pair<'_>)) {
    each_with(Options::default(), test);
}

/// Like [`each`], with QPs that have these options.
pub fn each_with(options: Options, test: impl Fn(&Pair<'_>)) {
    on_both_paths(|path| test(&Pair::with(&World::new(2, path), options, options)));
}

/// Runs `test` with a new pair on each data path, with own rings and in virtqueue mode.
pub fn each_setup(test: impl Fn(&Pair<'_>)) {
    each_setup_with(Options::default(), test);
}

/// Like [`each_setup`], with QPs that have these options.
pub fn each_setup_with(options: Options, test: impl Fn(&Pair<'_>)) {
    in_all_setups(|setup| test(&Pair::with(&World::new(2, setup), options, options)));
}
