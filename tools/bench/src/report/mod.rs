// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The output of figures as text and as an HTML page.

mod beside;
mod html;
mod matrix;
mod plot;
mod table;
mod targets;

pub use html::html;
pub use table::{bytes, table};
pub use targets::targets;
