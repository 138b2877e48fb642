// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Control virtqueue (RFC, "Device Operation: controlq").
//!
//! A request is a [`Command`] byte and the command's request structure; a response is one byte, [`RESPONSE_OK`] or a
//! positive Linux errno, and on success the command's response structure. A [`Request`] ties the three together, so
//! that a wrong pairing does not compile.

use super::ib::{AccessFlags, PortCaps, QpAttrMask};
use super::qp::QpAttr;
use super::ring::RingAddr;
use super::wire::Wire;

/// Virtqueue number of the control queue.
pub const CONTROL_QUEUE: u16 = 0;
/// Response byte of a command that succeeded.
pub const RESPONSE_OK: u8 = 0;
/// Longest request: the command byte and the longest request structure.
pub const MAX_REQUEST: usize = 1 + CmdModifyQp::SIZE;
/// Longest response: the response byte and the longest response structure.
pub const MAX_RESPONSE: usize = 1 + RspQueryCounters::SIZE;

wire_enum! {
    /// Command byte.
    pub enum Command: u8 {
        /// Query the attributes of a port.
        QueryPort = 1,
        /// Create a CQ.
        CreateCq = 2,
        /// Destroy a CQ.
        DestroyCq = 3,
        /// Create a PD.
        CreatePd = 4,
        /// Destroy a PD.
        DestroyPd = 5,
        /// Create an MR over all memory.
        GetDmaMr = 6,
        /// Create an MR for fast registration.
        CreateMr = 7,
        /// Set the pages of an MR for fast registration.
        MapMrSg = 8,
        /// Create an MR with its pages.
        RegUserMr = 9,
        /// Destroy an MR.
        DeregMr = 10,
        /// Create a QP.
        CreateQp = 11,
        /// Change attributes and state of a QP.
        ModifyQp = 12,
        /// Query attributes and state of a QP.
        QueryQp = 13,
        /// Destroy a QP.
        DestroyQp = 14,
        /// Query an entry of the P_Key table.
        QueryPkey = 15,
        /// Set an entry of the GID table.
        AddGid = 16,
        /// Clear an entry of the GID table.
        DelGid = 17,
        /// Arm a CQ that is a transport virtqueue.
        ReqNotifyCq = 18,
        /// Create a memory window.
        AllocMw = 19,
        /// Destroy a memory window.
        DeallocMw = 20,
        /// Create an SRQ.
        CreateSrq = 21,
        /// Arm the limit of an SRQ, or move it to a longer ring.
        ModifySrq = 22,
        /// Query the attributes of an SRQ.
        QuerySrq = 23,
        /// Destroy an SRQ.
        DestroySrq = 24,
        /// Move a CQ to another ring.
        ResizeCq = 25,
        /// Limit the rate at which a QP sends.
        SetRateLimit = 26,
        /// Attach a UD QP to a multicast group.
        AttachMcast = 27,
        /// Detach a UD QP from a multicast group.
        DetachMcast = 28,
        /// Query the counters of a port.
        QueryCounters = 29,
        /// Change rights, PD or memory of an MR that was created with its pages.
        ReregMr = 30,
        /// Take the memory of an MR back from the device.
        RevokeMr = 31,
    }
}

/// A request structure with its command byte and its response structure.
pub trait Request: Wire {
    /// The command.
    const COMMAND: Command;
    /// What the device answers on success.
    type Response: Wire;
}

macro_rules! request {
    ($request:ty, $command:ident, $response:ty) => {
        impl Request for $request {
            const COMMAND: Command = Command::$command;
            type Response = $response;
        }
        const _: () = assert!(<$request as Wire>::SIZE < MAX_REQUEST);
        const _: () = assert!(<$response as Wire>::SIZE < MAX_RESPONSE);
    };
}

wire_struct! {
    /// No data.
    pub struct Empty: 0 {}
}

wire_struct! {
    /// `struct cmd_query_port`.
    pub struct CmdQueryPort: 1 {
        /// Port.
        0 => port: u8,
    }
}

