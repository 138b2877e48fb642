// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Ethernet, IP and UDP around a RoCEv2 packet (IBTA annex A17).

mod checksum;
mod derive;
mod ecn;
mod inspect;
mod mac_index;
mod template;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::headers::{Reader, Writer};

use self::checksum::{fold, sum, udp_checksum_holds};

pub use self::derive::{
    flow_label, gid_to_ip, ip_to_gid, link_local, multicast_mac, udp_source_port, vlan_id,
    vlan_priority, vlan_tag,
};
pub use self::ecn::{mark, Ecn};
pub use self::inspect::{carries_roce, inspect, Content, Fragment};
pub use self::mac_index::MacIndex;
pub use self::template::Template;

/// UDP destination port of RoCEv2.
pub const ROCE_PORT: u16 = 4791;

pub(crate) const ETH_SIZE: usize = 14;
pub(crate) const VLAN_SIZE: usize = 4;
pub(crate) const IPV4_SIZE: usize = 20;
pub(crate) const IPV6_SIZE: usize = 40;
pub(crate) const UDP_SIZE: usize = 8;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const PROTOCOL_UDP: u8 = 17;
const IPV4_DONT_FRAGMENT: u16 = 0x4000;
/// Mask of the flag "more fragments" and the fragment offset.
const IPV4_FRAGMENT: u16 = 0x3fff;

/// Hop limit of packets unless the address handle says otherwise.
pub const DEFAULT_HOP_LIMIT: u8 = 64;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// Why a frame is not a valid RoCEv2 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NetError {
    /// Bytes are missing.
    #[error("truncated")]
    Truncated,
    /// Another protocol, a fragment, or IP options.
    #[error("not RoCEv2")]
    NotRoce,
    /// Lengths contradict each other.
    #[error("IP and UDP lengths disagree")]
    Length,
    /// Wrong IPv4 header checksum.
    #[error("wrong IPv4 header checksum")]
    IpChecksum,
    /// Wrong UDP checksum.
    #[error("wrong UDP checksum")]
    UdpChecksum,
}

/// Source and destination addresses of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Addresses {
    /// IPv4: source, destination.
    V4(Ipv4Addr, Ipv4Addr),
    /// IPv6: source, destination.
    V6(Ipv6Addr, Ipv6Addr),
}

impl Addresses {
    /// The pair of `src` and `dst`; `None` if they are of different families.
    pub fn new(src: IpAddr, dst: IpAddr) -> Option<Self> {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Self::V4(src, dst)),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Self::V6(src, dst)),
            _ => None,
        }
    }

    /// Source address.
    pub fn src(&self) -> IpAddr {
        match *self {
            Self::V4(src, _) => src.into(),
            Self::V6(src, _) => src.into(),
        }
    }

    /// Destination address.
    pub fn dst(&self) -> IpAddr {
        match *self {
            Self::V4(_, dst) => dst.into(),
            Self::V6(_, dst) => dst.into(),
        }
    }

    const fn ip_size(&self) -> usize {
        match self {
            Self::V4(..) => IPV4_SIZE,
            Self::V6(..) => IPV6_SIZE,
        }
    }
}

/// Ethernet, IP and UDP header fields of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path {
    /// MAC address of the sender.
    pub src_mac: Mac,
    /// MAC address of the next hop.
    pub dst_mac: Mac,
    /// Tag control information of the VLAN tag, in host byte order; `None` without a tag.
    pub vlan: Option<u16>,
    /// IP addresses.
    pub addresses: Addresses,
    /// IPv6 traffic class or IPv4 type of service: DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits; unused for IPv4.
    pub flow_label: u32,
    /// Hop limit or TTL.
    pub hop_limit: u8,
    /// UDP source port.
    pub src_port: u16,
}

impl Path {
    /// A path with default traffic class and hop limit and the lowest source port that RoCEv2 uses.
    pub const fn new(src_mac: Mac, dst_mac: Mac, addresses: Addresses) -> Self {
        Self {
            src_mac,
            dst_mac,
            vlan: None,
            addresses,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: DEFAULT_HOP_LIMIT,
            src_port: udp_source_port(0),
        }
    }

    /// Offset of the IP header.
    pub(crate) const fn ip_offset(&self) -> usize {
        match self.vlan {
            None => ETH_SIZE,
            Some(_) => ETH_SIZE + VLAN_SIZE,
        }
    }

    /// The service level in the completion of a received datagram: the priority of its VLAN tag.
    /// Without a tag, the service level encodes the header type as ConnectX devices do: bit 3 is
    /// set for UDP, and the low bits are 1 for IPv6 or 2 for IPv4.
    pub fn service_level(&self) -> u8 {
        const UDP: u8 = 8;
        match (self.vlan, self.addresses) {
            (Some(tag), _) => vlan_priority(tag),
            (None, Addresses::V6(..)) => UDP | 1,
            (None, Addresses::V4(..)) => UDP | 2,
        }
    }

    /// Size of the Ethernet, IP and UDP headers in bytes.
    pub(crate) const fn size(&self) -> usize {
        self.ip_offset() + self.addresses.ip_size() + UDP_SIZE
    }

