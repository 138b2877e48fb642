// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Address handles.

use std::io;

use libc::c_int;
use virtio_rdma_abi::uverbs::CreateAhResp;
use virtio_rdma_abi::wqe::AddressVector;

use crate::allocation::boxed;
use crate::driver_data;
use crate::errno;
use crate::ffi;
use crate::ffi::Zeroed;

/// An AH, as libibverbs sees it.
#[repr(C)]
pub struct Ah {
    ibv: ffi::ibv_ah,
    av: [u8; AddressVector::SIZE],
}

impl Ah {
    /// An AH that the kernel does not know.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(av: AddressVector) -> io::Result<Box<Self>> {
        boxed(Self {
            ibv: Zeroed::zeroed(),
            av: av.to_bytes(),
        })
    }

    /// The address vector in a work request of a UD QP.
    #[inline]
    pub fn av(&self) -> AddressVector {
        AddressVector::from_bytes(&self.av)
    }

    /// The AH behind libibverbs' pointer, or `None` if the pointer is null.
    ///
    /// # Safety
    ///
    /// The AH was made by this provider and is not destroyed during `'a`.
    #[inline]
    pub unsafe fn from_ibv<'a>(ah: *mut ffi::ibv_ah) -> Option<&'a Self> {
        // SAFETY: the ibv_ah is at the start of an Ah.
        unsafe { ah.cast::<Self>().as_ref() }
    }
}

type Response = driver_data::Response<ffi::ib_uverbs_create_ah_resp, CreateAhResp>;

/// `create_ah`. The kernel checks the attributes and finds the MAC address of the next hop.
///
/// # Safety
///
/// The arguments are objects of this provider, and pointers that are valid for the call.
pub unsafe extern "C" fn create_ah(
    pd: *mut ffi::ibv_pd,
    attr: *mut ffi::ibv_ah_attr,
) -> *mut ffi::ibv_ah {
    let Ok(mut ah) = Ah::new(AddressVector::default()) else {
        return errno::null(libc::ENOMEM);
    };
    let mut response = Response::empty();
    // SAFETY: libibverbs' arguments are passed on, and the response is as long as stated.
    let status = unsafe {
        ffi::ibv_cmd_create_ah(
            pd,
            &mut ah.ibv,
            attr,
            (&raw mut response).cast(),
            Response::SIZE,
        )
    };
    if status != 0 {
        return errno::null(status);
    }
    ah.av = response.get().av.to_bytes();
    // The ibv_ah is the first member.
    Box::into_raw(ah).cast()
}

/// # Safety
///
/// The arguments are objects of this provider, and pointers that are valid for the call.
pub unsafe extern "C" fn destroy_ah(ah: *mut ffi::ibv_ah) -> c_int {
    // SAFETY: the AH was made by `create_ah`, and the caller does not use it any more.
    unsafe { errno::destroyed::<Ah, _>(ffi::ibv_cmd_destroy_ah(ah), ah) }
}