wire_struct! {
    /// `struct rsp_query_port`.
    pub struct RspQueryPort: 161 {
        /// [`PortState`](super::ib::PortState).
        0 => state: u8,
        /// Largest [`Mtu`](super::ib::Mtu).
        1 => max_mtu: u8,
        /// Current [`Mtu`](super::ib::Mtu).
        2 => active_mtu: u8,
        /// MTU of the Ethernet link in bytes.
        3 => phys_mtu: u32,
        /// Entries of the GID table.
        7 => gid_tbl_len: u32,
        /// Capabilities.
        11 => port_cap_flags: PortCaps,
        /// Longest message in bytes.
        15 => max_msg_sz: u32,
        /// Packets with a wrong P_Key.
        19 => bad_pkey_cntr: u32,
        /// Packets with a wrong Q_Key.
        23 => qkey_viol_cntr: u32,
        /// Entries of the P_Key table.
        27 => pkey_tbl_len: u16,
        /// [`PortWidth`](super::ib::PortWidth).
        29 => active_width: u8,
        /// [`PortSpeed`](super::ib::PortSpeed).
        30 => active_speed: u16,
        /// [`PortPhysState`](super::ib::PortPhysState).
        32 => phys_state: u8,
        /// Reserved, zero.
        33 => reserved: [u8; 128],
    }
}
request!(CmdQueryPort, QueryPort, RspQueryPort);

wire_struct! {
    /// `struct cmd_create_cq`.
    pub struct CmdCreateCq: 4 {
        /// Number of entries.
        0 => cqe: u32,
    }
}

wire_struct! {
    /// `struct rsp_create_cq`.
    pub struct RspCreateCq: 4 {
        /// Handle.
        0 => cqn: u32,
    }
}
request!(CmdCreateCq, CreateCq, RspCreateCq);

wire_mask! {
    /// Flags of a queue's creation in own rings.
    pub struct CreateFlags: u32 {
        /// The ring belongs to a process: kernel-only opcodes are refused.
        USER = 1 << 0,
        /// A UD QP does not receive what it sends to a multicast group itself; with
        /// [`F_MULTICAST`](super::config::F_MULTICAST).
        BLOCK_MULTICAST_LOOPBACK = 1 << 1,
        /// CREATE_QP with [`F_SRQ`](super::config::F_SRQ): receives come from the SRQ `srqn`.
        SRQ = 1 << 2,
    }
}

wire_struct! {
    /// CREATE_CQ in own rings: the RFC's structure and the ring.
    pub struct CmdCreateCqRing: 56 {
        /// The RFC's fields.
        0 => base: CmdCreateCq,
        /// Flags.
        4 => flags: CreateFlags,
        /// Where the ring is.
        8 => ring: RingAddr,
        /// Doorbell page that rings the CQ.
        32 => doorbell_page: u32,
        /// Event queue of its completion events, from 1 up to `num_event_queues`.
        36 => event_queue: u32,
        /// Cookie of its events.
        40 => cookie: u64,
        /// Reserved, zero.
        48 => reserved: [u8; 8],
    }
}
request!(CmdCreateCqRing, CreateCq, RspCreateCq);

wire_struct! {
    /// `struct cmd_destroy_cq`.
    pub struct CmdDestroyCq: 4 {
        /// Handle.
        0 => cqn: u32,
    }
}
request!(CmdDestroyCq, DestroyCq, Empty);

wire_struct! {
    /// CREATE_PD has no request data.
    pub struct CmdCreatePd: 0 {}
}

wire_struct! {
    /// `struct rsp_create_pd`.
    pub struct RspCreatePd: 4 {
        /// Handle.
        0 => pdn: u32,
    }
}
request!(CmdCreatePd, CreatePd, RspCreatePd);

wire_struct! {
    /// `struct cmd_destroy_pd`.
    pub struct CmdDestroyPd: 4 {
        /// Handle.
        0 => pdn: u32,
    }
}
request!(CmdDestroyPd, DestroyPd, Empty);

wire_struct! {
    /// `struct cmd_get_dma_mr`.
    pub struct CmdGetDmaMr: 8 {
        /// PD.
        0 => pdn: u32,
        /// Rights.
        4 => access_flags: AccessFlags,
    }
}

wire_struct! {
    /// `struct rsp_get_dma_mr`, `rsp_create_mr` and `rsp_reg_user_mr`: a new MR.
    pub struct RspMr: 12 {
        /// Handle.
        0 => mrn: u32,
        /// Local key.
        4 => lkey: u32,
        /// Remote key.
        8 => rkey: u32,
    }
}
request!(CmdGetDmaMr, GetDmaMr, RspMr);

wire_struct! {
    /// `struct cmd_create_mr`.
    pub struct CmdCreateMr: 12 {
        /// PD.
        0 => pdn: u32,
        /// Rights.
        4 => access_flags: AccessFlags,
        /// Pages at most.
        8 => max_num_sg: u32,
    }
}
request!(CmdCreateMr, CreateMr, RspMr);

