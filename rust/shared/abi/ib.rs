// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Constants of the InfiniBand verbs.
//!
//! The numbers are fixed by this ABI. They come from the RFC, which refers to names such as `enum
//! ib_mtu`, from the IBTA, or from this project. Many equal those of the Linux kernel, which may
//! change its numbers at any time. So a driver that passes a number on to the kernel asserts at
//! compile time that both numbers are equal.

use super::number::Qpn;

/// QPN of the GSI QP (IBTA 3.9.2: general service interface).
pub const GSI_QPN: Qpn = Qpn::new(1);
/// Destination QPN of multicast datagrams (IBTA 10.5.2). No QP has this number.
pub const MULTICAST_QPN: Qpn = Qpn::new(0x00ff_ffff);
/// Mask of 24 bits, for QPNs, PSNs and MSNs.
pub const MASK_24: u32 = 0x00ff_ffff;
/// Number of the only port.
pub const PORT: u8 = 1;
/// Value of a VLAN id field for untagged packets.
pub const NO_VLAN: u16 = 0xffff;
/// Largest VLAN id (IEEE 802.1Q: 4095 is reserved).
pub const MAX_VLAN: u16 = 4094;
/// Bytes of the GRH at the start of a datagram's receive buffer.
pub const GRH_SIZE: u32 = 40;
/// Largest service level.
pub const MAX_SL: u8 = 15;
/// P_Key of the default partition, with full membership.
pub const DEFAULT_PKEY: u16 = 0xffff;

wire_enum! {
    /// `enum ib_port_state`.
    pub enum PortState: u8 {
        /// No state change.
        Nop = 0,
        /// Down.
        Down = 1,
        /// Physical link up, not yet configured.
        Init = 2,
        /// Configured, not yet forwarding.
        Armed = 3,
        /// In use.
        Active = 4,
        /// Active, with link errors.
        ActiveDefer = 5,
    }
}

wire_enum! {
    /// `enum ib_port_phys_state`.
    pub enum PortPhysState: u8 {
        /// Sleep.
        Sleep = 1,
        /// Polling.
        Polling = 2,
        /// Disabled.
        Disabled = 3,
        /// Configuration training.
        Training = 4,
        /// Link up.
        LinkUp = 5,
        /// Link error recovery.
        ErrorRecovery = 6,
        /// Physical test.
        Test = 7,
    }
}

wire_enum! {
    /// `enum ib_mtu`.
    pub enum Mtu: u8 {
        /// 256 bytes.
        Mtu256 = 1,
        /// 512 bytes.
        Mtu512 = 2,
        /// 1024 bytes.
        Mtu1024 = 3,
        /// 2048 bytes.
        Mtu2048 = 4,
        /// 4096 bytes.
        Mtu4096 = 5,
    }
}

impl Mtu {
    /// Payload bytes of a packet.
    #[inline]
    pub const fn bytes(self) -> u32 {
        128 << self.value()
    }

    /// Bytes of the longest headers of a packet in an Ethernet payload: IPv6, UDP, BTH, AtomicETH,
    /// ImmDt and ICRC (IBTA A17.5.1).
    const HEADERS: u32 = 40 + 8 + 12 + 28 + 4 + 4;

    /// The largest path MTU whose packets fit an Ethernet MTU of `bytes`, or the smallest one if
    /// none fits.
    pub fn within(bytes: u32) -> Self {
        let fits = |mtu: &&Self| mtu.bytes() + Self::HEADERS <= bytes;
        let fitting = Self::ALL.iter().rev().find(fits);
        fitting.copied().unwrap_or(Self::Mtu256)
    }
}

wire_enum! {
    /// `enum ib_port_speed`: the signalling rate of one lane.
    pub enum PortSpeed: u16 {
        /// 2.5 Gb/s.
        Sdr = 1,
        /// 5 Gb/s.
        Ddr = 2,
        /// 10 Gb/s.
        Qdr = 4,
        /// 10.3 Gb/s.
        Fdr10 = 8,
        /// 14 Gb/s.
        Fdr = 16,
        /// 25.8 Gb/s.
        Edr = 32,
        /// 53 Gb/s.
        Hdr = 64,
        /// 106 Gb/s.
        Ndr = 128,
    }
}

