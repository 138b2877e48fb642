// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A vfio-user client, a virtio driver that uses this client, and a virtio device.

#![allow(dead_code)]

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use dma::DmaSpace;
use rustix::event::{eventfd, EventfdFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use sockets::Access;
use vdev::{Handle, Listener, ServerPool, SharedMemory, VirtioDevice, Virtqueue};
use vfio_user::Command;

#[path = "../../../testing/wait.rs"]
pub mod waiting;

pub const SHM_LEN: u64 = 1 << 16;
pub const CONFIG: [u8; 6] = *b"config";
/// A feature bit of the device type.
pub const FEATURE: u64 = 1 << 3;
/// Feature bits of the transport: VERSION_1, ACCESS_PLATFORM, RING_RESET.
pub const TRANSPORT: u64 = (1 << 32) | (1 << 33) | (1 << 40);

/// A device that answers each request with the request's bytes in reverse order.
#[derive(Default)]
pub struct Echo {
    pub active: Mutex<Option<(u64, Vec<Arc<Virtqueue>>)>>,
    pub resets: AtomicU64,
    pub doorbells: AtomicU64,
    pub last_doorbell: AtomicU64,
    /// While this is true, the device ignores notifications.
    pub deaf: Mutex<bool>,
    /// Name of the method whose next call panics.
    planted: Mutex<Option<&'static str>>,
    /// The reasons of all calls of `fail`.
    pub failures: Mutex<Vec<String>>,
    /// While closed, a device reset does not end.
    pub hold_reset: Gate,
    /// While closed, a queue reset does not end.
    pub hold_queue_reset: Gate,
    /// While closed, a read of the configuration does not end.
    pub hold_config: Gate,
    /// While closed, no queue is served.
    pub hold_serve: Gate,
    /// For each request, the number of queues that were enabled when it was served.
    pub enabled: Mutex<Vec<usize>>,
}

/// A gate that blocks threads while it is closed.
#[derive(Default)]
pub struct Gate {
    /// Whether the gate is closed, and the number of threads that have arrived at it.
    state: Mutex<(bool, u64)>,
    changed: Condvar,
}

impl Gate {
    pub fn set_closed(&self, closed: bool) {
        self.state.lock().unwrap().0 = closed;
        self.changed.notify_all();
    }

    pub fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| state.0).unwrap());
    }

    /// Returns when a thread has arrived at the gate.
    pub fn await_guest(&self) {
        let state = self.state.lock().unwrap();
        drop(
            self.changed
                .wait_while(state, |state| state.1 == 0)
                .unwrap(),
        );
    }
}

impl Echo {
    /// Makes the next call of the method `call` panic.
    pub fn plant(&self, call: &'static str) {
        *self.planted.lock().unwrap() = Some(call);
    }

    /// The reasons of the calls of `fail` since the last call of this function.
    pub fn take_failures(&self) -> Vec<String> {
        std::mem::take(&mut self.failures.lock().unwrap())
    }

    fn panic_if_planted(&self, call: &str) {
        let planted = self
            .planted
            .lock()
            .unwrap()
            .take_if(|planted| *planted == call);
        if planted.is_some() {
            panic!("planted");
        }
    }
}

impl VirtioDevice for Echo {
    fn device_id(&self) -> u16 {
        42
    }

    fn pci_class(&self) -> u32 {
        0x02_80_00
    }

    fn features(&self) -> u64 {
        FEATURE | vdev::TRANSPORT_FEATURES
    }

    fn queue_sizes(&self) -> Vec<u16> {
        vec![64, 256]
    }

    fn shared_memory(&self) -> Option<SharedMemory> {
        Some(SharedMemory {
            id: 1,
            len: SHM_LEN,
        })
    }

    fn config_read(&self, offset: usize, data: &mut [u8]) {
        self.hold_config.pass();
        self.panic_if_planted("config");
        for (i, byte) in data.iter_mut().enumerate() {
            *byte = CONFIG.get(offset + i).copied().unwrap_or(0);
        }
    }

