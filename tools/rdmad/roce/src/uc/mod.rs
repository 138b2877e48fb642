// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Unreliable connections (IBTA 9.8.2): SEND and RDMA WRITE without acknowledgements.
//!
//! A work request ends when its last packet is sent. The responder completes a message if all of
//! its packets arrive in order. Otherwise it drops the rest of the message without a report to the
//! peer.
//!
//! # Errors
//! A call that returns [`QpError`](crate::QpError) has ended this half of the connection and
//! completed the failed work request, as for [reliable connections](crate::rc). Only local faults
//! cause errors, packets of the peer do not. After an error of the requester, the responder
//! continues (the QP is in the state SQE, IBTA 10.3.1.6). To send again, create a new [`Requester`]
//! with the [`next_psn`](Requester::next_psn) of the old one.

mod requester;
mod responder;

pub use requester::{Requester, RequesterState};
pub use responder::{Responder, ResponderState};
