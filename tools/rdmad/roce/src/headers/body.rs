// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Opcodes and extended transport headers (IBTA 9.2.1, table 38). An opcode says which extended
//! headers follow the BTH, so [`Body`] holds the opcode and these headers together.

use crate::opcode::{Service, CONGESTION_NOTIFICATION};
use crate::work::{AtomicOp, FlushLevel, FlushOp, Remote};

use super::bytes::{Reader, Writer};
use super::part::{
    imm_size, READ_FIRST, READ_ONLY, SEND_LAST_INV, SEND_ONLY, SEND_ONLY_IMM, SEND_ONLY_INV,
};
use super::{Aeth, AtomicEth, Bth, Deth, Feth, Part, ReadPart, Reth, SendPart, WritePart};

/// Transport headers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Base header.
    pub bth: Bth,
    /// Opcode and extended headers.
    pub body: Body,
}

impl Headers {
    /// The headers `bth` and `body`.
    pub fn new(bth: Bth, body: impl Into<Body>) -> Self {
        Self {
            bth,
            body: body.into(),
        }
    }

    /// Size of the headers in bytes.
    pub fn size(&self) -> usize {
        Bth::SIZE + self.body.size()
    }

    /// Writes the headers to `out`, which holds at least [`size`](Self::size) bytes.
    pub(crate) fn encode(&self, out: &mut [u8]) {
        let (bth, extended) = out.split_at_mut(Bth::SIZE);
        let opcode = self.body.encode(&mut Writer::new(extended));
        bth.copy_from_slice(&self.bth.encode(opcode));
    }
}

/// Opcode and extended headers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// A request packet of a reliable connection.
    Request(RcRequest),
    /// A response packet of a reliable connection.
    Response(RcResponse),
    /// A packet of an unreliable connection.
    Uc(Part),
    /// A datagram: a SEND in one packet.
    Ud {
        /// Datagram header.
        deth: Deth,
        /// Immediate data in network byte order.
        imm: Option<[u8; 4]>,
    },
}

/// A request packet of a reliable connection, from the requester to the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RcRequest {
    /// A packet of a SEND or RDMA WRITE.
    Part(Part),
    /// RDMA READ.
    Read(Reth),
    /// An atomic operation on a word.
    Atomic(Remote, AtomicOp),
    /// Atomic WRITE (IBTA A19.4.2).
    AtomicWrite(Reth),
    /// FLUSH (IBTA A19.4.1).
    Flush(Feth, Reth),
}

/// A response packet of a reliable connection, from the responder to the requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RcResponse {
    /// A packet of the data of an RDMA READ, or the answer to an atomic WRITE or a FLUSH.
    Read(ReadPart),
    /// An acknowledgement or a NAK.
    Ack(Aeth),
    /// The answer to an atomic operation, with the original value of the word.
    Atomic(Aeth, u64),
    /// A congestion notification: packets of the requester meet congestion (IBTA A17.9.3).
    Congestion,
}

/// High 3 bits of an opcode: the transport service.
const RC: u8 = 0x00;
const UC: u8 = 0x20;
const UD: u8 = 0x60;
const SERVICE_MASK: u8 = 0xe0;

/// Low 5 bits of an opcode: the operation.
const READ_REQUEST: u8 = 0x0c;
const ACK: u8 = 0x11;
const ATOMIC_ACK: u8 = 0x12;
const COMPARE_SWAP: u8 = 0x13;
const FETCH_ADD: u8 = 0x14;
const FLUSH: u8 = 0x1c;
const ATOMIC_WRITE: u8 = 0x1d;

/// Number of reserved bytes after the BTH of a congestion notification.
const CONGESTION_SIZE: usize = 16;

/// Why the headers after a BTH are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadBody {
    /// The opcode is unknown, or belongs to a transport service other than RC, UC and UD.
    Opcode,
    /// Bytes are missing, or an AETH or FETH has a reserved value.
    Headers,
}

impl Body {
    /// Transport service.
    pub const fn service(&self) -> Service {
        match self {
            Self::Request(_) | Self::Response(_) => Service::Rc,
            Self::Uc(_) => Service::Uc,
            Self::Ud { .. } => Service::Ud,
        }
    }

    /// Whether packets with this body may carry a payload.
    pub const fn has_payload(&self) -> bool {
        match self {
            Self::Request(RcRequest::Part(_) | RcRequest::AtomicWrite(_))
            | Self::Response(RcResponse::Read(_))
            | Self::Uc(_)
            | Self::Ud { .. } => true,
            Self::Request(_) | Self::Response(_) => false,
        }
    }

