// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A lenient frame parser, for filters that must recognize every form of a packet that any receiver
//! accepts.
//!
//! The engine accepts few forms: at most one VLAN tag, no SNAP, no IP options, no extension
//! headers, no fragments. Other receivers accept more forms, so this parser skips all these
//! headers. It finds headers only by their types and lengths. It does not verify checksums: the
//! receiver of the frame does.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, PROTOCOL_UDP, ROCE_PORT};

const ETHERTYPE_ARP: u16 = 0x0806;
/// EtherType of a provider VLAN tag (IEEE 802.1ad).
const ETHERTYPE_PROVIDER_VLAN: u16 = 0x88a8;
/// EtherType of provider VLAN tags before IEEE 802.1ad.
const ETHERTYPE_OLD_PROVIDER_VLAN: u16 = 0x9100;
const ETHERTYPE_ROCE_V1: u16 = 0x8915;

/// Smallest EtherType. A smaller value of the field is the length of the frame (IEEE 802.3).
const SMALLEST_ETHERTYPE: u16 = 0x600;
/// LLC and SNAP header; an EtherType follows (RFC 1042).
const SNAP: [u8; 6] = [0xaa, 0xaa, 3, 0, 0, 0];

const IPV4_FRAGMENT_OFFSET: u16 = 0x1fff;
const IPV4_MORE_FRAGMENTS: u16 = 0x2000;

const EXTENSION_HOP_BY_HOP: u8 = 0;
const EXTENSION_ROUTING: u8 = 43;
const EXTENSION_FRAGMENT: u8 = 44;
const EXTENSION_AUTHENTICATION: u8 = 51;
const EXTENSION_DESTINATION: u8 = 60;
const EXTENSION_MOBILITY: u8 = 135;
const EXTENSION_HOST_IDENTITY: u8 = 139;
const EXTENSION_SHIM6: u8 = 140;

/// The payload of a frame after all of its VLAN tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// An IP packet.
    Ip {
        /// Source address.
        src: IpAddr,
        /// Protocol number of the header after IP options and extension headers. `None` if the
        /// packet ends before the last extension header does, which only IPv6 has.
        protocol: Option<u8>,
        /// Whether the packet is a fragment of a larger one.
        fragment: Fragment,
        /// Bytes from the header of `protocol` on; empty in a fragment that is not the first.
        payload: &'a [u8],
    },
    /// An ARP packet.
    Arp(&'a [u8]),
    /// A packet of RoCE version 1, which has no IP header.
    RoceV1,
    /// Anything else, or an IP header that no receiver can read.
    Other,
}

/// Whether a packet is a fragment of a larger one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// The packet is whole.
    None,
    /// The first fragment, also one that no other follows.
    First,
    /// A later fragment.
    Later,
}

/// Reads a frame as far as its upper-layer protocol.
pub fn inspect(frame: &[u8]) -> Content<'_> {
    ethernet(frame).unwrap_or(Content::Other)
}

/// Whether any receiver may treat a frame as RoCE, version 1 or 2, or as the first fragment of a
/// RoCE packet. True of every frame for which [`is_roce`](super::is_roce) is true, and of every
/// first fragment that leaves the UDP port to the next one.
pub fn carries_roce(frame: &[u8]) -> bool {
    match inspect(frame) {
        Content::RoceV1 => true,
        Content::Ip {
            protocol: None,
            fragment: Fragment::First,
            ..
        } => true,
        Content::Ip {
            protocol: Some(PROTOCOL_UDP),
            fragment,
            payload,
            ..
        } => half(payload, 2).map_or(fragment == Fragment::First, |port| port == ROCE_PORT),
        Content::Ip { .. } | Content::Arp(_) | Content::Other => false,
    }
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*bytes))
}

