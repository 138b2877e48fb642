// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Multicast groups of mail: QPs join and leave them, and send datagrams to them.

use std::net::Ipv4Addr;

use roce::net::{gid_to_ip, multicast_mac};
use virtio_rdma_abi::ctrl::{CmdAttachMcast, CmdDetachMcast};
use virtio_rdma_abi::ib::MULTICAST_QPN;
use virtio_rdma_abi::number::Qpn;

use super::{Letter, Mail, Mailbox, AREA, LONGEST};
use crate::choices::Choices;

/// Number of groups of a party.
pub(super) const GROUPS: usize = 2;
/// Bytes of the shortest datagram to a group. It is unlike any other datagram.
const SHORTEST: usize = 16;
/// Error code of a QP that is attached to the group.
const EEXIST: u8 = 17;
/// Error code of a QP that is not attached to the group.
const EINVAL: u8 = 22;

/// GIDs of the groups of a party, both with one Ethernet address. `number` belongs to no other
/// party.
pub(super) fn gids(number: u16) -> [[u8; 16]; GROUPS] {
    let [x, y] = number.to_be_bytes();
    [1, 129].map(|second| Ipv4Addr::new(239, second, x, y).to_ipv6_mapped().octets())
}

impl<'w> Mail<'w> {
    /// Lets a QP join or leave a group, or send to it.
    pub(super) fn act_in_group(&mut self, choices: &mut Choices) {
        let at = choices.below(self.boxes.len());
        let group = choices.below(GROUPS);
        match choices.below(6) {
            0..=1 => self.join(at, group),
            2 => self.leave(at, group),
            _ => {
                let len = SHORTEST + choices.below(LONGEST + 1 - SHORTEST);
                let qkey = choices.of(&[self.qkeys[0], self.qkeys[0], self.qkeys[1]]);
                self.send_to_group((at, group), qkey, len);
            }
        }
    }

    /// Attaches a QP to a group.
    fn join(&mut self, at: usize, group: usize) {
        let mgid = self.gids[group];
        let (ours, qpn) = self.before_change(at);
        let joined = ours.guest.vm.call(CmdAttachMcast { qpn, mgid });
        let is_member = std::mem::replace(&mut ours.groups[group], true);
        assert_eq!(joined.err(), is_member.then_some(EEXIST));
    }

    /// Detaches a QP from a group.
    fn leave(&mut self, at: usize, group: usize) {
        let mgid = self.gids[group];
        let (ours, qpn) = self.before_change(at);
        let left = ours.guest.vm.call(CmdDetachMcast { qpn, mgid });
        let is_member = std::mem::replace(&mut ours.groups[group], false);
        assert_eq!(left.err(), (!is_member).then_some(EINVAL));
    }

    /// Sends `len` bytes from a QP to a group. Returns the id, unless the SQ has no room.
    fn send_to_group(&mut self, (at, group): (usize, usize), qkey: u32, len: usize) -> Option<u64> {
        let (id, data, wr) = self.begin(at, len)?;
        let sender = &self.boxes[at];
        let mgid = self.gids[group];
        let mut wr = wr.to(&sender.qp);
        let address = wr.to.as_mut().expect("an address");
        (address.remote_qpn, address.remote_qkey) = (MULTICAST_QPN, qkey);
        (address.av.dgid, address.av.dmac) = (mgid, multicast_mac(gid_to_ip(mgid)));
        let letter = Letter {
            from: (sender.qp.qpn, id),
            imm: None,
            data,
            group: Some(group),
            doubled: sender.guest.net.doubled(),
            arrived: 0,
        };
        for (index, other) in self.boxes.iter_mut().enumerate() {
            let options = &other.qp.options;
            let is_deaf = index == at && options.blocks_loopback;
            // Whether the QP is a member matters only when the datagram arrives.
            if options.qkey == qkey && !is_deaf {
                other.letters.push(letter.clone());
            }
        }
        self.post(at, id, &wr);
        Some(id)
    }

    /// Sends a datagram to a group while all QPs are idle, so that all members must hear it.
    pub(super) fn probe_group(&mut self) {
        for at in 0..self.boxes.len() {
            let id = self.next_id();
            self.boxes[at].post_recv(id, AREA);
        }
        self.probed_group = self.send_to_group((0, 0), self.qkeys[0], LONGEST);
    }

    /// Checks that all members have heard the datagram of [`probe_group`](Self::probe_group).
    pub(super) fn check_probed_group(&self) {
        let Some(id) = self.probed_group else {
            return;
        };
        for ours in &self.boxes {
            let is_it = |letter: &&Letter| letter.from.1 == id && letter.group.is_some();
            let letter = ours.letters.iter().find(is_it);
            let is_deaf = letter.is_some_and(|letter| letter.arrived == 0);
            assert!(
                !is_deaf || !ours.groups[0],
                "a datagram to a group at rest did not arrive"
            );
        }
    }

    /// Returns a QP that is about to join or leave a group, and its number.
    fn before_change(&mut self, at: usize) -> (&mut Mailbox<'w>, Qpn) {
        // Completions so far belong to its groups so far.
        while self.poll_one(at) {}
        let ours = &mut self.boxes[at];
        let qpn = ours.qp.qpn;
        (ours, qpn)
    }
}
