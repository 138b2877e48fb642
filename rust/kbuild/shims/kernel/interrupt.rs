// SPDX-License-Identifier: GPL-2.0

//! Sections in which the interrupts of a processor are disabled.

use stock::types::NotThreadSafe;

extern "C" {
    fn virtio_rdma_shim_interrupt_disable();
    fn virtio_rdma_shim_interrupt_enable();
}

/// Proof that interrupts of this processor are disabled. Dropping it ends the section.
///
/// # Invariants
///
/// This owns one call of `virtio_rdma_shim_interrupt_disable`, unless it is forgotten.
pub struct LocalInterruptDisabled(NotThreadSafe);

/// Disables interrupts of this processor. Sections may nest and end in any order.
#[inline]
pub fn local_interrupt_disable() -> LocalInterruptDisabled {
    // SAFETY: The function can be called in any context.
    unsafe { virtio_rdma_shim_interrupt_disable() };
    // INVARIANT: The call above is owned by the new value.
    LocalInterruptDisabled(NotThreadSafe)
}

impl LocalInterruptDisabled {
    /// Ends a section whose value was forgotten.
    ///
    /// # Safety
    ///
    /// A section whose value was forgotten is open on this processor, and nothing else ends it.
    #[inline]
    pub(crate) unsafe fn end() {
        // SAFETY: The caller guarantees a call of `virtio_rdma_shim_interrupt_disable` that this
        // call undoes.
        unsafe { virtio_rdma_shim_interrupt_enable() };
    }
}

impl Drop for LocalInterruptDisabled {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: By the type invariant the section is open. The value can't be sent to another
        // task, and the task can't migrate while the section is open.
        unsafe { Self::end() };
    }
}