fn ethernet(frame: &[u8]) -> Option<Content<'_>> {
    let mut at = 12;
    loop {
        let ethertype = half(frame, at)?;
        let packet = &frame[at + 2..];
        match ethertype {
            ETHERTYPE_VLAN | ETHERTYPE_PROVIDER_VLAN | ETHERTYPE_OLD_PROVIDER_VLAN => at += 4,
            ETHERTYPE_IPV4 => return ipv4(packet),
            ETHERTYPE_IPV6 => return ipv6(packet),
            ETHERTYPE_ARP => return Some(Content::Arp(packet)),
            ETHERTYPE_ROCE_V1 => return Some(Content::RoceV1),
            0..SMALLEST_ETHERTYPE if packet.starts_with(&SNAP) => at += 2 + SNAP.len(),
            _ => return None,
        }
    }
}

fn ipv4(packet: &[u8]) -> Option<Content<'_>> {
    let header: &[u8; 20] = packet.first_chunk()?;
    // The header length is in 32-bit words.
    let length = 4 * usize::from(header[0] & 0xf);
    if header[0] >> 4 != 4 || length < header.len() {
        return None;
    }
    let src: &[u8; 4] = header[12..].first_chunk()?;
    let place = half(header, 6)?;
    let fragment = match (place & IPV4_FRAGMENT_OFFSET, place & IPV4_MORE_FRAGMENTS) {
        (0, 0) => Fragment::None,
        (0, _) => Fragment::First,
        _ => Fragment::Later,
    };
    Some(Content::Ip {
        src: Ipv4Addr::from(*src).into(),
        protocol: Some(header[9]),
        fragment,
        payload: match fragment {
            Fragment::Later => &[],
            Fragment::None | Fragment::First => packet.get(length..).unwrap_or_default(),
        },
    })
}

fn ipv6(packet: &[u8]) -> Option<Content<'_>> {
    let (header, mut payload) = packet.split_first_chunk::<40>()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let src: &[u8; 16] = header[8..].first_chunk()?;
    let mut protocol = header[6];
    let mut fragment = Fragment::None;
    // The loop ends: each extension header shortens the payload by at least 8 bytes.
    while let Some((length, is_first)) = extension(protocol, payload) {
        if protocol == EXTENSION_FRAGMENT && fragment != Fragment::Later {
            fragment = match is_first {
                true => Fragment::First,
                false => Fragment::Later,
            };
        }
        protocol = payload[0];
        payload = if is_first {
            payload.get(length..).unwrap_or_default()
        } else {
            &[]
        };
    }
    Some(Content::Ip {
        src: Ipv6Addr::from(*src).into(),
        protocol: Some(protocol).filter(|protocol| !is_extension(*protocol)),
        fragment,
        payload,
    })
}

/// Whether a header of IPv6 is an extension header, so that another one follows. In IPv4 these
/// numbers are ordinary protocols.
const fn is_extension(kind: u8) -> bool {
    matches!(
        kind,
        EXTENSION_HOP_BY_HOP
            | EXTENSION_ROUTING
            | EXTENSION_FRAGMENT
            | EXTENSION_AUTHENTICATION
            | EXTENSION_DESTINATION
            | EXTENSION_MOBILITY
            | EXTENSION_HOST_IDENTITY
            | EXTENSION_SHIM6
    )
}

/// Length of the extension header of type `kind` at the front of `bytes`, in bytes, and whether the
/// upper-layer header follows: it does not in a later fragment. `None` if `kind` is an upper-layer
/// protocol or bytes are missing.
fn extension(kind: u8, bytes: &[u8]) -> Option<(usize, bool)> {
    let &[_, units, high, low, ..] = bytes else {
        return None;
    };
    let units = usize::from(units);
    match kind {
        _ if !is_extension(kind) => None,
        EXTENSION_AUTHENTICATION => Some((4 * (units + 2), true)),
        // The fragment offset, in units of 8 bytes, is above three flag bits.
        EXTENSION_FRAGMENT => Some((8, u16::from_be_bytes([high, low]) >> 3 == 0)),
        _ => Some((8 * (units + 1), true)),
    }
}
