// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A safe interface to the part of libibverbs that the tests need. Objects hold references to the
//! objects from which they were created, so that they are destroyed in the order that libibverbs
//! needs. Only this module of the program calls C.

mod ah;
mod context;
mod dmabuf;
pub mod extended;
pub mod ffi;
mod memory;
mod moderation;
mod pacing;
mod qp;
mod queue;
mod srq;
mod window;
mod work;

pub use ah::{Ah, AhAttr};
pub use context::Context;
pub use dmabuf::{DmabufMr, Exporter, Udmabuf};
pub use memory::{access, Mr, Pd, Sge};
pub use pacing::RateLimit;
pub use qp::{Caps, Kind, Path, Qp, Timing, MULTICAST_QPN, QKEY};
pub use queue::{status_name, Channel, Cq, Wc};
pub use srq::Srq;
pub use window::{Mw, MwKind, Shown};
pub use work::{Op, Payload, PostError, SendWr, To};

use std::io;

/// The result of a call that returns 0 or an errno.
fn check(code: i32) -> io::Result<()> {
    match code {
        0 => Ok(()),
        // Some functions return -1 and set errno, others return the error number.
        -1 => Err(io::Error::last_os_error()),
        code => Err(io::Error::from_raw_os_error(code.abs())),
    }
}
