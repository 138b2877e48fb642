// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Helpers of all integration tests: state machines of the protocols, joined directly. `testkit`
//! joins whole engines, with guest memory and rings.
#![allow(dead_code)]

pub mod bottleneck;
pub mod capture;
pub mod endpoint;
pub mod line;
pub mod parts;
pub mod setup;
pub mod sim;
