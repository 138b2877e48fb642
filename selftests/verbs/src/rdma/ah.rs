// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Address handles.

use std::mem::zeroed;
use std::ptr::NonNull;
use std::rc::Rc;

use anyhow::Result;

use super::context::created;
use super::{check, ffi, Pd};

/// Attributes of an AH as libibverbs has them.
pub type AhAttr = ffi::ibv_ah_attr;

/// An address handle.
pub struct Ah {
    raw: NonNull<ffi::ibv_ah>,
    _pd: Rc<Pd>,
}

impl Ah {
    /// An AH with the attributes that `edit` sets; the others are zero.
    pub fn new(pd: &Rc<Pd>, edit: impl FnOnce(&mut AhAttr)) -> Result<Self> {
        // SAFETY: All-zero bytes are a valid ibv_ah_attr.
        let mut attr: AhAttr = unsafe { zeroed() };
        edit(&mut attr);
        // SAFETY: The PD exists, and the attributes are valid memory.
        let raw = created("create AH", unsafe {
            ffi::ibv_create_ah(pd.raw(), &mut attr)
        })?;
        Ok(Self {
            raw,
            _pd: Rc::clone(pd),
        })
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        // SAFETY: The AH is destroyed once.
        if let Err(error) = check(unsafe { ffi::ibv_destroy_ah(self.raw.as_ptr()) }) {
            println!("# destroy AH: {error}");
        }
    }
}
