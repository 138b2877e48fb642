// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Direct verbs: the functions of this library that programs call themselves, declared in
//! `infiniband/virtio_rdma_dv.h`.
//!
//! A program and libibverbs load this library by different names. If both names lead to the same
//! file, the process has one copy of the library. Otherwise it has two, and the devices belong to
//! libibverbs' copy.

use std::ffi::CStr;
use std::ptr;

use virtio_rdma_abi::uverbs::AllocContextReq;
use virtio_rdma_abi::uverbs::ContextAttributes;
use virtio_rdma_abi::uverbs::PEER_NAME_SIZE;
use virtio_rdma_abi::versions::received;
use virtio_rdma_abi::versions::Misfit;

use crate::errno;
use crate::ffi;
use crate::registration;

const _: () = assert!(ffi::VIRTIO_RDMA_DV_PEER_NAME_MAX as usize == PEER_NAME_SIZE);

/// Attributes of a context to open: the argument of `alloc_context`. That function may belong to
/// another copy of this library, of another release, so the structure contains its own length.
///
/// # Invariants
///
/// `mark` is [`Self::MARK`] and `request` has `length` bytes.
#[repr(C)]
pub struct OpenRequest {
    mark: u32,
    length: u32,
    request: [u8; AllocContextReq::SIZE],
}

impl OpenRequest {
    /// Identifies this structure. Releases before version 7 pass only an `AllocContextReq`, which
    /// begins with other values.
    const MARK: u32 = 0x7672_6f72;

    fn new(request: &AllocContextReq) -> Self {
        // INVARIANT: mark and length are those of this type.
        Self {
            mark: Self::MARK,
            length: AllocContextReq::SIZE as u32,
            request: request.to_bytes(),
        }
    }

    /// The request at `this`, which any copy of this library may have written. Null is the default
    /// request.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the request has fields that this copy does not know, `EINVAL` if `this` is
    /// not a request.
    ///
    /// # Safety
    ///
    /// `this` is null or points to 8 readable bytes. If these have the mark, `length` readable
    /// bytes follow.
    pub unsafe fn read(this: *const Self) -> Result<AllocContextReq, libc::c_int> {
        if this.is_null() {
            return Ok(AllocContextReq::default());
        }
        // SAFETY: `this` points to 8 readable bytes.
        if unsafe { (*this).mark } != Self::MARK {
            return Err(libc::EINVAL);
        }
        // SAFETY: the mark says that `length` readable bytes follow. The writer's structure may be
        // longer or shorter.
        let bytes = unsafe {
            let start = (&raw const (*this).request).cast::<u8>();
            std::slice::from_raw_parts(start, (*this).length as usize)
        };
        received(bytes).map_err(|misfit| match misfit {
            Misfit::TooShort => libc::EINVAL,
            Misfit::Unknown => libc::EOPNOTSUPP,
        })
    }
}

/// The request to the module, or an error number.
///
/// # Safety
///
/// If `comp_mask` includes the exporter, its name is null or a string.
unsafe fn request(
    attr: &ffi::virtio_rdma_dv_open_device_attr,
) -> Result<AllocContextReq, libc::c_int> {
    if attr.comp_mask & !ffi::VIRTIO_RDMA_DV_SET_ATTR_PEER_INFO != 0 {
        return Err(libc::EINVAL);
    }
    let mut request = AllocContextReq::default();
    if attr.comp_mask & ffi::VIRTIO_RDMA_DV_SET_ATTR_PEER_INFO != 0 {
        let exporter = &attr.peer_info;
        if exporter.peer_name.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the exporter's name is a string, since it is not null.
        let name = unsafe { CStr::from_ptr(exporter.peer_name) }.to_bytes_with_nul();
        if name.len() > PEER_NAME_SIZE {
            return Err(libc::EINVAL);
        }
        request.attributes = ContextAttributes::PEER;
        request.peer_id = exporter.peer_id;
        request.peer_name[..name.len()].copy_from_slice(name);
    }
    Ok(request)
}

/// Whether `device` is a device of this provider.
///
/// # Safety
///
/// `device` is null or a device of libibverbs' list.
#[no_mangle]
pub unsafe extern "C" fn virtio_rdma_dv_is_supported(device: *mut ffi::ibv_device) -> bool {
    // SAFETY: `device` is in libibverbs' list, since it is not null.
    !device.is_null() && unsafe { registration::is_ours(device) }
}

