// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! How figures are shown.

mod beside;
mod html;
mod matrix;
mod plot;
mod table;
mod targets;

pub use html::html;
pub use table::{bytes, table};
pub use targets::targets;
