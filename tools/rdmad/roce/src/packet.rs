// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Complete RoCEv2 frames: parsing with all checks that need no QP, and building in place.

use thiserror::Error;

use crate::frame::Frame;
use crate::headers::{BadBody, Body, Bth, Headers, Reader};
use crate::icrc::{Icrc, ICRC_SIZE};
use crate::net::{NetError, Path, Template, UDP_SIZE};
use crate::opcode::Position;
use crate::work::Mtu;

/// Why a frame is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PacketError {
    /// Invalid Ethernet, IP or UDP headers.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The UDP payload ends within the headers, or a header has a reserved value.
    #[error("malformed transport headers")]
    Headers,
    /// Unknown transport header version.
    #[error("transport header version {0}")]
    Version(u8),
    /// Unknown opcode.
    #[error("opcode {0:#04x}")]
    Opcode(u8),
    /// The length of payload and padding is not a multiple of 4 bytes, or the opcode allows no
    /// payload.
    #[error("bad payload length or padding")]
    Payload,
    /// Wrong invariant CRC.
    #[error("wrong ICRC")]
    Icrc,
}

/// A valid RoCEv2 frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Ethernet, IP and UDP header fields, from sender to receiver.
    pub path: Path,
    /// IP header as received.
    pub ip_header: &'a [u8],
    /// IPv4 identification, 0 for IPv6.
    pub ident: u16,
    /// Transport headers.
    pub headers: Headers,
    /// Payload without padding.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Parses a frame and verifies lengths, checksums and the ICRC. The caller checks P_Key, QPN
    /// and addresses.
    pub fn parse(frame: &'a [u8]) -> Result<Self, PacketError> {
        Self::decode(frame, true)
    }

    /// Like [`parse`](Self::parse), but does not verify the ICRC if the frame
    /// [lacks](Frame::lacks_icrc) one.
    pub fn parse_frame(frame: &'a Frame) -> Result<Self, PacketError> {
        Self::decode(frame, !frame.lacks_icrc())
    }

    /// Size of the packet's frame in bytes, without padding after the packet.
    pub fn frame_size(&self) -> usize {
        frame_size(&self.path, &self.headers.body, self.payload.len())
    }

    fn decode(frame: &'a [u8], has_icrc: bool) -> Result<Self, PacketError> {
        let (path, ident, length) = Path::decode(frame)?;
        let headers = path.size();
        let datagram = &frame[..headers + length];
        let (covered, icrc) = datagram
            .split_last_chunk::<ICRC_SIZE>()
            .filter(|(covered, _)| covered.len() >= headers + Bth::SIZE)
            .ok_or(PacketError::Headers)?;
        let (invariant, rest) =
            covered[path.ip_offset()..].split_at(headers + Bth::SIZE - path.ip_offset());
        let bth = invariant
            .last_chunk::<{ Bth::SIZE }>()
            .ok_or(PacketError::Headers)?;
        let (bth, opcode, version) = Bth::decode(bth);
        if version != 0 {
            return Err(PacketError::Version(version));
        }
        let mut reader = Reader::new(rest);
        let body = Body::decode(opcode, &mut reader).map_err(|bad| match bad {
            BadBody::Opcode => PacketError::Opcode(opcode),
            BadBody::Headers => PacketError::Headers,
        })?;
        let padded = reader.rest();
        let payload = padded
            .len()
            .checked_sub(usize::from(bth.pad))
            .ok_or(PacketError::Payload)?;
        if padded.len() % 4 != 0 || (!body.has_payload() && !padded.is_empty()) {
            return Err(PacketError::Payload);
        }
        if has_icrc && checksum(invariant, rest) != *icrc {
            return Err(PacketError::Icrc);
        }
        Ok(Self {
            path,
            ip_header: &frame[path.ip_offset()..headers - UDP_SIZE],
            ident,
            headers: Headers { bth, body },
            payload: &padded[..payload],
        })
    }
}

/// Whether the payload of a packet at `position` of a SEND or WRITE has a valid length: all packets
/// but the last are full, and the last of several packets is not empty (IBTA 9.7.4.1).
pub(crate) fn fits(position: Position, payload: &[u8], mtu: Mtu) -> bool {
    let mtu = mtu.bytes() as usize;
    match position {
        Position::First | Position::Middle => payload.len() == mtu,
        Position::Last => (1..=mtu).contains(&payload.len()),
        Position::Only => payload.len() <= mtu,
    }
}

/// Size in bytes of a frame with these headers and a payload of `payload` bytes.
pub fn frame_size(path: &Path, body: &Body, payload: usize) -> usize {
    total_size(path.size(), body, payload)
}

/// Size in bytes of a frame with `outer` bytes of headers around the transport headers.
fn total_size(outer: usize, body: &Body, payload: usize) -> usize {
    outer + Bth::SIZE + body.size() + payload.next_multiple_of(4) + ICRC_SIZE
}

/// Builds a frame. `fill` writes the payload directly into the frame. If `fill` fails, its error is
/// returned and the frame must not be sent. This function sets the pad count of the BTH.
///
/// # Panics
/// If the length of `frame` is not [`frame_size`].
pub fn build<E>(
    frame: &mut [u8],
    path: &Path,
    ident: u16,
    headers: &Headers,
    payload: usize,
    fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    encode(frame, &Template::of(path), ident, headers, payload, fill)?;
    seal(frame, path.ip_offset(), path.size());
    Ok(())
}

