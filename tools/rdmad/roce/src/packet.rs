// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Complete RoCEv2 frames: parsing with all checks that need no QP, and building in place.

use thiserror::Error;

use crate::headers::{BadBody, Body, Bth, Headers, Reader};
use crate::icrc::{Icrc, ICRC_SIZE};
use crate::net::{NetError, Path, UDP_SIZE};
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
        let (path, ident, length) = Path::decode(frame)?;
        let headers = path.size();
        let datagram = &frame[..headers + length];
        let (covered, icrc) = datagram
            .split_last_chunk::<ICRC_SIZE>()
            .filter(|(covered, _)| covered.len() >= headers + Bth::SIZE)
            .ok_or(PacketError::Headers)?;
        let (invariant, behind) =
            covered[path.ip_offset()..].split_at(headers + Bth::SIZE - path.ip_offset());
        let bth = invariant
            .last_chunk::<{ Bth::SIZE }>()
            .ok_or(PacketError::Headers)?;
        let (bth, opcode, version) = Bth::decode(bth);
        if version != 0 {
            return Err(PacketError::Version(version));
        }
        let mut reader = Reader::new(behind);
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
        let mut expected = Icrc::new(invariant);
        expected.update(behind);
        if expected.finish() != *icrc {
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

/// Bytes of a frame with these headers and a payload of `payload` bytes.
pub fn frame_size(path: &Path, body: &Body, payload: usize) -> usize {
    path.size() + Bth::SIZE + body.size() + payload.next_multiple_of(4) + ICRC_SIZE
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
    assert_eq!(frame.len(), frame_size(path, &headers.body, payload));
    let mut headers = *headers;
    let padded = payload.next_multiple_of(4);
    // The difference is at most 3, so the cast does not truncate.
    headers.bth.pad = (padded - payload) as u8;
    let start = path.size();
    let data = start + headers.size();
    path.encode(ident, frame.len() - start, frame);
    headers.encode(&mut frame[start..]);
    let (payload, pad) = frame[data..data + padded].split_at_mut(payload);
    fill(payload)?;
    pad.fill(0);
    let (covered, icrc) = frame.split_at_mut(data + padded);
    let (invariant, behind) =
        covered[path.ip_offset()..].split_at(start + Bth::SIZE - path.ip_offset());
    let mut crc = Icrc::new(invariant);
    crc.update(behind);
    icrc.copy_from_slice(&crc.finish());
    Ok(())
}
