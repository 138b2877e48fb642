// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Base transport header and extended transport headers (IBTA 9.2 and 9.3), all in network byte
//! order.

mod body;
mod bth;
mod bytes;
mod extended;
mod part;

pub(crate) use body::BadBody;
pub use body::{Body, Headers, RcRequest, RcResponse};
pub use bth::Bth;
pub(crate) use bytes::{Reader, Writer};
pub use extended::{Aeth, AtomicEth, Deth, Feth, NakCode, Reth, Syndrome};
pub use part::{Part, ReadPart, SendPart, WritePart};
