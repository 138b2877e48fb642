// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Checks of a work request, and its conversion to a WQE.

use libc::c_int;
use virtio_rdma_abi::ring::slot_shift_for;
use virtio_rdma_abi::uverbs::ContextFlags;
use virtio_rdma_abi::wqe::sq_wqe_size;
use virtio_rdma_ring::WorkQueue;

use crate::ffi;
use crate::memory::RingSlot;
use crate::work_ring::WorkRing;
use crate::wqe::encode_segment;
use crate::wqe::piece;
use crate::wqe::write_receive;
use crate::wqe::Piece;
use crate::wqe::SendWqe;
use crate::wr::Recv;
use crate::wr::Send;

/// Set of send opcodes: bit n stands for opcode n of `enum ibv_wr_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opcodes(u32);

impl Opcodes {
    /// Opcodes with a remote address.
    const RDMA: Self = Self::set(&[
        ffi::IBV_WR_RDMA_WRITE,
        ffi::IBV_WR_RDMA_WRITE_WITH_IMM,
        ffi::IBV_WR_RDMA_READ,
    ]);
    /// Opcodes that change a remote word.
    const ATOMIC: Self = Self::set(&[
        ffi::IBV_WR_ATOMIC_CMP_AND_SWP,
        ffi::IBV_WR_ATOMIC_FETCH_AND_ADD,
    ]);
    /// Opcodes with a key to invalidate.
    const INVALIDATE: Self = Self::set(&[ffi::IBV_WR_LOCAL_INV, ffi::IBV_WR_SEND_WITH_INV]);
    /// Opcodes that only the `ibv_wr_*` functions support.
    const BUILT: Self = Self::set(&[ffi::IBV_WR_FLUSH, ffi::IBV_WR_ATOMIC_WRITE]);
    /// Opcodes that bind memory windows.
    const BIND: Self = Self::set(&[ffi::IBV_WR_BIND_MW]);
    /// Opcodes of datagrams.
    const DATAGRAM: Self = Self::set(&[ffi::IBV_WR_SEND, ffi::IBV_WR_SEND_WITH_IMM]);
    /// Opcodes whose payload can be inline, in the WQE.
    const PAYLOAD: Self = Self::set(&[
        ffi::IBV_WR_RDMA_WRITE,
        ffi::IBV_WR_RDMA_WRITE_WITH_IMM,
        ffi::IBV_WR_SEND,
        ffi::IBV_WR_SEND_WITH_IMM,
        ffi::IBV_WR_SEND_WITH_INV,
    ]);
    /// Opcodes of UC.
    const UNRELIABLE: Self = Self::set(&[
        ffi::IBV_WR_RDMA_WRITE,
        ffi::IBV_WR_RDMA_WRITE_WITH_IMM,
        ffi::IBV_WR_SEND,
        ffi::IBV_WR_SEND_WITH_IMM,
        ffi::IBV_WR_LOCAL_INV,
    ]);

