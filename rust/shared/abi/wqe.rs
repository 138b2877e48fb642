// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Send and receive WQEs (RFC, "Send Queue Operation", "Receive Queue Operation").
//!
//! A send WQE is a [`SqHeader`] of 75 bytes, followed by SGEs. The header ends with a union of 51
//! bytes, whose member depends on opcode and QP type. Inline payload follows a single SGE `{0,
//! length, 0}`, at offset [`INLINE_OFFSET`].

use super::ib::{AccessFlags, FlushTypes, SendFlags};
use super::number::{MrNumber, Pdn, Qpn};
use super::wire::Wire;

/// Offset in bytes of the inline payload in a send WQE.
pub const INLINE_OFFSET: usize = SqHeader::SIZE + Sge::SIZE;

/// Length in bytes of a send WQE with `num_sge` SGEs.
#[inline]
pub const fn sq_wqe_size(num_sge: usize) -> usize {
    SqHeader::SIZE + num_sge * Sge::SIZE
}

/// Length in bytes of a receive WQE with `num_sge` SGEs.
#[inline]
pub const fn rq_wqe_size(num_sge: usize) -> usize {
    RqHeader::SIZE + num_sge * Sge::SIZE
}

wire_struct! {
    /// Scatter/gather element (RFC: `struct sge`).
    pub struct Sge: 16 {
        /// Address.
        0 => addr: u64,
        /// Length in bytes.
        8 => length: u32,
        /// Local key.
        12 => lkey: u32,
    }
}

wire_struct! {
    /// Start of a send WQE, before its SGEs (RFC: `struct cmd_post_send`).
    pub struct SqHeader: 75 {
        /// Number of SGEs that follow.
        0 => num_sge: u32,
        /// Flags.
        4 => send_flags: SendFlags,
        /// [`WrOpcode`](super::ib::WrOpcode).
        8 => opcode: u32,
        /// The `wr_id` of the work request.
        12 => wr_id: u64,
        /// Immediate data in network byte order, or the key to invalidate as le32.
        20 => ex: [u8; 4],
        /// The union; see [`Member`].
        24 => wr: [u8; 51],
    }
}

impl SqHeader {
    /// Offset of the union. Its bytes after the member are ignored.
    pub const UNION: usize = Self::SIZE - <[u8; 51] as Wire>::SIZE;
}

/// A member of the union at the end of [`SqHeader`].
pub trait Member: Wire {
    /// Writes the member into the union.
    #[inline]
    fn store(&self, union: &mut [u8; 51]) {
        self.put(&mut union[..Self::SIZE]);
    }
    /// Reads the union as this member.
    #[inline]
    fn load(union: &[u8; 51]) -> Self {
        Self::get(&union[..Self::SIZE])
    }
}

wire_struct! {
    /// `wr.rdma`: RDMA READ and WRITE.
    pub struct Rdma: 12 {
        /// Address in the remote MR.
        0 => remote_addr: u64,
        /// Remote key.
        8 => rkey: u32,
    }
}
impl Member for Rdma {}

wire_struct! {
    /// `wr.atomic`.
    pub struct Atomic: 28 {
        /// Address in the remote MR, aligned to 8 bytes.
        0 => remote_addr: u64,
        /// Value to compare with, or to add.
        8 => compare_add: u64,
        /// Value to swap in.
        16 => swap: u64,
        /// Remote key.
        24 => rkey: u32,
    }
}
impl Member for Atomic {}

wire_struct! {
    /// Address vector of a datagram (RFC: `struct virtio_rdma_av`).
    pub struct AddressVector: 43 {
        /// Port.
        0 => port: u32,
        /// PD of the address handle.
        4 => pdn: Pdn,
        /// `sl << 28 | traffic_class << 20 | flow_label`.
        8 => sl_tclass_flowlabel: u32,
        /// Destination GID, in network byte order.
        12 => dgid: [u8; 16],
        /// Index of the source GID.
        28 => gid_index: u8,
        /// Static rate.
        29 => static_rate: u8,
        /// Hop limit.
        30 => hop_limit: u8,
        /// MAC address of the next hop.
        31 => dmac: [u8; 6],
        /// Reserved, zero.
        37 => reserved: [u8; 6],
    }
}

impl AddressVector {
    /// The value of [`sl_tclass_flowlabel`](Self::sl_tclass_flowlabel), or `None` if the service
    /// level exceeds 4 bits or the flow label 20 bits.
    #[inline]
    pub const fn pack(sl: u8, traffic_class: u8, flow_label: u32) -> Option<u32> {
        if sl >> 4 != 0 || flow_label >> 20 != 0 {
            return None;
        }
        let high = u32::from_be_bytes([(sl << 4) | (traffic_class >> 4), traffic_class << 4, 0, 0]);
        Some(high | flow_label)
    }

