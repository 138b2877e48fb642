// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Encoding of work requests as WQEs.

use virtio_rdma_abi::ib::{SendFlags, WrOpcode};
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::{
    AddressVector, Atomic, BindMw, Datagram, Member, Rdma, Sge, SqHeader, INLINE_OFFSET,
};

use super::{Mr, Qp};

/// A send work request.
#[derive(Clone)]
pub struct Wr {
    pub id: u64,
    pub opcode: WrOpcode,
    pub flags: SendFlags,
    pub imm: [u8; 4],
    pub sges: Vec<Sge>,
    pub inline: Option<Vec<u8>>,
    /// Remote memory of RDMA and atomic operations.
    pub remote: Rdma,
    /// Operands of an atomic operation: compare value or addend, and swap value.
    pub operands: [u64; 2],
    /// Destination of a datagram.
    pub to: Option<Datagram>,
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
            operands: [0; 2],
            to: None,
        }
    }

    /// Adds an SGE of `len` bytes of `mr` from `offset` on.
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

    pub fn operands(mut self, compare_add: u64, swap: u64) -> Self {
        self.operands = [compare_add, swap];
        self
    }

    /// Addresses a datagram to `peer`.
    pub fn to(mut self, peer: &Qp<'_>) -> Self {
        self.to = Some(Datagram {
            remote_qpn: peer.qpn,
            remote_qkey: peer.options.qkey,
            av: AddressVector {
                port: 1,
                pdn: peer.vm.pdn,
                sl_tclass_flowlabel: 0,
                dgid: peer.vm.gid,
                gid_index: 1,
                static_rate: 0,
                hop_limit: 64,
                dmac: peer.vm.mac,
                reserved: [0; 6],
            },
        });
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
        let [compare_add, swap] = self.operands;
        match (self.opcode, self.to) {
            (WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd, _) => Atomic {
                remote_addr: self.remote.remote_addr,
                compare_add,
                swap,
                rkey: self.remote.rkey,
            }
            .store(&mut header.wr),
            (_, Some(to)) => to.store(&mut header.wr),
            _ => self.remote.store(&mut header.wr),
        }
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

/// A WQE without SGEs, with the value `ex` in the field of the same name and `member` in the
/// header's union.
pub fn wqe(id: u64, opcode: WrOpcode, ex: u32, member: &impl Member) -> Vec<u8> {
    let mut wr = Wr::new(id, opcode).bytes();
    let mut header = SqHeader::from_bytes(wr[..SqHeader::SIZE].try_into().unwrap());
    header.ex = ex.to_le_bytes();
    member.store(&mut header.wr);
    wr[..SqHeader::SIZE].copy_from_slice(&header.to_bytes());
    wr
}

/// A LOCAL_INV of `key`.
pub fn local_inv(id: u64, key: u32) -> Vec<u8> {
    wqe(id, WrOpcode::LocalInv, key, &BindMw::ZERO)
}

pub fn sge(mr: &Mr, offset: u64, len: u32) -> Sge {
    Sge {
        addr: mr.addr + offset,
        length: len,
        lkey: mr.key,
    }
}

/// Splits the first `len` bytes of `mr` into `count` SGEs of different lengths, some of them empty.
pub fn split(mr: &Mr, len: u32, count: u32) -> Vec<Sge> {
    let mut sges = Vec::new();
    let mut at = 0;
    for index in 0..count {
        let left = len - at;
        let part = if index + 1 == count {
            left
        } else {
            (left / 3 + index % 2).min(left)
        };
        sges.push(sge(mr, at.into(), part));
        at += part;
    }
    sges
}
