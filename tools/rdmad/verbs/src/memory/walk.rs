// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Copies between messages of which at least one has scattered pages.
//!
//! The look-ups of keys, page lists and regions of guest memory happen once for many pages. A page
//! costs few instructions beside its copy.

use dma::{DmaError, DmaRegion, DmaView};

use super::pages::Pieces;
use crate::turn::{done, TurnBudget};

/// Maximum number of bytes that are copied at once.
pub(super) const CHUNK: usize = 64 << 10;

/// The memory of a message from an offset on.
pub(super) struct Walk<'m, 'a> {
    view: &'a DmaView,
    /// The region of guest memory that was accessed last.
    region: DmaRegion<'a>,
    /// DMA address of the next byte.
    iova: u64,
    /// Number of bytes from `iova` on that are contiguous in DMA space.
    contiguous: u64,
    /// The pieces of memory after these bytes.
    pieces: Pieces<'m>,
    /// Number of bytes that the walk may cover. The pieces may have more.
    limit: u64,
}

/// The side of a copy whose memory is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    Source,
    Target,
}

impl<'m, 'a> Walk<'m, 'a> {
    /// A walk over the `contiguous` bytes at `iova`, then over `pieces`, but at most over `limit`
    /// bytes.
    pub(super) fn new(
        view: &'a DmaView,
        (iova, contiguous): (u64, u64),
        pieces: Pieces<'m>,
        limit: u64,
    ) -> Result<Self, DmaError> {
        Ok(Self {
            view,
            region: view.region_at(iova)?,
            iova,
            contiguous,
            pieces,
            limit,
        })
    }

    /// DMA address of the next byte, and the number of contiguous bytes there.
    pub(super) fn next(&self) -> (u64, u64) {
        (self.iova, self.contiguous.min(self.limit))
    }

    /// Finds the next byte and its region. `None` if there is none.
    #[inline(always)]
    fn prepare(&mut self) -> Option<()> {
        if self.contiguous == 0 {
            let (iova, contiguous) = self.pieces.next()?;
            self.iova = iova;
            self.contiguous = contiguous;
        }
        if !self.region.holds(self.iova) {
            self.region = self.view.region_at(self.iova).ok()?;
        }
        Some(())
    }

    /// Passes over `len` contiguous bytes.
    #[inline(always)]
    fn skip(&mut self, len: u64) {
        self.iova += len;
        self.contiguous -= len;
    }
}

/// Copies up to `max` bytes, as far as both walks go, and charges them to `budget`. Stops if the
/// budget is overdrawn. Returns the number of bytes copied.
pub(super) fn copy(
    source: &mut Walk<'_, '_>,
    target: &mut Walk<'_, '_>,
    max: usize,
    budget: &TurnBudget<'_>,
) -> Result<usize, Missing> {
    let most = source.limit.min(target.limit).min(max as u64);
    let mut left = most;
    while left > 0 && !budget.is_overdrawn() {
        source.prepare().ok_or(Missing::Source)?;
        target.prepare().ok_or(Missing::Target)?;
        let now = source.contiguous.min(target.contiguous).min(left);
        let now = now.min(CHUNK.min(budget.until_look()) as u64);
        // `now` is at most `max`, so the casts can't truncate. At the end of a region of guest
        // memory, its piece is shorter.
        let bytes = source.region.piece(source.iova, now as usize);
        let room = target.region.piece_mut(target.iova, now as usize);
        let bytes = bytes.map_err(|_| Missing::Source)?;
        let room = room.map_err(|_| Missing::Target)?;
        let copied = bytes.copy_to(&room) as u64;
        done::copied(1, copied as usize);
        budget.charge_copy(copied as usize);
        source.skip(copied);
        target.skip(copied);
        left -= copied;
    }
    let len = most - left;
    source.limit -= len;
    target.limit -= len;
    // `len` is at most `max`, so the cast can't truncate.
    Ok(len as usize)
}
