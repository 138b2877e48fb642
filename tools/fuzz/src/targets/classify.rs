// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Compares whether the switch and the engine classify a frame as RoCE, and whether the frame was
//! built as RoCE.
//!
//! A filter that does not recognize all frames which a receiver treats as RoCE lets forged packets
//! pass. A filter that recognizes other frames as RoCE drops frames of other protocols.

use arbitrary::{Arbitrary, Unstructured};
use roce::headers::Bth;
use roce::icrc::{Icrc, ICRC_SIZE};
use roce::net::{carries_roce, inspect, is_roce, NetError, ROCE_PORT};
use roce::packet::{build, frame_size, PacketError};
use roce::Packet;

const ETHERNET: usize = 14;
const TAG: usize = 4;
const UDP: usize = 8;
const PROTOCOL_UDP: u8 = 17;
const EXTENSIONS: [u8; 8] = [0, 43, 44, 51, 60, 135, 139, 140];
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;

/// Runs the target.
pub fn run(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else {
        return;
    };
    match kind % 3 {
        0 => {
            look_at(rest);
            let mut frame = rest.to_vec();
            seal(&mut frame);
            look_at(&frame);
        }
        _ => {
            let mut input = Unstructured::new(rest);
            // Missing bytes count as zeros, so this succeeds for any input.
            if let Ok(stack) = Stack::arbitrary(&mut input) {
                stack.look_at(&mut input);
            }
        }
    }
}

/// Checks a frame of any content.
fn look_at(frame: &[u8]) {
    let _ = inspect(frame);
    let packet = Packet::parse(frame);
    match &packet {
        Err(PacketError::Net(NetError::NotRoce)) => assert!(!is_roce(frame), "{frame:02x?}"),
        // The engine has rejected the frame before it checked the UDP port.
        Err(PacketError::Net(NetError::Truncated | NetError::Length | NetError::IpChecksum)) => {}
        Ok(_) | Err(_) => assert!(is_roce(frame), "{frame:02x?}"),
    }
    assert!(carries_roce(frame) || !is_roce(frame), "{frame:02x?}");
    if let Ok(packet) = packet {
        is_rebuilt(&packet);
    }
}

/// Asserts that a frame built from a packet parses to the same packet.
fn is_rebuilt(packet: &Packet<'_>) {
    let Packet {
        path,
        ident,
        headers,
        payload,
        ..
    } = *packet;
    let mut frame = vec![0; frame_size(&path, &headers.body, payload.len())];
    let fill = |into: &mut [u8]| {
        into.copy_from_slice(payload);
        Ok::<_, ()>(())
    };
    build(&mut frame, &path, ident, &headers, payload.len(), fill).unwrap();
    let again = Packet::parse(&frame).unwrap_or_else(|why| panic!("{why}: {packet:02x?}"));
    assert_eq!(
        (again.path, again.ident, again.headers, again.payload),
        (path, ident, headers, payload)
    );
}

