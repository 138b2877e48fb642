// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Invariant CRC (IBTA 7.8.1; annex A17 for RoCEv2).
//!
//! The ICRC is a CRC-32 over 8 bytes of 0xff, in place of a local route header, and the packet from
//! its IP header to the end of the padding. Bits that a router may change are replaced by ones:
//! traffic class, flow label, hop limit or TTL, the IPv4 header checksum, the UDP checksum, and the
//! BTH byte with FECN and BECN.

use crc32fast::Hasher;

use crate::headers::Bth;
use crate::net::{IPV4_SIZE, IPV6_SIZE, UDP_SIZE};

/// Size in bytes of the ICRC at the end of a packet.
pub const ICRC_SIZE: usize = 4;

const ROUTE_HEADER: usize = 8;
const MASKED: usize = ROUTE_HEADER + IPV6_SIZE + UDP_SIZE + Bth::SIZE;

/// An incremental ICRC computation: the headers first, then the rest in any number of pieces.
#[derive(Clone, Debug)]
pub struct Icrc(Hasher);

impl Icrc {
    /// Starts the computation with the headers of a packet, from the IP header to the BTH.
    ///
    /// # Panics
    /// If `headers` does not have the total length of an IPv4 or IPv6 header, a UDP header and a
    /// BTH.
    pub fn new(headers: &[u8]) -> Self {
        let mut bytes = [0xff; MASKED];
        let masked = &mut bytes[..ROUTE_HEADER + headers.len()];
        let copy = &mut masked[ROUTE_HEADER..];
        copy.copy_from_slice(headers);
        let ip = match headers.len() - UDP_SIZE - Bth::SIZE {
            IPV4_SIZE => {
                copy[1] = 0xff;
                copy[8] = 0xff;
                copy[10..12].fill(0xff);
                IPV4_SIZE
            }
            IPV6_SIZE => {
                copy[0] |= 0x0f;
                copy[1..4].fill(0xff);
                copy[7] = 0xff;
                IPV6_SIZE
            }
            other => panic!("no IP header has {other} bytes"),
        };
        copy[ip + 6..ip + UDP_SIZE].fill(0xff);
        copy[ip + UDP_SIZE + 4] = 0xff;
        let mut hasher = Hasher::new();
        hasher.update(masked);
        Self(hasher)
    }

    /// Adds the next bytes of the packet.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The ICRC in wire order, to be placed after the padding.
    pub fn finish(self) -> [u8; ICRC_SIZE] {
        self.0.finalize().to_le_bytes()
    }
}
