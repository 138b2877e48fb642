// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Moderation of CQs.

use std::mem::zeroed;

use anyhow::{Context as _, Result};

use super::extended::{attributes, extended};
use super::{check, ffi, Context, Cq};

/// Limits of moderation, `struct ibv_cq_moderation_caps`.
pub type Moderation = ffi::ibv_cq_moderation_caps;

impl Context {
    /// Largest values with which a CQ can be moderated; 0 if the device has no moderation.
    pub fn moderation(&self) -> Result<Moderation> {
        Ok(attributes(self)?.cq_mod_caps)
    }
}

impl Cq {
    /// Delays the events of the CQ until `count` completions have come, or for `period`
    /// microseconds.
    pub fn moderate(&self, count: u16, period: u16) -> Result<()> {
        // SAFETY: All-zero bytes are valid attributes; the CQ exists, and so does its context.
        let code = unsafe {
            let mut attr: ffi::ibv_modify_cq_attr = zeroed();
            attr.attr_mask = ffi::IBV_CQ_ATTR_MODERATE;
            attr.moderate.cq_count = count;
            attr.moderate.cq_period = period;
            let modify = extended((*self.raw()).context)?.as_ref().modify_cq;
            modify.context("no modify_cq")?(self.raw(), &mut attr)
        };
        check(code).context("moderate CQ")
    }
}
