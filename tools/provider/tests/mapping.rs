// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Mapping of the kernel's memory, and cleanup after a failed mapping.

#[path = "common/kernel.rs"]
mod fake;

use std::alloc::GlobalAlloc;
use std::alloc::Layout;
use std::alloc::System;
use std::cell::Cell;
use std::io;
use std::mem::zeroed;
use std::ptr;

use fake::*;
use virtio_rdma_abi::ring::RingLayout;
use virtio_rdma_abi::versions::Versions;
use virtio_rdma_abi::wqe::RqHeader;
use virtio_rdma_provider::cq;
use virtio_rdma_provider::ffi;
use virtio_rdma_provider::pd;
use virtio_rdma_provider::qp;
use virtio_rdma_provider::qp_init;
use virtio_rdma_provider::srq;

/// The system's heap, with a count of each thread's live allocations.
struct Heap;

thread_local! {
    static ALIVE: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    ALIVE.with(|alive| alive.set(alive.get() + change));
}

// SAFETY: all calls are passed on to the system's heap.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1);
        // SAFETY: the caller's layout has a size other than 0.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-1);
        // SAFETY: the caller's memory is that of an `alloc` with this layout.
        unsafe { System.dealloc(memory, layout) };
    }
}

#[global_allocator]
static HEAP: Heap = Heap;

/// A context with a PD and a CQ.
struct Bench {
    cq: *mut ffi::ibv_cq,
    pd: *mut ffi::ibv_pd,
    opened: Opened,
}

impl Bench {
    fn new() -> Self {
        let opened = Opened::new().expect("a context");
        // SAFETY: the context is open.
        let pd = unsafe { pd::alloc_pd(opened.context) };
        assert!(!pd.is_null());
        let cq = create_cq(opened.context);
        assert!(!cq.is_null());
        Self { cq, pd, opened }
    }

    fn create_qp(&self) -> *mut ffi::ibv_qp {
        self.create_extended_qp(None)
    }

    /// A QP; with `send_ops`, an extended QP with these operations.
    fn create_extended_qp(&self, send_ops: Option<u32>) -> *mut ffi::ibv_qp {
        // SAFETY: zeroes are valid for a C structure of integers and pointers.
        let mut attr: ffi::ibv_qp_init_attr_ex = unsafe { zeroed() };
        attr.send_cq = self.cq;
        attr.recv_cq = self.cq;
        attr.qp_type = ffi::IBV_QPT_RC;
        attr.cap.max_send_wr = 16;
        attr.cap.max_recv_wr = 16;
        attr.cap.max_send_sge = 1;
        attr.cap.max_recv_sge = 1;
        attr.comp_mask = ffi::IBV_QP_INIT_ATTR_PD;
        attr.pd = self.pd;
        if let Some(send_ops) = send_ops {
            attr.comp_mask |= ffi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            attr.send_ops_flags = send_ops.into();
        }
        // SAFETY: the PD and the CQ live.
        unsafe { qp_init::create_qp_ex(self.opened.context, &mut attr) }
    }

    fn create_srq(&self) -> *mut ffi::ibv_srq {
        // SAFETY: zeroes are valid for a C structure of integers and pointers.
        let mut attr: ffi::ibv_srq_init_attr = unsafe { zeroed() };
        attr.attr.max_wr = 16;
        attr.attr.max_sge = 1;
        // SAFETY: the PD lives.
        unsafe { srq::create_srq(self.pd, &mut attr) }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // SAFETY: nothing uses the CQ and the PD any more.
        unsafe {
            assert_eq!(cq::destroy_cq(self.cq), 0);
            assert_eq!(pd::dealloc_pd(self.pd), 0);
        }
    }
}

fn create_cq(context: *mut ffi::ibv_context) -> *mut ffi::ibv_cq {
    // SAFETY: the context is open.
    unsafe { cq::create_cq(context, 16, ptr::null_mut(), 0) }
}

fn resize_cq(cq: *mut ffi::ibv_cq, entries: i32) -> i32 {
    // SAFETY: the CQ lives.
    unsafe { cq::resize_cq(cq, entries) }
}

fn grow_srq(srq: *mut ffi::ibv_srq, max_wr: u32) -> i32 {
    // SAFETY: zeroes are valid for a C structure of integers.
    let mut attr: ffi::ibv_srq_attr = unsafe { zeroed() };
    attr.max_wr = max_wr;
    // SAFETY: the SRQ lives.
    unsafe { srq::modify_srq(srq, &mut attr, ffi::IBV_SRQ_MAX_WR as i32) }
}

/// The commands since the last call, each with the number of mappings at that time.
fn take_calls() -> Vec<(&'static str, usize)> {
    kernel(|kernel| {
        let calls = kernel.calls.clone();
        kernel.calls.clear();
        calls
    })
}

