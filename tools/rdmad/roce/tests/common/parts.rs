// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Headers of single SEND and RDMA WRITE packets.

use roce::headers::{Part, Reth, SendPart, WritePart};
use roce::opcode::Position;
use roce::work::With;

use super::endpoint::{BASE, RKEY};

/// A packet of a SEND.
pub const fn send(position: Position) -> Part {
    Part::Send(SendPart::new(position, With::Nothing))
}

/// A packet of an RDMA WRITE of `length` bytes.
pub const fn write(position: Position, length: u32) -> Part {
    write_to(position, range(length))
}

/// A packet of an RDMA WRITE to `reth`.
pub const fn write_to(position: Position, reth: Reth) -> Part {
    Part::Write(WritePart::new(position, reth, None))
}

/// The only packet of an RDMA WRITE of `length` bytes with immediate data.
pub const fn write_imm(length: u32) -> Part {
    Part::Write(WritePart::Only(range(length), Some([1, 2, 3, 4])))
}

/// The first `length` bytes of the peer's memory.
pub const fn range(length: u32) -> Reth {
    Reth {
        va: BASE,
        rkey: RKEY,
        length,
    }
}
