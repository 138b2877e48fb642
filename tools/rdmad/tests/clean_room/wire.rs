// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Numbers and layouts, typed from `Documentation/abi.md` and its parts. They are the second copy
//! on purpose: a mistake of the first one would otherwise be on both sides of each test.

/// Feature bits.
pub const RING_ADDR: u64 = 1 << 0;
pub const MR_PAGES: u64 = 1 << 1;
pub const GID_VLAN: u64 = 1 << 3;
/// The bits of virtio that each driver needs: VERSION_1, ACCESS_PLATFORM, RING_RESET.
pub const REQUIRED: u64 = (1 << 32) | (1 << 33) | (1 << 40);

/// Commands of the control queue.
pub mod command {
    pub const QUERY_PORT: u8 = 1;
    pub const CREATE_CQ: u8 = 2;
    pub const DESTROY_CQ: u8 = 3;
    pub const CREATE_PD: u8 = 4;
    pub const DESTROY_PD: u8 = 5;
    pub const REG_USER_MR: u8 = 9;
    pub const DEREG_MR: u8 = 10;
    pub const CREATE_QP: u8 = 11;
    pub const MODIFY_QP: u8 = 12;
    pub const QUERY_QP: u8 = 13;
    pub const DESTROY_QP: u8 = 14;
    pub const QUERY_PKEY: u8 = 15;
    pub const ADD_GID: u8 = 16;
    pub const DEL_GID: u8 = 17;
}

/// Errnos of responses.
pub const EBUSY: u8 = 16;
pub const EEXIST: u8 = 17;
pub const EINVAL: u8 = 22;

/// Queues that a doorbell names.
pub mod doorbell {
    pub const SQ: u32 = 1;
    pub const RQ: u32 = 2;
    pub const CQ: u32 = 3;
}

/// Events.
pub const COMPLETION: u32 = 0;
pub const QP_ACCESS_ERR: u32 = 0x103;
pub const PORT_ACTIVE: u32 = 0x109;
pub const PORT_ERR: u32 = 0x10a;

/// Access flags.
pub const LOCAL_WRITE: u32 = 1 << 0;
pub const REMOTE_WRITE: u32 = 1 << 1;

/// States of a QP.
pub mod state {
    pub const RESET: u8 = 0;
    pub const INIT: u8 = 1;
    pub const RTR: u8 = 2;
    pub const RTS: u8 = 3;
    pub const ERR: u8 = 6;
}

/// Bits of `attr_mask`.
pub mod attribute {
    pub const STATE: u32 = 1 << 0;
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const PORT: u32 = 1 << 5;
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
    pub const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub const SEND: u32 = 2;
}

/// Flags of send work requests.
pub const SIGNALED: u32 = 1 << 1;
pub const SOLICITED: u32 = 1 << 2;
pub const INLINE: u32 = 1 << 3;

/// Opcodes of receives in CQEs.
pub const RECEIVED: u8 = 0x80;
pub const RECEIVED_WRITE: u8 = 0x81;

/// Flags of CQEs.
pub const WITH_IMM: u32 = 1 << 1;

/// Statuses of CQEs.
pub const SUCCESS: u8 = 0;
pub const WR_FLUSH_ERR: u8 = 5;
pub const REM_ACCESS_ERR: u8 = 10;

/// Bytes of a structure, field after field.
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

    /// Zeroes up to `len` bytes in all.
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

/// A piece of local memory.
#[derive(Clone, Copy)]
pub struct Sge {
    pub address: u64,
    pub length: u32,
    pub lkey: u32,
}

fn with_sges(header: Fields, sges: &[Sge]) -> Vec<u8> {
    let add = |wqe: Fields, sge: &Sge| wqe.le64(sge.address).le32(sge.length).le32(sge.lkey);
    sges.iter().fold(header, add).0
}

/// A receive work request.
pub fn receive(wr_id: u64, sges: &[Sge]) -> Vec<u8> {
    let header = Fields::default().le32(sges.len() as u32).le64(wr_id);
    with_sges(header, sges)
}

/// A send work request but for its SGEs.
#[derive(Clone, Copy, Default)]
pub struct Send {
    pub wr_id: u64,
    pub opcode: u32,
    pub flags: u32,
    /// Raw immediate data.
    pub immediate: [u8; 4],
    /// Address and R_Key of the peer's memory.
    pub remote: Option<(u64, u32)>,
}

impl Send {
    fn header(&self, num_sge: usize) -> Fields {
        let mut header = Fields::default()
            .le32(num_sge as u32)
            .le32(self.flags)
            .le32(self.opcode)
            .le64(self.wr_id)
            .raw(&self.immediate);
        if let Some((address, rkey)) = self.remote {
            header = header.le64(address).le32(rkey);
        }
        header.zeroes(75)
    }

    /// The WQE with the payload in `sges`.
    pub fn with(&self, sges: &[Sge]) -> Vec<u8> {
        with_sges(self.header(sges.len()), sges)
    }

    /// The WQE with the payload inside.
    pub fn inline(mut self, payload: &[u8]) -> Vec<u8> {
        self.flags |= INLINE;
        let described = Sge {
            address: 0,
            length: payload.len() as u32,
            lkey: 0,
        };
        let mut wqe = with_sges(self.header(1), &[described]);
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

    pub fn new(bytes: &[u8]) -> Cqe {
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

    /// The fields that are valid in a CQE with an error: ID, status, QPN and whether it is of a
    /// receive.
    pub fn failure(&self) -> (u64, u8, u32, bool) {
        (self.wr_id, self.status, self.qp_num, self.opcode >= 0x80)
    }
}
