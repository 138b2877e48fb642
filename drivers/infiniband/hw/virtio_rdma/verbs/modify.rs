// SPDX-License-Identifier: GPL-2.0

//! Attributes and states of queue pairs.

use super::{
    device::IbDevice,
    mr,
    port_state,
    rate_limit, //
};
use crate::{
    abi::{
        ctrl::{
            CmdModifyQp,
            CmdQueryQp, //
        },
        feature::Feature,
        ib::{
            self,
            AhFlags,
            MigState,
            Mtu, //
        },
        number::Qpn,
        qp::{
            self,
            GlobalRoute, //
        },
        uverbs::ModifyQpReq, //
    },
    ctrl::Failure,
    decode,
    device::Device,
    rdma::{
        self,
        event::QpEvent,
        qp_attr::{
            AhAttr,
            ModifyQueuePairs,
            QpAttr,
            QpCap,
            QpModification,
            QpState, //
        },
        Udata, //
    }, //
};
use kernel::prelude::*;

/// Attributes that QPs of this device do not support. Reserved bits are included, since the kernel
/// may give them any meaning.
const UNSUPPORTED: ib::QpAttrMask = ib::QpAttrMask(
    ib::QpAttrMask::CAP.0
        | ib::QpAttrMask::ALT_PATH.0
        | ib::QpAttrMask::RESERVED1.0
        | ib::QpAttrMask::RESERVED2.0
        | ib::QpAttrMask::RESERVED3.0
        | ib::QpAttrMask::RESERVED4.0,
);

assert_same! {
    ib::QpAttrMask::STATE.0 => ib_qp_attr_mask_IB_QP_STATE,
    ib::QpAttrMask::CUR_STATE.0 => ib_qp_attr_mask_IB_QP_CUR_STATE,
    ib::QpAttrMask::EN_SQD_ASYNC_NOTIFY.0 => ib_qp_attr_mask_IB_QP_EN_SQD_ASYNC_NOTIFY,
    ib::QpAttrMask::ACCESS_FLAGS.0 => ib_qp_attr_mask_IB_QP_ACCESS_FLAGS,
    ib::QpAttrMask::PKEY_INDEX.0 => ib_qp_attr_mask_IB_QP_PKEY_INDEX,
    ib::QpAttrMask::PORT.0 => ib_qp_attr_mask_IB_QP_PORT,
    ib::QpAttrMask::QKEY.0 => ib_qp_attr_mask_IB_QP_QKEY,
    ib::QpAttrMask::AV.0 => ib_qp_attr_mask_IB_QP_AV,
    ib::QpAttrMask::PATH_MTU.0 => ib_qp_attr_mask_IB_QP_PATH_MTU,
    ib::QpAttrMask::TIMEOUT.0 => ib_qp_attr_mask_IB_QP_TIMEOUT,
    ib::QpAttrMask::RETRY_CNT.0 => ib_qp_attr_mask_IB_QP_RETRY_CNT,
    ib::QpAttrMask::RNR_RETRY.0 => ib_qp_attr_mask_IB_QP_RNR_RETRY,
    ib::QpAttrMask::RQ_PSN.0 => ib_qp_attr_mask_IB_QP_RQ_PSN,
    ib::QpAttrMask::MAX_QP_RD_ATOMIC.0 => ib_qp_attr_mask_IB_QP_MAX_QP_RD_ATOMIC,
    ib::QpAttrMask::ALT_PATH.0 => ib_qp_attr_mask_IB_QP_ALT_PATH,
    ib::QpAttrMask::MIN_RNR_TIMER.0 => ib_qp_attr_mask_IB_QP_MIN_RNR_TIMER,
    ib::QpAttrMask::SQ_PSN.0 => ib_qp_attr_mask_IB_QP_SQ_PSN,
    ib::QpAttrMask::MAX_DEST_RD_ATOMIC.0 => ib_qp_attr_mask_IB_QP_MAX_DEST_RD_ATOMIC,
    ib::QpAttrMask::PATH_MIG_STATE.0 => ib_qp_attr_mask_IB_QP_PATH_MIG_STATE,
    ib::QpAttrMask::CAP.0 => ib_qp_attr_mask_IB_QP_CAP,
    ib::QpAttrMask::DEST_QPN.0 => ib_qp_attr_mask_IB_QP_DEST_QPN,
    ib::QpAttrMask::RATE_LIMIT.0 => ib_qp_attr_mask_IB_QP_RATE_LIMIT,
    ib::QpState::Reset => ib_qp_state_IB_QPS_RESET,
    ib::QpState::Init => ib_qp_state_IB_QPS_INIT,
    ib::QpState::Rtr => ib_qp_state_IB_QPS_RTR,
    ib::QpState::Rts => ib_qp_state_IB_QPS_RTS,
    ib::QpState::Sqd => ib_qp_state_IB_QPS_SQD,
    ib::QpState::Sqe => ib_qp_state_IB_QPS_SQE,
    ib::QpState::Err => ib_qp_state_IB_QPS_ERR,
    MigState::Migrated => ib_mig_state_IB_MIG_MIGRATED,
    MigState::Rearm => ib_mig_state_IB_MIG_REARM,
    MigState::Armed => ib_mig_state_IB_MIG_ARMED,
    Mtu::Mtu256 => ib_mtu_IB_MTU_256,
    Mtu::Mtu512 => ib_mtu_IB_MTU_512,
    Mtu::Mtu1024 => ib_mtu_IB_MTU_1024,
    Mtu::Mtu2048 => ib_mtu_IB_MTU_2048,
    Mtu::Mtu4096 => ib_mtu_IB_MTU_4096,
    AhFlags::GRH.0 => ib_ah_flags_IB_AH_GRH,
}