wire_enum! {
    /// `enum ib_port_width`: number of lanes.
    pub enum PortWidth: u8 {
        /// One lane.
        X1 = 1,
        /// Four lanes.
        X4 = 2,
        /// Eight lanes.
        X8 = 4,
        /// Twelve lanes.
        X12 = 8,
        /// Two lanes.
        X2 = 16,
    }
}

wire_mask! {
    /// `enum ib_port_capability_mask_bits`.
    pub struct PortCaps: u32 {
        /// Connection management is supported on this port.
        CM_SUP = 1 << 16,
    }
}

wire_mask! {
    /// `enum ib_access_flags`.
    pub struct AccessFlags: u32 {
        /// Local work requests may write.
        LOCAL_WRITE = 1 << 0,
        /// Peers may write.
        REMOTE_WRITE = 1 << 1,
        /// Peers may read.
        REMOTE_READ = 1 << 2,
        /// Peers may execute atomic operations.
        REMOTE_ATOMIC = 1 << 3,
        /// Memory windows may be bound.
        MW_BIND = 1 << 4,
        /// Addresses in work requests start at 0.
        ZERO_BASED = 1 << 5,
        /// On-demand paging.
        ON_DEMAND = 1 << 6,
        /// The memory consists of huge pages.
        HUGETLB = 1 << 7,
        /// Peers may make data globally visible (FLUSH).
        FLUSH_GLOBAL = 1 << 8,
        /// Peers may make data persistent (FLUSH).
        FLUSH_PERSISTENT = 1 << 9,
        /// Relaxed ordering.
        RELAXED_ORDERING = 1 << 20,
    }
}

wire_enum! {
    /// Type of a memory window.
    pub enum MwType: u8 {
        /// Type 1: any QP of its PD can bind it, repeatedly, and use it.
        One = 1,
        /// Type 2: must be invalidated before it is bound again.
        Two = 2,
    }
}

wire_enum! {
    /// `enum ib_qp_type`.
    pub enum QpType: u8 {
        /// Subnet management interface.
        Smi = 0,
        /// General services interface.
        Gsi = 1,
        /// Reliable connection.
        Rc = 2,
        /// Unreliable connection.
        Uc = 3,
        /// Unreliable datagram.
        Ud = 4,
    }
}

wire_enum! {
    /// `enum ib_sig_type`.
    pub enum SigType: u8 {
        /// Every send work request generates a CQE.
        All = 0,
        /// Only send work requests with [`SendFlags::SIGNALED`] generate a CQE.
        Requested = 1,
    }
}

wire_enum! {
    /// `enum ib_qp_state` (IBTA 10.3.1).
    pub enum QpState: u8 {
        /// Reset.
        Reset = 0,
        /// Initialized.
        Init = 1,
        /// Ready to receive.
        Rtr = 2,
        /// Ready to send.
        Rts = 3,
        /// Send queue drain.
        Sqd = 4,
        /// Send queue error.
        Sqe = 5,
        /// Error.
        Err = 6,
    }
}

wire_enum! {
    /// `enum ib_mig_state`.
    pub enum MigState: u8 {
        /// Migrated.
        Migrated = 0,
        /// Rearm.
        Rearm = 1,
        /// Armed.
        Armed = 2,
    }
}

wire_enum! {
    /// `gid_type` of ADD_GID.
    pub enum GidType: u32 {
        /// RoCE v1, which the device does not support.
        RoceV1 = 1,
        /// RoCE v2: UDP over IPv4 or IPv6.
        RoceV2 = 2,
    }
}

wire_mask! {
    /// `enum ib_ah_flags`.
    pub struct AhFlags: u8 {
        /// The global route is valid.
        GRH = 1 << 0,
    }
}

