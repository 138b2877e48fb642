// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Attributes of a QP: validation, merging, and conversion to the attributes of the protocol
//! machines.

use std::ops::RangeInclusive;

use roce::net::{
    gid_to_ip, multicast_mac, udp_source_port, vlan_tag, Addresses, DEFAULT_HOP_LIMIT,
};
use roce::rc::{RequesterAttr, ResponderAttr};
use roce::{Connection, Path};
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{AccessFlags, AhFlags, Mtu, QpAttrMask, MASK_24, MULTICAST_QPN, PORT};
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::qp::{AhAttr, QpAttr};
use virtio_rdma_abi::wqe::Datagram;

use crate::config::RATE_LIMITS;
use crate::error::{
    at_most, bits, defined, exactly, needs_bits, refusal, require, within, Reason, Refusal, Result,
    What,
};
use crate::Hca;

/// Largest values of attributes: time codes have 5 bits, retry counts 3, flow labels 20 and service
/// levels 4.
const MAX_TIME_CODE: u8 = 31;
const MAX_RETRIES: u8 = 7;
const MAX_FLOW_LABEL: u32 = 0xf_ffff;
const MAX_SL: u8 = 15;
/// QPNs of peers.
const QPNS: RangeInclusive<u32> = 1..=MASK_24;

/// Checks the attributes in `mask`, except for the path, which [`connection`] checks.
pub(super) fn validate(hca: &Hca, mask: QpAttrMask, attr: &QpAttr) -> Result<()> {
    let has = |bit| mask.contains(bit);
    let at_most = |bit, what, value: u8, limit: u8| {
        if has(bit) {
            at_most(what, value, limit)
        } else {
            Ok(())
        }
    };
    let atomics = hca.config().limits.max_rd_atomic;
    if has(QpAttrMask::ACCESS_FLAGS) {
        bits(
            What::QpAccessFlags,
            attr.qp_access_flags.0,
            AccessFlags::ALL.0,
        )?;
    }
    if has(QpAttrMask::PKEY_INDEX) {
        exactly(What::PkeyIndex, attr.pkey_index, 0u8)?;
    }
    if has(QpAttrMask::PORT) {
        exactly(What::PortNum, attr.port_num, PORT)?;
    }
    if has(QpAttrMask::DEST_QPN) {
        within(What::DestQpNum, attr.dest_qp_num.get(), &QPNS)?;
    }
    at_most(
        QpAttrMask::TIMEOUT,
        What::Timeout,
        attr.timeout,
        MAX_TIME_CODE,
    )?;
    let timer = attr.min_rnr_timer;
    at_most(
        QpAttrMask::MIN_RNR_TIMER,
        What::MinRnrTimer,
        timer,
        MAX_TIME_CODE,
    )?;
    at_most(
        QpAttrMask::RETRY_CNT,
        What::RetryCnt,
        attr.retry_cnt,
        MAX_RETRIES,
    )?;
    at_most(
        QpAttrMask::RNR_RETRY,
        What::RnrRetry,
        attr.rnr_retry,
        MAX_RETRIES,
    )?;
    let (ours, theirs) = (attr.max_rd_atomic, attr.max_dest_rd_atomic);
    at_most(
        QpAttrMask::MAX_QP_RD_ATOMIC,
        What::MaxRdAtomic,
        ours,
        atomics,
    )?;
    at_most(
        QpAttrMask::MAX_DEST_RD_ATOMIC,
        What::MaxDestRdAtomic,
        theirs,
        atomics,
    )?;
    let notify = attr.en_sqd_async_notify;
    at_most(
        QpAttrMask::EN_SQD_ASYNC_NOTIFY,
        What::EnSqdAsyncNotify,
        notify,
        1,
    )?;
    if has(QpAttrMask::RATE_LIMIT) {
        validate_rate(attr.rate_limit)?;
    }
    if has(QpAttrMask::PATH_MTU) {
        let mtu: Mtu = defined(What::PathMtu, attr.path_mtu)?;
        self::at_most(What::PathMtu, mtu.value(), hca.path_mtu().value())?;
    }
    Ok(())
}

/// Checks a rate limit in kb/s; 0 means no limit.
pub(super) fn validate_rate(rate: u32) -> Result<()> {
    match rate {
        0 => Ok(()),
        _ => within(What::RateLimit, rate, &RATE_LIMITS),
    }
}

/// Copies the attributes in `mask`, which must be valid, from `from` to `to`.
pub(super) fn merge(to: &mut QpAttr, mask: QpAttrMask, from: &QpAttr) {
    macro_rules! copy {
        ($($bit:ident: $field:ident),* $(,)?) => {
            $(if mask.contains(QpAttrMask::$bit) {
                to.$field = from.$field;
            })*
        };
    }
    copy! {
        EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify,
        ACCESS_FLAGS: qp_access_flags,
        PKEY_INDEX: pkey_index,
        PORT: port_num,
        QKEY: qkey,
        AV: ah_attr,
        PATH_MTU: path_mtu,
        TIMEOUT: timeout,
        RETRY_CNT: retry_cnt,
        RNR_RETRY: rnr_retry,
        RQ_PSN: rq_psn,
        MAX_QP_RD_ATOMIC: max_rd_atomic,
        MIN_RNR_TIMER: min_rnr_timer,
        SQ_PSN: sq_psn,
        MAX_DEST_RD_ATOMIC: max_dest_rd_atomic,
        DEST_QPN: dest_qp_num,
        RATE_LIMIT: rate_limit,
    }
    to.rq_psn &= MASK_24;
    to.sq_psn &= MASK_24;
}

