// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Packets of messages that may take several packets: SEND, RDMA WRITE and RDMA READ responses.

use crate::opcode::Position;
use crate::work::With;

use super::body::{aeth, array, reth, BadBody};
use super::bytes::{Reader, Writer};
use super::{Aeth, Reth};

/// A packet of a SEND or RDMA WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A packet of a SEND.
    Send(SendPart),
    /// A packet of an RDMA WRITE.
    Write(WritePart),
}

/// A packet of a SEND. Only the last packet may carry an extended header: immediate data or an
/// R_Key to invalidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendPart {
    /// The first of several packets.
    First,
    /// A packet between the first and the last.
    Middle,
    /// The last of several packets.
    Last(With),
    /// The only packet of the message.
    Only(With),
}

/// A packet of an RDMA WRITE. The last packet may carry immediate data in network byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritePart {
    /// The first of several packets.
    First(Reth),
    /// A packet between the first and the last.
    Middle,
    /// The last of several packets.
    Last(Option<[u8; 4]>),
    /// The only packet of the message.
    Only(Reth, Option<[u8; 4]>),
}

/// A packet of an RDMA READ response. The first and the last packet acknowledge the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPart {
    /// The first of several packets.
    First(Aeth),
    /// A packet between the first and the last.
    Middle,
    /// The last of several packets.
    Last(Aeth),
    /// The only packet of the response.
    Only(Aeth),
}

/// Low 5 bits of an opcode: the operation.
const SEND_FIRST: u8 = 0x00;
const SEND_MIDDLE: u8 = 0x01;
const SEND_LAST: u8 = 0x02;
const SEND_LAST_IMM: u8 = 0x03;
pub(super) const SEND_ONLY: u8 = 0x04;
pub(super) const SEND_ONLY_IMM: u8 = 0x05;
const WRITE_FIRST: u8 = 0x06;
const WRITE_MIDDLE: u8 = 0x07;
const WRITE_LAST: u8 = 0x08;
const WRITE_LAST_IMM: u8 = 0x09;
const WRITE_ONLY: u8 = 0x0a;
const WRITE_ONLY_IMM: u8 = 0x0b;
pub(super) const READ_FIRST: u8 = 0x0d;
const READ_MIDDLE: u8 = 0x0e;
const READ_LAST: u8 = 0x0f;
pub(super) const READ_ONLY: u8 = 0x10;
pub(super) const SEND_LAST_INV: u8 = 0x16;
pub(super) const SEND_ONLY_INV: u8 = 0x17;

impl Part {
    /// Position of the packet in its message.
    pub const fn position(&self) -> Position {
        match self {
            Self::Send(part) => part.position(),
            Self::Write(part) => part.position(),
        }
    }

    /// Immediate data or R_Key to invalidate that the packet carries.
    pub const fn with(&self) -> With {
        match self {
            Self::Send(part) => part.with(),
            Self::Write(part) => match part.imm() {
                Some(imm) => With::Imm(imm),
                None => With::Nothing,
            },
        }
    }

    pub(super) const fn size(&self) -> usize {
        match self {
            Self::Send(part) => match part.with() {
                With::Nothing => 0,
                With::Imm(_) | With::Inv(_) => size_of::<u32>(),
            },
            Self::Write(part) => {
                let reth = match part.reth() {
                    Some(_) => Reth::SIZE,
                    None => 0,
                };
                reth + imm_size(&part.imm())
            }
        }
    }

    pub(super) fn decode(operation: u8, reader: &mut Reader<'_>) -> Result<Self, BadBody> {
        Ok(match operation {
            SEND_FIRST => Self::Send(SendPart::First),
            SEND_MIDDLE => Self::Send(SendPart::Middle),
            SEND_LAST => Self::Send(SendPart::Last(With::Nothing)),
            SEND_LAST_IMM => Self::Send(SendPart::Last(With::Imm(array(reader)?))),
            SEND_LAST_INV => Self::Send(SendPart::Last(invalidate(reader)?)),
            SEND_ONLY => Self::Send(SendPart::Only(With::Nothing)),
            SEND_ONLY_IMM => Self::Send(SendPart::Only(With::Imm(array(reader)?))),
            SEND_ONLY_INV => Self::Send(SendPart::Only(invalidate(reader)?)),
            WRITE_FIRST => Self::Write(WritePart::First(reth(reader)?)),
            WRITE_MIDDLE => Self::Write(WritePart::Middle),
            WRITE_LAST => Self::Write(WritePart::Last(None)),
            WRITE_LAST_IMM => Self::Write(WritePart::Last(Some(array(reader)?))),
            WRITE_ONLY => Self::Write(WritePart::Only(reth(reader)?, None)),
            WRITE_ONLY_IMM => {
                let reth = reth(reader)?;
                Self::Write(WritePart::Only(reth, Some(array(reader)?)))
            }
            _ => return Err(BadBody::Opcode),
        })
    }

    pub(super) fn encode(&self, writer: &mut Writer<'_>) -> u8 {
        match self {
            Self::Send(part) => part.encode(writer),
            Self::Write(part) => part.encode(writer),
        }
    }
}

impl SendPart {
    /// The packet at `position` of a SEND. Only the last packet carries `with`.
    pub const fn new(position: Position, with: With) -> Self {
        match position {
            Position::First => Self::First,
            Position::Middle => Self::Middle,
            Position::Last => Self::Last(with),
            Position::Only => Self::Only(with),
        }
    }

