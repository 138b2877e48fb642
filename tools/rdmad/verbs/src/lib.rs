// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The verbs engine of a virtio-rdma device.
//!
//! An [`Hca`] holds the objects of one VM. It executes control commands, given as bytes, on the
//! VM's objects, and the work requests in the VM's rings. Guest memory is a [`dma::DmaSpace`], the
//! device's virtqueues are [`Virtqueues`], and the network is a [`roce::FramePort`], so the engine
//! does not depend on how the device is presented to the guest. The HCAs of a process share a
//! [`Runtime`]: worker threads, and the direct path between their memories.
//!
//! | module | what it holds |
//! |---|---|
//! | `hca` | the HCA, which holds the next three |
//! | `objects` | tables of its objects, and their destruction |
//! | `flows` | its QPs, CQs and event queues that are ready for a turn |
//! | `port_frames` | its frames: those that arrived, and QPs that wait for room |
//! | `serve` | what requests turns, and what happens in them |
//! | `command` | control commands |
//! | `qp`, `cq`, `srq`, `pd`, `memory`, `gid` | the objects |
//! | `multicast` | groups of QPs of datagrams |
//! | `turn` | the cost of turns, and the cause of a QP's next turn |
//! | `wqe` | work requests: fetching and validation |
//! | `direct`, `wire` | the two data paths between QPs |
//! | `virtqueues` | virtqueues of the device, and their use by CQs and QPs |
//! | `moderation` | completion events that are delayed |
//! | `event` | events that wait for buffers |
//! | `runtime` | the HCAs of a process, and the workers that serve them |
//! | `port_pace` | rate limits of a port, which its QPs share |
//! | `saved`, `encoding` | the state that another process needs to go on |
//! | `history` | the events in the flight recorder |
//! | `details` | the state of CQs, SRQs and MRs in words |
//! | `counters`, `counter_sets`, `status` | statistics and status of an HCA |
//! | `config`, `table`, `users`, `error` | limits, numbered objects, users of objects, errno |

#![forbid(unsafe_code)]

mod address_leases;
mod blocked;
mod command;
mod config;
mod counter_sets;
mod counters;
mod cq;
mod details;
mod direct;
mod encoding;
mod error;
mod event;
mod flows;
mod gid;
mod hca;
mod heard;
mod history;
mod link;
mod memory;
mod moderation;
mod multicast;
mod objects;
mod pd;
mod port_frames;
mod port_load;
mod port_pace;
mod qp;
mod runtime;
mod saved;
mod scenario;
mod serve;
mod shuffle;
mod srq;
mod status;
mod table;
mod turn;
mod users;
mod virtqueues;
mod wire;
mod wqe;

pub use config::{HcaConfig, Limits, LinkSpeed, DEFAULT_MEMORY, DEFAULT_POLL_MICROSECONDS, EVENTS};
pub use details::{CqDetails, MemoryDetails, MrDetails, SrqDetails};
pub use hca::Hca;
pub use port_pace::{PortRates, Rate, Throttled};
pub use qp::QpDetails;
pub use runtime::{
    PathPolicy, Runtime, RuntimeConfig, RuntimeStatus, WorkerActivity, WorkerStatus,
};
pub use saved::RestoreError;
#[cfg(feature = "counting")]
pub use scheduler::shared::shared_writes;
pub use scheduler::{Clock, Doing, Flow, FlowKey, Waiting, WorkerKind, MAX_PORTS, MAX_WORKERS};
pub use status::{DataPath, HcaStatus, MemoryStatus, PeerStatus, QpStatus};
#[cfg(feature = "testing")]
pub use turn::MAX_TURN;
pub use virtqueues::Virtqueues;
