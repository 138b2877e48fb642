// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! PCI configuration space of a modern virtio function: identity, BARs and capabilities (virtio
//! 1.3, 4.1).

use crate::common::COMMON_LEN;
use crate::SharedMemory;

/// Length of the configuration space in bytes.
pub(crate) const CONFIG_LEN: usize = 256;

/// BAR of the MSI-X table and pending bits.
pub(crate) const MSIX_BAR: u32 = 0;
/// BAR of the virtio registers, 64 bits wide.
pub(crate) const VIRTIO_BAR: u32 = 2;
/// BAR of the shared memory region, 64 bits wide.
pub(crate) const SHM_BAR: u32 = 4;

/// Length of [`MSIX_BAR`] in bytes.
pub(crate) const MSIX_BAR_LEN: u64 = 0x1_0000;
/// Offset of the pending bits. The table before them has room for [`MAX_VECTORS`].
const PBA_OFFSET: u32 = 0x8000;
/// Maximum number of MSI-X vectors.
pub(crate) const MAX_VECTORS: u16 = 2048;

/// Length of [`VIRTIO_BAR`] in bytes.
pub(crate) const VIRTIO_BAR_LEN: u64 = 0x1_0000;
/// Offsets and lengths of the structures in [`VIRTIO_BAR`].
pub(crate) const COMMON_OFFSET: u64 = 0;
pub(crate) const ISR_OFFSET: u64 = 0x1000;
pub(crate) const DEVICE_OFFSET: u64 = 0x2000;
pub(crate) const DEVICE_LEN: u64 = 0x1000;
pub(crate) const NOTIFY_OFFSET: u64 = 0x8000;
pub(crate) const NOTIFY_LEN: u64 = VIRTIO_BAR_LEN - NOTIFY_OFFSET;
/// Distance between the notification addresses of consecutive queues, in bytes.
pub(crate) const NOTIFY_MULTIPLIER: u32 = 4;
/// Number of queues for which there are notification addresses.
pub(crate) const MAX_QUEUES: usize = (NOTIFY_LEN / NOTIFY_MULTIPLIER as u64) as usize;

const VENDOR_VIRTIO: u16 = 0x1af4;
/// PCI device ID of a modern device, minus its virtio device type.
const DEVICE_BASE: u16 = 0x1040;
/// PCI revision: at least 1 for modern devices.
const REVISION: u8 = 1;

const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const BARS: usize = 0x10;
const CAPABILITIES: usize = 0x34;
const INTERRUPT_LINE: usize = 0x3c;
/// Offset of the first capability, right after the header.
const FIRST_CAPABILITY: usize = 0x40;

const STATUS_CAPABILITIES: u16 = 1 << 4;
/// Writable bits of the command register: memory space, bus master, INTx disable.
const COMMAND_WRITABLE: u16 = (1 << 1) | (1 << 2) | (1 << 10);
const BAR_64BIT: u32 = 1 << 2;

const CAP_ID_VENDOR: u8 = 0x09;
const CAP_ID_EXPRESS: u8 = 0x10;
const CAP_ID_MSIX: u8 = 0x11;
/// Writable bits in the high byte of the MSI-X message control: enable and function mask.
const MSIX_CONTROL_WRITABLE: u8 = 0xc0;

/// Length of the PCI Express capability of version 2 (PCI Express Base 5.0, 7.5.3).
const EXPRESS_LEN: usize = 0x3c;
/// Offsets inside this capability.
const EXPRESS_DEVICE: usize = 0x04;
const EXPRESS_CONTROL: usize = 0x08;
const EXPRESS_LINK: usize = 0x0c;
const EXPRESS_LINK_STATUS: usize = 0x12;
/// Version 2, an endpoint.
const EXPRESS_FLAGS: u16 = 2;
/// The function has function-level reset and role-based error reporting.
const EXPRESS_DEVICE_BITS: u32 = (1 << 28) | (1 << 15);
/// A link of one lane with 2.5 GT/s, since some width and speed are required.
const EXPRESS_LINK_BITS: u16 = 0x11;
/// Written to the device control register, this bit resets the function. It reads as 0.
const INITIATE_RESET: u16 = 1 << 15;

/// Values of the field `cfg_type` of virtio capabilities.
const CFG_COMMON: u8 = 1;
const CFG_NOTIFY: u8 = 2;
const CFG_ISR: u8 = 3;
const CFG_DEVICE: u8 = 4;
const CFG_PCI: u8 = 5;
const CFG_SHARED_MEMORY: u8 = 8;

/// Offsets inside the capability that gives access to the BARs through configuration space.
const WINDOW_BAR: usize = 4;
const WINDOW_OFFSET: usize = 8;
const WINDOW_LENGTH: usize = 12;
const WINDOW_DATA: usize = 16;
const WINDOW_LEN: usize = 20;

