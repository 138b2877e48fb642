// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! An SRQ from which several connections take their receives.

mod check;

use std::collections::{BTreeMap, VecDeque};
use std::mem;

use testkit::engine::{connect, pattern, sge, Cq, Mr, Options, Qp, Srq, Wr};
use virtio_rdma_abi::ctrl::{CmdDestroySrq, SrqAttrMask};
use virtio_rdma_abi::ib::{Mtu, QpState, WrOpcode};

use crate::choices::Choices;
use crate::driver::{self, SharedReceives};
use crate::guest::Guest;
use crate::party::{deregister, destroy_cq, destroy_qp, is_same, Destroyed, Party};

/// Bytes of an area of memory.
const AREA: usize = 1024;
/// Bytes of the shortest packet that is not the last one of its message.
const PACKET: usize = 256;
/// Number of areas for receives, and of areas of each sender.
const AREAS: usize = 16;
/// Maximum number of slots to which the SRQ grows.
const MOST: u32 = 64;
/// Error code of a command that would shrink the SRQ.
const EINVAL: u8 = 22;
/// Initial value of all bytes of an area.
const FILL: u8 = 0xee;

/// A connection: `from` sends, and `to` takes its receives from the SRQ.
struct Member<'w> {
    guest: &'w Guest,
    cq: Cq<'w>,
    from: Qp<'w>,
    to: Qp<'w>,
    mr: Mr,
    /// Id and data of each send without a polled completion.
    sent: VecDeque<(u64, Vec<u8>)>,
    /// Data of messages that were not received.
    messages: VecDeque<Vec<u8>>,
    /// Id of the last receive that `to` completed.
    last: u64,
    /// Whether `to` is in ERR.
    ending: bool,
    /// Whether QP_LAST_WQE_REACHED has arrived and all completions before it were polled.
    closed: bool,
}

/// A party: an SRQ and the connections that use it.
pub struct Shared<'w> {
    guest: &'w Guest,
    cq: Cq<'w>,
    receives: SharedReceives<'w>,
    mr: Mr,
    options: Options,
    members: Vec<Member<'w>>,
    /// The remains of members that were replaced.
    destroyed: Vec<Destroyed<'w>>,
    /// Area of each posted receive, by its id.
    areas: BTreeMap<u64, usize>,
    free: Vec<usize>,
    posted: u64,
    slots: u32,
    /// The armed limit; 0 if none is armed.
    limit: u32,
    /// Smallest number of receives that the SRQ may have had since the limit was armed.
    fewest: u64,
}

impl<'w> Member<'w> {
    fn new(
        guest: &'w Guest,
        srq: &Srq<'w>,
        owner: &'w Guest,
        cq: &Cq<'w>,
        options: Options,
    ) -> Self {
        let own = Cq::new(&guest.vm, 64);
        let from = Qp::in_pd(&guest.vm, guest.pd(), &own, &own, options);
        let to = Qp::with_srq_in(&owner.vm, owner.pd(), cq, srq.srqn, options).unwrap();
        connect(&from, &to);
        Self {
            guest,
            cq: own,
            from,
            to,
            mr: guest.mr((AREA * AREAS) as u64),
            sent: VecDeque::new(),
            messages: VecDeque::new(),
            last: 0,
            ending: false,
            closed: false,
        }
    }

    /// Destroys the connection, whose receiving end belongs to `owner`.
    fn destroy(self, owner: &'w Guest) -> [Destroyed<'w>; 2] {
        destroy_qp(self.guest, &self.from);
        destroy_qp(owner, &self.to);
        destroy_cq(self.guest, &self.cq);
        deregister(self.guest, &self.mr);
        let mr = &self.mr;
        let own = vec![self.cq.cookie, self.from.cookie];
        [
            Destroyed::new(self.guest, own, mr.iova, mr.len),
            Destroyed::new(owner, vec![self.to.cookie], mr.iova, 0),
        ]
    }

    fn send(&mut self, id: u64, len: usize) {
        if self.sent.len() == AREAS || self.ending {
            return;
        }
        let data = pattern(len, self.mr.iova ^ (id << 32));
        let at = (id as usize % AREAS * AREA) as u64;
        if self
            .sent
            .iter()
            .any(|(other, _)| *other as usize % AREAS == id as usize % AREAS)
        {
            return;
        }
        self.guest.vm.write(self.mr.iova + at, &data);
        self.sent.push_back((id, data.clone()));
        self.messages.push_back(data);
        let wr = Wr::new(id, WrOpcode::Send).local(&self.mr, at, len as u32);
        driver::post(&self.from, &wr);
    }
}

impl<'w> Shared<'w> {
    pub fn new(guests: &'w [Guest], choices: &mut Choices) -> Self {
        let guest = &guests[choices.below(guests.len())];
        let options = Options {
            mtu: choices.of(&[Mtu::Mtu256, Mtu::Mtu1024]),
            timeout: 8 + choices.below(6) as u8,
            min_rnr_timer: 1 + choices.below(12) as u8,
            ..Options::default()
        };
        let cq = Cq::new(&guest.vm, 64);
        let srq = Srq::in_pd(&guest.vm, guest.pd(), AREAS as u32);
        let members = (0..2 + choices.below(2)).map(|_| {
            let from = &guests[choices.below(guests.len())];
            Member::new(from, &srq, guest, &cq, options)
        });
        let members = members.collect();
        let mr = guest.mr((AREA * AREAS) as u64);
        guest.vm.write(mr.iova, &[FILL; AREA * AREAS]);
        Self {
            guest,
            cq,
            receives: SharedReceives::new(srq),
            mr,
            options,
            members,
            destroyed: Vec::new(),
            areas: BTreeMap::new(),
            free: (0..AREAS).collect(),
            posted: 0,
            slots: AREAS as u32,
            limit: 0,
            fewest: u64::MAX,
        }
    }

