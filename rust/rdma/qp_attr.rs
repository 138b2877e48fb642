// SPDX-License-Identifier: GPL-2.0

//! Attributes of queue pairs.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::qp::QpType;
use crate::bindings;
use kernel::prelude::*;

/// States of a QP (IBTA 10.3.1).
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpState {
    Reset,
    Init,
    Rtr,
    Rts,
    Sqd,
    Sqe,
    Err,
}

impl QpState {
    /// The value of `enum ib_qp_state`.
    pub const fn as_raw(self) -> bindings::ib_qp_state {
        match self {
            Self::Reset => bindings::ib_qp_state_IB_QPS_RESET,
            Self::Init => bindings::ib_qp_state_IB_QPS_INIT,
            Self::Rtr => bindings::ib_qp_state_IB_QPS_RTR,
            Self::Rts => bindings::ib_qp_state_IB_QPS_RTS,
            Self::Sqd => bindings::ib_qp_state_IB_QPS_SQD,
            Self::Sqe => bindings::ib_qp_state_IB_QPS_SQE,
            Self::Err => bindings::ib_qp_state_IB_QPS_ERR,
        }
    }
}

impl TryFrom<bindings::ib_qp_state> for QpState {
    type Error = Error;

    fn try_from(value: bindings::ib_qp_state) -> Result<Self> {
        match value {
            bindings::ib_qp_state_IB_QPS_RESET => Ok(Self::Reset),
            bindings::ib_qp_state_IB_QPS_INIT => Ok(Self::Init),
            bindings::ib_qp_state_IB_QPS_RTR => Ok(Self::Rtr),
            bindings::ib_qp_state_IB_QPS_RTS => Ok(Self::Rts),
            bindings::ib_qp_state_IB_QPS_SQD => Ok(Self::Sqd),
            bindings::ib_qp_state_IB_QPS_SQE => Ok(Self::Sqe),
            bindings::ib_qp_state_IB_QPS_ERR => Ok(Self::Err),
            _ => Err(EINVAL),
        }
    }
}

/// Bits of `enum ib_qp_attr_mask`: attributes that a modification changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttributeMask(pub u32);

impl QpAttributeMask {
    /// The state.
    pub const STATE: Self = Self(bindings::ib_qp_attr_mask_IB_QP_STATE);
    /// The state that the QP is in, as its owner believes.
    pub const CURRENT_STATE: Self = Self(bindings::ib_qp_attr_mask_IB_QP_CUR_STATE);
    /// The primary path.
    pub const PATH: Self = Self(bindings::ib_qp_attr_mask_IB_QP_AV);

    /// Whether all bits of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Sizes of a QP: `struct ib_qp_cap`.
#[allow(missing_docs)]
#[derive(Clone, Copy, Default)]
pub struct QpCapabilities {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    /// Bytes.
    pub max_inline_data: u32,
}

impl QpCapabilities {
    pub(super) const fn from_raw(raw: &bindings::ib_qp_cap) -> Self {
        Self {
            max_send_wr: raw.max_send_wr,
            max_recv_wr: raw.max_recv_wr,
            max_send_sge: raw.max_send_sge,
            max_recv_sge: raw.max_recv_sge,
            max_inline_data: raw.max_inline_data,
        }
    }

    pub(super) fn write(&self, raw: &mut bindings::ib_qp_cap) {
        raw.max_send_wr = self.max_send_wr;
        raw.max_recv_wr = self.max_recv_wr;
        raw.max_send_sge = self.max_send_sge;
        raw.max_recv_sge = self.max_recv_sge;
        raw.max_inline_data = self.max_inline_data;
    }
}

/// The path to a peer on Ethernet: `struct rdma_ah_attr`.
#[allow(missing_docs)]
#[derive(Clone, Copy, Default)]
pub struct Path {
    /// In network byte order.
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub sl: u8,
    pub static_rate: u8,
    pub port: u32,
    /// MAC address of the next hop.
    pub dmac: [u8; 6],
}

impl Path {
    /// A flow label has 20 bits.
    const FLOW_LABEL: u32 = 0xf_ffff;

    /// Reads a path that is to be used, which must have a global route and lead over Ethernet.
    ///
    /// The flow label is cut to its bits, as hardware does: UCX asks for all ones.
    pub(super) fn from_raw(raw: &bindings::rdma_ah_attr) -> Result<Self> {
        let has_route = u32::from(raw.ah_flags) & bindings::ib_ah_flags_IB_AH_GRH != 0;
        if !has_route || raw.type_ != bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_ROCE {
            return Err(EINVAL);
        }
        Ok(Self {
            // SAFETY: All bytes of a GID are initialised.
            dgid: unsafe { raw.grh.dgid.raw },
            flow_label: raw.grh.flow_label & Self::FLOW_LABEL,
            sgid_index: raw.grh.sgid_index,
            hop_limit: raw.grh.hop_limit,
            traffic_class: raw.grh.traffic_class,
            sl: raw.sl,
            static_rate: raw.static_rate,
            port: raw.port_num,
            // SAFETY: The type says that this member of the union is active.
            dmac: unsafe { raw.__bindgen_anon_1.roce.dmac },
        })
    }

