// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A connection over a network that loses, duplicates and reorders frames, and into which a third
//! party, the *speaker*, injects packets.
//!
//! Packets that the speaker sends from its own address must have no effect. In some inputs the
//! speaker forges the peer's address. Then all work requests must still complete, each once, and no
//! memory outside of the MRs may change.

mod bodies;

use std::collections::VecDeque;
use std::sync::Arc;

use roce::headers::Body;
use roce::packet::{build, frame_size};
use roce::{Packet, Psn};
use testkit::engine::{connect, mac, pattern, sge, Cq, InFlight, Mr, Options, Qp, Vm, Wr};
use verbs::{PathPolicy, Runtime};
use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_abi::ib::{Mtu, QpState, QpType, WcFlags, WcStatus, WrOpcode};
use virtio_rdma_abi::number::Qpn;

use crate::input::Input;
use crate::stage;

use self::bodies::{aeth_of, other_body, reth_of};

const ACTS: usize = 80;
/// Length of an area in bytes. Each work request uses its own area.
const AREA: u64 = 4096;
/// Maximum number of outstanding work requests.
const OUTSTANDING: usize = 7;
const AREAS: u64 = 8;
/// Maximum number of consecutive lost frames, so small that no requester fails.
const LOSSES: usize = 3;
/// Number of rounds after which outstanding work counts as endless.
const ROUNDS: usize = 2000;
/// Length in bytes of the GRH at the start of a datagram's receive buffer.
const GRH: u64 = 40;

/// Runs the target.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let runtime = stage::runtime(PathPolicy::Wire);
    let net = Arc::new(InFlight::default());
    let vms = [1, 2].map(|n| {
        let port = net.port(mac(n));
        let vm = Vm::new(n, &runtime, port.clone(), &stage::limits());
        port.attach(&vm.hca);
        vm
    });
    {
        let mut talk = Talk::new(&runtime, &net, &vms, &mut input);
        for _ in 0..ACTS {
            if !input.has_more() {
                break;
            }
            talk.act(&mut input);
        }
        talk.finish();
    }
    stage::is_sound(&runtime, &vms);
    for vm in &vms {
        vm.hca.detach();
    }
}

/// A work request, and the data that it transfers.
struct Sent {
    id: u64,
    opcode: WrOpcode,
    data: Vec<u8>,
}

