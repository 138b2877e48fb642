// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! WQEs in their slots. Both interfaces, `ibv_post_*` and `ibv_wr_*`, build WQEs with this module.

use std::ptr;
use std::slice;

use virtio_rdma_abi::ib::SendFlags;
use virtio_rdma_abi::wqe::Datagram;
use virtio_rdma_abi::wqe::RqHeader;
use virtio_rdma_abi::wqe::Sge;
use virtio_rdma_abi::wqe::SqHeader;
use virtio_rdma_abi::wqe::INLINE_OFFSET;

use crate::ffi;
use crate::memory::RingSlot;

/// Flags of the application that are passed to the device. The inline flag is not among them: a WQE
/// has that flag if its payload is inline.
const SEND_FLAGS: u32 = SendFlags::FENCE.0 | SendFlags::SIGNALED.0 | SendFlags::SOLICITED.0;

/// A piece of inline payload in the memory of the process.
pub type Piece = *const [u8];

/// `length` bytes at `addr`.
#[inline]
pub fn piece(addr: *const u8, length: usize) -> Piece {
    ptr::slice_from_raw_parts(addr, length)
}

/// A send WQE whose slot is reserved. The payload and the [segment](encode_segment) of the header
/// are written to the slot immediately, the other fields by [`finish`](Self::finish).
///
/// The slots of a send queue have room for a header and as many SGEs or bytes of inline payload as
/// the QP was created for.
#[derive(Clone, Copy, Debug)]
pub struct SendWqe {
    /// Position of the slot in the queue.
    position: u32,
    opcode: ffi::ibv_wr_opcode,
    flags: u32,
    num_sge: u32,
    ex: [u8; 4],
    /// Whether the destination of the datagram is still missing.
    lacks_address: bool,
}

impl SendWqe {
    /// A WQE without payload in the slot at `position`.
    #[inline]
    pub fn new(position: u32, opcode: ffi::ibv_wr_opcode, flags: u32) -> Self {
        Self {
            position,
            opcode,
            flags: flags & SEND_FLAGS,
            num_sge: 0,
            ex: [0; 4],
            lacks_address: false,
        }
    }

    /// Requires a [destination](Self::address).
    #[inline]
    pub fn require_address(&mut self) {
        self.lacks_address = true;
    }

    /// Whether the destination is missing. The slot then still has the destination of an earlier
    /// WQE.
    #[inline]
    pub fn lacks_address(&self) -> bool {
        self.lacks_address
    }

    /// Sets the destination of a datagram.
    #[inline]
    pub fn address(&mut self, slot: RingSlot<'_>, datagram: Datagram) {
        self.lacks_address = false;
        encode_segment(slot, datagram.to_bytes());
    }

    /// Position of the slot in the queue.
    #[inline]
    pub fn position(&self) -> u32 {
        self.position
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

    /// Makes `sges` the payload.
    ///
    /// # Safety
    ///
    /// `sges` has at most the number of SGEs for which the QP was created.
    #[inline]
    pub unsafe fn encode_sges<'a>(
        &mut self,
        slot: RingSlot<'_>,
        sges: impl ExactSizeIterator<Item = &'a ffi::ibv_sge>,
    ) {
        self.num_sge = sges.len() as u32;
        // SAFETY: by the function's safety requirements.
        unsafe { write_sges(slot, SqHeader::SIZE, sges) };
    }

    /// Copies `pieces` into the WQE as its payload.
    ///
    /// # Safety
    ///
    /// Each piece is valid memory or empty. Together they have `length` bytes, at most the inline
    /// payload for which the QP was created.
    #[inline]
    pub unsafe fn encode_inline(
        &mut self,
        slot: RingSlot<'_>,
        length: u32,
        pieces: impl Iterator<Item = Piece>,
    ) {
        self.num_sge = 1;
        self.flags |= SendFlags::INLINE.0;
        let whole = Sge {
            length,
            ..Sge::default()
        };
        // SAFETY: the slot has room for an SGE, which inline payload follows.
        unsafe { slot.write(SqHeader::SIZE, &whole.to_bytes()) };
        let mut offset = INLINE_OFFSET;
        for piece in pieces.filter(|piece| !piece.is_empty()) {
            // SAFETY: the piece is not empty, so the caller's memory is valid.
            let bytes = unsafe { slice::from_raw_parts(piece.cast::<u8>(), piece.len()) };
            // SAFETY: by the function's safety requirements.
            unsafe { slot.write(offset, bytes) };
            offset += bytes.len();
        }
    }

    /// Completes the WQE: writes its header.
    #[inline]
    pub fn finish(&self, slot: RingSlot<'_>) {
        let header = SqHeader {
            num_sge: self.num_sge,
            send_flags: SendFlags(self.flags),
            opcode: self.opcode,
            wr_id: u64::from(self.position),
            ex: self.ex,
            ..SqHeader::default()
        };
        // SAFETY: these bytes are a part of the header.
        unsafe { slot.write(0, &header.to_bytes()[..SqHeader::UNION]) };
    }
}

/// Encodes the segment of the header that the opcode or the QP's type requires, for example the
/// remote address or the destination of a datagram.
#[inline]
pub fn encode_segment<const N: usize>(slot: RingSlot<'_>, segment: [u8; N]) {
    const { assert!(SqHeader::UNION + N <= SqHeader::SIZE) };
    // SAFETY: the segment lies in the header.
    unsafe { slot.write(SqHeader::UNION, &segment) };
}

/// Writes the WQE of the receive `id` to `slot`.
///
/// # Safety
///
/// `sges` has at most the number of SGEs for which the queue was created.
#[inline]
pub unsafe fn write_receive<'a>(
    slot: RingSlot<'_>,
    id: u32,
    sges: impl ExactSizeIterator<Item = &'a ffi::ibv_sge>,
) {
    let header = RqHeader {
        num_sge: sges.len() as u32,
        wr_id: u64::from(id),
    };
    // SAFETY: the slots of a receive queue have room for a header and the caller's SGEs.
    unsafe {
        slot.write(0, &header.to_bytes());
        write_sges(slot, RqHeader::SIZE, sges);
    }
}

/// Writes `sges` at `offset`.
///
/// # Safety
///
/// The slot has room for them.
#[inline]
unsafe fn write_sges<'a>(
    slot: RingSlot<'_>,
    offset: usize,
    mut sges: impl Iterator<Item = &'a ffi::ibv_sge>,
) {
    // SAFETY: by the function's safety requirements.
    let write = |index: usize, sge: &ffi::ibv_sge| unsafe {
        slot.write(offset + index * Sge::SIZE, &Sge::from(sge).to_bytes())
    };
    // Most work requests have one SGE, which needs no loop.
    if let Some(first) = sges.next() {
        write(0, first);
        for (index, sge) in sges.enumerate() {
            write(index + 1, sge);
        }
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
