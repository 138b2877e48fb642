// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A network whose frames are in flight until the simulation delivers, loses or duplicates them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};

use roce::{Frame, FramePool, FramePort};
use verbs::Device;

/// Number of frame buffers of a port.
const FRAMES: usize = 512;
/// Maximum number of received frames that wait at a port. Further frames are lost.
const QUEUE: usize = 256;

/// A network with its frames in flight.
#[derive(Default)]
pub struct Net {
    flying: Mutex<VecDeque<Frame>>,
    ports: Mutex<HashMap<[u8; 6], Arc<Port>>>,
}

/// The port of a device.
pub struct Port {
    net: Weak<Net>,
    pool: FramePool,
    inbox: Mutex<VecDeque<Frame>>,
    device: Mutex<Weak<Device>>,
}

impl Net {
    pub fn port(self: &Arc<Self>, mac: [u8; 6]) -> Arc<Port> {
        let port = Arc::new(Port {
            net: Arc::downgrade(self),
            pool: FramePool::new(FRAMES),
            inbox: Mutex::default(),
            device: Mutex::default(),
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
        let frame = self.flying.lock().unwrap().remove(at);
        if let Some(frame) = frame {
            self.arrive(frame);
        }
    }

    /// Loses the frame with index `at`.
    pub fn lose(&self, at: usize) {
        drop(self.flying.lock().unwrap().remove(at));
    }

    /// Delivers a copy of the frame with index `at`, which stays in flight.
    pub fn double(&self, at: usize) {
        let copy = {
            let flying = self.flying.lock().unwrap();
            let Some(frame) = flying.get(at) else {
                return;
            };
            let port = self.to(frame);
            let copy = port.and_then(|port| port.pool.take(frame.len()));
            copy.map(|mut copy| {
                copy.copy_from_slice(frame);
                copy
            })
        };
        if let Some(copy) = copy {
            self.arrive(copy);
        }
    }

    fn to(&self, frame: &Frame) -> Option<Arc<Port>> {
        let mac: [u8; 6] = frame[..6].try_into().unwrap();
        self.ports.lock().unwrap().get(&mac).cloned()
    }

    fn arrive(&self, frame: Frame) {
        if let Some(port) = self.to(&frame) {
            {
                let mut inbox = port.inbox.lock().unwrap();
                if inbox.len() < QUEUE {
                    inbox.push_back(frame);
                }
            }
            let device = port.device.lock().unwrap().upgrade();
            if let Some(device) = device {
                device.frames_ready();
            }
        }
    }
}

impl Port {
    /// Whether all frame buffers of the port are free.
    pub fn has_all_frames(&self) -> bool {
        let frames: Vec<_> = (0..FRAMES).map_while(|_| self.pool.take(1)).collect();
        frames.len() == FRAMES
    }

    pub fn attach(&self, device: &Arc<Device>) {
        *self.device.lock().unwrap() = Arc::downgrade(device);
        let device = Arc::downgrade(device);
        self.pool.on_free(move || {
            if let Some(device) = device.upgrade() {
                device.frames_ready();
            }
        });
    }
}

impl FramePort for Port {
    fn frame(&self, len: usize) -> Option<Frame> {
        self.pool.take(len)
    }

    fn memory(&self) -> usize {
        self.pool.memory()
    }

    fn send(&self, frame: Frame) {
        if let Some(net) = self.net.upgrade() {
            net.flying.lock().unwrap().push_back(frame);
        }
    }

    fn receive(&self) -> Option<Frame> {
        self.inbox.lock().unwrap().pop_front()
    }

    fn join(&self, _mac: [u8; 6]) {}

    fn leave(&self, _mac: [u8; 6]) {}
}
