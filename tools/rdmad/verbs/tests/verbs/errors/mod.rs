// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Every error ends in the completion that the IBTA names, on both paths, and harms the QPs
//! concerned only.

mod flush;
mod local;
mod remote;
mod retry;
