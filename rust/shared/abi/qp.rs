// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! QP attributes (RFC, "controlq Operation: Modify QP").

use super::ib::{AccessFlags, AhFlags};
use super::number::Qpn;

wire_struct! {
    /// Global route of a path (RFC: `struct virtio_rdma_global_route`).
    pub struct GlobalRoute: 23 {
        /// Destination GID, in network byte order.
        0 => dgid: [u8; 16],
        /// Flow label.
        16 => flow_label: u32,
        /// Index of the source GID.
        20 => sgid_index: u8,
        /// Hop limit.
        21 => hop_limit: u8,
        /// Traffic class.
        22 => traffic_class: u8,
    }
}

wire_struct! {
    /// Path to a peer (RFC: `struct virtio_rdma_ah_attr`).
    pub struct AhAttr: 33 {
        /// Global route.
        0 => grh: GlobalRoute,
        /// Service level.
        23 => sl: u8,
        /// Static rate, encoded as in a path record (IBTA 15.2.5.16); 0 for the port's rate.
        24 => static_rate: u8,
        /// Port.
        25 => port_num: u8,
        /// Flags. On RoCE every path has a GRH.
        26 => ah_flags: AhFlags,
        /// MAC address of the next hop.
        27 => dmac: [u8; 6],
    }
}

wire_struct! {
    /// Size of a QP's queues (RFC: `struct virtio_rdma_qp_cap`).
    pub struct QpCap: 20 {
        /// Maximum number of outstanding work requests of the SQ.
        0 => max_send_wr: u32,
        /// Maximum number of outstanding work requests of the RQ.
        4 => max_recv_wr: u32,
        /// Maximum number of SGEs of a send work request.
        8 => max_send_sge: u32,
        /// Maximum number of SGEs of a receive work request.
        12 => max_recv_sge: u32,
        /// Largest inline payload in bytes.
        16 => max_inline_data: u32,
    }
}

wire_struct! {
    /// Attributes of a QP (RFC: `struct virtio_rdma_qp_attr`).
    pub struct QpAttr: 129 {
        /// New state, [`QpState`](super::ib::QpState).
        0 => qp_state: u8,
        /// Assumed current state.
        1 => cur_qp_state: u8,
        /// Path MTU, [`Mtu`](super::ib::Mtu).
        2 => path_mtu: u8,
        /// Path migration state.
        3 => path_mig_state: u8,
        /// Q_Key.
        4 => qkey: u32,
        /// First PSN that the receive queue expects.
        8 => rq_psn: u32,
        /// First PSN of the send queue.
        12 => sq_psn: u32,
        /// QPN of the peer.
        16 => dest_qp_num: Qpn,
        /// Remote operations that the QP permits.
        20 => qp_access_flags: AccessFlags,
        /// P_Key index.
        24 => pkey_index: u16,
        /// P_Key index of the alternate path.
        26 => alt_pkey_index: u16,
        /// Whether draining in SQD raises an event.
        28 => en_sqd_async_notify: u8,
        /// Whether the QP is draining (responses only).
        29 => sq_draining: u8,
        /// Maximum number of RDMA READs and atomic operations outstanding as requester.
        30 => max_rd_atomic: u8,
        /// Maximum number of RDMA READs and atomic operations outstanding as responder.
        31 => max_dest_rd_atomic: u8,
        /// Minimum RNR NAK timer, encoded as in IBTA table 45.
        32 => min_rnr_timer: u8,
        /// Port.
        33 => port_num: u8,
        /// Local ACK timeout: 4.096 µs · 2ⁿ, or 0 for none.
        34 => timeout: u8,
        /// Number of transport retries.
        35 => retry_cnt: u8,
        /// Number of RNR retries; 7 means no limit.
        36 => rnr_retry: u8,
        /// Port of the alternate path.
        37 => alt_port_num: u8,
        /// Local ACK timeout of the alternate path, encoded like `timeout`.
        38 => alt_timeout: u8,
        /// Rate limit in kb/s; 0 for none.
        39 => rate_limit: u32,
        /// Capabilities.
        43 => cap: QpCap,
        /// Primary path.
        63 => ah_attr: AhAttr,
        /// Alternate path.
        96 => alt_ah_attr: AhAttr,
    }
}
