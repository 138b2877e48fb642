// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! What threads synchronise with, in one place so that a model checker can take its place.

pub(super) use std::sync::atomic::{fence, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering};

pub(super) use parking_lot::{Condvar, Mutex};
