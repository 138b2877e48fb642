// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Registration with libibverbs, and matching of devices.

use std::ffi::CStr;
use std::io;
use std::ptr;

use crate::allocation::boxed;
use crate::context;
use crate::errno;
use crate::errno::complain;
use crate::ffi;
use crate::ffi::Zeroed;
use crate::libibverbs;

/// A device that libibverbs has found.
#[repr(C)]
pub struct Device {
    ibv: ffi::verbs_device,
    /// Oldest version of the interface that the kernel module supports.
    pub abi_version: u32,
}

impl Device {
    /// A device whose kernel module states `abi_version`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(abi_version: u32) -> io::Result<Box<Self>> {
        boxed(Self {
            ibv: Zeroed::zeroed(),
            abi_version,
        })
    }
}

/// A table for libibverbs that is never written.
#[repr(transparent)]
struct Table<T>(T);

// SAFETY: the pointers in the table are to constants.
unsafe impl Sync for Table<[ffi::verbs_match_ent; 3]> {}
// SAFETY: as above.
unsafe impl Sync for Table<ffi::verbs_device_ops> {}

const fn match_entry(kind: u32, modalias: *const libc::c_char) -> ffi::verbs_match_ent {
    ffi::verbs_match_ent {
        driver_data: ptr::null_mut(),
        u: ffi::verbs_match_ent__bindgen_ty_1 { modalias },
        vendor: 0,
        device: 0,
        kind: kind as u8,
    }
}

/// Modaliases of the RDMA device's parent: libibverbs has no driver id to match by.
///
/// - On PCI, the parent is the PCI function. Its device id is 0x1040 + 42; the host chooses its
///   subsystem ids.
/// - On other transports, and with older modules, the parent is a virtio device with id 42.
static MATCHES: Table<[ffi::verbs_match_ent; 3]> = Table([
    match_entry(
        ffi::VERBS_MATCH_MODALIAS,
        c"pci:v00001AF4d0000106Asv*".as_ptr(),
    ),
    match_entry(ffi::VERBS_MATCH_MODALIAS, c"virtio:d0000002Av*".as_ptr()),
    match_entry(ffi::VERBS_MATCH_SENTINEL, ptr::null()),
]);

/// The provider's name.
const NAME: &CStr = c"virtio_rdma";

/// The table accepts every version of the interface; the version is checked when a device is
/// opened. libibverbs knows only one version of the module, not a range. If libibverbs did the
/// check, an incompatible device would be missing in its list of devices, and its warning would not
/// say which side is older.
static DRIVER: Table<ffi::verbs_device_ops> = Table(ffi::verbs_device_ops {
    name: NAME.as_ptr(),
    match_min_abi_version: 0,
    match_max_abi_version: u32::MAX,
    match_table: (&raw const MATCHES).cast(),
    static_providers: ptr::null_mut(),
    match_device: None,
    alloc_context: Some(context::alloc_context),
    import_context: None,
    alloc_device: Some(alloc_device),
    uninit_device: Some(uninit_device),
});

/// Called by the dynamic linker as libibverbs loads the library.
#[used]
#[link_section = ".init_array"]
static CONSTRUCTOR: extern "C" fn() = register;

extern "C" fn register() {
    if !libibverbs::register(&DRIVER.0) {
        complain(format_args!("{}", libibverbs::UNKNOWN));
    }
}

/// Whether `device` is a device of this provider, or of another copy of this library in the
/// process. Such a copy has the same name, and accepts an
/// [`OpenRequest`](crate::direct::OpenRequest) too.
///
/// # Safety
///
/// `device` is a device of libibverbs' list.
pub unsafe fn is_ours(device: *mut ffi::ibv_device) -> bool {
    // SAFETY: libibverbs' devices are the first member of this structure.
    let operations = unsafe { (*device.cast::<ffi::verbs_device>()).ops.as_ref() };
    // SAFETY: providers have a terminated name.
    operations.is_some_and(|operations| unsafe { CStr::from_ptr(operations.name) } == NAME)
}

unsafe extern "C" fn alloc_device(sysfs: *mut ffi::verbs_sysfs_dev) -> *mut ffi::verbs_device {
    // SAFETY: libibverbs passes the device that it has found.
    let abi_version = unsafe { (*sysfs).abi_ver };
    match Device::new(abi_version) {
        Ok(device) => Box::into_raw(device).cast(),
        Err(error) => errno::null(errno::number(&error)),
    }
}

unsafe extern "C" fn uninit_device(device: *mut ffi::verbs_device) {
    // SAFETY: the device was made by `alloc_device`, and libibverbs has dropped its last reference.
    drop(unsafe { Box::from_raw(device.cast::<Device>()) });
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::ffi::CString;

    use super::*;

    /// Whether libibverbs assigns a device to this provider, given the modalias of its parent.
    fn matches(modalias: &CStr) -> bool {
        let entries = MATCHES.0.iter();
        let mut patterns = entries
            .take_while(|entry| u32::from(entry.kind) != ffi::VERBS_MATCH_SENTINEL)
            .map(|entry| {
                assert_eq!(u32::from(entry.kind), ffi::VERBS_MATCH_MODALIAS);
                // SAFETY: the kind says which member is set.
                unsafe { entry.u.modalias }
            });
        // SAFETY: both are terminated strings.
        patterns.any(|pattern| unsafe { libc::fnmatch(pattern, modalias.as_ptr(), 0) } == 0)
    }

    // abi
    #[test]
    fn devices_are_known_by_the_modalias_of_their_parent() {
        // PCI functions, with any subsystem and class.
        assert!(matches(
            c"pci:v00001AF4d0000106Asv00001AF4sd0000106Abc02sc00i00"
        ));
        assert!(matches(
            c"pci:v00001AF4d0000106Asv00008086sd00000001bcFFsc00i00"
        ));
        assert!(matches(c"virtio:d0000002Av00001AF4"));
        // A network function, the id of another vendor, a transitional device, virtio device 1.
        for other in [
            c"pci:v00001AF4d00001041sv00001AF4sd0000106Abc02sc00i00",
            c"pci:v00008086d0000106Asv00001AF4sd0000106Abc02sc00i00",
            c"pci:v00001AF4d00001000sv00001AF4sd0000002Abc02sc00i00",
            c"virtio:d00000001v00001AF4",
        ] {
            assert!(!matches(other), "{other:?}");
        }
    }

    /// Whether a device of the provider that has registered `operations` is ours.
    fn is_ours_of(operations: *const ffi::verbs_device_ops) -> bool {
        let mut device = ffi::verbs_device {
            ops: operations,
            ..Zeroed::zeroed()
        };
        // SAFETY: the device has a table with a terminated name, or none.
        unsafe { is_ours(ptr::from_mut(&mut device).cast()) }
    }

    #[test]
    fn devices_of_another_copy_of_this_library_are_ours() {
        assert!(is_ours_of(&DRIVER.0));
        // Another copy of the library has its own table, with its own string.
        let name = CString::from(NAME);
        let mut table = ffi::verbs_device_ops {
            name: name.as_ptr(),
            ..DRIVER.0
        };
        assert!(is_ours_of(&table));
        table.name = c"virtio_rdma2".as_ptr();
        assert!(!is_ours_of(&table));
        assert!(!is_ours_of(ptr::null()));
    }
}