/// An access to a BAR through configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowAccess {
    pub(crate) bar: u32,
    pub(crate) offset: u64,
    pub(crate) len: usize,
}

/// The configuration space.
#[derive(Debug)]
pub(crate) struct PciConfig {
    bytes: [u8; CONFIG_LEN],
    /// Mask of the bits that a write changes.
    writable: [u8; CONFIG_LEN],
    /// Contents after a reset.
    initial: [u8; CONFIG_LEN],
    /// Offset of the capability that accesses BARs through configuration space.
    window: usize,
    /// Offset of the PCI Express capability.
    express: usize,
}

impl PciConfig {
    pub(crate) fn new(device_id: u16, class: u32, vectors: u16, shm: Option<SharedMemory>) -> Self {
        let mut builder = Builder {
            bytes: [0; CONFIG_LEN],
            writable: [0; CONFIG_LEN],
            end: FIRST_CAPABILITY,
            link: CAPABILITIES,
        };
        let id = DEVICE_BASE + device_id;
        let [c0, c1, c2, _] = class.to_le_bytes();
        builder.put(0x00, &VENDOR_VIRTIO.to_le_bytes());
        builder.put(0x02, &id.to_le_bytes());
        builder.put(STATUS, &STATUS_CAPABILITIES.to_le_bytes());
        builder.put(0x08, &[REVISION, c0, c1, c2]);
        builder.put(0x2c, &VENDOR_VIRTIO.to_le_bytes());
        builder.put(0x2e, &id.to_le_bytes());
        builder.allow(COMMAND, &COMMAND_WRITABLE.to_le_bytes());
        builder.allow(INTERRUPT_LINE, &[0xff]);
        builder.bar32(MSIX_BAR, MSIX_BAR_LEN);
        builder.bar64(VIRTIO_BAR, VIRTIO_BAR_LEN);
        if let Some(shm) = shm {
            builder.bar64(SHM_BAR, shm.len);
        }

        let mut msix = [0; 10];
        msix[..2].copy_from_slice(&(vectors - 1).to_le_bytes());
        msix[2..6].copy_from_slice(&MSIX_BAR.to_le_bytes());
        msix[6..].copy_from_slice(&(PBA_OFFSET | MSIX_BAR).to_le_bytes());
        let at = builder.capability(CAP_ID_MSIX, &msix);
        builder.allow(at + 3, &[MSIX_CONTROL_WRITABLE]);

        builder.virtio(CFG_COMMON, COMMON_OFFSET, COMMON_LEN as u64, &[]);
        builder.virtio(CFG_ISR, ISR_OFFSET, 1, &[]);
        builder.virtio(CFG_DEVICE, DEVICE_OFFSET, DEVICE_LEN, &[]);
        builder.virtio(
            CFG_NOTIFY,
            NOTIFY_OFFSET,
            NOTIFY_LEN,
            &NOTIFY_MULTIPLIER.to_le_bytes(),
        );
        if let Some(shm) = shm {
            let (low, high) = (shm.len as u32, (shm.len >> 32) as u32);
            let mut high_words = [0; 8];
            high_words[4..].copy_from_slice(&high.to_le_bytes());
            let body = virtio_capability(
                CFG_SHARED_MEMORY,
                SHM_BAR as u8,
                shm.id,
                0,
                low,
                &high_words,
            );
            builder.capability(CAP_ID_VENDOR, &body);
        }
        let window = builder.capability(
            CAP_ID_VENDOR,
            &virtio_capability(CFG_PCI, 0, 0, 0, 0, &[0; 4]),
        );
        builder.allow(window + WINDOW_BAR, &[0xff]);
        builder.allow(window + WINDOW_OFFSET, &[0xff; 8]);
        let express = builder.express();

        Self {
            bytes: builder.bytes,
            writable: builder.writable,
            initial: builder.bytes,
            window,
            express,
        }
    }

    pub(crate) fn bytes(&self) -> &[u8; CONFIG_LEN] {
        &self.bytes
    }

    /// Sets the writable bits to those of `bytes`.
    pub(crate) fn set(&mut self, bytes: &[u8; CONFIG_LEN]) {
        // The initiation of a reset is no writable bit.
        let _ = self.write(0, bytes);
    }

    /// Restores the contents of the configuration space after power-on.
    pub(crate) fn reset(&mut self) {
        self.bytes = self.initial;
    }

    /// Reads the bytes at `offset`. Bytes beyond the end of the space read as 0xff.
    pub(crate) fn read(&self, offset: u64, data: &mut [u8]) {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        for (i, byte) in data.iter_mut().enumerate() {
            *byte = self
                .bytes
                .get(start.saturating_add(i))
                .copied()
                .unwrap_or(0xff);
        }
    }

