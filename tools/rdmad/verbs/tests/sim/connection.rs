// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A connection of two QPs, and what must become of each work request that is posted to them.

use std::cell::Cell;
use std::collections::VecDeque;
use std::mem::replace;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_abi::ctrl::CmdDeregMr;
use virtio_rdma_abi::ib::{QpState, QpType, SendFlags, WcFlags, WcStatus, WrOpcode};
use virtio_rdma_abi::ring::ArmKind;

use crate::choices::Choices;
use crate::harness::{connect, pattern, sge, Cq, Mr, Options, Qp, Vm, Wr};

/// The event queue of the CQs.
const EVENT_QUEUE: u16 = 2;
/// Bytes of an area: a work request has one of each kind to itself until it is complete.
const AREA: u64 = 8192;
/// Areas of a kind.
const AREAS: usize = 12;
/// What an area holds where nothing was written.
const FILL: u8 = 0xee;
/// The kinds of areas of an end's memory: for its own work requests, its receives, those of its peer.
const LOCAL: usize = 0;
const RECEIVE: usize = 1;
const REMOTE: usize = 2;
const KINDS: usize = 3;

/// A work request of a send queue.
#[derive(Debug)]
struct Sent {
    id: u64,
    opcode: WrOpcode,
    signaled: bool,
    local: usize,
    /// Another work request has the local area, too.
    is_shared: bool,
    remote: Option<usize>,
    /// What must be where the opcode moves data to.
    data: Vec<u8>,
}

/// A message that takes a receive of the peer.
#[derive(Debug)]
struct Message {
    data: Vec<u8>,
    imm: Option<[u8; 4]>,
    /// Its data goes to the receive's memory.
    placed: bool,
    solicited: bool,
}

#[derive(Debug)]
struct Received {
    id: u64,
    area: usize,
}

/// One side.
pub struct End<'vm> {
    pub vm: &'vm Vm,
    cq: Cq<'vm>,
    qp: Qp<'vm>,
    mr: Mr,
    free: [Vec<usize>; KINDS],
    sent: VecDeque<Sent>,
    /// Messages to the peer that it has not taken.
    messages: VecDeque<Message>,
    received: VecDeque<Received>,
    /// What its word for atomic operations holds when all that the peer posted is done.
    word: u64,
    armed: Option<ArmKind>,
    posted: u64,
    /// A work request of the SQ failed: those behind it are flushed.
    failed: bool,
    /// The QP is in ERR, or its peer is gone: work may end in error.
    ending: bool,
    /// There was no buffer for events of the VM, so one may be late.
    is_starved: Rc<Cell<bool>>,
}

/// Memory that no device has any more.
pub struct Grave<'vm> {
    vm: &'vm Vm,
    cookie: u64,
    iova: u64,
    bytes: Vec<u8>,
}

impl Grave<'_> {
    /// No device has touched it, nor told of its CQ.
    pub fn is_quiet(&self) {
        let now = self.vm.read(self.iova, self.bytes.len());
        assert!(now == self.bytes, "written after its MR was gone");
        let events = self.vm.sink.events.lock().unwrap();
        assert!(events.iter().all(|(_, _, cookie)| *cookie != self.cookie));
    }
}

/// Two QPs that are connected to each other.
pub struct Connection<'vm> {
    pub ends: [End<'vm>; 2],
    reliable: bool,
}

