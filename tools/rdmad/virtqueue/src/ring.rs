// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Addresses of a queue's parts, access to its rings, and copies from and to guest memory.

use std::sync::atomic::Ordering;

use dma::{DmaError, DmaView};

use crate::chain::Chain;

/// Size of a descriptor in bytes.
pub(crate) const DESCRIPTOR: u64 = 16;
/// Offsets in bytes of a ring's index and of its entries; the flags are at offset 0.
const RING_INDEX: u64 = 2;
const RING_ENTRIES: u64 = 4;
/// Size of an entry of the available ring in bytes.
const AVAIL_ENTRY: u64 = 2;
/// Size of an entry of the used ring in bytes.
const USED_ENTRY: u64 = 8;
/// `VIRTQ_USED_F_NO_NOTIFY`: the driver need not notify.
const F_NO_NOTIFY: u16 = 1 << 0;
/// `VIRTQ_AVAIL_F_NO_INTERRUPT`: the device need not interrupt.
const F_NO_INTERRUPT: u16 = 1 << 0;

/// A split virtqueue: the number of its descriptors and the DMA addresses of its parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// Number of descriptors.
    pub size: u16,
    /// Address of the descriptor table.
    pub descriptors: u64,
    /// Address of the available ring, the "driver area".
    pub available: u64,
    /// Address of the used ring, the "device area".
    pub used: u64,
    /// Whether `VIRTIO_F_INDIRECT_DESC` was negotiated.
    pub indirect: bool,
}

impl Split {
    /// Whether the size is valid for a split virtqueue, and the parts are aligned and do not exceed
    /// the address space.
    pub fn is_valid(&self) -> bool {
        let size = u64::from(self.size);
        let fits = |start: u64, len: u64| start.checked_add(len).is_some();
        self.size.is_power_of_two()
            && self.descriptors % 16 == 0
            && self.available % 2 == 0
            && self.used % 4 == 0
            && fits(self.descriptors, DESCRIPTOR * size)
            && fits(self.available, RING_ENTRIES + AVAIL_ENTRY * size)
            && fits(self.used, RING_ENTRIES + USED_ENTRY * size)
    }

    /// Address of the available ring's index.
    pub fn available_index(&self) -> u64 {
        self.available + RING_INDEX
    }

    /// Address of the available ring's entry for `position`.
    pub fn available_entry(&self, position: u16) -> u64 {
        self.available + RING_ENTRIES + AVAIL_ENTRY * u64::from(position % self.size)
    }

    /// Address of the used ring's index.
    pub fn used_index(&self) -> u64 {
        self.used + RING_INDEX
    }

    /// Address of the used ring's entry for `position`.
    pub fn used_entry(&self, position: u16) -> u64 {
        self.used + RING_ENTRIES + USED_ENTRY * u64::from(position % self.size)
    }

    /// Loads the available ring's index. Acquire: later loads see the entries that the driver wrote
    /// before the index.
    pub fn load_available_index(&self, view: &DmaView) -> Result<u16, DmaError> {
        load(view, self.available_index(), Ordering::Acquire)
    }

    /// Loads the available ring's entry for `position`: the head of a chain.
    pub fn load_available_entry(&self, view: &DmaView, position: u16) -> Result<u16, DmaError> {
        load(view, self.available_entry(position), Ordering::Relaxed)
    }

    /// Whether the driver wants interrupts.
    pub fn wants_interrupts(&self, view: &DmaView) -> Result<bool, DmaError> {
        Ok(load(view, self.available, Ordering::Relaxed)? & F_NO_INTERRUPT == 0)
    }

    /// Sets or clears `VIRTQ_USED_F_NO_NOTIFY`: whether the driver may omit notifications.
    pub fn set_quiet(&self, view: &DmaView, quiet: bool) -> Result<(), DmaError> {
        let flags = if quiet { F_NO_NOTIFY } else { 0 };
        store(view, self.used, flags, Ordering::Relaxed)
    }

    /// Writes the used ring's entry for `position`: the head of the chain, and the number of bytes
    /// that were written to the chain.
    pub fn store_used_entry(
        &self,
        view: &DmaView,
        position: u16,
        head: u16,
        len: u32,
    ) -> Result<(), DmaError> {
        let entry = view.slice_mut(self.used_entry(position), USED_ENTRY as usize)?;
        entry.store_u32(0, u32::from(head).to_le(), Ordering::Relaxed)?;
        entry.store_u32(4, len.to_le(), Ordering::Relaxed)
    }

    /// Stores the used ring's index. Release: a driver that sees this index also sees all earlier
    /// writes.
    pub fn store_used_index(&self, view: &DmaView, index: u16) -> Result<(), DmaError> {
        store(view, self.used_index(), index, Ordering::Release)
    }

    /// The chain that starts at descriptor `head`.
    pub fn chain<'a>(&self, view: &'a DmaView, head: u16) -> Chain<'a> {
        Chain::new(view, self, head)
    }
}

fn load(view: &DmaView, address: u64, order: Ordering) -> Result<u16, DmaError> {
    Ok(u16::from_le(view.slice(address, 2)?.load_u16(0, order)?))
}

fn store(view: &DmaView, address: u64, value: u16, order: Ordering) -> Result<(), DmaError> {
    view.slice_mut(address, 2)?
        .store_u16(0, value.to_le(), order)
}

/// Fills `bytes` from guest memory, which may span several regions.
///
/// # Errors
///
/// A part of the range can't be read.
pub fn read(view: &DmaView, address: u64, bytes: &mut [u8]) -> Result<(), DmaError> {
    let (mut address, mut rest) = (address, bytes);
    while !rest.is_empty() {
        let piece = view.contiguous(address, rest.len())?;
        let (now, later) = rest.split_at_mut(piece);
        view.slice(address, piece)?.read(0, now)?;
        rest = later;
        if !rest.is_empty() {
            address = sum(address, piece)?;
        }
    }
    Ok(())
}

/// Writes `bytes` to guest memory, which may span several regions.
///
/// # Errors
///
/// A part of the range can't be written.
pub fn write(view: &DmaView, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
    let (mut address, mut rest) = (address, bytes);
    while !rest.is_empty() {
        let piece = view.contiguous(address, rest.len())?;
        let (now, later) = rest.split_at(piece);
        view.slice_mut(address, piece)?.write(0, now)?;
        rest = later;
        if !rest.is_empty() {
            address = sum(address, piece)?;
        }
    }
    Ok(())
}

/// `address + len`. Fails if the sum exceeds the address space.
fn sum(address: u64, len: usize) -> Result<u64, DmaError> {
    address
        .checked_add(len as u64)
        .ok_or(DmaError::Unmapped { iova: address })
}
