// SPDX-License-Identifier: GPL-2.0

//! The verbs of a virtio RDMA device.
//!
//! Each object owns the memory that the device uses for it, and the registration for its events.
//! When an object is dropped, it sends the command to destroy it, waits for the answer, and only
//! then frees the memory. Without an answer, the memory goes to the
//! [quarantine](crate::quarantine).
//!
//! | module | content |
//! |---|---|
//! | [`device`], [`port`], [`port_state`], [`gid`] | the device as `ib_core` sees it, its port |
//! | [`ucontext`], [`pd`], [`ah`] | contexts, PDs, AHs |
//! | [`mr`], [`dmabuf`], [`peer_memory`], [`mw`] | MRs of all kinds of memory, memory windows |
//! | [`user_ring`] | queues in rings of processes |
//! | [`client_queues`] | queues of kernel clients |
//! | [`pages`] | page lists of MRs and of rings |
//! | [`cq`] | CQs |
//! | [`qp`], [`modify`], [`rate_limit`], [`multicast`] | QPs, their attributes and their groups |
//! | [`srq`] | SRQs |
//! | [`counters`], [`details`] | counters and details for administrators |
//! | [`resource_limit`] | limits of the number of AHs and of pages of rings |
//!
//! Lock order: locks of a CQ's consumer, the lock of a CQ, that of a work queue or an SRQ.

/// Asserts at compile time that constants of the ABI equal those of the kernel. Used next to each
/// conversion between the two.
macro_rules! assert_same {
    ($($abi:expr => $kernel:ident,)*) => {
        $(const _: () = assert!($abi as u64 == crate::bindings::$kernel as u64);)*
    };
}

mod ah;
mod client_queues;
mod counters;
mod cq;
mod details;
mod device;
mod dmabuf;
mod gid;
mod modify;
mod mr;
mod multicast;
mod mw;
mod pages;
mod pd;
mod peer_memory;
mod port;
mod port_state;
mod qp;
mod rate_limit;
mod resource_limit;
mod srq;
mod ucontext;
mod user_ring;

pub(crate) use self::device::Verbs;

use crate::{
    abi::{
        ctrl::ControlCommand,
        uverbs,
        versions::Extensible, //
    },
    ctrl::Failure,
    device::Device,
    rdma::udata::DriverData, //
};
use kernel::prelude::*;

/// Implements [`DriverData`] for structures of the ABI, one by one: in the kernel's tree
/// `DriverData` belongs to another crate, so the orphan rule forbids one implementation for all
/// types that are `Extensible`.
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

/// Runs a command that makes the device use `memory`. Returns the memory with the answer. If the
/// device does not answer, the memory goes to the quarantine, since the device may still use it.
fn create<R: ControlCommand, M: Send + 'static>(
    device: &Device,
    request: &R,
    memory: M,
) -> Result<(R::Response, M)> {
    reclaim_or_quarantine(device, device.ctrl().exec(request), memory)
}

/// Returns `memory` with the answer to the command that makes the device use it. Without an answer,
/// `memory` goes to the quarantine.
fn reclaim_or_quarantine<T, M: Send + 'static>(
    device: &Device,
    answer: Result<T, Failure>,
    memory: M,
) -> Result<(T, M)> {
    match answer {
        Ok(response) => Ok((response, memory)),
        Err(Failure::Refused(error)) => Err(error),
        Err(Failure::NoAnswer) => {
            device.quarantine(memory);
            Err(ENODEV)
        }
    }
}

/// Runs a command that ends the device's use of `memory`. Returns the memory; if the device does
/// not answer, the memory goes to the quarantine instead.
fn destroy<R: ControlCommand, M: Send + 'static>(
    device: &Device,
    request: &R,
    memory: M,
) -> Option<M> {
    match device.ctrl().exec(request) {
        Ok(_) => Some(memory),
        Err(failure) => {
            warn_of_refusal(device, request, failure);
            device.quarantine(memory);
            None
        }
    }
}

/// Warns if the device refused to destroy an object. The failure of a device is in the log already.
fn warn_of_refusal<R: ControlCommand>(device: &Device, request: &R, failure: Failure) {
    if let Failure::Refused(error) = failure {
        dev_warn!(
            device.as_device(),
            "the device refused {} of number {}, whose memory is kept until a reset: {:?}\n",
            R::COMMAND.c_name(),
            request.number().unwrap_or_default(),
            error
        );
    }
}
