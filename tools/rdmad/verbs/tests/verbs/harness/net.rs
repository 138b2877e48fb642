// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A network of frame ports that can lose frames.

use std::collections::{HashMap, VecDeque};
use std::iter;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use roce::frame::{Frames, Lane};
use roce::headers::Headers;
use roce::net::{gid_to_ip, Addresses, Mac};
use roce::packet::{build, frame_size};
use roce::{Frame, FramePool, FramePort, Path};
use verbs::Hca;
use vswitch::Caller;

use super::joined::Joined;
use super::{notify, Vm};

/// Maximum number of received frames that wait at a port. Further frames are lost.
const QUEUE: usize = 1024;

pub struct Net {
    ports: Mutex<HashMap<[u8; 6], Arc<Port>>>,
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
            ports: Mutex::default(),
            sent: AtomicU64::new(0),
            lose_one_in: AtomicU32::new(0),
            ends_after: AtomicU64::new(u64::MAX),
            free_too_late: Mutex::default(),
            is_quiet: AtomicBool::new(false),
        }
    }
}

pub struct Port {
    net: Weak<Net>,
    pool: FramePool,
    inbox: Mutex<VecDeque<Frame>>,
    hca: Mutex<Weak<Hca>>,
    joined: Joined,
}

impl Net {
    pub fn port(self: &Arc<Self>, mac: [u8; 6]) -> Arc<Port> {
        let port = Arc::new(Port {
            net: Arc::downgrade(self),
            pool: FramePool::new(2 * QUEUE),
            inbox: Mutex::default(),
            hca: Mutex::default(),
            joined: Joined::default(),
        });
        self.ports.lock().unwrap().insert(mac, port.clone());
        port
    }

    /// Whether the device at `mac` has joined a multicast address.
    pub fn has_joined(&self, mac: [u8; 6], group: [u8; 6]) -> bool {
        let port = self.ports.lock().unwrap()[&mac].clone();
        port.joined.contains(group)
    }

    /// Number of frames that wait at the port `mac`.
    pub fn waiting(&self, mac: [u8; 6]) -> usize {
        let port = self.ports.lock().unwrap()[&mac].clone();
        let waiting = port.inbox.lock().unwrap().len();
        waiting
    }

    /// Takes all frame buffers of the port `mac`. To free them does not notify the device.
    pub fn take_buffers(&self, mac: [u8; 6]) -> Vec<Frame> {
        let port = self.ports.lock().unwrap()[&mac].clone();
        Vec::from_iter(iter::from_fn(|| port.pool.take(64)))
    }

    /// Delivers a frame with the content `bytes` to the port `mac`.
    pub fn inject(&self, mac: [u8; 6], bytes: &[u8]) {
        self.inject_all(mac, &[bytes]);
    }

    /// Like [`inject`](Self::inject), for a frame from an uplink with routers behind it.
    pub fn inject_routed(&self, mac: [u8; 6], bytes: &[u8]) {
        self.inject_marked(mac, &[bytes], true, Caller::Busy);
    }

    /// Like [`inject`](Self::inject), by a thread that has nothing else to do: the device may
    /// handle the frame in the current thread.
    pub fn inject_idle(&self, mac: [u8; 6], bytes: &[u8]) {
        self.inject_marked(mac, &[bytes], false, Caller::Idle);
    }

    /// Delivers several frames to the port `mac` at the same time.
    pub fn inject_all(&self, mac: [u8; 6], frames: &[impl AsRef<[u8]>]) {
        self.inject_marked(mac, frames, false, Caller::Busy);
    }

    fn inject_marked(
        &self,
        mac: [u8; 6],
        frames: &[impl AsRef<[u8]>],
        routed: bool,
        caller: Caller,
    ) {
        let port = self.ports.lock().unwrap().get(&mac).cloned();
        let port = port.expect("a port");
        let frames = frames.iter().map(|bytes| {
            let bytes = bytes.as_ref();
            let mut frame = port.pool.take(bytes.len()).expect("a frame buffer");
            frame.copy_from_slice(bytes);
            if routed {
                frame.set_routed();
            }
            frame
        });
        port.accept(frames, caller);
    }

