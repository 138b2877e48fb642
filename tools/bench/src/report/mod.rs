// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! How figures are shown.

mod table;

pub use table::table;