    fn activate(&self, features: u64, queues: &[Arc<Virtqueue>]) {
        *self.active.lock().unwrap() = Some((features, queues.to_vec()));
    }

    fn reset(&self) {
        self.hold_reset.pass();
        self.panic_if_planted("reset");
        *self.active.lock().unwrap() = None;
        self.resets.fetch_add(1, Ordering::SeqCst);
    }

    fn reset_queue(&self, _index: u16) {
        self.hold_queue_reset.pass();
    }

    fn fail(&self, why: &str) {
        self.failures.lock().unwrap().push(why.to_owned());
    }

    fn serve(&self, queue: &Arc<Virtqueue>) -> bool {
        self.hold_serve.pass();
        self.panic_if_planted("serve");
        let deaf = self.deaf.lock().unwrap();
        if *deaf {
            return false;
        }
        match queue.pop_in_order(1000) {
            Some(request) => {
                if let Some((_, queues)) = &*self.active.lock().unwrap() {
                    let enabled = queues.iter().filter(|queue| queue.is_enabled());
                    self.enabled.lock().unwrap().push(enabled.count());
                }
                let answer: Vec<u8> = request.input().iter().rev().copied().collect();
                queue.push(request, &answer);
                true
            }
            None => false,
        }
    }

    fn shm_write(&self, offset: u64, value: u32) {
        self.doorbells.fetch_add(1, Ordering::SeqCst);
        self.last_doorbell
            .store((offset << 32) | u64::from(value), Ordering::SeqCst);
    }
}

/// An [`Echo`] device and the server of its vfio-user socket.
pub struct Bench {
    pub device: Arc<Echo>,
    pub space: Arc<DmaSpace>,
    pub path: PathBuf,
    pub handle: Option<Handle>,
    _dir: tempfile::TempDir,
}

/// Maximum number of bytes of guest memory that a port maps.
pub const GUEST_MEMORY: u64 = 1 << 40;

impl Bench {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vfio.sock");
        let (device, space) = (
            Arc::new(Echo::default()),
            Arc::new(DmaSpace::with_limit(GUEST_MEMORY)),
        );
        let handle = Listener::bind(&path, &Access::default())
            .unwrap()
            .start(
                "test",
                device.clone(),
                space.clone(),
                &ServerPool::new(1).unwrap(),
            )
            .unwrap();
        Self {
            device,
            space,
            path,
            handle: Some(handle),
            _dir: dir,
        }
    }

    pub fn client(&self) -> Client {
        Client::new(&self.path)
    }

    pub fn driver(&self) -> Driver {
        Driver::new(self.client())
    }
}

/// A vfio-user client, which can also send invalid messages.
pub struct Client {
    pub stream: UnixStream,
    next_id: u16,
}

impl Client {
    /// Connects and negotiates the version.
    pub fn new(path: &Path) -> Self {
        let mut client = Self {
            stream: UnixStream::connect(path).unwrap(),
            next_id: 7,
        };
        let payload = [&[0, 0, 1, 0], &b"{}\0"[..]].concat();
        let reply = client.call(Command::Version, &payload, &[]).unwrap();
        assert_eq!(reply[..4], [0, 0, 1, 0]);
        assert!(reply.ends_with(b"}\0"));
        client
    }

