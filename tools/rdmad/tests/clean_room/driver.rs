// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Initialization, control queue, events and doorbells of the driver.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::rc::Rc;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use crate::memory::Memory;
use crate::pci::Function;
use crate::pci::Window;
use crate::pci::HUNG;
use crate::virtqueue::Piece;
use crate::virtqueue::Virtqueue;
use crate::wire::le32;
use crate::wire::le64;
use crate::wire::PORT_ACTIVE;
use crate::wire::PORT_ERR;
use crate::wire::REQUIRED;
use crate::wire::RING_ADDR;

/// Offsets of registers in the common configuration structure.
mod register {
    pub const DEVICE_FEATURE_SELECT: u64 = 0;
    pub const DEVICE_FEATURE: u64 = 4;
    pub const DRIVER_FEATURE_SELECT: u64 = 8;
    pub const DRIVER_FEATURE: u64 = 12;
    pub const NUM_QUEUES: u64 = 18;
    pub const DEVICE_STATUS: u64 = 20;
    pub const CONFIG_GENERATION: u64 = 21;
    pub const QUEUE_SELECT: u64 = 22;
    pub const QUEUE_SIZE: u64 = 24;
    pub const QUEUE_MSIX_VECTOR: u64 = 26;
    pub const QUEUE_ENABLE: u64 = 28;
    pub const QUEUE_NOTIFY_OFF: u64 = 30;
    pub const QUEUE_DESC: u64 = 32;
    pub const QUEUE_DRIVER: u64 = 40;
    pub const QUEUE_DEVICE: u64 = 48;
    pub const QUEUE_RESET: u64 = 58;
}

/// Bits of the device status.
const ACKNOWLEDGE: u8 = 1;
const DRIVER: u8 = 2;
const DRIVER_OK: u8 = 4;
const FEATURES_OK: u8 = 8;
const DEVICE_NEEDS_RESET: u8 = 64;

/// Indices of the control queue and of the first event queue.
const CONTROL: u16 = 0;
const EVENTS: u16 = 1;
/// Number of descriptors of each virtqueue.
pub const ENTRIES: u16 = 16;
/// Length of an event in bytes.
pub const EVENT: u32 = 16;
/// ID of the shared memory region with the doorbells.
const DOORBELLS: u8 = 1;

/// Calls `look` until it returns `Some`.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        let is_hung = began.elapsed().as_secs() as i64 > HUNG.tv_sec;
        assert!(!is_hung, "{what} did not come");
        thread::sleep(Duration::from_micros(100));
    }
}

/// The driver of an initialized device.
pub struct Driver {
    pub memory: Rc<Memory>,
    pub features: u64,
    function: Function,
    doorbells: Window,
    control: Virtqueue,
    control_notify: u64,
    /// DMA address of the page for requests and responses.
    exchange: u64,
    events: Virtqueue,
    events_notify: u64,
    /// DMA address of the page for event buffers, and length of the shortest event buffer in bytes.
    buffers: u64,
    event_room: u32,
}

impl Driver {
    /// Initializes the device at `socket` with the device features `wanted` and the required
    /// features of virtio.
    pub fn new(socket: &Path, wanted: u64) -> Driver {
        let memory = Memory::new();
        let mut function = Function::new(socket, &memory, 2);
        let identity = function.configuration(0, 4);
        // abi: R-9
        assert_eq!(identity, [0xf4, 0x1a, 0x6a, 0x10], "vendor and device ID");
        let is_doorbells = |region: &&(u8, Window)| region.0 == DOORBELLS;
        // abi: R-1143
        let doorbells = function.shared.iter().find(is_doorbells).unwrap().1;
        let mut driver = Driver {
            features: wanted | REQUIRED,
            doorbells,
            control: Virtqueue::new(&memory, ENTRIES),
            control_notify: 0,
            exchange: memory.page(),
            events: Virtqueue::new(&memory, ENTRIES),
            events_notify: 0,
            buffers: memory.page(),
            event_room: EVENT,
            function,
            memory,
        };
        driver.initialize();
        driver
    }

