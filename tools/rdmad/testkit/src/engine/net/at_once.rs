// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A network that delivers frames at once, and can lose them.

use std::iter;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use roce::net::Mac;
use roce::Frame;
use vswitch::Caller;

use super::port::{Medium, Port, Ports};

/// Maximum number of received frames that wait at a port.
const DEPTH: usize = 1024;

pub struct Net {
    ports: Ports,
    /// Number of frames sent.
    pub sent: AtomicU64,
    /// About one frame in this number is lost; 0 means that no frame is lost.
    pub lose_one_in: AtomicU32,
    /// Number of frames after which all are lost.
    pub ends_after: AtomicU64,
    /// Buffers that become free right after a port has found none, without a notification.
    pub free_too_late: Mutex<Vec<Frame>>,
    /// Whether devices are not notified of free buffers.
    is_quiet: AtomicBool,
}

impl Default for Net {
    fn default() -> Self {
        Self {
            ports: Ports::default(),
            sent: AtomicU64::new(0),
            lose_one_in: AtomicU32::new(0),
            ends_after: AtomicU64::new(u64::MAX),
            free_too_late: Mutex::default(),
            is_quiet: AtomicBool::new(false),
        }
    }
}

impl Net {
    pub fn port(self: &Arc<Self>, mac: Mac) -> Arc<Port> {
        let this = Arc::downgrade(self);
        self.ports.add(mac, this, DEPTH)
    }

    /// The port of the device at `mac`.
    fn at(&self, mac: Mac) -> Arc<Port> {
        self.ports.get(mac).expect("a port")
    }

    /// Whether the device at `mac` has joined a multicast address.
    pub fn has_joined(&self, mac: Mac, group: Mac) -> bool {
        self.at(mac).has_joined(group)
    }

    /// Number of frames that wait at the port `mac`.
    pub fn waiting(&self, mac: Mac) -> usize {
        self.at(mac).waiting()
    }

    /// Takes all frame buffers of the port `mac`. To free them does not notify the device.
    pub fn take_buffers(&self, mac: Mac) -> Vec<Frame> {
        let port = self.at(mac);
        Vec::from_iter(iter::from_fn(|| port.buffer(64)))
    }

    /// Delivers a frame with the content `bytes` to the port `mac`.
    pub fn inject(&self, mac: Mac, bytes: &[u8]) {
        self.inject_all(mac, &[bytes]);
    }

    /// Like [`inject`](Self::inject), for a frame from an uplink with routers behind it.
    pub fn inject_routed(&self, mac: Mac, bytes: &[u8]) {
        self.inject_marked(mac, &[bytes], true, Caller::Busy);
    }

    /// Like [`inject`](Self::inject), by a thread that has nothing else to do: the device may
    /// handle the frame in the current thread.
    pub fn inject_idle(&self, mac: Mac, bytes: &[u8]) {
        self.inject_marked(mac, &[bytes], false, Caller::Idle);
    }

    /// Delivers several frames to the port `mac` at the same time.
    pub fn inject_all(&self, mac: Mac, frames: &[impl AsRef<[u8]>]) {
        self.inject_marked(mac, frames, false, Caller::Busy);
    }

    fn inject_marked(&self, mac: Mac, frames: &[impl AsRef<[u8]>], routed: bool, caller: Caller) {
        let port = self.at(mac);
        let frames = frames.iter().map(|bytes| {
            let bytes = bytes.as_ref();
            let mut frame = port.buffer(bytes.len()).expect("a frame buffer");
            frame.copy_from_slice(bytes);
            if routed {
                frame.set_routed();
            }
            frame
        });
        port.accept(frames, caller);
    }
}

impl Medium for Net {
    fn carry(&self, frame: Frame) {
        let n = self.sent.fetch_add(1, Ordering::Relaxed);
        if n >= self.ends_after.load(Ordering::Relaxed) {
            return;
        }
        let lose = u64::from(self.lose_one_in.load(Ordering::Relaxed));
        // Pseudo-random, so that the losses do not coincide with a pattern of the protocol.
        if lose != 0 && (n ^ (n >> 3)).wrapping_mul(0x9e37_79b9) % lose == 0 {
            return;
        }
        self.ports.deliver(frame, Caller::Busy);
    }

    fn starves(&self) {
        self.is_quiet.store(true, Ordering::Relaxed);
        self.free_too_late.lock().unwrap().clear();
        self.is_quiet.store(false, Ordering::Relaxed);
    }

    fn is_quiet(&self) -> bool {
        self.is_quiet.load(Ordering::Relaxed)
    }
}