/// Corrects the checksum and the ICRC of a frame, if it has a form that the engine parses.
fn seal(frame: &mut [u8]) {
    let at = match frame.get(12..14) {
        Some([0x81, 0x00]) => ETHERNET + TAG,
        Some(_) => ETHERNET,
        None => return,
    };
    let ip = match frame.get(at) {
        Some(0x45) => 20,
        Some(0x60..=0x6f) => 40,
        _ => return,
    };
    let invariant = ip + UDP + Bth::SIZE;
    let Some(packet) = frame.get_mut(at..).filter(|p| p.len() > invariant) else {
        return;
    };
    if ip == 20 {
        packet[10..12].fill(0);
        let sum = checksum(&packet[..20]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    let end = ip + usize::from(u16::from_be_bytes([packet[ip + 4], packet[ip + 5]]));
    if end < invariant + ICRC_SIZE || end > packet.len() {
        return;
    }
    let (covered, icrc) = packet[..end].split_at_mut(end - ICRC_SIZE);
    let mut crc = Icrc::new(&covered[..invariant]);
    crc.update(&covered[invariant..]);
    icrc.copy_from_slice(&crc.finish());
}

fn checksum(header: &[u8]) -> u16 {
    let words = header
        .chunks_exact(2)
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The headers between the Ethernet addresses and the UDP header.
#[derive(Arbitrary, Debug)]
struct Stack {
    tags: [Option<Tag>; 3],
    ip: Ip,
    protocol: Protocol,
    to_roce: bool,
    port: u16,
    udp_checksum: bool,
    /// Whether the EtherType is in a SNAP header.
    snap: bool,
}

#[derive(Arbitrary, Debug)]
enum Tag {
    Customer(u16),
    Provider(u16),
    OldProvider(u16),
}

#[derive(Arbitrary, Debug)]
enum Protocol {
    Udp,
    Tcp,
    Icmp,
}

#[derive(Arbitrary, Debug)]
enum Ip {
    V4 {
        options: u8,
        fragment: u16,
        tos: u8,
    },
    V6 {
        extensions: [Option<(u8, u8)>; 3],
        fragment: u16,
        label: u32,
    },
}

impl Stack {
    /// Builds the frame, and asserts that all classifiers agree with its construction.
    fn look_at(&self, input: &mut Unstructured<'_>) {
        let mut content = [0; 64];
        let fill = input.fill_buffer(&mut content);
        assert!(fill.is_ok(), "missing bytes are zeros");
        let frame = self.frame(&content);
        let is_udp = matches!(self.protocol, Protocol::Udp);
        let carries = is_udp && self.port() == ROCE_PORT && self.is_first();
        assert_eq!(carries_roce(&frame), carries, "{self:?}");
        assert_eq!(is_roce(&frame), carries && self.is_plain(), "{self:?}");
        look_at(&frame);
        let mut sealed = frame.clone();
        seal(&mut sealed);
        look_at(&sealed);
        // The general checks also hold for a truncated frame, and for one with inverted bits.
        let cut = usize::from(u16::arbitrary(input).unwrap_or_default()) % (frame.len() + 1);
        look_at(&frame[..cut]);
        let at = usize::from(u8::arbitrary(input).unwrap_or_default());
        let flip = u8::arbitrary(input).unwrap_or_default();
        if let Some(byte) = sealed.get_mut(at) {
            *byte ^= flip;
            look_at(&sealed);
        }
    }

    fn port(&self) -> u16 {
        match self.to_roce {
            true => ROCE_PORT,
            false => self.port,
        }
    }

    fn extensions(&self) -> Vec<(u8, u8)> {
        match &self.ip {
            Ip::V4 { .. } => Vec::new(),
            Ip::V6 { extensions, .. } => {
                let present = extensions.iter().flatten();
                present
                    .map(|(kind, units)| (EXTENSIONS[usize::from(kind % 8)], units % 4))
                    .collect()
            }
        }
    }

    /// Whether the UDP header is in this fragment.
    fn is_first(&self) -> bool {
        match &self.ip {
            Ip::V4 { fragment, .. } => fragment & 0x1fff == 0,
            Ip::V6 { fragment, .. } => {
                fragment >> 3 == 0 || self.extensions().iter().all(|(kind, _)| *kind != FRAGMENT)
            }
        }
    }

    /// Whether the frame has the form that the engine parses: at most one tag, no SNAP, options,
    /// extension headers or fragments.
    fn is_plain(&self) -> bool {
        let mut tags = self.tags.iter().flatten();
        let plain_tags = matches!(
            (tags.next(), tags.next()),
            (None, _) | (Some(Tag::Customer(_)), None)
        );
        plain_tags
            && !self.snap
            && match &self.ip {
                Ip::V4 {
                    options, fragment, ..
                } => options % 11 == 0 && fragment & 0x3fff == 0,
                Ip::V6 { .. } => self.extensions().is_empty(),
            }
    }

    fn frame(&self, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        for tag in self.tags.iter().flatten() {
            let (kind, tci) = match tag {
                Tag::Customer(tci) => (0x8100u16, tci),
                Tag::Provider(tci) => (0x88a8, tci),
                Tag::OldProvider(tci) => (0x9100, tci),
            };
            frame.extend(kind.to_be_bytes());
            frame.extend(tci.to_be_bytes());
        }
        if self.snap {
            frame.extend([0, 100, 0xaa, 0xaa, 3, 0, 0, 0]);
        }
        let protocol = match self.protocol {
            Protocol::Udp => PROTOCOL_UDP,
            Protocol::Tcp => 6,
            Protocol::Icmp => 1,
        };
        let length = (UDP + payload.len()) as u16;
        let mut udp = 0xc000u16.to_be_bytes().to_vec();
        udp.extend(self.port().to_be_bytes());
        udp.extend(length.to_be_bytes());
        udp.extend([0, u8::from(self.udp_checksum)]);
        udp.extend(payload);
        match &self.ip {
            Ip::V4 {
                options,
                fragment,
                tos,
            } => {
                let options = options % 11;
                frame.extend([0x08, 0x00]);
                let mut header = vec![0x45 + options, *tos];
                header.extend((20 + 4 * u16::from(options) + length).to_be_bytes());
                header.extend([0, 7]);
                header.extend(fragment.to_be_bytes());
                header.extend([64, protocol, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2]);
                header.extend(vec![1; 4 * usize::from(options)]);
                let sum = checksum(&header);
                header[10..12].copy_from_slice(&sum.to_be_bytes());
                frame.extend(header);
            }
            Ip::V6 {
                fragment, label, ..
            } => {
                let extensions = self.extensions();
                let mut headers = Vec::new();
                for (at, &(kind, units)) in extensions.iter().enumerate() {
                    let next = extensions.get(at + 1).map_or(protocol, |next| next.0);
                    let length = match kind {
                        FRAGMENT => 8,
                        AUTHENTICATION => 4 * (usize::from(units) + 2),
                        _ => 8 * (usize::from(units) + 1),
                    };
                    let mut header = vec![0; length];
                    header[..2].copy_from_slice(&[next, units]);
                    if kind == FRAGMENT {
                        header[2..4].copy_from_slice(&fragment.to_be_bytes());
                    }
                    headers.extend(header);
                }
                frame.extend([0x86, 0xdd]);
                frame.extend(((6 << 28) | (label & 0xfff_ffff)).to_be_bytes());
                frame.extend((headers.len() as u16 + length).to_be_bytes());
                frame.extend([extensions.first().map_or(protocol, |first| first.0), 64]);
                frame.extend([0xfd; 32]);
                frame.extend(headers);
            }
        }
        frame.extend(udp);
        frame
    }
}