    pub fn post(
        &mut self,
        command: u16,
        flags: u32,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> u16 {
        self.next_id = self.next_id.wrapping_add(1);
        let size = 16 + payload.len() as u32;
        let mut message = Vec::new();
        message.extend_from_slice(&self.next_id.to_ne_bytes());
        message.extend_from_slice(&command.to_ne_bytes());
        message.extend_from_slice(&size.to_ne_bytes());
        message.extend_from_slice(&flags.to_ne_bytes());
        message.extend_from_slice(&[0; 4]);
        message.extend_from_slice(payload);
        if fds.is_empty() {
            self.stream.write_all(&message).unwrap();
        } else {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
            let sent = rustix::net::sendmsg(
                &self.stream,
                &[IoSlice::new(&message)],
                &mut control,
                SendFlags::empty(),
            );
            assert_eq!(sent, Ok(message.len()));
        }
        self.next_id
    }

    /// Receives a reply. Returns its message ID, and the payload or error number.
    pub fn reply(&mut self) -> (u16, Result<Vec<u8>, u32>) {
        let mut header = [0; 16];
        self.stream.read_exact(&mut header).unwrap();
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
        let id = u16::from_ne_bytes([header[0], header[1]]);
        let mut payload = vec![0; word(4) as usize - 16];
        self.stream.read_exact(&mut payload).unwrap();
        match word(8) {
            1 => (id, Ok(payload)),
            0x21 => {
                assert!(payload.is_empty());
                (id, Err(word(12)))
            }
            flags => panic!("flags {flags:#x}"),
        }
    }

    pub fn call(
        &mut self,
        command: Command,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<u8>, u32> {
        let sent = self.post(command as u16, 0, payload, fds);
        let (id, reply) = self.reply();
        assert_eq!(id, sent);
        reply
    }

    pub fn read(&mut self, region: u32, offset: u64, len: u32) -> Result<Vec<u8>, u32> {
        let access = access(region, offset, len);
        let reply = self.call(Command::RegionRead, &access, &[])?;
        assert_eq!(reply[..16], access);
        assert_eq!(reply.len(), 16 + len as usize);
        Ok(reply[16..].to_vec())
    }

    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), u32> {
        let mut payload = access(region, offset, data.len() as u32);
        payload.extend_from_slice(data);
        self.call(Command::RegionWrite, &payload, &[]).map(drop)
    }

    /// Writes to a BAR without waiting for a reply.
    pub fn posted_write(&mut self, region: u32, offset: u64, data: &[u8]) {
        let mut payload = access(region, offset, data.len() as u32);
        payload.extend_from_slice(data);
        self.post(Command::RegionWrite as u16, 0x10, &payload, &[]);
    }

    pub fn map(
        &mut self,
        fd: Option<BorrowedFd<'_>>,
        offset: u64,
        iova: u64,
        len: u64,
    ) -> Result<(), u32> {
        let payload = [words(&[32, 3]), longs(&[offset, iova, len])].concat();
        let fds: Vec<_> = fd.into_iter().collect();
        self.call(Command::DmaMap, &payload, &fds).map(drop)
    }

    pub fn unmap(&mut self, iova: u64, len: u64) -> Result<(), u32> {
        let payload = unmap_payload(iova, len);
        let reply = self.call(Command::DmaUnmap, &payload, &[])?;
        assert_eq!(reply, payload);
        Ok(())
    }

    pub fn set_irqs(
        &mut self,
        flags: u32,
        start: u32,
        count: u32,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), u32> {
        self.call(Command::SetIrqs, &words(&[20, flags, 2, start, count]), fds)
            .map(drop)
    }
}

pub fn unmap_payload(iova: u64, len: u64) -> Vec<u8> {
    [words(&[24, 0]), longs(&[iova, len])].concat()
}

pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

pub fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_ne_bytes()).collect()
}

pub fn access(region: u32, offset: u64, len: u32) -> Vec<u8> {
    [longs(&[offset]), words(&[region, len])].concat()
}

