// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Numbers and layouts from `Documentation/abi.md` and its parts. This copy of `rust/shared/abi`
//! exists on purpose: otherwise both sides of each test would share a mistake in `rust/shared/abi`.

/// Feature bits.
pub const RING_ADDR: u64 = 1 << 0;
pub const MR_PAGES: u64 = 1 << 1;
pub const REG_PAGES: u64 = 1 << 2;
pub const GID_VLAN: u64 = 1 << 3;
pub const MEM_WINDOWS: u64 = 1 << 4;
pub const SRQ: u64 = 1 << 5;
pub const RESIZE_CQ: u64 = 1 << 6;
pub const MULTICAST: u64 = 1 << 8;
pub const ATOMIC_WRITE: u64 = 1 << 10;
pub const FLUSH: u64 = 1 << 11;
/// Required feature bits of virtio: VERSION_1, ACCESS_PLATFORM, RING_RESET.
pub const REQUIRED: u64 = (1 << 32) | (1 << 33) | (1 << 40);

/// Commands of the control queue.
pub mod command {
    pub const QUERY_PORT: u8 = 1;
    pub const CREATE_CQ: u8 = 2;
    pub const DESTROY_CQ: u8 = 3;
    pub const CREATE_PD: u8 = 4;
    pub const DESTROY_PD: u8 = 5;
    pub const CREATE_MR: u8 = 7;
    pub const REG_USER_MR: u8 = 9;
    pub const DEREG_MR: u8 = 10;
    pub const CREATE_QP: u8 = 11;
    pub const MODIFY_QP: u8 = 12;
    pub const QUERY_QP: u8 = 13;
    pub const DESTROY_QP: u8 = 14;
    pub const QUERY_PKEY: u8 = 15;
    pub const ADD_GID: u8 = 16;
    pub const DEL_GID: u8 = 17;
    pub const REQ_NOTIFY_CQ: u8 = 18;
    pub const ALLOC_MW: u8 = 19;
    pub const DEALLOC_MW: u8 = 20;
    pub const CREATE_SRQ: u8 = 21;
    pub const MODIFY_SRQ: u8 = 22;
    pub const QUERY_SRQ: u8 = 23;
    pub const DESTROY_SRQ: u8 = 24;
    pub const RESIZE_CQ: u8 = 25;
    pub const ATTACH_MCAST: u8 = 27;
    pub const DETACH_MCAST: u8 = 28;
}

/// Error numbers in responses.
pub const ENOMEM: u8 = 12;
pub const EBUSY: u8 = 16;
pub const EEXIST: u8 = 17;
pub const EINVAL: u8 = 22;

/// Kinds of queues in doorbell values.
pub mod doorbell {
    pub const SQ: u32 = 1;
    pub const RQ: u32 = 2;
    pub const CQ: u32 = 3;
}

/// Kinds of events.
pub const COMPLETION: u32 = 0;
pub const QP_FATAL: u32 = 0x101;
pub const QP_REQ_ERR: u32 = 0x102;
pub const QP_ACCESS_ERR: u32 = 0x103;
pub const PORT_ACTIVE: u32 = 0x109;
pub const PORT_ERR: u32 = 0x10a;
pub const SRQ_LIMIT_REACHED: u32 = 0x10f;
pub const QP_LAST_WQE_REACHED: u32 = 0x110;

/// Access flags.
pub const LOCAL_WRITE: u32 = 1 << 0;
pub const REMOTE_WRITE: u32 = 1 << 1;
pub const REMOTE_READ: u32 = 1 << 2;
pub const REMOTE_ATOMIC: u32 = 1 << 3;
pub const MW_BIND: u32 = 1 << 4;
pub const FLUSH_GLOBAL: u32 = 1 << 8;

/// QP types.
pub const RC: u8 = 2;
pub const UD: u8 = 4;

/// States of a QP.
pub mod state {
    pub const RESET: u8 = 0;
    pub const INIT: u8 = 1;
    pub const RTR: u8 = 2;
    pub const RTS: u8 = 3;
    pub const SQD: u8 = 4;
    pub const ERR: u8 = 6;
}

