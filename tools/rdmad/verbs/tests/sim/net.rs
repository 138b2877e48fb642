// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A network whose frames are in flight until the simulation delivers, loses or duplicates them.

use std::collections::{BTreeMap, VecDeque};
use std::iter;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use roce::frame::{Frames, Lane};
use roce::net::Mac;
use roce::{Frame, FramePool, FramePort};
use verbs::Hca;
use vswitch::Caller;

use crate::harness::joined::Joined;
use crate::harness::notify;
use crate::traffic::{Route, Sent, Traffic};

/// Number of frame buffers of a port.
const FRAMES: usize = 512;
/// Maximum number of received frames that wait at a port. Further frames are lost.
const QUEUE: usize = 256;

/// A network with its frames in flight.
#[derive(Default)]
pub struct Net {
    flying: Mutex<VecDeque<Frame>>,
    /// Ports by their MAC addresses, in an order that is the same in each run.
    ports: Mutex<BTreeMap<[u8; 6], Arc<Port>>>,
    /// Number of frames that were duplicated.
    doubled: AtomicUsize,
}

/// The port of a device.
pub struct Port {
    net: Weak<Net>,
    pool: FramePool,
    inbox: Mutex<VecDeque<Frame>>,
    hca: Mutex<Weak<Hca>>,
    joined: Joined,
    sent: Mutex<Sent>,
}

impl Net {
    pub fn port(self: &Arc<Self>, mac: [u8; 6]) -> Arc<Port> {
        let port = Arc::new(Port {
            net: Arc::downgrade(self),
            pool: FramePool::new(FRAMES),
            inbox: Mutex::default(),
            hca: Mutex::default(),
            joined: Joined::default(),
            sent: Mutex::default(),
        });
        self.ports.lock().unwrap().insert(mac, port.clone());
        port
    }

    /// Number of frames in flight.
    pub fn flying(&self) -> usize {
        self.flying.lock().unwrap().len()
    }

    /// Delivers the frame with index `at` among those in flight.
    pub fn deliver(&self, at: usize) {
        self.deliver_as(at, Caller::Busy);
    }

    /// Like [`deliver`](Self::deliver), in the role of a thread of the switch that is busy or idle.
    pub fn deliver_as(&self, at: usize, caller: Caller) {
        let frame = self.flying.lock().unwrap().remove(at);
        if let Some(frame) = frame {
            self.arrive(frame, caller);
        }
    }

    /// Loses the frame with index `at`.
    pub fn lose(&self, at: usize) {
        drop(self.flying.lock().unwrap().remove(at));
    }

    /// Delivers a copy of the frame with index `at`, which stays in flight.
    pub fn double(&self, at: usize) {
        let copies = {
            let flying = self.flying.lock().unwrap();
            let Some(frame) = flying.get(at) else {
                return;
            };
            self.copies(frame)
        };
        self.doubled.fetch_add(1, Ordering::Relaxed);
        for (port, copy) in copies {
            port.accept(copy, Caller::Busy);
        }
    }

    /// The ports to which a frame goes: one port, or the subscribers of a multicast address.
    fn to(&self, frame: &Frame) -> Vec<Arc<Port>> {
        let mac: [u8; 6] = frame[..6].try_into().unwrap();
        let ports = self.ports.lock().unwrap();
        match mac[0] & 1 {
            0 => ports.get(&mac).cloned().into_iter().collect(),
            _ => {
                let joined = ports.values().filter(|port| port.joined.contains(mac));
                joined.cloned().collect()
            }
        }
    }

    /// Copies of a frame in buffers of the ports to which it goes.
    fn copies(&self, frame: &Frame) -> Vec<(Arc<Port>, Frame)> {
        let ports = self.to(frame).into_iter();
        let copies = ports.filter_map(|port| {
            let mut copy = port.pool.take(frame.len())?;
            copy.copy_from_slice(frame);
            Some((port, copy))
        });
        copies.collect()
    }

    fn arrive(&self, frame: Frame, caller: Caller) {
        if frame[0] & 1 != 0 {
            for (port, copy) in self.copies(&frame) {
                port.accept(copy, caller);
            }
        } else if let Some(port) = self.to(&frame).first() {
            port.accept(frame, caller);
        }
    }
}

impl Port {
    /// Whether all frame buffers of the port are free.
    pub fn has_all_frames(&self) -> bool {
        let frames: Vec<_> = (0..FRAMES).map_while(|_| self.pool.take(1)).collect();
        frames.len() == FRAMES
    }

    /// Number of frames that the network has duplicated.
    pub fn doubled(&self) -> usize {
        let net = self.net.upgrade();
        net.map_or(0, |net| net.doubled.load(Ordering::Relaxed))
    }

    /// The packets that the port has sent.
    pub fn sent(&self) -> Traffic {
        self.sent.lock().unwrap().total()
    }

    /// The packets that the port has sent to one connected QP.
    pub fn sent_along(&self, route: Route) -> Traffic {
        self.sent.lock().unwrap().along(route)
    }

    /// Whether the port has no subscriptions.
    pub fn is_in_no_group(&self) -> bool {
        self.joined.counts.lock().unwrap().is_empty()
    }

    fn accept(&self, frame: Frame, caller: Caller) {
        {
            let mut inbox = self.inbox.lock().unwrap();
            if inbox.len() < QUEUE {
                inbox.push_back(frame);
            }
        }
        let hca = self.hca.lock().unwrap().clone();
        notify(&hca, caller);
    }

    pub fn attach(&self, hca: &Arc<Hca>) {
        *self.hca.lock().unwrap() = Arc::downgrade(hca);
        let hca = Arc::downgrade(hca);
        self.pool.on_free(move || {
            if let Some(hca) = hca.upgrade() {
                hca.frames_ready();
            }
        });
    }
}

impl FramePort for Port {
    fn reserve(&self, _: &Mac, len: usize, count: usize, frames: &mut Frames) -> Lane {
        self.pool.take_many(iter::repeat_n(len, count), frames);
        Lane::default()
    }

    fn lanes(&self) -> usize {
        1
    }

    fn room(&self, lane: Lane) -> usize {
        self.pool.room(lane)
    }

    fn memory(&self) -> usize {
        self.pool.memory()
    }

    fn send(&self, frames: &mut Frames) {
        let mut sent = self.sent.lock().unwrap();
        frames.iter().for_each(|frame| sent.count(frame));
        match self.net.upgrade() {
            Some(net) => net.flying.lock().unwrap().extend(frames.drain(..)),
            None => frames.clear(),
        }
    }

    fn receive(&self, most: usize, into: &mut Frames) {
        let mut inbox = self.inbox.lock().unwrap();
        let count = most.min(inbox.len()).min(into.remaining_capacity());
        into.extend(inbox.drain(..count));
    }

    fn join(&self, mac: [u8; 6]) {
        self.joined.join(mac);
    }

    fn leave(&self, mac: [u8; 6]) {
        self.joined.leave(mac);
    }
}
