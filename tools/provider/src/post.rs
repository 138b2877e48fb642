// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! From a work request to its WQE.

use virtio_rdma_abi::ib::SendFlags;
use virtio_rdma_abi::wqe::Member;
use virtio_rdma_abi::wqe::RqHeader;
use virtio_rdma_abi::wqe::Sge;
use virtio_rdma_abi::wqe::SqHeader;
use virtio_rdma_abi::wqe::INLINE_OFFSET;
use virtio_rdma_ring::RingMemory;

use crate::ffi;
use crate::memory::RingMap;
use crate::wr::Recv;
use crate::wr::Send;

/// Set of send opcodes: bit n stands for opcode n of `enum ibv_wr_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opcodes(u32);

impl Opcodes {
    /// What a QP of this type may do (IBTA 9.3.1, table of operations by transport service), or `None` for a type that
    /// is not served.
    pub fn of(qp_type: ffi::ibv_qp_type) -> Option<Self> {
        match qp_type {
            ffi::IBV_QPT_RC => Some(Self::RC),
            _ => None,
        }
    }

    const RC: Self = Self(
        1 << ffi::IBV_WR_RDMA_WRITE
            | 1 << ffi::IBV_WR_RDMA_WRITE_WITH_IMM
            | 1 << ffi::IBV_WR_SEND
            | 1 << ffi::IBV_WR_SEND_WITH_IMM
            | 1 << ffi::IBV_WR_RDMA_READ,
    );
    /// Those with a remote address.
    const RDMA: Self = Self(
        1 << ffi::IBV_WR_RDMA_WRITE
            | 1 << ffi::IBV_WR_RDMA_WRITE_WITH_IMM
            | 1 << ffi::IBV_WR_RDMA_READ,
    );
    /// Those with a payload that can be in the WQE.
    const PAYLOAD: Self = Self(
        1 << ffi::IBV_WR_RDMA_WRITE
            | 1 << ffi::IBV_WR_RDMA_WRITE_WITH_IMM
            | 1 << ffi::IBV_WR_SEND
            | 1 << ffi::IBV_WR_SEND_WITH_IMM,
    );

    #[inline]
    const fn has(self, opcode: u32) -> bool {
        opcode < u32::BITS && self.0 >> opcode & 1 != 0
    }
}

/// What the work requests of a send queue are checked against.
#[derive(Clone, Copy, Debug)]
pub struct SendLimits {
    /// Opcodes of the QP's type.
    pub opcodes: Opcodes,
    /// SGEs.
    pub max_sge: u32,
    /// Bytes of inline payload.
    pub max_inline: u32,
}

/// Flags that the device knows.
const SEND_FLAGS: u32 =
    SendFlags::FENCE.0 | SendFlags::SIGNALED.0 | SendFlags::SOLICITED.0 | SendFlags::INLINE.0;

/// A send work request that was found valid.
pub struct CheckedSend<'a> {
    wr: Send<'a>,
    flags: SendFlags,
    sges: &'a [ffi::ibv_sge],
    /// Total length of the SGEs, for inline work requests.
    length: u32,
}

impl SendLimits {
    /// Checks a work request, or returns `None` if it is invalid (`EINVAL`).
    #[inline]
    pub fn check<'a>(&self, wr: Send<'a>) -> Option<CheckedSend<'a>> {
        let opcode = wr.opcode();
        let flags = SendFlags(wr.flags() & SEND_FLAGS);
        if !self.opcodes.has(opcode) {
            return None;
        }
        let sges = wr.sges(self.max_sge)?;
        let mut length = 0;
        if flags.contains(SendFlags::INLINE) {
            let total: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
            if !Opcodes::PAYLOAD.has(opcode) || total > u64::from(self.max_inline) {
                return None;
            }
            length = total as u32;
        }
        Some(CheckedSend {
            wr,
            flags,
            sges,
            length,
        })
    }
}

impl CheckedSend<'_> {
    /// Writes the WQE into `slot`.
    #[inline]
    pub fn write(&self, memory: &RingMap, slot: u16) {
        let offset = memory.layout().slot(slot);
        let inline = self.flags.contains(SendFlags::INLINE);
        let mut header = SqHeader {
            num_sge: if inline { 1 } else { self.sges.len() as u32 },
            send_flags: self.flags,
            opcode: self.wr.opcode(),
            wr_id: u64::from(slot),
            ex: self.wr.imm_data(),
            wr: [0; 51],
        };
        if Opcodes::RDMA.has(self.wr.opcode()) {
            self.wr.rdma().store(&mut header.wr);
        }
        memory.write(offset, &header.to_bytes());
        if inline {
            self.write_inline(memory, offset);
        } else {
            write_sges(memory, offset + SqHeader::SIZE as u32, self.sges);
        }
    }

    /// One SGE that says how long the payload is, and the payload.
    fn write_inline(&self, memory: &RingMap, offset: u32) {
        let sge = Sge {
            length: self.length,
            ..Sge::default()
        };
        memory.write(offset + SqHeader::SIZE as u32, &sge.to_bytes());
        let mut to = offset + INLINE_OFFSET as u32;
        for sge in self.sges {
            memory.write(to, self.wr.inline_bytes(sge));
            to += sge.length;
        }
    }
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

/// Writes the WQE of a receive work request with these SGEs into `slot`.
#[inline]
pub fn write_recv(memory: &RingMap, slot: u16, sges: &[ffi::ibv_sge]) {
    let offset = memory.layout().slot(slot);
    let header = RqHeader {
        num_sge: sges.len() as u32,
        wr_id: u64::from(slot),
    };
    memory.write(offset, &header.to_bytes());
    write_sges(memory, offset + RqHeader::SIZE as u32, sges);
}

/// Checks a receive work request for a queue of at most `max_sge` SGEs, or returns `None` if it is invalid (`EINVAL`).
#[inline]
pub fn check_recv(wr: Recv<'_>, max_sge: u32) -> Option<&[ffi::ibv_sge]> {
    wr.sges(max_sge)
}
