// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! UD QPs that send datagrams to each other: with right and wrong Q_Keys, to QPs that exist and QPs
//! that do not, and to multicast groups.

mod group;

use std::collections::VecDeque;

use testkit::engine::{connect, pattern, sge, Cq, Mr, Options, Qp, Wr};
use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_abi::ib::{QpState, QpType, WcFlags, WcStatus, WrOpcode, GRH_SIZE};
use virtio_rdma_abi::number::Qpn;

use crate::choices::Choices;
use crate::driver;
use crate::guest::Guest;
use crate::party::{deregister, destroy_cq, destroy_qp, is_same, Destroyed, Party};
use crate::variant::Variant;
use group::GROUPS;

/// Bytes of an area of memory.
const AREA: usize = 1024;
/// Number of areas for sends, and of areas for receives.
const AREAS: usize = 8;
/// Offset of the areas for receives, in bytes.
const RECEIVES: usize = AREA * AREAS;
/// Initial value of all bytes of an area.
const FILL: u8 = 0xee;
const GRH: usize = GRH_SIZE as usize;
/// Bytes of the longest datagram.
const LONGEST: usize = AREA - GRH;
/// Bytes of a short receive.
const SHORT: usize = 200;

/// A datagram that may arrive, once and again for each frame that the network duplicates.
#[derive(Clone)]
struct Letter {
    from: (Qpn, u64),
    imm: Option<[u8; 4]>,
    data: Vec<u8>,
    /// The group to which the datagram was sent.
    group: Option<usize>,
    /// Number of frames that the network had duplicated when the datagram was sent.
    doubled: usize,
    arrived: usize,
}

/// A QP and its posted work requests.
struct Mailbox<'w> {
    guest: &'w Guest,
    cq: Cq<'w>,
    qp: Qp<'w>,
    mr: Mr,
    /// Ids of posted sends.
    sent: VecDeque<u64>,
    /// Id, area and length in bytes of each posted receive.
    receives: VecDeque<(u64, usize, usize)>,
    /// Datagrams that the QP may receive.
    letters: Vec<Letter>,
    /// Whether the QP is attached to each of the party's groups.
    groups: [bool; GROUPS],
    ending: bool,
}

/// A party of two or three UD QPs.
pub struct Mail<'w> {
    boxes: Vec<Mailbox<'w>>,
    qkeys: [u32; 2],
    /// GIDs of the party's multicast groups.
    gids: [[u8; 16]; GROUPS],
    /// Whether the party uses its groups.
    is_wide: bool,
    posted: u64,
    /// Id of the datagram that was sent while all QPs were idle, so it must arrive.
    probed: Option<u64>,
    /// Id of the datagram that was sent to group 0 while all QPs were idle.
    probed_group: Option<u64>,
}

impl<'w> Mailbox<'w> {
    fn new(guest: &'w Guest, qkey: u32, blocks_loopback: bool) -> Self {
        let cq = Cq::new(&guest.vm, 64);
        let options = Options {
            qkey,
            blocks_loopback,
            ..Options::of(QpType::Ud)
        };
        let qp = Qp::in_pd(&guest.vm, guest.pd(), &cq, &cq, options);
        connect(&qp, &qp);
        Self {
            guest,
            cq,
            qp,
            mr: guest.mr(2 * RECEIVES as u64),
            sent: VecDeque::new(),
            receives: VecDeque::new(),
            letters: Vec::new(),
            groups: [false; GROUPS],
            ending: false,
        }
    }

    fn post_recv(&mut self, id: u64, len: usize) {
        let used = |area: &usize| self.receives.iter().any(|receive| receive.1 == *area);
        let Some(area) = (0..AREAS).find(|area| !used(area)) else {
            return;
        };
        if self.ending {
            return;
        }
        let at = (RECEIVES + area * AREA) as u64;
        self.guest.vm.write(self.mr.iova + at, &[FILL; AREA]);
        self.receives.push_back((id, area, len));
        driver::post_recv(&self.qp, id | 1, &[sge(&self.mr, at, len as u32)]);
    }

