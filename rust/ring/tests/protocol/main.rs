// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The protocol of `Documentation/rings.md` as explicit-state models at reduced size.
//!
//! Steps are single accesses to words that another actor may change, and stores wait in store
//! buffers. Positions wrap at 8, sequences at 4. Each test explores all interleavings, then broken
//! variants, each of which must break the rule that it is known to break.
#![cfg(not(loom))]

mod arming;
mod growing;
mod hostile;
mod memory;
mod posting;
mod resizing;
mod search;

/// Positions wrap here.
const WRAP: u8 = 8;

/// The position of a count.
fn position(count: u8) -> u8 {
    count % WRAP
}

/// How far position `a` is ahead of `b`.
fn ahead(a: u8, b: u8) -> u8 {
    a.wrapping_sub(b) % WRAP
}