/// Like [`build`], but leaves the ICRC zero if the pool of `frame` [offloads] the ICRC. The frame
/// is then marked as one that [lacks](Frame::lacks_icrc) an ICRC.
///
/// [offloads]: crate::FramePool::with_icrc_offload
///
/// # Panics
/// If the length of `frame` is not [`frame_size`].
pub fn build_frame<E>(
    frame: &mut Frame,
    template: &Template,
    ident: u16,
    headers: &Headers,
    payload: usize,
    fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    encode(frame, template, ident, headers, payload, fill)?;
    if frame.offloads_icrc() {
        frame.set_lacks_icrc(true);
    } else {
        seal(frame, template.ip_offset(), template.size());
    }
    Ok(())
}

/// Writes the ICRC of a frame that is marked as [lacking](Frame::lacks_icrc) one, and removes the
/// mark. If the frame is not a RoCEv2 packet, only removes the mark.
pub fn complete(frame: &mut Frame) {
    if !frame.lacks_icrc() {
        return;
    }
    frame.set_lacks_icrc(false);
    let Ok((path, _, length)) = Path::decode(frame) else {
        return;
    };
    if length >= Bth::SIZE + ICRC_SIZE {
        let packet = &mut frame[..path.size() + length];
        seal(packet, path.ip_offset(), path.size());
    }
}

/// Writes a frame whose ICRC is zero.
fn encode<E>(
    frame: &mut [u8],
    template: &Template,
    ident: u16,
    headers: &Headers,
    payload: usize,
    fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    let size = total_size(template.size(), &headers.body, payload);
    assert_eq!(frame.len(), size);
    let mut headers = *headers;
    let padded = payload.next_multiple_of(4);
    // The difference is at most 3, so the cast does not truncate.
    headers.bth.pad = (padded - payload) as u8;
    let start = template.size();
    let data = start + headers.size();
    template.write(ident, size - start, frame);
    headers.encode(&mut frame[start..]);
    let (payload, rest) = frame[data..].split_at_mut(payload);
    fill(payload)?;
    rest.fill(0);
    Ok(())
}

/// Writes the ICRC to the end of a packet whose IP header begins at `ip`, and whose BTH begins at
/// `transport`.
fn seal(packet: &mut [u8], ip: usize, transport: usize) {
    let (covered, icrc) = packet.split_at_mut(packet.len() - ICRC_SIZE);
    let (invariant, rest) = covered[ip..].split_at(transport + Bth::SIZE - ip);
    icrc.copy_from_slice(&checksum(invariant, rest));
}

/// The ICRC of a packet with the headers `invariant`, from the IP header to the BTH, and the bytes
/// `rest` after them.
fn checksum(invariant: &[u8], rest: &[u8]) -> [u8; ICRC_SIZE] {
    let mut icrc = Icrc::new(invariant);
    icrc.update(rest);
    icrc.finish()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::headers::{RcRequest, SendPart};
    use crate::net::Addresses;
    use crate::work::With;
    use crate::{FramePool, Psn, Qpn};

    const PAYLOAD: usize = 101;

    fn paths() -> impl Iterator<Item = Path> {
        let v4 = Addresses::V4([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let families = [v4, Addresses::V6(1.into(), 2.into())];
        families.into_iter().flat_map(|addresses| {
            [None, Some(0x2005)].map(|vlan| Path {
                vlan,
                ..Path::new([2; 6], [4; 6], addresses)
            })
        })
    }

    /// A SEND packet with this path, in a frame of `pool`.
    fn send(pool: &FramePool, path: &Path) -> Frame {
        let bth = Bth::new(0xffff, Qpn::new(17), Psn::new(3));
        let headers = Headers::new(bth, RcRequest::from(SendPart::Only(With::Nothing)));
        let mut frame = pool.take(frame_size(path, &headers.body, PAYLOAD)).unwrap();
        frame.fill(0xee);
        let built: Result<(), Infallible> = build_frame(
            &mut frame,
            &Template::of(path),
            3,
            &headers,
            PAYLOAD,
            |out| {
                out.fill(7);
                Ok(())
            },
        );
        let Ok(()) = built;
        frame
    }

    #[test]
    fn an_icrc_that_was_left_out_comes_later() {
        let whole = FramePool::new(1);
        let offloading = FramePool::with_icrc_offload(1, 0);
        for path in paths() {
            let expected = send(&whole, &path);
            assert!(!expected.lacks_icrc());
            let mut frame = send(&offloading, &path);
            assert!(frame.lacks_icrc());
            assert_eq!(Packet::parse(&frame), Err(PacketError::Icrc));
            let packet = Packet::parse_frame(&frame).expect("nothing else is missing");
            assert_eq!(packet.payload, [7; PAYLOAD]);
            complete(&mut frame);
            assert!(!frame.lacks_icrc());
            assert_eq!(frame[..], expected[..]);
            assert!(Packet::parse_frame(&frame).is_ok());
        }
    }

    #[test]
    fn a_frame_that_has_an_icrc_keeps_it() {
        let pool = FramePool::new(1);
        for path in paths() {
            let mut frame = send(&pool, &path);
            let last = frame.len() - 1;
            frame[last] ^= 1;
            complete(&mut frame);
            assert_eq!(Packet::parse_frame(&frame), Err(PacketError::Icrc));
        }
    }

    #[test]
    fn what_is_no_packet_stays_as_it_is() {
        let pool = FramePool::with_icrc_offload(2, 0);
        for path in paths() {
            let whole = send(&pool, &path);
            for length in 0..whole.len() {
                let mut frame = pool.copy_of(&whole).unwrap();
                frame.truncate(length);
                complete(&mut frame);
                assert!(frame[..] == whole[..length] && !frame.lacks_icrc());
            }
        }
    }
}