    /// Whether the start of a member's next message is in one of the posted receives, and its end
    /// is not.
    fn is_within_message(&self, member: &Member<'_>) -> bool {
        let Some(message) = member.messages.front() else {
            return false;
        };
        let starts = |area: &usize| {
            let iova = self.mr.iova + (*area * AREA) as u64;
            let bytes = self.guest.vm.read(iova, message.len());
            bytes.starts_with(&message[..message.len().min(PACKET)]) && bytes != *message
        };
        self.areas.values().any(starts)
    }

    /// Ends a member that is receiving a message, or replaces it if it has ended. The receives that
    /// it held are used again.
    fn end_or_replace(&mut self, at: usize) {
        self.check_events();
        let is_within_message = self.is_within_message(&self.members[at]);
        let member = &mut self.members[at];
        if is_within_message && !member.ending {
            member.ending = true;
            member.to.to(QpState::Err);
        } else if member.closed && member.sent.is_empty() {
            let srq = &self.receives.srq;
            let next = Member::new(member.guest, srq, self.guest, &self.cq, self.options);
            let old = mem::replace(member, next);
            self.destroyed.extend(old.destroy(self.guest));
        }
    }

    fn post_recv(&mut self) -> bool {
        let Some(area) = self.free.pop() else {
            return false;
        };
        self.note_fewest();
        self.posted += 1;
        let at = (area * AREA) as u64;
        self.guest.vm.write(self.mr.iova + at, &[FILL; AREA]);
        self.areas.insert(self.posted, area);
        self.receives
            .post(self.posted, &[sge(&self.mr, at, AREA as u32)]);
        true
    }

    /// Moves the SRQ to a longer ring. Checks that a shorter ring is refused.
    fn resize(&mut self, slots: u32) {
        let refused = self.receives.resize(slots).err();
        assert_eq!(refused, (slots < self.slots).then_some(EINVAL), "{slots}");
        self.slots = self.slots.max(slots);
        assert_eq!(self.receives.srq.query().max_wr, self.slots);
    }

    /// Arms a limit, unless another one is armed whose event may still arrive.
    fn arm(&mut self, limit: u32) {
        self.check_events();
        if self.limit > 0 {
            return;
        }
        (self.limit, self.fewest) = (limit, u64::MAX);
        let srq = &self.receives.srq;
        srq.modify(SrqAttrMask::LIMIT, limit).unwrap();
    }
}

impl<'w> Party<'w> for Shared<'w> {
    fn act(&mut self, choices: &mut Choices) {
        let at = choices.below(self.members.len());
        if choices.widely_once_in(4) {
            return self.end_or_replace(at);
        }
        match choices.below(25) {
            0..=7 => {
                self.posted += 1;
                let len = choices.below(AREA + 1);
                self.members[at].send(self.posted, len);
            }
            8..=13 => {
                for _ in 0..=choices.below(3) {
                    self.post_recv();
                }
            }
            14..=18 => {
                self.poll_one();
            }
            19..=22 => {
                let limit = 1 + choices.below(AREAS / 2);
                self.arm(limit as u32);
            }
            23 => self.resize(choices.of(&[AREAS as u32, MOST / 2, MOST])),
            _ => {
                if choices.once_in(4) {
                    self.members[at].ending = true;
                    self.members[at].to.to(QpState::Err);
                }
            }
        }
    }

    fn take_events(&mut self) -> bool {
        self.check_events()
    }

    fn poll(&mut self) -> bool {
        let mut any = false;
        while self.poll_one() {
            any = true;
        }
        any
    }

    fn feed(&mut self) -> bool {
        let live = self.members.iter().filter(|member| !member.ending);
        let wanted: usize = live.map(|member| member.messages.len()).sum();
        let mut any = false;
        while self.areas.len() < wanted && self.post_recv() {
            any = true;
        }
        any
    }

    fn end(&mut self) {
        for member in &mut self.members {
            member.ending = true;
            member.to.to(QpState::Err);
            member.from.to(QpState::Err);
        }
    }

    fn is_over(&self) -> bool {
        self.members.iter().all(|member| member.ending)
    }

    fn finish(&mut self) {
        self.check_end();
    }

    fn uses(&self, guest: &Guest) -> bool {
        let mut members = self.members.iter();
        is_same(self.guest, guest) || members.any(|member| is_same(member.guest, guest))
    }

    fn destroy(self: Box<Self>) -> Vec<Destroyed<'w>> {
        let mut destroyed = self.destroyed;
        for member in self.members {
            destroyed.extend(member.destroy(self.guest));
        }
        let srqn = self.receives.srq.srqn;
        self.guest.give_back(CmdDestroySrq { srqn });
        destroy_cq(self.guest, &self.cq);
        deregister(self.guest, &self.mr);
        let cookies = vec![self.cq.cookie, self.receives.srq.cookie];
        destroyed.push(Destroyed::new(
            self.guest,
            cookies,
            self.mr.iova,
            self.mr.len,
        ));
        destroyed
    }
}
