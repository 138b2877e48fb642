// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Sending datagrams. Each work request names its own destination.

use std::ops::ControlFlow::{Break, Continue};

use roce::ud::Destination;
use virtio_rdma_abi::ib::{QpState, WcStatus, DEFAULT_PKEY};
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::{Datagram, Member, SqHeader};

use super::Progress;
use crate::direct::{self, DatagramStep};
use crate::qp::send::Next;
use crate::qp::{attr, Qp, SendSide, SendTurn};
use crate::runtime::Watch;
use crate::wire::SendEnv;
use crate::wqe::Fetched;

/// If the Q_Key in a work request has this bit, the datagram gets the QP's own Q_Key. So a Q_Key
/// with this bit can be sent only by privileged users, who may set such a Q_Key as the QP's own
/// (IBTA 10.2.5).
const QKEY_OF_QP: u32 = 1 << 31;

impl Qp {
    /// Executes the next work request of a UD or GSI QP.
    pub(super) fn send_datagram(
        &self,
        turn: &SendTurn<'_>,
        side: &mut SendSide,
        state: QpState,
        watch: &Watch,
    ) -> Progress {
        let fetched = match side.blocked.take() {
            Some(blocked) => blocked,
            None if state != QpState::Rts => {
                return Break(self.park_idle(turn, side, state, watch))
            }
            None => match turn.fetch(&mut side.io, &side.attr) {
                Ok(Next::Fetched(fetched)) => fetched,
                Ok(Next::Held) => return Break(self.park(turn.hca, side, None)),
                Ok(Next::Nothing) => return Break(self.park_idle(turn, side, state, watch)),
                Err(_) => return self.break_queue(turn, side),
            },
        };
        let spent = turn.budget.spent();
        let status = match self.deliver(turn, side, &fetched) {
            Ok(DatagramStep::Sent) => WcStatus::Success,
            Ok(DatagramStep::Waits) => {
                side.blocked = Some(fetched);
                return Break(self.await_room(turn.hca, side));
            }
            Err(status) => status,
        };
        turn.complete(&mut side.io, &fetched.wr, status);
        if status != WcStatus::Success {
            self.fail_send(turn.hca);
        }
        Continue(turn.budget.charged_since(spent))
    }

    /// Sends a datagram.
    fn deliver(
        &self,
        turn: &SendTurn<'_>,
        side: &mut SendSide,
        fetched: &Fetched,
    ) -> Result<DatagramStep, WcStatus> {
        if let Some(status) = fetched.failed {
            return Err(status);
        }
        let to = self.destination(turn, side, fetched)?;
        // No port has the Ethernet address of a multicast group, so `direct_peer` returns `None`
        // for a group.
        let group = turn.hca.config().group;
        if let Some(peer) = turn.hca.runtime().direct_peer(group, to.path.dst_mac) {
            return direct::deliver(turn, side, &fetched.wr, &to, &peer);
        }
        self.send_packet(turn, side, fetched, &to)
    }

    /// Sends a datagram as a packet.
    #[inline(never)] // It makes a burst.
    fn send_packet(
        &self,
        turn: &SendTurn<'_>,
        side: &mut SendSide,
        fetched: &Fetched,
        to: &Destination,
    ) -> Result<DatagramStep, WcStatus> {
        let Some(sender) = &mut side.sender else {
            return Err(WcStatus::LocQpOpErr);
        };
        let mut env = SendEnv::new(turn, &mut side.io);
        Ok(match sender.send(&fetched.wr, to, &mut env)? {
            Some(_) => DatagramStep::Sent,
            None => DatagramStep::Waits,
        })
    }

    /// The destination of a datagram's work request. The PD and the port number in the address
    /// vector are ignored: those of the QP are used.
    fn destination(
        &self,
        turn: &SendTurn<'_>,
        side: &SendSide,
        fetched: &Fetched,
    ) -> Result<Destination, WcStatus> {
        let wqe = side.io.snapshots.get(fetched.wr.local.snapshot);
        let header = SqHeader::get(&wqe[..SqHeader::SIZE]);
        let datagram = Datagram::load(&header.wr);
        let path = attr::datagram_path(turn.hca, self.number, &datagram)
            .map_err(|_| WcStatus::LocQpOpErr)?;
        let qkey = match datagram.remote_qkey & QKEY_OF_QP {
            0 => datagram.remote_qkey,
            _ => side.attr.qkey,
        };
        Ok(Destination {
            path,
            qpn: datagram.remote_qpn,
            qkey,
            pkey: DEFAULT_PKEY,
        })
    }
}
