// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A vault is memory of an owner, with keys that are created, changed and destroyed. The owner's
//! peer, the thief, tries these keys. The result of each try must match the access flags of the
//! key, and the memory must not change without permission.

mod check;
mod fast;
mod invalidate;
mod judge;
mod keys;
mod side;
mod windows;

use testkit::engine::{connect, pattern, sge, Mr, Options, Wr, FULL};
use virtio_rdma_abi::ctrl::{CmdCreatePd, CmdDestroyPd};
use virtio_rdma_abi::ib::{AccessFlags, AsyncEvent, Mtu, QpState, WcStatus, WrOpcode};
use virtio_rdma_abi::number::Pdn;
use virtio_rdma_abi::wire::Wire;

use crate::choices::Choices;
use crate::driver;
use crate::guest::Guest;
use crate::party::{deregister, is_same, Destroyed, Party};
use crate::variant::Variant;
use keys::Keys;
use side::{Kind, Receive, Side, Try};

/// Length in bytes of an area of memory. Only one try at a time uses an area, on both sides.
const AREA: usize = 1024;
/// Number of areas.
const AREAS: usize = 8;

/// A party: the memory, its owner and the thief.
pub struct Vault<'w> {
    owner: Side<'w>,
    thief: Side<'w>,
    /// A PD that is not the PD of the owner's QP.
    stranger: Pdn,
    keys: Keys<'w>,
    /// Flushed tries. Their packets may still arrive. The device checks a packet against the keys
    /// that are valid when it arrives.
    adrift: Vec<Try>,
    /// MR of the thief's memory.
    mr: Mr,
    /// MR of the vault that stays, for the receives of messages that invalidate a key. Only the
    /// variant [`Wide`](crate::variant::Variant::Wide) has it.
    steady: Option<Mr>,
    /// Remote operations that the owner's QP admits.
    access: AccessFlags,
    posted: u64,
    /// Whether a work request has failed or a QP was moved to ERR.
    ending: bool,
    /// Events that refused tries may raise.
    may_raise: Vec<AsyncEvent>,
    /// The event that was raised.
    raised: Option<AsyncEvent>,
    /// Whether a try was refused that must raise an event.
    must_raise: bool,
    /// Whether the owner's QP may have gone to ERR for a reason that raises no event.
    silent: bool,
}

impl<'w> Vault<'w> {
    pub fn new(guests: &'w [Guest], choices: &mut Choices) -> Self {
        let [owner, thief] = [(); 2].map(|()| &guests[choices.below(guests.len())]);
        let access = match choices.below(6) {
            0 => AccessFlags::REMOTE_READ,
            1 => AccessFlags::REMOTE_WRITE,
            _ => FULL,
        };
        let options = Options {
            mtu: choices.of(&[Mtu::Mtu256, Mtu::Mtu1024]),
            timeout: 8 + choices.below(6) as u8,
            ..Options::default()
        };
        let user = choices.once_in(2);
        let theirs = Options {
            access,
            user,
            ..options
        };
        let bytes = |seed| pattern(AREA * AREAS, seed);
        let owner = Side::new(owner, owner.pd(), theirs, bytes(owner.vm.cookie()));
        let thief = Side::new(thief, thief.pd(), options, bytes(thief.vm.cookie()));
        connect(&owner.qp, &thief.qp);
        let vm = &owner.guest().vm;
        let stranger = vm.call(CmdCreatePd::ZERO).unwrap().pdn;
        let len = owner.memory.len() as u64;
        let pdns = [owner.guest().pd(), stranger];
        let (iova, guest) = (thief.memory.iova, thief.guest());
        let is_wide = choices.variant() == Variant::Wide;
        let steady = is_wide.then(|| vm.register(pdns[0], owner.memory.iova, len, FULL));
        Self {
            stranger,
            steady,
            keys: Keys::new(owner.guest(), pdns, (owner.memory.iova, len), user),
            mr: guest.vm.register(guest.pd(), iova, len, FULL),
            adrift: Vec::new(),
            owner,
            thief,
            access,
            posted: 0,
            ending: false,
            may_raise: Vec::new(),
            raised: None,
            must_raise: false,
            silent: false,
        }
    }

