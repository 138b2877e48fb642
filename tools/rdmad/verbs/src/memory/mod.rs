// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Guest memory as the verbs see it: page lists, rings and memory regions.

mod copy;
mod fast;
mod mr;
mod pages;
mod region;
mod ring;
mod virtqueue;

pub(crate) use copy::{transfer, Fault, Memory, Message, Side};
pub(crate) use fast::Mapped;
pub(crate) use mr::{KeyFault, MrTable, Registration};
pub(crate) use pages::{PageList, PageMap};
pub(crate) use region::{check_access, Region};
pub(crate) use ring::{RingMem, RingView};
pub(crate) use virtqueue::VirtqueueMem;
