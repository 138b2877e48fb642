// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The PCI function as a virtual machine monitor shows it to its guest: configuration space, BARs
//! and MSI-X over vfio-user, with the capabilities of virtio 1.3 (4.1.4).

use std::fs::File;
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::event::eventfd;
use rustix::event::poll;
use rustix::event::EventfdFlags;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use vfio_user::Client;

use crate::memory::Memory;
use crate::memory::BASE;

/// Index of the vfio region of the PCI configuration space. Regions 0 to 5 are the BARs.
pub const CONFIGURATION_SPACE: u32 = 7;
/// Index of MSI-X among the interrupt types of vfio.
const MSIX: u32 = 2;
/// `VFIO_IRQ_SET_DATA_EVENTFD` and `VFIO_IRQ_SET_ACTION_TRIGGER`.
const BY_EVENTFD: u32 = (1 << 2) | (1 << 5);

/// IDs of PCI capabilities.
const VENDOR_CAPABILITY: u8 = 0x09;
const MSIX_CAPABILITY: u8 = 0x11;

/// Types of virtio's PCI capabilities.
const COMMON: u8 = 1;
const NOTIFY: u8 = 2;
const DEVICE: u8 = 4;
const SHARED_MEMORY: u8 = 8;

/// How long to wait for the device before the test counts as hung.
pub const HUNG: Timespec = Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};

/// A structure of virtio in a BAR.
#[derive(Clone, Copy, Debug, Default)]
pub struct Window {
    bar: u32,
    offset: u64,
    pub len: u64,
}

/// The function, with its interrupts.
pub struct Function {
    client: Client,
    interrupts: Vec<OwnedFd>,
    pub common: Window,
    pub notify: Window,
    pub notify_multiplier: u32,
    pub device: Window,
    /// ID and place of each shared memory region.
    pub shared: Vec<(u8, Window)>,
}

impl Function {
    /// Connects to the function, maps `memory` for it, and sets up `vectors` interrupts.
    pub fn new(socket: &Path, memory: &Memory, vectors: usize) -> Function {
        let mut client = Client::new(socket).unwrap();
        client
            .dma_map(0, BASE, Memory::SIZE, memory.file.as_raw_fd())
            .unwrap();
        let mut function = Function {
            client,
            interrupts: Vec::new(),
            common: Window::default(),
            notify: Window::default(),
            notify_multiplier: 0,
            device: Window::default(),
            shared: Vec::new(),
        };
        // Enables accesses to memory space, and DMA of the function as a bus master.
        let command = function.configuration(4, 2)[0] | 0b110;
        function.configure(4, &[command, 0]);
        function.walk(vectors);
        function
    }

    /// Maps `len` bytes of `file` at DMA address `at`, if the daemon permits it.
    pub fn map_more(&mut self, at: u64, len: u64, file: &File) {
        self.client.dma_map(0, at, len, file.as_raw_fd()).unwrap();
    }

    /// Unmaps `len` bytes at DMA address `at`.
    pub fn unmap(&mut self, at: u64, len: u64) {
        self.client.dma_unmap(at, len).unwrap();
    }

    /// Reads `len` bytes of the configuration space.
    pub fn configuration(&mut self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.client
            .region_read(CONFIGURATION_SPACE, offset, &mut bytes)
            .unwrap();
        bytes
    }

    fn configure(&mut self, offset: u64, bytes: &[u8]) {
        self.client
            .region_write(CONFIGURATION_SPACE, offset, bytes)
            .unwrap();
    }

    /// Walks the list of capabilities, and records where virtio's structures are.
    fn walk(&mut self, vectors: usize) {
        let mut at = self.configuration(0x34, 1)[0] & !3;
        while at != 0 {
            let head = self.configuration(at.into(), 4);
            match head[0] {
                VENDOR_CAPABILITY => self.virtio_capability(at.into(), head[2]),
                MSIX_CAPABILITY => self.enable_interrupts(at.into(), vectors),
                _ => {}
            }
            at = head[1] & !3;
        }
    }

    fn virtio_capability(&mut self, at: u64, len: u8) {
        let bytes = self.configuration(at, len.into());
        let le32 = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let mut window = Window {
            bar: bytes[4].into(),
            offset: le32(8).into(),
            len: le32(12).into(),
        };
        match bytes[3] {
            COMMON => self.common = window,
            DEVICE => self.device = window,
            NOTIFY => (self.notify, self.notify_multiplier) = (window, le32(16)),
            SHARED_MEMORY => {
                window.offset |= u64::from(le32(16)) << 32;
                window.len |= u64::from(le32(20)) << 32;
                self.shared.push((bytes[5], window));
            }
            _ => {}
        }
    }

    fn enable_interrupts(&mut self, at: u64, vectors: usize) {
        let control = self.configuration(at + 2, 2);
        let size = u16::from_le_bytes([control[0], control[1]]) & 0x7ff;
        assert!(vectors <= usize::from(size) + 1);
        self.configure(at + 2, &[control[0], control[1] | 0x80]);
        let new = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        self.interrupts = (0..vectors).map(|_| new()).collect();
        let raw: Vec<_> = self.interrupts.iter().map(|fd| fd.as_raw_fd()).collect();
        self.client
            .set_irqs(MSIX, BY_EVENTFD, 0, vectors as u32, &raw)
            .unwrap();
    }

    /// Reads `len` bytes in one access.
    pub fn read(&mut self, window: Window, offset: u64, len: usize) -> Vec<u8> {
        assert!(offset + len as u64 <= window.len);
        let mut bytes = vec![0; len];
        self.client
            .region_read(window.bar, window.offset + offset, &mut bytes)
            .unwrap();
        bytes
    }

    /// Writes all bytes in one access.
    pub fn write(&mut self, window: Window, offset: u64, bytes: &[u8]) {
        assert!(offset + bytes.len() as u64 <= window.len);
        self.client
            .region_write(window.bar, window.offset + offset, bytes)
            .unwrap();
    }

    /// Waits for the interrupt of a vector.
    pub fn wait(&self, vector: u16) {
        let interrupt = &self.interrupts[usize::from(vector)];
        let mut fds = [PollFd::new(interrupt, PollFlags::IN)];
        let ready = poll(&mut fds, Some(&HUNG)).unwrap();
        assert_eq!(ready, 1, "no interrupt of vector {vector}");
        rustix::io::read(interrupt, &mut [0; 8]).unwrap();
    }

    /// The eventfd of a vector.
    pub fn interrupt(&self, vector: u16) -> BorrowedFd<'_> {
        self.interrupts[usize::from(vector)].as_fd()
    }
}