    /// Service level.
    #[inline]
    pub const fn sl(&self) -> u8 {
        self.sl_tclass_flowlabel.to_be_bytes()[0] >> 4
    }

    /// Traffic class.
    #[inline]
    pub const fn traffic_class(&self) -> u8 {
        let bytes = self.sl_tclass_flowlabel.to_be_bytes();
        (bytes[0] << 4) | (bytes[1] >> 4)
    }

    /// Flow label.
    #[inline]
    pub const fn flow_label(&self) -> u32 {
        self.sl_tclass_flowlabel & 0x000f_ffff
    }
}

wire_struct! {
    /// `wr.ud`.
    pub struct Datagram: 51 {
        /// Destination QPN.
        0 => remote_qpn: Qpn,
        /// Q_Key. If its top bit is set, the QP's own Q_Key is used.
        4 => remote_qkey: u32,
        /// Path.
        8 => av: AddressVector,
    }
}
impl Member for Datagram {}

wire_struct! {
    /// `wr.reg`.
    pub struct Reg: 12 {
        /// MR.
        0 => mrn: MrNumber,
        /// The new key of the MR.
        4 => key: u32,
        /// The new access flags of the MR.
        8 => access: AccessFlags,
    }
}
impl Member for Reg {}

wire_struct! {
    /// `wr.reg` with [`Feature::RegPages`](super::feature::Feature::RegPages): the work request
    /// carries the page list. The list may be reused after the work request completes.
    pub struct RegPages: 45 {
        /// The RFC's fields.
        0 => base: Reg,
        /// DMA address of the page list: `npages` le64, each the DMA address of a page.
        12 => pages: u64,
        /// Number of pages.
        20 => npages: u32,
        /// Address of the first byte, as used in work requests. The first byte is at offset `iova %
        /// (1 << page_shift)` of the first page.
        24 => iova: u64,
        /// Length in bytes.
        32 => length: u64,
        /// Pages have 2ⁿ bytes. Must be a bit of `page_size_cap`.
        40 => page_shift: u8,
        /// Reserved, zero.
        41 => reserved: [u8; 4],
    }
}
impl Member for RegPages {}

wire_struct! {
    /// `wr.bind_mw` with [`Feature::MemWindows`](super::feature::Feature::MemWindows).
    pub struct BindMw: 36 {
        /// Address of the first byte in the MR.
        0 => addr: u64,
        /// Length in bytes; 0 unbinds a type 1 window.
        8 => length: u64,
        /// The window's current R_Key. For a type 2 window only bits 31–8 are used, since it is
        /// not bound.
        16 => mw_rkey: u32,
        /// The window's new R_Key, in which only bits 7–0 may differ.
        20 => rkey: u32,
        /// L_Key of the MR; ignored if `length` is 0.
        24 => lkey: u32,
        /// Access flags of the window: what peers may do, and whether its addresses start at 0.
        28 => access: AccessFlags,
        /// Reserved, zero.
        32 => reserved: [u8; 4],
    }
}
impl Member for BindMw {}

wire_struct! {
    /// `wr.atomic_write` with [`Feature::AtomicWrite`](super::feature::Feature::AtomicWrite).
    pub struct AtomicWrite: 20 {
        /// Address in the remote MR, aligned to 8 bytes.
        0 => remote_addr: u64,
        /// The data to write, in memory order.
        8 => data: [u8; 8],
        /// Remote key.
        16 => rkey: u32,
    }
}
impl Member for AtomicWrite {}

wire_struct! {
    /// `wr.flush` with [`Feature::Flush`](super::feature::Feature::Flush).
    pub struct Flush: 24 {
        /// Address in the remote MR.
        0 => remote_addr: u64,
        /// Length in bytes; ignored if the whole MR is flushed.
        8 => length: u32,
        /// Remote key.
        12 => rkey: u32,
        /// The actions.
        16 => types: FlushTypes,
        /// [`FlushLevel`](super::ib::FlushLevel).
        17 => level: u8,
        /// Reserved, zero.
        18 => reserved: [u8; 6],
    }
}
impl Member for Flush {}

wire_struct! {
    /// Start of a receive WQE, before its SGEs (RFC: `struct cmd_post_recv`).
    pub struct RqHeader: 12 {
        /// Number of SGEs that follow.
        0 => num_sge: u32,
        /// The `wr_id` of the work request.
        4 => wr_id: u64,
    }
}
