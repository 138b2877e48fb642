// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The interface between an engine and the Ethernet switch.

use crate::frame::{Frame, Frames, Lane};
use crate::net::Mac;

/// A port of the Ethernet switch, through which an engine sends and receives RoCE frames.
///
/// The switch wakes the engine when frames arrive, and when there is room after
/// [`reserve`](Self::reserve) or [`room`](Self::room) found none.
pub trait FramePort: Send + Sync {
    /// A buffer for a frame of `len` bytes to the address `to`, or `None` if there is no room.
    fn frame(&self, to: &Mac, len: usize) -> Option<Frame> {
        let mut frames = Frames::new();
        self.reserve(to, len, 1, &mut frames);
        frames.pop()
    }
    /// Adds buffers for `count` frames of `len` bytes to `frames`, or as many as there is room for.
    /// There is no room if all buffers of this port are in use, or if too many frames to the
    /// receiver with this address wait. Returns the lane of frames to this receiver.
    fn reserve(&self, to: &Mac, len: usize, count: usize, frames: &mut Frames) -> Lane;
    /// Number of lanes.
    fn lanes(&self) -> usize;
    /// Number of frames of a lane for which there may be room.
    fn room(&self, lane: Lane) -> usize;
    /// Whether frames from this port to the receiver with the address `to` wait in this process, or
    /// received frames wait for this port.
    fn is_waiting(&self, to: &Mac) -> bool {
        let _ = to;
        false
    }
    /// Number of frames to the receiver with the address `to` for which this port has ever given
    /// out buffers, except buffers that returned unsent: the ticket of the last of them.
    fn ticket(&self, to: &Mac) -> u64 {
        let _ = to;
        0
    }
    /// Whether the frame with this ticket waits in this process. False if the port does not know:
    /// frames to a receiver outside this process do not leave in order with those to others.
    fn has(&self, to: &Mac, ticket: u64) -> bool {
        let _ = (to, ticket);
        false
    }
    /// Whether many frames from this port, or to this port, wait in this process.
    fn is_crowded(&self) -> bool {
        false
    }
    /// Maximum total size in bytes of the buffers that the port may allocate.
    fn memory(&self) -> usize;
    /// Sends complete frames, whose buffers are from this port. Leaves `frames` empty.
    fn send(&self, frames: &mut Frames);
    /// Takes received frames in order: at most `most`, and as many as `into` has room for.
    fn receive(&self, most: usize, into: &mut Frames);
    /// Subscribes to RoCE frames to the multicast address `mac`. Frames that this port itself sends
    /// to `mac` are received too. Subscriptions count: each needs its own [`leave`](Self::leave).
    fn join(&self, mac: Mac);
    /// Ends one subscription to `mac`.
    fn leave(&self, mac: Mac);
}