wire_struct! {
    /// `struct cmd_map_mr_sg`.
    pub struct CmdMapMrSg: 32 {
        /// MR.
        0 => mrn: u32,
        /// Number of pages.
        4 => npages: u32,
        /// Address of the first byte in the MR.
        8 => start: u64,
        /// Length in bytes.
        16 => length: u64,
        /// DMA address of the page list: `npages` le64.
        24 => pages: u64,
    }
}

wire_struct! {
    /// `struct rsp_map_mr_sg`.
    pub struct RspMapMrSg: 4 {
        /// Number of pages mapped.
        0 => npages: u32,
    }
}
request!(CmdMapMrSg, MapMrSg, RspMapMrSg);

wire_struct! {
    /// `struct cmd_reg_user_mr`. The first byte lies at offset `start % 4096` of the first page.
    pub struct CmdRegUserMr: 44 {
        /// PD.
        0 => pdn: u32,
        /// Rights.
        4 => access_flags: AccessFlags,
        /// Address in the process.
        8 => start: u64,
        /// Length in bytes.
        16 => length: u64,
        /// Address of the first byte in work requests.
        24 => virt_addr: u64,
        /// DMA address of the page list: `npages` le64, each the DMA address of a 4 KiB page.
        32 => pages: u64,
        /// Number of pages.
        40 => npages: u32,
    }
}
request!(CmdRegUserMr, RegUserMr, RspMr);

wire_enum! {
    /// Shape of a page list.
    pub enum PageListDepth: u8 {
        /// `pages` is the list: `npages` le64, each the DMA address of a page.
        Flat = 0,
        /// `pages` is a directory of le64, each the DMA address of a block of [`PAGE_LIST_BLOCK`] bytes; the blocks
        /// in turn are the list, each full but the last.
        TwoLevels = 1,
    }
}

/// Size and alignment of a block of a two-level page list, in bytes.
pub const PAGE_LIST_BLOCK: usize = 4096;

wire_struct! {
    /// REG_USER_MR with [`F_MR_PAGES`](super::config::F_MR_PAGES): the RFC's structure, whose `npages` then counts
    /// pages of `1 << page_shift` bytes, and the shape of its list. The first byte lies at offset
    /// `virt_addr % (1 << page_shift)` of the first page.
    pub struct CmdRegUserMrPages: 52 {
        /// The RFC's fields.
        0 => base: CmdRegUserMr,
        /// Page size is 2ⁿ bytes, a bit of `page_size_cap`.
        44 => page_shift: u8,
        /// [`PageListDepth`].
        45 => depth: u8,
        /// Reserved, zero.
        46 => reserved: [u8; 6],
    }
}
request!(CmdRegUserMrPages, RegUserMr, RspMr);

wire_struct! {
    /// `struct cmd_dereg_mr`.
    pub struct CmdDeregMr: 4 {
        /// Handle.
        0 => mrn: u32,
    }
}
request!(CmdDeregMr, DeregMr, Empty);

wire_struct! {
    /// `struct cmd_create_qp`.
    pub struct CmdCreateQp: 66 {
        /// PD.
        0 => pdn: u32,
        /// [`QpType`](super::ib::QpType).
        4 => qp_type: u8,
        /// [`SigType`](super::ib::SigType).
        5 => sq_sig_type: u8,
        /// Outstanding work requests of the SQ.
        6 => max_send_wr: u32,
        /// SGEs of a send work request.
        10 => max_send_sge: u32,
        /// CQ of the SQ.
        14 => send_cqn: u32,
        /// Outstanding work requests of the RQ.
        18 => max_recv_wr: u32,
        /// SGEs of a receive work request.
        22 => max_recv_sge: u32,
        /// CQ of the RQ.
        26 => recv_cqn: u32,
        /// Inline payload in bytes.
        30 => max_inline_data: u32,
        /// Flags in own rings, else zero (the RFC's first reserved word).
        34 => flags: CreateFlags,
        /// The SRQ with [`CreateFlags::SRQ`], else zero (the RFC's second reserved word).
        38 => srqn: u32,
        /// Reserved, zero.
        42 => reserved: [u8; 24],
    }
}

wire_struct! {
    /// `struct rsp_create_qp`.
    pub struct RspCreateQp: 4 {
        /// Handle.
        0 => qpn: u32,
    }
}
request!(CmdCreateQp, CreateQp, RspCreateQp);

