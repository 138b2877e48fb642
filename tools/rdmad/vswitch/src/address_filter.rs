// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! IP addresses that the network interface of a port may claim.
//!
//! A port owns the addresses that are configured for it and the link-local addresses of its MAC
//! addresses. No other port may claim these. A port with configured addresses may claim only
//! addresses that it owns. A frame claims the source address of its IP packet, the sender address
//! of its ARP packet, and the addresses that its neighbour discovery message binds to its sender.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use roce::net::{inspect, link_local, Content, Fragment, Mac};

use crate::index::PortIndex;

const PROTOCOL_ICMPV6: u8 = 58;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;

/// Length in bytes of messages of neighbour discovery without options (RFC 4861, section 4).
const ADVERTISEMENT_LENGTH: usize = 16;
const NEIGHBOUR_LENGTH: usize = 24;
const REDIRECT_LENGTH: usize = 40;

/// The bytes that follow the hardware type of an ARP packet for IPv4 and MAC addresses: protocol
/// type and address lengths. The hardware type is not compared: besides Ethernet, some receivers
/// accept IEEE 802, for example Linux.
const ARP_IPV4: [u8; 4] = [0x08, 0x00, 6, 4];

/// The addresses of all ports.
#[derive(Debug, Default)]
pub(crate) struct AddressFilter {
    owners: HashMap<IpAddr, PortIndex>,
    /// Rules of each port.
    ports: HashMap<PortIndex, Rules>,
}

#[derive(Clone, Debug)]
struct Rules {
    macs: Vec<Mac>,
    /// Whether the port may claim only addresses that it owns, because some are configured.
    restricted: bool,
}

impl AddressFilter {
    /// Adds a port, with the addresses that are configured for it.
    pub(crate) fn add(&mut self, port: PortIndex, macs: Vec<Mac>, given: &[IpAddr]) {
        let own = macs.iter().map(|mac| link_local(*mac).into());
        let addresses = given.iter().copied().chain(own);
        self.owners.extend(addresses.map(|ip| (ip, port)));
        let restricted = !given.is_empty();
        self.ports.insert(port, Rules { macs, restricted });
    }

    /// Removes a port. Another port may then have its addresses.
    pub(crate) fn remove(&mut self, port: PortIndex) {
        self.owners.retain(|_, owner| *owner != port);
        self.ports.remove(&port);
    }

    fn is_restricted(&self, port: PortIndex) -> bool {
        self.ports.get(&port).is_some_and(|rules| rules.restricted)
    }

    /// Whether the network interface of `port` may send a frame.
    pub(crate) fn admit(&self, port: PortIndex, frame: &[u8]) -> bool {
        match inspect(frame) {
            Content::Ip {
                src,
                protocol,
                fragment,
                payload,
            } => {
                (src.is_unspecified() || self.may_claim(port, src))
                    && match (protocol, fragment) {
                        // It completes a first fragment, which is checked.
                        (_, Fragment::Later) => true,
                        (Some(PROTOCOL_ICMPV6), Fragment::First) => may_be_cut(payload),
                        (Some(PROTOCOL_ICMPV6), Fragment::None) => {
                            self.admit_icmpv6(port, src, payload)
                        }
                        // The header chain must end in the first fragment (RFC 7112).
                        (None, Fragment::First) => false,
                        (_, Fragment::First | Fragment::None) => true,
                    }
            }
            Content::Arp(packet) => self.admit_arp(port, packet),
            Content::RoceV1 | Content::Other => true,
        }
    }

    fn may_claim(&self, port: PortIndex, address: IpAddr) -> bool {
        match self.owners.get(&address) {
            Some(owner) => *owner == port,
            None => !self.is_restricted(port),
        }
    }

    fn admit_arp(&self, port: PortIndex, packet: &[u8]) -> bool {
        let Some(Rules { macs, restricted }) = self.ports.get(&port) else {
            return false;
        };
        let fields = packet
            .get(2..)
            .and_then(|packet| packet.strip_prefix(&ARP_IPV4))
            .and_then(|rest| rest.first_chunk::<22>());
        let Some(fields) = fields else {
            // The claims of an unknown form of ARP can't be checked.
            return !*restricted;
        };
        let ip = |at: usize| Ipv4Addr::from([0, 1, 2, 3].map(|n| fields[at + n]));
        let (sender, target) = (ip(8), ip(18));
        // An ARP probe, without a sender address, claims its target (RFC 5227).
        let claimed = if sender.is_unspecified() {
            target
        } else {
            sender
        };
        let is_own = macs.iter().any(|mac| fields[2..8] == *mac);
        (!restricted || is_own) && self.may_claim(port, claimed.into())
    }

