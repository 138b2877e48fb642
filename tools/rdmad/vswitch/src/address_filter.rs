// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! IP addresses that the network interface of a port may claim.
//!
//! A port owns the addresses that are configured for it and the link-local address of its MAC
//! address. No other port may claim these. A port with configured addresses may claim only
//! addresses that it owns. A frame claims the source address of its IP packet, the sender address
//! of its ARP packet, and the addresses that its neighbour discovery message binds to its sender.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use roce::net::{inspect, link_local, Content, Mac};

use crate::index::PortIndex;

const PROTOCOL_ICMPV6: u8 = 58;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;

/// The bytes that follow the hardware type of an ARP packet for IPv4 and MAC addresses: protocol
/// type and address lengths. The hardware type is not compared: besides Ethernet, some receivers
/// accept IEEE 802, for example Linux.
const ARP_IPV4: [u8; 4] = [0x08, 0x00, 6, 4];

/// The addresses of all ports.
#[derive(Debug, Default)]
pub(crate) struct AddressFilter {
    owners: HashMap<IpAddr, PortIndex>,
    /// Rules of each port, by the index of its seat.
    ports: HashMap<PortIndex, Rules>,
}

#[derive(Clone, Copy, Debug)]
struct Rules {
    mac: Mac,
    /// Whether the port may claim only addresses that it owns, because some are configured.
    restricted: bool,
}

impl AddressFilter {
    /// Adds a port, with the addresses that are configured for it.
    pub(crate) fn add(&mut self, port: PortIndex, mac: Mac, given: &[IpAddr]) {
        let own = [IpAddr::V6(link_local(mac))];
        let addresses = given.iter().chain(&own);
        self.owners.extend(addresses.map(|ip| (*ip, port)));
        let restricted = !given.is_empty();
        self.ports.insert(port, Rules { mac, restricted });
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
                payload,
            } => {
                (src.is_unspecified() || self.may_claim(port, src))
                    && (protocol != PROTOCOL_ICMPV6 || self.admit_icmpv6(port, src, payload))
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
        let Some(&Rules { mac, restricted }) = self.ports.get(&port) else {
            return false;
        };
        let fields = packet
            .get(2..)
            .and_then(|packet| packet.strip_prefix(&ARP_IPV4))
            .and_then(|rest| rest.first_chunk::<22>());
        let Some(fields) = fields else {
            // The claims of an unknown form of ARP can't be checked.
            return !restricted;
        };
        let ip = |at: usize| Ipv4Addr::from([0, 1, 2, 3].map(|n| fields[at + n]));
        let (sender, target) = (ip(8), ip(18));
        // An ARP probe, without a sender address, claims its target (RFC 5227).
        let claimed = if sender.is_unspecified() {
            target
        } else {
            sender
        };
        (!restricted || fields[2..8] == mac) && self.may_claim(port, claimed.into())
    }

    fn admit_icmpv6(&self, port: PortIndex, src: IpAddr, message: &[u8]) -> bool {
        let target = || {
            let bytes: &[u8; 16] = message.get(8..)?.first_chunk()?;
            Some(IpAddr::V6(Ipv6Addr::from(*bytes)))
        };
        let may_claim_target = || target().is_none_or(|target| self.may_claim(port, target));
        match message.first() {
            // Duplicate address detection claims its target (RFC 4862).
            Some(&NEIGHBOUR_SOLICITATION) if src.is_unspecified() => may_claim_target(),
            Some(&NEIGHBOUR_ADVERTISEMENT) => may_claim_target(),
            // Router advertisements and redirects make claims about other hosts, so a port with
            // configured addresses may not send them.
            Some(&(ROUTER_ADVERTISEMENT | REDIRECT)) => !self.is_restricted(port),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Mac = [0x52, 0x54, 0, 9, 0, 1];
    const THEIRS: Mac = [0x52, 0x54, 0, 9, 0, 2];

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

    /// An ICMPv6 message that follows an extension header.
    fn icmpv6(src: &str, kind: u8, target: &str) -> Vec<u8> {
        let message = [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &v6(target)].concat();
        let header = [
            &[0x60, 0, 0, 0, 0, 32, 60, 255][..],
            &v6(src),
            &[0xff; 16],
            &[PROTOCOL_ICMPV6, 0, 0, 0, 0, 0, 0, 0],
            &message,
        ];
        frame([0x86, 0xdd], &header.concat())
    }

    /// Port 0 has configured addresses, port 1 has none.
    fn addresses() -> AddressFilter {
        let mut addresses = AddressFilter::default();
        let given = ["10.9.0.1", "fd09::1"].map(|ip| ip.parse().unwrap());
        addresses.add(PortIndex(0), OURS, &given);
        addresses.add(PortIndex(1), THEIRS, &[]);
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
            (arp(OURS, "10.9.0.1", "10.9.0.2"), true, false),
            (arp(OURS, "10.9.0.7", "10.9.0.2"), false, true),
            (arp(OURS, "0.0.0.0", "10.9.0.1"), true, false),
            (arp(OURS, "0.0.0.0", "10.9.0.7"), false, true),
            (arp(THEIRS, "10.9.0.1", "10.9.0.2"), false, false),
            (arp_802(OURS, "10.9.0.1", "10.9.0.2"), true, false),
            (arp_802(OURS, "10.9.0.7", "10.9.0.2"), false, true),
            (icmpv6("fd09::1", 128, "::"), true, false),
            (icmpv6("fd09::7", 128, "::"), false, true),
            (icmpv6(own, 135, "fd09::7"), true, false),
            (icmpv6(foreign, 135, "fd09::7"), false, true),
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
