// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Virtqueues of the transport as rings (RFC mode).
//!
//! A split virtqueue has the same available and used rings as an own ring, only elsewhere, and instead of a slot a chain
//! of descriptors with addresses. Mapped onto the layout of a ring, with descriptor heads for slot numbers, it is served
//! by the same code.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use dma::DmaView;
use virtio_rdma_abi::ring::{ArmWord, RingLayout, SLOT_SHIFT_RANGE};
use virtqueue::{Chain, ChainError, Split, F_NO_NOTIFY};

use crate::error::{Errno, Result};

/// Descriptors of a WQE or CQE buffer at most: twice what header and SGEs need that have one each. Longer chains would
/// cost more than the turn they are charged for.
const MAX_DESCRIPTORS: u16 = 64;

/// A virtqueue that carries work requests or completions.
#[derive(Debug)]
pub(crate) struct VirtqueueMem {
    number: u16,
    split: Split,
    /// The CQ's arm word: the control queue sets it, no memory does.
    arm: AtomicU32,
    /// The driver has reset the queue: its memory is not ours any more.
    gone: AtomicBool,
}

impl VirtqueueMem {
    /// Virtqueue `number`, which lies at `split`, and its layout as a ring.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it has fewer entries than a ring can have.
    pub(super) fn new(number: u16, split: Split) -> Result<(Self, RingLayout)> {
        // The slots are not in memory, so their size does not matter.
        let layout = RingLayout::new(split.size.into(), *SLOT_SHIFT_RANGE.start());
        let queue = Self {
            number,
            split,
            arm: AtomicU32::new(0),
            gone: AtomicBool::new(false),
        };
        Ok((queue, layout.ok_or(Errno::INVAL)?))
    }

    /// Its number.
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// Sets the arm word.
    pub(crate) fn arm(&self, word: ArmWord) {
        self.arm.store(word.to_u32(), Ordering::Relaxed);
    }

    /// The arm word.
    pub(super) fn arm_word(&self) -> u32 {
        self.arm.load(Ordering::Relaxed)
    }

    /// From now on a view that is made accesses nothing.
    pub(crate) fn retire(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Whether the driver has reset the queue.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Tells the driver that it need not notify of new buffers.
    pub(crate) fn suppress_notifications(
        &self,
        view: &DmaView,
    ) -> std::result::Result<(), ChainError> {
        virtqueue::write(view, self.split.used, &F_NO_NOTIFY.to_le_bytes())?;
        Ok(())
    }

    /// DMA address of what lies at `offset` of the layout: a part of the available or used ring. There is no such for
    /// the index that suppresses doorbells, since a queue of the transport knows only the flag for that.
    #[inline]
    pub(super) fn find(&self, layout: &RingLayout, offset: u32) -> Option<u64> {
        if offset >= layout.avail_event() {
            None
        } else if offset >= layout.used() {
            Some(self.split.used + u64::from(offset - layout.used()))
        } else {
            let offset = offset.checked_sub(layout.avail())?;
            Some(self.split.available + u64::from(offset))
        }
    }

    /// Copies what the chain at `head` holds; returns how many bytes there were.
    pub(super) fn gather(
        &self,
        view: &DmaView,
        head: u16,
        bytes: &mut [u8],
    ) -> std::result::Result<usize, ChainError> {
        self.chain(view, head).gather(bytes)
    }

    /// Writes `bytes` to the chain at `head`.
    pub(super) fn scatter(
        &self,
        view: &DmaView,
        head: u16,
        bytes: &[u8],
    ) -> std::result::Result<(), ChainError> {
        self.chain(view, head).scatter(bytes)
    }

    fn chain<'a>(&self, view: &'a DmaView, head: u16) -> Chain<'a> {
        self.split.chain(view, head).at_most(MAX_DESCRIPTORS)
    }
}