    /// Size of the extended headers in bytes.
    pub(crate) const fn size(&self) -> usize {
        match self {
            Self::Request(RcRequest::Part(part)) | Self::Uc(part) => part.size(),
            Self::Request(RcRequest::Read(_) | RcRequest::AtomicWrite(_)) => Reth::SIZE,
            Self::Request(RcRequest::Atomic(..)) => AtomicEth::SIZE,
            Self::Request(RcRequest::Flush(..)) => Feth::SIZE + Reth::SIZE,
            Self::Response(RcResponse::Read(ReadPart::Middle)) => 0,
            Self::Response(RcResponse::Read(_) | RcResponse::Ack(_)) => Aeth::SIZE,
            Self::Response(RcResponse::Atomic(..)) => Aeth::SIZE + size_of::<u64>(),
            Self::Response(RcResponse::Congestion) => CONGESTION_SIZE,
            Self::Ud { imm, .. } => Deth::SIZE + imm_size(imm),
        }
    }

    /// Reads the extended headers of `opcode`. The rest of `reader` is the payload.
    pub(crate) fn decode(opcode: u8, reader: &mut Reader<'_>) -> Result<Self, BadBody> {
        if opcode == CONGESTION_NOTIFICATION {
            let _reserved: [u8; CONGESTION_SIZE] = array(reader)?;
            return Ok(Self::Response(RcResponse::Congestion));
        }
        let operation = opcode & !SERVICE_MASK;
        match opcode & SERVICE_MASK {
            RC => Self::decode_rc(operation, reader),
            UC => match operation {
                SEND_LAST_INV | SEND_ONLY_INV => Err(BadBody::Opcode),
                _ => Ok(Self::Uc(Part::decode(operation, reader)?)),
            },
            UD => match operation {
                SEND_ONLY | SEND_ONLY_IMM => Ok(Self::Ud {
                    deth: Deth::decode(array(reader)?),
                    imm: match operation {
                        SEND_ONLY => None,
                        _ => Some(array(reader)?),
                    },
                }),
                _ => Err(BadBody::Opcode),
            },
            _ => Err(BadBody::Opcode),
        }
    }

    fn decode_rc(operation: u8, reader: &mut Reader<'_>) -> Result<Self, BadBody> {
        Ok(match operation {
            READ_REQUEST => Self::Request(RcRequest::Read(reth(reader)?)),
            COMPARE_SWAP | FETCH_ADD => {
                let header = AtomicEth::decode(array(reader)?);
                let op = match operation {
                    COMPARE_SWAP => AtomicOp::CompareSwap {
                        compare: header.compare,
                        swap: header.swap_add,
                    },
                    _ => AtomicOp::FetchAdd {
                        add: header.swap_add,
                    },
                };
                Self::Request(RcRequest::Atomic(header.remote(), op))
            }
            ATOMIC_WRITE => Self::Request(RcRequest::AtomicWrite(reth(reader)?)),
            FLUSH => {
                let feth = Feth::decode(array(reader)?).ok_or(BadBody::Headers)?;
                Self::Request(RcRequest::Flush(feth, reth(reader)?))
            }
            READ_FIRST..=READ_ONLY => {
                Self::Response(RcResponse::Read(ReadPart::decode(operation, reader)?))
            }
            ACK => Self::Response(RcResponse::Ack(aeth(reader)?)),
            ATOMIC_ACK => {
                let aeth = aeth(reader)?;
                Self::Response(RcResponse::Atomic(aeth, u64::from_be_bytes(array(reader)?)))
            }
            _ => Self::Request(RcRequest::Part(Part::decode(operation, reader)?)),
        })
    }

    /// Writes the extended headers and returns the opcode.
    fn encode(&self, writer: &mut Writer<'_>) -> u8 {
        match self {
            Self::Request(request) => RC | request.encode(writer),
            Self::Response(response) => response.encode(writer),
            Self::Uc(part) => UC | part.encode(writer),
            Self::Ud { deth, imm } => {
                writer.put(deth.encode());
                UD | match imm {
                    None => SEND_ONLY,
                    Some(imm) => {
                        writer.put(*imm);
                        SEND_ONLY_IMM
                    }
                }
            }
        }
    }
}

impl From<RcRequest> for Body {
    fn from(request: RcRequest) -> Self {
        Self::Request(request)
    }
}

impl From<RcResponse> for Body {
    fn from(response: RcResponse) -> Self {
        Self::Response(response)
    }
}

