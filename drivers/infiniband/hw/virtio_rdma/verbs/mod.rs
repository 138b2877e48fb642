// SPDX-License-Identifier: GPL-2.0

//! The verbs of a virtio RDMA device.
//!
//! Every object owns what the device may use on its behalf, and the connection to its events. Its
//! `Drop` tells the device to destroy it, waits for the answer, and only then lets go of memory;
//! without an answer the memory is buried.
//!
//! | module | what it holds |
//! |---|---|
//! | [`device`], [`port`] | the device as `ib_core` sees it |
//! | [`ucontext`], [`pd`], [`ah`] | contexts, PDs, AHs |
//! | [`mr`], [`dmabuf`], [`peer`], [`mw`] | MRs of all kinds of memory, memory windows |
//! | [`user_ring`] | queues in rings of processes |
//! | [`kernel_queues`] | queues that the kernel posts to and polls |
//! | [`pages`] | page lists of MRs and of rings |
//! | [`cq`] | CQs |
//! | [`qp`], [`modify`], [`rate_limit`], [`multicast`] | QPs, their attributes and their groups |
//! | [`srq`] | SRQs |
//! | [`counters`], [`details`] | what administrators see |
//! | [`quota`] | numbers of AHs and of pages of rings |
//!
//! Lock order: that of a CQ's consumer, a CQ's, a work queue's or an SRQ's.

/// Asserts at compile time that values of the ABI are those of the kernel, so that a value of one
/// may be passed on as the other. To be used beside each such conversion.
macro_rules! assert_same {
    ($($abi:expr => $kernel:ident,)*) => {
        $(const _: () = assert!($abi as u64 == crate::bindings::$kernel as u64);)*
    };
}

mod ah;
mod counters;
mod cq;
mod details;
mod device;
mod dmabuf;
mod kernel_queues;
mod modify;
mod mr;
mod multicast;
mod mw;
mod pages;
mod pd;
mod peer;
mod port;
mod qp;
mod quota;
mod rate_limit;
mod srq;
mod ucontext;
mod user_ring;

pub(crate) use self::device::Verbs;

use crate::{
    abi::{
        ctrl::Request,
        uverbs,
        versions::Extensible, //
    },
    ctrl::Failure,
    device::Device,
    rdma::udata::DriverData, //
};
use kernel::prelude::*;

/// Implements [`DriverData`] for structures of the ABI. In the kernel's tree it is a trait of
/// another crate, which can't be implemented for all types with a trait of this one.
macro_rules! driver_data {
    ($($name:ty,)*) => {$(
        impl DriverData for $name {
            type Bytes = <Self as Extensible>::Bytes;
            const ZEROES: Self::Bytes = <Self as Extensible>::ZEROES;
            const MIN_SIZE: usize = <Self as Extensible>::MIN_SIZE;

            fn from_driver_data(bytes: &Self::Bytes) -> Self {
                Self::decode_whole(bytes)
            }

            fn to_driver_data(&self) -> Self::Bytes {
                self.encode()
            }
        }
    )*};
}

driver_data! {
    uverbs::AllocContextReq,
    uverbs::AllocContextResp,
    uverbs::CreateAhResp,
    uverbs::CreateCqReq,
    uverbs::CreateCqResp,
    uverbs::CreateQpReq,
    uverbs::CreateQpResp,
    uverbs::CreateSrqReq,
    uverbs::CreateSrqResp,
    uverbs::ModifyQpReq,
    uverbs::ModifySrqReq,
    uverbs::ResizeCqReq,
    uverbs::ResizeCqResp,
}

/// Runs a command that makes the device use `memory`, and gives it back with the answer. A device
/// that does not answer may do so all the same, so the memory is buried then.
fn create<R: Request, M: Send + 'static>(
    device: &Device,
    request: &R,
    memory: M,
) -> Result<(R::Response, M)> {
    settle(device, device.ctrl().exec(request), memory)
}

/// Gives `memory` back with the answer to a command that makes the device use it, or buries it.
fn settle<T, M: Send + 'static>(
    device: &Device,
    answer: Result<T, Failure>,
    memory: M,
) -> Result<(T, M)> {
    match answer {
        Ok(response) => Ok((response, memory)),
        Err(Failure::Refused(error)) => Err(error),
        Err(Failure::Dead) => {
            device.bury(memory);
            Err(ENODEV)
        }
    }
}

/// Runs a command after which the device does not use `memory` any more, and gives it back. Without
/// an answer it is buried.
fn destroy<R: Request, M: Send + 'static>(device: &Device, request: &R, memory: M) -> Option<M> {
    match device.ctrl().exec(request) {
        Ok(_) => Some(memory),
        Err(failure) => {
            warn_unless_dead(device, failure);
            device.bury(memory);
            None
        }
    }
}

/// Says that the device refused to destroy an object. That it is dead was said before.
fn warn_unless_dead(device: &Device, failure: Failure) {
    if let Failure::Refused(error) = failure {
        dev_warn!(
            device.as_device(),
            "destroying an object failed: {:?}\n",
            error
        );
    }
}
