// SPDX-License-Identifier: GPL-2.0

//! Attributes of queue pairs.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    qp::{
        Qp,
        QpType,
        QueuePairs, //
    },
    Udata, //
};
use crate::bindings;
use core::mem::MaybeUninit;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// A device that can change attributes and states of queue pairs.
///
/// # Examples
///
/// ```
/// use crate::rdma::{
///     qp::Qp,
///     qp_attr::{AhAttr, ModifyQueuePairs, QpAttr},
/// };
///
/// /// The path of a QP that has one.
/// fn path<T: ModifyQueuePairs>(qp: &Qp<T>) -> Result<Option<AhAttr>> {
///     let attr: QpAttr = T::query_qp(qp)?;
///     Ok((attr.dest_qp_num != 0).then_some(attr.ah_attr))
/// }
/// ```
pub trait ModifyQueuePairs: QueuePairs {
    /// Changes attributes and state of a QP. `udata` is `Some` if a process calls. Calls for one QP
    /// may run concurrently.
    fn modify_qp(
        qp: &Qp<Self>,
        modification: &QpModification<'_>,
        udata: Option<&Udata<'_>>,
    ) -> Result;

    /// Attributes and state of a QP.
    fn query_qp(qp: &Qp<Self>) -> Result<QpAttr>;
}

core_enum! {
    /// States of a QP (IBTA 10.3.1).
    #[allow(missing_docs)]
    QpState: ib_qp_state else EINVAL {
        Reset = ib_qp_state_IB_QPS_RESET,
        Init = ib_qp_state_IB_QPS_INIT,
        Rtr = ib_qp_state_IB_QPS_RTR,
        Rts = ib_qp_state_IB_QPS_RTS,
        Sqd = ib_qp_state_IB_QPS_SQD,
        Sqe = ib_qp_state_IB_QPS_SQE,
        Err = ib_qp_state_IB_QPS_ERR,
    }
}

/// Bits of `enum ib_qp_attr_mask`: attributes that a modification changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttrMask(pub u32);

impl QpAttrMask {
    /// Access flags of the peer.
    pub const ACCESS_FLAGS: Self = Self(bindings::ib_qp_attr_mask_IB_QP_ACCESS_FLAGS);
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
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    /// Maximum length of inline data in bytes.
    pub max_inline_data: u32,
}

macro_rules! copy_cap {
    ($from:expr => $to:expr) => {
        copy_fields!($from => $to; max_send_wr, max_recv_wr, max_send_sge, max_recv_sge,
            max_inline_data);
    };
}

impl QpCap {
    pub(super) fn from_raw(raw: &bindings::ib_qp_cap) -> Self {
        let mut cap = Self::default();
        copy_cap!(raw => cap);
        cap
    }

    pub(super) fn write(&self, raw: &mut bindings::ib_qp_cap) {
        copy_cap!(self => raw);
    }
}

/// The path to a peer on Ethernet: `struct rdma_ah_attr`.
#[allow(missing_docs)]
#[derive(Clone, Copy, Default)]
pub struct AhAttr {
    /// Destination GID in network byte order.
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub sl: u8,
    pub static_rate: u8,
    pub port_num: u32,
    /// MAC address of the next hop.
    pub dmac: [u8; 6],
}

impl AhAttr {
    /// Mask of the 20 bits of a flow label.
    const FLOW_LABEL: u32 = 0xf_ffff;

    /// Converts a path, which must have a global route and belong to an Ethernet port.
    ///
    /// The flow label is truncated to 20 bits, as hardware does: UCX passes all ones.
    ///
    /// # Safety
    ///
    /// `raw` points to a path. Its flags, its type and the fields that both imply are initialized.
    pub(super) unsafe fn from_raw(raw: *const bindings::rdma_ah_attr) -> Result<Self> {
        // SAFETY: `raw` points to a path whose flags and type are initialized.
        let (flags, kind) = unsafe { ((*raw).ah_flags, (*raw).type_) };
        let has_route = u32::from(flags) & bindings::ib_ah_flags_IB_AH_GRH != 0;
        if !has_route || kind != bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_ROCE {
            return Err(EINVAL);
        }
        let mut attr = Self::default();
        // SAFETY: The fields that flags and type imply are initialized. The flags say that the path
        // has a global route, and the type says that the path has a MAC address.
        unsafe {
            attr.dgid = (*raw).grh.dgid.raw;
            attr.flow_label = (*raw).grh.flow_label & Self::FLOW_LABEL;
            attr.dmac = (*raw).__bindgen_anon_1.roce.dmac;
            copy_fields!((*raw).grh => attr; sgid_index, hop_limit, traffic_class);
            copy_fields!((*raw) => attr; sl, static_rate, port_num);
        }
        Ok(attr)
    }

