// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The interface between an engine and the Ethernet switch.

use crate::net::Mac;
use crate::Frame;

/// Where RoCE frames go and come from: a port of the Ethernet switch.
///
/// Its owner is told, by whom it is, when frames have come, and when there are buffers again after
/// [`frame`](Self::frame) found none.
pub trait FramePort: Send + Sync {
    /// A buffer for a frame of `len` bytes, or `None` when too many frames of this port are on
    /// their way.
    fn frame(&self, len: usize) -> Option<Frame>;
    /// Bytes of the buffers that it may come to hold.
    fn memory(&self) -> usize;
    /// Sends a complete frame, which [`frame`](Self::frame) gave out.
    fn send(&self, frame: Frame);
    /// The next frame that has come.
    fn receive(&self) -> Option<Frame>;
    /// RoCE frames to this multicast address come too from now on, those that are sent here among
    /// them. Each call is undone by one of [`leave`](Self::leave).
    fn join(&self, mac: Mac);
    /// Undoes a [`join`](Self::join).
    fn leave(&self, mac: Mac);
}
