// SPDX-License-Identifier: GPL-2.0

//! Pages of registers that a process may map.

use super::host::Host;
use crate::{
    bindings,
    rdma::mmap::{
        phys_addr,
        Registers, //
    },
};
use kernel::{
    device::{
        self,
        Bound, //
    },
    devres::Devres,
    io::{
        resource::{
            Flags,
            Region,
            Resource, //
        },
        PhysAddr, //
    },
    page::PAGE_SIZE,
    prelude::*,
    str::CString, //
};

/// All addresses.
fn all() -> &'static Resource {
    // CAST: `Resource` is a transparent wrapper of `struct resource`.
    let root = (&raw mut bindings::iomem_resource).cast::<Resource>();
    // SAFETY: The root of all memory resources is static.
    unsafe { &*root }
}

/// An address near the end of all addresses, where no machine has memory or registers.
fn start() -> PhysAddr {
    all().size() - (1 << 24)
}

/// A page of a region.
struct Page {
    region: Devres<Region>,
    page: usize,
}

impl Page {
    /// Claims a region for `device`.
    fn new(device: &device::Device<Bound>, start: PhysAddr, size: usize) -> Result<Self> {
        let name = CString::try_from(c"rdma_test")?;
        let region = all()
            .request_region(start, size as PhysAddr, name, Flags::IORESOURCE_MEM)
            .ok_or(EBUSY)?;
        Ok(Self {
            region: Devres::new(device, region)?,
            page: 0,
        })
    }
}

impl Registers for Page {
    fn region(&self) -> &Devres<Region> {
        &self.region
    }

    fn page(&self) -> usize {
        self.page
    }
}

suite! { rust_rdma_registers {
    fn pages_are_within_their_region() {
        let host = Host::new(c"rdma_test")?;
        let mut page = Page::new(host.device(), start(), 3 * PAGE_SIZE)?;
        for (number, offset) in (0..3).zip((0..).step_by(PAGE_SIZE)) {
            page.page = number;
            check!(phys_addr(&page, host.device()) == Ok(start() + offset));
        }
        for number in [3, 4, usize::MAX / PAGE_SIZE, usize::MAX / PAGE_SIZE + 1, usize::MAX] {
            page.page = number;
            check!(phys_addr(&page, host.device()) == Err(EINVAL));
        }
    }

    /// If a region covers only a part of its last page, the rest of that page may contain registers
    /// of another device.
    fn pages_are_whole() {
        let host = Host::new(c"rdma_test")?;
        let mut page = Page::new(host.device(), start(), 2 * PAGE_SIZE - 1)?;
        check!(phys_addr(&page, host.device()).is_ok());
        page.page = 1;
        check!(phys_addr(&page, host.device()) == Err(EINVAL));
    }

    fn pages_are_aligned() {
        let host = Host::new(c"rdma_test")?;
        let page = Page::new(host.device(), start() + 64, 2 * PAGE_SIZE)?;
        check!(phys_addr(&page, host.device()) == Err(EINVAL));
    }

    fn a_region_is_that_of_the_bound_device() {
        let host = Host::new(c"rdma_test")?;
        let other = Host::new(c"rdma_test_other")?;
        let page = Page::new(other.device(), start(), PAGE_SIZE)?;
        check!(phys_addr(&page, other.device()) == Ok(start()));
        check!(phys_addr(&page, host.device()).is_err());
    }

    /// After the end of the binding, another driver may claim the addresses.
    fn a_region_ends_with_its_binding() {
        let host = Host::new(c"rdma_test")?;
        let other = Host::new(c"rdma_test_other")?;
        let page = Page::new(host.device(), start(), PAGE_SIZE)?;
        check!(Page::new(other.device(), start(), PAGE_SIZE).is_err());
        drop(host);
        Page::new(other.device(), start(), PAGE_SIZE)?;
        drop(page);
    }
} }