    pub(super) fn write(&self, raw: &mut bindings::rdma_ah_attr) {
        // The flag is 1.
        raw.ah_flags = bindings::ib_ah_flags_IB_AH_GRH as u8;
        raw.type_ = bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_ROCE;
        raw.grh.dgid.raw = self.dgid;
        raw.grh.flow_label = self.flow_label;
        raw.grh.sgid_index = self.sgid_index;
        raw.grh.hop_limit = self.hop_limit;
        raw.grh.traffic_class = self.traffic_class;
        raw.sl = self.sl;
        raw.static_rate = self.static_rate;
        raw.port_num = self.port;
        raw.__bindgen_anon_1.roce.dmac = self.dmac;
    }
}

/// Attributes of a QP: `struct ib_qp_attr` without alternate paths, which Ethernet has not. Of a
/// modification, only those that its mask names mean anything.
#[allow(missing_docs)]
#[derive(Clone, Copy, Default)]
pub struct QpAttributes {
    /// `enum ib_qp_state`.
    pub state: u32,
    /// `enum ib_qp_state`.
    pub current_state: u32,
    /// `enum ib_mtu`.
    pub path_mtu: u32,
    /// `enum ib_mig_state`.
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    /// Bits of `enum ib_access_flags`.
    pub access_flags: u32,
    pub capabilities: QpCapabilities,
    pub path: Path,
    pub pkey_index: u16,
    pub en_sqd_async_notify: bool,
    pub sq_draining: bool,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port: u32,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    /// kb/s.
    pub rate_limit: u32,
}

impl QpAttributes {
    /// Reads what a consumer wants, without the path.
    fn from_raw(raw: &bindings::ib_qp_attr) -> Result<Self> {
        Ok(Self {
            state: raw.qp_state,
            current_state: raw.cur_qp_state,
            path_mtu: raw.path_mtu,
            path_mig_state: raw.path_mig_state,
            qkey: raw.qkey,
            rq_psn: raw.rq_psn,
            sq_psn: raw.sq_psn,
            dest_qp_num: raw.dest_qp_num,
            access_flags: u32::try_from(raw.qp_access_flags)?,
            capabilities: QpCapabilities::from_raw(&raw.cap),
            path: Path::default(),
            pkey_index: raw.pkey_index,
            en_sqd_async_notify: raw.en_sqd_async_notify != 0,
            sq_draining: false,
            max_rd_atomic: raw.max_rd_atomic,
            max_dest_rd_atomic: raw.max_dest_rd_atomic,
            min_rnr_timer: raw.min_rnr_timer,
            port: raw.port_num,
            timeout: raw.timeout,
            retry_cnt: raw.retry_cnt,
            rnr_retry: raw.rnr_retry,
            rate_limit: raw.rate_limit,
        })
    }

    /// Fills in the answer to a query.
    pub(super) fn write(&self, raw: &mut bindings::ib_qp_attr) {
        raw.qp_state = self.state;
        raw.cur_qp_state = self.current_state;
        raw.path_mtu = self.path_mtu;
        raw.path_mig_state = self.path_mig_state;
        raw.qkey = self.qkey;
        raw.rq_psn = self.rq_psn;
        raw.sq_psn = self.sq_psn;
        raw.dest_qp_num = self.dest_qp_num;
        raw.qp_access_flags = c_int::from_ne_bytes(self.access_flags.to_ne_bytes());
        self.capabilities.write(&mut raw.cap);
        self.path.write(&mut raw.ah_attr);
        raw.pkey_index = self.pkey_index;
        raw.en_sqd_async_notify = self.en_sqd_async_notify.into();
        raw.sq_draining = self.sq_draining.into();
        raw.max_rd_atomic = self.max_rd_atomic;
        raw.max_dest_rd_atomic = self.max_dest_rd_atomic;
        raw.min_rnr_timer = self.min_rnr_timer;
        raw.port_num = self.port;
        raw.timeout = self.timeout;
        raw.retry_cnt = self.retry_cnt;
        raw.rnr_retry = self.rnr_retry;
        raw.rate_limit = self.rate_limit;
    }
}

/// A change of attributes and, mostly, of the state.
pub struct QpModification<'a> {
    raw: &'a bindings::ib_qp_attr,
    mask: QpAttributeMask,
}

impl<'a> QpModification<'a> {
    pub(super) fn new(raw: &'a bindings::ib_qp_attr, mask: u32) -> Self {
        Self {
            raw,
            mask: QpAttributeMask(mask),
        }
    }

    /// The attributes to change.
    pub fn mask(&self) -> QpAttributeMask {
        self.mask
    }

    /// The new values.
    pub fn attributes(&self) -> Result<QpAttributes> {
        let mut attributes = QpAttributes::from_raw(self.raw)?;
        if self.mask.contains(QpAttributeMask::PATH) {
            attributes.path = Path::from_raw(&self.raw.ah_attr)?;
        }
        Ok(attributes)
    }

    /// The state before and after, if the modification is one that the IBTA allows a QP in `state`
    /// to make.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the transition does not exist, or a necessary attribute is missing, or one is
    /// not allowed.
    pub fn transition(&self, state: QpState, qp_type: QpType) -> Result<(QpState, QpState)> {
        let from = if self.mask.contains(QpAttributeMask::CURRENT_STATE) {
            QpState::try_from(self.raw.cur_qp_state)?
        } else {
            state
        };
        let to = if self.mask.contains(QpAttributeMask::STATE) {
            QpState::try_from(self.raw.qp_state)?
        } else {
            from
        };
        // SAFETY: The function only looks at its arguments.
        let allowed = unsafe {
            bindings::ib_modify_qp_is_ok(from.as_raw(), to.as_raw(), qp_type.as_raw(), self.mask.0)
        };
        allowed.then_some((from, to)).ok_or(EINVAL)
    }
}