    /// Resets the device and initializes it, with virtqueues in new memory, in the order of virtio
    /// 1.3, 3.1.1.
    pub fn initialize(&mut self) {
        self.reset();
        self.control.clear();
        self.events.clear();
        self.set_status(ACKNOWLEDGE);
        self.set_status(ACKNOWLEDGE | DRIVER);
        let offered = self.offered();
        assert_eq!(offered & self.features, self.features, "{offered:#x}");
        for half in [0u32, 1] {
            let bits = (self.features >> (32 * half)) as u32;
            self.write_register(register::DRIVER_FEATURE_SELECT, &half.to_le_bytes());
            self.write_register(register::DRIVER_FEATURE, &bits.to_le_bytes());
        }
        self.set_status(ACKNOWLEDGE | DRIVER | FEATURES_OK);
        assert_eq!(self.status(), ACKNOWLEDGE | DRIVER | FEATURES_OK);

        let queues = self.read_register(register::NUM_QUEUES, 2);
        assert!(u16::from_le_bytes([queues[0], queues[1]]) >= 2);
        let parts = self.control.parts();
        self.control_notify = self.enable(CONTROL, parts, CONTROL);
        let has_events = self.features & RING_ADDR != 0;
        if has_events {
            let parts = self.events.parts();
            self.events_notify = self.enable(EVENTS, parts, EVENTS);
            for buffer in 0..ENTRIES {
                self.offer_event_buffer(buffer);
            }
        }
        self.set_status(ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK);
        if has_events {
            self.notify(EVENTS, self.events_notify);
        }
    }

    /// Maps `len` bytes of `file` at DMA address `at`, if the daemon permits it.
    pub fn map_more(&mut self, at: u64, len: u64, file: &File) {
        self.function.map_more(at, len, file);
    }

    /// Unmaps `len` bytes at DMA address `at`.
    pub fn unmap(&mut self, at: u64, len: u64) {
        self.function.unmap(at, len);
    }

    /// Resets the device and waits until the reset is done.
    pub fn reset(&mut self) {
        self.set_status(0);
        let function = &mut self.function;
        let common = function.common;
        let mut is_reset = || function.read(common, register::DEVICE_STATUS, 1) == [0];
        until("status 0", || is_reset().then_some(()));
    }

    fn offered(&mut self) -> u64 {
        let halves = [0u32, 1].map(|half| {
            self.write_register(register::DEVICE_FEATURE_SELECT, &half.to_le_bytes());
            u64::from(le32(&self.read_register(register::DEVICE_FEATURE, 4), 0))
        });
        halves[0] | (halves[1] << 32)
    }

    /// Enables virtqueue `index`, whose parts are at these addresses, with an interrupt vector.
    /// Returns the offset of its notification register.
    pub fn enable(&mut self, index: u16, parts: [u64; 3], vector: u16) -> u64 {
        let registers = [
            register::QUEUE_DESC,
            register::QUEUE_DRIVER,
            register::QUEUE_DEVICE,
        ];
        self.write_register(register::QUEUE_SELECT, &index.to_le_bytes());
        let greatest = self.read_register(register::QUEUE_SIZE, 2);
        assert!(u16::from_le_bytes([greatest[0], greatest[1]]) >= ENTRIES);
        self.write_register(register::QUEUE_SIZE, &ENTRIES.to_le_bytes());
        self.write_register(register::QUEUE_MSIX_VECTOR, &vector.to_le_bytes());
        let written = self.read_register(register::QUEUE_MSIX_VECTOR, 2);
        assert_eq!(written, vector.to_le_bytes());
        for (offset, address) in registers.into_iter().zip(parts) {
            self.write_register(offset, &(address as u32).to_le_bytes());
            self.write_register(offset + 4, &((address >> 32) as u32).to_le_bytes());
        }
        let offset = self.read_register(register::QUEUE_NOTIFY_OFF, 2);
        let offset = u16::from_le_bytes([offset[0], offset[1]]);
        self.write_register(register::QUEUE_ENABLE, &1u16.to_le_bytes());
        u64::from(offset) * u64::from(self.function.notify_multiplier)
    }

    /// Resets virtqueue `index`, and waits until the reset is done.
    pub fn reset_queue(&mut self, index: u16) {
        self.write_register(register::QUEUE_SELECT, &index.to_le_bytes());
        self.write_register(register::QUEUE_RESET, &1u16.to_le_bytes());
        until("the reset of a virtqueue", || {
            let is_reset = self.read_register(register::QUEUE_RESET, 2) == [0; 2];
            is_reset.then_some(())
        });
        assert_eq!(self.read_register(register::QUEUE_ENABLE, 2), [0; 2]);
    }

    /// Waits for an interrupt of the event queue, or of the CQs in virtqueue mode.
    pub fn await_interrupt(&self) {
        self.function.wait(EVENTS);
    }

