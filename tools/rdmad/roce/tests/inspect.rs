// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The switch classifies frames as RoCE in the same way as the engine and other receivers do.

use proptest::prelude::*;
use proptest::sample::select;
use roce::headers::{Bth, Headers, RcRequest, SendPart};
use roce::net::{
    carries_roce, inspect, is_roce, Addresses, Content, Fragment, NetError, ROCE_PORT,
};
use roce::packet::{build, frame_size, PacketError};
use roce::work::With;
use roce::{Packet, Path, Psn};
use virtio_rdma_abi::number::Qpn;

const UDP: u8 = 17;

/// Headers of a frame, from the first VLAN tag to the UDP destination port.
#[derive(Clone, Debug)]
struct Stack {
    tags: Vec<u16>,
    ip: Ip,
    protocol: u8,
    port: u16,
}

#[derive(Clone, Debug)]
enum Ip {
    V4 {
        /// Length of the options in 32-bit words.
        options: u8,
        fragment: u16,
    },
    V6 {
        /// Type and length field of each extension header.
        extensions: Vec<(u8, u8)>,
        /// Offset and flags in the fragment header.
        fragment: u16,
    },
}

fn stacks() -> impl Strategy<Value = Stack> {
    let tags = prop::collection::vec(select(vec![0x8100u16, 0x88a8, 0x9100]), 0..4);
    let v4 = (0u8..=10, select(vec![0u16, 0x4000, 0x2000, 0x2001, 1]))
        .prop_map(|(options, fragment)| Ip::V4 { options, fragment });
    let extension = (select(vec![0u8, 43, 44, 51, 60, 135, 139, 140]), 0u8..4);
    let v6 = (
        prop::collection::vec(extension, 0..4),
        select(vec![0u16, 1, 8, 9]),
    )
        .prop_map(|(extensions, fragment)| Ip::V6 {
            extensions,
            fragment,
        });
    (
        tags,
        prop_oneof![v4, v6],
        select(vec![UDP, UDP, UDP, 6]),
        select(vec![ROCE_PORT, ROCE_PORT, 53]),
    )
        .prop_map(|(tags, ip, protocol, port)| Stack {
            tags,
            ip,
            protocol,
            port,
        })
}

impl Stack {
    fn is_first_fragment(&self) -> bool {
        match &self.ip {
            Ip::V4 { fragment, .. } => fragment & 0x1fff == 0,
            Ip::V6 {
                extensions,
                fragment,
            } => fragment >> 3 == 0 || extensions.iter().all(|(kind, _)| *kind != 44),
        }
    }

    /// A frame with these headers and 40 bytes of UDP payload.
    fn frame(&self) -> Vec<u8> {
        let mut frame = vec![2; 12];
        for tag in &self.tags {
            frame.extend(tag.to_be_bytes());
            frame.extend([0, 7]);
        }
        let mut udp = vec![0xc0, 0];
        udp.extend(self.port.to_be_bytes());
        udp.extend([0, 48, 0, 0]);
        udp.extend([0x04; 40]);
        match &self.ip {
            Ip::V4 { options, fragment } => {
                frame.extend([0x08, 0x00, 0x45 + options, 0]);
                let length = 20 + 4 * u16::from(*options) + udp.len() as u16;
                frame.extend(length.to_be_bytes());
                frame.extend([0, 0]);
                frame.extend(fragment.to_be_bytes());
                frame.extend([64, self.protocol, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2]);
                let header = frame.len() - 20;
                let sum: u32 = frame[header..]
                    .chunks(2)
                    .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
                    .sum();
                let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
                frame[header + 10..header + 12].copy_from_slice(&sum.to_be_bytes());
                // Options "no operation". The checksum does not cover them, because the engine
                // refuses options before it verifies the checksum.
                frame.extend(vec![1; 4 * usize::from(*options)]);
            }
            Ip::V6 {
                extensions,
                fragment,
            } => {
                let mut headers = Vec::new();
                for (at, (kind, units)) in extensions.iter().enumerate() {
                    let next = extensions.get(at + 1).map_or(self.protocol, |next| next.0);
                    let length = match kind {
                        44 => 8,
                        51 => 4 * (usize::from(*units) + 2),
                        _ => 8 * (usize::from(*units) + 1),
                    };
                    let mut header = vec![0; length];
                    header[..2].copy_from_slice(&[next, *units]);
                    if *kind == 44 {
                        header[2..4].copy_from_slice(&fragment.to_be_bytes());
                    }
                    headers.extend(header);
                }
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend(((headers.len() + udp.len()) as u16).to_be_bytes());
                let first = extensions.first().map_or(self.protocol, |first| first.0);
                frame.extend([first, 64]);
                frame.extend([0xfd; 32]);
                frame.extend(headers);
            }
        }
        frame.extend(udp);
        frame
    }
}

