// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Datagrams between QPs of one process.

use std::sync::atomic::Ordering;

use roce::net::{ip_to_gid, vlan_id};
use roce::opcode::Service;
use roce::size::request_size;
use roce::ud::{grh, transport_size, Destination, GRH_SIZE};
use roce::work::{DatagramSender, RecvCompletion, SendOp, SendWr, WcFault, With};
use roce::Connection;
use virtio_rdma_abi::ib::AccessFlags;

use super::Borrowed;
use crate::counters::Counter;
use crate::memory::{transfer, Message, Side};
use crate::qp::{solicits, Requester, RequesterTurn, ResponderTurn};
use crate::wqe::PostedSend;
use crate::Hca;

/// The result of an attempt to send a datagram.
pub(crate) enum DatagramStep {
    /// The datagram is sent. Its receiver may have dropped it.
    Sent,
    /// A rate limit holds the datagram back, or the frame port is full.
    Waits,
}

/// Delivers a datagram to QP `to.qpn` of `hca`, if that QP accepts it. Returns only errors of
/// the sender: a datagram that the receiver drops counts as sent.
pub(crate) fn deliver(
    turn: &RequesterTurn<'_>,
    requester: &mut Requester,
    wr: &SendWr<PostedSend>,
    to: &Destination,
    hca: &Hca,
) -> Result<DatagramStep, WcFault> {
    let SendOp::Send { with } = wr.op else {
        return Err(WcFault::NOT_PERMITTED);
    };
    let port = &turn.hca.pacer;
    let length = wr.length as usize;
    let taken = port.take_bytes(turn.now, &mut requester.io.port, length, length);
    if requester.io.passes(taken).is_none() {
        return Ok(DatagramStep::Waits);
    }
    if requester.io.pacer.is_some() {
        let connection = Connection {
            path: to.path,
            dest_qpn: to.qpn,
            pkey: to.pkey,
            mtu: turn.hca.config().path_mtu(),
        };
        let bytes = request_size(Service::Ud, &connection, wr, 0);
        if !requester.io.admit(turn.now, bytes) {
            port.give_bytes_back(&mut requester.io.port, length);
            return Ok(DatagramStep::Waits);
        }
        if let Some(pacer) = &mut requester.io.pacer {
            pacer.spend(bytes);
        }
        let paced = bytes as u64;
        turn.count(Counter::PacedBytes, paced);
    }
    turn.count(Counter::DirectTxMessages, 1);
    turn.count(Counter::DirectTxBytes, wr.length.into());
    // The IP identification is the PSN, as on the wire.
    let ident = requester.sender.as_mut().map_or(0, |sender| {
        let psn = sender.next_psn().value();
        sender.advance();
        psn as u16
    });
    let with_imm = matches!(with, With::Imm(_));
    let header = grh(
        &to.path,
        ident,
        transport_size(wr.length as usize, with_imm),
    );
    if hca.has_failed()
        || !turn.hca.link_is_up()
        || !hca.link_is_up()
        || !hca
            .objects
            .gids
            .contains(ip_to_gid(to.path.addresses.dst()), to.path.vlan)
    {
        return Ok(DatagramStep::Sent);
    }
    let Some(peer) = hca
        .objects
        .qps
        .get(to.qpn)
        .filter(|peer| !peer.is_connected())
    else {
        return Ok(DatagramStep::Sent);
    };
    let _borrowed = Borrowed::new(hca, peer.number);
    let mut responder = peer.lock_responder();
    if !peer.receives() {
        return Ok(DatagramStep::Sent);
    }
    if responder.qkey != to.qkey {
        hca.violations.qkey.fetch_add(1, Ordering::Relaxed);
        return Ok(DatagramStep::Sent);
    }
    let view = hca.space.enter();
    let receiver = ResponderTurn::new(&peer, hca, &view, turn.budget);
    let Ok(Some(incoming)) = receiver.take_for_direct(&mut responder) else {
        return Ok(DatagramStep::Sent);
    };
    // A datagram is a single packet, so its length fits.
    let byte_len = GRH_SIZE as u32 + wr.length;
    if byte_len > incoming.length {
        responder.io.incoming = Some(incoming);
        return Ok(DatagramStep::Sent);
    }
    let mut completion = RecvCompletion {
        result: Ok(()),
        rdma_write: false,
        byte_len,
        with,
        solicited: solicits(wr),
        source: Some(DatagramSender {
            qpn: turn.qp.number,
            pkey: to.pkey,
            sl: to.path.service_level(),
            mac: to.path.src_mac,
            vlan: to.path.vlan.map(vlan_id),
        }),
    };
    let moved = {
        let mut from = turn.message(&requester.io.snapshots, &wr.local, AccessFlags::NONE);
        let header =
            receiver
                .message(&responder.io, &incoming.local)
                .write(0, &header, length == 0);
        let mut message = receiver
            .message(&responder.io, &incoming.local)
            .skip(GRH_SIZE as u64);
        header
            .map_err(Side::Target)
            .and_then(|()| move_all(&mut from, &mut message, length))
    };
    match moved {
        Ok(()) => {
            receiver.count(Counter::DirectRxMessages, 1);
            receiver.count(Counter::DirectRxBytes, wr.length.into());
            receiver.complete(&incoming, &completion);
        }
        Err(Side::Source(fault)) => {
            responder.io.incoming = Some(incoming);
            return Err(fault.local());
        }
        Err(Side::Target(fault)) => {
            completion.result = Err(fault.local());
            receiver.complete(&incoming, &completion);
            peer.fail(hca, None);
        }
    }
    Ok(DatagramStep::Sent)
}

/// Copies all `len` bytes of a datagram, which can't be continued in another turn.
fn move_all(from: &mut Message<'_>, to: &mut Message<'_>, len: usize) -> Result<(), Side> {
    let mut done = 0;
    loop {
        done += transfer(from, to, done as u64, len - done, true)?;
        if done >= len {
            return Ok(());
        }
    }
}