    /// Writes the headers to `out`, which has their size. Fields that differ between packets are
    /// zero: lengths, IPv4 identification and IPv4 header checksum. So is the UDP checksum: RoCEv2
    /// relies on the ICRC.
    fn encode(&self, out: &mut [u8]) {
        let (ethernet, packet) = out.split_at_mut(self.ip_offset());
        let (ip, udp) = packet.split_at_mut(self.addresses.ip_size());
        let mut writer = Writer::new(ethernet);
        writer.put(self.dst_mac);
        writer.put(self.src_mac);
        if let Some(tci) = self.vlan {
            writer.put(ETHERTYPE_VLAN.to_be_bytes());
            writer.put(tci.to_be_bytes());
        }
        let ethertype = match self.addresses {
            Addresses::V4(..) => ETHERTYPE_IPV4,
            Addresses::V6(..) => ETHERTYPE_IPV6,
        };
        writer.put(ethertype.to_be_bytes());
        self.encode_ip_template(ip);
        let mut writer = Writer::new(udp);
        writer.put(self.src_port.to_be_bytes());
        writer.put(ROCE_PORT.to_be_bytes());
        writer.put([0; 4]);
    }

    /// Writes the IP header to `out`, which has its size, without the fields that differ between
    /// packets. IPv4 packets carry the flag "don't fragment".
    fn encode_ip_template(&self, out: &mut [u8]) {
        let mut writer = Writer::new(out);
        match self.addresses {
            Addresses::V4(src, dst) => {
                writer.put([0x45, self.traffic_class, 0, 0, 0, 0]);
                writer.put(IPV4_DONT_FRAGMENT.to_be_bytes());
                writer.put([self.hop_limit, PROTOCOL_UDP, 0, 0]);
                writer.put(src.octets());
                writer.put(dst.octets());
            }
            Addresses::V6(src, dst) => {
                let word = (6 << 28)
                    | (u32::from(self.traffic_class) << 20)
                    | (self.flow_label & 0xf_ffff);
                writer.put(word.to_be_bytes());
                writer.put([0, 0, PROTOCOL_UDP, self.hop_limit]);
                writer.put(src.octets());
                writer.put(dst.octets());
            }
        }
    }

    /// Writes the IP header of a packet with `udp_length` bytes of UDP header and payload to `out`,
    /// which has the size of the IP header.
    pub(crate) fn encode_ip(&self, ident: u16, udp_length: usize, out: &mut [u8]) {
        self.encode_ip_template(out);
        fill_ip(self.ipv4_sum(out), ident, udp_length, out);
    }

    /// The sum of the 16-bit words of an IPv4 header; `None` for IPv6, whose header has no
    /// checksum.
    fn ipv4_sum(&self, header: &[u8]) -> Option<u64> {
        match self.addresses {
            Addresses::V4(..) => Some(sum(header)),
            Addresses::V6(..) => None,
        }
    }

    /// Reads the headers of a frame: the path, the IPv4 identification (0 for IPv6) and the length
    /// of the UDP payload in bytes. Bytes may follow the payload: Ethernet pads short frames.
    pub(crate) fn decode(frame: &[u8]) -> Result<(Self, u16, usize), NetError> {
        use NetError::*;
        let mut reader = Reader::new(frame);
        let dst_mac = reader.array().ok_or(Truncated)?;
        let src_mac = reader.array().ok_or(Truncated)?;
        let mut ethertype = u16::from_be_bytes(reader.array().ok_or(Truncated)?);
        let mut vlan = None;
        if ethertype == ETHERTYPE_VLAN {
            vlan = Some(u16::from_be_bytes(reader.array().ok_or(Truncated)?));
            ethertype = u16::from_be_bytes(reader.array().ok_or(Truncated)?);
        }
        let packet = reader.rest();
        let (ip, ident, udp) = match ethertype {
            ETHERTYPE_IPV4 => decode_ipv4(packet)?,
            ETHERTYPE_IPV6 => decode_ipv6(packet)?,
            _ => return Err(NotRoce),
        };
        let header: &[u8; UDP_SIZE] = udp.first_chunk().ok_or(Length)?;
        if u16::from_be_bytes([header[2], header[3]]) != ROCE_PORT {
            return Err(NotRoce);
        }
        if usize::from(u16::from_be_bytes([header[4], header[5]])) != udp.len() {
            return Err(Length);
        }
        if header[6..] != [0, 0] && !udp_checksum_holds(&ip.addresses, udp) {
            return Err(UdpChecksum);
        }
        let src_port = u16::from_be_bytes([header[0], header[1]]);
        Ok((
            Self {
                src_mac,
                dst_mac,
                vlan,
                src_port,
                ..ip
            },
            ident,
            udp.len() - UDP_SIZE,
        ))
    }
}

