// SPDX-License-Identifier: GPL-2.0

//! The share of the machine's memory that rings of processes take.
//!
//! The kernel can't reclaim such memory. A memory cgroup bounds it for each group of processes;
//! this bounds it for all together, whether there are cgroups or not.

use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};

/// Rings take at most one part of the memory in this number.
const PARTS: usize = 4;

/// How many pages the rings of a device may take, and do.
pub(super) struct RingShare {
    max: usize,
    used: Atomic<usize>,
}

impl RingShare {
    /// The share of a machine that has `total` pages.
    pub(super) fn new(total: usize) -> Result<Arc<Self>> {
        let share = Self {
            max: total / PARTS,
            used: Atomic::new(0),
        };
        Ok(Arc::new(share, GFP_KERNEL)?)
    }

    /// Takes the pages of `size` bytes.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if so many are not left.
    pub(super) fn charge(self: &Arc<Self>, size: usize) -> Result<Charge> {
        let pages = size.div_ceil(PAGE_SIZE);
        let mut used = self.used.load(Relaxed);
        loop {
            let sum = used.checked_add(pages).filter(|sum| *sum <= self.max);
            match self.used.cmpxchg(used, sum.ok_or(ENOMEM)?, Relaxed) {
                Ok(_) => break,
                Err(now) => used = now,
            }
        }
        Ok(Charge {
            share: self.clone(),
            pages,
        })
    }
}

/// Pages that were taken. They are given back when it is dropped.
pub(super) struct Charge {
    share: Arc<RingShare>,
    pages: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.share.used.fetch_sub(self.pages, Relaxed);
    }
}
