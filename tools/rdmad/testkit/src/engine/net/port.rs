// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The port of a device, and the ports of a network.

use std::collections::{BTreeMap, VecDeque};
use std::iter;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use roce::frame::{Frames, Lane};
use roce::net::Mac;
use roce::{Frame, FramePool, FramePort};
use verbs::Hca;
use vswitch::Caller;

/// A network, from the view of its ports.
pub trait Medium: Send + Sync {
    /// Takes a frame that a port sends.
    fn carry(&self, frame: Frame);

    /// Called when a port has found no free buffer.
    fn starves(&self) {}

    /// Whether devices are not notified of free buffers.
    fn is_quiet(&self) -> bool {
        false
    }
}

/// A function that sees each frame that a device sends.
type Watch = Box<dyn Fn(&Frame) + Send + Sync>;

/// The frame port of a device.
pub struct Port {
    medium: Weak<dyn Medium>,
    pool: FramePool,
    /// Maximum number of received frames that wait. Further frames are lost.
    depth: usize,
    inbox: Mutex<VecDeque<Frame>>,
    hca: Mutex<Weak<Hca>>,
    /// The multicast addresses that the device has joined, with the number of their subscriptions,
    /// which is never 0.
    joined: Mutex<BTreeMap<Mac, usize>>,
    watch: OnceLock<Watch>,
}

impl Port {
    /// Connects the device that has this port.
    pub fn attach(&self, hca: &Arc<Hca>) {
        *self.hca.lock().unwrap() = Arc::downgrade(hca);
        let (hca, medium) = (Arc::downgrade(hca), self.medium.clone());
        self.pool.on_free(move || {
            let is_quiet = medium.upgrade().is_some_and(|medium| medium.is_quiet());
            if let Some(hca) = hca.upgrade().filter(|_| !is_quiet) {
                hca.frames_ready();
            }
        });
    }

    /// Calls `watch` with each frame that the device sends.
    pub fn watch(&self, watch: impl Fn(&Frame) + Send + Sync + 'static) {
        assert!(self.watch.set(Box::new(watch)).is_ok(), "one watch a port");
    }

    /// Whether the device has joined a multicast address.
    pub fn has_joined(&self, mac: Mac) -> bool {
        self.joined.lock().unwrap().contains_key(&mac)
    }

    /// Whether the device has joined no multicast address.
    pub fn is_in_no_group(&self) -> bool {
        self.joined.lock().unwrap().is_empty()
    }

    /// Number of received frames that wait.
    pub fn waiting(&self) -> usize {
        self.inbox.lock().unwrap().len()
    }

    /// A free buffer for a frame of `len` bytes.
    pub fn buffer(&self, len: usize) -> Option<Frame> {
        self.pool.take(len)
    }

    /// Whether all frame buffers are free.
    pub fn has_all_frames(&self) -> bool {
        let count = 2 * self.depth;
        let frames: Vec<_> = (0..count).map_while(|_| self.pool.take(1)).collect();
        frames.len() == count
    }

    /// Receives frames, and notifies the device.
    pub fn accept(&self, frames: impl IntoIterator<Item = Frame>, caller: Caller) {
        {
            let mut inbox = self.inbox.lock().unwrap();
            let room = self.depth - inbox.len();
            inbox.extend(frames.into_iter().take(room));
        }
        let hca = self.hca.lock().unwrap().clone();
        notify(&hca, caller);
    }
}

/// Notifies a device, if it exists, that its port has frames, as a thread of the switch that is
/// busy or idle.
pub fn notify(hca: &Weak<Hca>, caller: Caller) {
    if let Some(hca) = hca.upgrade() {
        match caller {
            Caller::Busy => hca.frames_ready(),
            Caller::Idle => hca.serve_frames_here(),
        }
    }
}

impl FramePort for Port {
    fn reserve(&self, _: &Mac, len: usize, count: usize, frames: &mut Frames) -> Lane {
        let before = frames.len();
        self.pool.take_many(iter::repeat_n(len, count), frames);
        if let Some(medium) = self.medium.upgrade().filter(|_| frames.len() == before) {
            medium.starves();
        }
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
        let medium = self.medium.upgrade();
        for frame in frames.drain(..) {
            if let Some(watch) = self.watch.get() {
                watch(&frame);
            }
            if let Some(medium) = &medium {
                medium.carry(frame);
            }
        }
    }

    fn receive(&self, most: usize, into: &mut Frames) {
        let mut inbox = self.inbox.lock().unwrap();
        let count = most.min(inbox.len()).min(into.remaining_capacity());
        into.extend(inbox.drain(..count));
    }

    fn join(&self, mac: Mac) {
        *self.joined.lock().unwrap().entry(mac).or_default() += 1;
    }

    /// Ends a subscription. Panics if there is none.
    fn leave(&self, mac: Mac) {
        let mut joined = self.joined.lock().unwrap();
        let count = joined.get_mut(&mac).expect("an address that was joined");
        *count -= 1;
        if *count == 0 {
            joined.remove(&mac);
        }
    }
}

/// The ports of a network by their MAC addresses, in an order that is the same in each run.
#[derive(Default)]
pub struct Ports(Mutex<BTreeMap<Mac, Arc<Port>>>);

impl Ports {
    /// Adds a port at which at most `depth` received frames wait, with twice as many buffers.
    pub fn add(&self, mac: Mac, medium: Weak<dyn Medium>, depth: usize) -> Arc<Port> {
        let port = Arc::new(Port {
            medium,
            pool: FramePool::new(2 * depth),
            depth,
            inbox: Mutex::default(),
            hca: Mutex::default(),
            joined: Mutex::default(),
            watch: OnceLock::new(),
        });
        self.0.lock().unwrap().insert(mac, port.clone());
        port
    }

    pub fn get(&self, mac: Mac) -> Option<Arc<Port>> {
        self.0.lock().unwrap().get(&mac).cloned()
    }

    /// The ports to which a frame goes: one port, or the subscribers of a multicast address.
    fn to(&self, frame: &[u8]) -> Vec<Arc<Port>> {
        let Some(&mac) = frame.first_chunk::<6>() else {
            return Vec::new();
        };
        match mac[0] & 1 {
            0 => self.get(mac).into_iter().collect(),
            _ => {
                let ports = self.0.lock().unwrap();
                let joined = ports.values().filter(|port| port.has_joined(mac));
                joined.cloned().collect()
            }
        }
    }

    /// Delivers copies of a frame, in buffers of the ports to which it goes. A port without a free
    /// buffer gets none.
    pub fn deliver_copies(&self, frame: &[u8], caller: Caller) {
        for port in self.to(frame) {
            if let Some(mut copy) = port.buffer(frame.len()) {
                copy.copy_from_slice(frame);
                port.accept([copy], caller);
            }
        }
    }

    /// Delivers a frame to the ports to which it goes.
    pub fn deliver(&self, frame: Frame, caller: Caller) {
        if frame[0] & 1 != 0 {
            self.deliver_copies(&frame, caller);
        } else if let Some(port) = self.to(&frame).first() {
            port.accept([frame], caller);
        }
    }
}
