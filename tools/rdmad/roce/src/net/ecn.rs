// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Explicit congestion notification (ECN): the low two bits of the IPv6 traffic class and the IPv4
//! type of service (RFC 3168, section 5).

use super::checksum::{fold, sum};
use super::{network_layer, ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV4_SIZE};

const MASK: u8 = 0b11;

/// The meaning of a packet's ECN field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// Not-ECT: the sender does not react to congestion marks.
    NotCapable,
    /// ECT: the sender reacts to congestion marks.
    Capable,
    /// CE: the packet met congestion.
    Congestion,
}

impl Ecn {
    /// The ECN field of a traffic class.
    pub const fn of(traffic_class: u8) -> Self {
        match traffic_class & MASK {
            0 => Self::NotCapable,
            3 => Self::Congestion,
            _ => Self::Capable,
        }
    }

    /// `traffic_class` with this ECN field.
    pub const fn within(self, traffic_class: u8) -> u8 {
        let field = match self {
            Self::NotCapable => 0,
            Self::Capable => 2,
            Self::Congestion => 3,
        };
        traffic_class & !MASK | field
    }
}

/// Marks an Ethernet frame as one that met congestion (CE). Returns whether the frame is marked
/// now. Not-ECT packets and protocols other than IP are left unchanged.
pub fn mark(frame: &mut [u8]) -> bool {
    let (kind, ip) = network_layer(frame);
    match (kind, frame.get_mut(ip..)) {
        (Some(ETHERTYPE_IPV4), Some([0x45, rest @ ..])) if rest.len() >= IPV4_SIZE - 1 => {
            mark_ipv4(&mut frame[ip..ip + IPV4_SIZE])
        }
        (Some(ETHERTYPE_IPV6), Some([0x60..=0x6f, low, ..])) => {
            // The traffic class is in the low half of one byte and the high half of the next.
            let marked = Ecn::of(*low >> 4) != Ecn::NotCapable;
            if marked {
                *low |= MASK << 4;
            }
            marked
        }
        _ => false,
    }
}

fn mark_ipv4(header: &mut [u8]) -> bool {
    let class = header[1];
    if Ecn::of(class) == Ecn::NotCapable {
        return false;
    }
    // The checksum of a corrupt header is not corrected, so that the receiver drops the packet.
    let is_sound = fold(sum(header)) == 0xffff;
    header[1] = Ecn::Congestion.within(class);
    if is_sound {
        header[10..12].fill(0);
        let checksum = !fold(sum(header));
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
    true
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::headers::{Aeth, Bth, Headers, RcResponse, Syndrome};
    use crate::net::{Addresses, Path};
    use crate::packet::{build, frame_size};
    use crate::psn::Psn;
    use crate::Packet;
    use virtio_rdma_abi::number::Qpn;

    fn frame(path: &Path) -> Vec<u8> {
        let aeth = Aeth {
            syndrome: Syndrome::ACK,
            msn: 0,
        };
        let bth = Bth::new(0xffff, Qpn::new(2), Psn::new(3));
        let headers = Headers::new(bth, RcResponse::Ack(aeth));
        let mut frame = vec![0; frame_size(path, &headers.body, 0)];
        let built: Result<(), Infallible> = build(&mut frame, path, 0, &headers, 0, |_| Ok(()));
        let Ok(()) = built;
        frame
    }

    #[test]
    fn a_marked_frame_is_sound_and_says_so() {
        let v4 = Addresses::V4([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        for addresses in [v4, Addresses::V6(1.into(), 2.into())] {
            for vlan in [None, Some(0x2005)] {
                for class in [0xfc, 0xfd, 0xfe, 0xff] {
                    let path = Path {
                        traffic_class: class,
                        vlan,
                        ..Path::new([1; 6], [2; 6], addresses)
                    };
                    let mut bytes = frame(&path);
                    let is_capable = class != 0xfc;
                    assert_eq!(mark(&mut bytes), is_capable);
                    let packet = Packet::parse(&bytes).expect("a sound frame");
                    let expected = if is_capable { 0xff } else { 0xfc };
                    assert_eq!(packet.path.traffic_class, expected);
                }
            }
        }
    }

    #[test]
    fn other_frames_stay_as_they_are() {
        let path = Path {
            traffic_class: 2,
            ..Path::new([1; 6], [2; 6], Addresses::V6(1.into(), 2.into()))
        };
        let whole = frame(&path);
        for length in 0..16 {
            let mut short = whole[..length].to_vec();
            let marked = mark(&mut short);
            assert!(!marked && short == whole[..length]);
        }
        let mut other = whole.clone();
        other[12..14].copy_from_slice(&[8, 6]);
        let before = other.clone();
        assert!(!mark(&mut other) && other == before);
    }
}