/// Bits of `attr_mask`.
pub mod attribute {
    pub const STATE: u32 = 1 << 0;
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const PORT: u32 = 1 << 5;
    pub const QKEY: u32 = 1 << 6;
    pub const AV: u32 = 1 << 7;
    pub const PATH_MTU: u32 = 1 << 8;
    pub const TIMEOUT: u32 = 1 << 9;
    pub const RETRY_CNT: u32 = 1 << 10;
    pub const RNR_RETRY: u32 = 1 << 11;
    pub const RQ_PSN: u32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    pub const SQ_PSN: u32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub const DEST_QPN: u32 = 1 << 20;
}

/// Opcodes of send work requests.
pub mod opcode {
    pub const RDMA_WRITE: u32 = 0;
    pub const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub const SEND: u32 = 2;
    pub const SEND_WITH_IMM: u32 = 3;
    pub const RDMA_READ: u32 = 4;
    pub const ATOMIC_CMP_AND_SWP: u32 = 5;
    pub const ATOMIC_FETCH_AND_ADD: u32 = 6;
    pub const LOCAL_INV: u32 = 7;
    pub const BIND_MW: u32 = 8;
    pub const SEND_WITH_INV: u32 = 9;
    pub const FLUSH: u32 = 14;
    pub const ATOMIC_WRITE: u32 = 15;
    pub const REG_MR: u32 = 0x20;
}

/// Flags of send work requests.
pub const FENCE: u32 = 1 << 0;
pub const SIGNALED: u32 = 1 << 1;
pub const SOLICITED: u32 = 1 << 2;
pub const INLINE: u32 = 1 << 3;

/// Opcodes of receives in CQEs.
pub const RECEIVED: u32 = 0x80;
pub const RECEIVED_WRITE: u32 = 0x81;

/// Flags of CQEs.
pub const GRH: u32 = 1 << 0;
pub const WITH_IMM: u32 = 1 << 1;
pub const WITH_INVALIDATE: u32 = 1 << 2;
pub const WITH_NETWORK_HDR_TYPE: u32 = 1 << 6;

/// Statuses of CQEs.
pub const SUCCESS: u8 = 0;
pub const LOC_QP_OP_ERR: u8 = 2;
pub const WR_FLUSH_ERR: u8 = 5;
pub const MW_BIND_ERR: u8 = 6;
pub const REM_INV_REQ_ERR: u8 = 9;
pub const REM_ACCESS_ERR: u8 = 10;
pub const REM_OP_ERR: u8 = 11;

/// Builder of a packed structure, field by field.
#[derive(Clone, Default)]
pub struct Fields(pub Vec<u8>);

impl Fields {
    pub fn u8(self, value: u8) -> Fields {
        self.raw(&[value])
    }

    pub fn le16(self, value: u16) -> Fields {
        self.raw(&value.to_le_bytes())
    }

    pub fn le32(self, value: u32) -> Fields {
        self.raw(&value.to_le_bytes())
    }

    pub fn le64(self, value: u64) -> Fields {
        self.raw(&value.to_le_bytes())
    }

    pub fn raw(mut self, bytes: &[u8]) -> Fields {
        self.0.extend(bytes);
        self
    }

    /// Pads the structure with zeroes to `len` bytes.
    pub fn zeroes(mut self, len: usize) -> Fields {
        assert!(self.0.len() <= len);
        self.0.resize(len, 0);
        self
    }
}

pub fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

pub fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// A scatter/gather element: a range of local memory.
#[derive(Clone, Copy)]
pub struct Sge {
    pub address: u64,
    pub length: u32,
    pub lkey: u32,
}

fn with_sges(header: Fields, sges: &[Sge]) -> Vec<u8> {
    // abi: R-608
    let add = |wqe: Fields, sge: &Sge| wqe.le64(sge.address).le32(sge.length).le32(sge.lkey);
    sges.iter().fold(header, add).0
}

/// The WQE of a receive.
pub fn receive(wr_id: u64, sges: &[Sge]) -> Vec<u8> {
    // abi: R-672
    let header = Fields::default().le32(sges.len() as u32).le64(wr_id);
    with_sges(header, sges)
}

