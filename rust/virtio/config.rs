// SPDX-License-Identifier: GPL-2.0

//! Bounded reads of the device configuration.
//!
//! The transports take an offset beyond the configuration that a device presents for a bug of the
//! driver and stop the kernel; but how long it is, is the device's choice. So the bound is found
//! first and checked on each read.
//!
//! C header: [`include/uapi/linux/virtio_pci.h`](srctree/include/uapi/linux/virtio_pci.h)

use super::Device;
use crate::bindings;
use core::mem::offset_of;
use kernel::{
    device::Bound,
    page::PAGE_SIZE,
    prelude::*, //
};

/// How often a read is tried again because the device changed its configuration meanwhile.
const RETRIES: usize = 100;

/// As many capabilities of 4 bytes as fit behind the header of a PCI configuration space of 256
/// bytes.
const MAX_CAPABILITIES: usize = (256 - 64) / 4;

impl Device<Bound> {
    /// Fills `out` with the configuration from `offset` on, as one consistent snapshot.
    ///
    /// Integers in it are little-endian with [`VERSION_1`](super::Feature::VERSION_1). May sleep.
    ///
    /// # Errors
    ///
    /// [`ENXIO`] if the configuration is too short, [`EBUSY`] if the device changes it without
    /// pause.
    pub fn read_config(&self, offset: usize, out: &mut [u8]) -> Result {
        let end = offset.checked_add(out.len()).ok_or(ENXIO)?;
        let get = self.ops().get.ok_or(ENXIO)?;
        if end > self.config_len() {
            return Err(ENXIO);
        }
        for _ in 0..RETRIES {
            let before = self.config_generation();
            let mut at = u32::try_from(offset)?;
            // Four aligned bytes at a time, which a transport reads at once, and single bytes at
            // the ends.
            let mut rest = &mut *out;
            while !rest.is_empty() {
                let len = if at % 4 == 0 && rest.len() >= 4 { 4 } else { 1 };
                let (now, later) = rest.split_at_mut(len);
                let mut raw = [0u8; 4];
                // SAFETY: The device is valid, the bytes are within its configuration as checked
                // above, and the buffer has room for 4 of them.
                unsafe { get(self.as_raw(), at, raw.as_mut_ptr().cast(), len as u32) };
                now.copy_from_slice(&raw[..len]);
                at += len as u32;
                rest = later;
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

    /// How many bytes of configuration can be read.
    fn config_len(&self) -> usize {
        let Some(function) = self.pci_function() else {
            // Other transports have no bound that a read could violate.
            return usize::MAX;
        };
        // SAFETY: The abstraction is transparent over the C structure, and valid.
        unsafe { pci_config_len(core::ptr::from_ref(function).cast_mut().cast()) }
    }
}

/// The length of the configuration that every capability of that kind allows for: which one the
/// transport chose is not known, and devices have just one.
///
/// # Safety
///
/// `pci` must be valid.
unsafe fn pci_config_len(pci: *mut bindings::pci_dev) -> usize {
    let mut len = None;
    // SAFETY: By the function's requirement.
    let mut pos = unsafe { bindings::pci_find_capability(pci, bindings::PCI_CAP_ID_VNDR as c_int) };
    // A device may present a list that never ends.
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
