// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! BTH opcodes (IBTA 9.2.1, table 38): a transport service in the high 3 bits, an operation in the
//! low 5.

/// A congestion notification (annex A17), which belongs to no transport service.
pub const CONGESTION_NOTIFICATION: u8 = 0x81;

/// Transport service of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// Place of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last,
    /// The only one.
    Only,
}

impl Position {
    /// The position of a packet that starts its message, ends it, both or neither.
    pub const fn of(first: bool, last: bool) -> Self {
        match (first, last) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, false) => Self::Middle,
            (false, true) => Self::Last,
        }
    }

    /// Whether the message starts here.
    pub const fn starts(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether the message ends here.
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// What the last packet of a SEND or WRITE carries besides its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// Nothing.
    None,
    /// Immediate data.
    Imm,
    /// An R_Key to invalidate; SEND alone.
    Inv,
}

/// Operation of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// SEND.
    Send(Position, Extra),
    /// RDMA WRITE.
    Write(Position, Extra),
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response.
    ReadResponse(Position),
    /// Acknowledgement.
    Ack,
    /// Acknowledgement of an atomic operation, with the original value.
    AtomicAck,
    /// Atomic compare and swap.
    CompareSwap,
    /// Atomic fetch and add.
    FetchAdd,
    /// FLUSH (IBTA A19.4.1).
    Flush,
    /// Atomic WRITE (IBTA A19.4.2).
    AtomicWrite,
}

/// An opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opcode {
    /// Transport service.
    pub service: Service,
    /// Operation.
    pub op: Op,
}

impl Opcode {
    /// An opcode of the reliable connection service.
    pub const fn rc(op: Op) -> Self {
        Self {
            service: Service::Rc,
            op,
        }
    }

    /// Decodes the opcode of a BTH; `None` if it is not one of RC, UC or UD that this crate knows.
    pub fn decode(byte: u8) -> Option<Self> {
        use {Extra::*, Op::*, Position::*};
        let service = match byte >> 5 {
            0 => Service::Rc,
            1 => Service::Uc,
            3 => Service::Ud,
            _ => return Option::None,
        };
        let op = match byte & 0x1f {
            0x00 => Send(First, None),
            0x01 => Send(Middle, None),
            0x02 => Send(Last, None),
            0x03 => Send(Last, Imm),
            0x04 => Send(Only, None),
            0x05 => Send(Only, Imm),
            0x06 => Write(First, None),
            0x07 => Write(Middle, None),
            0x08 => Write(Last, None),
            0x09 => Write(Last, Imm),
            0x0a => Write(Only, None),
            0x0b => Write(Only, Imm),
            0x0c => ReadRequest,
            0x0d => ReadResponse(First),
            0x0e => ReadResponse(Middle),
            0x0f => ReadResponse(Last),
            0x10 => ReadResponse(Only),
            0x11 => Ack,
            0x12 => AtomicAck,
            0x13 => CompareSwap,
            0x14 => FetchAdd,
            0x16 => Send(Last, Inv),
            0x17 => Send(Only, Inv),
            0x1c => Flush,
            0x1d => AtomicWrite,
            _ => return Option::None,
        };
        let valid = match service {
            Service::Rc => true,
            Service::Uc => matches!(op, Send(_, None | Imm) | Write(..)),
            Service::Ud => matches!(op, Send(Only, None | Imm)),
        };
        valid.then_some(Self { service, op })
    }

    /// The byte of the BTH.
    ///
    /// Combinations that do not exist (a first packet with immediate data, say) give the opcode
    /// without the extra.
    pub const fn encode(self) -> u8 {
        use {Extra::*, Op::*, Position::*};
        let service = match self.service {
            Service::Rc => 0x00,
            Service::Uc => 0x20,
            Service::Ud => 0x60,
        };
        let op = match self.op {
            Send(First, _) => 0x00,
            Send(Middle, _) => 0x01,
            Send(Last, None) => 0x02,
            Send(Last, Imm) => 0x03,
            Send(Only, None) => 0x04,
            Send(Only, Imm) => 0x05,
            Write(First, _) => 0x06,
            Write(Middle, _) => 0x07,
            Write(Last, None | Inv) => 0x08,
            Write(Last, Imm) => 0x09,
            Write(Only, None | Inv) => 0x0a,
            Write(Only, Imm) => 0x0b,
            ReadRequest => 0x0c,
            ReadResponse(First) => 0x0d,
            ReadResponse(Middle) => 0x0e,
            ReadResponse(Last) => 0x0f,
            ReadResponse(Only) => 0x10,
            Ack => 0x11,
            AtomicAck => 0x12,
            CompareSwap => 0x13,
            FetchAdd => 0x14,
            Send(Last, Inv) => 0x16,
            Send(Only, Inv) => 0x17,
            Flush => 0x1c,
            AtomicWrite => 0x1d,
        };
        service | op
    }

    /// Whether a requester receives such packets; a responder receives all others.
    pub const fn is_response(self) -> bool {
        matches!(self.op, Op::ReadResponse(_) | Op::Ack | Op::AtomicAck)
    }

    pub(crate) const fn has_deth(self) -> bool {
        matches!(self.service, Service::Ud)
    }

    pub(crate) const fn has_reth(self) -> bool {
        match self.op {
            Op::Write(position, _) => position.starts(),
            Op::ReadRequest | Op::Flush | Op::AtomicWrite => true,
            _ => false,
        }
    }

    pub(crate) const fn has_feth(self) -> bool {
        matches!(self.op, Op::Flush)
    }

    pub(crate) const fn has_atomic(self) -> bool {
        matches!(self.op, Op::CompareSwap | Op::FetchAdd)
    }

    pub(crate) const fn has_aeth(self) -> bool {
        match self.op {
            Op::ReadResponse(position) => position.starts() || position.ends(),
            Op::Ack | Op::AtomicAck => true,
            _ => false,
        }
    }

    pub(crate) const fn has_atomic_ack(self) -> bool {
        matches!(self.op, Op::AtomicAck)
    }

    pub(crate) const fn has_imm(self) -> bool {
        matches!(self.op, Op::Send(_, Extra::Imm) | Op::Write(_, Extra::Imm))
    }

    pub(crate) const fn has_ieth(self) -> bool {
        matches!(self.op, Op::Send(_, Extra::Inv))
    }

    pub(crate) const fn has_payload(self) -> bool {
        matches!(
            self.op,
            Op::Send(..) | Op::Write(..) | Op::ReadResponse(_) | Op::AtomicWrite
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_and_encode_agree() {
        let mut known = 0;
        for byte in 0..=255 {
            if let Some(opcode) = Opcode::decode(byte) {
                assert_eq!(opcode.encode(), byte);
                known += 1;
            }
        }
        assert_eq!(known, 25 + 12 + 2, "RC, UC, UD");
    }

    #[test]
    fn services_have_their_own_operations() {
        assert_eq!(
            Opcode::decode(0x64),
            Some(Opcode {
                service: Service::Ud,
                op: Op::Send(Position::Only, Extra::None)
            })
        );
        for byte in [0x15, 0x2c, 0x36, 0x44, 0x60, 0x6a, 0x81] {
            assert_eq!(Opcode::decode(byte), None, "{byte:#x}");
        }
    }
}