/// The fields that describe a path, from the address vector of a connection or a datagram.
struct AddressVector {
    sgid_index: u8,
    sl: u8,
    dgid: [u8; 16],
    dmac: [u8; 6],
    traffic_class: u8,
    flow_label: u32,
    hop_limit: u8,
}

impl AddressVector {
    /// Refuses a destination other than a single host: neither the Ethernet address nor the
    /// destination GID may be zero or multicast. So an address vector without a global route is
    /// refused: its GID is zero.
    fn require_host(&self) -> Result<()> {
        let is_host = self.dmac != [0; 6] && self.dmac[0] & 1 == 0;
        require(is_host, Reason::NotUnicast, What::Dmac, number(self.dmac))?;
        let to = gid_to_ip(self.dgid);
        if to.is_unspecified() || to.is_multicast() {
            return Err(Refusal::gid(Reason::NotUnicast, What::Dgid, self.dgid));
        }
        Ok(())
    }

    /// Refuses a destination GID that is not a multicast group's, and an Ethernet address that does
    /// not belong to that group.
    fn require_group(&self, hca: &Hca) -> Result<()> {
        let to = gid_to_ip(self.dgid);
        if !hca.has_feature(Feature::Multicast) || !to.is_multicast() {
            return Err(Refusal::gid(Reason::NotGroup, What::Dgid, self.dgid));
        }
        exactly(What::Dmac, number(self.dmac), number(multicast_mac(to)))
    }

    /// The path from QP `qpn` of the HCA to QP `dest_qpn`. A port of this process sends with its
    /// own MAC address whatever the address at which it is reached, so the path has this one: the
    /// peer is found and recognized by it.
    fn path(&self, hca: &Hca, qpn: Qpn, dest_qpn: Qpn) -> Result<Path> {
        let no_source = || refusal(Reason::NoSuch, What::SgidIndex, self.sgid_index);
        let source = hca
            .objects
            .gids
            .get(self.sgid_index)
            .ok_or_else(no_source)?;
        let to = gid_to_ip(self.dgid);
        let other_family = || Refusal::gid(Reason::OtherFamily, What::Dgid, self.dgid);
        let addresses = Addresses::new(gid_to_ip(source.gid), to).ok_or_else(other_family)?;
        let flow_label = match self.flow_label {
            0 => roce::net::flow_label(qpn, dest_qpn),
            given => given,
        };
        Ok(Path {
            vlan: source.vlan.map(|id| vlan_tag(id, self.sl)),
            traffic_class: self.traffic_class,
            flow_label: self.flow_label,
            hop_limit: match self.hop_limit {
                0 => DEFAULT_HOP_LIMIT,
                given => given,
            },
            src_port: udp_source_port(flow_label),
            ..Path::new(hca.mac(), hca.runtime().own_mac(self.dmac), addresses)
        })
    }
}

/// A MAC address as a number, for a refusal.
pub(super) fn number(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// The path of a connection. RoCE does not permit a path without a global route.
fn connected_path(hca: &Hca, qpn: Qpn, dest_qpn: Qpn, ah: &AhAttr) -> Result<Path> {
    needs_bits(What::AhFlags, ah.ah_flags.0.into(), AhFlags::GRH.0.into())?;
    exactly(What::PortNum, ah.port_num, PORT)?;
    at_most(What::Sl, ah.sl, MAX_SL)?;
    at_most(What::FlowLabel, ah.grh.flow_label, MAX_FLOW_LABEL)?;
    let address = AddressVector {
        sgid_index: ah.grh.sgid_index,
        sl: ah.sl,
        dgid: ah.grh.dgid,
        dmac: ah.dmac,
        traffic_class: ah.grh.traffic_class,
        flow_label: ah.grh.flow_label,
        hop_limit: ah.grh.hop_limit,
    };
    address.require_host()?;
    address.path(hca, qpn, dest_qpn)
}

/// The path of a datagram of QP `qpn` to a QP or a multicast group.
pub(super) fn datagram_path(hca: &Hca, qpn: Qpn, to: &Datagram) -> Result<Path> {
    within(What::DestQpNum, to.remote_qpn.get(), &QPNS)?;
    let address = AddressVector {
        sgid_index: to.av.gid_index,
        sl: to.av.sl(),
        dgid: to.av.dgid,
        dmac: to.av.dmac,
        traffic_class: to.av.traffic_class(),
        flow_label: to.av.flow_label(),
        hop_limit: to.av.hop_limit,
    };
    if to.remote_qpn == MULTICAST_QPN {
        address.require_group(hca)?;
    } else {
        address.require_host()?;
    }
    address.path(hca, qpn, to.remote_qpn)
}

/// The connection that the attributes of QP `qpn` describe.
pub(super) fn connection(hca: &Hca, qpn: Qpn, attr: &QpAttr) -> Result<Connection> {
    let path = connected_path(hca, qpn, attr.dest_qp_num, &attr.ah_attr)?;
    let mtu = defined(What::PathMtu, attr.path_mtu)?;
    Ok(Connection::new(path, attr.dest_qp_num, mtu))
}

/// The attributes that a requester needs.
pub(super) fn requester(attr: &QpAttr) -> RequesterAttr {
    RequesterAttr {
        sq_psn: attr.sq_psn,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        max_rd_atomic: attr.max_rd_atomic,
    }
}

/// The attributes that a responder needs.
pub(super) fn responder(attr: &QpAttr) -> ResponderAttr {
    ResponderAttr {
        rq_psn: attr.rq_psn,
        min_rnr_timer: attr.min_rnr_timer,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        access: AccessFlags(attr.qp_access_flags.0),
    }
}
