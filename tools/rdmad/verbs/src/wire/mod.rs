// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The wire path: RoCEv2 packets between the QPs and the frame port.

mod arrived;
mod backlog;
mod burst;
mod env;
mod receive;

pub(crate) use arrived::Arrived;
pub(crate) use backlog::ReceiveBacklog;
pub(crate) use env::{RecvEnv, SendEnv};
pub(crate) use receive::{drop_frames, receive};
