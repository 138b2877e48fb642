// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! From a work request to its WQE.

use libc::c_int;
use virtio_rdma_abi::ib::SendFlags;
use virtio_rdma_abi::wqe::Member;
use virtio_rdma_abi::wqe::RqHeader;
use virtio_rdma_abi::wqe::Sge;
use virtio_rdma_abi::wqe::SqHeader;
use virtio_rdma_ring::RingMemory;
use virtio_rdma_ring::WorkQueue;

use crate::ffi;
use crate::memory::RingMap;
use crate::work_ring::WorkRing;
use crate::wr::Recv;
use crate::wr::Send;

/// Set of send opcodes: bit n stands for opcode n of `enum ibv_wr_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opcodes(u32);

impl Opcodes {
    /// Those with a remote address.
    const RDMA: Self = Self::set(&[
        ffi::IBV_WR_RDMA_WRITE,
        ffi::IBV_WR_RDMA_WRITE_WITH_IMM,
        ffi::IBV_WR_RDMA_READ,
    ]);
    /// Those with a payload that can be in the WQE.
    const PAYLOAD: Self = Self::set(&[
        ffi::IBV_WR_RDMA_WRITE,
        ffi::IBV_WR_RDMA_WRITE_WITH_IMM,
        ffi::IBV_WR_SEND,
        ffi::IBV_WR_SEND_WITH_IMM,
    ]);

    /// What a QP of this type may do (IBTA 9.3.1, table of operations by transport service), or `None` for a type that
    /// is not served.
    pub fn of(qp_type: ffi::ibv_qp_type) -> Option<Self> {
        match qp_type {
            ffi::IBV_QPT_RC => Some(Self(Self::RDMA.0 | Self::PAYLOAD.0)),
            _ => None,
        }
    }

    const fn set(opcodes: &[ffi::ibv_wr_opcode]) -> Self {
        let mut bits = 0;
        let mut index = 0;
        while index < opcodes.len() {
            bits |= 1 << opcodes[index];
            index += 1;
        }
        Self(bits)
    }

    #[inline]
    const fn has(self, opcode: ffi::ibv_wr_opcode) -> bool {
        opcode < u32::BITS && (self.0 >> opcode) & 1 != 0
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

impl SendLimits {
    /// Posts one send work request.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is invalid, `ENOMEM` when the queue is full.
    #[inline]
    pub fn post(&self, ring: &WorkRing, queue: &mut WorkQueue, wr: Send<'_>) -> Result<(), c_int> {
        let opcode = wr.opcode();
        if !self.opcodes.has(opcode) || !wr.has_at_most(self.max_sge) {
            return Err(libc::EINVAL);
        }
        if wr.flags() & SendFlags::INLINE.0 != 0 {
            return self.post_inline(ring, queue, wr);
        }
        let sges = wr.sges();
        let slot = ring.reserve(queue, wr.wr_id()).ok_or(libc::ENOMEM)?;
        let memory = ring.memory();
        let offset = write_header(memory, slot, opcode, sges.len() as u32, wr);
        write_sges(memory, offset, sges);
        Ok(())
    }

    /// As [`post`](Self::post), for a work request whose payload goes into the WQE.
    #[inline(never)]
    fn post_inline(
        &self,
        ring: &WorkRing,
        queue: &mut WorkQueue,
        wr: Send<'_>,
    ) -> Result<(), c_int> {
        let sges = wr.sges();
        let length: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
        if !Opcodes::PAYLOAD.has(wr.opcode()) || length > u64::from(self.max_inline) {
            return Err(libc::EINVAL);
        }
        let slot = ring.reserve(queue, wr.wr_id()).ok_or(libc::ENOMEM)?;
        let memory = ring.memory();
        let mut offset = write_header(memory, slot, wr.opcode(), 1, wr);
        let whole = Sge {
            length: length as u32,
            ..Sge::default()
        };
        memory.write(offset, &whole.to_bytes());
        offset += Sge::SIZE as u32;
        for sge in sges {
            memory.write(offset, wr.inline_bytes(sge));
            offset += sge.length;
        }
        Ok(())
    }
}

/// Writes the header of a send WQE and returns the offset of what follows it.
#[inline]
fn write_header(
    memory: &RingMap,
    slot: u16,
    opcode: ffi::ibv_wr_opcode,
    num_sge: u32,
    wr: Send<'_>,
) -> u32 {
    let offset = memory.layout().slot(slot);
    let mut header = SqHeader {
        num_sge,
        send_flags: SendFlags(wr.flags() & SEND_FLAGS),
        opcode,
        wr_id: u64::from(slot),
        ex: wr.imm_data(),
        wr: [0; 51],
    };
    if Opcodes::RDMA.has(opcode) {
        wr.rdma().store(&mut header.wr);
    }
    memory.write(offset, &header.to_bytes());
    offset + SqHeader::SIZE as u32
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

/// Posts one receive work request of at most `max_sge` SGEs.
///
/// # Errors
///
/// `EINVAL` if it is invalid, `ENOMEM` when the queue is full.
#[inline]
pub fn post_recv(
    ring: &WorkRing,
    queue: &mut WorkQueue,
    wr: Recv<'_>,
    max_sge: u32,
) -> Result<(), c_int> {
    if !wr.has_at_most(max_sge) {
        return Err(libc::EINVAL);
    }
    let sges = wr.sges();
    let slot = ring.reserve(queue, wr.wr_id()).ok_or(libc::ENOMEM)?;
    let memory = ring.memory();
    let offset = memory.layout().slot(slot);
    let header = RqHeader {
        num_sge: sges.len() as u32,
        wr_id: u64::from(slot),
    };
    memory.write(offset, &header.to_bytes());
    write_sges(memory, offset + RqHeader::SIZE as u32, sges);
    Ok(())
}
