// SPDX-License-Identifier: GPL-2.0

//! Lists of pages, memory of queues, and memory of processes.

use super::{
    host::{
        Host,
        ProcessMemory, //
    },
    null::register_on, //
};
use crate::rdma::{
    mr::AccessFlags,
    page_list::{
        MappedPages,
        PageDirectory,
        PageList, //
    },
    queue_memory::{
        Barriers,
        QueueMemory, //
    },
    umem::Umem,
    user_memory::UserMemory,
    while_bound::WhileBound, //
};
use kernel::{
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};

/// A value that counts its drops.
struct Counted(Arc<Atomic<u32>>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Relaxed);
    }
}

suite! { rust_rdma_memory {
    fn a_list_has_the_pages_that_it_was_promised() {
        let host = Host::new(c"rdma_test")?;
        let registration = register_on(&host)?;
        let device = &*registration.device().try_get().ok_or(ENODEV)?;
        let list = PageList::new(device, 3, 0..3)?;
        check!(list.dma_address() % PAGE_SIZE as u64 == 0);
        // Addresses beyond the requested number stay in the iterator.
        let mut pages = 0..5;
        PageList::new(device, 3, pages.by_ref())?;
        check!(pages == (3..5));
        check!(PageList::new(device, 3, 0..2).is_err_and(|error| error == EINVAL));
        check!(PageList::new(device, 0, 0..2).is_err_and(|error| error == EINVAL));
    }

    fn a_list_has_a_greatest_length() {
        let host = Host::new(c"rdma_test")?;
        let registration = register_on(&host)?;
        let device = &*registration.device().try_get().ok_or(ENODEV)?;
        let too_many = PageList::MAX_PAGES + 1;
        let list = PageList::new(device, too_many, 0..);
        check!(list.is_err_and(|error| error == E2BIG));
        let too_many = u32::try_from(MappedPages::MAX_PAGES)? + 1;
        check!(MappedPages::new(device, too_many).is_err_and(|error| error == E2BIG));
        check!(MappedPages::new(device, 0).is_err_and(|error| error == EINVAL));
        check!(MappedPages::new(device, too_many - 1)?.count() == 0);
    }

    fn a_directory_has_any_number_of_blocks() {
        let host = Host::new(c"rdma_test")?;
        let registration = register_on(&host)?;
        let device = &*registration.device().try_get().ok_or(ENODEV)?;
        let entries = PageDirectory::BLOCK / size_of::<u64>();
        for count in [1, entries, entries + 1, 8 * entries + 1] {
            let directory = PageDirectory::new(device, count, 0..count as u64)?;
            check!(directory.dma_address() % PageDirectory::BLOCK as u64 == 0);
            let short = PageDirectory::new(device, count, 0..count as u64 - 1);
            check!(short.is_err_and(|error| error == EINVAL));
        }
        check!(PageDirectory::new(device, 0, 0..0).is_err_and(|error| error == EINVAL));
    }

    fn memory_of_a_queue_is_accessed_in_words() {
        let host = Host::new(c"rdma_test")?;
        let registration = register_on(&host)?;
        let device = &*registration.device().try_get().ok_or(ENODEV)?;
        for barriers in [Barriers::Cpus, Barriers::Platform] {
            let memory = QueueMemory::new(device, PAGE_SIZE + 1, [], barriers)?;
            check!(memory.page_count() == 2);
            check!(memory.pages().count() == 2);
            memory.store_u64(8, 0x0807_0605_0403_0201);
            check!(memory.load_u32(8) == 0x0403_0201 && memory.load_u32(12) == 0x0807_0605);
            check!(memory.load_u16(14) == 0x0807);
            check!(memory.array(9) == [2, 3, 4]);
            memory.store_u32_release(12, 9);
            check!(memory.load_u32_acquire(12) == 9);
        }
    }

    fn fixed_words_of_a_queue_are_words_of_its_memory() {
        let host = Host::new(c"rdma_test")?;
        let registration = register_on(&host)?;
        let device = &*registration.device().try_get().ok_or(ENODEV)?;
        let size = 2 * PAGE_SIZE;
        let end = u32::try_from(size)?;
        for barriers in [Barriers::Cpus, Barriers::Platform] {
            let memory = QueueMemory::new(device, size, [4, end - 4], barriers)?;
            memory.store_fixed_release::<0>(1);
            memory.store_fixed_release::<1>(2);
            check!(memory.load_u32(4) == 1 && memory.load_u32(end - 4) == 2);
            memory.store_u32(end - 4, 3);
            check!(memory.load_fixed::<1>() == 3 && memory.load_fixed_acquire::<0>() == 1);
        }
        for offset in [end, 2, u32::MAX] {
            let memory = QueueMemory::new(device, size, [offset], Barriers::Cpus);
            check!(memory.is_err_and(|error| error == EINVAL));
        }
    }

    /// A driver that accesses a queue's memory at a wrong offset reaches no other memory.
    fn memory_of_a_queue_ends() {
        let host = Host::new(c"rdma_test")?;
        let registration = register_on(&host)?;
        let device = &*registration.device().try_get().ok_or(ENODEV)?;
        let memory = QueueMemory::new(device, 2 * PAGE_SIZE, [], Barriers::Cpus)?;
        let end = u32::try_from(2 * PAGE_SIZE)?;
        memory.store_u32(end - 4, u32::MAX);
        for offset in [end, end - 2, end + 4, u32::MAX, u32::MAX - 3] {
            memory.store_u32(offset, 1);
            check!(memory.load_u32(offset) == 0);
        }
        check!(memory.load_u32(end - 4) == u32::MAX);
        // A range that crosses the end of a page is not accessed.
        let edge = u32::try_from(PAGE_SIZE)?;
        memory.store_u32(edge, 5);
        memory.span(edge - 2).put(0, &[1; 4]);
        check!(memory.array(edge - 2) == [0; 4]);
        check!(memory.load_u32(edge) == 5);
    }

    fn memory_for_processes_is_of_whole_pages() {
        check!(UserMemory::length_for(0) == Err(EINVAL));
        check!(UserMemory::length_for(1) == Ok(PAGE_SIZE));
        check!(UserMemory::length_for(PAGE_SIZE) == Ok(PAGE_SIZE));
        check!(UserMemory::length_for(PAGE_SIZE + 1) == Ok(2 * PAGE_SIZE));
        check!(UserMemory::length_for(usize::MAX).is_err());

        let host = Host::new(c"rdma_test")?;
        let registration = register_on(&host)?;
        let device = &*registration.device().try_get().ok_or(ENODEV)?;
        let memory = UserMemory::new(device, 5 * PAGE_SIZE - 1)?;
        let shift = memory.page_shift();
        check!(memory.page_count() << shift == 5 * PAGE_SIZE);
        let mut count = 0;
        for page in memory.pages() {
            check!(page.trailing_zeros() >= shift.into());
            count += 1;
        }
        check!(count == memory.page_count());
    }

    fn memory_of_a_process_is_pinned() {
        let host = Host::new(c"rdma_test")?;
        let registration = register_on(&host)?;
        let device = &*registration.device().try_get().ok_or(ENODEV)?;
        let memory = ProcessMemory::new(4 * PAGE_SIZE)?;
        let start = memory.address as u64;
        let page = PAGE_SIZE as u64;
        let umem = Umem::pin(device, start + page / 2, 2 * page, AccessFlags::LOCAL_WRITE)?;
        let shift = u8::try_from(PAGE_SHIFT)?;
        check!(umem.page_count(shift) == Ok(3));
        let mut count = 0;
        for address in umem.pages(shift)? {
            check!(address % PAGE_SIZE as u64 == 0);
            count += 1;
        }
        check!(count == 3);
        drop(umem);
        for (start, length) in [(0, page), (start, u64::MAX), (u64::MAX, 2)] {
            check!(Umem::pin(device, start, length, AccessFlags::LOCAL_WRITE).is_err());
        }
    }

    fn a_value_is_dropped_while_its_device_is_bound() {
        let drops = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let host = Host::new(c"rdma_test")?;
        let registration = register_on(&host)?;
        let device = registration.device().try_get().ok_or(ENODEV)?;
        let early = WhileBound::new(&device, Counted(drops.clone()));
        let two = WhileBound::new(&device, Counted(drops.clone())).and(Counted(drops.clone()));
        let late = WhileBound::new(&device, Counted(drops.clone()));
        drop(device);
        drop(early);
        check!(drops.load(Relaxed) == 1);
        // The binding outlasts the registration, so the values can still be dropped.
        drop(registration);
        drop(two);
        check!(drops.load(Relaxed) == 3);
        drop(host);
        check!(drops.load(Relaxed) == 3);
        drop(late);
        check!(drops.load(Relaxed) == 3);
    }

    /// Memory that is dropped after its device was unbound from the driver is not unmapped. The
    /// test leaks a few pages.
    fn memory_may_outlive_the_binding() {
        let host = Host::new(c"rdma_test")?;
        let registration = register_on(&host)?;
        let device = registration.device().try_get().ok_or(ENODEV)?;
        let of_process = ProcessMemory::new(PAGE_SIZE)?;
        let start = of_process.address as u64;
        let umem = Umem::pin(&device, start, PAGE_SIZE as u64, AccessFlags::LOCAL_WRITE)?;
        let queue = QueueMemory::new(&device, PAGE_SIZE, [0], Barriers::Cpus)?;
        let list = PageList::new(&device, 1, queue.pages())?;
        let shared = UserMemory::new(&device, PAGE_SIZE)?;
        drop(device);
        drop(host);
        check!(registration.device().try_get().is_none());
        queue.store_fixed_release::<0>(7);
        check!(queue.load_u32(0) == 7);
        check!(umem.pages(u8::try_from(PAGE_SHIFT)?)?.count() == 1);
        check!(shared.pages().count() == 1);
        drop((umem, queue, list, shared));
    }
} }
