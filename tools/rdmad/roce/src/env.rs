// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The environment of the state machines: traits that the engine around them implements.
//!
//! One value may implement all three traits: requester and responder receive the environment as an
//! argument of each call and store no reference to it.

use std::time::Instant;

use crate::frame::Frame;
use crate::net::Mac;
use crate::psn::Psn;
use crate::work::{
    AccessFlags, AtomicOp, FlushOp, RecvCompletion, RecvWr, Remote, SendWr, WcReason, WcResult,
};

/// A transport event that an environment may count and keep, together with a PSN and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incident {
    /// A packet was sent again.
    Retransmission,
    /// The local ACK timeout passed without a response. The number is that of the retries left.
    Timeout,
    /// A NAK other than an RNR NAK was sent. The number is its code.
    NakSent,
    /// An RNR NAK was sent: no receive is posted. The number is the code of its timer.
    RnrNakSent,
    /// A NAK other than an RNR NAK was received. The number is its code.
    NakReceived,
    /// An RNR NAK was received: the peer has no receive posted. The number is that of the RNR
    /// retries left.
    RnrNakReceived,
    /// A response arrived, and one before it did not. The number is that of the retries left.
    ResponseLost,
    /// A request arrived whose PSN is not the expected one, which is the number. The responder of a
    /// reliable connection counts only later PSNs.
    OutOfSequence,
    /// A request arrived whose PSN is before the expected one, which is the number.
    Duplicate,
    /// A packet of a reliable connection arrived with a congestion mark.
    Marked,
    /// A congestion notification was sent.
    NotificationSent,
    /// A congestion notification was received.
    NotificationReceived,
    /// A probe begins with the oldest unacknowledged packet or the last one: no response arrived
    /// for longer than usual.
    Probe,
}

/// The outgoing side of a port.
pub trait Output {
    /// A buffer for a frame of `len` bytes to the MAC address `to`, or `None` if there is no room.
    /// `transmit` then stops with [`Pause::NoFrame`](crate::Pause::NoFrame), and the caller repeats
    /// it when there is room.
    fn frame(&mut self, to: &Mac, len: usize) -> Option<Frame>;
    /// Sends a complete frame. The frame may get lost: there is no error to return.
    fn send(&mut self, frame: Frame);
    /// The ticket of the frame to `to` that was taken last.
    fn ticket(&self, to: &Mac) -> u64 {
        let _ = to;
        0
    }
    /// Whether the frame to `to` with this ticket waits in this host.
    fn is_waiting(&self, to: &Mac, ticket: u64) -> bool {
        let _ = (to, ticket);
        false
    }
    /// Whether the caller has no time left for more frames. `transmit` sends at least one frame,
    /// then stops with [`Pause::Budget`](crate::Pause::Budget).
    fn is_spent(&self) -> bool {
        false
    }
    /// Tells the environment of an incident, with a PSN and the number that [`Incident`] names.
    fn note(&mut self, what: Incident, psn: Psn, number: u32) {
        let _ = (what, psn, number);
    }
}

/// Environment of a requester: [`rc::Requester`](crate::rc::Requester),
/// [`uc::Requester`](crate::uc::Requester) or [`ud::Sender`](crate::ud::Sender).
pub trait RequesterEnv: Output {
    /// Describes the local memory of a send work request.
    type Send;
    /// Copies bytes `offset..offset + into.len()` of the message from local memory. An error fails
    /// the work request. Called again for the same bytes when packets are
    /// retransmitted.
    fn gather(&mut self, local: &Self::Send, offset: u32, into: &mut [u8]) -> WcResult;
    /// Copies `from`, the part of a READ response at byte `offset` of the message, to local memory.
    /// `last` is set if the message ends with `from`. The original value of an atomic operation is
    /// passed as 8 bytes in little-endian order. An error fails the work request.
    fn scatter_read(
        &mut self,
        local: &Self::Send,
        offset: u32,
        from: &[u8],
        last: bool,
    ) -> WcResult;
    /// Executes a [`SendOp::Local`](crate::work::SendOp::Local). Called once for each work request.
    /// An error fails the work request.
    fn execute_local(&mut self, local: &Self::Send) -> WcResult;
    /// Whether a rate limit causes pauses between packets. If so, each packet requests an
    /// acknowledgement: otherwise the requester would treat a pause as a loss.
    fn is_slow(&self) -> bool {
        false
    }
    /// Permits a request to which the peer responds, after which responses of `packets` packets are
    /// outstanding in all. If the port can't take as many, returns false. `transmit` then stops
    /// with [`Pause::NoFrame`](crate::Pause::NoFrame), and the caller repeats it when responses of
    /// other QPs have arrived.
    fn may_request(&mut self, packets: u32) -> bool {
        let _ = packets;
        true
    }
    /// Number of packets that the requester may send after a pause.
    fn share(&self) -> u64 {
        u64::MAX
    }
    /// Whether so many frames from or to the port wait in this host that a loss is likely to be
    /// caused by congestion.
    fn is_crowded(&self) -> bool {
        false
    }
    /// Whether responses of the host with the MAC address `peer` may be on the way although none
    /// has arrived since `since`: packets of other QPs have arrived from this host, or frames wait
    /// in the switch of this host.
    fn is_active(&self, peer: &Mac, since: Instant) -> bool {
        let _ = (peer, since);
        false
    }
    /// Completes a work request. Called in the order of posting, once for each posted work request
    /// that `drain` does not return.
    fn complete_send(&mut self, wr: SendWr<Self::Send>, result: WcResult);
}

