// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Explicit-state models of the protocol in `Documentation/rings.md`, at reduced size.
//!
//! A step is a single access to a word that another actor may change. Stores wait in store buffers.
//! Positions wrap at 8, sequences at 4. Each test explores all interleavings of the correct
//! protocol. Then it explores broken variants, each of which must break a certain rule.
#![cfg(not(loom))]

mod arming;
mod growing;
mod hostile;
mod memory;
mod posting;
mod resizing;
mod search;

/// Number at which positions wrap.
const WRAP: u8 = 8;

/// The position of an unwrapped count.
fn position(count: u8) -> u8 {
    count % WRAP
}

/// Distance of position `a` ahead of position `b`.
fn ahead(a: u8, b: u8) -> u8 {
    a.wrapping_sub(b) % WRAP
}