// Both sides encode static rates as a path record does (IBTA 15.2.5.16).
assert_same! {
    0u8 => ib_rate_IB_RATE_PORT_CURRENT,
    2u8 => ib_rate_IB_RATE_2_5_GBPS,
    3u8 => ib_rate_IB_RATE_10_GBPS,
    4u8 => ib_rate_IB_RATE_30_GBPS,
    5u8 => ib_rate_IB_RATE_5_GBPS,
    6u8 => ib_rate_IB_RATE_20_GBPS,
    7u8 => ib_rate_IB_RATE_40_GBPS,
    8u8 => ib_rate_IB_RATE_60_GBPS,
    9u8 => ib_rate_IB_RATE_80_GBPS,
    10u8 => ib_rate_IB_RATE_120_GBPS,
    11u8 => ib_rate_IB_RATE_14_GBPS,
    12u8 => ib_rate_IB_RATE_56_GBPS,
    13u8 => ib_rate_IB_RATE_112_GBPS,
    14u8 => ib_rate_IB_RATE_168_GBPS,
    15u8 => ib_rate_IB_RATE_25_GBPS,
    16u8 => ib_rate_IB_RATE_100_GBPS,
    17u8 => ib_rate_IB_RATE_200_GBPS,
    18u8 => ib_rate_IB_RATE_300_GBPS,
    19u8 => ib_rate_IB_RATE_28_GBPS,
    20u8 => ib_rate_IB_RATE_50_GBPS,
    21u8 => ib_rate_IB_RATE_400_GBPS,
    22u8 => ib_rate_IB_RATE_600_GBPS,
    23u8 => ib_rate_IB_RATE_800_GBPS,
}

/// Whether a QP of a device that runs no commands is as inactive as one in RESET or ERR: a failing
/// device still executes work requests. A kernel client waits until the device has stopped, since
/// the client frees its buffers whatever the result is. The driver keeps buffers of processes.
fn is_inactive(device: &Device, is_kernel: bool) -> bool {
    if is_kernel {
        device.lifecycle().await_stop();
    }
    device.has_stopped()
}

impl ModifyQueuePairs for IbDevice {
    /// Changes attributes and state of a QP, if the IBTA allows the change in the QP's state.
    fn modify_qp(
        qp: &rdma::qp::Qp<Self>,
        modification: &QpModification<'_>,
        udata: Option<&Udata<'_>>,
    ) -> Result {
        let device = &qp.device().virtio;
        let _guard = qp.modifying();
        let step = modification.transition(qp.state(), qp.qp_type())?;
        let (_, to) = step;
        let attr_mask = ib::QpAttrMask(modification.mask().0);
        if attr_mask.has_unknown() || attr_mask.intersects(UNSUPPORTED) {
            return Err(EOPNOTSUPP);
        }
        let shape = match udata {
            Some(udata) => udata.request::<ModifyQpReq>()?,
            None => ModifyQpReq::default(),
        };
        let new_rate = modification.rate_limit();
        if let Some(rate) = new_rate {
            rate_limit::check(qp, rate, &shape, step)?;
            if attr_mask == ib::QpAttrMask::RATE_LIMIT {
                return rate_limit::set(qp, rate, &shape);
            }
        }
        // These fields are valid only in a change of the rate limit.
        if shape != ModifyQpReq::default() {
            return Err(EINVAL);
        }
        if attr_mask.contains(ib::QpAttrMask::PATH_MTU) {
            port_state::tell(qp.device())?;
        }
        let admitted = match device.limits().has(Feature::Flush) {
            true => mr::SUPPORTED | mr::FLUSHES,
            false => mr::SUPPORTED,
        };
        let request = CmdModifyQp {
            qpn: qp.number(),
            attr_mask,
            attrs: encode(modification, admitted)?,
        };
        if attr_mask.contains(ib::QpAttrMask::PATH_MTU)
            && !port_state::carries(qp.device(), request.attrs.path_mtu)
        {
            return Err(EINVAL);
        }
        match device.ctrl().exec(&request) {
            Ok(_) => (),
            Err(Failure::NoAnswer)
                if matches!(to, QpState::Reset | QpState::Err)
                    && is_inactive(device, udata.is_none()) =>
            {
                // The QP takes no more receives from its SRQ: a consumer may wait for this event.
                if let (QpState::Err, Ok(kernel)) = (to, qp.kernel()) {
                    if let Some(shared) = &kernel.shared {
                        shared.source.client.consumer.event(QpEvent::LastWqeReached);
                    }
                }
            }
            Err(failure) => return Err(failure.into()),
        }
        qp.set_state(to);
        if let Some(rate) = new_rate {
            qp.set_rate_limit(rate);
        } else if to == QpState::Reset {
            qp.set_rate_limit(0);
        }
        if let Ok(kernel) = qp.kernel() {
            match to {
                QpState::Reset => kernel.reset(),
                QpState::Err => kernel.stop(),
                _ => (),
            }
        }
        Ok(())
    }

