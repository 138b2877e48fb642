// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The output of figures as text and as an HTML page.

mod beside;
mod goals;
mod html;
mod matrix;
mod plot;
mod table;

pub use goals::goals;
pub use html::html;
pub use table::{bytes, table};