    fn admit_icmpv6(&self, port: PortIndex, src: IpAddr, message: &[u8]) -> bool {
        let Some(length) = message.first().and_then(|kind| discovery(*kind)) else {
            return true;
        };
        if message.len() < length {
            return false;
        }
        let may_claim_target = || {
            let target = message.get(8..).and_then(|rest| rest.first_chunk::<16>());
            target.is_some_and(|target| self.may_claim(port, Ipv6Addr::from(*target).into()))
        };
        match message[0] {
            // Duplicate address detection claims its target (RFC 4862).
            NEIGHBOUR_SOLICITATION => !src.is_unspecified() || may_claim_target(),
            NEIGHBOUR_ADVERTISEMENT => may_claim_target(),
            // Router advertisements and redirects make claims about other hosts, so a port with
            // configured addresses may not send them.
            _ => !self.is_restricted(port),
        }
    }
}

/// Smallest length in bytes of an ICMPv6 message that makes claims about addresses. `None` for
/// other messages.
const fn discovery(kind: u8) -> Option<usize> {
    match kind {
        NEIGHBOUR_SOLICITATION | NEIGHBOUR_ADVERTISEMENT => Some(NEIGHBOUR_LENGTH),
        ROUTER_ADVERTISEMENT => Some(ADVERTISEMENT_LENGTH),
        REDIRECT => Some(REDIRECT_LENGTH),
        _ => None,
    }
}

