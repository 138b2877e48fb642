// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A vfio-user client for targets, and a model of its server. `testkit::vfio` has a client that
//! waits for each reply. Here one thread is client and server, a reply is due when the model says
//! so, and messages may be split or damaged: the two clients share only the encoding of messages.

mod framing;
mod map;
mod memory;
mod message;
mod server;
mod session;
mod things;
mod vectors;

pub use map::LIMIT;
pub use message::{command, MAX_MESSAGE};
pub use session::{Machine, Session};
pub use things::{Thing, EVENTFDS, PAGE, PAGES, THINGS};

/// Error numbers of Linux.
const EEXIST: u32 = 17;
const EINVAL: u32 = 22;
const ENOMEM: u32 = 12;
const ENOSPC: u32 = 28;
const EOPNOTSUPP: u32 = 95;