    pub(super) fn write(&self, raw: &mut bindings::rdma_ah_attr) {
        // CAST: The flag is 1.
        raw.ah_flags = bindings::ib_ah_flags_IB_AH_GRH as u8;
        raw.type_ = bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_ROCE;
        raw.grh.dgid.raw = self.dgid;
        copy_fields!(self => raw.grh; flow_label, sgid_index, hop_limit, traffic_class);
        copy_fields!(self => raw; sl, static_rate, port_num);
        raw.__bindgen_anon_1.roce.dmac = self.dmac;
    }
}

/// All attributes of a QP, the answer of a query: `struct ib_qp_attr` without alternate paths,
/// which Ethernet does not have. A change of attributes is a [`QpModification`].
#[allow(missing_docs)]
#[derive(Clone, Copy, Default)]
pub struct QpAttr {
    /// `enum ib_qp_state`.
    pub qp_state: u32,
    /// `enum ib_qp_state`.
    pub cur_qp_state: u32,
    /// `enum ib_mtu`.
    pub path_mtu: u32,
    /// `enum ib_mig_state`.
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    /// Bits of `enum ib_access_flags`.
    pub qp_access_flags: u32,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub pkey_index: u16,
    pub en_sqd_async_notify: bool,
    pub sq_draining: bool,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u32,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    /// Rate limit in kb/s.
    pub rate_limit: u32,
}

impl QpAttr {
    /// Converts the attributes for the result of a query.
    fn write(&self, raw: &mut bindings::ib_qp_attr) {
        raw.qp_access_flags = c_int::from_ne_bytes(self.qp_access_flags.to_ne_bytes());
        self.cap.write(&mut raw.cap);
        self.ah_attr.write(&mut raw.ah_attr);
        raw.en_sqd_async_notify = self.en_sqd_async_notify.into();
        raw.sq_draining = self.sq_draining.into();
        copy_fields!(self => raw; qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn,
            sq_psn, dest_qp_num, pkey_index, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer,
            port_num, timeout, retry_cnt, rnr_retry, rate_limit);
    }
}

/// A change of attributes and usually of the state.
///
/// An attribute can be read only if the [mask](Self::mask) names it. Kernel clients leave the
/// other attributes uninitialized.
///
/// # Examples
///
/// ```
/// use crate::rdma::{
///     qp::QpType,
///     qp_attr::{QpAttrMask, QpModification, QpState},
/// };
///
/// /// The PSN of the first packet of a QP that becomes ready to send.
/// fn to_rts(modification: &QpModification<'_>, state: QpState) -> Result<u32> {
///     match modification.transition(state, QpType::Rc)? {
///         (_, QpState::Rts) => modification.sq_psn().ok_or(EINVAL),
///         _ => Err(EOPNOTSUPP),
///     }
/// }
///
/// /// Whether a modification changes nothing but the state.
/// fn is_plain(modification: &QpModification<'_>) -> bool {
///     modification.mask() == QpAttrMask::STATE
/// }
/// ```
///
/// # Invariants
///
/// The attributes that `mask` names are initialized in `raw`.
pub struct QpModification<'a> {
    raw: &'a MaybeUninit<bindings::ib_qp_attr>,
    mask: QpAttrMask,
}

impl<'a> QpModification<'a> {
    /// # Safety
    ///
    /// The attributes that `mask` names are initialized in `raw`.
    pub(super) unsafe fn new(raw: &'a MaybeUninit<bindings::ib_qp_attr>, mask: u32) -> Self {
        // INVARIANT: The attributes that `mask` names are initialized in `raw`.
        Self {
            raw,
            mask: QpAttrMask(mask),
        }
    }

