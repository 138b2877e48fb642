// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The operations of a QP: its opcodes by transport service and device, and limits of its work
//! requests.

use libc::c_int;
use virtio_rdma_abi::uverbs::ContextFlags;

use crate::ffi;
use crate::send::Piece;

/// Set of send opcodes: bit n stands for opcode n of `enum ibv_wr_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opcodes(u32);

impl Opcodes {
    /// Opcodes with a remote address.
    pub const RDMA: Self = Self::set(&[
        ffi::IBV_WR_RDMA_WRITE,
        ffi::IBV_WR_RDMA_WRITE_WITH_IMM,
        ffi::IBV_WR_RDMA_READ,
    ]);
    /// Opcodes that change a remote word.
    pub const ATOMIC: Self = Self::set(&[
        ffi::IBV_WR_ATOMIC_CMP_AND_SWP,
        ffi::IBV_WR_ATOMIC_FETCH_AND_ADD,
    ]);
    /// Opcodes with a key to invalidate.
    pub const INVALIDATE: Self = Self::set(&[ffi::IBV_WR_LOCAL_INV, ffi::IBV_WR_SEND_WITH_INV]);
    /// Opcodes that only the `ibv_wr_*` functions support.
    const BUILT: Self = Self::set(&[ffi::IBV_WR_FLUSH, ffi::IBV_WR_ATOMIC_WRITE]);
    /// Opcodes that bind memory windows.
    pub const BIND: Self = Self::set(&[ffi::IBV_WR_BIND_MW]);
    /// Opcodes of datagrams.
    const DATAGRAM: Self = Self::set(&[ffi::IBV_WR_SEND, ffi::IBV_WR_SEND_WITH_IMM]);
    /// Opcodes whose payload can be inline, in the WQE.
    pub const PAYLOAD: Self = Self::set(&[
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

    /// The empty set.
    pub const NONE: Self = Self(0);

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

    /// Opcodes of simple work requests, which [`crate::send`] posts on a short path.
    pub fn simple_opcodes(&self) -> Opcodes {
        match self.datagrams || self.max_sge == 0 {
            true => Opcodes::NONE,
            false => Opcodes(self.opcodes.0 & (Opcodes::RDMA.0 | Opcodes::PAYLOAD.0)),
        }
    }
}
