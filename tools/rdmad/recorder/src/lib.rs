// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A flight recorder: the last events of a port, from which one can tell why work failed.
//!
//! The code that decides something notes an [`Event`]: a refused command, a state, a timeout, a
//! NAK, a dropped packet. [`Recorder`] keeps the last ones of a port in a [`Ring`] of
//! fixed size. Nothing is formatted before somebody asks. Events that occur for each packet are not
//! kept, since they would push out all others, but can be logged: see [`Recorder::set_traced`].

#![forbid(unsafe_code)]

mod event;
mod recorder;
mod refusal;
mod ring;

pub use event::{Event, Kind, Value, CAUSES};
pub use recorder::{Recorded, Recorder, Traced};
pub use refusal::{QpQueue, Reason, Refusal, What};
pub use ring::{AtomicU64, Entry, Ring, Words};
