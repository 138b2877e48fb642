// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A driver's writes to registers and to its queues.

use arbitrary::{Result, Unstructured};
use testkit::vfio::descriptor;

use super::device::QUEUES;
use super::model::{DEVICE, ISR, NOTIFY};

/// DMA address of the guest memory that holds the queues, and its length in bytes.
pub const MEMORY: u64 = 0x4000_0000;
pub const MEMORY_LEN: usize = 0x1_0000;
/// DMA address of the data of requests.
pub const DATA: u64 = MEMORY + 0x8000;
/// Offsets of the rings of a queue from the queue's address.
pub const AVAILABLE: u64 = 0x1000;
pub const USED: u64 = 0x2000;

/// Offset and width in bytes of the device status register.
pub const STATUS: (u64, usize) = (0x14, 1);
/// Offset and width in bytes of each register.
pub const REGISTERS: [(u64, usize); 14] = [
    (0x00, 4),
    (0x08, 4),
    (0x0c, 4),
    (0x10, 2),
    STATUS,
    (0x16, 2),
    (0x18, 2),
    (0x1a, 2),
    (0x1c, 2),
    (0x20, 8),
    (0x28, 8),
    (0x30, 8),
    (0x3a, 2),
    (NOTIFY, 2),
];

/// DMA address of a queue.
pub fn queue_at(queue: u64) -> u64 {
    MEMORY + 0x4000 * queue
}

/// The register writes of a driver that follows the rules, from a reset up to DRIVER_OK. Of each:
/// offset, width in bytes and value.
pub fn set_up(input: &mut Unstructured<'_>) -> Result<Vec<(u64, usize, u64)>> {
    let (status, width) = STATUS;
    let mut writes = vec![(status, width, 3)];
    let features =
        (1 << 32) | (1 << 33) | (1 << 40) | (u64::from(input.arbitrary::<bool>()?) << 28);
    for select in 0..2 {
        writes.push((0x08, 4, select));
        writes.push((0x0c, 4, features >> (32 * select)));
    }
    writes.push((status, width, 11));
    writes.push((0x10, 2, 0));
    for queue in 0..QUEUES.len() as u64 {
        let at = queue_at(queue);
        let size = 1 << input.int_in_range(0..=4)?;
        writes.extend([(0x16, 2, queue), (0x18, 2, size), (0x1a, 2, queue + 1)]);
        writes.extend([
            (0x20, 8, at),
            (0x28, 8, at + AVAILABLE),
            (0x30, 8, at + USED),
        ]);
        writes.push((0x1c, 2, 1));
    }
    writes.push((status, width, 15));
    Ok(writes)
}

/// A chain of a few descriptors.
pub fn chain(input: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let len = input.int_in_range(1..=4u16)?;
    let mut chain = Vec::new();
    for index in 0..len {
        let address = DATA + u64::from(input.arbitrary::<u16>()? & 0x8fff);
        let mut flags = input.arbitrary::<u16>()? & 0x7;
        if index + 1 < len {
            flags |= 1;
        }
        let bytes = u32::from(input.arbitrary::<u8>()?) * 16;
        chain.extend_from_slice(&descriptor(address, bytes, flags, index + 1));
    }
    Ok(chain)
}

/// A value for a register: mostly one that is valid for some register, otherwise an arbitrary one.
pub fn value(input: &mut Unstructured<'_>) -> Result<u64> {
    Ok(match input.arbitrary::<u8>()? {
        small @ 0..=95 => u64::from(small & 0x1f),
        power @ 96..=159 => 1 << (power - 96),
        page @ 160..=223 => MEMORY + 0x400 * u64::from(page - 160),
        224..=231 => u64::from(u16::MAX),
        232..=239 => u64::MAX,
        _ => input.arbitrary()?,
    })
}

/// An offset in a BAR, mostly inside one of virtio's structures.
pub fn place(input: &mut Unstructured<'_>) -> Result<u64> {
    let base = *input.choose(&[0, ISR, DEVICE, NOTIFY, 0xfff0, 0x1_0000])?;
    Ok(base + u64::from(input.arbitrary::<u8>()?) % 0x44)
}
