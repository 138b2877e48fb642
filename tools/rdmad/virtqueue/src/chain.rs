// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Descriptor chains.

use dma::{DmaError, DmaView};

use crate::ring::{read, write, DESCRIPTOR};
use crate::Split;

/// `VIRTQ_DESC_F_NEXT`, `VIRTQ_DESC_F_WRITE`, `VIRTQ_DESC_F_INDIRECT`.
const F_NEXT: u16 = 1;
const F_WRITE: u16 = 2;
const F_INDIRECT: u16 = 4;

/// How a chain breaks the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// A descriptor table or buffer can't be accessed.
    #[error("{0}")]
    Dma(#[from] DmaError),
    /// The index of a descriptor is beyond the end of the table.
    #[error("descriptor {0} does not exist")]
    BadDescriptor(u16),
    /// The chain has more descriptors than the queue, or than the caller allows; possibly a loop.
    #[error("descriptor chain too long")]
    TooLong,
    /// An indirect descriptor without the negotiated feature, in an indirect table, or with the
    /// NEXT flag.
    #[error("indirect descriptor where none is allowed")]
    Indirect,
    /// The length of an indirect table is not a multiple of the descriptor size.
    #[error("indirect descriptor table of {0} bytes")]
    BadTable(u32),
    /// A device-readable buffer follows a device-writable one.
    #[error("readable descriptor after a writable one")]
    ReadAfterWrite,
    /// A buffer is writable where it must be readable, or the reverse.
    #[error("descriptor for the wrong direction")]
    Direction,
    /// The chain is too short for the bytes to write.
    #[error("chain has room for {0} bytes only")]
    NoRoom(usize),
}

/// A buffer of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// DMA address.
    pub address: u64,
    /// Length in bytes.
    pub len: u32,
    /// True for a device-writable buffer, false for a device-readable one.
    pub writable: bool,
}

/// Iterator over the buffers of a chain, in order. It ends after an error.
#[derive(Debug)]
pub struct Chain<'a> {
    view: &'a DmaView,
    table: u64,
    /// Number of descriptors in the table.
    entries: u32,
    next: Option<u16>,
    /// Number of descriptors that the chain may still have.
    left: u16,
    indirect: bool,
    in_indirect: bool,
    writable: bool,
}

impl<'a> Chain<'a> {
    pub(crate) fn new(view: &'a DmaView, queue: &Split, head: u16) -> Self {
        Self {
            view,
            table: queue.descriptors,
            entries: queue.size.into(),
            next: Some(head),
            left: queue.size,
            indirect: queue.indirect,
            in_indirect: false,
            writable: false,
        }
    }

    /// Limits the chain to this number of descriptors: a longer chain ends with an error.
    pub fn at_most(self, descriptors: u16) -> Self {
        Self {
            left: self.left.min(descriptors),
            ..self
        }
    }

    /// Copies a device-readable chain to `bytes`. Returns the number of bytes copied: the length of
    /// the chain or of `bytes`, whichever is less. The rest of the chain is not checked.
    ///
    /// # Errors
    ///
    /// The chain breaks a rule or has a writable buffer.
    pub fn gather(self, bytes: &mut [u8]) -> Result<usize, ChainError> {
        let view = self.view;
        let mut done = 0;
        for buffer in self {
            let buffer = buffer?;
            if buffer.writable {
                return Err(ChainError::Direction);
            }
            let rest = &mut bytes[done..];
            let len = usize::try_from(buffer.len).map_or(rest.len(), |len| len.min(rest.len()));
            read(view, buffer.address, &mut rest[..len])?;
            done += len;
            if done == bytes.len() {
                break;
            }
        }
        Ok(done)
    }

    /// Writes all of `bytes` to a device-writable chain.
    ///
    /// # Errors
    ///
    /// The chain breaks a rule, has a readable buffer, or is too short.
    pub fn scatter(self, bytes: &[u8]) -> Result<(), ChainError> {
        let view = self.view;
        let mut rest = bytes;
        for buffer in self {
            let buffer = buffer?;
            if !buffer.writable {
                return Err(ChainError::Direction);
            }
            let len = usize::try_from(buffer.len).map_or(rest.len(), |len| len.min(rest.len()));
            let (now, later) = rest.split_at(len);
            write(view, buffer.address, now)?;
            rest = later;
            if rest.is_empty() {
                return Ok(());
            }
        }
        Err(ChainError::NoRoom(bytes.len() - rest.len()))
    }

    /// Returns the buffer of descriptor `index`. An indirect descriptor is followed to the first
    /// descriptor of its table.
    fn step(&mut self, index: u16) -> Result<Buffer, ChainError> {
        let descriptor = Descriptor::load(self.view, self.table, self.entries, index)?;
        if descriptor.flags & F_INDIRECT != 0 {
            if !self.indirect || self.in_indirect || descriptor.flags & F_NEXT != 0 {
                return Err(ChainError::Indirect);
            }
            let len = descriptor.len;
            if len == 0 || u64::from(len) % DESCRIPTOR != 0 {
                return Err(ChainError::BadTable(len));
            }
            self.in_indirect = true;
            self.table = descriptor.address;
            self.entries = len / DESCRIPTOR as u32;
            return self.step(0);
        }
        self.left = self.left.checked_sub(1).ok_or(ChainError::TooLong)?;
        let writable = descriptor.flags & F_WRITE != 0;
        if self.writable && !writable {
            return Err(ChainError::ReadAfterWrite);
        }
        self.writable = writable;
        self.next = (descriptor.flags & F_NEXT != 0).then_some(descriptor.next);
        Ok(Buffer {
            address: descriptor.address,
            len: descriptor.len,
            writable,
        })
    }
}

impl Iterator for Chain<'_> {
    type Item = Result<Buffer, ChainError>;

    fn next(&mut self) -> Option<Self::Item> {
        let index = self.next.take()?;
        Some(self.step(index))
    }
}

/// A descriptor of a table.
struct Descriptor {
    address: u64,
    len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    /// Reads descriptor `index` of the table of `entries` descriptors at `table`.
    fn load(view: &DmaView, table: u64, entries: u32, index: u16) -> Result<Self, ChainError> {
        if u32::from(index) >= entries {
            return Err(ChainError::BadDescriptor(index));
        }
        let mut bytes = [0; DESCRIPTOR as usize];
        let address = table
            .checked_add(DESCRIPTOR * u64::from(index))
            .ok_or(DmaError::Unmapped { iova: table })?;
        read(view, address, &mut bytes)?;
        let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, f0, f1, n0, n1] = bytes;
        Ok(Self {
            address: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            len: u32::from_le_bytes([l0, l1, l2, l3]),
            flags: u16::from_le_bytes([f0, f1]),
            next: u16::from_le_bytes([n0, n1]),
        })
    }
}
