// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The connection of a RoCE engine to the switch: two queues of frames.
//!
//! # A slow receiver
//! A frame of an engine is not dropped because its receiver is slow. A sender takes no buffer for a
//! frame to an engine with [`CROWDED`] waiting frames, but waits, as it does if its pool is
//! exhausted. Each sender may have a few frames in the queue at any time, so no sender starves. The
//! return of the sender's buffers ends the wait: the receiver always takes its frames, even if it
//! has failed or can't send. So no cycle of engines waits for itself.
//!
//! Only frames to the slow receiver wait. They use at most half of the sender's buffers
//! ([`Lane`]). All frames that are not for an engine of the sender's group are one lane.
//!
//! From [`MARKED`] waiting frames on, new frames are marked as congested.

use std::cell::Cell;
use std::fmt;
use std::iter;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;
use roce::frame::{Frames, Lane};
use roce::net::{self, is_roce, Mac};
use roce::{Frame, FramePool, FramePort};

use crate::calls::Calls;
use crate::frame_queue::FrameQueue;
use crate::groups::{Groups, Joined};
use crate::index::PortIndex;
use crate::neighbours::Neighbours;
use crate::stats::FrameCounters;

/// Number of buffers for frames that an engine sends. A buffer is in use until its frame is
/// delivered.
pub(crate) const ENGINE_FRAMES: usize = 2048;
/// Length of an engine's queue up to which frames from network interfaces are accepted. Frames of
/// engines are always accepted: their number is limited by the buffers of their senders.
pub(crate) const RECEIVE_QUEUE: usize = 2 * ENGINE_FRAMES;
/// Length of the queue up to which frames from uplinks are accepted.
pub(crate) const UPLINK_SHARE: usize = RECEIVE_QUEUE / 4 * 3;
/// Length of the queue from which on engines wait before they send more frames to it.
const CROWDED: usize = RECEIVE_QUEUE / 2;
/// Length of the queue from which on new frames are marked as congested, if their sender supports
/// ECN.
const MARKED: usize = RECEIVE_QUEUE / 4;

/// The queues between an engine and the switch. Both sides use this structure.
///
/// Threads read most fields for each frame and rarely write them. The queues have cache lines of
/// their own, since different threads write them all the time.
pub(crate) struct EngineQueues {
    pool: FramePool,
    outgoing: CachePadded<Outgoing>,
    /// Frames to the engine, from any thread.
    incoming: CachePadded<FrameQueue>,
    joined: Joined,
    /// Whether all frames from and to the engine must pass through the switch's thread.
    watched: AtomicBool,
    /// Whether the engine leaves the ICRC of its frames to the switch's thread.
    offloads_icrc: AtomicBool,
    calls: Arc<Calls>,
    index: PortIndex,
    counters: Arc<FrameCounters>,
    ready: OnceLock<Box<dyn Fn(Caller) + Send + Sync>>,
}

/// Frames from the engine to the switch's thread.
#[derive(Default)]
struct Outgoing {
    /// At most as many frames as the engine's pool has.
    frames: FrameQueue,
    /// Whether the switch's thread was notified of frames and has yet to take them.
    has_called: AtomicBool,
}

thread_local! {
    /// Whether the current thread executes a round of the switch.
    static IN_ROUND: Cell<bool> = const { Cell::new(false) };
}

/// Executes a round of the switch in the current thread. Engines whose buffers become free in the
/// round are not notified at once: the round [does that](Calls::take_with_room) at its end.
pub(crate) fn in_round(round: impl FnOnce()) {
    IN_ROUND.set(true);
    round();
    IN_ROUND.set(false);
}

/// The state of a thread that notifies an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// The thread has other work to do, or holds locks. It must not be delayed.
    Busy,
    /// The switch's thread, which has nothing else to do now and holds no locks. The engine may do
    /// a bounded amount of its work in this thread.
    Idle,
}

impl EngineQueues {
    /// Empty queues of the engine of the port with `index`.
    pub(crate) fn new(
        calls: Arc<Calls>,
        groups: Arc<Groups>,
        index: PortIndex,
        counters: Arc<FrameCounters>,
    ) -> Self {
        let pool = FramePool::with_icrc_offload(ENGINE_FRAMES, 1 + calls.max_ports());
        let owner = Arc::clone(&calls);
        pool.on_surplus(move || owner.surplus());
        Self {
            pool,
            outgoing: CachePadded::default(),
            incoming: CachePadded::default(),
            joined: Joined::new(groups, index),
            watched: AtomicBool::new(false),
            offloads_icrc: AtomicBool::new(false),
            calls,
            index,
            counters,
            ready: OnceLock::new(),
        }
    }

