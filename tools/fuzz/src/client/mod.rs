// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A vfio-user client for targets, and a model of its server.

mod framing;
mod map;
mod memory;
mod message;
mod server;
mod session;
mod things;
mod vectors;

pub use map::LIMIT;
pub use message::{command, HEADER_LEN, MAX_MESSAGE, NO_REPLY};
pub use session::{access, store, Machine, Session};
pub use things::{Thing, EVENTFDS, PAGE, PAGES, THINGS};

/// Error numbers of Linux.
const EEXIST: u32 = 17;
const EINVAL: u32 = 22;
const ENOMEM: u32 = 12;
const ENOSPC: u32 = 28;
const EOPNOTSUPP: u32 = 95;
