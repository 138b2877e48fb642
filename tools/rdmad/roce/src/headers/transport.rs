// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! All headers of a packet.

use crate::opcode::Op;
use crate::work::{AtomicOp, FlushLevel, FlushOp, Remote, With};

use super::bytes::{Reader, Writer};
use super::{Aeth, AtomicEth, Bth, Deth, Feth, Reth};

/// BTH and extended headers of one packet. Which of the latter are there follows from the opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// Base header.
    pub bth: Bth,
    /// Datagram header.
    pub deth: Option<Deth>,
    /// FLUSH header.
    pub feth: Option<Feth>,
    /// RDMA header.
    pub reth: Option<Reth>,
    /// Atomic header.
    pub atomic: Option<AtomicEth>,
    /// ACK header.
    pub aeth: Option<Aeth>,
    /// Original value, of the atomic acknowledgement's header.
    pub atomic_ack: Option<u64>,
    /// Immediate data in network byte order.
    pub imm: Option<[u8; 4]>,
    /// R_Key to invalidate.
    pub invalidate: Option<u32>,
}

impl Transport {
    /// Headers with nothing but a BTH so far.
    pub const fn new(bth: Bth) -> Self {
        Self {
            bth,
            deth: None,
            feth: None,
            reth: None,
            atomic: None,
            aeth: None,
            atomic_ack: None,
            imm: None,
            invalidate: None,
        }
    }

    /// Whether exactly those extended headers are there that the opcode calls for.
    pub fn is_complete(&self) -> bool {
        let opcode = self.bth.opcode;
        self.deth.is_some() == opcode.has_deth()
            && self.feth.is_some() == opcode.has_feth()
            && self.reth.is_some() == opcode.has_reth()
            && self.atomic.is_some() == opcode.has_atomic()
            && self.aeth.is_some() == opcode.has_aeth()
            && self.atomic_ack.is_some() == opcode.has_atomic_ack()
            && self.imm.is_some() == opcode.has_imm()
            && self.invalidate.is_some() == opcode.has_ieth()
    }

    /// What a SEND or WRITE carries besides its message.
    pub(crate) fn with(&self) -> With {
        match (self.imm, self.invalidate) {
            (Some(imm), _) => With::Imm(imm),
            (None, Some(rkey)) => With::Inv(rkey),
            (None, None) => With::Nothing,
        }
    }

    /// The atomic operation and its word; `None` for other packets.
    pub(crate) fn atomic_op(&self) -> Option<(Remote, AtomicOp)> {
        let header = self.atomic?;
        let op = match self.bth.opcode.op {
            Op::CompareSwap => AtomicOp::CompareSwap {
                compare: header.compare,
                swap: header.swap_add,
            },
            Op::FetchAdd => AtomicOp::FetchAdd {
                add: header.swap_add,
            },
            _ => return None,
        };
        let word = Remote {
            va: header.va,
            rkey: header.rkey,
        };
        Some((word, op))
    }

    /// What a FLUSH asks for; `None` for other packets.
    pub(crate) fn flush_op(&self) -> Option<FlushOp> {
        let (feth, reth) = (self.feth?, self.reth?);
        Some(FlushOp {
            remote: reth.remote(),
            length: match feth.level {
                FlushLevel::Range => Some(reth.length),
                FlushLevel::Mr => None,
            },
            types: feth.types,
        })
    }

    /// Bytes on the wire.
    pub fn size(&self) -> usize {
        let present = |there: bool, size: usize| if there { size } else { 0 };
        Bth::SIZE
            + present(self.deth.is_some(), Deth::SIZE)
            + present(self.feth.is_some(), Feth::SIZE)
            + present(self.reth.is_some(), Reth::SIZE)
            + present(self.atomic.is_some(), AtomicEth::SIZE)
            + present(self.aeth.is_some(), Aeth::SIZE)
            + present(self.atomic_ack.is_some(), 8)
            + present(self.imm.is_some(), 4)
            + present(self.invalidate.is_some(), 4)
    }

    /// Reads the extended headers behind `bth` and returns what follows them; `None` if bytes are
    /// missing or an AETH or FETH has a reserved value.
    pub(crate) fn decode(bth: Bth, bytes: &[u8]) -> Option<(Self, &[u8])> {
        let opcode = bth.opcode;
        let mut transport = Self::new(bth);
        let mut reader = Reader::new(bytes);
        if opcode.has_deth() {
            transport.deth = Some(Deth::decode(reader.array()?));
        }
        if opcode.has_feth() {
            transport.feth = Some(Feth::decode(reader.array()?)?);
        }
        if opcode.has_reth() {
            transport.reth = Some(Reth::decode(reader.array()?));
        }
        if opcode.has_atomic() {
            transport.atomic = Some(AtomicEth::decode(reader.array()?));
        }
        if opcode.has_aeth() {
            transport.aeth = Some(Aeth::decode(reader.array()?)?);
        }
        if opcode.has_atomic_ack() {
            transport.atomic_ack = Some(u64::from_be_bytes(reader.array()?));
        }
        if opcode.has_imm() {
            transport.imm = Some(reader.array()?);
        }
        if opcode.has_ieth() {
            transport.invalidate = Some(u32::from_be_bytes(reader.array()?));
        }
        Some((transport, reader.rest()))
    }

    /// Writes the headers to `out`, which holds at least [`size`](Self::size) bytes.
    pub(crate) fn encode(&self, out: &mut [u8]) {
        let mut writer = Writer::new(out);
        writer.put(self.bth.encode());
        if let Some(deth) = &self.deth {
            writer.put(deth.encode());
        }
        if let Some(feth) = &self.feth {
            writer.put(feth.encode());
        }
        if let Some(reth) = &self.reth {
            writer.put(reth.encode());
        }
        if let Some(atomic) = &self.atomic {
            writer.put(atomic.encode());
        }
        if let Some(aeth) = &self.aeth {
            writer.put(aeth.encode());
        }
        if let Some(original) = self.atomic_ack {
            writer.put(original.to_be_bytes());
        }
        if let Some(imm) = self.imm {
            writer.put(imm);
        }
        if let Some(rkey) = self.invalidate {
            writer.put(rkey.to_be_bytes());
        }
    }
}