wire_mask! {
    /// `enum ib_qp_attr_mask`.
    pub struct QpAttrMask: u32 {
        /// `qp_state`.
        STATE = 1 << 0,
        /// `cur_qp_state`.
        CUR_STATE = 1 << 1,
        /// `en_sqd_async_notify`.
        EN_SQD_ASYNC_NOTIFY = 1 << 2,
        /// `qp_access_flags`.
        ACCESS_FLAGS = 1 << 3,
        /// `pkey_index`.
        PKEY_INDEX = 1 << 4,
        /// `port_num`.
        PORT = 1 << 5,
        /// `qkey`.
        QKEY = 1 << 6,
        /// `ah_attr`.
        AV = 1 << 7,
        /// `path_mtu`.
        PATH_MTU = 1 << 8,
        /// `timeout`.
        TIMEOUT = 1 << 9,
        /// `retry_cnt`.
        RETRY_CNT = 1 << 10,
        /// `rnr_retry`.
        RNR_RETRY = 1 << 11,
        /// `rq_psn`.
        RQ_PSN = 1 << 12,
        /// `max_rd_atomic`.
        MAX_QP_RD_ATOMIC = 1 << 13,
        /// `alt_ah_attr`, `alt_pkey_index`, `alt_port_num`, `alt_timeout`.
        ALT_PATH = 1 << 14,
        /// `min_rnr_timer`.
        MIN_RNR_TIMER = 1 << 15,
        /// `sq_psn`.
        SQ_PSN = 1 << 16,
        /// `max_dest_rd_atomic`.
        MAX_DEST_RD_ATOMIC = 1 << 17,
        /// `path_mig_state`.
        PATH_MIG_STATE = 1 << 18,
        /// `cap`.
        CAP = 1 << 19,
        /// `dest_qp_num`.
        DEST_QPN = 1 << 20,
        /// Reserved.
        RESERVED1 = 1 << 21,
        /// Reserved.
        RESERVED2 = 1 << 22,
        /// Reserved.
        RESERVED3 = 1 << 23,
        /// Reserved.
        RESERVED4 = 1 << 24,
        /// `rate_limit`.
        RATE_LIMIT = 1 << 25,
    }
}

wire_enum! {
    /// `enum ib_wr_opcode`.
    pub enum WrOpcode: u32 {
        /// RDMA WRITE.
        RdmaWrite = 0,
        /// RDMA WRITE with immediate data.
        RdmaWriteWithImm = 1,
        /// SEND.
        Send = 2,
        /// SEND with immediate data.
        SendWithImm = 3,
        /// RDMA READ.
        RdmaRead = 4,
        /// Atomic compare and swap.
        AtomicCmpAndSwp = 5,
        /// Atomic fetch and add.
        AtomicFetchAndAdd = 6,
        /// Invalidate a local key.
        LocalInv = 7,
        /// Bind a memory window.
        BindMw = 8,
        /// SEND that invalidates an R_Key of the peer.
        SendWithInv = 9,
        /// RDMA READ that invalidates the local key of its destination.
        RdmaReadWithInv = 11,
        /// FLUSH.
        Flush = 14,
        /// Atomic WRITE.
        AtomicWrite = 15,
        /// Fast registration; kernel clients only.
        RegMr = 0x20,
    }
}

wire_mask! {
    /// Actions of a FLUSH, encoded as in its packet (IBTA A19.4.1).
    pub struct FlushTypes: u8 {
        /// Make data globally visible.
        GLOBAL = 1 << 0,
        /// Make data persistent.
        PERSISTENT = 1 << 1,
    }
}

wire_enum! {
    /// The memory that a FLUSH applies to, encoded as in its packet (IBTA A19.4.1).
    pub enum FlushLevel: u8 {
        /// A range of addresses.
        Range = 0,
        /// The whole MR or window.
        Mr = 1,
    }
}

