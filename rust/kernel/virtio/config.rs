// SPDX-License-Identifier: GPL-2.0

//! Bounded reads of the device configuration.
//!
//! A transport treats an offset beyond the device's configuration as a bug of the driver, and stops
//! the kernel. The device chooses the length of its configuration. So the length is read first and
//! checked at each read.
//!
//! C header: [`include/uapi/linux/virtio_pci.h`](srctree/include/uapi/linux/virtio_pci.h)

use super::Device;
use crate::bindings;
use core::{
    mem::offset_of,
    ops::Range, //
};
use kernel::{
    device::Bound,
    page::PAGE_SIZE,
    prelude::*, //
};

/// Maximum number of repeated reads because the device changed its configuration meanwhile.
const RETRIES: usize = 100;

/// Maximum number of capabilities. A PCI configuration space has 256 bytes, of which 64 are the
/// header, and a capability has at least 4 bytes.
const MAX_CAPABILITIES: usize = (256 - 64) / 4;

impl Device<Bound> {
    /// Reads ranges of the configuration into the same ranges of `space`, as one consistent
    /// snapshot. Other bytes of `space` are unchanged.
    ///
    /// Each range is an aligned field of 1, 2 or 4 bytes, or half of an aligned field of 64 bits: a
    /// device need not support other accesses (virtio 1.3, 4.1.3.1). The device may change the
    /// configuration between two accesses, so all ranges are read again if the generation has
    /// changed meanwhile (virtio 1.3, 2.5.1).
    ///
    /// Integers are little-endian with [`VERSION_1`](super::Feature::VERSION_1). May sleep.
    ///
    /// # Examples
    ///
    /// ```
    /// use crate::virtio;
    /// use kernel::device::Bound;
    ///
    /// /// A field of 32 bits and one of 64, both at the start of 16 bytes.
    /// fn limits(dev: &virtio::Device<Bound>) -> Result<[u8; 16]> {
    ///     let mut space = [0; 16];
    ///     // The field of 64 bits is read by halves.
    ///     dev.read_config([0..4, 8..12, 12..16].into_iter(), &mut space)?;
    ///     Ok(space)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ENXIO`] if the configuration is too short, or the transport is not PCI: other transports
    /// do not tell the length. [`EINVAL`] for any other access, or a range that is not in `space`,
    /// [`EBUSY`] if the device changes the configuration without pause.
    pub fn read_config(
        &self,
        accesses: impl Iterator<Item = Range<usize>> + Clone,
        space: &mut [u8],
    ) -> Result {
        let get = self.ops().get.ok_or(ENXIO)?;
        let len = self.config_len();
        for _ in 0..RETRIES {
            let before = self.config_generation();
            for access in accesses.clone() {
                let (at, width) = check_access(&access, len)?;
                let to = space.get_mut(access).ok_or(EINVAL)?;
                let mut raw = [0u8; 4];
                // SAFETY: The device is valid, the bytes are within its configuration as checked
                // above, and the buffer has room for 4 of them.
                unsafe { get(self.as_raw(), at, raw.as_mut_ptr().cast(), width) };
                to.copy_from_slice(&raw[..to.len()]);
            }
            if self.config_generation() == before {
                return Ok(());
            }
        }
        Err(EBUSY)
    }

    /// The configuration's generation, which changes with its content.
    fn config_generation(&self) -> u32 {
        match self.ops().generation {
            // SAFETY: The device is valid, and this is its transport's operation.
            Some(generation) => unsafe { generation(self.as_raw()) },
            None => 0,
        }
    }

    /// Length of the readable configuration in bytes; 0 if it is not known.
    fn config_len(&self) -> usize {
        let Some(function) = self.pci_function() else {
            // Other transports do not check the bound, and would read beyond their registers.
            return 0;
        };
        // SAFETY: The abstraction is transparent over the C structure, and valid.
        unsafe { pci_config_len(core::ptr::from_ref(function).cast_mut().cast()) }
    }
}

/// Offset and width of an access to a configuration of `len` bytes.
///
/// # Errors
///
/// [`ENXIO`] beyond the configuration, [`EINVAL`] for another width than 1, 2 or 4, or an offset
/// that is not a multiple of the width.
pub(super) fn check_access(access: &Range<usize>, len: usize) -> Result<(u32, u32)> {
    let width = match access.len() {
        1 => 1,
        2 => 2,
        4 => 4,
        _ => return Err(EINVAL),
    };
    let at = u32::try_from(access.start)?;
    if at % width != 0 {
        return Err(EINVAL);
    }
    if access.end > len {
        return Err(ENXIO);
    }
    Ok((at, width))
}

/// The length of the configuration. A PCI capability of type `VIRTIO_PCI_CAP_DEVICE_CFG` states it.
/// If a device has several such capabilities, their smallest length is returned, since it is not
/// known which capability the transport chose.
///
/// # Safety
///
/// `pci` must be valid.
unsafe fn pci_config_len(pci: *mut bindings::pci_dev) -> usize {
    let mut len = None;
    // SAFETY: By the function's requirement.
    let mut pos = unsafe { bindings::pci_find_capability(pci, bindings::PCI_CAP_ID_VNDR as c_int) };
    // The number of steps is bounded, since a device may present a list without an end.
    for _ in 0..MAX_CAPABILITIES {
        if pos == 0 {
            break;
        }
        let mut kind = 0;
        // SAFETY: By the function's requirement.
        unsafe {
            bindings::pci_read_config_byte(
                pci,
                i32::from(pos) + offset_of!(bindings::virtio_pci_cap, cfg_type) as i32,
                &mut kind,
            )
        };
        if u32::from(kind) == bindings::VIRTIO_PCI_CAP_DEVICE_CFG {
            let mut this = 0;
            // SAFETY: By the function's requirement.
            unsafe {
                bindings::pci_read_config_dword(
                    pci,
                    i32::from(pos) + offset_of!(bindings::virtio_pci_cap, length) as i32,
                    &mut this,
                )
            };
            // The transport maps no more than a page.
            let this = usize::try_from(this).unwrap_or(0).min(PAGE_SIZE);
            len = Some(len.map_or(this, |len: usize| len.min(this)));
        }
        // SAFETY: By the function's requirement.
        pos = unsafe {
            bindings::pci_find_next_capability(pci, pos, bindings::PCI_CAP_ID_VNDR as c_int)
        };
    }
    len.unwrap_or(0)
}