/// Whether an ICMPv6 message with this first part may be sent in fragments: messages of neighbour
/// discovery may not (RFC 6980), and neither may a message whose type is in the next fragment.
fn may_be_cut(message: &[u8]) -> bool {
    message
        .first()
        .is_some_and(|kind| discovery(*kind).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Mac = [0x52, 0x54, 0, 9, 0, 1];
    const THEIRS: Mac = [0x52, 0x54, 0, 9, 0, 2];
    /// Another MAC address of the port with `OURS`.
    const MORE: Mac = [0x52, 0x54, 0, 9, 0, 9];

    fn v4(text: &str) -> [u8; 4] {
        text.parse::<Ipv4Addr>().unwrap().octets()
    }

    fn v6(text: &str) -> [u8; 16] {
        text.parse::<Ipv6Addr>().unwrap().octets()
    }

    /// A frame with a VLAN tag, which must not affect the result.
    fn frame(ethertype: [u8; 2], packet: &[u8]) -> Vec<u8> {
        [&[2; 12][..], &[0x81, 0, 0, 5], &ethertype, packet].concat()
    }

    fn arp(mac: Mac, sender: &str, target: &str) -> Vec<u8> {
        let packet = [
            &[0, 1][..],
            &ARP_IPV4,
            &[0, 1],
            &mac,
            &v4(sender),
            &[0; 6],
            &v4(target),
        ];
        frame([0x08, 0x06], &packet.concat())
    }

    /// An ARP frame with the hardware type of IEEE 802, which Linux accepts too (RFC 1390).
    fn arp_802(mac: Mac, sender: &str, target: &str) -> Vec<u8> {
        let mut frame = arp(mac, sender, target);
        frame[18..20].copy_from_slice(&[0, 6]);
        frame
    }

    fn ipv4(src: &str) -> Vec<u8> {
        let mut header = [0; 28];
        (header[0], header[9]) = (0x45, 17);
        header[12..16].copy_from_slice(&v4(src));
        frame([0x08, 0x00], &header)
    }

    /// The first fragment of an IPv4 packet.
    fn ipv4_fragment(src: &str, protocol: u8) -> Vec<u8> {
        let mut frame = ipv4(src);
        (frame[24], frame[27]) = (0x20, protocol);
        frame
    }

    /// An ICMPv6 message that follows an extension header.
    fn icmpv6(src: &str, kind: u8, target: &str) -> Vec<u8> {
        // A redirect has another address after its target.
        let rest = [0; 16];
        let rest = if kind == REDIRECT { &rest[..] } else { &[] };
        let message = [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &v6(target), rest].concat();
        let header = [
            &[0x60, 0, 0, 0, 0, 8 + message.len() as u8, 60, 255][..],
            &v6(src),
            &[0xff; 16],
            &[PROTOCOL_ICMPV6, 0, 0, 0, 0, 0, 0, 0],
            &message,
        ];
        frame([0x86, 0xdd], &header.concat())
    }

    /// A fragment of an ICMPv6 message, whose first header has the type `first`.
    fn cut(offset: u8, first: u8, bytes: &[u8]) -> Vec<u8> {
        let header = [
            &[0x60, 0, 0, 0, 0, 8 + bytes.len() as u8, 44, 255][..],
            &v6("fe80::5054:ff:fe09:1"),
            &[0xff; 16],
            &[first, 0, 0, (offset << 3) | 1, 0, 0, 0, 9],
            bytes,
        ];
        frame([0x86, 0xdd], &header.concat())
    }

    /// Messages of neighbour discovery are whole, so that their claims can be checked.
    #[test]
    fn neighbour_discovery_is_not_cut() {
        const OPTIONS: u8 = 60;
        let options = [PROTOCOL_ICMPV6, 0, 0, 0, 0, 0, 0, 0];
        let addresses = addresses();
        let may_send = |frame: &[u8]| addresses.admit(PortIndex(0), frame);
        for (kind, length) in [(134, 16), (135, 24), (136, 24), (137, 40)] {
            let target = icmpv6("fe80::5054:ff:fe09:1", kind, "fe80::5054:ff:fe09:1");
            let message = target.len() - length.max(24);
            for end in 1..length {
                assert!(!may_send(&target[..message + end]), "{kind}: {end} bytes");
            }
            let mut whole = target[message..].to_vec();
            whole.resize(length, 0);
            assert!(!may_send(&cut(0, PROTOCOL_ICMPV6, &whole)), "{kind}");
            assert!(!may_send(&cut(0, PROTOCOL_ICMPV6, &whole[..8])), "{kind}");
            let after = [&options[..], &whole].concat();
            assert!(!may_send(&cut(0, OPTIONS, &after)), "{kind}");
        }
        // The type is in the next fragment, which any may follow.
        assert!(!may_send(&cut(0, OPTIONS, &options)));
        assert!(!may_send(&cut(0, OPTIONS, &options[..4])));
        assert!(!may_send(&cut(0, PROTOCOL_ICMPV6, &[])));
        // A long echo request in fragments.
        let echo = [128, 0, 0, 0, 0, 0, 0, 0];
        assert!(may_send(&cut(0, PROTOCOL_ICMPV6, &echo)));
        assert!(may_send(&cut(1, PROTOCOL_ICMPV6, &[136; 24])));
        assert!(may_send(&cut(0, 17, &[0; 8])));
    }

    /// Port 0 has configured addresses, port 1 has none.
    fn addresses() -> AddressFilter {
        let mut addresses = AddressFilter::default();
        let given = ["10.9.0.1", "fd09::1"].map(|ip| ip.parse().unwrap());
        addresses.add(PortIndex(0), vec![OURS, MORE], &given);
        addresses.add(PortIndex(1), vec![THEIRS], &[]);
        addresses
    }

    #[test]
    fn claims_of_addresses() {
        let (own, foreign) = ("fe80::5054:ff:fe09:1", "fe80::5054:ff:fe09:2");
        let cases = [
            // The frame, whether port 0 may send it, and whether port 1 may send it.
            (ipv4("10.9.0.1"), true, false),
            (ipv4("10.9.0.7"), false, true),
            (ipv4("0.0.0.0"), true, true),
            // An authentication header (IPsec), which is an extension header in IPv6 only.
            (ipv4_fragment("10.9.0.1", 51), true, false),
            (ipv4_fragment("10.9.0.7", 51), false, true),
            (arp(OURS, "10.9.0.1", "10.9.0.2"), true, false),
            (arp(OURS, "10.9.0.7", "10.9.0.2"), false, true),
            (arp(OURS, "0.0.0.0", "10.9.0.1"), true, false),
            (arp(OURS, "0.0.0.0", "10.9.0.7"), false, true),
            (arp(THEIRS, "10.9.0.1", "10.9.0.2"), false, false),
            (arp(MORE, "10.9.0.1", "10.9.0.2"), true, false),
            (arp_802(OURS, "10.9.0.1", "10.9.0.2"), true, false),
            (arp_802(OURS, "10.9.0.7", "10.9.0.2"), false, true),
            (icmpv6("fd09::1", 128, "::"), true, false),
            (icmpv6("fd09::7", 128, "::"), false, true),
            (icmpv6(own, 135, "fd09::7"), true, false),
            (icmpv6(foreign, 135, "fd09::7"), false, true),
            (icmpv6("fe80::5054:ff:fe09:9", 135, "fd09::7"), true, false),
            (icmpv6("::", 135, "fd09::1"), true, false),
            (icmpv6("::", 135, "fd09::7"), false, true),
            (icmpv6(own, 136, "fd09::1"), true, false),
            (icmpv6(own, 136, "fd09::7"), false, false),
            (icmpv6("fd09::9", 136, "fd09::1"), false, false),
            (icmpv6("fd09::9", 136, "fd09::7"), false, true),
            (icmpv6(own, 134, "::"), false, false),
            (icmpv6("fd09::9", 134, "::"), false, true),
            (icmpv6("fd09::9", 137, "::"), false, true),
            (frame([0x08, 0x06], &[0; 28]), false, true),
            (frame([0x88, 0xb5], b"no IP"), true, true),
        ];
        let addresses = addresses();
        for (number, (frame, ours, theirs)) in cases.into_iter().enumerate() {
            let admitted = [0, 1].map(|port| addresses.admit(PortIndex(port), &frame));
            assert_eq!(admitted, [ours, theirs], "case {number}: {frame:02x?}");
        }
    }
}
