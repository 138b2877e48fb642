// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! An exhausted heap: verbs fail with `ENOMEM`, lose nothing and can be called again.

use std::alloc::GlobalAlloc;
use std::alloc::Layout;
use std::alloc::System;
use std::cell::Cell;
use std::io;
use std::ptr;

use provider_testkit::*;
use virtio_rdma_abi::ring::RingKind;
use virtio_rdma_abi::ring::RingLayout;
use virtio_rdma_provider::ah::Ah;
use virtio_rdma_provider::cq;
use virtio_rdma_provider::cq::Cq;
use virtio_rdma_provider::ffi;
use virtio_rdma_provider::pd;
use virtio_rdma_provider::qp::Qp;
use virtio_rdma_provider::srq::Srq;

/// The system's heap, with a limit for the allocations of a thread.
struct Heap;

thread_local! {
    /// Number of further allocations of this thread that succeed.
    static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Counts an allocation, and returns whether it succeeds.
fn succeeds() -> bool {
    LEFT.with(|left| match left.get() {
        0 => false,
        usize::MAX => true,
        count => {
            left.set(count - 1);
            true
        }
    })
}

// SAFETY: calls are passed on to the system's heap, or fail.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match succeeds() {
            // SAFETY: the caller's layout has a size other than 0.
            true => unsafe { System.alloc(layout) },
            false => ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's memory is that of an `alloc` with this layout.
        unsafe { System.dealloc(memory, layout) };
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        match succeeds() {
            // SAFETY: the caller's memory is that of an `alloc` with this layout, and `size` is not
            // 0.
            true => unsafe { System.realloc(memory, layout, size) },
            false => ptr::null_mut(),
        }
    }
}

#[global_allocator]
static HEAP: Heap = Heap;

/// Calls `verb` with 0 allocations left, with 1, and so on until it succeeds. Each failure is
/// `ENOMEM`. Returns the result and the number of failures.
fn until_it_succeeds<T>(mut verb: impl FnMut() -> io::Result<T>) -> (T, usize) {
    for failures in 0.. {
        LEFT.set(failures);
        let result = verb();
        LEFT.set(usize::MAX);
        match result {
            Ok(made) => return (made, failures),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOMEM)),
        }
    }
    unreachable!()
}

/// [Repeats](until_it_succeeds) a C verb that returns an object or null.
fn until_not_null<T>(mut verb: impl FnMut() -> *mut T) -> *mut T {
    let (object, failures) = until_it_succeeds(|| {
        let object = verb();
        match object.is_null() {
            true => Err(io::Error::last_os_error()),
            false => Ok(object),
        }
    });
    assert_ne!(failures, 0);
    object
}

#[test]
fn queues() {
    let shared = shared();
    let domain = shared.threads.into();
    let layout = cq::ring_layout(8, 8).unwrap();
    let (cq, failures) = until_it_succeeds(|| Cq::in_memory(layout, &shared, &domain));
    assert_ne!(failures, 0);
    let layout = RingLayout::new(RingKind::Shared, 4, 6).unwrap();
    let (srq, failures) = until_it_succeeds(|| Srq::in_memory(layout, 1, &shared, &domain));
    assert_ne!(failures, 0);
    let qp = |srq| Qp::in_memory(ffi::IBV_QPT_RC, &CAP, (&cq, &cq, srq), &shared, &domain);
    let (mut first, failures) = until_it_succeeds(|| qp(None));
    assert_ne!(failures, 0);
    let (mut second, failures) = until_it_succeeds(|| qp(Some(&srq)));
    assert_ne!(failures, 0);
    // The table has no nodes for this QP number yet.
    let ((), failures) = until_it_succeeds(|| first.created(QPN));
    assert_ne!(failures, 0);
    second.created(OTHER_QPN).unwrap();
    first.changed(ffi::IBV_QPS_RTS);
    assert_eq!(fill(&srq), 4);

    // Verbs that can't fail allocate nothing.
    LEFT.set(0);
    let mut wr = send_wr(7, ffi::IBV_WR_SEND, 0, &mut []);
    let status = post_send(&first, &mut wr).0;
    second.changed(ffi::IBV_QPS_RESET);
    second.destroyed();
    LEFT.set(usize::MAX);
    assert_eq!(status, 0);
    Completions::new(&cq).push(sent(0));
    assert_eq!(poll(&cq, 1).unwrap()[0].wr_id, 7);
}

#[test]
fn longer_rings() {
    let shared = shared();
    let cq = cq(&shared, 4);
    let srq = srq(&shared, 4);
    let mut device = Completions::new(&cq);
    let longer = cq::ring_layout(8, 8).unwrap();
    let (_, failures) = until_it_succeeds(|| {
        let resized = cq.ring().resize(longer, |ring| Ok(device.move_to(ring)));
        resized.map_err(io::Error::from_raw_os_error)
    });
    assert_ne!(failures, 0);
    let (_, failures) = until_it_succeeds(|| srq.ring().prepare(8));
    assert_ne!(failures, 0);
    srq.ring().moved(true);
    assert_eq!(fill(&srq), 8);
}

#[test]
fn objects_of_the_process() {
    until_it_succeeds(|| Ah::new(av()));
    let mut attr = ffi::ibv_td_init_attr { comp_mask: 0 };
    // SAFETY: the context is not accessed.
    let td = until_not_null(|| unsafe { pd::alloc_td(ptr::null_mut(), &mut attr) });
    // SAFETY: the thread domain was made above.
    assert_eq!(unsafe { pd::dealloc_td(td) }, 0);
}