    /// Posts a random work request that uses a key, if an area is free.
    fn attempt(&mut self, choices: &mut Choices) {
        let Some(area) = self.free_area() else {
            return;
        };
        if self.ending {
            return;
        }
        let kind = choices.of(&[
            Kind::Write,
            Kind::Write,
            Kind::Read,
            Kind::Add,
            Kind::Receive,
            Kind::Send,
            Kind::Fetch,
        ]);
        let (skip, len) = match kind {
            Kind::Add => (8 * choices.below(AREA / 8), 8),
            _ => (choices.below(AREA / 2), 8 + choices.below(AREA / 2 - 8)),
        };
        let one = Try {
            id: self.next_id(),
            kind,
            mr: self.keys.pick(choices),
            at: area * AREA + skip,
            len,
            allowed: false,
            succeeds: false,
            fails: None,
            after_invalidation: false,
        };
        self.post_judged(one, area * AREA);
    }

    /// An area that no work request uses.
    fn free_area(&self) -> Option<usize> {
        let used = |area: &usize| {
            let tries = self.thief.tries.iter().chain(&self.owner.tries);
            let receives = self.thief.receives.iter().chain(&self.owner.receives);
            tries.map(|one| one.at / AREA).any(|used| used == *area)
                || receives.map(|one| one.area).any(|used| used == *area)
        };
        (0..AREAS).find(|area| !used(area))
    }

    fn next_id(&mut self) -> u64 {
        self.posted += 1;
        self.posted << 1
    }

    /// Posts a try that uses the thief's area at offset `there`.
    fn post_judged(&mut self, mut one: Try, there: usize) {
        let fill = match one.kind {
            Kind::Read | Kind::Send | Kind::Add => vec![0xee; AREA],
            _ => pattern(AREA, self.mr.iova ^ (one.id << 32)),
        };
        self.thief.memory.set(there, &fill);
        self.judge(&mut one);
        self.post(one, there);
    }

    /// Posts a work request that binds or invalidates a window.
    fn change_window(&mut self, choices: &mut Choices) {
        let Some(mr) = self.keys.bindable(choices).filter(|_| !self.ending) else {
            return;
        };
        let id = (self.posted + 1) << 1;
        let Some((bytes, before, change)) = self.keys.windows.change(id, &mr, choices) else {
            return;
        };
        self.post_change((id, mr), Kind::Window(change), (&bytes, before));
    }

    /// Posts a work request that registers or invalidates the MR for fast registration.
    fn register(&mut self, choices: &mut Choices) {
        let id = (self.posted + 1) << 1;
        let (mr, fast) = (self.mr, self.keys.fast.as_mut());
        let Some(fast) = fast.filter(|_| !self.ending) else {
            return;
        };
        let Some((bytes, before, change)) = fast.change(id, choices) else {
            return;
        };
        self.post_change((id, mr), Kind::Register(change), (&bytes, before));
    }

    /// Posts the WQE `bytes`, which makes the key `before` invalid.
    fn post_change(&mut self, (id, mr): (u64, Mr), kind: Kind, (bytes, before): (&[u8], u32)) {
        self.posted += 1;
        // Outstanding tries with this key may fail now.
        for one in &mut self.thief.tries {
            let refused = one.kind.refused();
            if one.mr.key == before && !one.kind.changes_keys() {
                one.fails.get_or_insert(refused);
                if refused == WcStatus::RemAccessErr {
                    self.may_raise.push(AsyncEvent::QpAccessErr);
                }
            }
        }
        self.owner.tries.push_back(Try {
            id,
            kind,
            mr,
            // The work request uses no area.
            at: usize::MAX,
            len: 0,
            allowed: true,
            succeeds: true,
            fails: None,
            after_invalidation: false,
        });
        driver::post_bytes(&self.owner.qp, bytes);
    }