    /// Writes `data` at `offset`; only writable bits change. Returns whether this initiates a
    /// function-level reset.
    #[must_use]
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> bool {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        for (i, &byte) in data.iter().enumerate() {
            let at = start.saturating_add(i);
            if let (Some(old), Some(&mask)) = (self.bytes.get_mut(at), self.writable.get(at)) {
                *old = (*old & !mask) | (byte & mask);
            }
        }
        let trigger = self.express + EXPRESS_CONTROL + 1;
        let [_, bit] = INITIATE_RESET.to_le_bytes();
        trigger
            .checked_sub(start)
            .and_then(|at| data.get(at))
            .is_some_and(|byte| byte & bit != 0)
    }

    /// The access to a BAR that an access of `len` bytes at `offset` of the configuration space
    /// causes. `None` unless `offset` is the data field of the capability that accesses BARs.
    pub(crate) fn window(&self, offset: u64, len: usize) -> Option<WindowAccess> {
        let capability = &self.bytes[self.window..self.window + WINDOW_LEN];
        let word = |at: usize| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&capability[at..at + 4]);
            u32::from_le_bytes(bytes)
        };
        let (target, width) = (word(WINDOW_OFFSET), word(WINDOW_LENGTH));
        let hit = offset == (self.window + WINDOW_DATA) as u64
            && matches!(width, 1 | 2 | 4)
            && len == width as usize
            && target % width == 0;
        hit.then(|| WindowAccess {
            bar: u32::from(capability[WINDOW_BAR]),
            offset: u64::from(target),
            len,
        })
    }
}

/// The body of a virtio capability, which follows its ID and link bytes.
fn virtio_capability(
    cfg_type: u8,
    bar: u8,
    id: u8,
    offset: u32,
    length: u32,
    more: &[u8],
) -> Vec<u8> {
    // The length field counts the ID and link bytes too.
    let total = 16 + more.len() as u8;
    let mut body = vec![total, cfg_type, bar, id, 0, 0];
    body.extend_from_slice(&offset.to_le_bytes());
    body.extend_from_slice(&length.to_le_bytes());
    body.extend_from_slice(more);
    body
}

struct Builder {
    bytes: [u8; CONFIG_LEN],
    writable: [u8; CONFIG_LEN],
    /// Offset of the next capability.
    end: usize,
    /// Offset of the byte that links to the next capability.
    link: usize,
}

impl Builder {
    fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn allow(&mut self, offset: usize, mask: &[u8]) {
        self.writable[offset..offset + mask.len()].copy_from_slice(mask);
    }

    fn bar32(&mut self, bar: u32, len: u64) {
        let at = BARS + 4 * bar as usize;
        self.allow(at, &(!(len - 1) as u32).to_le_bytes());
    }

    fn bar64(&mut self, bar: u32, len: u64) {
        let at = BARS + 4 * bar as usize;
        self.put(at, &BAR_64BIT.to_le_bytes());
        self.allow(at, &(!(len - 1)).to_le_bytes());
    }

    /// Appends a capability and returns its offset.
    fn capability(&mut self, id: u8, body: &[u8]) -> usize {
        let at = self.end;
        // Fits a byte: the space has 256 bytes.
        self.put(self.link, &[at as u8]);
        self.put(at, &[id, 0]);
        self.put(at + 2, body);
        self.link = at + 1;
        self.end = (at + 2 + body.len()).next_multiple_of(4);
        at
    }

    /// Appends the PCI Express capability and returns its offset.
    fn express(&mut self) -> usize {
        let mut body = [0; EXPRESS_LEN - 2];
        let mut put =
            |at: usize, bytes: &[u8]| body[at - 2..][..bytes.len()].copy_from_slice(bytes);
        put(2, &EXPRESS_FLAGS.to_le_bytes());
        put(EXPRESS_DEVICE, &EXPRESS_DEVICE_BITS.to_le_bytes());
        put(EXPRESS_LINK, &EXPRESS_LINK_BITS.to_le_bytes());
        put(EXPRESS_LINK_STATUS, &EXPRESS_LINK_BITS.to_le_bytes());
        let at = self.capability(CAP_ID_EXPRESS, &body);
        self.allow(at + EXPRESS_CONTROL, &(!INITIATE_RESET).to_le_bytes());
        at
    }

