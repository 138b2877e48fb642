// SPDX-License-Identifier: GPL-2.0

//! Sections in which the interrupts of a processor are disabled.

use stock::types::NotThreadSafe;

extern "C" {
    fn virtio_rdma_shim_interrupt_disable();
    fn virtio_rdma_shim_interrupt_enable();
}

/// Interrupts of this processor are disabled for as long as it exists.
///
/// # Invariants
///
/// It owns one call of `virtio_rdma_shim_interrupt_disable`, unless it is forgotten.
pub struct LocalInterruptDisabled(NotThreadSafe);

/// Disables interrupts of this processor. Sections may nest and end in any order.
#[inline]
pub fn local_interrupt_disable() -> LocalInterruptDisabled {
    // SAFETY: It can be called in any context.
    unsafe { virtio_rdma_shim_interrupt_disable() };
    // INVARIANT: That is the call.
    LocalInterruptDisabled(NotThreadSafe)
}

impl LocalInterruptDisabled {
    /// Ends a section whose value was forgotten.
    ///
    /// # Safety
    ///
    /// Such a section is open on this processor, and nothing else ends it.
    #[inline]
    pub(crate) unsafe fn end() {
        // SAFETY: The caller guarantees that there was a call that this one undoes.
        unsafe { virtio_rdma_shim_interrupt_enable() };
    }
}

impl Drop for LocalInterruptDisabled {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: By the type invariant the section is open. The value can't be sent to another
        // task, and its task stays on its processor for as long as it is open.
        unsafe { Self::end() };
    }
}