wire_mask! {
    /// `enum ib_send_flags`.
    pub struct SendFlags: u32 {
        /// Wait until earlier READs and atomic operations are complete.
        FENCE = 1 << 0,
        /// Generate a CQE.
        SIGNALED = 1 << 1,
        /// Request a solicited event at the receiver.
        SOLICITED = 1 << 2,
        /// The payload is in the WQE.
        INLINE = 1 << 3,
        /// Checksum offload of raw packets.
        IP_CSUM = 1 << 4,
    }
}

wire_enum! {
    /// `enum ib_wc_status` (IBTA 11.6.2).
    pub enum WcStatus: u8 {
        /// Success.
        Success = 0,
        /// Local length error.
        LocLenErr = 1,
        /// Local QP operation error.
        LocQpOpErr = 2,
        /// Local EE context operation error.
        LocEecOpErr = 3,
        /// Local protection error.
        LocProtErr = 4,
        /// Work request flushed.
        WrFlushErr = 5,
        /// Memory window bind error.
        MwBindErr = 6,
        /// Bad response.
        BadRespErr = 7,
        /// Local access error.
        LocAccessErr = 8,
        /// Remote invalid request.
        RemInvReqErr = 9,
        /// Remote access error.
        RemAccessErr = 10,
        /// Remote operation error.
        RemOpErr = 11,
        /// Transport retry counter exceeded.
        RetryExcErr = 12,
        /// RNR retry counter exceeded.
        RnrRetryExcErr = 13,
        /// Local RDD violation.
        LocRddViolErr = 14,
        /// Remote invalid RD request.
        RemInvRdReqErr = 15,
        /// Remote aborted.
        RemAbortErr = 16,
        /// Invalid EE context number.
        InvEecnErr = 17,
        /// Invalid EE context state.
        InvEecStateErr = 18,
        /// Fatal error.
        FatalErr = 19,
        /// Response timeout.
        RespTimeoutErr = 20,
        /// General error.
        GeneralErr = 21,
    }
}

wire_mask! {
    /// `wc_flags` of a CQE.
    pub struct WcFlags: u32 {
        /// The first 40 bytes of the receive buffer are a GRH.
        GRH = 1 << 0,
        /// `ex` is immediate data.
        WITH_IMM = 1 << 1,
        /// `ex` is an invalidated R_Key.
        WITH_INVALIDATE = 1 << 2,
        /// The IP checksum was verified.
        IP_CSUM_OK = 1 << 3,
        /// The source MAC address is valid.
        WITH_SMAC = 1 << 4,
        /// The VLAN id is valid.
        WITH_VLAN = 1 << 5,
        /// `sl` is the network header type.
        WITH_NETWORK_HDR_TYPE = 1 << 6,
        /// The completion is solicited: the sender requested a solicited event, or it is an error.
        /// Set only in virtqueue mode.
        SOLICITED = 1 << 31,
    }
}

wire_enum! {
    /// Asynchronous events.
    pub enum AsyncEvent: u8 {
        /// A CQ overflowed or could not be accessed.
        CqErr = 0,
        /// A QP went to ERR by itself.
        QpFatal = 1,
        /// A responder received an invalid request.
        QpReqErr = 2,
        /// A responder detected an access violation.
        QpAccessErr = 3,
        /// The first packet arrived at a QP in RTR.
        CommEst = 4,
        /// A send queue is drained.
        SqDrained = 5,
        /// Path migrated.
        PathMig = 6,
        /// Path migration failed.
        PathMigErr = 7,
        /// The device failed.
        DeviceFatal = 8,
        /// The port became active.
        PortActive = 9,
        /// The port went down.
        PortErr = 10,
        /// LID changed.
        LidChange = 11,
        /// P_Key table changed.
        PkeyChange = 12,
        /// Subnet manager changed.
        SmChange = 13,
        /// An SRQ failed.
        SrqErr = 14,
        /// An SRQ fell below its limit.
        SrqLimitReached = 15,
        /// A QP with an SRQ is in ERR and takes no more receives.
        QpLastWqeReached = 16,
        /// Clients must register again.
        ClientReregister = 17,
        /// The GID table changed.
        GidChange = 18,
    }
}