    fn virtio(&mut self, cfg_type: u8, offset: u64, length: u64, more: &[u8]) {
        // Offset and length lie inside the BAR, whose length fits 32 bits.
        let body = virtio_capability(
            cfg_type,
            VIRTIO_BAR as u8,
            0,
            offset as u32,
            length as u32,
            more,
        );
        self.capability(CAP_ID_VENDOR, &body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> PciConfig {
        let shm = SharedMemory {
            id: 1,
            len: 16 << 20,
        };
        PciConfig::new(42, 0x028000, 65, Some(shm))
    }

    fn read<const N: usize>(config: &PciConfig, offset: u64) -> [u8; N] {
        let mut bytes = [0; N];
        config.read(offset, &mut bytes);
        bytes
    }

    #[test]
    fn identity() {
        let config = config();
        assert_eq!(read(&config, 0), [0xf4, 0x1a, 0x6a, 0x10]);
        assert_eq!(read(&config, 8), [1, 0x00, 0x80, 0x02]);
        assert_eq!(read(&config, 0x3d), [0u8], "no INTx pin");
        assert_eq!(read(&config, 255), [0, 0xff]);
    }

    #[test]
    fn capabilities_are_linked_and_complete() {
        let config = config();
        let [mut at] = read(&config, 0x34);
        let mut types = Vec::new();
        let mut express = 0;
        while at != 0 {
            let [id, next, len, cfg_type, bar, shm_id] = read(&config, u64::from(at));
            if id == CAP_ID_VENDOR {
                types.push((cfg_type, bar, len));
                if cfg_type == CFG_SHARED_MEMORY {
                    assert_eq!(shm_id, 1);
                    assert_eq!(
                        read(&config, u64::from(at) + 12),
                        (16u32 << 20).to_le_bytes()
                    );
                    assert_eq!(read(&config, u64::from(at) + 16), [0; 8]);
                }
            } else if id == CAP_ID_EXPRESS {
                assert_eq!(read(&config, u64::from(at) + 2), 2u16.to_le_bytes());
                assert_eq!(
                    read(&config, u64::from(at) + 4),
                    EXPRESS_DEVICE_BITS.to_le_bytes()
                );
                express += 1;
            } else {
                assert_eq!(id, CAP_ID_MSIX);
                assert_eq!(read(&config, u64::from(at) + 2), 64u16.to_le_bytes());
            }
            at = next;
        }
        assert_eq!(
            types,
            [
                (1, 2, 16),
                (3, 2, 16),
                (4, 2, 16),
                (2, 2, 20),
                (8, 4, 24),
                (5, 0, 20)
            ]
        );
        assert_eq!(express, 1);
    }

    #[test]
    fn bars_can_be_sized_and_placed_and_reset() {
        let mut config = config();
        for (bar, flags, len) in [(0, 0, 0x1_0000u32), (2, 4, 0x1_0000), (4, 4, 16 << 20)] {
            let at = 0x10 + 4 * bar;
            let _ = config.write(at, &[0xff; 4]);
            assert_eq!(read(&config, at), (!(len - 1) | flags).to_le_bytes());
        }
        let _ = config.write(0, &[0xff; 4]);
        assert_eq!(read(&config, 0), [0xf4, 0x1a, 0x6a, 0x10]);
        let _ = config.write(u64::MAX, &[1, 2]);
        config.reset();
        assert_eq!(read(&config, 0x20), [4, 0, 0, 0]);
    }

    #[test]
    fn the_window_reaches_a_bar() {
        let mut config = config();
        let window = config.window as u64;
        assert_eq!(config.window(window + 16, 4), None);
        let _ = config.write(window + 4, &[2]);
        let _ = config.write(window + 8, &0x14u32.to_le_bytes());
        let _ = config.write(window + 12, &1u32.to_le_bytes());
        let access = WindowAccess {
            bar: 2,
            offset: 0x14,
            len: 1,
        };
        assert_eq!(config.window(window + 16, 1), Some(access));
        assert_eq!(config.window(window + 16, 4), None);
        let _ = config.write(window + 12, &3u32.to_le_bytes());
        assert_eq!(config.window(window + 16, 3), None);
    }

    #[test]
    fn only_its_bit_resets_the_function() {
        let mut config = config();
        let control = (config.express + EXPRESS_CONTROL) as u64;
        assert!(!config.write(control, &0x7fffu16.to_le_bytes()));
        assert_eq!(read(&config, control), 0x7fffu16.to_le_bytes());
        assert!(config.write(control, &0x8000u16.to_le_bytes()));
        assert_eq!(read(&config, control), [0, 0], "the bit reads as 0");
        assert!(config.write(control - 2, &[0, 0, 0, 0x80]));
        assert!(config.write(control + 1, &[0x80]));
        assert!(!config.write(control, &[0x80]));
        assert!(!config.write(control + 2, &[0xff; 4]));
        assert!(!config.write(u64::MAX, &[0xff; 8]));
    }
}