/// Why local memory refuses an operation of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteFault {
    /// The key is unknown or of another PD, the range is outside the MR, or the MR does not allow
    /// the access.
    Access,
    /// The request is invalid.
    Invalid,
    /// The request is valid, but its memory could not be accessed.
    Operational,
}

/// The next receive work request is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadReceive;

/// Environment of a responder: [`rc::Responder`](crate::rc::Responder),
/// [`uc::Responder`](crate::uc::Responder) or [`ud::Receiver`](crate::ud::Receiver).
pub trait ResponderEnv: Output {
    /// Describes the local memory of a receive work request.
    type Recv;
    /// Takes the next receive work request; `Ok(None)` if none is posted. Before it returns
    /// [`BadReceive`], the environment completes the invalid work request in error.
    fn take_receive(&mut self) -> Result<Option<RecvWr<Self::Recv>>, BadReceive>;
    /// Copies `from`, the part of a SEND at byte `offset` of the message, to the buffers of a
    /// receive, which are long enough. `last` is set if the message ends with `from`. An error
    /// fails the receive.
    fn scatter_recv(
        &mut self,
        local: &Self::Recv,
        offset: u32,
        from: &[u8],
        last: bool,
    ) -> WcResult;
    /// Completes a receive. Called once for each receive that [`take_receive`](Self::take_receive)
    /// returned and `drain` does not return.
    fn complete_recv(&mut self, wr: RecvWr<Self::Recv>, how: RecvCompletion);
    /// Called when a new request for memory begins, before its other checks. Refuses the request if
    /// it returns an error. `access` are the rights that it needs to the memory of `rkey`.
    fn begin(&mut self, rkey: u32, access: AccessFlags) -> Result<(), RemoteFault> {
        let _ = (rkey, access);
        Ok(())
    }
    /// Checks whether the peer may access `len` bytes at `at`. `access` is `REMOTE_WRITE` or
    /// `REMOTE_READ`.
    fn check(&mut self, at: Remote, len: u32, access: AccessFlags) -> Result<(), RemoteFault>;
    /// Copies `from`, a part of a WRITE, to registered memory at `at`. First performs the checks of
    /// [`check`](Self::check). `last` is set if the message ends with `from`.
    fn write(&mut self, at: Remote, from: &[u8], last: bool) -> Result<(), RemoteFault>;
    /// Copies registered memory at `at` to `into`, for a READ. First performs the checks of
    /// [`check`](Self::check).
    fn read(&mut self, at: Remote, into: &mut [u8]) -> Result<(), RemoteFault>;
    /// Executes an atomic operation on the 8 bytes at `at`, whose address is a multiple of 8, and
    /// returns their original value. First performs the checks of [`check`](Self::check) for
    /// `REMOTE_ATOMIC`. Never called for a duplicate.
    fn atomic(&mut self, at: Remote, op: AtomicOp) -> Result<u64, RemoteFault>;
    /// Writes 8 bytes atomically to `at`, whose address is a multiple of 8. First performs the
    /// checks of [`check`](Self::check) for `REMOTE_WRITE`. Never called for a duplicate.
    fn write_word(&mut self, at: Remote, data: [u8; 8]) -> Result<(), RemoteFault>;
    /// Executes a FLUSH. First checks its R_Key and access flags, and its range if it has one.
    /// Never called for a duplicate.
    fn flush(&mut self, flush: &FlushOp) -> Result<(), RemoteFault>;
    /// Invalidates the R_Key of a SEND with invalidate, after the data is in place and before the
    /// receive completes. The error says why the key can't be invalidated.
    fn invalidate(&mut self, rkey: u32) -> Result<(), WcReason>;
}
