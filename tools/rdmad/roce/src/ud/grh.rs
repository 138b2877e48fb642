// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The GRH, which the receive buffers of a datagram contain before its payload.

use crate::headers::{Bth, Deth};
use crate::icrc::ICRC_SIZE;
use crate::net::{Addresses, Path, IPV4_SIZE, UDP_SIZE};

/// Size in bytes of the GRH that precedes each datagram in the receive buffers.
pub const GRH_SIZE: usize = 40;

/// The bytes in place of the GRH for a datagram with the IP header `header` (IBTA annex A17): the
/// IPv6 header, which has the layout of a GRH, or 20 zero bytes and the IPv4 header.
pub(super) fn received(header: &[u8]) -> [u8; GRH_SIZE] {
    let mut image = [0; GRH_SIZE];
    let size = header.len().min(GRH_SIZE);
    image[GRH_SIZE - size..].copy_from_slice(&header[..size]);
    image
}

/// The bytes in place of the GRH for a datagram that is transferred without a packet. A packet with
/// `path` and the IPv4 identification `ident` would result in the same bytes.
///
/// `transport` is the length of such a packet from the BTH to the ICRC in bytes, see
/// [`transport_size`].
pub fn grh(path: &Path, ident: u16, transport: usize) -> [u8; GRH_SIZE] {
    let mut image = [0; GRH_SIZE];
    let header = match path.addresses {
        Addresses::V4(..) => &mut image[GRH_SIZE - IPV4_SIZE..],
        Addresses::V6(..) => &mut image[..],
    };
    path.encode_ip(ident, UDP_SIZE + transport, header);
    image
}

/// Length of a datagram's packet from the BTH to the ICRC in bytes. `imm` is set if the datagram
/// has immediate data.
pub const fn transport_size(payload: usize, imm: bool) -> usize {
    let headers = Bth::SIZE + Deth::SIZE + if imm { 4 } else { 0 };
    headers + payload.next_multiple_of(4) + ICRC_SIZE
}