    fn post(&mut self, one: Try, there: usize) {
        let wr = |opcode| Wr::new(one.id, opcode);
        let (at, len) = (one.at as u64, one.len as u32);
        let receive = Receive {
            id: one.id,
            area: there / AREA,
            len: one.len,
            invalidates: None,
            ended: None,
        };
        let near = |opcode| wr(opcode).local(&self.mr, there as u64, len);
        let wr = match one.kind {
            Kind::Write => near(WrOpcode::RdmaWrite).remote(&one.mr, at),
            Kind::Read => near(WrOpcode::RdmaRead).remote(&one.mr, at),
            Kind::Add => near(WrOpcode::AtomicFetchAndAdd)
                .remote(&one.mr, at)
                .operands(one.id, 0),
            Kind::Receive => {
                driver::post_recv(&self.owner.qp, one.id | 1, &[sge(&one.mr, at, len)]);
                self.owner.receives.push_back(receive);
                near(WrOpcode::Send)
            }
            Kind::Send => {
                let into = sge(&self.mr, there as u64, len);
                driver::post_recv(&self.thief.qp, one.id | 1, &[into]);
                self.thief.receives.push_back(receive);
                wr(WrOpcode::Send).local(&one.mr, at, len)
            }
            Kind::Fetch => wr(WrOpcode::RdmaRead)
                .local(&one.mr, at, len)
                .remote(&self.mr, there as u64),
            Kind::Window(_) | Kind::Register(_) | Kind::Invalidate(_) => return,
        };
        let side = match one.kind {
            Kind::Send | Kind::Fetch => &mut self.owner,
            _ => &mut self.thief,
        };
        side.tries.push_back(one);
        // Posted last: the device may execute the work request at once.
        driver::post(&side.qp, &wr);
    }
}

impl<'w> Party<'w> for Vault<'w> {
    fn act(&mut self, choices: &mut Choices) {
        if choices.widely_once_in(10) {
            return self.invalidate(choices);
        }
        match choices.below(26) {
            0..=9 => self.attempt(choices),
            10..=13 => {
                self.check_memory();
                self.keys.change(choices);
                self.reconsider();
            }
            14..=16 => {
                if choices.once_in(4) {
                    self.check_memory();
                    self.keys.windows.allocate(choices);
                    self.reconsider();
                } else {
                    self.change_window(choices);
                }
            }
            17..=22 => {
                self.poll_one();
            }
            23..=24 => self.register(choices),
            _ => {
                if choices.once_in(8) {
                    self.ending = true;
                    self.silent = true;
                    let side = choices.of(&[&self.owner, &self.thief]);
                    side.qp.to(QpState::Err);
                }
            }
        }
    }

    fn take_events(&mut self) -> bool {
        let (ours, theirs) = (&self.owner, &self.thief);
        let events = theirs.guest().take_events(theirs.qp.cookie);
        assert!(events.is_empty(), "nobody tried its memory: {events:?}");
        let events = ours.guest().take_events(ours.qp.cookie);
        self.check_events(&events);
        !events.is_empty()
    }

    fn poll(&mut self) -> bool {
        let mut any = false;
        while self.poll_one() {
            any = true;
        }
        any
    }

    fn end(&mut self) {
        self.ending = true;
        self.owner.qp.to(QpState::Err);
        self.thief.qp.to(QpState::Err);
    }

    fn is_over(&self) -> bool {
        self.owner.failed || self.thief.failed
    }

    fn finish(&mut self) {
        self.check_end();
    }

    fn uses(&self, guest: &Guest) -> bool {
        is_same(self.owner.guest(), guest) || is_same(self.thief.guest(), guest)
    }

    fn destroy(mut self: Box<Self>) -> Vec<Destroyed<'w>> {
        self.owner.destroy();
        self.thief.destroy();
        self.check_memory();
        self.keys.destroy();
        if let Some(steady) = &self.steady {
            deregister(self.owner.guest(), steady);
        }
        let pd = CmdDestroyPd { pdn: self.stranger };
        self.owner.guest().give_back(pd);
        deregister(self.thief.guest(), &self.mr);
        let destroy = |side: &Side<'w>| {
            let cookies = vec![side.cq.cookie, side.qp.cookie];
            let memory = &side.memory;
            Destroyed::new(memory.guest, cookies, memory.iova, memory.len() as u64)
        };
        vec![destroy(&self.owner), destroy(&self.thief)]
    }
}
