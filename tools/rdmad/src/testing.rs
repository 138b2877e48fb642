// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Parts of the program that fuzz targets call.

pub use crate::cli::{PortArgs, SocketArgs};
pub use crate::state::{merge, Restored};
pub use crate::state_document::{Change, Document};