/// Offsets of the registers of virtio-pci.
pub mod reg {
    pub const DRIVER_SELECT: u64 = 8;
    pub const DRIVER_FEATURE: u64 = 0xc;
    pub const CONFIG_VECTOR: u64 = 0x10;
    pub const STATUS: u64 = 0x14;
    pub const QUEUE_SELECT: u64 = 0x16;
    pub const QUEUE_SIZE: u64 = 0x18;
    pub const QUEUE_VECTOR: u64 = 0x1a;
    pub const QUEUE_ENABLE: u64 = 0x1c;
    pub const QUEUE_DESC: u64 = 0x20;
    pub const QUEUE_DRIVER: u64 = 0x28;
    pub const QUEUE_DEVICE: u64 = 0x30;
    pub const QUEUE_RESET: u64 = 0x3a;
    pub const ISR: u64 = 0x1000;
    pub const CONFIG: u64 = 0x2000;
    pub const NOTIFY: u64 = 0x8000;
}

pub const MEMORY: u64 = 1 << 20;
pub const MEMORY_AT: u64 = 0x4000_0000;
/// Address of the parts of `queue` in guest memory.
pub const fn ring_at(queue: u16) -> u64 {
    MEMORY_AT + 0x1_0000 * queue as u64
}
pub const AVAIL: u64 = 0x4000;
pub const USED: u64 = 0x8000;
pub const DATA: u64 = MEMORY_AT + 0x8_0000;

/// A virtio driver whose memory is a single region.
pub struct Driver {
    pub client: Client,
    pub memory: DmaSpace,
    pub interrupts: Vec<OwnedFd>,
}

impl Driver {
    pub fn new(client: Client) -> Self {
        Self::with_memory(client, dma::testing::guest_memory(MEMORY).unwrap())
    }

    /// A driver with this file as its memory, of [`MEMORY`] bytes.
    pub fn with_memory(mut client: Client, fd: OwnedFd) -> Self {
        client.map(Some(fd.as_fd()), 0, MEMORY_AT, MEMORY).unwrap();
        let memory = DmaSpace::new();
        memory.map(MEMORY_AT, fd, 0, MEMORY, true).unwrap();
        let interrupts: Vec<_> = (0..3)
            .map(|_| eventfd(0, EventfdFlags::NONBLOCK).unwrap())
            .collect();
        let fds: Vec<_> = interrupts.iter().map(AsFd::as_fd).collect();
        client.set_irqs(0x24, 0, 3, &fds).unwrap();
        Self {
            client,
            memory,
            interrupts,
        }
    }

    pub fn read8(&mut self, offset: u64) -> u8 {
        self.client.read(2, offset, 1).unwrap()[0]
    }

    pub fn read16(&mut self, offset: u64) -> u16 {
        u16::from_le_bytes(self.client.read(2, offset, 2).unwrap().try_into().unwrap())
    }

    pub fn write8(&mut self, offset: u64, value: u8) {
        self.client.write(2, offset, &[value]).unwrap();
    }

    pub fn write16(&mut self, offset: u64, value: u16) {
        self.client.write(2, offset, &value.to_le_bytes()).unwrap();
    }

    pub fn write32(&mut self, offset: u64, value: u32) {
        self.client.write(2, offset, &value.to_le_bytes()).unwrap();
    }

    pub fn write64(&mut self, offset: u64, value: u64) {
        self.write32(offset, value as u32);
        self.write32(offset + 4, (value >> 32) as u32);
    }

    /// Resets the device and negotiates features. Returns the device status afterwards.
    pub fn negotiate(&mut self, features: u64) -> u8 {
        self.reset();
        self.write8(reg::STATUS, 3);
        for (select, bits) in [(0, features as u32), (1, (features >> 32) as u32)] {
            self.write32(reg::DRIVER_SELECT, select);
            self.write32(reg::DRIVER_FEATURE, bits);
        }
        self.write8(reg::STATUS, 11);
        self.read8(reg::STATUS)
    }

    pub fn reset(&mut self) {
        self.write8(reg::STATUS, 0);
        while self.read8(reg::STATUS) != 0 {}
    }

    /// Enables a queue at its default address, with empty rings and vector `1 + queue`.
    pub fn enable_queue(&mut self, queue: u16, size: u16) {
        self.enable_queue_at(queue, size, ring_at(queue), 1 + queue);
    }

