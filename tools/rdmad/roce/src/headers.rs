// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Base transport header and extended transport headers (IBTA 9.2 and 9.3), all in network byte order.

use virtio_rdma_abi::ib::MASK_24;

use crate::opcode::{Op, Opcode};
use crate::psn::Psn;
use crate::work::{AtomicOp, Remote, With};

/// Takes values off the front of a slice.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(*head)
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }
}

/// Puts values at the front of a slice that is known to be long enough.
pub(crate) struct Writer<'a>(&'a mut [u8]);

impl<'a> Writer<'a> {
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn put<const N: usize>(&mut self, value: [u8; N]) {
        let (head, tail) = std::mem::take(&mut self.0).split_at_mut(N);
        head.copy_from_slice(&value);
        self.0 = tail;
    }
}

fn be24(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]])
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn be64(bytes: &[u8]) -> u64 {
    (u64::from(be32(bytes)) << 32) | u64::from(be32(&bytes[4..]))
}

/// Base transport header. Reserved bits are sent as zero and ignored on receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// Opcode.
    pub opcode: Opcode,
    /// The receiver shall raise a solicited event.
    pub solicited: bool,
    /// Path migration request. RoCE peers set or clear it at will; this crate clears it and ignores it.
    pub migrate: bool,
    /// Pad bytes behind the payload, 0 to 3.
    pub pad: u8,
    /// P_Key.
    pub pkey: u16,
    /// Forward congestion mark.
    pub fecn: bool,
    /// Backward congestion mark.
    pub becn: bool,
    /// QPN of the receiver.
    pub dest_qpn: u32,
    /// An acknowledgement is requested.
    pub ack_req: bool,
    /// Sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Bytes on the wire.
    pub const SIZE: usize = 12;

    /// A header without flags and padding.
    pub const fn new(opcode: Opcode, pkey: u16, dest_qpn: u32, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            migrate: false,
            pad: 0,
            pkey,
            fecn: false,
            becn: false,
            dest_qpn,
            ack_req: false,
            psn,
        }
    }

    /// The header of these bytes with its transport version; `None` for an unknown opcode.
    pub(crate) fn decode(bytes: &[u8; Self::SIZE]) -> Option<(Self, u8)> {
        let flags = bytes[1];
        let bth = Self {
            opcode: Opcode::decode(bytes[0])?,
            solicited: flags & 0x80 != 0,
            migrate: flags & 0x40 != 0,
            pad: (flags >> 4) & 3,
            pkey: u16::from_be_bytes([bytes[2], bytes[3]]),
            fecn: bytes[4] & 0x80 != 0,
            becn: bytes[4] & 0x40 != 0,
            dest_qpn: be24(&bytes[5..]),
            ack_req: bytes[8] & 0x80 != 0,
            psn: Psn::new(be24(&bytes[9..])),
        };
        Some((bth, flags & 0x0f))
    }

    fn encode(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[0] = self.opcode.encode();
        bytes[1] =
            (u8::from(self.solicited) << 7) | (u8::from(self.migrate) << 6) | ((self.pad & 3) << 4);
        bytes[2..4].copy_from_slice(&self.pkey.to_be_bytes());
        bytes[4..8].copy_from_slice(&(self.dest_qpn & MASK_24).to_be_bytes());
        bytes[4] = (u8::from(self.fecn) << 7) | (u8::from(self.becn) << 6);
        bytes[8..].copy_from_slice(&self.psn.value().to_be_bytes());
        bytes[8] = u8::from(self.ack_req) << 7;
        bytes
    }
}

/// RDMA extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Virtual address.
    pub va: u64,
    /// R_Key.
    pub rkey: u32,
    /// Length of the message in bytes.
    pub length: u32,
}

impl Reth {
    const SIZE: usize = 16;

    /// Where the range starts.
    pub const fn remote(&self) -> Remote {
        Remote {
            va: self.va,
            rkey: self.rkey,
        }
    }

    fn decode(bytes: [u8; Self::SIZE]) -> Self {
        Self {
            va: be64(&bytes),
            rkey: be32(&bytes[8..]),
            length: be32(&bytes[12..]),
        }
    }

    fn encode(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&self.va.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }
}

/// Atomic extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Virtual address.
    pub va: u64,
    /// R_Key.
    pub rkey: u32,
    /// Value to swap in or to add.
    pub swap_add: u64,
    /// Value to compare with.
    pub compare: u64,
}

impl AtomicEth {
    const SIZE: usize = 28;

    fn decode(bytes: [u8; Self::SIZE]) -> Self {
        Self {
            va: be64(&bytes),
            rkey: be32(&bytes[8..]),
            swap_add: be64(&bytes[12..]),
            compare: be64(&bytes[20..]),
        }
    }

    fn encode(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&self.va.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..20].copy_from_slice(&self.swap_add.to_be_bytes());
        bytes[20..].copy_from_slice(&self.compare.to_be_bytes());
        bytes
    }
}

/// Reasons for a NAK (IBTA table 46).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NakCode {
    /// PSN sequence error.
    PsnSequence,
    /// Invalid request.
    InvalidRequest,
    /// Remote access error.
    RemoteAccess,
    /// Remote operational error.
    RemoteOperational,
}

