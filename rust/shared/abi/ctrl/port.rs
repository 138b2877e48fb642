// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Commands for the port: attributes, P_Keys, GIDs and counters.

use core::ffi::CStr;

use super::super::ib::PortCaps;
use super::super::wire::Wire;
use super::{Command, ControlCommand, Empty, MAX_REQUEST, MAX_RESPONSE};

wire_struct! {
    /// Request of QUERY_PORT (RFC: `struct cmd_query_port`).
    pub struct CmdQueryPort: 1 {
        /// Port.
        0 => port: u8,
    }
}

wire_struct! {
    /// Response of QUERY_PORT (RFC: `struct rsp_query_port`).
    pub struct RspQueryPort: 161 {
        /// [`PortState`](super::super::ib::PortState).
        0 => state: u8,
        /// Largest [`Mtu`](super::super::ib::Mtu).
        1 => max_mtu: u8,
        /// Current [`Mtu`](super::super::ib::Mtu).
        2 => active_mtu: u8,
        /// MTU of the Ethernet link in bytes.
        3 => phys_mtu: u32,
        /// Entries of the GID table.
        7 => gid_tbl_len: u32,
        /// Capabilities.
        11 => port_cap_flags: PortCaps,
        /// Longest message in bytes.
        15 => max_msg_sz: u32,
        /// Number of packets received with a wrong P_Key.
        19 => bad_pkey_cntr: u32,
        /// Number of packets received with a wrong Q_Key.
        23 => qkey_viol_cntr: u32,
        /// Entries of the P_Key table.
        27 => pkey_tbl_len: u16,
        /// [`PortWidth`](super::super::ib::PortWidth).
        29 => active_width: u8,
        /// [`PortSpeed`](super::super::ib::PortSpeed).
        30 => active_speed: u16,
        /// [`PortPhysState`](super::super::ib::PortPhysState).
        32 => phys_state: u8,
        /// Reserved, zero.
        33 => reserved: [u8; 128],
    }
}
request!(CmdQueryPort, QueryPort, RspQueryPort, of port);

wire_struct! {
    /// Request of SET_PORT. Needs
    /// [`Feature::PortState`](super::super::feature::Feature::PortState).
    pub struct CmdSetPort: 6 {
        /// Port.
        0 => port: u8,
        /// State of the network device, [`PortState::Down`](super::super::ib::PortState::Down) or
        /// [`PortState::Active`](super::super::ib::PortState::Active).
        1 => state: u8,
        /// MTU of the network device in bytes.
        2 => mtu: u32,
    }
}
request!(CmdSetPort, SetPort, Empty, of port);

wire_struct! {
    /// Request of QUERY_PKEY (RFC: `struct cmd_query_pkey`).
    pub struct CmdQueryPkey: 6 {
        /// Port.
        0 => port: u32,
        /// Index into the P_Key table.
        4 => index: u16,
    }
}

wire_struct! {
    /// Response of QUERY_PKEY (RFC: `struct rsp_query_pkey`).
    pub struct RspQueryPkey: 2 {
        /// The P_Key.
        0 => pkey: u16,
    }
}
request!(CmdQueryPkey, QueryPkey, RspQueryPkey, of index);

wire_struct! {
    /// Request of ADD_GID (RFC: `struct cmd_add_gid`).
    pub struct CmdAddGid: 26 {
        /// GID, in network byte order.
        0 => gid: [u8; 16],
        /// [`GidType`](super::super::ib::GidType).
        16 => gid_type: u32,
        /// Index into the GID table.
        20 => index: u16,
        /// Port.
        22 => port_num: u32,
    }
}
request!(CmdAddGid, AddGid, Empty, of index);

wire_struct! {
    /// ADD_GID with [`Feature::GidVlan`](super::super::feature::Feature::GidVlan): packets from and
    /// to the address carry a VLAN tag.
    pub struct CmdAddGidVlan: 28 {
        /// The RFC's fields.
        0 => base: CmdAddGid,
        /// VLAN id, 0 to 4094, or [`NO_VLAN`](super::super::ib::NO_VLAN) for untagged packets.
        26 => vlan: u16,
    }
}
request!(CmdAddGidVlan, AddGid, Empty, of base.index);

wire_struct! {
    /// Request of DEL_GID (RFC: `struct cmd_del_gid`).
    pub struct CmdDelGid: 6 {
        /// Index into the GID table.
        0 => index: u16,
        /// Port.
        2 => port: u32,
    }
}
request!(CmdDelGid, DelGid, Empty, of index);