    /// Position of the packet in its message.
    pub const fn position(&self) -> Position {
        match self {
            Self::First => Position::First,
            Self::Middle => Position::Middle,
            Self::Last(_) => Position::Last,
            Self::Only(_) => Position::Only,
        }
    }

    /// Immediate data or R_Key to invalidate that the packet carries.
    pub const fn with(&self) -> With {
        match *self {
            Self::First | Self::Middle => With::Nothing,
            Self::Last(with) | Self::Only(with) => with,
        }
    }

    fn encode(&self, writer: &mut Writer<'_>) -> u8 {
        match self.with() {
            With::Nothing => {}
            With::Imm(imm) => writer.put(imm),
            With::Inv(rkey) => writer.put(rkey.to_be_bytes()),
        }
        match self {
            Self::First => SEND_FIRST,
            Self::Middle => SEND_MIDDLE,
            Self::Last(With::Nothing) => SEND_LAST,
            Self::Last(With::Imm(_)) => SEND_LAST_IMM,
            Self::Last(With::Inv(_)) => SEND_LAST_INV,
            Self::Only(With::Nothing) => SEND_ONLY,
            Self::Only(With::Imm(_)) => SEND_ONLY_IMM,
            Self::Only(With::Inv(_)) => SEND_ONLY_INV,
        }
    }
}

impl WritePart {
    /// The packet at `position` of an RDMA WRITE to `reth`. Only the last packet carries `imm`.
    pub const fn new(position: Position, reth: Reth, imm: Option<[u8; 4]>) -> Self {
        match position {
            Position::First => Self::First(reth),
            Position::Middle => Self::Middle,
            Position::Last => Self::Last(imm),
            Position::Only => Self::Only(reth, imm),
        }
    }

    /// Position of the packet in its message.
    pub const fn position(&self) -> Position {
        match self {
            Self::First(_) => Position::First,
            Self::Middle => Position::Middle,
            Self::Last(_) => Position::Last,
            Self::Only(..) => Position::Only,
        }
    }

    /// The remote range of the message. Only the first packet carries it.
    pub const fn reth(&self) -> Option<Reth> {
        match *self {
            Self::First(reth) | Self::Only(reth, _) => Some(reth),
            Self::Middle | Self::Last(_) => None,
        }
    }

    /// Immediate data in network byte order.
    pub const fn imm(&self) -> Option<[u8; 4]> {
        match *self {
            Self::Last(imm) | Self::Only(_, imm) => imm,
            Self::First(_) | Self::Middle => None,
        }
    }

    fn encode(&self, writer: &mut Writer<'_>) -> u8 {
        if let Some(reth) = self.reth() {
            writer.put(reth.encode());
        }
        if let Some(imm) = self.imm() {
            writer.put(imm);
        }
        match self {
            Self::First(_) => WRITE_FIRST,
            Self::Middle => WRITE_MIDDLE,
            Self::Last(None) => WRITE_LAST,
            Self::Last(Some(_)) => WRITE_LAST_IMM,
            Self::Only(_, None) => WRITE_ONLY,
            Self::Only(_, Some(_)) => WRITE_ONLY_IMM,
        }
    }
}

impl ReadPart {
    /// The packet at `position` of a READ response. The first and the last packet carry `aeth`.
    pub const fn new(position: Position, aeth: Aeth) -> Self {
        match position {
            Position::First => Self::First(aeth),
            Position::Middle => Self::Middle,
            Position::Last => Self::Last(aeth),
            Position::Only => Self::Only(aeth),
        }
    }

    /// Position of the packet in the response.
    pub const fn position(&self) -> Position {
        match self {
            Self::First(_) => Position::First,
            Self::Middle => Position::Middle,
            Self::Last(_) => Position::Last,
            Self::Only(_) => Position::Only,
        }
    }

    pub(super) fn decode(operation: u8, reader: &mut Reader<'_>) -> Result<Self, BadBody> {
        Ok(match operation {
            READ_FIRST => Self::First(aeth(reader)?),
            READ_MIDDLE => Self::Middle,
            READ_LAST => Self::Last(aeth(reader)?),
            READ_ONLY => Self::Only(aeth(reader)?),
            _ => return Err(BadBody::Opcode),
        })
    }

    /// Acknowledgement of the request; `None` in a middle packet.
    pub const fn aeth(&self) -> Option<Aeth> {
        match *self {
            Self::First(aeth) | Self::Last(aeth) | Self::Only(aeth) => Some(aeth),
            Self::Middle => None,
        }
    }

    pub(super) fn encode(&self, writer: &mut Writer<'_>) -> u8 {
        if let Some(aeth) = self.aeth() {
            writer.put(aeth.encode());
        }
        match self {
            Self::First(_) => READ_FIRST,
            Self::Middle => READ_MIDDLE,
            Self::Last(_) => READ_LAST,
            Self::Only(_) => READ_ONLY,
        }
    }
}

pub(super) const fn imm_size(imm: &Option<[u8; 4]>) -> usize {
    match imm {
        Some(imm) => imm.len(),
        None => 0,
    }
}

fn invalidate(reader: &mut Reader<'_>) -> Result<With, BadBody> {
    array(reader).map(|rkey| With::Inv(u32::from_be_bytes(rkey)))
}
