// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Where a RoCE engine is plugged in: two bounded queues of frames.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use crossbeam_queue::ArrayQueue;
use parking_lot::Mutex;
use roce::net::{is_roce, Mac};
use roce::{Frame, FramePool, FramePort};

use crate::neighbours::Neighbours;
use crate::stats::Counters;
use crate::waker::Waker;

/// Buffers of an engine's own frames, from its hands until they are delivered.
pub(crate) const ENGINE_FRAMES: usize = 2048;
/// Frames that wait for an engine: what a peer can have on its way and some more.
pub(crate) const RECEIVE_QUEUE: usize = 2 * ENGINE_FRAMES;
/// Of these, frames from uplinks. The rest is for engines, each of which has half as many frames as
/// the queue holds.
pub(crate) const UPLINK_SHARE: usize = RECEIVE_QUEUE / 4 * 3;

/// The engine's end and the switch's end of the queues.
pub(crate) struct EngineQueues {
    pool: FramePool,
    /// From the engine. Holds frames of `pool` alone and as many as it has, so it is never full.
    outgoing: ArrayQueue<Frame>,
    /// To the engine.
    incoming: ArrayQueue<Frame>,
    /// Multicast addresses that the engine has joined, and how often.
    joined: Mutex<HashMap<Mac, u32>>,
    waker: Arc<Waker>,
    counters: Arc<Counters>,
    ready: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl EngineQueues {
    pub(crate) fn new(waker: Arc<Waker>, counters: Arc<Counters>) -> Self {
        Self {
            pool: FramePool::new(ENGINE_FRAMES),
            outgoing: ArrayQueue::new(ENGINE_FRAMES),
            incoming: ArrayQueue::new(RECEIVE_QUEUE),
            joined: Mutex::default(),
            waker,
            counters,
            ready: OnceLock::new(),
        }
    }

    /// Buffers of its own frames that are in use.
    #[cfg(feature = "testing")]
    pub(crate) fn frames(&self) -> usize {
        self.pool.in_use()
    }

    /// Counters of its port.
    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// The next frame that the engine sent.
    pub(crate) fn next(&self) -> Option<Frame> {
        self.outgoing.pop()
    }

    pub(crate) fn has_more(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Queues a frame for the engine, which [`notify`](Self::notify) tells about it.
    pub(crate) fn deliver(&self, frame: Frame) -> bool {
        self.incoming.push(frame).is_ok()
    }

    /// The same for a frame from an uplink, unless those have their share of the queue already.
    pub(crate) fn deliver_from_uplink(&self, frame: Frame) -> bool {
        self.incoming.len() < UPLINK_SHARE && self.deliver(frame)
    }

    /// Queues a frame for the engine and tells it.
    fn accept(&self, frame: Frame) {
        if self.deliver(frame) {
            self.counters.sent.add_one();
            self.notify();
        } else {
            self.counters.dropped.add_one();
        }
    }

    /// Whether frames to a multicast address are for the engine.
    pub(crate) fn has_joined(&self, mac: &Mac) -> bool {
        self.joined.lock().contains_key(mac)
    }

    pub(crate) fn notify(&self) {
        if let Some(ready) = self.ready.get() {
            ready();
        }
    }
}

/// A RoCE engine's port of the switch. Clones are the same port.
#[derive(Clone)]
pub struct EnginePort {
    pub(crate) mac: Mac,
    pub(crate) engine: Arc<EngineQueues>,
    /// All engines of its group, itself among them, unless every frame is for the switch's thread
    /// to look at.
    pub(crate) neighbours: Arc<Neighbours>,
}

impl EnginePort {
    /// Has `ready` called when frames have come, or when there are buffers again after
    /// [`frame`](FramePort::frame) found none. It is called from the thread of the switch or from
    /// one that drops a frame, and must only pass the word on. The first call of this function
    /// counts.
    pub fn on_ready(&self, ready: impl Fn() + Send + Sync + 'static) {
        if self.engine.ready.set(Box::new(ready)).is_err() {
            return;
        }
        let engine = Arc::downgrade(&self.engine);
        self.engine.pool.on_free(move || {
            if let Some(engine) = engine.upgrade() {
                engine.notify();
            }
        });
        if !self.engine.incoming.is_empty() {
            self.engine.notify();
        }
    }

    /// The address of the engine that a frame is for, if the switch would take it there and do
    /// nothing else with it, should there be such an engine.
    fn neighbour(&self, frame: &[u8]) -> Option<Mac> {
        let (to, rest) = frame.split_first_chunk()?;
        let (from, _) = rest.split_first_chunk()?;
        (self.mac == *from && is_roce(frame)).then_some(*to)
    }
}

impl FramePort for EnginePort {
    fn frame(&self, len: usize) -> Option<Frame> {
        self.engine.pool.take(len)
    }

    fn memory(&self) -> usize {
        self.engine.pool.memory()
    }

    fn send(&self, frame: Frame) {
        let mut frame = Some(frame);
        if let Some(to) = frame.as_deref().and_then(|frame| self.neighbour(frame)) {
            self.neighbours.with(&to, |neighbour| {
                if let Some(frame) = frame.take() {
                    self.engine.counters.received.add_one();
                    neighbour.accept(frame);
                }
            });
        }
        let Some(frame) = frame else { return };
        if self.engine.outgoing.push(frame).is_err() {
            // A frame of another pool.
            self.engine.counters.dropped.add_one();
        }
        self.engine.waker.wake();
    }

    fn receive(&self) -> Option<Frame> {
        self.engine.incoming.pop()
    }

    // Calls are counted: several groups may have one address.
    fn join(&self, mac: Mac) {
        *self.engine.joined.lock().entry(mac).or_default() += 1;
    }

    fn leave(&self, mac: Mac) {
        let mut joined = self.engine.joined.lock();
        if let Some(count) = joined.get_mut(&mac) {
            *count -= 1;
            if *count == 0 {
                joined.remove(&mac);
            }
        }
    }
}

impl fmt::Debug for EnginePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EnginePort({})", self.engine.counters.name)
    }
}
