// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Guest memory as the verbs see it: page lists, rings and memory regions.

mod copy;
mod mr;
mod pages;
mod ring;

pub(crate) use copy::{transfer, Fault, Memory, Message, Side};
pub(crate) use mr::{KeyFault, Mr, MrTable};
pub(crate) use pages::{PageList, PageMap};
pub(crate) use ring::{RingMem, RingView};
