// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of the verbs engine without a VM: a harness simulates the drivers.

mod harness;

mod absent;
mod agreement;
mod arming;
mod asynchronous;
mod at_once;
mod budget;
mod commands;
mod contention;
mod counter_sets;
mod data;
mod delays;
mod draining;
mod errors;
mod events;
mod failed;
mod flows;
mod hostile;
mod identity;
mod incast;
mod log;
mod lost;
mod moderation;
mod own_rings;
mod panics;
mod polling;
mod port_state;
mod registration;
mod registration_again;
mod resize;
mod revocation;
mod services;
mod srq;
mod stand_ins;
mod stepped;
mod steps;
mod switch;
mod turns;
mod unanswered;
mod why;
mod windows;

/// These tests use own rings. The test program `virtqueue_mode` runs many of them with virtqueues.
pub const MODE: harness::Mode = harness::Mode::OwnRings;
