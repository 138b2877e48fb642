// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The fuzz targets, one in each module.

pub mod chains;
pub mod classify;
pub mod driver;
pub mod guest;
pub mod memory;
pub mod paths;
pub mod provider;
pub mod registers;
pub mod saved;
pub mod speaker;
pub mod state;
pub mod stream;
pub mod uplinks;
