// SPDX-License-Identifier: GPL-2.0

//! Limits of resources that users of the device share.

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};

/// The limit of a resource, and how much of it is in use.
///
/// Has its own reference count, so that a [`Charge`] can be dropped in any context: a reference to
/// the device can't be, since dropping the last reference may sleep.
pub(super) struct ResourceLimit {
    max: usize,
    used: Atomic<usize>,
}

impl ResourceLimit {
    /// A limit of `max` units.
    pub(super) fn new(max: usize) -> Result<Arc<Self>> {
        let used = Atomic::new(0);
        Ok(Arc::new(Self { max, used }, GFP_KERNEL)?)
    }

    /// Charges `count` units. Can be called in any context.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if fewer are left.
    pub(super) fn charge(self: &Arc<Self>, count: usize) -> Result<Charge> {
        let mut used = self.used.load(Relaxed);
        loop {
            let sum = used.checked_add(count).filter(|sum| *sum <= self.max);
            match self.used.cmpxchg(used, sum.ok_or(ENOMEM)?, Relaxed) {
                Ok(_) => break,
                Err(now) => used = now,
            }
        }
        Ok(Charge {
            limit: self.clone(),
            count,
        })
    }
}

/// Units of a resource in use. Dropping it gives them back.
pub(super) struct Charge {
    limit: Arc<ResourceLimit>,
    count: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.limit.used.fetch_sub(self.count, Relaxed);
    }
}
