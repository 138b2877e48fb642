// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Ethernet frames in buffers of a pool.

mod pool;

use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::slice;
use std::sync::Arc;

use arrayvec::ArrayVec;

use self::pool::{suits, Buffer, For, Pool};

pub use self::pool::{discard, release, FramePool, Lane, Surplus};

/// Largest Ethernet frame without FCS: a jumbo payload of 9216 bytes, the header and one VLAN tag.
pub const MAX_FRAME: usize = 9216 + 14 + 4;

/// Maximum number of frames that are handled together. This number of frames fits a second-level
/// cache, so a frame is still in the cache when its payload is copied after the check of its ICRC.
pub const FRAMES_AT_ONCE: usize = 16;

/// Frames that are handled together, in order.
pub type Frames = ArrayVec<Frame, FRAMES_AT_ONCE>;

/// An Ethernet frame. Its buffer returns to the pool when the frame is dropped.
pub struct Frame {
    bytes: Box<[u8]>,
    /// The pool of the buffer; `None` after the buffer was taken out, before the frame is dropped.
    pool: Option<Arc<Pool>>,
    len: usize,
    /// The lane in which the pool counts the frame.
    lane: Option<Lane>,
    /// Whether the port of its engine has sent the frame.
    is_sent: bool,
    is_routed: bool,
    lacks_icrc: bool,
}

impl Frame {
    /// A frame in the first `len` bytes of a buffer, which has at least this length.
    fn new(Buffer { bytes, pool }: Buffer, len: usize) -> Self {
        Self {
            bytes,
            pool: Some(pool),
            len,
            lane: None,
            is_sent: false,
            is_routed: false,
            lacks_icrc: false,
        }
    }

    /// The frame, which the pool has counted as one for `to`.
    fn of(mut self, to: Option<For>) -> Self {
        self.lane = to.map(|to| to.lane);
        self
    }

    /// Takes the buffer out of a frame that is about to be dropped.
    fn take_buffer(&mut self) -> Option<Buffer> {
        let pool = self.pool.take()?;
        let bytes = mem::take(&mut self.bytes);
        self.len = 0;
        Some(Buffer { bytes, pool })
    }

    /// Changes the length of the frame to `len` bytes, with unspecified content. Returns false and
    /// does nothing if another buffer suits this length.
    pub fn resize(&mut self, len: usize) -> bool {
        let suits = suits(&self.bytes, len);
        if suits {
            self.len = len;
        }
        suits
    }

    /// Shortens the frame to `len` bytes. No effect if the frame is not longer.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Marks the frame as sent. An unsent frame of a lane returns its [ticket] too.
    ///
    /// [ticket]: FramePool::ticket
    pub fn set_sent(&mut self) {
        self.is_sent = true;
    }

    /// Marks the frame as possibly forwarded by a router.
    pub fn set_routed(&mut self) {
        self.is_routed = true;
    }

    /// Whether the frame may have been forwarded by a router. Its source MAC address may then be
    /// that of the router, and does not identify the sender.
    pub fn is_routed(&self) -> bool {
        self.is_routed
    }

    /// Whether a packet in this frame is built without an ICRC.
    pub(crate) fn offloads_icrc(&self) -> bool {
        self.pool.as_ref().is_some_and(|pool| pool.offloads_icrc)
    }

    /// Marks the frame as a valid packet whose ICRC was not computed yet, or removes the mark.
    pub fn set_lacks_icrc(&mut self, lacks: bool) {
        self.lacks_icrc = lacks;
    }

    /// Whether the frame is a valid packet whose ICRC was not computed yet: its last 4 bytes are
    /// not the ICRC.
    pub fn lacks_icrc(&self) -> bool {
        self.lacks_icrc
    }

    /// A copy of the frame in a buffer of the same pool; `None` if no buffer is free.
    pub fn duplicate(&self) -> Option<Self> {
        self.pool.as_ref()?.copy_of(self)
    }
}

impl Deref for Frame {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl DerefMut for Frame {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        // A frame whose buffer was returned is empty.
        if self.pool.is_some() {
            release(slice::from_mut(self));
        }
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({} bytes)", self.len)
    }
}
