// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The engine as a child process.

pub mod engine;
pub mod report;
pub mod run;