/// A send work request without its SGEs.
#[derive(Clone, Default)]
pub struct Send {
    pub wr_id: u64,
    pub opcode: u32,
    pub flags: u32,
    /// Immediate data as raw bytes, or the key to invalidate in little-endian byte order.
    pub ex: [u8; 4],
    /// Encoded member of the WQE's union.
    pub union: Vec<u8>,
}

impl Send {
    /// A signaled work request.
    pub fn new(opcode: u32, wr_id: u64) -> Send {
        Send {
            wr_id,
            opcode,
            flags: SIGNALED,
            ..Send::default()
        }
    }

    /// Sets the remote address and R_Key.
    pub fn to(self, address: u64, rkey: u32) -> Send {
        // abi
        self.member(Fields::default().le64(address).le32(rkey))
    }

    /// Sets the member of the union.
    pub fn member(mut self, fields: Fields) -> Send {
        self.union = fields.0;
        self
    }

    /// Sets `ex`.
    pub fn ex(mut self, ex: [u8; 4]) -> Send {
        self.ex = ex;
        self
    }

    /// Sets the flags.
    pub fn flags(mut self, flags: u32) -> Send {
        self.flags = flags;
        self
    }

    /// Encodes the header. The bytes of the union after its member are not 0.
    fn header(&self, num_sge: usize) -> Fields {
        // abi: R-600
        let mut header = Fields::default()
            .le32(num_sge as u32)
            .le32(self.flags)
            .le32(self.opcode)
            .le64(self.wr_id)
            .raw(&self.ex)
            .raw(&self.union);
        header.0.resize(75, 0x5a);
        header
    }

    /// Encodes the WQE with the payload in `sges`.
    pub fn with(&self, sges: &[Sge]) -> Vec<u8> {
        with_sges(self.header(sges.len()), sges)
    }

    /// Encodes the WQE with inline data.
    pub fn inline(self, payload: &[u8]) -> Vec<u8> {
        let flags = self.flags | INLINE;
        // abi: R-641
        let described = Sge {
            address: 0,
            length: payload.len() as u32,
            lkey: 0,
        };
        let mut wqe = with_sges(self.flags(flags).header(1), &[described]);
        wqe.extend(payload);
        wqe
    }
}

/// A completion.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cqe {
    pub wr_id: u64,
    pub status: u8,
    pub opcode: u8,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub ex: [u8; 4],
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: u32,
    pub pkey_index: u16,
    pub sl: u8,
    pub port_num: u8,
}

impl Cqe {
    pub const SIZE: usize = 38;

    /// The CQE of a successful send work request.
    pub fn sent(qpn: u32, wr_id: u64, opcode: u32, byte_len: u32) -> Cqe {
        Cqe {
            wr_id,
            status: SUCCESS,
            opcode: opcode as u8,
            byte_len,
            qp_num: qpn,
            port_num: 1,
            ..Cqe::default()
        }
    }

    /// The CQE of a successful receive.
    pub fn received(qpn: u32, wr_id: u64, byte_len: u32) -> Cqe {
        Cqe::sent(qpn, wr_id, RECEIVED, byte_len)
    }

    pub fn new(bytes: &[u8]) -> Cqe {
        // abi: R-681
        Cqe {
            wr_id: le64(bytes, 0),
            status: bytes[8],
            opcode: bytes[9],
            vendor_err: le32(bytes, 10),
            byte_len: le32(bytes, 14),
            ex: bytes[18..22].try_into().unwrap(),
            qp_num: le32(bytes, 22),
            src_qp: le32(bytes, 26),
            wc_flags: le32(bytes, 30),
            pkey_index: u16::from_le_bytes([bytes[34], bytes[35]]),
            sl: bytes[36],
            port_num: bytes[37],
        }
    }

    /// The fields that are valid in a CQE with an error: ID, status, QPN, and whether the work
    /// request is a receive.
    pub fn failure(&self) -> (u64, u8, u32, bool) {
        (self.wr_id, self.status, self.qp_num, self.opcode >= 0x80)
    }
}
