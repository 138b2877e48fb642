// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The state of CQs, SRQs and MRs, told to people. [`QpDetails`](crate::QpDetails) tells that of
//! QPs.

use serde::Serialize;
use virtio_rdma_abi::number::{Cqn, Qpn, Srqn};

use crate::Hca;

/// The state of a CQ.
#[derive(Clone, Debug, Serialize)]
pub struct CqDetails {
    pub cqn: u32,
    /// Whether the CQ takes completions: it has neither overflowed nor a corrupt ring.
    pub is_live: bool,
    /// Number of completions since the CQ began or was resized, modulo 2³².
    pub completions: u32,
    /// Number of completions that the driver has not polled; `None` if its position is invalid.
    pub unpolled: Option<u32>,
    /// The completion event that the driver has requested.
    pub event: String,
    /// Time in ns for which moderation still delays an event that is due.
    pub delayed: Option<u64>,
    /// Nanoseconds for which a rule of the scenario still holds completions back; `None` if none
    /// does.
    pub held: Option<u64>,
    /// QPs that complete to the CQ.
    pub qps: Vec<u32>,
}

/// The state of an SRQ.
#[derive(Clone, Debug, Serialize)]
pub struct SrqDetails {
    pub srqn: u32,
    /// Whether receives can be taken: the ring is not corrupt.
    pub is_live: bool,
    /// Number of receives that are posted and that no QP has taken.
    pub posted: u32,
    /// Maximum number of outstanding work requests.
    pub max_wr: u32,
    /// SRQ_LIMIT_REACHED is raised when fewer receives are left; 0 if it is not armed.
    pub limit: u32,
    /// QPs that take their receives from the SRQ.
    pub qps: Vec<u32>,
}

/// The state of an MR.
#[derive(Clone, Debug, Serialize)]
pub struct MrDetails {
    pub mrn: u32,
    pub pdn: u32,
    /// Whether the MR was created for fast registration (REG_MR).
    pub is_fast: bool,
    /// Whether the driver has revoked the memory: its keys are invalid.
    pub is_revoked: bool,
    /// Number of windows that are bound to the MR.
    pub windows: u32,
    /// The memory that the key opens; `None` if the MR has no memory now.
    pub memory: Option<MemoryDetails>,
}

/// The memory of an MR.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryDetails {
    /// L_Key and R_Key, in hexadecimal digits.
    pub key: String,
    /// Address that work requests use for the first byte.
    pub address: String,
    /// Length in bytes.
    pub length: u64,
    /// Access flags.
    pub access: Vec<&'static str>,
    /// Bytes of a page.
    pub page: u64,
    /// Number of contiguous pieces in DMA space.
    pub pieces: usize,
}

impl Hca {
    /// The state of CQ `cqn`, or of all CQs.
    pub fn cq_details(&self, cqn: Option<Cqn>) -> Vec<CqDetails> {
        let cqs: Vec<_> = match cqn {
            Some(cqn) => self.objects.cqs.get(cqn).into_iter().collect(),
            None => self.objects.cqs.iter().collect(),
        };
        cqs.iter().filter_map(|cq| cq.details(self)).collect()
    }

    /// The state of SRQ `srqn`, or of all SRQs.
    pub fn srq_details(&self, srqn: Option<Srqn>) -> Vec<SrqDetails> {
        let srqs: Vec<_> = match srqn {
            Some(srqn) => self.objects.srqs.get(srqn).into_iter().collect(),
            None => self.objects.srqs.iter().collect(),
        };
        srqs.iter().filter_map(|srq| srq.details(self)).collect()
    }

    /// The state of the MR of a key, or of all MRs. The MR may have another key now: the lowest
    /// bits of its keys change.
    pub fn mr_details(&self, key: Option<u32>) -> Vec<MrDetails> {
        self.objects.mrs.details(key)
    }
}

/// The numbers of QPs.
pub(crate) fn numbers(qpns: impl IntoIterator<Item = Qpn>) -> Vec<u32> {
    qpns.into_iter().map(Qpn::get).collect()
}
