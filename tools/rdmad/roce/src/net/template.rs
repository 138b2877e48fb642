// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Headers of packets along a path, encoded once.

use super::{fill_ip, length_field, Path};
use super::{ETH_SIZE, IPV4_SIZE, IPV6_SIZE, UDP_SIZE, VLAN_SIZE};

/// Size in bytes of the shortest headers.
const MIN: usize = ETH_SIZE + IPV4_SIZE + UDP_SIZE;
/// Size in bytes of the longest headers.
const MAX: usize = ETH_SIZE + VLAN_SIZE + IPV6_SIZE + UDP_SIZE;

/// The encoded Ethernet, IP and UDP headers of packets along a path, without the fields in which
/// packets differ: lengths, IPv4 identification and IPv4 header checksum.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    bytes: [u8; MAX],
    /// Size of the headers in bytes.
    size: usize,
    /// Offset of the IP header.
    ip: usize,
    /// [Sum](Path::ipv4_sum) of the IP header.
    ipv4_sum: Option<u64>,
}

impl Template {
    /// The template of packets along `path`.
    pub fn of(path: &Path) -> Self {
        let (ip, size) = (path.ip_offset(), path.size());
        let mut bytes = [0; MAX];
        path.encode(&mut bytes[..size]);
        Self {
            bytes,
            size,
            ip,
            ipv4_sum: path.ipv4_sum(&bytes[ip..size - UDP_SIZE]),
        }
    }

    /// Size of the headers in bytes.
    pub(crate) const fn size(&self) -> usize {
        self.size
    }

    /// Offset of the IP header.
    pub(crate) const fn ip_offset(&self) -> usize {
        self.ip
    }

    /// Writes the headers of a UDP payload of `payload` bytes to the front of `out`.
    pub(crate) fn write(&self, ident: u16, payload: usize, out: &mut [u8]) {
        let out = &mut out[..self.size];
        // The first part has a constant length, and is all that IPv4 without a VLAN tag needs.
        let (head, tail) = out.split_at_mut(MIN);
        head.copy_from_slice(&self.bytes[..MIN]);
        if !tail.is_empty() {
            tail.copy_from_slice(&self.bytes[MIN..self.size]);
        }
        let udp_length = UDP_SIZE + payload;
        let (headers, udp) = out.split_at_mut(self.size - UDP_SIZE);
        fill_ip(self.ipv4_sum, ident, udp_length, &mut headers[self.ip..]);
        udp[4..6].copy_from_slice(&length_field(udp_length).to_be_bytes());
    }
}
