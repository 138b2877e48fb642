// SPDX-License-Identifier: GPL-2.0

//! Bounded numbers of what the device's users may have.

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

/// How many there may be, and how many there are.
///
/// Shared by the device and by what is counted, which so holds on to nothing whose end may sleep.
pub(super) struct Quota {
    max: usize,
    used: Atomic<usize>,
}

impl Quota {
    /// A quota of which nothing is used.
    pub(super) fn new(max: usize) -> Result<Arc<Self>> {
        let used = Atomic::new(0);
        Ok(Arc::new(Self { max, used }, GFP_KERNEL)?)
    }

    /// Takes `count` of them. Can be called in any context.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if so many are not left.
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
            quota: self.clone(),
            count,
        })
    }
}

/// A part of a quota, which is given back when this is dropped.
pub(super) struct Charge {
    quota: Arc<Quota>,
    count: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.quota.used.fetch_sub(self.count, Relaxed);
    }
}
