// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Packet fields derived from verbs attributes: GIDs, service levels, flow labels.

use std::net::{IpAddr, Ipv6Addr};

use virtio_rdma_abi::config::eui64_from_mac;
use virtio_rdma_abi::number::Qpn;

use super::Mac;

/// Mask of the VLAN id in tag control information.
const VLAN_ID: u16 = 0xfff;
/// Lowest bit of the priority in tag control information.
const VLAN_PRIORITY_SHIFT: u32 = 13;

/// The IP address of a RoCEv2 GID. The GID of an IPv4 address is the IPv4-mapped IPv6 address
/// (annex A17).
pub fn gid_to_ip(gid: [u8; 16]) -> IpAddr {
    let address = Ipv6Addr::from(gid);
    address
        .to_ipv4_mapped()
        .map_or(IpAddr::V6(address), IpAddr::V4)
}

/// The GID of an IP address: the inverse of [`gid_to_ip`].
pub fn ip_to_gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// The link-local address that a host derives from its MAC address (RFC 4291, appendix A).
pub fn link_local(mac: Mac) -> Ipv6Addr {
    let mut address = [0; 16];
    address[..2].copy_from_slice(&[0xfe, 0x80]);
    address[8..].copy_from_slice(&eui64_from_mac(mac));
    address.into()
}

/// The Ethernet address of a multicast group: the low 23 bits of an IPv4 address after 01:00:5e
/// (RFC 1112), the low 32 bits of an IPv6 address after 33:33 (RFC 2464).
pub fn multicast_mac(group: IpAddr) -> Mac {
    match group {
        IpAddr::V4(group) => {
            let [_, a, b, c] = group.octets();
            [0x01, 0x00, 0x5e, a & 0x7f, b, c]
        }
        IpAddr::V6(group) => {
            let [.., a, b, c, d] = group.octets();
            [0x33, 0x33, a, b, c, d]
        }
    }
}

/// The tag control information for VLAN `id` and service level `sl`. The low 3 bits of `sl` are the
/// priority.
pub const fn vlan_tag(id: u16, sl: u8) -> u16 {
    ((sl as u16 & 7) << VLAN_PRIORITY_SHIFT) | (id & VLAN_ID)
}

/// The VLAN id in tag control information.
pub const fn vlan_id(tag: u16) -> u16 {
    tag & VLAN_ID
}

/// The priority in tag control information, 0 to 7.
pub const fn vlan_priority(tag: u16) -> u8 {
    (tag >> VLAN_PRIORITY_SHIFT) as u8
}

/// The UDP source port for a flow label: the 20 bits of the label folded to 14, in the dynamic port
/// range from 0xc000 (annex A17).
pub const fn udp_source_port(flow_label: u32) -> u16 {
    let folded = (flow_label & 0x3fff) ^ ((flow_label >> 14) & 0x3f);
    // `folded` has 14 bits.
    0xc000 | folded as u16
}

/// A flow label derived from the two QPNs of a connection, for an address handle without a flow
/// label. Different labels let routers spread connections over several paths.
pub const fn flow_label(local_qpn: Qpn, remote_qpn: Qpn) -> u32 {
    let product = local_qpn.get() as u64 * remote_qpn.get() as u64;
    let mixed = product ^ (product >> 20) ^ (product >> 40);
    // The mask leaves 20 bits.
    (mixed & 0xf_ffff) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_of_addresses() {
        let v4: IpAddr = "10.9.0.1".parse().unwrap();
        let v6: IpAddr = "fd09::1".parse().unwrap();
        assert_eq!(
            ip_to_gid(v4),
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 1]
        );
        assert_eq!(gid_to_ip(ip_to_gid(v4)), v4);
        assert_eq!(gid_to_ip(ip_to_gid(v6)), v6);
    }

    #[test]
    fn link_local_addresses() {
        let expected: Ipv6Addr = "fe80::5054:ff:fe09:1".parse().unwrap();
        assert_eq!(link_local([0x52, 0x54, 0, 9, 0, 1]), expected);
    }

    #[test]
    fn ethernet_addresses_of_groups() {
        for (group, mac) in [
            ("224.1.2.3", [0x01, 0x00, 0x5e, 1, 2, 3]),
            ("239.255.0.9", [0x01, 0x00, 0x5e, 0x7f, 0, 9]),
            ("ff0e::1:203:405", [0x33, 0x33, 2, 3, 4, 5]),
        ] {
            assert_eq!(multicast_mac(group.parse().unwrap()), mac, "{group}");
        }
    }

    #[test]
    fn source_ports_are_dynamic() {
        assert_eq!(udp_source_port(0), 0xc000);
        assert_eq!(udp_source_port(0x0_3fff), 0xffff);
        assert_eq!(udp_source_port(0xf_ffff), 0xffc0);
        let of = |one, other| flow_label(Qpn::new(one), Qpn::new(other));
        assert_eq!(of(0x11, 0x11), 0x121);
        assert_eq!(of(0xff_ffff, 0xff_ffff), 0xf_ff1e);
        assert_eq!(of(0x12_3456, 0x65_4321), 0xa_77ae);
    }
}