    /// Number of the engine's buffers that are in use.
    #[cfg(feature = "testing")]
    pub(crate) fn frames(&self) -> usize {
        self.pool.in_use()
    }

    /// Sets whether all frames from and to the engine must pass through the switch's thread.
    pub(crate) fn set_watched(&self, watched: bool) {
        self.watched.store(watched, Ordering::Relaxed);
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed)
    }

    /// Number of frames that wait for the engine.
    pub(crate) fn incoming(&self) -> usize {
        self.incoming.len()
    }

    /// Counters of the engine's port.
    pub(crate) fn counters(&self) -> &Arc<FrameCounters> {
        &self.counters
    }

    /// Sets whether the engine should leave the ICRC of its frames to the switch's thread. The
    /// switch accepts frames with and without an ICRC at any time.
    pub(crate) fn set_offloads_icrc(&self, offloads: bool) {
        self.offloads_icrc.store(offloads, Ordering::Relaxed);
    }

    /// The frames that the engine has sent. The engine calls the switch's thread again for later
    /// ones. The swap synchronizes with senders that found the flag set, so their frames are
    /// visible in the queue.
    pub(crate) fn sent(self: &Arc<Self>) -> Sent {
        self.outgoing.has_called.swap(false, Ordering::SeqCst);
        Sent(self.clone())
    }

    /// The lane of frames to this engine.
    fn lane(&self) -> Lane {
        // The lanes of engines follow that of all other receivers.
        u16::try_from(1 + self.index.0).map_or(Lane::MANY, Lane::new)
    }

    /// Whether engines wait before they send more frames to this engine.
    fn is_crowded(&self) -> bool {
        self.incoming.len() >= CROWDED
    }

    /// Queues frames for the engine, without a [notification](Self::notify), while fewer than
    /// `limit` wait. Drops the others. Counts the frames.
    pub(crate) fn deliver(&self, limit: usize, frames: impl Iterator<Item = Frame>) -> bool {
        let marks = self.incoming.len() >= MARKED;
        let mut frames = frames.map(|mut frame| {
            if marks {
                net::mark(&mut frame);
            }
            frame
        });
        let sent = self.incoming.push(limit, &mut frames);
        self.counters.engine_longest.note(self.incoming.len());
        let dropped = frames.count();
        if dropped > 0 {
            self.counters.dropped.add(dropped);
        }
        if sent > 0 {
            self.counters.sent.add(sent);
        }
        sent > 0
    }

    /// Queues frames of another engine for this engine and notifies it.
    fn accept(&self, frames: impl Iterator<Item = Frame>) {
        if self.deliver(usize::MAX, frames) {
            self.notify(Caller::Busy);
        }
    }

    /// The pool of the frames that the engine sends.
    pub(crate) fn pool(&self) -> &FramePool {
        &self.pool
    }

    /// Ends the delivery to the engine, which takes no frames any more.
    pub(crate) fn close(&self) {
        self.incoming.close();
    }

    /// The multicast addresses that the engine has joined.
    pub(crate) fn joined(&self) -> &Joined {
        &self.joined
    }

    /// Called when buffers have become free after the engine found none.
    fn freed(&self) {
        if IN_ROUND.get() {
            self.calls.freed(self.index);
        } else {
            self.notify(Caller::Busy);
        }
    }

    pub(crate) fn notify(&self, caller: Caller) {
        if let Some(ready) = self.ready.get() {
            ready(caller);
        }
    }
}

/// The frames that an engine has sent, as the switch's thread takes them.
pub(crate) struct Sent(Arc<EngineQueues>);

impl Sent {
    /// Takes at most `most` frames and adds them to `into`.
    pub(crate) fn take(&self, most: usize, into: &mut impl Extend<Frame>) {
        self.0.outgoing.frames.pop(most, into);
    }

    /// Whether there is another frame.
    pub(crate) fn has_more(&self) -> bool {
        !self.0.outgoing.frames.is_empty()
    }
}

/// A RoCE engine's port of the switch. Clones are the same port.
#[derive(Clone)]
pub struct EnginePort {
    pub(crate) mac: Mac,
    pub(crate) engine: Arc<EngineQueues>,
    /// All engines of the port's isolation group, including this engine. Empty if every frame must
    /// pass through the switch's thread.
    pub(crate) neighbours: Arc<Neighbours>,
}

