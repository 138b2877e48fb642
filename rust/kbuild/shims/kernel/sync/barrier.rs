// SPDX-License-Identifier: GPL-2.0

//! Barriers whose kind is a type.

use stock::sync::barrier;

/// The accesses that a barrier orders.
pub trait Kind {
    /// The barrier that orders these accesses towards other processors.
    fn smp();
}

/// All accesses.
pub struct Full;

impl Kind for Full {
    #[inline]
    fn smp() {
        barrier::smp_mb();
    }
}

/// Loads.
pub struct Read;

impl Kind for Read {
    #[inline]
    fn smp() {
        barrier::smp_rmb();
    }
}

/// Stores.
pub struct Write;

impl Kind for Write {
    #[inline]
    fn smp() {
        barrier::smp_wmb();
    }
}

/// A barrier between processors.
#[inline]
pub fn smp_mb<K: Kind>(_: K) {
    K::smp();
}