impl<'vm> Connection<'vm> {
    /// Each end has a VM, and what tells whether that had no buffers for events.
    pub fn new(ends: [(&'vm Vm, &Rc<Cell<bool>>); 2], options: Options) -> Self {
        let ends = ends.map(|(vm, is_starved)| End::new(vm, is_starved.clone(), options));
        connect(&ends[0].qp, &ends[1].qp);
        Self {
            ends,
            reliable: options.qp_type == QpType::Rc,
        }
    }

    /// Posts a work request that the choices make, if there is room.
    pub fn post(&mut self, side: usize, choices: &mut Choices) {
        let opcodes: &[WrOpcode] = match self.reliable {
            true => &[
                WrOpcode::Send,
                WrOpcode::SendWithImm,
                WrOpcode::RdmaWrite,
                WrOpcode::RdmaWriteWithImm,
                WrOpcode::RdmaRead,
                WrOpcode::AtomicFetchAndAdd,
                WrOpcode::AtomicCmpAndSwp,
            ],
            false => &[
                WrOpcode::Send,
                WrOpcode::SendWithImm,
                WrOpcode::RdmaWrite,
                WrOpcode::RdmaWriteWithImm,
            ],
        };
        if self.reliable && choices.once_in(8) {
            self.pass_on(side, choices);
        }
        let opcode = choices.of(opcodes);
        let len = match choices.below(4) {
            0 => choices.below(64),
            1 => choices.below(1100),
            2 => choices.below(AREA as usize + 1),
            _ => 0,
        };
        let solicited = choices.once_in(4);
        // So that unsignaled ones don't take all areas for good.
        let [ours, theirs] = self.sides(side);
        let unsignaled = ours.sent.iter().rev().take_while(|wr| !wr.signaled).count();
        let signaled = !choices.once_in(3) || unsignaled >= AREAS / 2;
        let fenced = choices.once_in(6);
        let (Some(&local), Some(&remote)) = (ours.free[LOCAL].last(), theirs.free[REMOTE].last())
        else {
            return;
        };
        let takes_receive = matches!(
            opcode,
            WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::RdmaWriteWithImm
        );
        ours.posted += 1;
        let id = ours.posted << 1;
        let data = pattern(len, ours.qp.cookie ^ (id << 32));
        let mut wr = Wr::new(id, opcode);
        ours.clear(LOCAL, local);
        let mut far = None;
        let expected = match opcode {
            WrOpcode::AtomicFetchAndAdd | WrOpcode::AtomicCmpAndSwp => {
                let before = theirs.word;
                let [add, swap] = match opcode {
                    WrOpcode::AtomicFetchAndAdd => {
                        theirs.word = before.wrapping_add(id);
                        [id, 0]
                    }
                    // Every other one finds what it compares with.
                    _ if id & 2 == 0 => {
                        theirs.word = id;
                        [before, id]
                    }
                    _ => [!before, id],
                };
                wr = wr
                    .local(&ours.mr, offset(LOCAL, local), 8)
                    .remote(&theirs.mr, word())
                    .operands(add, swap);
                before.to_le_bytes().to_vec()
            }
            WrOpcode::RdmaRead => {
                theirs.clear(REMOTE, remote);
                theirs.put(REMOTE, remote, &data);
                wr = wr
                    .local(&ours.mr, offset(LOCAL, local), len as u32)
                    .remote(&theirs.mr, offset(REMOTE, remote));
                far = Some(remote);
                data
            }
            _ => {
                ours.put(LOCAL, local, &data);
                if choices.once_in(4) && len <= 200 {
                    wr = wr.inline(&data);
                } else {
                    wr = wr.local(&ours.mr, offset(LOCAL, local), len as u32);
                }
                if matches!(opcode, WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm) {
                    theirs.clear(REMOTE, remote);
                    wr = wr.remote(&theirs.mr, offset(REMOTE, remote));
                    far = Some(remote);
                }
                data
            }
        };
        let mut flags = if signaled {
            wr.flags
        } else {
            SendFlags(wr.flags.0 & !SendFlags::SIGNALED.0)
        };
        if solicited && takes_receive {
            flags = flags | SendFlags::SOLICITED;
        }
        if fenced && self.reliable {
            flags = flags | SendFlags::FENCE;
        }
        let with_imm = matches!(opcode, WrOpcode::SendWithImm | WrOpcode::RdmaWriteWithImm);
        let imm = (id as u32).to_be_bytes();
        if with_imm {
            wr = wr.imm(imm);
        }
        let [ours, theirs] = self.sides(side);
        ours.free[LOCAL].pop();
        if far.is_some() {
            theirs.free[REMOTE].pop();
        }
        if takes_receive {
            ours.messages.push_back(Message {
                data: expected.clone(),
                imm: with_imm.then_some(imm),
                placed: opcode != WrOpcode::RdmaWriteWithImm,
                solicited,
            });
        }
        ours.sent.push_back(Sent {
            id,
            opcode,
            signaled,
            local,
            is_shared: false,
            remote: far,
            data: expected,
        });
        ours.qp.reclaim();
        ours.qp.post(&wr.flags(flags));
    }

    /// Sends what the last work request reads, which a fence has it wait for.
    fn pass_on(&mut self, side: usize, choices: &mut Choices) {
        let [ours, _] = self.sides(side);
        let Some(read) = ours.sent.back_mut() else {
            return;
        };
        if read.opcode != WrOpcode::RdmaRead || read.is_shared {
            return;
        }
        read.is_shared = true;
        let (local, data) = (read.local, read.data.clone());
        ours.posted += 1;
        let id = ours.posted << 1;
        let flags = SendFlags::SIGNALED | SendFlags::FENCE;
        let solicited = choices.once_in(4);
        let wr = Wr::new(id, WrOpcode::Send)
            .local(&ours.mr, offset(LOCAL, local), data.len() as u32)
            .flags(match solicited {
                true => flags | SendFlags::SOLICITED,
                false => flags,
            });
        ours.messages.push_back(Message {
            data: data.clone(),
            imm: None,
            placed: true,
            solicited,
        });
        ours.sent.push_back(Sent {
            id,
            opcode: WrOpcode::Send,
            signaled: true,
            local,
            is_shared: false,
            remote: None,
            data,
        });
        ours.qp.reclaim();
        ours.qp.post(&wr);
    }

    fn sides(&mut self, side: usize) -> [&mut End<'vm>; 2] {
        let [a, b] = &mut self.ends;
        match side {
            0 => [a, b],
            _ => [b, a],
        }
    }

    /// Polls once. Returns whether there was a completion.
    pub fn poll(&mut self, side: usize) -> bool {
        let reliable = self.reliable;
        let [ours, theirs] = self.sides(side);
        ours.take_events();
        let Some(cqe) = ours.cq.poll() else {
            return false;
        };
        let solicited = if cqe.status != WcStatus::Success.value() {
            ours.flushed(theirs, &cqe, reliable);
            true
        } else if cqe.wr_id & 1 == 0 {
            ours.send_ended(theirs, &cqe, reliable);
            false
        } else {
            ours.receive_ended(theirs, &cqe, reliable)
        };
        match ours.armed {
            _ if ours.is_starved.get() => {}
            Some(ArmKind::Next) => panic!("a completion of an armed CQ without an event: {cqe:?}"),
            Some(ArmKind::Solicited) if solicited => {
                panic!("a solicited completion without an event: {cqe:?}")
            }
            _ => {}
        }
        true
    }

    /// Takes one QP, and then the other, to ERR.
    pub fn end(&mut self, side: usize) {
        let reliable = self.reliable;
        let [ours, theirs] = self.sides(side);
        ours.ending = true;
        // The other's requests are not answered any more.
        theirs.ending |= reliable;
        ours.qp.to(QpState::Err);
    }

    /// Whether it is ending.
    pub fn is_ending(&self) -> bool {
        self.ends.iter().any(|end| end.ending)
    }

    /// Gives back all that it has of its devices, which may be at work on it.
    pub fn destroy(self) -> [Grave<'vm>; 2] {
        self.ends.map(|end| {
            end.qp.destroy().unwrap();
            end.cq.destroy().unwrap();
            let mut events = end.vm.sink.events.lock().unwrap();
            let before = events.len();
            events.retain(|(_, _, cookie)| *cookie != end.cq.cookie);
            let taken = before - events.len();
            drop(events);
            end.look_for_buffers();
            end.vm.sink.buffers.fetch_add(taken, Ordering::SeqCst);
            end.vm.device.notified(EVENT_QUEUE);
            end.vm.call(CmdDeregMr { mrn: end.mr.mrn }).unwrap();
            Grave {
                vm: end.vm,
                cookie: end.cq.cookie,
                iova: end.mr.iova,
                bytes: end.vm.read(end.mr.iova, end.mr.len as usize),
            }
        })
    }

    /// All is done and told.
    pub fn finish(&mut self) {
        for side in 0..2 {
            let reliable = self.reliable;
            let [ours, theirs] = self.sides(side);
            ours.take_events();
            ours.qp.reclaim();
            assert!(
                !ours.qp.has_outstanding(),
                "work that nobody does: {:?}",
                ours.sent
            );
            // The last ones may have no completion.
            while let Some(sent) = ours.sent.pop_front() {
                assert!(!sent.signaled, "no completion of {sent:?}");
                ours.check(theirs, sent, reliable);
            }
            if ours.ending {
                assert!(
                    ours.qp.state() != QpState::Err || ours.received.is_empty(),
                    "not flushed: {:?}",
                    ours.received
                );
            } else if reliable {
                assert!(
                    ours.messages.is_empty(),
                    "not received: {:?}",
                    ours.messages
                );
                let word = theirs.vm.read(theirs.mr.iova + word(), 8);
                assert_eq!(word, theirs.word.to_le_bytes(), "the word");
            }
        }
    }
}

impl<'vm> End<'vm> {
    fn new(vm: &'vm Vm, is_starved: Rc<Cell<bool>>, options: Options) -> Self {
        let cq = Cq::new(vm, 64);
        let qp = Qp::new(vm, &cq, &cq, options);
        let mr = vm.mr(word() + 8);
        vm.write(mr.iova, &vec![FILL; word() as usize]);
        vm.write(mr.iova + word(), &[0; 8]);
        Self {
            vm,
            cq,
            qp,
            mr,
            free: [(); KINDS].map(|()| (0..AREAS).collect()),
            sent: VecDeque::new(),
            messages: VecDeque::new(),
            received: VecDeque::new(),
            word: 0,
            armed: None,
            posted: 0,
            failed: false,
            ending: false,
            is_starved,
        }
    }

    /// Whether messages wait for receives that are not posted.
    pub fn has_receives_for(&self, messages: usize) -> bool {
        self.received.len() >= messages
    }

    pub fn messages(&self) -> usize {
        self.messages.len()
    }

    /// All events have come.
    pub fn settled(&self) {
        self.is_starved.set(false);
    }

    /// Posts a receive, if there is room.
    pub fn post_recv(&mut self) {
        let Some(area) = self.free[RECEIVE].pop() else {
            return;
        };
        self.posted += 1;
        let id = (self.posted << 1) | 1;
        self.clear(RECEIVE, area);
        self.received.push_back(Received { id, area });
        self.qp.reclaim();
        let sge = sge(&self.mr, offset(RECEIVE, area), AREA as u32);
        self.qp.post_recv(id, &[sge]);
    }

    /// Arms the CQ, which the caller has polled until it was empty.
    pub fn arm(&mut self, kind: ArmKind) {
        self.take_events();
        // Solicited does not take the place of next.
        if self.armed != Some(ArmKind::Next) {
            self.armed = Some(kind);
        }
        self.cq.arm(kind);
    }

    /// Notes if there is no buffer for events. To be called before one is given back.
    fn look_for_buffers(&self) {
        if self.vm.sink.buffers.load(Ordering::SeqCst) == 0 {
            self.is_starved.set(true);
        }
    }

    /// Takes the event of the CQ. Returns whether there was one.
    pub fn take_events(&mut self) -> bool {
        self.look_for_buffers();
        let buffers = &self.vm.sink.buffers;
        let mut events = self.vm.sink.events.lock().unwrap();
        let mut count = 0;
        events.retain(|(_, _, cookie)| {
            let ours = *cookie == self.cq.cookie;
            count += usize::from(ours);
            !ours
        });
        drop(events);
        if count > 0 {
            assert!(
                count == 1 && self.armed.is_some(),
                "{count} events, armed: {:?}",
                self.armed
            );
            self.armed = None;
            self.cq.event_received();
            buffers.fetch_add(1, Ordering::SeqCst);
            self.vm.device.notified(EVENT_QUEUE);
        }
        count > 0
    }

    /// A work request ended in error.
    fn flushed(&mut self, theirs: &mut Self, cqe: &Cqe, reliable: bool) {
        assert!(self.ending, "nothing was wrong: {cqe:?}");
        let status = WcStatus::try_from(cqe.status).unwrap();
        if cqe.wr_id & 1 != 0 {
            let received = self.received.pop_front().map(|received| received.id);
            assert_eq!(received, Some(cqe.wr_id), "receives end in their order");
            assert_eq!(status, WcStatus::WrFlushErr);
            return;
        }
        loop {
            let sent = self.sent.pop_front();
            let sent = sent.unwrap_or_else(|| panic!("nothing posted ends so: {cqe:?}"));
            if sent.id == cqe.wr_id {
                let first = !replace(&mut self.failed, true);
                assert!(
                    status == WcStatus::WrFlushErr || first && status == WcStatus::RetryExcErr,
                    "{cqe:?}"
                );
                // Its areas are not used again: what was sent of it may still be on its way.
                return;
            }
            assert!(
                !sent.signaled && !self.failed,
                "{sent:?} has no completion before {cqe:?}"
            );
            self.check(theirs, sent, reliable);
        }
    }

    fn send_ended(&mut self, theirs: &mut Self, cqe: &Cqe, reliable: bool) {
        assert!(!self.failed, "behind one that failed: {cqe:?}");
        loop {
            let sent = self.sent.pop_front();
            let sent = sent.unwrap_or_else(|| panic!("nothing posted ends so: {cqe:?}"));
            let is_it = sent.id == cqe.wr_id;
            assert!(
                is_it || !sent.signaled,
                "{sent:?} has no completion before {cqe:?}"
            );
            assert!(!is_it || sent.signaled, "{sent:?} is unsignaled: {cqe:?}");
            self.check(theirs, sent, reliable);
            if is_it {
                return;
            }
        }
    }

    /// A work request has ended: its data is where it should be, and nowhere else.
    fn check(&mut self, theirs: &mut Self, sent: Sent, reliable: bool) {
        match sent.opcode {
            WrOpcode::RdmaRead | WrOpcode::AtomicFetchAndAdd | WrOpcode::AtomicCmpAndSwp => {
                self.holds(LOCAL, sent.local, &sent.data, &sent);
            }
            _ => {
                if let (Some(remote), true) = (sent.remote, reliable) {
                    theirs.holds(REMOTE, remote, &sent.data, &sent);
                }
            }
        }
        if !sent.is_shared {
            self.free[LOCAL].push(sent.local);
        }
        if let Some(remote) = sent.remote {
            theirs.free[REMOTE].push(remote);
        }
    }

    /// Returns whether the message was solicited.
    fn receive_ended(&mut self, theirs: &mut Self, cqe: &Cqe, reliable: bool) -> bool {
        let received = self.received.pop_front();
        let received = received.unwrap_or_else(|| panic!("no receive ends so: {cqe:?}"));
        assert_eq!(
            received.id, cqe.wr_id,
            "receives end in their order: {cqe:?}"
        );
        let imm = cqe.wc_flags.contains(WcFlags::WITH_IMM).then_some(cqe.ex);
        let bytes = self.area(RECEIVE, received.area);
        self.free[RECEIVE].push(received.area);
        let fits = |message: &Message| {
            let data = if message.placed {
                &message.data[..]
            } else {
                &[]
            };
            cqe.byte_len as usize == message.data.len()
                && imm == message.imm
                && match reliable {
                    true => bytes == filled(data),
                    // A message that was broken off may have left its data behind.
                    false => bytes.starts_with(data),
                }
        };
        if reliable {
            let message = theirs.messages.pop_front();
            let message = message.unwrap_or_else(|| panic!("nobody sent that: {cqe:?}"));
            assert!(fits(&message), "{cqe:?} is not {message:?}");
            return message.solicited;
        }
        // Messages may be lost, and come in another order or twice.
        let like = theirs.messages.iter().filter(|message| fits(message));
        let solicited = like.map(|message| message.solicited);
        // Which of several it is can't be told.
        let sure = solicited.reduce(|all, one| all && one);
        sure.unwrap_or_else(|| panic!("nobody sent that: {cqe:?}"))
    }

    fn area(&self, kind: usize, area: usize) -> Vec<u8> {
        self.vm
            .read(self.mr.iova + offset(kind, area), AREA as usize)
    }

    fn holds(&self, kind: usize, area: usize, data: &[u8], sent: &Sent) {
        assert!(
            self.area(kind, area) == filled(data),
            "other bytes than those of {sent:?}"
        );
    }

    fn clear(&self, kind: usize, area: usize) {
        self.put(kind, area, &[FILL; AREA as usize]);
    }

    fn put(&self, kind: usize, area: usize, data: &[u8]) {
        self.vm.write(self.mr.iova + offset(kind, area), data);
    }
}

/// An area that begins with `data`.
fn filled(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    bytes.resize(AREA as usize, FILL);
    bytes
}

/// Where an area begins in the memory of its end.
fn offset(kind: usize, area: usize) -> u64 {
    (kind * AREAS + area) as u64 * AREA
}

/// Where the word for atomic operations is.
fn word() -> u64 {
    offset(KINDS, 0)
}
