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

wire_struct! {
    /// A CQE: `struct virtio_rdma_cq_req`.
    pub struct Cqe: 38 {
        /// The `wr_id` of the work request.
        0 => wr_id: u64,
        /// Status, [`WcStatus`](super::ib::WcStatus).
        8 => status: u8,
        /// [`WrOpcode`](super::ib::WrOpcode) of a send work request, else [`OPCODE_RECV`] or
        /// [`OPCODE_RECV_RDMA_WITH_IMM`].
        9 => opcode: u8,
        /// Vendor error. For a datagram with [`WITH_VLAN`](WcFlags::WITH_VLAN), the VLAN id.
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