/// Calls `create` twice, while only the first `good` mappings succeed. Each call fails with the
/// error of mmap and leaves no mapping and no memory. Returns the names of the commands.
fn fails(good: usize, create: impl Fn() -> Option<i32>) -> Vec<&'static str> {
    let before = mappings();
    let attempt = || {
        take_calls();
        kernel(|kernel| kernel.good = good);
        let error = create();
        kernel(|kernel| kernel.good = usize::MAX);
        assert_eq!(error, Some(libc::EINVAL));
        assert!(mappings() == before, "a mapping is left");
        ALIVE.get()
    };
    // The first call may allocate memory that is kept for ever.
    let [first, second] = [(); 2].map(|()| attempt());
    assert_eq!(first, second, "memory is left");
    take_calls().into_iter().map(|(name, _)| name).collect()
}

/// The error of a verb that returns an object or null.
fn error_of<T>(object: *mut T) -> Option<i32> {
    let error = io::Error::last_os_error().raw_os_error();
    object.is_null().then_some(error).flatten()
}

#[test]
fn a_context_without_its_doorbell_page_is_closed() {
    let calls = fails(0, || Opened::new().err().flatten());
    assert_eq!(calls, ["open", "close"]);
}

// abi: R-937
#[test]
fn a_context_of_no_version_of_both_is_closed() {
    let range = |oldest, newest| Versions { oldest, newest };
    for (module, expected) in [
        (range(9, 9), &["close"][..]),
        (range(6, 5), &["refuse", "close"]),
        (range(5, 5), &["close"]),
    ] {
        take_calls();
        kernel(|kernel| kernel.spoken = module);
        let opened = Opened::new();
        kernel(|kernel| kernel.spoken = Versions::SPOKEN);
        assert_eq!(opened.err().flatten(), Some(libc::EPROTONOSUPPORT));
        let calls: Vec<_> = take_calls().into_iter().map(|(name, _)| name).collect();
        assert_eq!(calls, expected);
    }
}

/// Whether the provider refuses to open a context with the libibverbs that `change` modifies.
fn refuses_a_layout(change: fn(&mut Kernel)) -> bool {
    take_calls();
    kernel(change);
    let error = Opened::new().err().flatten();
    kernel(|kernel| (kernel.longer, kernel.shifted) = (0, 0));
    let is_closed = take_calls().iter().any(|(name, _)| *name == "close");
    error == Some(libc::EPROTONOSUPPORT) && is_closed
}

#[test]
fn a_libibverbs_with_another_context_is_refused() {
    assert!(!refuses_a_layout(|_| ()));
    assert!(refuses_a_layout(|kernel| kernel.longer = 8));
    assert!(refuses_a_layout(|kernel| kernel.longer = 64));
}

#[test]
fn a_libibverbs_with_other_operations_is_refused() {
    assert!(refuses_a_layout(|kernel| kernel.shifted = 1));
    assert!(refuses_a_layout(|kernel| kernel.shifted = 10));
}

/// The error of creating a QP with `send_ops`. `added` is the number of functions that the fake
/// libibverbs has added to extended QPs before `comp_mask`.
fn extended_qp(added: Option<usize>, send_ops: u32) -> Option<i32> {
    let bench = Bench::new();
    kernel(|kernel| kernel.added = added);
    let qp = bench.create_extended_qp(Some(send_ops));
    let error = error_of(qp);
    if let (None, Some(added)) = (error, added) {
        let first = std::mem::offset_of!(ffi::ibv_qp_ex, wr_atomic_write);
        // SAFETY: the QP lives, and is longer than these words.
        let words = unsafe { *qp.byte_add(first).cast::<[u64; 5]>() };
        assert_eq!(words[added], u64::from(ffi::VERBS_QP_EX));
        assert!(words[..added.min(2)].iter().all(|function| *function != 0));
        assert!(words[added + 1..].iter().all(|word| *word == 0));
        // SAFETY: the QP was made above.
        assert_eq!(unsafe { qp::destroy_qp(qp) }, 0);
    }
    kernel(|kernel| kernel.added = Some(2));
    error
}

#[test]
fn functions_of_extended_qps_are_those_that_libibverbs_knows() {
    let (write, flush) = (ffi::IBV_QP_EX_WITH_ATOMIC_WRITE, ffi::IBV_QP_EX_WITH_FLUSH);
    for added in 0..4 {
        assert_eq!(extended_qp(Some(added), ffi::IBV_QP_EX_WITH_SEND), None);
    }
    assert_eq!(extended_qp(Some(2), write | flush), None);
    assert_eq!(extended_qp(Some(1), write), None);
    assert_eq!(extended_qp(Some(1), flush), Some(libc::EOPNOTSUPP));
    assert_eq!(extended_qp(Some(0), write), Some(libc::EOPNOTSUPP));
    // libibverbs does not write `comp_mask` to any word that the provider checks.
    assert_eq!(
        extended_qp(None, ffi::IBV_QP_EX_WITH_SEND),
        Some(libc::EPROTONOSUPPORT)
    );
}

