// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Address handles.

use std::mem::{size_of, zeroed, MaybeUninit};
use std::ptr::NonNull;
use std::rc::Rc;

use anyhow::Result;

use super::context::created;
use super::{check, ffi, Mr, Pd, Wc};
use virtio_rdma_abi::wqe::AddressVector;

/// Attributes of an AH, `struct ibv_ah_attr`.
pub type AhAttr = ffi::ibv_ah_attr;

/// An address handle.
#[derive(Debug)]
pub struct Ah {
    raw: NonNull<ffi::ibv_ah>,
    _pd: Rc<Pd>,
}

impl Ah {
    /// An AH with the attributes that `edit` sets. Other attributes are zero.
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

    /// An AH to the sender of a message that was received with its GRH at the start of `mr`.
    pub fn back(pd: &Rc<Pd>, wc: &Wc, mr: &Mr) -> Result<Self> {
        let mut grh = MaybeUninit::<ffi::ibv_grh>::zeroed();
        let bytes = mr.read(0, size_of::<ffi::ibv_grh>());
        // SAFETY: Any bytes are a valid ibv_grh, and `bytes` has exactly its size.
        unsafe {
            grh.as_mut_ptr()
                .cast::<u8>()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
        // SAFETY: All-zero bytes are a valid ibv_wc.
        let mut raw: ffi::ibv_wc = unsafe { zeroed() };
        raw.wc_flags = wc.flags;
        raw.src_qp = wc.source;
        raw.sl = wc.sl;
        // SAFETY: The PD exists, and completion and GRH are valid memory.
        let raw = created("create AH from completion", unsafe {
            ffi::ibv_create_ah_from_wc(pd.raw(), &mut raw, grh.as_mut_ptr(), 1)
        })?;
        Ok(Self {
            raw,
            _pd: Rc::clone(pd),
        })
    }

    /// Overwrites the address vector in the AH of the virtio-rdma provider by `bytes` from `offset`
    /// on. A hostile process can do the same, because the address vector is in its memory.
    pub fn forge(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= AddressVector::SIZE);
        // SAFETY: The provider's AH is an ibv_ah followed by the bytes of an address vector.
        unsafe {
            self.raw
                .add(1)
                .cast::<u8>()
                .add(offset)
                .copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len())
        };
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_ah {
        self.raw.as_ptr()
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
