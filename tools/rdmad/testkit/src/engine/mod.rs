// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The engine without QEMU: simulated VMs with drivers, memory and rings, and networks between
//! them.
//!
//! | Module | Provides |
//! |---|---|
//! | [`vm`](Vm) | a VM: device, memory, control commands, registration |
//! | [`events`](Sink) | its event virtqueues |
//! | [`qp`], [`cq`], [`srq`], [`ring`], [`wr`](Wr) | a driver's queues and work requests |
//! | [`mode`] | what differs in virtqueue mode |
//! | [`setup`](Setup) | data paths and modes that tests vary |
//! | [`net`](Net) | networks: delivery at once, or when the caller says |
//! | [`world`](World), [`daemon`](Daemon) | VMs on the simulated network, or on the real switch |
//! | [`pair`](Pair) | connected QPs |
//! | `stepped` | a feature: runtimes whose workers and clock the caller drives |

pub mod cq;
mod daemon;
mod events;
pub mod mode;
mod net;
mod pair;
pub mod qp;
pub mod ring;
mod setup;
pub mod srq;
#[cfg(feature = "stepped")]
pub mod stepped;
mod vm;
mod world;
mod wr;

use virtio_rdma_abi::ib::AccessFlags;

pub use cq::Cq;
pub use daemon::Daemon;
pub use events::Sink;
pub use net::{frame, frame_between, notify, InFlight, Net, Port};
pub use pair::{each, each_setup, each_setup_with, each_with, Pair};
pub use qp::{connect, Options, Qp};
pub use ring::Ring;
pub use setup::{in_all_setups, in_both_modes, on_both_paths, Mode, Setup, MODES, PATHS};
pub use srq::Srq;
pub use vm::{mac, more_mac, Mr, Vm};
pub use world::World;
pub use wr::{local_inv, sge, split, wqe, Wr};

pub use crate::wait;

/// All access flags of local memory and of peers.
pub const FULL: AccessFlags = AccessFlags(
    AccessFlags::LOCAL_WRITE.0
        | AccessFlags::REMOTE_WRITE.0
        | AccessFlags::REMOTE_READ.0
        | AccessFlags::REMOTE_ATOMIC.0,
);

/// `len` pseudo-random bytes that depend on `seed`, so that a test detects misplaced bytes.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}
