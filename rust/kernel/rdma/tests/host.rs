// SPDX-License-Identifier: GPL-2.0

//! Stand-ins for hardware and programs: a device that can do DMA, and memory of a process.

use crate::bindings;
use core::ptr::null_mut;
use kernel::{
    device::{
        self,
        Bound, //
    },
    faux,
    prelude::*, //
};

// The C headers define these as macros.
const PROT_READ: c_ulong = 1;
const PROT_WRITE: c_ulong = 2;
const MAP_PRIVATE: c_ulong = 2;
const MAP_ANONYMOUS: c_ulong = 0x20;

/// A device of the faux bus that is bound, and can do DMA to all memory.
pub(crate) struct Host {
    faux: faux::Registration,
    /// Dropped after the device.
    _parameters: KBox<bindings::device_dma_parameters>,
}

impl Host {
    /// Registers a device.
    pub(crate) fn new(name: &CStr) -> Result<Self> {
        let mut parameters = KBox::new(bindings::device_dma_parameters::default(), GFP_KERNEL)?;
        let faux = faux::Registration::new(name, None)?;
        let device: &faux::Device<Bound> = faux.as_ref();
        let device: &device::Device<Bound> = device.as_ref();
        let raw: *mut bindings::device = core::ptr::from_ref(device).cast_mut().cast();
        // SAFETY: The device is valid, and nobody else uses it. Masks and parameters exist as long
        // as the device.
        unsafe {
            (*raw).coherent_dma_mask = u64::MAX;
            (*raw).dma_mask = &raw mut (*raw).coherent_dma_mask;
            (*raw).dma_parms = &raw mut *parameters;
        }
        Ok(Self {
            faux,
            _parameters: parameters,
        })
    }

    /// The number of resources that the device releases when it is unbound. Nothing adds or removes
    /// resources meanwhile.
    pub(crate) fn resources(&self) -> usize {
        let raw: *mut bindings::device = core::ptr::from_ref(self.device()).cast_mut().cast();
        // SAFETY: The device is valid, and nothing changes the list.
        unsafe {
            let head = &raw mut (*raw).devres_head;
            let mut entry = (*head).next;
            let mut count = 0;
            while entry != head {
                entry = (*entry).next;
                count += 1;
            }
            count
        }
    }

    /// The device.
    pub(crate) fn device(&self) -> &device::Device<Bound> {
        let device: &faux::Device<Bound> = self.faux.as_ref();
        device.as_ref()
    }
}

/// Anonymous memory of the current process.
pub(crate) struct ProcessMemory {
    /// Its first address.
    pub(crate) address: usize,
    length: usize,
}

impl ProcessMemory {
    /// Maps whole pages, which can be read and written.
    pub(crate) fn new(length: usize) -> Result<Self> {
        // A KUnit test runs in a kernel thread, which has no memory of a process at first.
        #[cfg(not(OUT_OF_TREE))]
        // SAFETY: The current thread is that of a test.
        kernel::error::to_result(unsafe { bindings::kunit_attach_mm() })?;
        // SAFETY: There is no file, and the process chooses no address.
        let address = unsafe {
            bindings::vm_mmap(
                null_mut(),
                0,
                length as c_ulong,
                PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS,
                0,
            )
        };
        // An error is a number near the end of the address space, and not a multiple of the page
        // size.
        if address % kernel::page::PAGE_SIZE as c_ulong != 0 {
            return Err(ENOMEM);
        }
        Ok(Self {
            address: address as usize,
            length,
        })
    }
}

impl Drop for ProcessMemory {
    fn drop(&mut self) {
        // SAFETY: The current process has mapped the memory.
        let _ = unsafe { bindings::vm_munmap(self.address as c_ulong, self.length) };
    }
}
