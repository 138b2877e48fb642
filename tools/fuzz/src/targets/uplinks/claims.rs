// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! IP addresses that network interfaces claim by ARP, neighbour discovery and source addresses.

use std::net::{IpAddr, Ipv6Addr};

use roce::net::{inspect, link_local, Content, Fragment, Mac};

use super::ledger::{mac, ADDRESS};
use crate::input::Input;

/// The IPv4 address that is configured for port 1, if that port is restricted.
pub const SECOND: [u8; 4] = [10, 0, 0, 2];
/// Addresses that are not configured for any port.
const STRANGER_V4: [u8; 4] = [10, 0, 0, 3];
const STRANGER_V6: [u8; 16] = [0xfd; 16];
const NONE_V4: [u8; 4] = [0; 4];
const NONE_V6: [u8; 16] = [0; 16];
const ICMPV6: u8 = 58;
const DESTINATION_OPTIONS: u8 = 60;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const ECHO: u8 = 128;
/// ICMPv6 types of router messages, which make claims about other hosts.
const ROUTER: u8 = 134;
const REDIRECT: u8 = 137;
/// Padding after a claim, in which the frame's number is stored.
const PAD: [u8; 8] = [0; 8];

/// The bytes after a frame's Ethernet addresses: a claim by the interface with the MAC address
/// `own`.
pub fn claim(input: &mut Input<'_>, own: Mac) -> Vec<u8> {
    let v4 = [ADDRESS, SECOND, STRANGER_V4, NONE_V4];
    let v6 = [
        link_local(mac(0)).octets(),
        link_local(mac(1)).octets(),
        STRANGER_V6,
        NONE_V6,
    ];
    let mut head = match input.below(4) {
        0 => vec![0x81, 0, 0, 5],
        // IEEE 802: a length and a SNAP header instead of the EtherType.
        1 => vec![0, 100, 0xaa, 0xaa, 3, 0, 0, 0],
        _ => vec![],
    };
    let packet = match input.below(4) {
        0..=1 => {
            let hardware = input.of(&[1, 6, 15]);
            let operation = input.of(&[1, 2]);
            let from = input.of(&[own, mac(0), mac(1)]);
            let (sender, target) = (input.of(&v4), input.of(&v4));
            let mut packet = arp(from, sender, target);
            (packet[1], packet[7]) = (hardware, operation);
            if input.once_in(8) {
                packet[input.below(8)] = input.any();
            }
            head.extend([0x08, 0x06]);
            packet
        }
        2 => {
            let kind = input.of(&[SOLICITATION, ADVERTISEMENT, ROUTER, REDIRECT, ECHO]);
            let (source, target) = (input.of(&v6), input.of(&v6));
            head.extend([0x86, 0xdd]);
            icmpv6(source, kind, target, input.once_in(4))
        }
        _ => {
            let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0];
            packet.extend(input.of(&v4));
            packet.extend([10, 0, 0, 9, 0, 1, 0, 2, 0, 8, 0, 0]);
            head.extend([0x08, 0x00]);
            packet
        }
    };
    [&head[..], &packet, &PAD].concat()
}

/// An ARP packet for IPv4, without the EtherType.
fn arp(from: Mac, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let fixed = [0, 1, 0x08, 0x00, 6, 4, 0, 1];
    [&fixed[..], &from, &sender, &[0; 6], &target].concat()
}

/// A message of neighbour discovery, optionally after an extension header.
fn icmpv6(source: [u8; 16], kind: u8, target: [u8; 16], has_options: bool) -> Vec<u8> {
    let options: &[u8] = match has_options {
        true => &[ICMPV6, 0, 1, 4, 0, 0, 0, 0],
        false => &[],
    };
    let first = if has_options {
        DESTINATION_OPTIONS
    } else {
        ICMPV6
    };
    let header = [0x60, 0, 0, 0, 0, 24 + options.len() as u8, first, 255];
    let group = [0xff; 16];
    let message = [kind, 0, 0, 0, 0, 0, 0, 0];
    [&header[..], &source, &group, options, &message, &target].concat()
}

