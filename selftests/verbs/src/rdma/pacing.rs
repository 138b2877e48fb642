// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Rate limits of QPs.

use std::rc::Rc;

use anyhow::{Context as _, Result};

use super::extended::{attributes, extended};
use super::{check, ffi, Context, Qp};

/// The argument of `ibv_modify_qp_rate_limit`.
#[derive(Clone, Copy, Debug, Default)]
pub struct RateLimit {
    /// Rate in kb/s, 0 for no limit.
    pub rate: u32,
    /// Bytes of a burst, 0 for the device's default.
    pub burst: u32,
    /// Bytes of a typical packet, 0 for the port's MTU.
    pub packet: u16,
    /// Mask of extensions; none is defined.
    pub comp_mask: u32,
}

/// Rates that a device supports, `struct ibv_packet_pacing_caps`.
pub type Pacing = ffi::ibv_packet_pacing_caps;

impl Context {
    /// Rates that the device supports; all zero if it supports no rate limits.
    pub fn pacing(self: &Rc<Self>) -> Result<Pacing> {
        Ok(attributes(self)?.packet_pacing_caps)
    }
}

impl Qp {
    /// Sets the rate limit of the QP.
    pub fn limit_rate(&self, limit: &RateLimit) -> Result<()> {
        let mut attr = ffi::ibv_qp_rate_limit_attr {
            rate_limit: limit.rate,
            max_burst_sz: limit.burst,
            typical_pkt_sz: limit.packet,
            comp_mask: limit.comp_mask,
        };
        // SAFETY: The QP exists, and so does its context.
        let code = unsafe {
            let modify = extended((*self.raw()).context)?
                .as_ref()
                .modify_qp_rate_limit;
            modify.context("no modify_qp_rate_limit")?(self.raw(), &mut attr)
        };
        check(code).context("limit the rate")
    }
}
