// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Sending datagrams. Each work request names its own destination.

use std::ops::ControlFlow::{Break, Continue};

use chaos::{Hook, MadStart};
use roce::ud::Destination;
use roce::work::{WcFault, WcReason};
use virtio_rdma_abi::ib::{AccessFlags, QpState, QpType, DEFAULT_PKEY};
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::{Datagram, Member, SqHeader};

use super::turn::Next;
use super::{Progress, Requester, RequesterTurn};
use crate::direct::{self, DatagramStep};
use crate::qp::attr;
use crate::runtime::Watch;
use crate::wire::RequesterEnv;
use crate::wqe::{malformed, Fetched};

/// If the Q_Key in a work request has this bit, the datagram gets the QP's own Q_Key. So a Q_Key
/// with this bit can be sent only by privileged users, who may set such a Q_Key as the QP's own
/// (IBTA 10.2.5).
const QKEY_OF_QP: u32 = 1 << 31;

impl RequesterTurn<'_> {
    /// Executes the next work request of a UD or GSI QP.
    pub(super) fn send_datagram(
        &self,
        requester: &mut Requester,
        state: QpState,
        watch: &Watch,
    ) -> Progress {
        let fetched = match requester.blocked.take() {
            Some(blocked) => blocked,
            None if state != QpState::Rts => return Break(self.park_idle(requester, state, watch)),
            None => match self.fetch(&mut requester.io, &requester.attr) {
                Ok(Next::Fetched(fetched)) if self.is_lost(requester, &fetched) => {
                    let spent = self.budget.spent();
                    self.complete(&mut requester.io, &fetched.wr, Ok(()));
                    return Continue(self.budget.charged_since(spent));
                }
                Ok(Next::Fetched(fetched)) => fetched,
                Ok(Next::Held) => return Break(self.park(requester, None)),
                Ok(Next::Nothing) => return Break(self.park_idle(requester, state, watch)),
                Err(_) => return self.break_queue(requester),
            },
        };
        let spent = self.budget.spent();
        let result = match self.deliver(requester, &fetched) {
            Ok(DatagramStep::Sent) => Ok(()),
            Ok(DatagramStep::Waits) => {
                requester.blocked = Some(fetched);
                return Break(self.await_room(requester));
            }
            Err(fault) => Err(fault),
        };
        self.complete(&mut requester.io, &fetched.wr, result);
        if result.is_err() {
            self.qp.fail_send(self.hca);
        }
        Continue(self.budget.charged_since(spent))
    }

    /// Whether the datagram is a message of the connection manager that is lost by a rule.
    fn is_lost(&self, requester: &Requester, fetched: &Fetched) -> bool {
        let is_message = self.qp.init.qp_type == QpType::Gsi && self.hca.rules().has(Hook::Cm);
        if !is_message || fetched.failed.is_some() {
            return false;
        }
        let mut mad = MadStart::default();
        let (snapshots, posted) = (&requester.io.snapshots, &fetched.wr.local);
        let mut message = self.message(snapshots, posted, AccessFlags::NONE);
        if message.read(0, &mut mad).is_err() {
            return false;
        }
        let is_lost = |attribute| self.hca.is_message_lost(self.qp.number.get(), attribute);
        chaos::cm_attribute(&mad).is_some_and(is_lost)
    }

    /// Sends a datagram.
    fn deliver(
        &self,
        requester: &mut Requester,
        fetched: &Fetched,
    ) -> Result<DatagramStep, WcFault> {
        if let Some(fault) = fetched.failed {
            return Err(fault);
        }
        let to = self.destination(requester, fetched)?;
        // No port has the Ethernet address of a multicast group, so `direct_peer` returns `None`
        // for a group.
        let group = self.hca.config().group;
        if let Some(peer) = self.hca.runtime().hcas.direct_peer(group, to.path.dst_mac) {
            return direct::deliver(self, requester, &fetched.wr, &to, &peer);
        }
        self.send_packet(requester, fetched, &to)
    }

    /// Sends a datagram as a packet.
    #[inline(never)] // It makes a burst.
    fn send_packet(
        &self,
        requester: &mut Requester,
        fetched: &Fetched,
        to: &Destination,
    ) -> Result<DatagramStep, WcFault> {
        let Some(sender) = &mut requester.sender else {
            return Err(WcFault::NOT_PERMITTED);
        };
        let mut env = RequesterEnv::new(self, &mut requester.io);
        Ok(match sender.send(&fetched.wr, to, &mut env)? {
            Some(_) => DatagramStep::Sent,
            None => DatagramStep::Waits,
        })
    }

    /// The destination of a datagram's work request. The PD and the port number in the address
    /// vector are ignored: those of the QP are used.
    fn destination(
        &self,
        requester: &Requester,
        fetched: &Fetched,
    ) -> Result<Destination, WcFault> {
        let wqe = requester.io.snapshots.get(fetched.wr.local.snapshot);
        let header = SqHeader::get(&wqe[..SqHeader::SIZE]);
        let datagram = Datagram::load(&header.wr);
        let path = attr::datagram_path(self.hca, self.qp.number, &datagram)
            .map_err(|_| malformed(WcReason::BadAddress))?;
        let qkey = match datagram.remote_qkey & QKEY_OF_QP {
            0 => datagram.remote_qkey,
            _ => requester.attr.qkey,
        };
        Ok(Destination {
            path,
            qpn: datagram.remote_qpn,
            qkey,
            pkey: DEFAULT_PKEY,
        })
    }
}