    /// Enables a queue at address `at`, with empty rings.
    pub fn enable_queue_at(&mut self, queue: u16, size: u16, at: u64, vector: u16) {
        self.put(at, &[0; 0x1_0000]);
        self.write16(reg::QUEUE_SELECT, queue);
        self.write16(reg::QUEUE_SIZE, size);
        self.write16(reg::QUEUE_VECTOR, vector);
        self.write64(reg::QUEUE_DESC, at);
        self.write64(reg::QUEUE_DRIVER, at + AVAIL);
        self.write64(reg::QUEUE_DEVICE, at + USED);
        self.write16(reg::QUEUE_ENABLE, 1);
    }

    /// Initializes the device up to DRIVER_OK, with two queues of 16 descriptors.
    pub fn start(&mut self) {
        assert_eq!(self.negotiate(FEATURE | TRANSPORT), 11);
        self.write16(reg::CONFIG_VECTOR, 0);
        self.enable_queue(0, 16);
        self.enable_queue(1, 16);
        self.write8(reg::STATUS, 15);
    }

    pub fn put(&self, at: u64, data: &[u8]) {
        let view = self.memory.enter();
        view.slice_mut(at, data.len())
            .unwrap()
            .write(0, data)
            .unwrap();
    }

    pub fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        let view = self.memory.enter();
        view.slice(at, len).unwrap().read(0, &mut data).unwrap();
        data
    }

    pub fn get16(&self, at: u64) -> u16 {
        u16::from_le_bytes(self.get(at, 2).try_into().unwrap())
    }

    pub fn descriptor(
        &self,
        queue: u16,
        index: u16,
        address: u64,
        len: u32,
        flags: u16,
        next: u16,
    ) {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(&flags.to_le_bytes());
        bytes.extend_from_slice(&next.to_le_bytes());
        self.put(ring_at(queue) + 16 * u64::from(index), &bytes);
    }

    /// Makes the chain at `head` available in a queue of `size` descriptors, and notifies the
    /// device.
    pub fn submit(&mut self, queue: u16, size: u16, head: u16) {
        let avail = ring_at(queue) + AVAIL;
        let index = self.get16(avail + 2);
        self.put(avail + 4 + 2 * u64::from(index % size), &head.to_le_bytes());
        self.put(avail + 2, &index.wrapping_add(1).to_le_bytes());
        self.write16(reg::NOTIFY + 4 * u64::from(queue), queue);
    }

    pub fn used_index(&self, queue: u16) -> u16 {
        self.get16(ring_at(queue) + USED + 2)
    }

    /// Waits for an interrupt vector.
    pub fn wait_interrupt(&self, vector: usize) {
        let fd = &self.interrupts[vector];
        let mut fds = [rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, None).unwrap();
        rustix::io::read(fd, &mut [0; 8]).unwrap();
    }

    /// Whether a vector is raised.
    pub fn interrupted(&self, vector: usize) -> bool {
        rustix::io::read(&self.interrupts[vector], &mut [0; 8]).is_ok()
    }

    /// Sends a request with `data` and with room for an answer of `room` bytes. Returns the answer.
    pub fn echo(&mut self, queue: u16, size: u16, data: &[u8], room: u32) -> Vec<u8> {
        self.put(DATA, data);
        self.descriptor(queue, 0, DATA, data.len() as u32, 1, 1);
        self.descriptor(queue, 1, DATA + 0x1000, room, 2, 0);
        let used = self.used_index(queue);
        self.submit(queue, size, 0);
        self.wait_interrupt(1 + usize::from(queue));
        assert_eq!(self.used_index(queue), used.wrapping_add(1));
        let element = self.get(ring_at(queue) + USED + 4 + 8 * u64::from(used % size), 8);
        assert_eq!(element[..4], [0; 4]);
        let len = u32::from_le_bytes(element[4..].try_into().unwrap());
        self.get(DATA + 0x1000, len as usize)
    }
}
