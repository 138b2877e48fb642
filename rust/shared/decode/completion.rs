// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Checks of completions, for kernel clients.
//!
//! A CQE is checked in these steps:
//!
//! 1. [`split_wr_id`] gives the index of the work queue and the position; for a receive from an
//!    SRQ, [`srq_slot`] gives the slot. The caller compares the CQE's QPN with the QPN of the
//!    queue.
//! 2. The caller looks the work request up, which must be outstanding.
//! 3. [`PostedWr::check`] compares the CQE with the work request. A [`CheckedCqe`] tells what the
//!    client may see of the CQE.
//!
//! A CQE that fails a check breaks its CQ. The remaining risk is that a device completes work too
//! early.

use super::abi::cqe::{Cqe, OPCODE_RECV, OPCODE_RECV_RDMA_WITH_IMM};
use super::abi::ib::{WcFlags, WcStatus, WrOpcode, GRH_SIZE, MAX_SL, MAX_VLAN};
use super::abi::ring::DoorbellKind;

/// A CQE that is invalid for every work request of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidCqe;

/// The `wr_id` that the driver gives the device for the work request at `position` of a work queue.
/// `place` is the queue's index in the table of its CQ.
#[inline]
pub fn wr_id(place: u32, position: u32) -> u64 {
    (u64::from(place) << 32) | u64::from(position)
}

/// The index and the position in a [`wr_id`].
#[inline]
pub fn split_wr_id(wr_id: u64) -> (usize, u32) {
    // CAST: The high half is the index, the low half the position.
    ((wr_id >> 32) as usize, wr_id as u32)
}

/// The slot of an SRQ's work request, whose `wr_id` is just the slot number.
///
/// # Errors
///
/// [`InvalidCqe`] if the number is too large for a slot.
#[inline]
pub fn srq_slot(wr_id: u64) -> Result<u16, InvalidCqe> {
    u16::try_from(wr_id).map_err(|_| InvalidCqe)
}

/// Operation of a work completion, as in `enum ib_wc_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// SEND, with or without immediate data or a key to invalidate.
    Send,
    /// RDMA WRITE, with or without immediate data.
    RdmaWrite,
    /// RDMA READ.
    RdmaRead,
    /// Atomic compare and swap.
    CompareAndSwap,
    /// Atomic fetch and add.
    FetchAndAdd,
    /// Invalidation of a local key.
    LocalInv,
    /// Fast registration.
    RegMr,
    /// Receive of a SEND.
    Recv,
    /// Receive of the immediate data of an RDMA WRITE.
    RecvRdmaWithImm,
}

impl Operation {
    /// The operation of a CQE that belongs to a queue of `kind`.
    #[inline(always)]
    fn decode(cqe: &Cqe, kind: DoorbellKind) -> Result<Self, InvalidCqe> {
        let (of, operation) = if cqe.is_receive() {
            match cqe.opcode {
                OPCODE_RECV => (DoorbellKind::Rq, Self::Recv),
                OPCODE_RECV_RDMA_WITH_IMM => (DoorbellKind::Rq, Self::RecvRdmaWithImm),
                _ => return Err(InvalidCqe),
            }
        } else {
            let opcode = WrOpcode::try_from(u32::from(cqe.opcode)).map_err(|_| InvalidCqe)?;
            let operation = match opcode {
                WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::SendWithInv => Self::Send,
                WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm => Self::RdmaWrite,
                WrOpcode::RdmaRead | WrOpcode::RdmaReadWithInv => Self::RdmaRead,
                WrOpcode::AtomicCmpAndSwp => Self::CompareAndSwap,
                WrOpcode::AtomicFetchAndAdd => Self::FetchAndAdd,
                WrOpcode::LocalInv => Self::LocalInv,
                WrOpcode::RegMr => Self::RegMr,
                // Kernel clients can't post these operations.
                WrOpcode::BindMw | WrOpcode::Flush | WrOpcode::AtomicWrite => {
                    return Err(InvalidCqe);
                }
            };
            (DoorbellKind::Sq, operation)
        };
        if of == kind {
            Ok(operation)
        } else {
            Err(InvalidCqe)
        }
    }
}

/// Transport service of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// RC.
    Reliable,
    /// UC.
    Unreliable,
    /// UD, and the GSI QP.
    Datagram,
}

/// The driver's record of a work request that the device reports as complete.
#[derive(Clone, Copy, Debug)]
pub struct PostedWr {
    /// Kind of the queue. An SRQ counts as a receive queue.
    pub kind: DoorbellKind,
    /// Service of the QP.
    pub service: Service,
    /// Whether a process posted the work request. If so, the kernel must not access the memory that
    /// the work request names.
    pub is_process: bool,
    /// Length of the posted memory in bytes.
    pub length: u32,
    /// Number of entries of the port's P_Key table.
    pub pkeys: u16,
}