wire_struct! {
    /// Request of QUERY_COUNTERS. Needs
    /// [`Feature::Counters`](super::super::feature::Feature::Counters).
    pub struct CmdQueryCounters: 1 {
        /// Port.
        0 => port: u8,
    }
}

wire_struct! {
    /// Counters of a port since the device was created, modulo 2⁶⁴. Bytes of packets are the
    /// bytes of their Ethernet frames, without FCS.
    pub struct RspQueryCounters: 224 {
        /// Packets sent.
        0 => tx_packets: u64,
        /// Bytes of packets sent.
        8 => tx_bytes: u64,
        /// Valid RoCE packets received.
        16 => rx_packets: u64,
        /// Bytes of valid RoCE packets received.
        24 => rx_bytes: u64,
        /// Messages sent without packets (on the direct path), as requester.
        32 => direct_tx_messages: u64,
        /// Bytes of messages sent without packets.
        40 => direct_tx_bytes: u64,
        /// Messages received without packets, as responder.
        48 => direct_rx_messages: u64,
        /// Bytes of messages received without packets.
        56 => direct_rx_bytes: u64,
        /// Packets retransmitted.
        64 => retransmitted_packets: u64,
        /// Acknowledgements and responses that did not arrive in time.
        72 => timeouts: u64,
        /// NAKs sent, except RNR NAKs.
        80 => naks_sent: u64,
        /// NAKs received, except RNR NAKs.
        88 => naks_received: u64,
        /// RNR NAKs sent.
        96 => rnr_naks_sent: u64,
        /// RNR NAKs received.
        104 => rnr_naks_received: u64,
        /// Requests received with a later PSN than expected.
        112 => out_of_sequence: u64,
        /// Duplicate requests received.
        120 => duplicates: u64,
        /// Invalid RoCE packets received.
        128 => bad_packets: u64,
        /// Packets received with a wrong P_Key.
        136 => pkey_violations: u64,
        /// Packets received with a wrong Q_Key.
        144 => qkey_violations: u64,
        /// R_Key violations: accesses of peers that the key does not permit.
        152 => rkey_violations: u64,
        /// L_Key violations: accesses of own work requests that the key does not permit.
        160 => lkey_violations: u64,
        /// Bytes that rate limits of QPs counted, in packets and on the direct path.
        168 => paced_bytes: u64,
        /// Doorbells, and notifications of virtqueues other than the control queue.
        176 => doorbells: u64,
        /// Completion events. Each causes at most one interrupt.
        184 => completion_events: u64,
        /// RoCE packets received with a congestion mark (ECN CE), on reliable connections.
        192 => marked_packets: u64,
        /// Congestion notifications sent.
        200 => notifications_sent: u64,
        /// Congestion notifications received.
        208 => notifications_received: u64,
        /// Probes: last packets sent again because no answer came for longer than usual.
        216 => probes: u64,
    }
}
request!(CmdQueryCounters, QueryCounters, RspQueryCounters, of port);

/// Lists the counters. A missing counter is a compile error.
macro_rules! counters {
    ($($field:ident),* $(,)?) => {
        impl RspQueryCounters {
            /// The names of the counters, in the order of the fields.
            pub const NAMES: [&'static CStr; Self::SIZE / u64::SIZE] =
                [$(name(concat!(stringify!($field), "\0"))),*];

            /// The values of the counters, in the order of [`NAMES`](Self::NAMES).
            pub const fn values(&self) -> [u64; Self::NAMES.len()] {
                let Self { $($field),* } = *self;
                [$($field),*]
            }
        }
    };
}

const fn name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("an identifier has no zero"),
    }
}

counters! {
    tx_packets,
    tx_bytes,
    rx_packets,
    rx_bytes,
    direct_tx_messages,
    direct_tx_bytes,
    direct_rx_messages,
    direct_rx_bytes,
    retransmitted_packets,
    timeouts,
    naks_sent,
    naks_received,
    rnr_naks_sent,
    rnr_naks_received,
    out_of_sequence,
    duplicates,
    bad_packets,
    pkey_violations,
    qkey_violations,
    rkey_violations,
    lkey_violations,
    paced_bytes,
    doorbells,
    completion_events,
    marked_packets,
    notifications_sent,
    notifications_received,
    probes,
}