    fn deliver(&self, frame: Frame) {
        let n = self.sent.fetch_add(1, Ordering::Relaxed);
        if n >= self.ends_after.load(Ordering::Relaxed) {
            return;
        }
        let lose = u64::from(self.lose_one_in.load(Ordering::Relaxed));
        // Pseudo-random, so that the losses do not coincide with a pattern of the protocol.
        if lose != 0 && (n ^ (n >> 3)).wrapping_mul(0x9e37_79b9) % lose == 0 {
            return;
        }
        let mac: [u8; 6] = frame[..6].try_into().unwrap();
        if mac[0] & 1 != 0 {
            let ports = Vec::from_iter(self.ports.lock().unwrap().values().cloned());
            for port in ports {
                if port.joined.contains(mac) {
                    let mut copy = port.pool.take(frame.len()).expect("a frame buffer");
                    copy.copy_from_slice(&frame);
                    port.accept([copy], Caller::Busy);
                }
            }
            return;
        }
        let port = self.ports.lock().unwrap().get(&mac).cloned();
        if let Some(port) = port {
            port.accept([frame], Caller::Busy);
        }
    }
}

impl Port {
    pub fn attach(&self, hca: &Arc<Hca>) {
        *self.hca.lock().unwrap() = Arc::downgrade(hca);
        let hca = Arc::downgrade(hca);
        let net = self.net.clone();
        let is_quiet = move || {
            let net = net.upgrade();
            net.is_some_and(|net| net.is_quiet.load(Ordering::Relaxed))
        };
        self.pool.on_free(move || {
            if let Some(hca) = hca.upgrade().filter(|_| !is_quiet()) {
                hca.frames_ready();
            }
        });
    }

    fn accept(&self, frames: impl IntoIterator<Item = Frame>, caller: Caller) {
        {
            let mut inbox = self.inbox.lock().unwrap();
            let room = QUEUE - inbox.len();
            inbox.extend(frames.into_iter().take(room));
        }
        let hca = self.hca.lock().unwrap().clone();
        notify(&hca, caller);
    }
}

impl FramePort for Port {
    fn reserve(&self, _: &Mac, len: usize, count: usize, frames: &mut Frames) -> Lane {
        let before = frames.len();
        self.pool.take_many(iter::repeat_n(len, count), frames);
        if let Some(net) = self.net.upgrade().filter(|_| frames.len() == before) {
            net.is_quiet.store(true, Ordering::Relaxed);
            net.free_too_late.lock().unwrap().clear();
            net.is_quiet.store(false, Ordering::Relaxed);
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
        let frames = frames.drain(..);
        if let Some(net) = self.net.upgrade() {
            frames.for_each(|frame| net.deliver(frame));
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

/// A packet from the device of VM `from` to the device of VM `to`.
pub fn frame(from: &Vm, to: &Vm, headers: &Headers, payload: &[u8]) -> Vec<u8> {
    frame_between((from.mac, from.gid), (to.mac, to.gid), headers, payload)
}

/// A packet between these MAC addresses and GIDs.
pub fn frame_between(
    from: ([u8; 6], [u8; 16]),
    to: ([u8; 6], [u8; 16]),
    headers: &Headers,
    payload: &[u8],
) -> Vec<u8> {
    let addresses = Addresses::new(gid_to_ip(from.1), gid_to_ip(to.1)).unwrap();
    let path = Path::new(from.0, to.0, addresses);
    let mut frame = vec![0; frame_size(&path, &headers.body, payload.len())];
    build(&mut frame, &path, 0, headers, payload.len(), |into| {
        into.copy_from_slice(payload);
        Ok::<_, ()>(())
    })
    .unwrap();
    frame
}