    /// Checks the completion of a receive.
    fn received(&mut self, cqe: &Cqe) {
        let receive = self.receives.pop_front();
        let (id, area, len) = receive.unwrap_or_else(|| panic!("no receive ends so: {cqe:?}"));
        assert_eq!(id | 1, cqe.wr_id, "receives end in their order: {cqe:?}");
        if cqe.status == WcStatus::WrFlushErr.value() {
            assert!(self.ending, "nothing was wrong: {cqe:?}");
            return;
        }
        assert_eq!(cqe.status, WcStatus::Success.value(), "{cqe:?}");
        assert!(cqe.byte_len as usize <= len, "more than its room: {cqe:?}");
        let iova = self.mr.iova + (RECEIVES + area * AREA) as u64;
        let bytes = self.guest.vm.read(iova, AREA);
        let imm = cqe.wc_flags.contains(WcFlags::WITH_IMM).then_some(cqe.ex);
        let doubled = self.guest.net.doubled();
        let fits = |letter: &&mut Letter| {
            let mut expected = letter.data.clone();
            expected.resize(LONGEST, FILL);
            letter.from.0 == cqe.src_qp
                && letter.imm == imm
                && cqe.byte_len as usize == GRH + letter.data.len()
                && bytes[GRH..] == expected
                && letter.arrived <= doubled - letter.doubled
                && letter.group.is_none_or(|group| self.groups[group])
        };
        let letter = self.letters.iter_mut().find(fits);
        let letter =
            letter.unwrap_or_else(|| panic!("nobody wrote that to it, or it came before: {cqe:?}"));
        letter.arrived += 1;
    }
}

impl<'w> Mail<'w> {
    pub fn new(guests: &'w [Guest], choices: &mut Choices) -> Self {
        // Two Q_Keys that no QP of another party has.
        let cookie = guests[0].vm.cookie() as u32;
        // The low half of the cookie is the number of its groups.
        let qkeys = [cookie << 1, (cookie << 1) + 1];
        let boxes = (0..2 + choices.below(2)).map(|_| {
            let guest = &guests[choices.below(guests.len())];
            let qkey = qkeys[usize::from(choices.once_in(4))];
            Mailbox::new(guest, qkey, choices.widely_once_in(3))
        });
        Self {
            boxes: boxes.collect(),
            qkeys,
            gids: group::gids(cookie as u16),
            is_wide: choices.variant() == Variant::Wide,
            posted: 0,
            probed: None,
            probed_group: None,
        }
    }

    fn next_id(&mut self) -> u64 {
        self.posted += 1;
        self.posted << 1
    }

    /// Begins a SEND of `len` bytes. Returns its id, the bytes and the work request without its
    /// destination, unless the area of the bytes is used.
    fn begin(&mut self, from: usize, len: usize) -> Option<(u64, Vec<u8>, Wr)> {
        let id = self.next_id();
        let area = id as usize / 2 % AREAS;
        let sender = &self.boxes[from];
        let busy = |other: &u64| *other as usize / 2 % AREAS == area;
        if sender.ending || sender.sent.iter().any(busy) {
            return None;
        }
        let (at, data) = (
            (area * AREA) as u64,
            pattern(len, sender.mr.iova ^ (id << 32)),
        );
        sender.guest.vm.write(sender.mr.iova + at, &data);
        let wr = Wr::new(id, WrOpcode::Send).local(&sender.mr, at, len as u32);
        Some((id, data, wr))
    }

    fn post(&mut self, from: usize, id: u64, wr: &Wr) {
        self.boxes[from].sent.push_back(id);
        driver::post(&self.boxes[from].qp, wr);
    }

    /// Sends `len` bytes from one QP to another. `choices`, if any, may change Q_Key and QPN of the
    /// destination.
    fn send(&mut self, [from, to]: [usize; 2], len: usize, choices: Option<&mut Choices>) {
        let Some((id, data, mut wr)) = self.begin(from, len) else {
            return;
        };
        let mut imm = None;
        wr = wr.to(&self.boxes[to].qp);
        let address = wr.to.as_mut().expect("an address");
        if let Some(choices) = choices {
            if choices.once_in(5) {
                address.remote_qkey = choices.of(&[self.qkeys[0], self.qkeys[1], 0]);
            }
            if choices.once_in(12) {
                let other = address.remote_qpn.get() ^ (1 << choices.below(8));
                // QPNs 0 and 1 belong to management QPs, so they are not used.
                address.remote_qpn = Qpn::new(if other < 2 { other | 0x80 } else { other });
            }
            if choices.once_in(3) {
                imm = Some((id as u32).to_be_bytes());
            }
        }
        let (qpn, qkey) = (address.remote_qpn, address.remote_qkey);
        if let Some(imm) = imm {
            wr.opcode = WrOpcode::SendWithImm;
            wr = wr.imm(imm);
        }
        let guest = self.boxes[to].guest.vm.mac;
        let sender = &self.boxes[from];
        let (from_qpn, doubled) = (sender.qp.qpn, sender.guest.net.doubled());
        let reached = |other: &&mut Mailbox<'_>| {
            (other.guest.vm.mac, other.qp.qpn, other.qp.options.qkey) == (guest, qpn, qkey)
        };
        if let Some(reached) = self.boxes.iter_mut().find(reached) {
            reached.letters.push(Letter {
                from: (from_qpn, id),
                imm,
                data,
                group: None,
                doubled,
                arrived: 0,
            });
        }
        self.post(from, id, &wr);
    }

    fn poll_one(&mut self, at: usize) -> bool {
        let ours = &mut self.boxes[at];
        let Some(cqe) = ours.cq.poll() else {
            return false;
        };
        if cqe.wr_id & 1 != 0 {
            ours.received(&cqe);
            return true;
        }
        assert_eq!(ours.sent.pop_front(), Some(cqe.wr_id), "in their order");
        let flushed = cqe.status == WcStatus::WrFlushErr.value();
        assert!(
            cqe.status == WcStatus::Success.value() || flushed && ours.ending,
            "{cqe:?}"
        );
        true
    }
}

