// SPDX-License-Identifier: GPL-2.0

//! The RTNL, under which network devices come and go.
//!
//! C header: [`include/linux/rtnetlink.h`](srctree/include/linux/rtnetlink.h)

use crate::bindings;
use core::{
    marker::PhantomData,
    ops::Deref, //
};
use kernel::types::NotThreadSafe;

/// A proof that this task holds the RTNL.
///
/// # Invariants
///
/// As long as a reference exists, the task holds the RTNL.
pub struct Rtnl(PhantomData<NotThreadSafe>);

impl Rtnl {
    /// A proof for callbacks that the core calls with the RTNL held.
    ///
    /// # Safety
    ///
    /// This task holds the RTNL for the duration of `'a`.
    pub(super) unsafe fn held<'a>() -> &'a Self {
        // INVARIANT: By this function's requirements.
        &Self(PhantomData)
    }
}

/// A guard that holds the RTNL.
///
/// # Invariants
///
/// This task holds the RTNL.
pub struct Guard(NotThreadSafe);

/// Takes the RTNL. May sleep.
///
/// # Examples
///
/// ```
/// use crate::net::rtnl::{self, Guard};
///
/// let rtnl: Guard = rtnl::lock();
/// // No network device comes or goes.
/// drop(rtnl);
/// ```
// A driver that needs the RTNL in callbacks only gets it from there.
#[allow(dead_code)]
pub fn lock() -> Guard {
    // SAFETY: No requirements but the context, which may sleep.
    unsafe { bindings::rtnl_lock() };
    // INVARIANT: Taken above.
    Guard(NotThreadSafe)
}

impl Deref for Guard {
    type Target = Rtnl;

    fn deref(&self) -> &Rtnl {
        // SAFETY: By the type invariant, as long as `self` is borrowed.
        unsafe { Rtnl::held() }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::rtnl_unlock() };
    }
}