    /// The attributes to change.
    pub fn mask(&self) -> QpAttrMask {
        self.mask
    }

    /// The new access flags of the peer, bits of `enum ib_access_flags`, if the mask names them.
    pub fn qp_access_flags(&self) -> Option<u32> {
        if !self.mask.contains(QpAttrMask::ACCESS_FLAGS) {
            return None;
        }
        // SAFETY: By the type invariants, since the mask names the attribute.
        let flags = unsafe { (*self.raw.as_ptr()).qp_access_flags };
        Some(u32::from_ne_bytes(flags.to_ne_bytes()))
    }

    /// The new path, if the mask names it.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a path without global route, or to another kind of port than Ethernet.
    pub fn ah_attr(&self) -> Result<Option<AhAttr>> {
        if !self.mask.contains(QpAttrMask::PATH) {
            return Ok(None);
        }
        // SAFETY: By the type invariants, since the mask names the attribute.
        unsafe { AhAttr::from_raw(&raw const (*self.raw.as_ptr()).ah_attr) }.map(Some)
    }

    /// The states before and after the modification of a QP in `state`, if the IBTA allows it.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the transition does not exist, a required attribute is missing, or an attribute
    /// is not allowed.
    pub fn transition(&self, state: QpState, qp_type: QpType) -> Result<(QpState, QpState)> {
        let from = self.cur_qp_state().map_or(Ok(state), QpState::try_from)?;
        let to = self.qp_state().map_or(Ok(from), QpState::try_from)?;
        // SAFETY: The function has no requirements; it only compares its arguments.
        let allowed = unsafe {
            bindings::ib_modify_qp_is_ok(from as u32, to as u32, qp_type as u32, self.mask.0)
        };
        allowed.then_some((from, to)).ok_or(EINVAL)
    }
}

