// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Extended transport headers.

use virtio_rdma_abi::ib::{FlushLevel, FlushTypes, MASK_24};
use virtio_rdma_abi::number::Qpn;

use crate::work::Remote;

use super::bytes::{be24, be32, be64};

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
    pub(crate) const SIZE: usize = 16;

    /// Address and R_Key of the range.
    pub const fn remote(&self) -> Remote {
        Remote {
            va: self.va,
            rkey: self.rkey,
        }
    }

    pub(super) fn decode(bytes: [u8; Self::SIZE]) -> Self {
        Self {
            va: be64(&bytes),
            rkey: be32(&bytes[8..]),
            length: be32(&bytes[12..]),
        }
    }

    pub(super) fn encode(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&self.va.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }
}

/// FLUSH extended transport header (IBTA A19.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feth {
    /// Placement types: whether the data must be globally visible, persistent or both.
    pub types: FlushTypes,
    /// Whether the FLUSH covers a range or the whole MR.
    pub level: FlushLevel,
}

impl Feth {
    pub(crate) const SIZE: usize = 4;

    /// The header in `bytes`; `None` if its level or one of its types is reserved.
    pub(super) fn decode(bytes: [u8; Self::SIZE]) -> Option<Self> {
        // The types are in bits 3-0, the level is in bits 5-4.
        let [_, _, _, low] = bytes;
        let types = FlushTypes(low & 0xf);
        (!types.has_unknown()).then_some(())?;
        let level = FlushLevel::try_from((low >> 4) & 0x3).ok()?;
        Some(Self { types, level })
    }

    pub(super) fn encode(&self) -> [u8; Self::SIZE] {
        [0, 0, 0, (self.level.value() << 4) | self.types.0]
    }
}

/// Atomic extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Virtual address.
    pub va: u64,
    /// R_Key.
    pub rkey: u32,
    /// New value of a compare-and-swap, or addend of a fetch-and-add.
    pub swap_add: u64,
    /// Expected value of a compare-and-swap.
    pub compare: u64,
}

impl AtomicEth {
    pub(crate) const SIZE: usize = 28;

    /// Address and R_Key of the word.
    pub const fn remote(&self) -> Remote {
        Remote {
            va: self.va,
            rkey: self.rkey,
        }
    }

    pub(super) fn decode(bytes: [u8; Self::SIZE]) -> Self {
        Self {
            va: be64(&bytes),
            rkey: be32(&bytes[8..]),
            swap_add: be64(&bytes[12..]),
            compare: be64(&bytes[20..]),
        }
    }

    pub(super) fn encode(&self) -> [u8; Self::SIZE] {
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

    /// The syndrome that `byte` encodes; `None` for a reserved value.
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

    /// The byte that encodes this syndrome.
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
    pub(crate) const SIZE: usize = 4;

    /// Whether the header is a positive acknowledgement, not a NAK or RNR NAK.
    pub(crate) const fn is_ack(&self) -> bool {
        matches!(self.syndrome, Syndrome::Ack(_))
    }

    pub(super) fn decode(bytes: [u8; Self::SIZE]) -> Option<Self> {
        Some(Self {
            syndrome: Syndrome::decode(bytes[0])?,
            msn: be24(&bytes[1..]),
        })
    }

    pub(super) fn encode(&self) -> [u8; Self::SIZE] {
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
    pub src_qpn: Qpn,
}

impl Deth {
    pub(crate) const SIZE: usize = 8;

    pub(super) fn decode(bytes: [u8; Self::SIZE]) -> Self {
        Self {
            qkey: be32(&bytes),
            src_qpn: Qpn::from_be_bytes([bytes[5], bytes[6], bytes[7]]),
        }
    }

    pub(super) fn encode(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..4].copy_from_slice(&self.qkey.to_be_bytes());
        bytes[5..].copy_from_slice(&self.src_qpn.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes() {
        let mut known = 0;
        for low in 0..=0x3f {
            if let Some(feth) = Feth::decode([0, 0, 0, low]) {
                assert_eq!(feth.encode(), [0, 0, 0, low]);
                known += 1;
            }
        }
        assert_eq!(known, 4 * 2);
        let persistent = Feth {
            types: FlushTypes::PERSISTENT,
            level: FlushLevel::Mr,
        };
        assert_eq!(persistent.encode(), [0, 0, 0, 0x12]);
    }

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
}
