// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Completion queue elements (RFC, "Complete Queue Operation").

use super::ib::{WcFlags, MAX_VLAN};
use super::number::Qpn;

/// `opcode` of a receive completed by a SEND.
pub const OPCODE_RECV: u8 = 0x80;
/// `opcode` of a receive completed by an RDMA WRITE with immediate data.
pub const OPCODE_RECV_RDMA_WITH_IMM: u8 = 0x81;
/// Slot shift of a CQ: each CQE has a slot of 64 bytes.
pub const CQ_SLOT_SHIFT: u8 = 6;

wire_enum! {
    /// Why a work request failed: `vendor_err` of a CQE with an error.
    pub enum WcReason: u8 {
        /// The work request was flushed.
        Flushed = 1,
        /// No operation has this opcode.
        UnknownOpcode = 2,
        /// The QP's type, its owner or the negotiated features do not permit the operation.
        OpcodeNotPermitted = 3,
        /// The WQE has more SGEs than the QP or SRQ permits.
        TooManySges = 4,
        /// The WQE is longer than its buffer (virtqueue mode).
        ShortWqe = 5,
        /// Inline data with more than one SGE, or with an operation that stores data.
        BadInline = 6,
        /// The fields of a FLUSH are undefined.
        BadFlush = 7,
        /// `max_rd_atomic` of the QP is 0.
        NoReads = 8,
        /// The address vector of a datagram is invalid.
        BadAddress = 9,
        /// The inline data is longer than the QP permits.
        InlineTooLong = 10,
        /// The message is longer than a message or a datagram may be.
        MessageTooLong = 11,
        /// The local memory of an atomic operation does not have 8 bytes.
        BadAtomicLength = 12,
        /// The message is longer than its receive.
        ReceiveTooShort = 13,
        /// A response to a READ has another length.
        BadResponseLength = 14,
        /// A response does not fit the request.
        UnexpectedResponse = 15,
        /// No MR or window has this key.
        NoSuchKey = 16,
        /// The MR or window is of another PD.
        OtherPd = 17,
        /// The key is not valid: it was revoked or invalidated, or is not registered or bound yet.
        KeyRevoked = 18,
        /// The range is not inside the MR or window.
        OutOfBounds = 19,
        /// The MR lacks an access flag.
        AccessNotGranted = 20,
        /// The window is bound for another QP.
        OtherQp = 21,
        /// The VM has no memory at an address of the MR.
        NoMemory = 22,
        /// The MR or window is not for this operation.
        UnsuitableKey = 23,
        /// The MR is registered or the window bound already.
        KeyInUse = 24,
        /// The new key is of another MR or window.
        KeyMismatch = 25,
        /// The requested access flags are undefined or not possible.
        BadAccessFlags = 26,
        /// The pages of a registration are invalid.
        BadPages = 27,
        /// Reserved bytes are not 0.
        ReservedNotZero = 28,
        /// The peer's QP does not admit the operation.
        PeerInvalidRequest = 29,
        /// The peer refused the R_Key or its range.
        PeerAccess = 30,
        /// The peer failed to execute the request.
        PeerOperation = 31,
        /// The peer did not answer, and no retry is left.
        PeerSilent = 32,
        /// The peer had no receive, and no RNR retry is left.
        PeerNotReady = 33,
    }
}

wire_struct! {
    /// Completion queue entry (RFC: `struct virtio_rdma_cq_req`).
    pub struct Cqe: 38 {
        /// The `wr_id` of the work request.
        0 => wr_id: u64,
        /// Status, [`WcStatus`](super::ib::WcStatus).
        8 => status: u8,
        /// [`WrOpcode`](super::ib::WrOpcode) of a send work request, else [`OPCODE_RECV`] or
        /// [`OPCODE_RECV_RDMA_WITH_IMM`].
        9 => opcode: u8,
        /// [`WcReason`] if the status is an error. For a datagram with
        /// [`WITH_VLAN`](WcFlags::WITH_VLAN), the VLAN id; otherwise 0.
        10 => vendor_err: u32,
        /// Bytes transferred.
        14 => byte_len: u32,
        /// Immediate data in network byte order, or the invalidated key as le32.
        18 => ex: [u8; 4],
        /// QPN of the QP whose work request completed.
        22 => qp_num: Qpn,
        /// QPN of the sender (UD only).
        26 => src_qp: Qpn,
        /// Flags.
        30 => wc_flags: WcFlags,
        /// P_Key index.
        34 => pkey_index: u16,
        /// Service level, that is, the priority in the VLAN tag. With
        /// [`WITH_NETWORK_HDR_TYPE`](WcFlags::WITH_NETWORK_HDR_TYPE), the network header type
        /// instead.
        36 => sl: u8,
        /// Port.
        37 => port_num: u8,
    }
}

impl Cqe {
    /// Whether this is the CQE of a receive.
    #[inline]
    pub fn is_receive(&self) -> bool {
        self.opcode & OPCODE_RECV != 0
    }

    /// VLAN id of a received datagram, if it was tagged.
    #[inline]
    pub fn vlan(&self) -> Option<u16> {
        let vlan = u16::try_from(self.vendor_err).ok()?;
        (self.wc_flags.contains(WcFlags::WITH_VLAN) && vlan <= MAX_VLAN).then_some(vlan)
    }

    /// Service level of a received datagram: the priority in its VLAN tag, or 0 if it was untagged.
    #[inline]
    pub fn priority(&self) -> u8 {
        match self.wc_flags.contains(WcFlags::WITH_NETWORK_HDR_TYPE) {
            true => 0,
            false => self.sl,
        }
    }

    /// Records the VLAN of a received datagram.
    #[inline]
    pub fn set_vlan(&mut self, vlan: u16) {
        self.wc_flags = self.wc_flags | WcFlags::WITH_VLAN;
        self.vendor_err = vlan.into();
    }
}
