// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Checks of completions, for kernel clients.
//!
//! A CQE is checked in these steps:
//!
//! 1. [`split_wr_id`] gives the index of the work queue and the position; for a receive from an
//!    SRQ, [`srq_slot`] gives the slot. The caller compares the CQE's QPN with the QPN of the
//!    queue.
//! 2. [`Outcome::decode`] gives status and operation; the operation must match the kind of queue.
//! 3. The caller completes the work request, which must be outstanding.
//! 4. [`PostedWr::completion`] gives the completion for the client.
//!
//! A CQE that fails a check breaks its CQ. The remaining risk is that a device completes work too
//! early.

use super::abi::cqe::{Cqe, OPCODE_RECV, OPCODE_RECV_RDMA_WITH_IMM};
use super::abi::ib::{WcFlags, WcStatus, WrOpcode, GRH_SIZE, MAX_SL, MAX_VLAN};
use super::abi::number::Qpn;
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

/// Status of a work completion: a value of [`WcStatus`].
///
/// Kept as a number: a `match` over all values would slow the poll path down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(u8);

impl Status {
    /// The work request succeeded.
    pub const SUCCESS: Self = Self(WcStatus::Success.value());

    /// Decodes a status.
    #[inline(always)]
    fn decode(status: u8) -> Result<Self, InvalidCqe> {
        const LAST: u8 = WcStatus::GeneralErr.value();
        // The values are contiguous from 0.
        const _: () = assert!(WcStatus::ALL.len() == LAST as usize + 1);

        if status <= LAST {
            Ok(Self(status))
        } else {
            Err(InvalidCqe)
        }
    }

    /// The value on the wire.
    #[inline]
    pub const fn value(self) -> u8 {
        self.0
    }
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

/// Status and operation of a CQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Status.
    pub status: Status,
    /// Operation.
    pub operation: Operation,
}

impl Outcome {
    /// Decodes the CQE of a work request that was posted to a queue of `kind`. An SRQ counts as a
    /// receive queue.
    ///
    /// # Errors
    ///
    /// [`InvalidCqe`] for an unknown status or opcode, and for an opcode that kernel clients can't
    /// post to such a queue.
    #[inline(always)]
    pub fn decode(cqe: &Cqe, kind: DoorbellKind) -> Result<Self, InvalidCqe> {
        Ok(Self {
            status: Status::decode(cqe.status)?,
            operation: Operation::decode(cqe, kind)?,
        })
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

/// A checked work completion. For a failed work request only status, operation and vendor error are
/// meaningful; the other fields are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Status.
    pub status: Status,
    /// Operation.
    pub operation: Operation,
    /// Vendor error.
    pub vendor_err: u32,
    /// Bytes transferred.
    pub byte_len: u32,
    /// Immediate data or an invalidated key.
    pub extra: Extra,
    /// Source of a received datagram.
    pub source: Option<DatagramSource>,
}

/// Data of a message besides its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// None.
    None,
    /// Immediate data in network byte order.
    Immediate([u8; 4]),
    /// The local key that the message invalidated.
    Invalidated(u32),
}

/// Source of a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramSource {
    /// QPN of the sender.
    pub qpn: Qpn,
    /// P_Key index, within the port's table.
    pub pkey_index: u16,
    /// Service level, at most [`MAX_SL`].
    pub sl: u8,
    /// Whether the receive buffer begins with a GRH.
    pub has_grh: bool,
    /// VLAN id, at most [`MAX_VLAN`], of a tagged datagram.
    pub vlan: Option<u16>,
}

impl PostedWr {
    /// The completion as the client sees it.
    ///
    /// For [`Operation::RecvRdmaWithImm`], the CQE's `byte_len` counts bytes that were written to
    /// other memory. Some kernel clients do not expect such messages and parse `byte_len` bytes of
    /// their receive buffer. So in the completions of kernel clients, `byte_len` is limited to the
    /// posted length.
    ///
    /// # Errors
    ///
    /// [`InvalidCqe`] for a success that is impossible for this work request.
    // Inlined, since otherwise the completion is built in memory and copied.
    #[inline(always)]
    pub fn completion(&self, cqe: &Cqe, outcome: Outcome) -> Result<Completion, InvalidCqe> {
        let Outcome { status, operation } = outcome;
        if status != Status::SUCCESS {
            return Ok(Completion {
                status,
                operation,
                vendor_err: cqe.vendor_err,
                byte_len: 0,
                extra: Extra::None,
                source: None,
            });
        }
        if !self.admits(cqe) {
            return Err(InvalidCqe);
        }
        let byte_len = match operation {
            Operation::RecvRdmaWithImm if !self.is_process => cqe.byte_len.min(self.length),
            _ => cqe.byte_len,
        };
        let is_datagram = self.service == Service::Datagram && cqe.is_receive();
        Ok(Completion {
            status,
            operation,
            vendor_err: cqe.vendor_err,
            byte_len,
            extra: Extra::of(cqe),
            source: is_datagram.then(|| DatagramSource::of(cqe)),
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

impl Extra {
    /// The extra data of a CQE with status success.
    #[inline]
    fn of(cqe: &Cqe) -> Self {
        if cqe.wc_flags.contains(WcFlags::WITH_IMM) {
            Self::Immediate(cqe.ex)
        } else if cqe.wc_flags.contains(WcFlags::WITH_INVALIDATE) {
            Self::Invalidated(u32::from_le_bytes(cqe.ex))
        } else {
            Self::None
        }
    }
}

impl DatagramSource {
    /// The source of a received datagram.
    #[inline]
    fn of(cqe: &Cqe) -> Self {
        Self {
            qpn: cqe.src_qp,
            pkey_index: cqe.pkey_index,
            sl: cqe.priority(),
            has_grh: cqe.wc_flags.contains(WcFlags::GRH),
            vlan: cqe.vlan(),
        }
    }
}
