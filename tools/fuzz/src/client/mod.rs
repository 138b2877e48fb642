// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A vfio-user client for targets, and a model of its server.

mod message;

pub use message::{command, Header, Reply, HEADER_LEN, MAX_FDS, MAX_TRANSFER};
