// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of virtqueue mode: tests of data, errors, events and QP types from `verbs`, with
//! virtqueues in place of own rings, and tests of the virtqueues themselves.

// These tests use only a part of the harness.
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

/// Queues are virtqueues.
pub const MODE: harness::Mode = harness::Mode::Virtqueues;