/// Syndrome of an AETH (IBTA 9.7.5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Acknowledgement with a 5-bit credit code.
    Ack(u8),
    /// Receiver not ready, with a 5-bit timer code.
    Rnr(u8),
    /// Negative acknowledgement.
    Nak(NakCode),
}

impl Syndrome {
    /// An acknowledgement without end-to-end credits.
    pub const ACK: Self = Self::Ack(0x1f);

    /// The syndrome of a byte; `None` for reserved ones.
    pub const fn decode(byte: u8) -> Option<Self> {
        let low = byte & 0x1f;
        Some(match byte >> 5 {
            0 => Self::Ack(low),
            1 => Self::Rnr(low),
            3 => Self::Nak(match low {
                0 => NakCode::PsnSequence,
                1 => NakCode::InvalidRequest,
                2 => NakCode::RemoteAccess,
                3 => NakCode::RemoteOperational,
                _ => return None,
            }),
            _ => return None,
        })
    }

    /// The byte of this syndrome.
    pub const fn encode(self) -> u8 {
        match self {
            Self::Ack(credits) => credits & 0x1f,
            Self::Rnr(timer) => 0x20 | (timer & 0x1f),
            Self::Nak(NakCode::PsnSequence) => 0x60,
            Self::Nak(NakCode::InvalidRequest) => 0x61,
            Self::Nak(NakCode::RemoteAccess) => 0x62,
            Self::Nak(NakCode::RemoteOperational) => 0x63,
        }
    }
}

/// ACK extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Syndrome.
    pub syndrome: Syndrome,
    /// Message sequence number, 24 bits.
    pub msn: u32,
}

impl Aeth {
    const SIZE: usize = 4;

    fn decode(bytes: [u8; Self::SIZE]) -> Option<Self> {
        Some(Self {
            syndrome: Syndrome::decode(bytes[0])?,
            msn: be24(&bytes[1..]),
        })
    }

    fn encode(&self) -> [u8; Self::SIZE] {
        let mut bytes = (self.msn & MASK_24).to_be_bytes();
        bytes[0] = self.syndrome.encode();
        bytes
    }
}

/// Datagram extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Q_Key.
    pub qkey: u32,
    /// QPN of the sender.
    pub src_qpn: u32,
}

impl Deth {
    pub(crate) const SIZE: usize = 8;

    fn decode(bytes: [u8; Self::SIZE]) -> Self {
        Self {
            qkey: be32(&bytes),
            src_qpn: be24(&bytes[5..]),
        }
    }

    fn encode(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..4].copy_from_slice(&self.qkey.to_be_bytes());
        bytes[4..].copy_from_slice(&(self.src_qpn & MASK_24).to_be_bytes());
        bytes
    }
}

/// BTH and extended headers of one packet. Which of the latter are there follows from the opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// Base header.
    pub bth: Bth,
    /// Datagram header.
    pub deth: Option<Deth>,
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

    /// Bytes on the wire.
    pub fn size(&self) -> usize {
        let present = |there: bool, size: usize| if there { size } else { 0 };
        Bth::SIZE
            + present(self.deth.is_some(), Deth::SIZE)
            + present(self.reth.is_some(), Reth::SIZE)
            + present(self.atomic.is_some(), AtomicEth::SIZE)
            + present(self.aeth.is_some(), Aeth::SIZE)
            + present(self.atomic_ack.is_some(), 8)
            + present(self.imm.is_some(), 4)
            + present(self.invalidate.is_some(), 4)
    }

    /// Reads the extended headers behind `bth` and returns what follows them; `None` if bytes are missing or an AETH
    /// has a reserved syndrome.
    pub(crate) fn decode(bth: Bth, bytes: &[u8]) -> Option<(Self, &[u8])> {
        let opcode = bth.opcode;
        let mut transport = Self::new(bth);
        let mut reader = Reader::new(bytes);
        if opcode.has_deth() {
            transport.deth = Some(Deth::decode(reader.array()?));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syndromes() {
        let mut known = 0;
        for byte in 0..=255 {
            if let Some(syndrome) = Syndrome::decode(byte) {
                assert_eq!(syndrome.encode(), byte);
                known += 1;
            }
        }
        assert_eq!(known, 32 + 32 + 4);
        assert_eq!(Syndrome::ACK.encode(), 0x1f);
        assert_eq!(Syndrome::decode(0x2c), Some(Syndrome::Rnr(12)));
    }

    #[test]
    fn bth_bytes() {
        use crate::opcode::{Extra, Position};
        let mut bth = Bth::new(
            Opcode::rc(Op::Send(Position::Last, Extra::Imm)),
            0x8001,
            0x12_3456,
            Psn::new(0xab_cdef),
        );
        bth.solicited = true;
        bth.pad = 3;
        bth.becn = true;
        bth.ack_req = true;
        let bytes = bth.encode();
        assert_eq!(
            bytes,
            [0x03, 0xb0, 0x80, 0x01, 0x40, 0x12, 0x34, 0x56, 0x80, 0xab, 0xcd, 0xef]
        );
        assert_eq!(Bth::decode(&bytes), Some((bth, 0)));
    }
}