/// Whether the engine treats a frame as RoCEv2; `None` if it stops before the UDP port.
fn engine_reads(frame: &[u8]) -> Option<bool> {
    use NetError::*;
    match Packet::parse(frame) {
        Err(PacketError::Net(NotRoce)) => Some(false),
        // The engine makes these checks before it reads the port.
        Err(PacketError::Net(Truncated | Length | IpChecksum)) => None,
        Ok(_) | Err(_) => Some(true),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn the_switch_and_the_engine_agree(
        stack in stacks(),
        cut in 0usize..200,
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
    ) {
        let mut frame = stack.frame();
        frame.truncate(frame.len() - cut.saturating_sub(150).min(frame.len()));
        for (at, bits) in flips {
            let at = at.index(frame.len());
            frame[at] ^= bits;
        }
        if let Some(reads) = engine_reads(&frame) {
            prop_assert_eq!(is_roce(&frame), reads, "{:?}", stack);
        }
        prop_assert!(carries_roce(&frame) || !is_roce(&frame), "{:?}", stack);
    }

    #[test]
    fn no_header_hides_roce(stack in stacks()) {
        let expected =
            stack.protocol == UDP && stack.port == ROCE_PORT && stack.is_first_fragment();
        prop_assert_eq!(carries_roce(&stack.frame()), expected, "{:?}", stack);
    }

    #[test]
    fn any_bytes_are_inspected(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = inspect(&bytes);
        prop_assert!(carries_roce(&bytes) || !is_roce(&bytes));
    }
}

#[test]
fn contents_are_found_after_tags() {
    let stack = |tags: &[u16], ip| Stack {
        tags: tags.to_vec(),
        ip,
        protocol: UDP,
        port: ROCE_PORT,
    };
    let v4 = Ip::V4 {
        options: 2,
        fragment: 0,
    };
    let frame = stack(&[0x88a8, 0x8100], v4).frame();
    let Content::Ip {
        src,
        protocol,
        fragment: Fragment::None,
        payload,
    } = inspect(&frame)
    else {
        panic!("no IP packet");
    };
    assert_eq!((src, protocol), ([10, 9, 0, 1].into(), Some(UDP)));
    assert_eq!(payload.len(), 48);
    let mut arp = [2; 12].to_vec();
    arp.extend([0x81, 0, 0, 5, 0x08, 0x06, 0, 1]);
    assert_eq!(inspect(&arp), Content::Arp(&[0, 1]));
    arp[16..18].copy_from_slice(&[0x89, 0x15]);
    assert_eq!(inspect(&arp), Content::RoceV1);
    assert!(carries_roce(&arp));
}

/// The parser finds IP in IEEE 802 frames with LLC and SNAP headers. Hosts should accept such
/// frames (RFC 1122, 2.3.3).
#[test]
fn contents_are_found_after_snap() {
    let stack = Stack {
        tags: vec![0x8100],
        ip: Ip::V4 {
            options: 0,
            fragment: 0,
        },
        protocol: UDP,
        port: ROCE_PORT,
    };
    let mut frame = stack.frame();
    // The length is inserted between the VLAN tag and the EtherType.
    let snap = [0, 100, 0xaa, 0xaa, 3, 0, 0, 0];
    frame.splice(16..16, snap);
    assert!(carries_roce(&frame) && !is_roce(&frame));
    frame[24..26].copy_from_slice(&[0x08, 0x06]);
    assert!(matches!(inspect(&frame), Content::Arp(_)));
    // Neither a frame with an EtherType in place of the length, nor one with another organization
    // code in the SNAP header contains ARP.
    for (at, byte) in [(16, 6), (23, 1)] {
        let mut other = frame.clone();
        other[at] = byte;
        assert_eq!(inspect(&other), Content::Other);
    }
}

#[test]
fn headers_that_nobody_can_read() {
    let v4 = Ip::V4 {
        options: 0,
        fragment: 0,
    };
    let frame = Stack {
        tags: Vec::new(),
        ip: v4,
        protocol: UDP,
        port: ROCE_PORT,
    }
    .frame();
    assert!(matches!(inspect(&frame), Content::Ip { .. }));
    for (version_and_length, name) in [(0x55, "version 5"), (0x44, "16 bytes")] {
        let mut other = frame.clone();
        other[14] = version_and_length;
        assert_eq!(inspect(&other), Content::Other, "{name}");
    }
}

/// All classifiers recognize frames that the engine builds.
#[test]
fn frames_of_the_engine_are_roce() {
    let addresses = [
        Addresses::V4([10, 9, 0, 1].into(), [10, 9, 0, 2].into()),
        Addresses::V6([0xfd; 16].into(), [0xfe; 16].into()),
    ];
    for (addresses, vlan) in addresses
        .into_iter()
        .flat_map(|a| [(a, None), (a, Some(5))])
    {
        let path = Path {
            vlan,
            ..Path::new([2; 6], [4; 6], addresses)
        };
        let send = RcRequest::from(SendPart::Only(With::Nothing));
        let headers = Headers::new(Bth::new(0xffff, Qpn::new(17), Psn::new(1)), send);
        let mut frame = vec![0; frame_size(&path, &headers.body, 4)];
        build(&mut frame, &path, 0, &headers, 4, |_| Ok::<_, ()>(())).unwrap();
        assert_eq!(engine_reads(&frame), Some(true));
        assert!(is_roce(&frame) && carries_roce(&frame));
    }
}

/// An IPv6 frame with these headers after the IP header, of which the first has the type `first`.
fn ipv6(first: u8, headers: &[u8]) -> Vec<u8> {
    let ip = [0x60, 0, 0, 0, 0, headers.len() as u8, first, 64];
    [&[2; 12][..], &[0x86, 0xdd], &ip, &[0xfd; 32], headers].concat()
}

/// The first fragment of an IPv4 packet.
fn ipv4_fragment(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = 20 + payload.len() as u8;
    let ip = [0x45, 0, 0, length, 0, 9, 0x20, 0, 64, protocol, 0, 0];
    let addresses = [10, 9, 0, 1, 10, 9, 0, 2];
    [&[2; 12][..], &[8, 0], &ip, &addresses, payload].concat()
}

/// A first fragment may end before the port of its packet, which a later one then has.
#[test]
fn a_first_fragment_without_the_port_may_carry_roce() {
    const OPTIONS: u8 = 60;
    const FRAGMENT: u8 = 44;
    let fragment = |next: u8, offset: u8| [next, 0, 0, (offset << 3) | 1, 0, 0, 0, 9];
    let options = [UDP, 0, 1, 4, 0, 0, 0, 0];
    let udp = [2, 0, 0x12, 0xb7];
    let [hidden, cut, whole, later, other] = [
        [&fragment(OPTIONS, 0)[..], &options].concat(),
        [&fragment(OPTIONS, 0)[..], &[UDP, 1, 1, 4]].concat(),
        [&fragment(OPTIONS, 0)[..], &options, &udp].concat(),
        [&fragment(OPTIONS, 1)[..], &options, &udp].concat(),
        [&fragment(6, 0)[..], &[0; 20]].concat(),
    ]
    .map(|headers| ipv6(FRAGMENT, &headers));
    for (frame, carries, expected) in [
        (&hidden, true, Fragment::First),
        (&cut, true, Fragment::First),
        (&whole, true, Fragment::First),
        (&later, false, Fragment::Later),
        (&other, false, Fragment::First),
        (&ipv6(UDP, &udp), true, Fragment::None),
        (&ipv6(UDP, &[]), false, Fragment::None),
        // Without the port, the fragment may be RoCE.
        (&ipv4_fragment(UDP, &[2, 0]), true, Fragment::First),
        // In IPv4 these are ordinary protocols: an authentication header (IPsec) and mobility.
        (&ipv4_fragment(51, &[0; 24]), false, Fragment::First),
        (&ipv4_fragment(135, &[]), false, Fragment::First),
    ] {
        assert_eq!(carries_roce(frame), carries, "{frame:02x?}");
        let found = inspect(frame);
        assert!(
            matches!(found, Content::Ip { fragment, .. } if fragment == expected),
            "{found:?}"
        );
    }
}