impl EnginePort {
    /// Registers `ready`. It is called when frames have arrived, or when there is room again after
    /// [`reserve`](FramePort::reserve) or [`room`](FramePort::room) found none: by the
    /// switch's thread, or by any thread that sends or drops a frame. `ready` must only notify the
    /// engine, unless its [`Caller`] is idle. Later calls of `on_ready` have no effect.
    pub fn on_ready(&self, ready: impl Fn(Caller) + Send + Sync + 'static) {
        if self.engine.ready.set(Box::new(ready)).is_err() {
            return;
        }
        let engine = Arc::downgrade(&self.engine);
        self.engine.pool.on_free(move || {
            if let Some(engine) = engine.upgrade() {
                engine.freed();
            }
        });
        if !self.engine.incoming.is_empty() {
            self.engine.notify(Caller::Busy);
        }
    }

    /// Passes the first `count` of `frames` to the switch's thread.
    fn send_to_switch(&self, frames: &mut Frames, count: usize) {
        if !self.engine.offloads_icrc.load(Ordering::Relaxed) {
            // The ICRC is computed here, while the payload is in this CPU's cache.
            frames[..count].iter_mut().for_each(roce::packet::complete);
        }
        let mut frames = frames.drain(..count);
        self.engine.outgoing.frames.push(ENGINE_FRAMES, &mut frames);
        if frames.len() > 0 {
            // Only frames of another pool can find the queue full.
            self.engine.counters.dropped.add(frames.len());
        }
        if !self.engine.outgoing.has_called.swap(true, Ordering::SeqCst) {
            self.engine.calls.sent(self.engine.index);
        }
    }

    /// The lane of frames to the receiver with this address, and whether the receiver is crowded.
    fn lane_to(&self, to: &Mac) -> (Lane, bool) {
        let mut found = (Lane::MANY, false);
        self.neighbours.with(to, |receiver| {
            found = (receiver.lane(), receiver.is_crowded());
        });
        found
    }

    /// The destination address of a frame that may bypass the switch's thread: the caller may
    /// deliver it directly to the engine with this address.
    fn neighbour(&self, frame: &[u8]) -> Option<Mac> {
        let (to, rest) = frame.split_first_chunk()?;
        let (from, _) = rest.split_first_chunk()?;
        let is_direct = self.mac == *from && is_roce(frame) && !self.engine.is_watched();
        is_direct.then_some(*to)
    }
}

impl FramePort for EnginePort {
    fn reserve(&self, to: &Mac, len: usize, count: usize, frames: &mut Frames) -> Lane {
        let (lane, is_crowded) = self.lane_to(to);
        let lengths = iter::repeat_n(len, count);
        self.engine.pool.take_for(lane, is_crowded, lengths, frames);
        lane
    }

    fn lanes(&self) -> usize {
        1 + self.engine.calls.max_ports()
    }

    fn room(&self, lane: Lane) -> usize {
        self.engine.pool.room(lane)
    }

    fn is_waiting(&self, to: &Mac) -> bool {
        let (lane, _) = self.lane_to(to);
        self.engine.incoming() > 0 || self.engine.pool.in_use_by(lane) > 0
    }

    fn ticket(&self, to: &Mac) -> u64 {
        self.engine.pool.ticket(self.lane_to(to).0)
    }

    fn has(&self, to: &Mac, ticket: u64) -> bool {
        self.engine.pool.has(self.lane_to(to).0, ticket)
    }

    fn is_crowded(&self) -> bool {
        self.engine.incoming() >= MARKED || self.engine.pool.in_use() >= ENGINE_FRAMES / 4
    }

    fn memory(&self) -> usize {
        self.engine.pool.memory()
    }

    fn send(&self, frames: &mut Frames) {
        frames.iter_mut().for_each(Frame::set_sent);
        while let Some(first) = frames.first() {
            let to = self.neighbour(first);
            let is_same = |frame: &&Frame| self.neighbour(frame) == to;
            let count = 1 + frames[1..].iter().take_while(is_same).count();
            let mut is_delivered = false;
            if let Some(to) = to {
                self.neighbours.with(&to, |neighbour| {
                    if !neighbour.is_watched() {
                        self.engine.counters.received.add(count);
                        // A frame between engines of one process needs no ICRC.
                        neighbour.accept(frames.drain(..count));
                        is_delivered = true;
                    }
                });
            }
            if !is_delivered {
                self.send_to_switch(frames, count);
            }
        }
    }

    fn receive(&self, most: usize, into: &mut Frames) {
        let most = most.min(into.remaining_capacity());
        self.engine.incoming.pop(most, into);
    }

    fn join(&self, mac: Mac) {
        self.engine.joined.join(mac);
    }

    fn leave(&self, mac: Mac) {
        self.engine.joined.leave(mac);
    }
}

impl fmt::Debug for EnginePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EnginePort({})", self.engine.counters.name)
    }
}

impl fmt::Debug for EngineQueues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EngineQueues({})", self.counters.name)
    }
}
