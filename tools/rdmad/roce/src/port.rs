// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The interface between an engine and the Ethernet switch.

use crate::frame::{Frame, Frames};
use crate::net::Mac;

/// A port of the Ethernet switch, through which an engine sends and receives RoCE frames.
///
/// The switch wakes the engine when frames arrive, and when a buffer is free after
/// [`frame`](Self::frame) or [`reserve`](Self::reserve) found none.
pub trait FramePort: Send + Sync {
    /// A buffer for a frame of `len` bytes, or `None` if all buffers of this port are in use.
    fn frame(&self, len: usize) -> Option<Frame> {
        let mut frames = Frames::new();
        self.reserve(len, 1, &mut frames);
        frames.pop()
    }
    /// Adds buffers for `count` frames of `len` bytes to `frames`, or as many as are free and there
    /// is room for.
    fn reserve(&self, len: usize, count: usize, frames: &mut Frames);
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