#[test]
fn a_queue_whose_ring_cannot_be_mapped_is_destroyed() {
    let bench = Bench::new();
    let calls = fails(0, || error_of(create_cq(bench.opened.context)));
    assert_eq!(calls, ["create CQ", "destroy CQ"]);
    let calls = fails(0, || error_of(bench.create_srq()));
    assert_eq!(calls, ["create SRQ", "destroy SRQ"]);
    for good in [0, 1] {
        let calls = fails(good, || error_of(bench.create_qp()));
        assert_eq!(calls, ["create QP", "destroy QP"]);
    }
    // The CQ is unchanged.
    let qp = bench.create_qp();
    // SAFETY: the QP was made above.
    assert_eq!(unsafe { qp::destroy_qp(qp) }, 0);
}

#[test]
fn a_queue_stays_where_it_is_if_the_prepared_ring_cannot_be_mapped() {
    let bench = Bench::new();
    let calls = fails(0, || Some(resize_cq(bench.cq, 64)));
    assert_eq!(calls, ["resize CQ"]);
    let srq = bench.create_srq();
    let calls = fails(0, || Some(grow_srq(srq, 64)));
    assert_eq!(calls, ["modify SRQ"]);
    // The next attempts succeed.
    assert_eq!(resize_cq(bench.cq, 64), 0);
    assert_eq!(grow_srq(srq, 64), 0);
    // SAFETY: the SRQ was made above.
    assert_eq!(unsafe { srq::destroy_srq(srq) }, 0);
}

// abi
#[test]
fn memory_is_mapped_as_the_module_offers_it() {
    let bench = Bench::new();
    let page = PAGE as usize;
    let doorbell = (String::from("-w-s"), PAGE, PAGE);
    let ring = |offset, size: usize| {
        let length = size.next_multiple_of(page) as u64;
        (String::from("rw-s"), offset, length)
    };
    let size = |layout: Option<RingLayout>| layout.unwrap().size() as usize;
    let cq = ring(3 * PAGE, size(RingLayout::completions(16)));
    let mut expected = vec![doorbell, cq];
    expected.sort();
    let mut found = mappings();
    found.sort();
    assert_eq!(found, expected);
    let qp = bench.create_qp();
    assert_eq!(mappings().len(), 4);
    // SAFETY: the QP was made above.
    assert_eq!(unsafe { qp::destroy_qp(qp) }, 0);
    assert_eq!(mappings().len(), 2);
}

// abi: R-978
#[test]
fn a_ring_is_unmapped_after_its_queue_is_gone_or_has_moved() {
    let bench = Bench::new();
    take_calls();
    let (qp, srq) = (bench.create_qp(), bench.create_srq());
    // SAFETY: the QP and the SRQ were made above.
    unsafe {
        assert_eq!(qp::destroy_qp(qp), 0);
        assert_eq!(srq::destroy_srq(srq), 0);
    }
    // The first two mappings are those of the context and its CQ.
    assert_eq!(
        take_calls(),
        [
            ("create QP", 2),
            ("create SRQ", 4),
            ("destroy QP", 5),
            ("destroy SRQ", 3),
        ]
    );
    let srq = bench.create_srq();
    take_calls();
    assert_eq!(resize_cq(bench.cq, 64), 0);
    assert_eq!(grow_srq(srq, 64), 0);
    assert_eq!(
        take_calls(),
        [
            ("resize CQ", 3),
            ("resize CQ", 4),
            ("modify SRQ", 3),
            ("modify SRQ", 4),
        ]
    );
    assert_eq!(mappings().len(), 3);
    // SAFETY: the SRQ was made above.
    assert_eq!(unsafe { srq::destroy_srq(srq) }, 0);
}

// abi: R-982
#[test]
fn a_longer_ring_is_filled_before_the_move() {
    let bench = Bench::new();
    let srq = bench.create_srq();
    for wr_id in 0..3 {
        // SAFETY: zeroes are valid for a C structure of integers and pointers.
        let mut wr: ffi::ibv_recv_wr = unsafe { zeroed() };
        wr.wr_id = wr_id;
        let mut bad = ptr::null_mut();
        // SAFETY: the SRQ lives, and the list is one work request.
        assert_eq!(unsafe { srq::post_srq_recv(srq, &mut wr, &mut bad) }, 0);
    }
    assert_eq!(grow_srq(srq, 64), 0);
    kernel(|kernel| {
        let (_, layout) = kernel.prepared.unwrap();
        let word = |offset: u32| {
            let offset = offset as usize;
            u32::from_le_bytes(kernel.moved[offset..offset + 4].try_into().unwrap())
        };
        assert_eq!(word(layout.owner()), 3, "the producer's position");
        for slot in 0..3 {
            let at = layout.slot(slot) as usize;
            let header = RqHeader::decode(&kernel.moved[at..]).unwrap();
            assert_eq!(header.wr_id, u64::from(slot));
        }
    });
    // SAFETY: the SRQ was made above.
    assert_eq!(unsafe { srq::destroy_srq(srq) }, 0);
}
