// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The wire path: RoCEv2 packets between the QPs and the frame port.

mod arrived;
mod env;
mod leftover;
mod receive;
mod train;

pub(crate) use arrived::Arrived;
pub(crate) use env::{RecvEnv, SendEnv};
pub(crate) use leftover::Leftovers;
pub(crate) use receive::{drop_frames, receive};