wire_struct! {
    /// CREATE_QP in own rings: the RFC's structure and the rings.
    pub struct CmdCreateQpRings: 126 {
        /// The RFC's fields.
        0 => base: CmdCreateQp,
        /// Where the SQ is.
        66 => sq: RingAddr,
        /// Where the RQ is; all zero for a QP without one.
        90 => rq: RingAddr,
        /// Doorbell page that rings the queues.
        114 => doorbell_page: u32,
        /// Cookie of its asynchronous events.
        118 => cookie: u64,
    }
}
request!(CmdCreateQpRings, CreateQp, RspCreateQp);

wire_struct! {
    /// `struct cmd_modify_qp`.
    pub struct CmdModifyQp: 137 {
        /// Handle.
        0 => qpn: u32,
        /// Attributes to change.
        4 => attr_mask: QpAttrMask,
        /// Their values.
        8 => attrs: QpAttr,
    }
}
request!(CmdModifyQp, ModifyQp, Empty);

wire_struct! {
    /// `struct cmd_query_qp`.
    pub struct CmdQueryQp: 8 {
        /// Handle.
        0 => qpn: u32,
        /// Attributes wanted.
        4 => attr_mask: QpAttrMask,
    }
}

wire_struct! {
    /// `struct rsp_query_qp`.
    pub struct RspQueryQp: 129 {
        /// Attributes.
        0 => attr: QpAttr,
    }
}
request!(CmdQueryQp, QueryQp, RspQueryQp);

wire_struct! {
    /// `struct cmd_destroy_qp`.
    pub struct CmdDestroyQp: 4 {
        /// Handle.
        0 => qpn: u32,
    }
}
request!(CmdDestroyQp, DestroyQp, Empty);

wire_struct! {
    /// `struct cmd_query_pkey`.
    pub struct CmdQueryPkey: 6 {
        /// Port.
        0 => port: u32,
        /// Index into the P_Key table.
        4 => index: u16,
    }
}

wire_struct! {
    /// `struct rsp_query_pkey`.
    pub struct RspQueryPkey: 2 {
        /// The P_Key.
        0 => pkey: u16,
    }
}
request!(CmdQueryPkey, QueryPkey, RspQueryPkey);

wire_struct! {
    /// `struct cmd_add_gid`.
    pub struct CmdAddGid: 26 {
        /// GID, in network byte order.
        0 => gid: [u8; 16],
        /// [`GidType`](super::ib::GidType).
        16 => gid_type: u32,
        /// Index into the GID table.
        20 => index: u16,
        /// Port.
        22 => port_num: u32,
    }
}
request!(CmdAddGid, AddGid, Empty);

wire_struct! {
    /// ADD_GID with [`F_GID_VLAN`](super::config::F_GID_VLAN): packets from and to the address carry a VLAN tag.
    pub struct CmdAddGidVlan: 28 {
        /// The RFC's fields.
        0 => base: CmdAddGid,
        /// VLAN id, 0 to 4094, or [`NO_VLAN`](super::ib::NO_VLAN) for packets without a tag.
        26 => vlan: u16,
    }
}
request!(CmdAddGidVlan, AddGid, Empty);

wire_struct! {
    /// `struct cmd_del_gid`.
    pub struct CmdDelGid: 6 {
        /// Index into the GID table.
        0 => index: u16,
        /// Port.
        2 => port: u32,
    }
}
request!(CmdDelGid, DelGid, Empty);

wire_mask! {
    /// Flags of REQ_NOTIFY_CQ.
    pub struct NotifyFlags: u32 {
        /// The next solicited completion.
        SOLICITED = 1 << 0,
        /// The next completion.
        NEXT_COMPLETION = 1 << 1,
    }
}

wire_struct! {
    /// `struct cmd_req_notify`.
    pub struct CmdReqNotify: 8 {
        /// CQ.
        0 => cqn: u32,
        /// What to notify of.
        4 => flags: NotifyFlags,
    }
}
request!(CmdReqNotify, ReqNotifyCq, Empty);

wire_struct! {
    /// ALLOC_MW, with [`F_MEM_WINDOWS`](super::config::F_MEM_WINDOWS).
    pub struct CmdAllocMw: 8 {
        /// PD.
        0 => pdn: u32,
        /// [`MwType`](super::ib::MwType).
        4 => mw_type: u8,
        /// Reserved, zero.
        5 => reserved: [u8; 3],
    }
}

