// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Requirements of the state machines on the engine around them.
//!
//! One value may implement all three traits: requester and responder take the environment as an
//! argument of each call and keep no reference to it.

use crate::frame::Frame;
use crate::work::{
    AccessFlags, AtomicOp, FlushOp, RecvCompletion, RecvWr, Remote, SendWr, WcStatus,
};

/// Something worth counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incident {
    /// A packet was sent again.
    Retransmission,
    /// An answer did not come in time.
    Timeout,
    /// A NAK was sent, of another kind than the next.
    NakSent,
    /// A NAK was sent since no receive is posted.
    RnrNakSent,
    /// A NAK came, of another kind than the next.
    NakReceived,
    /// A NAK came since the peer has no receive posted.
    RnrNakReceived,
    /// A request is not the expected one but a later one.
    OutOfSequence,
    /// A request came again.
    Duplicate,
}

/// Where frames go.
pub trait Output {
    /// A buffer for a frame of `len` bytes, or `None` when the way out is full. Then `transmit`
    /// stops with [`Pause::NoFrame`](crate::Pause::NoFrame) and the caller calls it again when
    /// there is room.
    fn frame(&mut self, len: usize) -> Option<Frame>;
    /// Sends a complete frame. It may get lost like any other.
    fn send(&mut self, frame: Frame);
    /// Counts an incident, if the environment keeps counters.
    fn count(&mut self, what: Incident) {
        let _ = what;
    }
}

/// Environment of a requester: of [`rc::Requester`](crate::rc::Requester),
/// [`uc::Requester`](crate::uc::Requester) or [`ud::Sender`](crate::ud::Sender).
pub trait RequesterEnv: Output {
    /// Local memory of a send work request.
    type Send;
    /// Copies bytes `offset..offset + into.len()` of the message from local memory. An error fails
    /// the work request with this status. Called again for the same bytes when packets are
    /// repeated.
    fn gather(&mut self, local: &Self::Send, offset: u32, into: &mut [u8]) -> Result<(), WcStatus>;
    /// Copies bytes of a READ response, of which `from` is the part at `offset`, to local memory.
    /// `last` says that the message ends with them. The original value of an atomic operation comes
    /// as 8 bytes in little-endian order. An error fails the work request with this status.
    fn scatter_read(
        &mut self,
        local: &Self::Send,
        offset: u32,
        from: &[u8],
        last: bool,
    ) -> Result<(), WcStatus>;
    /// Executes a [`SendOp::Local`](crate::work::SendOp::Local), once. An error fails the work
    /// request with this status.
    fn execute_local(&mut self, local: &Self::Send) -> Result<(), WcStatus>;
    /// Whether packets leave one at a time with pauses between them. Each asks for an
    /// acknowledgement then, lest the requester take a pause for a loss.
    fn is_slow(&self) -> bool {
        false
    }
    /// A work request ended. Called once for each that was posted and not drained, in the order of
    /// posting.
    fn complete_send(&mut self, wr: SendWr<Self::Send>, status: WcStatus);
}

/// Why the memory of this side refuses a remote operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteFault {
    /// The key is unknown or of another PD, the range is outside the MR, or the MR does not allow
    /// the access.
    Access,
    /// The memory could not be reached although the request was right.
    Operational,
}

/// Receive work that can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadReceive;

/// Environment of a responder: of [`rc::Responder`](crate::rc::Responder),
/// [`uc::Responder`](crate::uc::Responder) or [`ud::Receiver`](crate::ud::Receiver).
pub trait ResponderEnv: Output {
    /// Local memory of a receive work request.
    type Recv;
    /// Takes the next receive work request; `Ok(None)` when none is posted. On [`BadReceive`] the
    /// caller has completed it in error itself.
    fn take_receive(&mut self) -> Result<Option<RecvWr<Self::Recv>>, BadReceive>;
    /// Copies bytes of a SEND, of which `from` is the part at `offset`, to the buffers of a
    /// receive; they fit. `last` says that the message ends with them. An error fails the receive
    /// with this status.
    fn scatter_recv(
        &mut self,
        local: &Self::Recv,
        offset: u32,
        from: &[u8],
        last: bool,
    ) -> Result<(), WcStatus>;
    /// A receive ended. Called once for each that was taken and not reset.
    fn complete_recv(&mut self, wr: RecvWr<Self::Recv>, how: RecvCompletion);
    /// Whether `len` bytes at `at` may be accessed so, `access` being `REMOTE_WRITE` or
    /// `REMOTE_READ`.
    fn check(&mut self, at: Remote, len: u32, access: AccessFlags) -> Result<(), RemoteFault>;
    /// Copies part of a WRITE to registered memory, checking it as [`check`](Self::check) does.
    /// `last` says that the message ends with these bytes.
    fn write(&mut self, at: Remote, from: &[u8], last: bool) -> Result<(), RemoteFault>;
    /// Copies registered memory for a READ, checking it as [`check`](Self::check) does.
    fn read(&mut self, at: Remote, into: &mut [u8]) -> Result<(), RemoteFault>;
    /// Executes an atomic operation on the 8 bytes at `at`, whose address is a multiple of 8, and
    /// returns their original value. Checks them as [`check`](Self::check) does, for
    /// `REMOTE_ATOMIC`. Never called for a duplicate.
    fn atomic(&mut self, at: Remote, op: AtomicOp) -> Result<u64, RemoteFault>;
    /// Writes 8 bytes at once to `at`, whose address is a multiple of 8. Checks them as
    /// [`check`](Self::check) does, for `REMOTE_WRITE`. Never called for a duplicate.
    fn write_word(&mut self, at: Remote, data: [u8; 8]) -> Result<(), RemoteFault>;
    /// Executes a FLUSH. Checks key, rights and range, if there is one. May be called for a
    /// duplicate.
    fn flush(&mut self, flush: &FlushOp) -> Result<(), RemoteFault>;
    /// Invalidates an R_Key that a SEND named, after its data is in place and before its receive
    /// completes. [`RemoteFault::Access`] if there is no such key in the QP's PD or it can't be
    /// invalidated.
    fn invalidate(&mut self, rkey: u32) -> Result<(), RemoteFault>;
}
