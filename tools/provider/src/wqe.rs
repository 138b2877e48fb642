// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! WQEs in their slots: built here alone, whatever interface the work request came through.

use std::ptr;
use std::slice;

use virtio_rdma_abi::ib::SendFlags;
use virtio_rdma_abi::wqe::RqHeader;
use virtio_rdma_abi::wqe::Sge;
use virtio_rdma_abi::wqe::SqHeader;
use virtio_rdma_ring::RingMemory;

use crate::ffi;
use crate::memory::RingMap;

/// Flags that the device knows and the application sets. The inline flag follows from the payload.
const SEND_FLAGS: u32 = SendFlags::FENCE.0 | SendFlags::SIGNALED.0 | SendFlags::SOLICITED.0;

/// Bytes of the process that a work request carries itself.
pub type Piece = *const [u8];

/// `length` bytes at `addr`.
#[inline]
pub fn piece(addr: *const u8, length: usize) -> Piece {
    ptr::slice_from_raw_parts(addr, length)
}

/// A send WQE whose slot is reserved. Its payload and what the opcode asks for are written to the slot at once, the
/// rest at the end.
#[derive(Clone, Copy, Debug)]
pub struct SendWqe {
    /// Offset of the slot in the ring.
    offset: u32,
    slot: u16,
    opcode: ffi::ibv_wr_opcode,
    flags: u32,
    num_sge: u32,
    ex: [u8; 4],
}

impl SendWqe {
    /// A WQE without payload in `slot`.
    #[inline]
    pub fn new(memory: &RingMap, slot: u16, opcode: ffi::ibv_wr_opcode, flags: u32) -> Self {
        Self {
            offset: memory.layout().slot(slot),
            slot,
            opcode,
            flags: flags & SEND_FLAGS,
            num_sge: 0,
            ex: [0; 4],
        }
    }

    /// Opcode, `enum ibv_wr_opcode`.
    #[inline]
    pub fn opcode(&self) -> ffi::ibv_wr_opcode {
        self.opcode
    }

    /// Sets immediate data in network byte order.
    #[inline]
    pub fn immediate(&mut self, imm_data: u32) {
        self.ex = imm_data.to_ne_bytes();
    }

    /// Sets the key to invalidate.
    #[inline]
    pub fn invalidate(&mut self, key: u32) {
        self.ex = key.to_le_bytes();
    }

    /// Sets what the opcode or the QP's type asks for: a member of the header's union, as bytes.
    #[inline]
    pub fn member(&mut self, memory: &RingMap, member: &[u8]) {
        memory.write(self.offset + SqHeader::UNION as u32, member);
    }

    /// Makes `sges` the payload, which are at most as many as the QP was created for.
    #[inline]
    pub fn gather(&mut self, memory: &RingMap, sges: &[ffi::ibv_sge]) {
        self.num_sge = sges.len() as u32;
        write_sges(memory, self.offset + SqHeader::SIZE as u32, sges);
    }

    /// Copies `pieces` into the WQE as its payload.
    ///
    /// # Safety
    ///
    /// Each piece is valid memory, or empty, and together they are `length` bytes, not more than the QP was created for.
    #[inline]
    pub unsafe fn inline(
        &mut self,
        memory: &RingMap,
        length: u32,
        pieces: impl Iterator<Item = Piece>,
    ) {
        self.num_sge = 1;
        self.flags |= SendFlags::INLINE.0;
        let mut offset = self.offset + SqHeader::SIZE as u32;
        let whole = Sge {
            length,
            ..Sge::default()
        };
        memory.write(offset, &whole.to_bytes());
        offset += Sge::SIZE as u32;
        for piece in pieces.filter(|piece| !piece.is_empty()) {
            // SAFETY: not empty, so the caller's memory is valid.
            let bytes = unsafe { slice::from_raw_parts(piece.cast::<u8>(), piece.len()) };
            memory.write(offset, bytes);
            offset += bytes.len() as u32;
        }
    }

    /// Writes the header: the WQE is complete.
    #[inline]
    pub fn finish(&self, memory: &RingMap) {
        let header = SqHeader {
            num_sge: self.num_sge,
            send_flags: SendFlags(self.flags),
            opcode: self.opcode,
            wr_id: u64::from(self.slot),
            ex: self.ex,
            ..SqHeader::default()
        };
        memory.write(self.offset, &header.to_bytes()[..SqHeader::UNION]);
    }
}

/// Writes the WQE of a receive to `slot`.
#[inline]
pub fn write_receive(memory: &RingMap, slot: u16, sges: &[ffi::ibv_sge]) {
    let offset = memory.layout().slot(slot);
    let header = RqHeader {
        num_sge: sges.len() as u32,
        wr_id: u64::from(slot),
    };
    memory.write(offset, &header.to_bytes());
    write_sges(memory, offset + RqHeader::SIZE as u32, sges);
}

#[inline]
fn write_sges(memory: &RingMap, offset: u32, sges: &[ffi::ibv_sge]) {
    for (index, sge) in sges.iter().enumerate() {
        memory.write(
            offset + (index * Sge::SIZE) as u32,
            &Sge::from(sge).to_bytes(),
        );
    }
}

impl From<&ffi::ibv_sge> for Sge {
    #[inline]
    fn from(sge: &ffi::ibv_sge) -> Self {
        Self {
            addr: sge.addr,
            length: sge.length,
            lkey: sge.lkey,
        }
    }
}