/// Fills in the fields that differ between packets of a path, in an IP header where they are zero.
/// `ipv4_sum` is the [sum](Path::ipv4_sum) of the header.
fn fill_ip(ipv4_sum: Option<u64>, ident: u16, udp_length: usize, header: &mut [u8]) {
    match ipv4_sum {
        Some(sum) => {
            let total = length_field(IPV4_SIZE + udp_length);
            let checksum = !fold(sum + u64::from(total) + u64::from(ident));
            header[2..4].copy_from_slice(&total.to_be_bytes());
            header[4..6].copy_from_slice(&ident.to_be_bytes());
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        None => header[4..6].copy_from_slice(&length_field(udp_length).to_be_bytes()),
    }
}

/// The 16-bit length field of a header.
fn length_field(length: usize) -> u16 {
    // The length is at most `MAX_FRAME`, so the cast does not truncate.
    length as u16
}

/// Reads an IPv4 header: a path whose Ethernet and UDP parts are not yet filled in, the
/// identification, and the UDP header with its payload.
fn decode_ipv4(packet: &[u8]) -> Result<(Path, u16, &[u8]), NetError> {
    let header: &[u8; IPV4_SIZE] = packet.first_chunk().ok_or(NetError::Truncated)?;
    let half = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    if header[0] != 0x45 || header[9] != PROTOCOL_UDP || half(6) & IPV4_FRAGMENT != 0 {
        return Err(NetError::NotRoce);
    }
    if fold(sum(header)) != 0xffff {
        return Err(NetError::IpChecksum);
    }
    let total = usize::from(half(2));
    if total < IPV4_SIZE {
        return Err(NetError::Length);
    }
    let udp = packet.get(IPV4_SIZE..total).ok_or(NetError::Truncated)?;
    let address =
        |at: usize| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]);
    let mut path = Path::new([0; 6], [0; 6], Addresses::V4(address(12), address(16)));
    path.traffic_class = header[1];
    path.hop_limit = header[8];
    Ok((path, half(4), udp))
}

/// Reads an IPv6 header, as [`decode_ipv4`] reads an IPv4 header. The identification is 0.
fn decode_ipv6(packet: &[u8]) -> Result<(Path, u16, &[u8]), NetError> {
    let mut reader = Reader::new(packet);
    let word = u32::from_be_bytes(reader.array().ok_or(NetError::Truncated)?);
    let length = usize::from(u16::from_be_bytes(
        reader.array().ok_or(NetError::Truncated)?,
    ));
    let [next_header, hop_limit] = reader.array().ok_or(NetError::Truncated)?;
    let src: [u8; 16] = reader.array().ok_or(NetError::Truncated)?;
    let dst: [u8; 16] = reader.array().ok_or(NetError::Truncated)?;
    if word >> 28 != 6 || next_header != PROTOCOL_UDP {
        return Err(NetError::NotRoce);
    }
    let udp = reader.rest().get(..length).ok_or(NetError::Truncated)?;
    let mut path = Path::new([0; 6], [0; 6], Addresses::V6(src.into(), dst.into()));
    // The traffic class is bits 27 to 20 of the first word.
    path.traffic_class = ((word >> 20) & 0xff) as u8;
    path.flow_label = word & 0xf_ffff;
    path.hop_limit = hop_limit;
    Ok((path, 0, udp))
}

/// The EtherType of the payload of a frame, with or without a VLAN tag, and the offset of the
/// payload in bytes.
fn network_layer(frame: &[u8]) -> (Option<u16>, usize) {
    let ethertype = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
    match ethertype(ETH_SIZE - 2) {
        Some(ETHERTYPE_VLAN) => (ethertype(ETH_SIZE + VLAN_SIZE - 2), ETH_SIZE + VLAN_SIZE),
        kind => (kind, ETH_SIZE),
    }
}

/// Whether a frame is RoCEv2 in a form that the engine accepts. Only protocol numbers and the UDP
/// port are checked, so the packet may still be invalid.
pub fn is_roce(frame: &[u8]) -> bool {
    let (kind, ip) = network_layer(frame);
    let Some(packet) = frame.get(ip..) else {
        return false;
    };
    let udp = match (kind, packet) {
        (Some(ETHERTYPE_IPV4), [0x45, _, _, _, _, _, flags, offset, _, PROTOCOL_UDP, ..])
            if u16::from_be_bytes([*flags, *offset]) & IPV4_FRAGMENT == 0 =>
        {
            packet.get(IPV4_SIZE..)
        }
        (Some(ETHERTYPE_IPV6), [0x60..=0x6f, _, _, _, _, _, PROTOCOL_UDP, ..]) => {
            packet.get(IPV6_SIZE..)
        }
        _ => None,
    };
    matches!(udp, Some([_, _, high, low, ..]) if u16::from_be_bytes([*high, *low]) == ROCE_PORT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_of_one_family() {
        let v4: IpAddr = "10.9.0.1".parse().unwrap();
        let v6: IpAddr = "fd09::1".parse().unwrap();
        assert_eq!(Addresses::new(v4, v6), None);
        assert_eq!(Addresses::new(v6, v4), None);
        assert_eq!(Addresses::new(v6, v6).map(|pair| pair.dst()), Some(v6));
    }
}
