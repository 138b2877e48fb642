// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Shared receive queues.

use std::mem::zeroed;
use std::ptr::NonNull;
use std::rc::Rc;

use anyhow::{Context as _, Result};

use super::context::{created, none};
use super::work::{posted, sges_of};
use super::{check, ffi, Payload, Pd, PostError, Sge};

/// Sizes and limit of an SRQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Maximum number of outstanding work requests.
    pub max_wr: u32,
    /// Maximum number of SGEs of a work request.
    pub max_sge: u32,
    /// The armed limit; 0 if there is none.
    pub limit: u32,
}

/// A shared receive queue.
pub struct Srq {
    raw: NonNull<ffi::ibv_srq>,
    _pd: Rc<Pd>,
}

impl Srq {
    /// Creates an SRQ for at least `max_wr` work requests of one SGE.
    pub fn new(pd: &Rc<Pd>, max_wr: u32) -> Result<Rc<Self>> {
        // SAFETY: All-zero bytes are a valid ibv_srq_init_attr.
        let mut init: ffi::ibv_srq_init_attr = unsafe { zeroed() };
        init.attr.max_wr = max_wr;
        init.attr.max_sge = 1;
        // SAFETY: The PD exists, and the attributes are valid memory.
        let raw = created("create SRQ", unsafe {
            ffi::ibv_create_srq(pd.raw(), &mut init)
        })?;
        Ok(Rc::new(Self {
            raw,
            _pd: Rc::clone(pd),
        }))
    }

    fn modify(&self, mask: u32, max_wr: u32, limit: u32) -> Result<()> {
        let mut attr = ffi::ibv_srq_attr {
            max_wr,
            max_sge: 0,
            srq_limit: limit,
        };
        // SAFETY: The SRQ exists, and the attributes are valid memory.
        check(unsafe { ffi::ibv_modify_srq(self.raw(), &mut attr, mask.try_into()?) })
            .context("modify SRQ")
    }

    /// Requests an event when fewer than `limit` work requests are posted.
    pub fn arm(&self, limit: u32) -> Result<()> {
        self.modify(ffi::IBV_SRQ_LIMIT, 0, limit)
    }

    /// Resizes the SRQ for at least `max_wr` work requests.
    pub fn resize(&self, max_wr: u32) -> Result<()> {
        self.modify(ffi::IBV_SRQ_MAX_WR, max_wr, 0)
    }

    /// Queries sizes and limit.
    pub fn query(&self) -> Result<SrqAttr> {
        // SAFETY: All-zero bytes are a valid ibv_srq_attr for the call to fill; the SRQ exists.
        let attr = unsafe {
            let mut attr: ffi::ibv_srq_attr = zeroed();
            check(ffi::ibv_query_srq(self.raw(), &mut attr)).context("query SRQ")?;
            attr
        };
        Ok(SrqAttr {
            max_wr: attr.max_wr,
            max_sge: attr.max_sge,
            limit: attr.srq_limit,
        })
    }

    /// Posts one receive.
    pub fn recv(&self, id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let mut list = sges_of(Payload::Sges(sges));
        let mut raw = [ffi::ibv_recv_wr {
            wr_id: id,
            next: none(),
            sg_list: list.as_mut_ptr(),
            num_sge: list.len() as i32,
        }];
        let mut bad = none();
        // SAFETY: The SRQ exists. The request and its SGE list live until the call returns.
        let code = unsafe {
            let post = (*self.raw.as_ref().context).ops.post_srq_recv;
            post.map_or(95, |post| post(self.raw(), raw.as_mut_ptr(), &mut bad))
        };
        posted(code, &raw, bad)
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_srq {
        self.raw.as_ptr()
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: Each QP of the SRQ holds a reference to it, so none of them exists now, and all
        // events are acknowledged.
        if let Err(error) = check(unsafe { ffi::ibv_destroy_srq(self.raw()) }) {
            println!("# destroy SRQ: {error}");
        }
    }
}