struct Talk<'w> {
    runtime: &'w Runtime,
    net: &'w InFlight,
    qp_type: QpType,
    /// Whether the speaker forges the address of the peer.
    forges: bool,
    cqs: [Cq<'w>; 2],
    qps: [Qp<'w>; 2],
    mrs: [Mr; 2],
    guards: [u64; 2],
    sent: VecDeque<Sent>,
    /// Sent messages that the receiver has not received yet.
    messages: VecDeque<(Vec<u8>, Option<[u8; 4]>)>,
    receives: VecDeque<u64>,
    posted: u64,
    posted_receives: u64,
    lost: usize,
    /// A frame that was delivered earlier.
    old: Option<Vec<u8>>,
}

impl<'w> Talk<'w> {
    fn new(
        runtime: &'w Runtime,
        net: &'w InFlight,
        vms: &'w [Vm; 2],
        input: &mut Input<'_>,
    ) -> Self {
        let qp_type = input.of(&[QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud]);
        let forges = input.once_in(3);
        let options = Options {
            slots: 16,
            mtu: Mtu::Mtu256,
            timeout: 10,
            rd_atomic: 2,
            ..Options::of(qp_type)
        };
        let [a, b] = [&vms[0], &vms[1]];
        let cqs = [a, b].map(|vm| Cq::new(vm, 64));
        let qps = [
            Qp::new(a, &cqs[0], &cqs[0], options),
            Qp::new(b, &cqs[1], &cqs[1], options),
        ];
        connect(&qps[0], &qps[1]);
        let guards = [a, b].map(|vm| {
            let guard = vm.alloc(4096);
            vm.write(guard, &[0x5a; 4096]);
            guard
        });
        let mrs = [a, b].map(|vm| vm.mr(3 * AREAS * AREA));
        // The source of A's READs.
        let source = pattern((AREAS * AREA) as usize, 99);
        b.write(mrs[1].iova + AREAS * AREA, &source);
        Self {
            runtime,
            net,
            qp_type,
            forges,
            cqs,
            qps,
            mrs,
            guards,
            sent: VecDeque::new(),
            messages: VecDeque::new(),
            receives: VecDeque::new(),
            posted: 0,
            posted_receives: 0,
            lost: 0,
            old: None,
        }
    }

    fn act(&mut self, input: &mut Input<'_>) {
        match input.below(12) {
            0..=2 => self.post(input),
            3 => self.post_receive(),
            4..=5 => {
                stage::step(self.runtime, input.below(2));
                stage::work(self.runtime);
            }
            6 => self.network(input),
            7 => {
                self.deliver_all();
                stage::work(self.runtime);
            }
            8..=10 => self.speak(input),
            _ => {
                // All frames in flight are delivered before the clock advances, so no frame causes
                // a timeout.
                self.deliver_all();
                stage::work(self.runtime);
                self.deliver_all();
                stage::work(self.runtime);
                stage::pass(self.runtime);
                stage::work(self.runtime);
                while self.poll() {}
            }
        }
    }

    /// Posts a work request to A's send queue.
    fn post(&mut self, input: &mut Input<'_>) {
        if self.sent.len() >= OUTSTANDING {
            return;
        }
        let opcodes: &[WrOpcode] = match self.qp_type {
            QpType::Rc => &[
                WrOpcode::Send,
                WrOpcode::SendWithImm,
                WrOpcode::RdmaWrite,
                WrOpcode::RdmaRead,
            ],
            QpType::Uc => &[WrOpcode::Send, WrOpcode::SendWithImm, WrOpcode::RdmaWrite],
            _ => &[WrOpcode::Send, WrOpcode::SendWithImm],
        };
        let opcode = input.of(opcodes);
        let len = match self.qp_type {
            QpType::Ud => input.below(256),
            _ => input.below(8) * 255 + input.below(256),
        };
        self.posted += 1;
        let id = self.posted << 1;
        let area = (self.posted % AREAS) * AREA;
        let [ours, theirs] = &self.mrs;
        let data = match opcode {
            WrOpcode::RdmaRead => {
                pattern((AREAS * AREA) as usize, 99)[area as usize..][..len].to_vec()
            }
            _ => pattern(len, id),
        };
        let mut wr = Wr::new(id, opcode).local(ours, area, len as u32);
        let imm = (id as u32).to_be_bytes();
        match opcode {
            WrOpcode::RdmaRead => wr = wr.remote(theirs, AREAS * AREA + area),
            WrOpcode::RdmaWrite => {
                self.qps[0].vm.write(ours.iova + area, &data);
                wr = wr.remote(theirs, area);
            }
            _ => {
                self.qps[0].vm.write(ours.iova + area, &data);
                let with_imm = (opcode == WrOpcode::SendWithImm).then_some(imm);
                wr = wr.imm(imm);
                self.messages.push_back((data.clone(), with_imm));
            }
        }
        if self.qp_type == QpType::Ud {
            wr = wr.to(&self.qps[1]);
        }
        self.sent.push_back(Sent { id, opcode, data });
        self.qps[0].post(&wr);
    }

    /// Posts a receive at B.
    fn post_receive(&mut self) {
        if self.receives.len() >= OUTSTANDING {
            return;
        }
        self.posted_receives += 1;
        let id = (self.posted_receives << 1) | 1;
        self.receives.push_back(id);
        let at = receive_area(id);
        self.qps[1].post_recv(id, &[sge(&self.mrs[1], at, AREA as u32)]);
    }

    fn deliver_all(&mut self) {
        while self.net.flying() > 0 {
            self.old = self.net.copy(0).or(self.old.take());
            self.net.deliver(0);
        }
        self.lost = 0;
    }

    fn network(&mut self, input: &mut Input<'_>) {
        let flying = self.net.flying();
        if flying == 0 {
            return;
        }
        let at = input.below(flying.min(256));
        match input.below(4) {
            0 if self.lost < LOSSES => {
                self.lost += 1;
                self.net.lose(at);
            }
            // A duplicate is delivered only with RC, because other services don't detect it.
            1 if self.qp_type == QpType::Rc => {
                if let Some(copy) = self.net.copy(at) {
                    self.net.inject(&copy);
                }
            }
            2 if self.qp_type == QpType::Rc => {
                // A corrupted copy. The ICRC detects the corruption, except in bits that it does
                // not cover: the copy is then a duplicate.
                if let Some(mut copy) = self.net.copy(at) {
                    let flip = input.below(copy.len().min(256));
                    copy[flip] ^= 1 << input.below(8);
                    self.net.inject(&copy);
                }
            }
            _ => {
                self.net.deliver(at);
                stage::work(self.runtime);
            }
        }
    }

    /// Injects a frame of the speaker that resembles a frame of the connection.
    fn speak(&mut self, input: &mut Input<'_>) {
        let flying = self.net.flying();
        let model = match input.below(3) {
            0 if flying > 0 => self.net.copy(input.below(flying.min(256))),
            _ => self.old.clone(),
        };
        let Some(model) = model else {
            return;
        };
        let Ok(packet) = Packet::parse(&model) else {
            return;
        };
        let Packet {
            mut path,
            ident,
            mut headers,
            payload,
            ..
        } = packet;
        let mut payload = payload.to_vec();
        if !self.forges {
            path.src_mac = mac(3);
        }
        let bth = &mut headers.bth;
        match input.below(6) {
            0 => bth.psn = Psn::new(bth.psn.value().wrapping_add(input.below(8) as u32)),
            1 => bth.psn = Psn::new(bth.psn.value().wrapping_sub(input.below(8) as u32)),
            2 => bth.psn = Psn::new(input.any()),
            _ => {}
        }
        bth.ack_req ^= input.once_in(4);
        bth.solicited ^= input.once_in(4);
        if input.once_in(8) {
            bth.pkey = input.any();
        }
        if input.once_in(8) {
            bth.dest_qpn = Qpn::new(input.any()).cut();
        }
        if input.once_in(2) {
            headers.body = other_body(headers.body, &self.mrs[1], input);
        } else if let Some(reth) = reth_of(&mut headers.body) {
            reth.va = input.edge(reth.va);
            reth.length = input.edge32(reth.length);
        }
        if let Some(aeth) = aeth_of(&mut headers.body) {
            aeth.msn = aeth.msn.wrapping_add(input.below(4) as u32) & 0xff_ffff;
        }
        if let (Body::Ud { deth, .. }, false) = (&mut headers.body, self.forges) {
            // A speaker with its own address does not know the Q_Key.
            deth.qkey ^= 1 << input.below(32);
        }
        if !headers.body.has_payload() {
            payload.clear();
        } else if input.once_in(3) {
            payload = vec![0xbb; input.below(256) + input.below(2)];
        } else {
            payload.iter_mut().for_each(|byte| *byte ^= 0xff);
        }
        let mut frame = vec![0; frame_size(&path, &headers.body, payload.len())];
        let fill = |into: &mut [u8]| {
            into.copy_from_slice(&payload);
            Ok::<_, ()>(())
        };
        build(&mut frame, &path, ident, &headers, payload.len(), fill).unwrap();
        self.net.inject(&frame);
        if input.once_in(2) {
            stage::work(self.runtime);
        }
    }

    /// Polls both CQs. Returns whether there was a completion.
    fn poll(&mut self) -> bool {
        let sent = self.cqs[0].poll();
        let received = self.cqs[1].poll();
        if let Some(cqe) = &sent {
            self.send_ended(cqe);
        }
        if let Some(cqe) = &received {
            self.receive_ended(cqe);
        }
        sent.is_some() || received.is_some()
    }

    fn send_ended(&mut self, cqe: &Cqe) {
        let sent = self.sent.pop_front().expect("a completion of nothing");
        assert_eq!(cqe.wr_id, sent.id, "in order: {cqe:?}");
        if self.forges {
            return;
        }
        assert_eq!(cqe.status, WcStatus::Success.value(), "{cqe:?}");
        let area = ((sent.id >> 1) % AREAS) * AREA;
        let place = match (sent.opcode, self.qp_type) {
            (WrOpcode::RdmaRead, _) => Some(0),
            (WrOpcode::RdmaWrite, QpType::Rc) => Some(1),
            _ => None,
        };
        if let Some(side) = place {
            let at = self.mrs[side].iova + area;
            let there = self.qps[side].vm.read(at, sent.data.len());
            assert!(there == sent.data, "{:?} altered", sent.opcode);
        }
    }

    fn receive_ended(&mut self, cqe: &Cqe) {
        let id = self.receives.pop_front().expect("a completion of nothing");
        assert_eq!(cqe.wr_id, id, "in order: {cqe:?}");
        if self.forges {
            return;
        }
        assert_eq!(cqe.status, WcStatus::Success.value(), "{cqe:?}");
        let header = if self.qp_type == QpType::Ud { GRH } else { 0 };
        let len = u64::from(cqe.byte_len) - header;
        let at = self.mrs[1].iova + receive_area(id) + header;
        let data = self.qps[1].vm.read(at, len as usize);
        let imm = cqe.wc_flags.contains(WcFlags::WITH_IMM).then_some(cqe.ex);
        let message = (data, imm);
        let at = self.messages.iter().position(|sent| *sent == message);
        let at = at.expect("a message that was not sent, or comes late");
        // Messages of unreliable services may be lost and reordered.
        assert!(at == 0 || self.qp_type != QpType::Rc, "messages are lost");
        self.messages.remove(at);
    }

    /// Asserts that each work request completes once, as the transport service guarantees.
    fn finish(mut self) {
        for _ in 0..ROUNDS {
            stage::work(self.runtime);
            let mut moved = self.net.flying() > 0;
            self.deliver_all();
            moved |= self.poll();
            while self.receives.len() < self.messages.len().min(OUTSTANDING) {
                self.post_receive();
                moved = true;
            }
            if !moved && !stage::pass(self.runtime) {
                break;
            }
        }
        if !self.forges {
            assert!(self.sent.is_empty(), "work requests that never complete");
            if self.qp_type == QpType::Rc {
                assert!(self.messages.is_empty(), "messages that never arrive");
            }
            for qp in &self.qps {
                assert_eq!(qp.state(), QpState::Rts);
            }
        }
        self.forges = true;
        for qp in &self.qps {
            qp.to(QpState::Err);
        }
        stage::run_until_idle(self.runtime);
        self.deliver_all();
        stage::work(self.runtime);
        while self.poll() {}
        assert!(
            self.sent.is_empty() && self.receives.is_empty(),
            "not flushed"
        );
        for (qp, guard) in self.qps.iter().zip(self.guards) {
            assert_eq!(qp.vm.read(guard, 4096), [0x5a; 4096]);
        }
    }
}

fn receive_area(id: u64) -> u64 {
    2 * AREAS * AREA + ((id >> 1) % AREAS) * AREA
}