impl RcRequest {
    fn encode(&self, writer: &mut Writer<'_>) -> u8 {
        match self {
            Self::Part(part) => part.encode(writer),
            Self::Read(reth) => {
                writer.put(reth.encode());
                READ_REQUEST
            }
            Self::Atomic(remote, op) => {
                let (opcode, swap_add, compare) = match *op {
                    AtomicOp::CompareSwap { compare, swap } => (COMPARE_SWAP, swap, compare),
                    AtomicOp::FetchAdd { add } => (FETCH_ADD, add, 0),
                };
                let header = AtomicEth {
                    va: remote.va,
                    rkey: remote.rkey,
                    swap_add,
                    compare,
                };
                writer.put(header.encode());
                opcode
            }
            Self::AtomicWrite(reth) => {
                writer.put(reth.encode());
                ATOMIC_WRITE
            }
            Self::Flush(feth, reth) => {
                writer.put(feth.encode());
                writer.put(reth.encode());
                FLUSH
            }
        }
    }

    /// The headers of a FLUSH.
    pub fn flush(op: &FlushOp) -> Self {
        let feth = Feth {
            types: op.types,
            level: match op.length {
                Some(_) => FlushLevel::Range,
                None => FlushLevel::Mr,
            },
        };
        Self::Flush(feth, op.remote.range(0, op.length.unwrap_or(0)))
    }
}

impl From<SendPart> for RcRequest {
    fn from(part: SendPart) -> Self {
        Self::Part(Part::Send(part))
    }
}

impl From<WritePart> for RcRequest {
    fn from(part: WritePart) -> Self {
        Self::Part(Part::Write(part))
    }
}

impl RcResponse {
    fn encode(&self, writer: &mut Writer<'_>) -> u8 {
        match self {
            Self::Read(part) => RC | part.encode(writer),
            Self::Ack(aeth) => {
                writer.put(aeth.encode());
                RC | ACK
            }
            Self::Atomic(aeth, original) => {
                writer.put(aeth.encode());
                writer.put(original.to_be_bytes());
                RC | ATOMIC_ACK
            }
            Self::Congestion => {
                writer.put([0; CONGESTION_SIZE]);
                CONGESTION_NOTIFICATION
            }
        }
    }
}

pub(super) fn array<const N: usize>(reader: &mut Reader<'_>) -> Result<[u8; N], BadBody> {
    reader.array().ok_or(BadBody::Headers)
}

pub(super) fn reth(reader: &mut Reader<'_>) -> Result<Reth, BadBody> {
    array(reader).map(Reth::decode)
}

pub(super) fn aeth(reader: &mut Reader<'_>) -> Result<Aeth, BadBody> {
    Aeth::decode(array(reader)?).ok_or(BadBody::Headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that are valid extended headers for every opcode, without reserved values.
    const EXTENDED: [u8; 32] = [1; 32];

    #[test]
    fn decode_and_encode_agree() {
        let mut known = 0;
        for opcode in 0..=255 {
            let mut reader = Reader::new(&EXTENDED);
            let Ok(body) = Body::decode(opcode, &mut reader) else {
                continue;
            };
            assert_eq!(
                reader.rest().len(),
                EXTENDED.len() - body.size(),
                "{body:?}"
            );
            let mut bytes = [0; EXTENDED.len()];
            assert_eq!(body.encode(&mut Writer::new(&mut bytes)), opcode);
            let again = Body::decode(opcode, &mut Reader::new(&bytes));
            assert_eq!(again, Ok(body));
            known += 1;
        }
        assert_eq!(known, 25 + 12 + 2 + 1, "RC, UC, UD, congestion");
    }

    #[test]
    fn missing_bytes_are_noticed() {
        for opcode in 0..=255 {
            let Ok(body) = Body::decode(opcode, &mut Reader::new(&EXTENDED)) else {
                continue;
            };
            for length in 0..body.size() {
                let short = Body::decode(opcode, &mut Reader::new(&EXTENDED[..length]));
                assert_eq!(short, Err(BadBody::Headers), "{body:?} in {length} bytes");
            }
        }
    }

    #[test]
    fn services_have_their_own_operations() {
        for opcode in [0x15, 0x2c, 0x36, 0x44, 0x60, 0x6a, 0x80, 0x82] {
            let decoded = Body::decode(opcode, &mut Reader::new(&EXTENDED));
            assert_eq!(decoded, Err(BadBody::Opcode), "{opcode:#x}");
        }
    }
}
