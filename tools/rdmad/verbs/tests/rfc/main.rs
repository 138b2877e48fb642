// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of RFC mode: those of data, errors, events and types of QPs once more, with virtqueues of
//! the transport for queues, and those of the virtqueues themselves.

// Not all that the harness has is of use here.
#[allow(dead_code, unused_imports)]
#[path = "../verbs/harness/mod.rs"]
mod harness;

#[path = "../verbs/absent.rs"]
mod absent;
#[path = "../verbs/arming.rs"]
mod arming;
#[path = "../verbs/data.rs"]
mod data;
#[path = "../verbs/errors/mod.rs"]
mod errors;
#[path = "../verbs/events.rs"]
mod events;
#[path = "../verbs/registration.rs"]
mod registration;
#[path = "../verbs/revocation.rs"]
mod revocation;
#[path = "../verbs/services/mod.rs"]
mod services;

mod hostile;
mod notify;
mod numbers;
mod reset;

/// Queues are virtqueues of the transport.
pub const MODE: harness::Mode = harness::Mode::Rfc;