/// Opens a device with attributes.
///
/// # Safety
///
/// `device` is null or a device of libibverbs' list. `attr` is null or valid. If its `comp_mask`
/// includes the exporter, the exporter's name is null or a string.
#[no_mangle]
pub unsafe extern "C" fn virtio_rdma_dv_open_device(
    device: *mut ffi::ibv_device,
    attr: *const ffi::virtio_rdma_dv_open_device_attr,
) -> *mut ffi::ibv_context {
    // SAFETY: `device` is null or in libibverbs' list, and `attr` is null or valid.
    let (is_ours, attr) = unsafe { (virtio_rdma_dv_is_supported(device), attr.as_ref()) };
    if !is_ours {
        return errno::null(libc::EOPNOTSUPP);
    }
    let request = match attr {
        // SAFETY: the exporter's name is null or a string.
        Some(attr) => unsafe { request(attr) },
        None => Err(libc::EINVAL),
    };
    match request {
        // SAFETY: the device is one of this provider, whose `alloc_context` reads the request
        // within this call.
        Ok(request) => unsafe {
            let mut request = OpenRequest::new(&request);
            ffi::verbs_open_device(device, ptr::from_mut(&mut request).cast())
        },
        Err(number) => errno::null(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(comp_mask: u32, name: *const libc::c_char) -> ffi::virtio_rdma_dv_open_device_attr {
        ffi::virtio_rdma_dv_open_device_attr {
            comp_mask,
            peer_info: ffi::virtio_rdma_dv_peer_info {
                peer_id: 7,
                peer_name: name,
            },
        }
    }

    // abi
    #[test]
    fn an_exporter_is_named() {
        // SAFETY: the name is a string.
        let request = unsafe { request(&attr(1, c"gpu".as_ptr())) }.unwrap();
        assert_eq!(request.attributes, ContextAttributes::PEER);
        assert_eq!(request.peer_id, 7);
        assert!(request.peer_name.starts_with(b"gpu\0"));
        assert!(request.peer_name[3..].iter().all(|byte| *byte == 0));
    }

    // abi: R-939
    #[test]
    fn what_is_not_said_to_be_valid_does_not_count() {
        // SAFETY: there is no name.
        let request = unsafe { request(&attr(0, ptr::null())) };
        assert_eq!(request, Ok(AllocContextReq::default()));
    }

    /// A copy of this library of another release, whose request has `N` bytes.
    #[repr(C)]
    struct OtherCopy<const N: usize> {
        mark: u32,
        length: u32,
        request: [u8; N],
    }

    fn read<const N: usize>(mark: u32, request: [u8; N]) -> Result<AllocContextReq, libc::c_int> {
        let other = OtherCopy {
            mark,
            length: N as u32,
            request,
        };
        // SAFETY: `length` is the size of `request`.
        unsafe { OpenRequest::read(ptr::from_ref(&other).cast()) }
    }

    // abi: R-939
    #[test]
    fn requests_of_copies_of_other_releases_are_read_by_their_length() {
        let request = AllocContextReq {
            peer_id: 7,
            ..AllocContextReq::default()
        };
        let own = OpenRequest::new(&request);
        // SAFETY: `own` is a request of this copy.
        assert_eq!(unsafe { OpenRequest::read(&own) }, Ok(request));
        // SAFETY: null is allowed.
        let none = unsafe { OpenRequest::read(ptr::null()) };
        assert_eq!(none, Ok(AllocContextReq::default()));
        let mut short = [0; 8];
        short.copy_from_slice(&request.to_bytes()[..8]);
        assert_eq!(read(OpenRequest::MARK, short), Ok(request));
        let mut long = [0; AllocContextReq::SIZE + 8];
        long[..AllocContextReq::SIZE].copy_from_slice(&request.to_bytes());
        assert_eq!(read(OpenRequest::MARK, long), Ok(request));
        long[AllocContextReq::SIZE] = 1;
        assert_eq!(read(OpenRequest::MARK, long), Err(libc::EOPNOTSUPP));
        // A request without mark and length, for an exporter.
        assert_eq!(read(1, short), Err(libc::EINVAL));
    }

    #[test]
    fn bad_attributes_are_refused() {
        let long = [b'a'; PEER_NAME_SIZE + 1].map(|byte| byte as libc::c_char);
        let mut longest = long;
        longest[PEER_NAME_SIZE - 1] = 0;
        let mut too_long = long;
        too_long[PEER_NAME_SIZE] = 0;
        for (comp_mask, name, expected) in [
            (1, longest.as_ptr(), None),
            (1, too_long.as_ptr(), Some(libc::EINVAL)),
            (1, ptr::null(), Some(libc::EINVAL)),
            (2, c"gpu".as_ptr(), Some(libc::EINVAL)),
            (3, c"gpu".as_ptr(), Some(libc::EINVAL)),
            (1 << 31, c"gpu".as_ptr(), Some(libc::EINVAL)),
        ] {
            // SAFETY: the names are strings or null.
            let request = unsafe { request(&attr(comp_mask, name)) };
            assert_eq!(request.err(), expected);
        }
    }

    #[test]
    fn no_device_and_devices_of_others_are_refused() {
        let good = attr(0, ptr::null());
        let mut other = <ffi::verbs_device as ffi::Zeroed>::zeroed();
        for device in [ptr::null_mut(), ptr::from_mut(&mut other).cast()] {
            // SAFETY: `device` is null or a device without operations.
            let context = unsafe { virtio_rdma_dv_open_device(device, &good) };
            assert!(context.is_null());
            assert_eq!(
                std::io::Error::last_os_error().raw_os_error(),
                Some(libc::EOPNOTSUPP)
            );
        }
    }
}
