// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The peer of a connection of the hostile guest. The peer is honest: each of its work requests
//! must complete once and in order.

use std::collections::VecDeque;

use testkit::engine::{connect, sge, Cq, Mr, Options, Qp, Vm, Wr};
use verbs::Runtime;
use virtio_rdma_abi::ib::{QpState, WrOpcode};

use crate::input::Input;
use crate::stage;

/// Maximum number of outstanding work requests, less than the number of entries of the CQ.
const UNDER_WAY: usize = 12;

pub(super) struct Peer<'w> {
    pub vm: &'w Vm,
    pub qp: Qp<'w>,
    cq: Cq<'w>,
    /// The peer's memory, which the guest may read and write.
    pub mr: Mr,
    next: u64,
    /// IDs of outstanding sends and receives. Receives have odd IDs.
    waiting: [VecDeque<u64>; 2],
    is_reset: bool,
}

impl<'w> Peer<'w> {
    /// Connects a QP of `vm` with one of the guest.
    pub(super) fn new(vm: &'w Vm, options: Options, guest: &Qp<'_>) -> Self {
        let cq = Cq::new(vm, 16);
        let qp = Qp::new(vm, &cq, &cq, options);
        connect(guest, &qp);
        let mut peer = Self {
            vm,
            qp,
            cq,
            mr: vm.mr(8192),
            next: 0,
            waiting: Default::default(),
            is_reset: false,
        };
        peer.receive(0, 0);
        peer
    }

    /// Posts a work request, which may access the guest's MR `guest`.
    pub(super) fn act(&mut self, input: &mut Input<'_>, guest: &Mr) {
        self.poll();
        let under_way: usize = self.waiting.iter().map(VecDeque::len).sum();
        if self.is_reset || under_way >= UNDER_WAY {
            return;
        }
        let (at, len) = (
            input.any::<u8>().into(),
            u32::from(input.any::<u16>()) % 5000,
        );
        let opcode = input.of(&[
            WrOpcode::Send,
            WrOpcode::RdmaWrite,
            WrOpcode::RdmaRead,
            WrOpcode::AtomicFetchAndAdd,
            WrOpcode::RdmaWriteWithImm,
        ]);
        if input.once_in(4) {
            return self.receive(at, len);
        }
        let id = self.id(0);
        let len = match opcode {
            WrOpcode::AtomicFetchAndAdd => 8,
            _ => len,
        };
        let mut wr = Wr::new(id, opcode).local(&self.mr, at, len);
        wr.remote.remote_addr = input.edge(guest.addr);
        wr.remote.rkey = input.edge32(guest.key);
        self.qp.post(&wr);
    }

    fn receive(&mut self, at: u64, len: u32) {
        let id = self.id(1);
        self.qp.post_recv(id, &[sge(&self.mr, at, len)]);
    }

    /// The next ID for a work request of a queue (0 for sends, 1 for receives).
    fn id(&mut self, queue: usize) -> u64 {
        self.next += 2;
        // The lowest bit is the number of the queue.
        let id = self.next | queue as u64;
        self.waiting[queue].push_back(id);
        id
    }

    fn poll(&mut self) {
        while let Some(cqe) = self.cq.poll() {
            let expected = self.waiting[usize::from(cqe.wr_id % 2 == 1)].pop_front();
            assert_eq!(Some(cqe.wr_id), expected, "{cqe:?}");
        }
    }

    /// Changes the state of the peer's QP.
    pub(super) fn to(&mut self, state: QpState) {
        if self.is_reset {
            return;
        }
        self.poll();
        self.qp.to(state);
        if state == QpState::Reset {
            self.is_reset = true;
            self.waiting = Default::default();
        }
    }

    /// Moves the QP to the error state, and asserts that all work requests complete.
    pub(super) fn end(&mut self, runtime: &Runtime) {
        self.to(QpState::Err);
        stage::run_until_idle(runtime);
        self.poll();
        assert_eq!(self.waiting, [const { VecDeque::new() }; 2], "never ended");
    }
}
