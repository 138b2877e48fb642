// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Unreliable connections (IBTA 9.8.2): SEND and RDMA WRITE without acknowledgements.
//!
//! The requester's work ends as its last packet is sent. The responder takes messages of which
//! every packet arrives in order; of others it drops the rest, and nobody is told.
//!
//! # Errors
//! As for [reliable connections](crate::rc), a call that returns [`QpError`](crate::QpError) has
//! ended this half of the connection. Only local faults do so: nothing that a peer sends can. One
//! of the requester leaves the responder as it is (the QP's state is SQE, IBTA 10.3.1.6); sending
//! starts again with a new [`Requester`] at the old one's [`next_psn`](Requester::next_psn).

mod requester;
mod responder;

pub use requester::{Requester, RequesterState};
pub use responder::{Responder, ResponderState};