wire_struct! {
    /// A new memory window, which is not bound.
    pub struct RspAllocMw: 8 {
        /// Handle; bits 31–8 of its R_Keys.
        0 => mwn: u32,
        /// R_Key, which opens nothing before the window is bound.
        4 => rkey: u32,
    }
}
request!(CmdAllocMw, AllocMw, RspAllocMw);

wire_struct! {
    /// DEALLOC_MW, with [`F_MEM_WINDOWS`](super::config::F_MEM_WINDOWS).
    pub struct CmdDeallocMw: 4 {
        /// Handle.
        0 => mwn: u32,
    }
}
request!(CmdDeallocMw, DeallocMw, Empty);

wire_mask! {
    /// What REREG_MR changes: the values of the kernel's `enum ib_mr_rereg_flags`.
    pub struct ReregFlags: u32 {
        /// The memory: `virt_addr`, `length` and pages.
        TRANSLATION = 1 << 0,
        /// `pdn`.
        PD = 1 << 1,
        /// `access_flags`.
        ACCESS = 1 << 2,
    }
}

wire_struct! {
    /// REREG_MR. The keys stay.
    pub struct CmdReregMr: 60 {
        /// MR.
        0 => mrn: u32,
        /// What changes; the fields below of what does not are ignored.
        4 => flags: ReregFlags,
        /// What it becomes.
        8 => memory: CmdRegUserMrPages,
    }
}
request!(CmdReregMr, ReregMr, Empty);

wire_struct! {
    /// CREATE_SRQ.
    pub struct CmdCreateSrq: 52 {
        /// PD, which the local keys of its work requests are checked against.
        0 => pdn: u32,
        /// Outstanding work requests.
        4 => max_wr: u32,
        /// SGEs of a work request.
        8 => max_sge: u32,
        /// Flags: [`CreateFlags::USER`].
        12 => flags: CreateFlags,
        /// Where the ring is.
        16 => ring: RingAddr,
        /// Doorbell page that rings the SRQ.
        40 => doorbell_page: u32,
        /// Cookie of its events.
        44 => cookie: u64,
    }
}

wire_struct! {
    /// Answer to CREATE_SRQ.
    pub struct RspCreateSrq: 4 {
        /// Handle.
        0 => srqn: u32,
    }
}
request!(CmdCreateSrq, CreateSrq, RspCreateSrq);

wire_mask! {
    /// What MODIFY_SRQ changes: the bits of the kernel's `enum ib_srq_attr_mask`.
    pub struct SrqAttrMask: u32 {
        /// `max_wr` and the ring.
        MAX_WR = 1 << 0,
        /// `limit`.
        LIMIT = 1 << 1,
    }
}

wire_struct! {
    /// MODIFY_SRQ. Fields that the mask does not name are zero.
    pub struct CmdModifySrq: 40 {
        /// Handle.
        0 => srqn: u32,
        /// Attributes to change.
        4 => attr_mask: SrqAttrMask,
        /// Outstanding work requests.
        8 => max_wr: u32,
        /// An event is due once fewer work requests than this are left; 0 for none.
        12 => limit: u32,
        /// The ring that takes the place of the present one.
        16 => ring: RingAddr,
    }
}
request!(CmdModifySrq, ModifySrq, Empty);

wire_struct! {
    /// QUERY_SRQ.
    pub struct CmdQuerySrq: 4 {
        /// Handle.
        0 => srqn: u32,
    }
}

wire_struct! {
    /// Answer to QUERY_SRQ.
    pub struct RspQuerySrq: 12 {
        /// Outstanding work requests.
        0 => max_wr: u32,
        /// SGEs of a work request.
        4 => max_sge: u32,
        /// The armed limit; 0 once its event was raised.
        8 => limit: u32,
    }
}
request!(CmdQuerySrq, QuerySrq, RspQuerySrq);

wire_struct! {
    /// DESTROY_SRQ.
    pub struct CmdDestroySrq: 4 {
        /// Handle.
        0 => srqn: u32,
    }
}
request!(CmdDestroySrq, DestroySrq, Empty);

wire_struct! {
    /// RESIZE_CQ.
    pub struct CmdResizeCq: 32 {
        /// Handle.
        0 => cqn: u32,
        /// Number of entries.
        4 => cqe: u32,
        /// The ring that takes the place of the present one.
        8 => ring: RingAddr,
    }
}

