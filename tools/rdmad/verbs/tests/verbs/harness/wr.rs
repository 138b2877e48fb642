// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Work requests as bytes.

use virtio_rdma_abi::ib::{SendFlags, WrOpcode};
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::{Member, Rdma, Sge, SqHeader, INLINE_OFFSET};

use super::Mr;

/// A send work request.
#[derive(Clone)]
pub struct Wr {
    pub id: u64,
    pub opcode: WrOpcode,
    pub flags: SendFlags,
    pub imm: [u8; 4],
    pub sges: Vec<Sge>,
    pub inline: Option<Vec<u8>>,
    pub remote: Rdma,
}

impl Wr {
    pub fn new(id: u64, opcode: WrOpcode) -> Self {
        Self {
            id,
            opcode,
            flags: SendFlags::SIGNALED,
            imm: [0; 4],
            sges: Vec::new(),
            inline: None,
            remote: Rdma::ZERO,
        }
    }

    /// Adds `len` bytes of `mr` from `offset` on.
    pub fn local(mut self, mr: &Mr, offset: u64, len: u32) -> Self {
        self.sges.push(sge(mr, offset, len));
        self
    }

    pub fn remote(mut self, mr: &Mr, offset: u64) -> Self {
        self.remote = Rdma {
            remote_addr: mr.addr + offset,
            rkey: mr.key,
        };
        self
    }

    pub fn imm(mut self, imm: [u8; 4]) -> Self {
        self.imm = imm;
        self
    }

    pub fn flags(mut self, flags: SendFlags) -> Self {
        self.flags = flags;
        self
    }

    pub fn inline(mut self, data: &[u8]) -> Self {
        self.flags = self.flags | SendFlags::INLINE;
        self.inline = Some(data.to_vec());
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut header = SqHeader {
            num_sge: self.sges.len() as u32,
            send_flags: self.flags,
            opcode: self.opcode.value(),
            wr_id: self.id,
            ex: self.imm,
            wr: [0; 51],
        };
        self.remote.store(&mut header.wr);
        let mut sges = self.sges.clone();
        if let Some(data) = &self.inline {
            header.num_sge = 1;
            sges = vec![Sge {
                addr: 0,
                length: data.len() as u32,
                lkey: 0,
            }];
        }
        let mut bytes = header.to_bytes().to_vec();
        for sge in sges {
            bytes.extend(sge.to_bytes());
        }
        if let Some(data) = &self.inline {
            assert_eq!(bytes.len(), INLINE_OFFSET);
            bytes.extend(data);
        }
        bytes
    }
}

pub fn sge(mr: &Mr, offset: u64, len: u32) -> Sge {
    Sge {
        addr: mr.addr + offset,
        length: len,
        lkey: mr.key,
    }
}