impl<'w> Party<'w> for Mail<'w> {
    fn act(&mut self, choices: &mut Choices) {
        if choices.widely_once_in(4) {
            return self.act_in_group(choices);
        }
        let at = choices.below(self.boxes.len());
        match choices.below(16) {
            0..=5 => {
                let to = choices.below(self.boxes.len());
                let len = choices.below(LONGEST + 1);
                self.send([at, to], len, Some(choices));
            }
            6..=10 => {
                let id = self.next_id();
                let len = choices.of(&[AREA, AREA, AREA, SHORT]);
                self.boxes[at].post_recv(id, len);
            }
            11..=14 => {
                self.poll_one(at);
            }
            _ => {
                if choices.once_in(12) {
                    self.boxes[at].ending = true;
                    self.boxes[at].qp.to(QpState::Err);
                }
            }
        }
    }

    fn take_events(&mut self) -> bool {
        for ours in &self.boxes {
            let events = ours.guest.take_events(ours.qp.cookie);
            assert!(events.is_empty(), "nothing happened to it: {events:?}");
        }
        false
    }

    fn poll(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.boxes.len() {
            while self.poll_one(at) {
                any = true;
            }
        }
        any
    }

    /// Sends datagrams if all QPs are idle. [`Party::finish`] checks that these datagrams arrive.
    fn feed(&mut self) -> bool {
        let is_short = |ours: &Mailbox<'_>| ours.receives.iter().any(|receive| receive.2 < AREA);
        let quiet = |ours: &Mailbox<'_>| !ours.ending && ours.sent.is_empty() && !is_short(ours);
        if self.probed.is_some() || !self.boxes.iter().all(quiet) {
            return false;
        }
        let id = self.next_id();
        self.boxes[1].post_recv(id, AREA);
        self.send([0, 1], LONGEST, None);
        self.probed = Some(self.posted << 1);
        if self.is_wide {
            self.probe_group();
        }
        true
    }

    fn end(&mut self) {
        for ours in &mut self.boxes {
            ours.ending = true;
            ours.qp.to(QpState::Err);
        }
    }

    fn is_over(&self) -> bool {
        self.boxes.iter().all(|ours| ours.ending)
    }

    fn finish(&mut self) {
        for ours in &self.boxes {
            assert!(ours.sent.is_empty(), "no completion of {:?}", ours.sent);
            assert!(
                ours.receives.is_empty() || !ours.ending,
                "not flushed: {:?}",
                ours.receives
            );
        }
        let probe = |letter: &&Letter| Some(letter.from.1) == self.probed;
        let mut letters = self.boxes.iter().flat_map(|ours| &ours.letters);
        let lost = letters.find(probe).is_some_and(|probe| probe.arrived == 0);
        assert!(!lost, "a datagram between QPs at rest did not arrive");
        self.check_probed_group();
    }

    fn uses(&self, guest: &Guest) -> bool {
        self.boxes.iter().any(|ours| is_same(ours.guest, guest))
    }

    fn destroy(self: Box<Self>) -> Vec<Destroyed<'w>> {
        let destroy = |ours: Mailbox<'w>| {
            destroy_qp(ours.guest, &ours.qp);
            destroy_cq(ours.guest, &ours.cq);
            deregister(ours.guest, &ours.mr);
            let mr = &ours.mr;
            let cookies = vec![ours.cq.cookie, ours.qp.cookie];
            Destroyed::new(ours.guest, cookies, mr.iova, mr.len)
        };
        self.boxes.into_iter().map(destroy).collect()
    }
}