/// A CQE that is possible for its work request. For a failed work request only status, operation
/// and vendor error are meaningful.
#[derive(Clone, Copy, Debug)]
pub struct CheckedCqe<'a> {
    cqe: &'a Cqe,
    operation: Operation,
    byte_len: u32,
    is_success: bool,
    /// Whether a datagram was received.
    is_datagram: bool,
}

impl PostedWr {
    /// Checks the CQE of this work request.
    ///
    /// For [`Operation::RecvRdmaWithImm`], the CQE's `byte_len` counts bytes that were written to
    /// other memory. Some kernel clients do not expect such messages and parse `byte_len` bytes of
    /// their receive buffer. So in the completions of kernel clients, `byte_len` is limited to the
    /// posted length.
    ///
    /// # Errors
    ///
    /// [`InvalidCqe`] for an unknown status or opcode, for an opcode that kernel clients can't post
    /// to such a queue, and for a success that is impossible for this work request.
    // Inlined, since otherwise the result is built in memory and copied.
    #[inline(always)]
    pub fn check<'a>(&self, cqe: &'a Cqe) -> Result<CheckedCqe<'a>, InvalidCqe> {
        // The values are contiguous from 0. A `match` over all of them would slow the poll path
        // down.
        const LAST: u8 = WcStatus::GeneralErr.value();
        const _: () = assert!(WcStatus::ALL.len() == LAST as usize + 1);

        let operation = Operation::decode(cqe, self.kind)?;
        let is_success = cqe.status == WcStatus::Success.value();
        if cqe.status > LAST || is_success && !self.admits(cqe) {
            return Err(InvalidCqe);
        }
        let byte_len = match operation {
            _ if !is_success => 0,
            Operation::RecvRdmaWithImm if !self.is_process => cqe.byte_len.min(self.length),
            _ => cqe.byte_len,
        };
        Ok(CheckedCqe {
            cqe,
            operation,
            byte_len,
            is_success,
            is_datagram: self.service == Service::Datagram && cqe.is_receive(),
        })
    }

    /// Whether a CQE with status success is possible for this work request. Clients trust the
    /// length and the indices in the CQE.
    #[inline]
    fn admits(&self, cqe: &Cqe) -> bool {
        let is_datagram = self.service == Service::Datagram;
        let has = |flag| cqe.wc_flags.contains(flag);
        if !cqe.is_receive() || !is_datagram {
            if has(WcFlags::GRH) || has(WcFlags::WITH_VLAN) {
                return false;
            }
        } else {
            let vlan_fits = !has(WcFlags::WITH_VLAN) || cqe.vendor_err <= u32::from(MAX_VLAN);
            if !vlan_fits || cqe.pkey_index >= self.pkeys || cqe.sl > MAX_SL {
                return false;
            }
        }
        let (has_imm, has_key) = (has(WcFlags::WITH_IMM), has(WcFlags::WITH_INVALIDATE));
        match cqe.opcode {
            OPCODE_RECV_RDMA_WITH_IMM => !is_datagram && has_imm && !has_key,
            OPCODE_RECV => {
                let header = if is_datagram { GRH_SIZE } else { 0 };
                (header..=self.length).contains(&cqe.byte_len)
                    && (!has_key || self.service == Service::Reliable && !has_imm)
            }
            _ => !has_imm && !has_key && cqe.byte_len <= self.length,
        }
    }
}

impl<'a> CheckedCqe<'a> {
    /// Status: the value of a [`WcStatus`].
    #[inline]
    pub fn status(&self) -> u8 {
        self.cqe.status
    }

    /// Whether the work request succeeded.
    #[inline]
    pub fn is_success(&self) -> bool {
        self.is_success
    }

    /// Operation.
    #[inline]
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Vendor error.
    #[inline]
    pub fn vendor_err(&self) -> u32 {
        self.cqe.vendor_err
    }

    /// Number of bytes transferred.
    #[inline]
    pub fn byte_len(&self) -> u32 {
        self.byte_len
    }

    /// Immediate data in network byte order.
    #[inline]
    pub fn immediate(&self) -> Option<[u8; 4]> {
        self.has(WcFlags::WITH_IMM).then_some(self.cqe.ex)
    }

    /// The local key that the message invalidated. No message has both this and immediate data.
    #[inline]
    pub fn invalidated(&self) -> Option<u32> {
        self.has(WcFlags::WITH_INVALIDATE)
            .then_some(u32::from_le_bytes(self.cqe.ex))
    }

    /// The CQE of a received datagram, whose fields about the sender are in range: the P_Key index
    /// is within the port's table, the service level at most [`MAX_SL`], a VLAN id at most
    /// [`MAX_VLAN`].
    #[inline]
    pub fn datagram(&self) -> Option<&'a Cqe> {
        (self.is_datagram && self.is_success).then_some(self.cqe)
    }

    #[inline]
    fn has(&self, flag: WcFlags) -> bool {
        self.is_success && self.cqe.wc_flags.contains(flag)
    }
}
