// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The base transport header.

use virtio_rdma_abi::number::Qpn;

use crate::psn::Psn;

use super::bytes::be24;

/// Base transport header without its opcode, which is part of [`Body`](super::Body). Reserved bits
/// are sent as zero and ignored on receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// Whether the receiver raises a solicited event when the message completes.
    pub solicited: bool,
    /// Path migration request: 1 if the QP is in the state Migrated. A QP without an alternate path
    /// is always in this state (IBTA 17.2.8). Ignored on receipt, since rxe sends 0.
    pub migrate: bool,
    /// Number of pad bytes after the payload, 0 to 3.
    pub pad: u8,
    /// P_Key.
    pub pkey: u16,
    /// Forward congestion notification (FECN).
    pub fecn: bool,
    /// Backward congestion notification (BECN).
    pub becn: bool,
    /// QPN of the receiver.
    pub dest_qpn: Qpn,
    /// The sender requests an acknowledgement.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Size of the header in bytes.
    pub const SIZE: usize = 12;

    /// A header without flags, except for `migrate`, and without padding.
    pub const fn new(pkey: u16, dest_qpn: Qpn, psn: Psn) -> Self {
        Self {
            solicited: false,
            migrate: true,
            pad: 0,
            pkey,
            fecn: false,
            becn: false,
            dest_qpn,
            ack_req: false,
            psn,
        }
    }

    /// The header in `bytes`, its opcode and its transport version.
    pub(crate) fn decode(bytes: &[u8; Self::SIZE]) -> (Self, u8, u8) {
        let flags = bytes[1];
        let bth = Self {
            solicited: flags & 0x80 != 0,
            migrate: flags & 0x40 != 0,
            pad: (flags >> 4) & 3,
            pkey: u16::from_be_bytes([bytes[2], bytes[3]]),
            fecn: bytes[4] & 0x80 != 0,
            becn: bytes[4] & 0x40 != 0,
            dest_qpn: Qpn::from_be_bytes([bytes[5], bytes[6], bytes[7]]),
            ack_req: bytes[8] & 0x80 != 0,
            psn: Psn::new(be24(&bytes[9..])),
        };
        (bth, bytes[0], flags & 0x0f)
    }

    pub(super) fn encode(&self, opcode: u8) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[0] = opcode;
        bytes[1] =
            (u8::from(self.solicited) << 7) | (u8::from(self.migrate) << 6) | ((self.pad & 3) << 4);
        bytes[2..4].copy_from_slice(&self.pkey.to_be_bytes());
        bytes[5..8].copy_from_slice(&self.dest_qpn.to_be_bytes());
        bytes[4] = (u8::from(self.fecn) << 7) | (u8::from(self.becn) << 6);
        bytes[8..].copy_from_slice(&self.psn.value().to_be_bytes());
        bytes[8] = u8::from(self.ack_req) << 7;
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bth_bytes() {
        let mut bth = Bth::new(0x8001, Qpn::new(0x12_3456), Psn::new(0xab_cdef));
        bth.solicited = true;
        bth.pad = 3;
        bth.becn = true;
        bth.ack_req = true;
        let bytes = bth.encode(0x03);
        assert_eq!(
            bytes,
            [0x03, 0xf0, 0x80, 0x01, 0x40, 0x12, 0x34, 0x56, 0x80, 0xab, 0xcd, 0xef]
        );
        assert_eq!(Bth::decode(&bytes), (bth, 0x03, 0));
        bth.fecn = true;
        assert_eq!(bth.encode(0x03)[4], 0xc0);
        assert_eq!(Bth::decode(&bth.encode(0x03)), (bth, 0x03, 0));
    }
}
