// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A network whose frames are in flight until the caller delivers, loses or duplicates them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use roce::net::Mac;
use roce::Frame;
use vswitch::Caller;

use super::port::{Medium, Port, Ports};

/// Maximum number of received frames that wait at a port.
const DEPTH: usize = 256;

/// A network with its frames in flight.
#[derive(Default)]
pub struct InFlight {
    frames: Mutex<VecDeque<Frame>>,
    ports: Ports,
    /// Number of frames that were duplicated.
    doubled: AtomicUsize,
}

impl InFlight {
    pub fn port(self: &Arc<Self>, mac: Mac) -> Arc<Port> {
        let this = Arc::downgrade(self);
        self.ports.add(mac, this, DEPTH)
    }

    /// Number of frames in flight.
    pub fn flying(&self) -> usize {
        self.frames.lock().unwrap().len()
    }

    /// Number of frames that were duplicated.
    pub fn doubled(&self) -> usize {
        self.doubled.load(Ordering::Relaxed)
    }

    /// The content of the frame with index `at` among those in flight.
    pub fn copy(&self, at: usize) -> Option<Vec<u8>> {
        let frames = self.frames.lock().unwrap();
        frames.get(at).map(|frame| frame.to_vec())
    }

    /// Delivers the frame with index `at`.
    pub fn deliver(&self, at: usize) {
        self.deliver_as(at, Caller::Busy);
    }

    /// Like [`deliver`](Self::deliver), in the role of a thread of the switch that is busy or idle.
    pub fn deliver_as(&self, at: usize, caller: Caller) {
        if let Some(frame) = self.take(at) {
            self.ports.deliver(frame, caller);
        }
    }

    /// Loses the frame with index `at`.
    pub fn lose(&self, at: usize) {
        drop(self.take(at));
    }

    /// Delivers a copy of the frame with index `at`, which stays in flight.
    pub fn double(&self, at: usize) {
        if let Some(bytes) = self.copy(at) {
            self.doubled.fetch_add(1, Ordering::Relaxed);
            self.inject(&bytes);
        }
    }

    /// Delivers a frame with the content `bytes`.
    pub fn inject(&self, bytes: &[u8]) {
        self.ports.deliver_copies(bytes, Caller::Busy);
    }

    fn take(&self, at: usize) -> Option<Frame> {
        self.frames.lock().unwrap().remove(at)
    }
}

impl Medium for InFlight {
    fn carry(&self, frame: Frame) {
        self.frames.lock().unwrap().push_back(frame);
    }
}
