// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Guest memory as the verbs see it: page lists, rings and memory regions.

mod completion_queue;
mod copy;
mod fast;
mod key_fault;
mod keys;
mod mr;
mod mr_cache;
mod pages;
mod queue;
mod region;
mod ring;
mod virtqueue;
mod walk;
mod window;

pub(crate) use completion_queue::{CompletionProducer, CompletionView};
pub(crate) use copy::{transfer, Fault, Memory, Message, Side};
pub(crate) use fast::Mapped;
pub(crate) use key_fault::KeyFault;
pub(crate) use keys::Keys;
pub(crate) use mr::{number_of, Mr, MrCharge, MrState, MrTable, RegWr, VariantsState};
pub(crate) use pages::{PageList, PageMap, PageMapState};
pub(crate) use queue::{FetchedWqe, ForDoorbell, QueueMem, QueueView, WorkConsumer};
pub(crate) use region::{check_access, Region};
pub(crate) use ring::{LatchDef, PositionsDef, RingMem, RingState, RingView};
pub(crate) use virtqueue::{CqProgress, VirtqueueMem};
pub(crate) use window::{KeyUser, MwBind, WindowState};

/// A budget without limit.
#[cfg(test)]
pub(crate) fn unlimited() -> budget::MemoryBudget {
    budget::MemoryBudget::new(u64::MAX)
}
