// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Bytes of a receive ahead of a datagram.

use crate::headers::{Bth, Deth};
use crate::icrc::ICRC_SIZE;
use crate::net::{Addresses, Path, IPV4_SIZE, UDP_SIZE};

/// Bytes ahead of each datagram in its receive.
pub const GRH_SIZE: usize = 40;

/// Bytes that receives have ahead of a datagram that came with this IP header (IBTA annex A17): the
/// IPv6 header, which is laid out as a GRH, or 20 bytes of zero and then the IPv4 header.
pub(super) fn received(header: &[u8]) -> [u8; GRH_SIZE] {
    let mut image = [0; GRH_SIZE];
    let size = header.len().min(GRH_SIZE);
    image[GRH_SIZE - size..].copy_from_slice(&header[..size]);
    image
}

/// The same for a datagram that takes `path` without a packet: what the packet's header would be.
///
/// `ident` is the IPv4 identification, `transport` the bytes of the packet from the BTH to the
/// ICRC.
pub fn grh(path: &Path, ident: u16, transport: usize) -> [u8; GRH_SIZE] {
    let mut image = [0; GRH_SIZE];
    let header = match path.addresses {
        Addresses::V4(..) => &mut image[GRH_SIZE - IPV4_SIZE..],
        Addresses::V6(..) => &mut image[..],
    };
    path.encode_ip(ident, UDP_SIZE + transport, header);
    image
}

/// Bytes of a datagram's packet from the BTH to the ICRC.
pub const fn transport_size(payload: usize, imm: bool) -> usize {
    let headers = Bth::SIZE + Deth::SIZE + if imm { 4 } else { 0 };
    headers + payload.next_multiple_of(4) + ICRC_SIZE
}
