// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! As much of libibverbs as the tests need, in safe Rust. Objects hold on to what they were made
//! of, so that they are destroyed in the order that libibverbs asks for. The one module of this
//! program that calls C.

mod ah;
mod context;
mod dmabuf;
pub mod extended;
pub mod ffi;
mod memory;
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
        // Some calls return -1 and set errno, others return it.
        -1 => Err(io::Error::last_os_error()),
        code => Err(io::Error::from_raw_os_error(code.abs())),
    }
}
