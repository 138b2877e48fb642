// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Each error causes the completion status that the IBTA requires, on both data paths, and affects
//! only the QPs of the connection.

mod flush;
mod local;
mod reasons;
mod remote;
mod retry;
