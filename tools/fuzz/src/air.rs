// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A network that holds frames in flight until a target delivers or loses them.

use std::collections::VecDeque;
use std::iter;
use std::sync::{Arc, Mutex, Weak};

use roce::frame::{Frames, Lane};
use roce::net::Mac;
use roce::{Frame, FramePool, FramePort};
use verbs::{Hca, Runtime};

use crate::own::harness::{mac, Vm};
use crate::own::stage::limits;

/// Number of frame buffers of a port.
const FRAMES: usize = 512;
/// Maximum number of received frames that wait at a port. Further frames are lost.
const QUEUE: usize = 256;

/// A network with ports and frames in flight.
#[derive(Default)]
pub struct Air {
    flying: Arc<Mutex<VecDeque<Frame>>>,
    ports: Vec<Arc<Port>>,
}

struct Port {
    mac: [u8; 6],
    pool: FramePool,
    flying: Arc<Mutex<VecDeque<Frame>>>,
    inbox: Mutex<VecDeque<Frame>>,
    hca: Mutex<Weak<Hca>>,
}

impl Air {
    /// Makes VM number `n`, and connects its device to the network by a port.
    pub fn vm(&mut self, n: usize, runtime: &Runtime) -> Vm {
        let port = Arc::new(Port {
            mac: mac(n),
            pool: FramePool::new(FRAMES),
            flying: self.flying.clone(),
            inbox: Mutex::default(),
            hca: Mutex::default(),
        });
        let vm = Vm::new(n, runtime, port.clone(), &limits());
        *port.hca.lock().unwrap() = Arc::downgrade(&vm.hca);
        let hca = Arc::downgrade(&vm.hca);
        port.pool.on_free(move || {
            if let Some(hca) = hca.upgrade() {
                hca.frames_ready();
            }
        });
        self.ports.push(port);
        vm
    }

    /// Number of frames in flight.
    pub fn flying(&self) -> usize {
        self.flying.lock().unwrap().len()
    }

    /// A copy of the frame in flight at index `at`.
    pub fn copy(&self, at: usize) -> Option<Vec<u8>> {
        self.flying
            .lock()
            .unwrap()
            .get(at)
            .map(|frame| frame.to_vec())
    }

    /// Delivers the frame in flight at index `at`.
    pub fn deliver(&self, at: usize) {
        let frame = self.flying.lock().unwrap().remove(at);
        if let Some(frame) = frame {
            self.arrive(frame);
        }
    }

    /// Drops the frame in flight at index `at`.
    pub fn lose(&self, at: usize) {
        drop(self.flying.lock().unwrap().remove(at));
    }

    /// Delivers a frame of these bytes to the port of its destination address.
    pub fn inject(&self, bytes: &[u8]) {
        let Some(port) = self.port_of(bytes) else {
            return;
        };
        if let Some(mut frame) = port.pool.take(bytes.len()) {
            frame.copy_from_slice(bytes);
            self.arrive(frame);
        }
    }

    fn port_of(&self, frame: &[u8]) -> Option<&Arc<Port>> {
        let to = frame.get(..6)?;
        self.ports.iter().find(|port| port.mac == to)
    }

    fn arrive(&self, frame: Frame) {
        let Some(port) = self.port_of(&frame) else {
            return;
        };
        {
            let mut inbox = port.inbox.lock().unwrap();
            if inbox.len() < QUEUE {
                inbox.push_back(frame);
            }
        }
        let hca = port.hca.lock().unwrap().upgrade();
        if let Some(hca) = hca {
            hca.frames_ready();
        }
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
        self.flying.lock().unwrap().extend(frames.drain(..));
    }

    fn receive(&self, most: usize, into: &mut Frames) {
        let mut inbox = self.inbox.lock().unwrap();
        let count = most.min(inbox.len()).min(into.remaining_capacity());
        into.extend(inbox.drain(..count));
    }

    fn join(&self, _mac: [u8; 6]) {}

    fn leave(&self, _mac: [u8; 6]) {}
}
