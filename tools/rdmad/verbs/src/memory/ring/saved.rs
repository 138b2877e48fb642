// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The saved state of own rings: where their memory is. Their content stays there.

use budget::{ChargedList, MemoryBudget};
use dma::DmaSpace;
use serde::{Deserialize, Serialize};
use virtio_rdma_abi::ring::{RingAddr, RingKind, PAGE_SHIFT_RANGE};
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_ring::{ArmLatchState, DevicePositions};

use super::{reach, Pages, RingMem};
use crate::error::{end, exactly, within, Result, What};

/// Serialization of [`DevicePositions`], whose crate has no dependencies.
#[derive(Serialize, Deserialize)]
#[serde(remote = "DevicePositions")]
pub(crate) struct PositionsDef {
    done: u32,
    next: u32,
}

/// Serialization of [`ArmLatchState`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "ArmLatchState")]
pub(crate) struct LatchDef {
    position: u64,
    solicited: u64,
    word: u64,
    from: u64,
    fired: u32,
    reserved: u32,
}

/// The memory of a ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RingState {
    slots: u32,
    slot_shift: u8,
    pages: PagesState,
}

/// The pages of a ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum PagesState {
    /// The DMA address of the first of contiguous pages.
    Together(u64),
    /// The DMA address of each page of `1 << shift` bytes.
    Apart { starts: Vec<u64>, shift: u8 },
}

impl RingMem {
    /// The state from which another process can restore the object.
    pub(crate) fn save(&self) -> RingState {
        RingState {
            slots: self.layout.slots(),
            slot_shift: self.layout.slot_shift(),
            pages: match &self.pages {
                Pages::Together(first) => PagesState::Together(*first),
                Pages::Apart { starts, shift } => PagesState::Apart {
                    starts: starts.to_vec(),
                    shift: *shift,
                },
            },
        }
    }

    /// The memory with this state of a ring of `kind`. The list of its pages is charged to
    /// `budget`. The memory of a ring that `is_used` must be there; that of a corrupt ring may be
    /// gone.
    ///
    /// # Errors
    ///
    /// The ring can't have such a size or such pages; the pages can't be accessed.
    pub(crate) fn restored(
        budget: &MemoryBudget,
        space: &DmaSpace,
        kind: RingKind,
        state: &RingState,
        is_used: bool,
    ) -> Result<Self> {
        let layout = Self::layout_of(
            kind,
            &RingAddr {
                slots: state.slots,
                slot_shift: state.slot_shift,
                ..RingAddr::ZERO
            },
        )?;
        let size = u64::from(layout.size());
        let pages = match &state.pages {
            PagesState::Together(first) => {
                end(What::Page, *first, size)?;
                if is_used {
                    reach(space, *first, size, true)?;
                }
                Pages::Together(*first)
            }
            PagesState::Apart { starts, shift } => {
                within(What::PageShift, *shift, &PAGE_SHIFT_RANGE)?;
                let page = 1u64 << shift;
                exactly(What::Npages, starts.len() as u64, size.div_ceil(page))?;
                let mut list = ChargedList::new(budget, starts.len());
                let mut rest = size;
                for &start in starts {
                    end(What::Page, start, page)?;
                    if is_used {
                        reach(space, start, rest.min(page), true)?;
                    }
                    rest = rest.saturating_sub(page);
                    list.push(start)?;
                }
                Pages::Apart {
                    starts: list,
                    shift: *shift,
                }
            }
        };
        Ok(Self { pages, layout })
    }
}