/// Declares the attributes that need no conversion: a bit of the mask and an accessor for each.
macro_rules! attributes {
    ($($(#[$meta:meta])* $bit:ident = $raw_bit:ident: $field:ident -> $type:ty;)*) => {
        impl QpAttrMask {
            $(
                $(#[$meta])*
                pub const $bit: Self = Self(bindings::$raw_bit);
            )*
        }

        impl QpModification<'_> {
            $(
                $(#[$meta])*
                ///
                /// `None` unless the mask names the attribute.
                pub fn $field(&self) -> Option<$type> {
                    if !self.mask.contains(QpAttrMask::$bit) {
                        return None;
                    }
                    // SAFETY: By the type invariants, since the mask names the attribute.
                    Some(unsafe { (*self.raw.as_ptr()).$field })
                }
            )*
        }
    };
}

attributes! {
    /// The state, `enum ib_qp_state`.
    STATE = ib_qp_attr_mask_IB_QP_STATE: qp_state -> u32;
    /// The state that the consumer assumes the QP to be in, `enum ib_qp_state`.
    CUR_STATE = ib_qp_attr_mask_IB_QP_CUR_STATE: cur_qp_state -> u32;
    /// Whether the consumer gets an event when the send queue is drained: not 0 for yes.
    EN_SQD_ASYNC_NOTIFY = ib_qp_attr_mask_IB_QP_EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify -> u8;
    /// Index of the P_Key.
    PKEY_INDEX = ib_qp_attr_mask_IB_QP_PKEY_INDEX: pkey_index -> u16;
    /// Number of the port.
    PORT = ib_qp_attr_mask_IB_QP_PORT: port_num -> u32;
    /// The Q_Key.
    QKEY = ib_qp_attr_mask_IB_QP_QKEY: qkey -> u32;
    /// The path MTU, `enum ib_mtu`.
    PATH_MTU = ib_qp_attr_mask_IB_QP_PATH_MTU: path_mtu -> u32;
    /// Exponent of the time after which an unacknowledged packet is sent again.
    TIMEOUT = ib_qp_attr_mask_IB_QP_TIMEOUT: timeout -> u8;
    /// Number of retries without an acknowledgment.
    RETRY_CNT = ib_qp_attr_mask_IB_QP_RETRY_CNT: retry_cnt -> u8;
    /// Number of retries while the peer has no receive work request.
    RNR_RETRY = ib_qp_attr_mask_IB_QP_RNR_RETRY: rnr_retry -> u8;
    /// The PSN that the QP expects first.
    RQ_PSN = ib_qp_attr_mask_IB_QP_RQ_PSN: rq_psn -> u32;
    /// Number of RDMA READs and atomic operations that the QP has outstanding.
    MAX_QP_RD_ATOMIC = ib_qp_attr_mask_IB_QP_MAX_QP_RD_ATOMIC: max_rd_atomic -> u8;
    /// Code of the time that the peer waits while the QP has no receive work request.
    MIN_RNR_TIMER = ib_qp_attr_mask_IB_QP_MIN_RNR_TIMER: min_rnr_timer -> u8;
    /// The PSN that the QP sends first.
    SQ_PSN = ib_qp_attr_mask_IB_QP_SQ_PSN: sq_psn -> u32;
    /// Number of RDMA READs and atomic operations that the peer may have outstanding.
    MAX_DEST_RD_ATOMIC = ib_qp_attr_mask_IB_QP_MAX_DEST_RD_ATOMIC: max_dest_rd_atomic -> u8;
    /// The migration state, `enum ib_mig_state`.
    PATH_MIG_STATE = ib_qp_attr_mask_IB_QP_PATH_MIG_STATE: path_mig_state -> u32;
    /// QPN of the peer.
    DEST_QPN = ib_qp_attr_mask_IB_QP_DEST_QPN: dest_qp_num -> u32;
    /// The rate limit in kb/s.
    RATE_LIMIT = ib_qp_attr_mask_IB_QP_RATE_LIMIT: rate_limit -> u32;
}

/// # Safety
///
/// Called by the core as `modify_qp` of a device of `T`: `qp` is created, `attr` allocated and
/// initialized where `mask` says so, `udata` null or valid.
pub(super) unsafe extern "C" fn modify<T: ModifyQueuePairs>(
    qp: *mut bindings::ib_qp,
    attr: *mut bindings::ib_qp_attr,
    mask: c_int,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: `qp` is created, and `udata` is null or valid.
        let (qp, udata) = unsafe { (Qp::<T>::from_raw(qp), Udata::from_raw(udata)?) };
        let mask = u32::try_from(mask)?;
        // SAFETY: `attr` is allocated, and initialized where `mask` says so.
        let modification = unsafe { QpModification::new(&*attr.cast(), mask) };
        T::modify_qp(qp, &modification, udata.as_ref())?;
        Ok(0)
    })
}

/// # Safety
///
/// Called by the core as `query_qp` of a device of `T`: `raw` is created, `attr` and `init` are
/// writable and may be uninitialized.
pub(super) unsafe extern "C" fn query<T: ModifyQueuePairs>(
    raw: *mut bindings::ib_qp,
    attr: *mut bindings::ib_qp_attr,
    _mask: c_int,
    init: *mut bindings::ib_qp_init_attr,
) -> c_int {
    from_result(|| {
        // SAFETY: `raw` is created.
        let qp = unsafe { Qp::<T>::from_raw(raw) };
        let attributes = T::query_qp(qp)?;
        // SAFETY: `attr` and `init` are writable. Zeroes are a valid value of both structures. All
        // bytes are written, since all reach user space, even those of alternate paths, which do
        // not exist on Ethernet.
        unsafe {
            attr.write_bytes(0, 1);
            init.write_bytes(0, 1);
            attributes.write(&mut *attr);
            attributes.cap.write(&mut (*init).cap);
            (*init).qp_type = (*raw).qp_type;
            (*init).qp_context = (*raw).qp_context;
            (*init).send_cq = (*raw).send_cq;
            (*init).recv_cq = (*raw).recv_cq;
            (*init).srq = (*raw).srq;
            (*init).sq_sig_type = if qp.own().signal_all {
                bindings::ib_sig_type_IB_SIGNAL_ALL_WR
            } else {
                bindings::ib_sig_type_IB_SIGNAL_REQ_WR
            };
        }
        Ok(0)
    })
}