    /// The eventfd of the interrupt that [`await_interrupt`](Self::await_interrupt) waits for.
    pub fn interrupt(&self) -> BorrowedFd<'_> {
        self.function.interrupt(EVENTS)
    }

    /// Notifies virtqueue `index`, whose notification register is at `offset`.
    pub fn notify(&mut self, index: u16, offset: u64) {
        let notify = self.function.notify;
        self.function.write(notify, offset, &index.to_le_bytes());
    }

    fn read_register(&mut self, offset: u64, len: usize) -> Vec<u8> {
        let common = self.function.common;
        self.function.read(common, offset, len)
    }

    fn write_register(&mut self, offset: u64, bytes: &[u8]) {
        let common = self.function.common;
        self.function.write(common, offset, bytes);
    }

    fn status(&mut self) -> u8 {
        self.read_register(register::DEVICE_STATUS, 1)[0]
    }

    fn set_status(&mut self, status: u8) {
        self.write_register(register::DEVICE_STATUS, &[status]);
    }

    /// Reads fields of one generation of the configuration. A field is given by its offset and its
    /// size in bytes.
    pub fn config(&mut self, fields: &[(u64, usize)]) -> Vec<Vec<u8>> {
        loop {
            let before = self.read_register(register::CONFIG_GENERATION, 1);
            let read = |&(offset, size)| self.config_field(offset, size);
            let fields = fields.iter().map(read).collect();
            if self.read_register(register::CONFIG_GENERATION, 1) == before {
                return fields;
            }
        }
    }

    fn config_field(&mut self, offset: u64, size: usize) -> Vec<u8> {
        let width = match offset % size as u64 {
            0 => size.min(4),
            _ => 1,
        };
        let device = self.function.device;
        let offsets = (offset..offset + size as u64).step_by(width);
        let parts = offsets.map(|at| self.function.read(device, at, width));
        parts.collect::<Vec<_>>().concat()
    }

    /// Sends a command and returns its response structure, or its errno.
    pub fn command(&mut self, command: u8, request: &[u8], room: u32) -> Result<Vec<u8>, u8> {
        let response = self.exchange + 2048;
        self.memory.write(self.exchange, &[command]);
        self.memory.write(self.exchange + 1, request);
        // A status that the device never writes.
        self.memory.write(response, &[0xee]);
        let pieces = [
            Piece {
                address: self.exchange,
                len: 1 + request.len() as u32,
                is_writable: false,
            },
            Piece {
                address: response,
                len: 1 + room,
                is_writable: true,
            },
        ];
        self.control.offer(0, &pieces);
        self.notify(CONTROL, self.control_notify);
        let (head, written) = until("the response", || self.control.take());
        assert_eq!(head, 0);
        assert!(written > 0, "no response byte");
        let bytes = self.memory.read(response, written as usize);
        if bytes[0] != 0 {
            // abi: R-104
            assert_eq!(written, 1, "length of an error of {command}");
            return Err(bytes[0]);
        }
        // abi: R-100
        assert_eq!(written, 1 + room, "length of a response to {command}");
        Ok(bytes[1..].to_vec())
    }

    fn event_buffer(&self, buffer: u16) -> u64 {
        self.buffers + 64 * u64::from(buffer)
    }

    /// Makes an event buffer available. The buffer may be longer than an event.
    fn offer_event_buffer(&mut self, buffer: u16) {
        let piece = Piece {
            address: self.event_buffer(buffer),
            len: self.event_room + u32::from(buffer),
            is_writable: true,
        };
        self.events.offer(buffer, &[piece]);
    }

    /// Kind and cookie of the next event, if there is one. Events of the port's link are skipped.
    pub fn event(&mut self) -> Option<(u32, u64)> {
        loop {
            let (buffer, written) = self.events.take()?;
            // abi: R-1144
            assert_eq!(written, EVENT);
            let at = self.event_buffer(buffer);
            let bytes = self.memory.read(at, EVENT as usize);
            self.offer_event_buffer(buffer);
            self.notify(EVENTS, self.events_notify);
            // abi: R-544
            let kind = le32(&bytes, 0);
            assert_eq!(le32(&bytes, 4), 0, "reserved");
            if kind != PORT_ACTIVE && kind != PORT_ERR {
                return Some((kind, le64(&bytes, 8)));
            }
        }
    }

    /// Initializes the device with event buffers of at least `room` bytes.
    pub fn initialize_with(&mut self, room: u32) {
        self.event_room = room;
        self.initialize();
    }

    /// Whether the device asks for a reset.
    pub fn has_failed(&mut self) -> bool {
        self.status() & DEVICE_NEEDS_RESET != 0
    }

    /// Waits for DEVICE_NEEDS_RESET.
    pub fn await_failure(&mut self) {
        until("a request for a reset", || self.has_failed().then_some(()));
    }

    /// Returns the next event. Waits for the interrupt if there is no event.
    pub fn sleep(&mut self) -> (u32, u64) {
        loop {
            if let Some(event) = self.event() {
                return event;
            }
            self.await_interrupt();
        }
    }

    /// Rings the doorbell of a queue on page 0, the kernel's page.
    pub fn ring(&mut self, kind: u32, number: u32) {
        assert!(number < 1 << 24);
        let value = (kind << 24) | number;
        self.function.write(self.doorbells, 0, &value.to_le_bytes());
    }
}
