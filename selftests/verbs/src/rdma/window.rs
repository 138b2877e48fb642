// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Memory windows.

use std::mem::zeroed;
use std::ptr::NonNull;
use std::rc::Rc;

use anyhow::{Context as _, Result};

use super::context::{created, none};
use super::{check, ffi, Mr, Pd, Qp};

/// Type of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MwKind {
    /// Type 1, bound by `ibv_bind_mw`.
    One,
    /// Type 2, bound by work requests.
    Two,
}

/// The memory to which a window is bound.
#[derive(Clone, Copy)]
pub struct Shown<'a> {
    /// MR of the memory.
    pub mr: &'a Mr,
    /// Offset of the window in the MR, in bytes.
    pub offset: usize,
    /// Length of the window in bytes.
    pub length: usize,
    /// Access flags of peers.
    pub access: u32,
}

impl<'a> Shown<'a> {
    /// `length` bytes of `mr` from `offset` on.
    pub fn of(mr: &'a Mr, offset: usize, length: usize, access: u32) -> Self {
        Self {
            mr,
            offset,
            length,
            access,
        }
    }

    /// An empty range, which unbinds a type 1 window. It still has an MR, because the rxe provider
    /// always dereferences the pointer to the MR.
    pub fn nothing_of(mr: &'a Mr) -> Self {
        Self::of(mr, 0, 0, 0)
    }

    fn raw(&self) -> ffi::ibv_mw_bind_info {
        ffi::ibv_mw_bind_info {
            mr: self.mr.raw(),
            addr: self.mr.addr() + self.offset as u64,
            length: self.length as u64,
            mw_access_flags: self.access,
        }
    }
}

/// A memory window.
pub struct Mw {
    raw: NonNull<ffi::ibv_mw>,
    pd: Rc<Pd>,
}

impl Mw {
    /// Allocates a window, which is not bound.
    pub fn new(pd: &Rc<Pd>, kind: MwKind) -> Result<Self> {
        let kind = match kind {
            MwKind::One => ffi::IBV_MW_TYPE_1,
            MwKind::Two => ffi::IBV_MW_TYPE_2,
        };
        // SAFETY: The PD exists, and its provider filled in alloc_mw.
        let raw = unsafe {
            let alloc = (*pd.context().raw()).ops.alloc_mw.context("no alloc_mw")?;
            created("allocate MW", alloc(pd.raw(), kind))?
        };
        Ok(Self {
            raw,
            pd: Rc::clone(pd),
        })
    }

    /// Remote key.
    pub fn rkey(&self) -> u32 {
        // SAFETY: The window exists.
        unsafe { self.raw.as_ref().rkey }
    }

    /// Sets the key in the window, as programs do after a binding by a work request or after a
    /// failed binding.
    pub fn set_rkey(&mut self, rkey: u32) {
        // SAFETY: The window exists, and this is the only reference to it.
        unsafe { self.raw.as_mut().rkey = rkey };
    }

    /// Binds a type 1 window by `ibv_bind_mw`. The work request is signaled and has the id `id`.
    pub fn bind(&mut self, qp: &Qp, id: u64, shown: &Shown<'_>) -> Result<()> {
        let mut bind = ffi::ibv_mw_bind {
            wr_id: id,
            send_flags: ffi::IBV_SEND_SIGNALED,
            bind_info: shown.raw(),
        };
        // SAFETY: QP and window exist, and so does the MR, if there is one.
        let code = unsafe {
            let context = self.pd.context().raw();
            let call = (*context).ops.bind_mw.context("no bind_mw")?;
            call(qp.raw(), self.raw.as_ptr(), &mut bind)
        };
        check(code).context("bind MW")
    }

    /// Posts a signaled work request with the id `id` that binds the window under the key `rkey`.
    pub fn post_bind(&self, qp: &Qp, id: u64, rkey: u32, shown: &Shown<'_>) -> Result<()> {
        // SAFETY: All-zero bytes are a valid ibv_send_wr.
        let mut wr: ffi::ibv_send_wr = unsafe { zeroed() };
        wr.wr_id = id;
        wr.opcode = ffi::IBV_WR_BIND_MW;
        wr.send_flags = ffi::IBV_SEND_SIGNALED;
        wr.__bindgen_anon_2.bind_mw = ffi::ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
            mw: self.raw.as_ptr(),
            rkey,
            bind_info: shown.raw(),
        };
        let mut bad = none();
        // SAFETY: As in `bind`; the work request lives until the call returns.
        let code = unsafe {
            let post = (*self.pd.context().raw()).ops.post_send;
            post.context("no post_send")?(qp.raw(), &mut wr, &mut bad)
        };
        check(code).context("post binding of MW")
    }

    /// Deallocates the window and returns the result.
    pub fn deallocate(self) -> Result<()> {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: The PD is read once, and `ManuallyDrop` prevents a second drop of it.
        let _pd = unsafe { std::ptr::read(&this.pd) };
        // SAFETY: The window exists and is deallocated once.
        check(unsafe { dealloc(this.raw) }).context("deallocate MW")
    }
}

/// # Safety
///
/// The window exists.
unsafe fn dealloc(mw: NonNull<ffi::ibv_mw>) -> i32 {
    // SAFETY: The window exists, as the caller guarantees, and so does its context.
    unsafe {
        let dealloc = (*mw.as_ref().context).ops.dealloc_mw;
        dealloc.map_or(95, |dealloc| dealloc(mw.as_ptr()))
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        // SAFETY: The window exists and is deallocated once.
        if let Err(error) = check(unsafe { dealloc(self.raw) }) {
            println!("# deallocate MW: {error}");
        }
    }
}
