// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Multicast groups: the QPs that receive datagrams sent to a multicast GID.
//!
//! A datagram to a group is always sent as a packet. The frame port delivers it to all ports that
//! joined the group's Ethernet address, including the sender's own port. Each HCA then delivers
//! the datagram to its QPs in turns of its own. So the cost of the sender's turn does not depend on
//! the number of members.

use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use roce::net::{gid_to_ip, multicast_mac};
use virtio_rdma_abi::number::Qpn;

use crate::config::Limits;
use crate::error::{full, Reason, Refusal, Result, What};
use crate::gid::Gid;
use crate::Hca;

/// The QPNs of the members of each group, by MGID.
type Members = HashMap<Gid, Arc<[Qpn]>>;

/// The groups of an HCA that have members. A lookup takes no lock and constant time. A change
/// copies the table; only the thread that executes a control command may change it.
#[derive(Debug, Default)]
pub(crate) struct Groups(ArcSwap<Members>);

impl Groups {
    /// The QPs attached to a group.
    #[inline]
    pub(crate) fn members(&self, mgid: &Gid) -> Option<Arc<[Qpn]>> {
        self.0.load().get(mgid).cloned()
    }

    /// All groups and their members, ordered by MGID.
    pub(crate) fn all(&self) -> Vec<(Gid, Vec<u32>)> {
        let groups = self.0.load();
        let members = |members: &Arc<[Qpn]>| members.iter().map(|qpn| qpn.get()).collect();
        let mut all: Vec<_> = groups
            .iter()
            .map(|(mgid, of)| (*mgid, members(of)))
            .collect();
        all.sort_unstable();
        all
    }

    /// Adds a QP to a group. Returns whether the group is new. Refuses a QP that is a member
    /// already, and what exceeds a limit.
    fn attach(&self, mgid: Gid, qpn: Qpn, limits: &Limits) -> Result<bool> {
        let mut groups = Members::clone(&self.0.load());
        let room = |what, used: usize, limit: u32| {
            let has_room = used < limit as usize;
            has_room.then_some(()).ok_or(full(what, limit))
        };
        let members = groups.get(&mgid).map_or(&[][..], |members| members);
        if members.contains(&qpn) {
            return Err(Refusal::gid(Reason::Exists, What::Mgid, mgid));
        }
        let is_new = members.is_empty();
        if is_new {
            room(What::Groups, groups.len(), limits.max_mcast_grp)?;
        }
        room(What::Members, members.len(), limits.max_mcast_qp_attach)?;
        let total = groups.values().map(|members| members.len()).sum();
        room(What::AllMembers, total, limits.max_total_mcast_qp_attach)?;
        let members = members.iter().copied().chain([qpn]).collect();
        groups.insert(mgid, members);
        self.0.store(Arc::new(groups));
        Ok(is_new)
    }

    /// Removes a QP from a group. Returns whether the group has no members left. Refuses a
    /// QP that is not a member.
    fn detach(&self, mgid: Gid, qpn: Qpn) -> Result<bool> {
        let mut groups = Members::clone(&self.0.load());
        let stranger = Refusal::gid(Reason::NotMember, What::Mgid, mgid);
        let Entry::Occupied(mut group) = groups.entry(mgid) else {
            return Err(stranger);
        };
        if !group.get().contains(&qpn) {
            return Err(stranger);
        }
        let left: Arc<[Qpn]> = without(group.get(), qpn);
        let has_ended = left.is_empty();
        if has_ended {
            group.remove();
        } else {
            group.insert(left);
        }
        self.0.store(Arc::new(groups));
        Ok(has_ended)
    }

    /// Removes a QP from all groups. Returns the groups that have no members left.
    fn forget(&self, qpn: Qpn) -> Vec<Gid> {
        let groups = self.0.load();
        if !groups.values().any(|members| members.contains(&qpn)) {
            return Vec::new();
        }
        let mut ended = Vec::new();
        let mut left = Members::with_capacity(groups.len());
        for (mgid, members) in groups.iter() {
            let members = if members.contains(&qpn) {
                without(members, qpn)
            } else {
                members.clone()
            };
            if members.is_empty() {
                ended.push(*mgid);
            } else {
                left.insert(*mgid, members);
            }
        }
        self.0.store(Arc::new(left));
        ended
    }
}

fn without(members: &[Qpn], qpn: Qpn) -> Arc<[Qpn]> {
    let others = members.iter().copied().filter(|&member| member != qpn);
    others.collect()
}

impl Hca {
    /// Attaches QP `qpn`, a UD QP, to a group: the QP receives the group's datagrams.
    pub(crate) fn attach_to(&self, mgid: Gid, qpn: Qpn) -> Result<()> {
        let address = gid_to_ip(mgid);
        if !address.is_multicast() {
            return Err(Refusal::gid(Reason::NotGroup, What::Mgid, mgid));
        }
        if self
            .objects
            .groups
            .attach(mgid, qpn, &self.config().limits)?
        {
            self.frames.port.join(multicast_mac(address));
        }
        Ok(())
    }

    /// Detaches QP `qpn` from a group.
    pub(crate) fn detach_from(&self, mgid: Gid, qpn: Qpn) -> Result<()> {
        if self.objects.groups.detach(mgid, qpn)? {
            self.frames.port.leave(multicast_mac(gid_to_ip(mgid)));
        }
        Ok(())
    }

    /// Detaches QP `qpn` from all groups.
    pub(crate) fn leave_groups(&self, qpn: Qpn) {
        for mgid in self.objects.groups.forget(qpn) {
            self.frames.port.leave(multicast_mac(gid_to_ip(mgid)));
        }
    }
}
