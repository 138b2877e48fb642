// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Runs the engine and other programs as child processes.

pub mod coverage;
pub mod engine;
mod lines;
pub mod report;
pub mod run;