    /// Queries the attributes and the state of a QP from the device.
    fn query_qp(qp: &rdma::qp::Qp<Self>) -> Result<QpAttr> {
        let request = CmdQueryQp {
            qpn: qp.number(),
            attr_mask: ib::QpAttrMask::ALL,
        };
        let response = qp.device().virtio.ctrl().exec(&request)?;
        let attr = decode::qp::check(&response.attr).map_err(|_| EIO)?;
        Ok(decode_attr(&attr, qp.cap()))
    }
}

/// New attributes in the device's encoding. The others are zero. `admitted` are the access flags
/// that QPs of this device can grant to their peers.
fn encode(from: &QpModification<'_>, admitted: ib::AccessFlags) -> Result<qp::QpAttr> {
    let mut to = qp::QpAttr::default();
    macro_rules! take {
        ($($field:ident: $value:ident => $encoded:expr;)*) => {
            $(if let Some($value) = from.$field() {
                to.$field = $encoded;
            })*
        };
    }
    take! {
        qp_state: state => u8::try_from(state)?;
        cur_qp_state: state => u8::try_from(state)?;
        en_sqd_async_notify: notifies => (notifies != 0).into();
        // Access flags of operations that the device lacks are dropped, since they would have no
        // effect.
        qp_access_flags: access => ib::AccessFlags(access & admitted.0);
        pkey_index: index => index;
        port_num: port => u8::try_from(port)?;
        qkey: key => key;
        path_mtu: mtu => number(mtu, Mtu::try_from)?.value();
        timeout: exponent => exponent;
        retry_cnt: count => count;
        rnr_retry: count => count;
        rq_psn: psn => psn;
        max_rd_atomic: count => count;
        min_rnr_timer: code => code;
        sq_psn: psn => psn;
        max_dest_rd_atomic: count => count;
        path_mig_state: state => number(state, MigState::try_from)?.value();
        dest_qp_num: qpn => Qpn::new(qpn);
        rate_limit: rate => rate;
    }
    if let Some(path) = from.ah_attr()? {
        to.ah_attr = encode_ah_attr(&path)?;
    }
    Ok(to)
}

/// Converts a value of an enumeration of the kernel to the device's value; `EINVAL` if the device
/// does not know the value.
fn number<T, E>(value: u32, known: impl FnOnce(u8) -> Result<T, E>) -> Result<T> {
    known(u8::try_from(value)?).map_err(|_| EINVAL)
}

fn encode_ah_attr(from: &AhAttr) -> Result<qp::AhAttr> {
    Ok(qp::AhAttr {
        grh: GlobalRoute {
            dgid: from.dgid,
            flow_label: from.flow_label,
            sgid_index: from.sgid_index,
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
        },
        sl: from.sl,
        static_rate: from.static_rate,
        port_num: u8::try_from(from.port_num)?,
        ah_flags: AhFlags::GRH,
        dmac: from.dmac,
    })
}

/// Attributes of the device as `ib_qp_attr`.
fn decode_attr(from: &qp::QpAttr, cap: &QpCap) -> QpAttr {
    let state = u32::from(from.qp_state);
    let ah_attr = &from.ah_attr;
    QpAttr {
        qp_state: state,
        cur_qp_state: state,
        path_mtu: from.path_mtu.into(),
        path_mig_state: from.path_mig_state.into(),
        qkey: from.qkey,
        rq_psn: from.rq_psn,
        sq_psn: from.sq_psn,
        dest_qp_num: from.dest_qp_num.get(),
        qp_access_flags: from.qp_access_flags.0,
        cap: *cap,
        ah_attr: AhAttr {
            dgid: ah_attr.grh.dgid,
            flow_label: ah_attr.grh.flow_label,
            sgid_index: ah_attr.grh.sgid_index,
            hop_limit: ah_attr.grh.hop_limit,
            traffic_class: ah_attr.grh.traffic_class,
            sl: ah_attr.sl,
            static_rate: ah_attr.static_rate,
            port_num: ah_attr.port_num.into(),
            dmac: ah_attr.dmac,
        },
        pkey_index: from.pkey_index,
        en_sqd_async_notify: from.en_sqd_async_notify != 0,
        sq_draining: from.sq_draining != 0,
        max_rd_atomic: from.max_rd_atomic,
        max_dest_rd_atomic: from.max_dest_rd_atomic,
        min_rnr_timer: from.min_rnr_timer,
        port_num: from.port_num.into(),
        timeout: from.timeout,
        retry_cnt: from.retry_cnt,
        rnr_retry: from.rnr_retry,
        rate_limit: from.rate_limit,
    }
}