/// Frames with valid claims of port 0. Each has room for a frame's number at its end.
pub fn honest(to: Mac) -> [Vec<u8>; 3] {
    let address = link_local(mac(0)).octets();
    let packets = [
        ([0x08, 0x06], arp(mac(0), ADDRESS, SECOND)),
        // A probe, which claims its target.
        ([0x08, 0x06], arp(mac(0), NONE_V4, ADDRESS)),
        ([0x86, 0xdd], icmpv6(address, ADVERTISEMENT, address, false)),
    ];
    packets.map(|(kind, packet)| [&to[..], &mac(0), &kind, &packet, &PAD].concat())
}

/// Whether the network interface of a port may send a frame. A `restricted` port may claim only its
/// own addresses.
pub fn may_send(port: usize, restricted: bool, frame: &[u8]) -> bool {
    let given = if port == 0 { ADDRESS } else { SECOND };
    let own: [IpAddr; 2] = [given.into(), link_local(mac(port)).into()];
    let others: &[IpAddr] = match port {
        0 => &[],
        _ => &[ADDRESS.into(), link_local(mac(0)).into()],
    };
    let may_claim = |address| match restricted {
        true => own.contains(&address),
        false => !others.contains(&address),
    };
    let speaks_for_others = match inspect(frame) {
        Content::Arp(packet) => !is_of(packet, mac(port)),
        Content::Ip {
            protocol: Some(ICMPV6),
            payload: [ROUTER | REDIRECT, ..],
            ..
        } => true,
        _ => false,
    };
    let is_readable = match inspect(frame) {
        Content::Ip {
            protocol: Some(ICMPV6),
            fragment,
            payload,
            ..
        } => match payload.first() {
            Some(&kind @ (SOLICITATION | ADVERTISEMENT | ROUTER | REDIRECT)) => {
                let least = match kind {
                    ROUTER => 16,
                    REDIRECT => 40,
                    _ => 24,
                };
                fragment == Fragment::None && payload.len() >= least
            }
            kind => kind.is_some() || fragment != Fragment::First,
        },
        Content::Ip {
            protocol,
            fragment: Fragment::First,
            ..
        } => protocol.is_some(),
        _ => true,
    };
    is_readable && claims(frame).into_iter().all(may_claim) && !(restricted && speaks_for_others)
}

/// Whether the ARP packet is for IPv4 and has the sender MAC address `sender`.
fn is_of(packet: &[u8], sender: Mac) -> bool {
    packet.len() >= 28 && packet[2..6] == [0x08, 0x00, 6, 4] && packet[8..14] == sender
}

/// The addresses that receivers bind to a frame's sender.
fn claims(frame: &[u8]) -> Vec<IpAddr> {
    match inspect(frame) {
        Content::Arp(packet) if packet.len() >= 28 && packet[2..6] == [0x08, 0x00, 6, 4] => {
            let address = |at: usize| <[u8; 4]>::try_from(&packet[at..at + 4]).expect("4 bytes");
            let (sender, target) = (address(14), address(24));
            let claimed = if sender == NONE_V4 { target } else { sender };
            vec![claimed.into()]
        }
        Content::Ip {
            src,
            protocol,
            payload,
            ..
        } => {
            let is_there = !src.is_unspecified();
            let mut claims: Vec<_> = is_there.then_some(src).into_iter().collect();
            let binds = match payload.first() {
                Some(&SOLICITATION) => !is_there,
                first => first == Some(&ADVERTISEMENT),
            };
            if let (Some(ICMPV6), true, Some(target)) = (protocol, binds, payload.get(8..24)) {
                let target: [u8; 16] = target.try_into().expect("16 bytes");
                claims.push(Ipv6Addr::from(target).into());
            }
            claims
        }
        _ => Vec::new(),
    }
}