wire_struct! {
    /// Answer to RESIZE_CQ.
    pub struct RspResizeCq: 4 {
        /// `used.idx` that the old ring ends with: what completes later is in the new one.
        0 => used_idx: u16,
        /// Reserved, zero.
        2 => reserved: u16,
    }
}
request!(CmdResizeCq, ResizeCq, RspResizeCq);

wire_struct! {
    /// SET_RATE_LIMIT, with [`F_RATE_LIMIT`](super::config::F_RATE_LIMIT).
    pub struct CmdSetRateLimit: 16 {
        /// QP.
        0 => qpn: u32,
        /// Rate in kb/s (1,000 bits a second), 0 for no limit.
        4 => rate_limit: u32,
        /// Burst in bytes, 0 for what the device takes by default.
        8 => max_burst_size: u32,
        /// Typical length of a packet in bytes, 0 for the port's MTU.
        12 => typical_packet_size: u16,
        /// Reserved, zero.
        14 => reserved: [u8; 2],
    }
}
request!(CmdSetRateLimit, SetRateLimit, Empty);

wire_struct! {
    /// ATTACH_MCAST, with [`F_MULTICAST`](super::config::F_MULTICAST).
    pub struct CmdAttachMcast: 20 {
        /// QP.
        0 => qpn: u32,
        /// The group's GID, in network byte order.
        4 => mgid: [u8; 16],
    }
}
request!(CmdAttachMcast, AttachMcast, Empty);

wire_struct! {
    /// DETACH_MCAST, with [`F_MULTICAST`](super::config::F_MULTICAST).
    pub struct CmdDetachMcast: 20 {
        /// QP.
        0 => qpn: u32,
        /// The group's GID, in network byte order.
        4 => mgid: [u8; 16],
    }
}
request!(CmdDetachMcast, DetachMcast, Empty);

wire_struct! {
    /// QUERY_COUNTERS, with [`F_COUNTERS`](super::config::F_COUNTERS).
    pub struct CmdQueryCounters: 1 {
        /// Port.
        0 => port: u8,
    }
}

wire_struct! {
    /// Counters of a port since the device came to be, modulo 2^64. Bytes of packets are those of their Ethernet frames
    /// without FCS.
    pub struct RspQueryCounters: 176 {
        /// Packets sent.
        0 => tx_packets: u64,
        /// Their bytes.
        8 => tx_bytes: u64,
        /// Sound RoCE packets received.
        16 => rx_packets: u64,
        /// Their bytes.
        24 => rx_bytes: u64,
        /// Messages that went to their peer without packets, as requester.
        32 => direct_tx_messages: u64,
        /// Bytes of messages that left without packets.
        40 => direct_tx_bytes: u64,
        /// Messages that came without packets, as responder.
        48 => direct_rx_messages: u64,
        /// Bytes of messages that arrived without packets.
        56 => direct_rx_bytes: u64,
        /// Packets sent again.
        64 => retransmitted_packets: u64,
        /// Answers that did not come in time.
        72 => timeouts: u64,
        /// NAKs sent, RNR NAKs not counted.
        80 => naks_sent: u64,
        /// NAKs received, RNR NAKs not counted.
        88 => naks_received: u64,
        /// RNR NAKs sent.
        96 => rnr_naks_sent: u64,
        /// RNR NAKs received.
        104 => rnr_naks_received: u64,
        /// Requests received that were not the expected ones but later.
        112 => out_of_sequence: u64,
        /// Requests received again.
        120 => duplicates: u64,
        /// Frames received as RoCE that are not sound.
        128 => bad_packets: u64,
        /// Packets received with a wrong P_Key.
        136 => pkey_violations: u64,
        /// Packets received with a wrong Q_Key.
        144 => qkey_violations: u64,
        /// Accesses of peers to memory that their R_Key does not open.
        152 => rkey_violations: u64,
        /// Accesses of own work requests to memory that their L_Key does not open.
        160 => lkey_violations: u64,
        /// Bytes of packets that a rate limit counted, on either path.
        168 => paced_bytes: u64,
    }
}
request!(CmdQueryCounters, QueryCounters, RspQueryCounters);

wire_struct! {
    /// REVOKE_MR, with [`F_PEERS`](super::config::F_PEERS).
    pub struct CmdRevokeMr: 4 {
        /// Handle, which stays the MR's.
        0 => mrn: u32,
    }
}
request!(CmdRevokeMr, RevokeMr, Empty);