    /// Operations of a QP of this type (IBTA 9.3.1, table of operations by transport service) on a
    /// device with the capabilities `flags`. `None` for a type that is not supported.
    pub fn of(qp_type: ffi::ibv_qp_type, flags: ContextFlags) -> Option<Self> {
        let offered = |flag, opcodes: u32| match flags.contains(flag) {
            true => opcodes,
            false => 0,
        };
        let connected = offered(ContextFlags::MEM_WINDOWS, Self::BIND.0);
        let reliable = connected
            | offered(ContextFlags::ATOMIC_WRITE, 1 << ffi::IBV_WR_ATOMIC_WRITE)
            | offered(ContextFlags::FLUSH, 1 << ffi::IBV_WR_FLUSH);
        match qp_type {
            ffi::IBV_QPT_RC => Some(Self(
                Self::RDMA.0 | Self::ATOMIC.0 | Self::INVALIDATE.0 | Self::PAYLOAD.0 | reliable,
            )),
            ffi::IBV_QPT_UC => Some(Self(Self::UNRELIABLE.0 | connected)),
            ffi::IBV_QPT_UD => Some(Self::DATAGRAM),
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

    /// The set as a bit mask.
    #[inline]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The set whose bit mask is `bits`.
    #[inline]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The opcodes of the set that `ibv_post_send` supports too.
    pub const fn posted(self) -> Self {
        Self(self.0 & !Self::BUILT.0)
    }

    /// Whether `opcode` is in the set.
    #[inline]
    pub const fn has(self, opcode: ffi::ibv_wr_opcode) -> bool {
        opcode < u32::BITS && (self.0 >> opcode) & 1 != 0
    }

    /// Whether all of `send_ops_flags` (`enum ibv_qp_create_send_ops_flags`) are in the set.
    pub fn has_all(self, send_ops_flags: u64) -> bool {
        // Flags below `IBV_WR_DRIVER1` have the bits of their opcodes, later flags do not.
        const SAME: u64 = (1 << ffi::IBV_WR_DRIVER1) - 1;
        let mut known = u64::from(self.0) & SAME;
        for (opcode, flag) in [
            (ffi::IBV_WR_FLUSH, ffi::IBV_QP_EX_WITH_FLUSH),
            (ffi::IBV_WR_ATOMIC_WRITE, ffi::IBV_QP_EX_WITH_ATOMIC_WRITE),
        ] {
            if self.has(opcode) {
                known |= u64::from(flag);
            }
        }
        send_ops_flags & !known == 0
    }
}

/// Limits of the work requests of a send queue.
#[derive(Clone, Copy, Debug)]
pub struct SendLimits {
    /// Opcodes of the QP's type.
    pub opcodes: Opcodes,
    /// Whether work requests have an address handle.
    pub datagrams: bool,
    /// Maximum number of SGEs.
    pub max_sge: u32,
    /// Maximum length of inline payload, in bytes.
    pub max_inline: u32,
}

impl SendLimits {
    /// The length of inline payload.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the opcode has no inline payload, or the payload is too long.
    pub fn inline_length(
        &self,
        opcode: ffi::ibv_wr_opcode,
        pieces: impl Iterator<Item = Piece>,
    ) -> Result<u32, c_int> {
        // The pieces may have any number and length: the sum must not wrap around.
        let length = pieces.fold(0u64, |sum, piece| sum.saturating_add(piece.len() as u64));
        if !Opcodes::PAYLOAD.has(opcode) || length > u64::from(self.max_inline) {
            return Err(libc::EINVAL);
        }
        Ok(length as u32)
    }

    /// Opcodes that [`post_simple`] supports.
    pub fn simple_opcodes(&self) -> Opcodes {
        match self.datagrams || self.max_sge == 0 {
            true => Opcodes::set(&[]),
            false => Opcodes(self.opcodes.0 & (Opcodes::RDMA.0 | Opcodes::PAYLOAD.0)),
        }
    }
}

/// Takes a slot for a send WQE. The QP supports the WQE's opcode.
///
/// # Errors
///
/// `ENOMEM` when the queue is full.
#[inline]
pub fn start_send<'a>(
    ring: &'a WorkRing,
    queue: &mut WorkQueue,
    wr_id: u64,
    opcode: ffi::ibv_wr_opcode,
    flags: u32,
) -> Result<(SendWqe, RingSlot<'a>), c_int> {
    let (position, slot) = ring.reserve(queue, wr_id).ok_or(libc::ENOMEM)?;
    Ok((SendWqe::new(position, opcode, flags), slot))
}

/// Posts one send work request with a [simple opcode](SendLimits::simple_opcodes), if it has at
/// most one SGE and no inline payload. Else returns `None`.
///
/// # Errors
///
/// `ENOMEM` when the queue is full.
#[inline(always)]
pub fn post_simple(
    ring: &WorkRing,
    queue: &mut WorkQueue,
    wr: Send<'_>,
) -> Option<Result<(), c_int>> {
    if wr.is_inline() {
        return None;
    }
    let (opcode, sges) = (wr.opcode(), wr.sges(1)?);
    let (mut wqe, slot) = match start_send(ring, queue, wr.wr_id(), opcode, wr.flags()) {
        Ok(start) => start,
        Err(error) => return Some(Err(error)),
    };
    set_immediate_or_rkey(&mut wqe, wr);
    // SAFETY: every slot of a send queue has room for an SGE.
    unsafe { wqe.encode_sges(slot, sges) };
    wqe.finish(slot);
    if Opcodes::RDMA.has(opcode) {
        encode_segment(slot, wr.rdma().to_bytes());
    }
    Some(Ok(()))
}

/// Posts one send work request within `limits`. The QP supports its opcode.
///
/// # Errors
///
/// `EINVAL` if it is invalid, `ENOMEM` when the queue is full.
#[inline]
pub fn post_send(
    ring: &WorkRing,
    queue: &mut WorkQueue,
    wr: Send<'_>,
    limits: &SendLimits,
) -> Result<(), c_int> {
    let opcode = wr.opcode();
    let sges = wr.sges(limits.max_sge).ok_or(libc::EINVAL)?;
    let (mut wqe, slot) = start_send(ring, queue, wr.wr_id(), opcode, wr.flags())?;
    set_immediate_or_rkey(&mut wqe, wr);
    // SAFETY: `wr.sges` returned at most `max_sge` SGEs.
    unsafe { wqe.encode_sges(slot, sges) };
    wqe.finish(slot);
    encode_operation(slot, wr, limits);
    Ok(())
}

/// Posts one send work request like [`post_send`], and copies its payload into the WQE.
#[inline]
pub fn post_inline(
    ring: &WorkRing,
    queue: &mut WorkQueue,
    wr: Send<'_>,
    limits: &SendLimits,
) -> Result<(), c_int> {
    let sges = wr.sges(limits.max_sge).ok_or(libc::EINVAL)?;
    let pieces = sges.map(|sge| piece(sge.addr as *const u8, sge.length as usize));
    let length = limits.inline_length(wr.opcode(), pieces.clone())?;
    let (mut wqe, slot) = start_send(ring, queue, wr.wr_id(), wr.opcode(), wr.flags())?;
    set_immediate_or_rkey(&mut wqe, wr);
    encode_operation(slot, wr, limits);
    // SAFETY: an inline work request of a list refers to valid memory, whose length was checked.
    unsafe { wqe.encode_inline(slot, length, pieces) };
    wqe.finish(slot);
    Ok(())
}

/// Encodes the segment that the opcode and the QP's type require.
#[inline(always)]
fn encode_operation(slot: RingSlot<'_>, wr: Send<'_>, limits: &SendLimits) {
    let opcode = wr.opcode();
    if Opcodes::RDMA.has(opcode) {
        encode_segment(slot, wr.rdma().to_bytes());
    } else if Opcodes::ATOMIC.has(opcode) {
        encode_segment(slot, wr.atomic().to_bytes());
    } else if Opcodes::BIND.has(opcode) {
        encode_segment(slot, wr.bind_mw().to_bytes());
    } else if limits.datagrams {
        encode_segment(slot, wr.datagram().to_bytes());
    }
}

// A slot without SGEs has the same size as a slot with one SGE.
const _: () = assert!(matches!(
    (slot_shift_for(sq_wqe_size(0)), slot_shift_for(sq_wqe_size(1))),
    (Some(without), Some(with)) if without == with
));

/// Sets immediate data or the key to invalidate.
#[inline(always)]
fn set_immediate_or_rkey(wqe: &mut SendWqe, wr: Send<'_>) {
    if Opcodes::INVALIDATE.has(wr.opcode()) {
        wqe.invalidate(wr.invalidate_rkey());
    } else {
        wqe.immediate(wr.imm_data());
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
    let sges = wr.sges(max_sge).ok_or(libc::EINVAL)?;
    let (position, slot) = ring.reserve(queue, wr.wr_id()).ok_or(libc::ENOMEM)?;
    // SAFETY: `sges` has at most the number of SGEs of the queue's WQEs.
    unsafe { write_receive(slot, position, sges) };
    Ok(())
}
