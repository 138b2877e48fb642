// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Lengths of frames, and the buffers of frames that links have received.

use std::iter;
use std::sync::Arc;

use roce::frame::MAX_FRAME;
use roce::FramePool;

use crate::calls::Calls;
use crate::engine_queues::RECEIVE_QUEUE;
use crate::link::BACKLOG;

/// Number of buffers for frames from one network interface: enough for the backlogs of two links.
const NET_FRAMES: usize = 2 * BACKLOG;

/// Number of buffers for frames from one uplink: enough for the queue of an engine that does not
/// read, and for the backlogs of two links.
const UPLINK_FRAMES: usize = RECEIVE_QUEUE + 2 * BACKLOG;

/// Buffer pools for frames that links have received: of each network interface, then of each
/// uplink.
pub(crate) fn pools(nets: usize, uplinks: usize, calls: &Arc<Calls>) -> Vec<FramePool> {
    let nets = iter::repeat_n(NET_FRAMES, nets);
    let uplinks = iter::repeat_n(UPLINK_FRAMES, uplinks);
    let pool = |frames| {
        let pool = FramePool::new(frames);
        let owner = Arc::clone(calls);
        pool.on_surplus(move || owner.surplus());
        pool
    };
    nets.chain(uplinks).map(pool).collect()
}

/// Length of the shortest frame in bytes: an Ethernet header.
pub(crate) const MIN_FRAME: usize = 14;

/// Whether the switch accepts a frame of this length.
pub(crate) fn is_valid_length(len: usize) -> bool {
    (MIN_FRAME..=MAX_FRAME).contains(&len)
}
