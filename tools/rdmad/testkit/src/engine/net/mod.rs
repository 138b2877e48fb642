// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Networks between devices. [`Net`] delivers frames at once. [`InFlight`] leaves the order, losses
//! and copies to its caller, so that one thread determines a run.

mod at_once;
mod in_flight;
mod packet;
mod port;

pub use at_once::Net;
pub use in_flight::InFlight;
pub use packet::{frame, frame_between};
pub use port::{notify, Port};
