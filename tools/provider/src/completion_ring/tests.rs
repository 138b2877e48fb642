// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Tests the amount of work in one call of polling. The program's allocator is called within
//! polling, when a ring is freed. It acts as another thread that calls control verbs at exactly
//! this moment.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;

use super::*;
use crate::allocators::USE_DEFAULT;
use crate::lock::Threads;
use crate::pd::Pd;

/// A program that resizes a CQ whenever a ring of that CQ is freed.
#[derive(Default)]
struct Program {
    ring: Cell<Option<Arc<CompletionRing>>>,
    /// The number of resizes that are left.
    left: Cell<u32>,
}

const SLOTS: u32 = 4;

/// Resizes a CQ whose rings are all empty.
fn resize(ring: &CompletionRing) {
    let layout = RingLayout::completions(SLOTS).unwrap();
    assert_eq!(ring.resize(layout, |_| Ok(0)), Ok(false));
}

unsafe extern "C" fn take(
    _pd: *mut ffi::ibv_pd,
    _context: *mut c_void,
    size: usize,
    alignment: usize,
    _resource: u64,
) -> *mut c_void {
    let mut memory = ptr::null_mut();
    // SAFETY: `memory` receives the address.
    match unsafe { libc::posix_memalign(&mut memory, alignment, size) } {
        0 => memory,
        _ => USE_DEFAULT,
    }
}

unsafe extern "C" fn give(
    _pd: *mut ffi::ibv_pd,
    context: *mut c_void,
    memory: *mut c_void,
    _resource: u64,
) {
    // SAFETY: `take` allocated the memory.
    unsafe { libc::free(memory) };
    // SAFETY: the test passes a `Program` as context.
    let program = unsafe { &*context.cast::<Program>() };
    let Some(left) = program.left.get().checked_sub(1) else {
        return;
    };
    program.left.set(left);
    let ring = program.ring.take().unwrap();
    resize(&ring);
    program.ring.set(Some(ring));
}

/// Calls `test` with a program and a CQ whose rings the program allocates.
fn with_program(test: impl Fn(&Arc<CompletionRing>, &Program)) {
    let program = Program::default();
    Pd::with_allocators(take, give, &program, |parent| {
        // SAFETY: the domain is a parent domain of this provider.
        let pd = unsafe { Pd::from_ibv(parent) };
        let domain = pd.domain(Threads::MANY, ffi::VIRTIO_RDMA_DV_RES_CQ);
        let layout = RingLayout::completions(SLOTS).unwrap();
        let map = PlannedRing::new(layout, domain.lender.as_ref()).unwrap();
        let ring = CompletionRing::new(map.in_memory().unwrap(), &domain).unwrap();
        program.ring.set(Some(ring.clone()));
        test(&ring, &program);
        program.left.set(0);
        program.ring.set(None);
    });
}

#[test]
fn a_poll_in_a_batch_does_the_work_that_it_finds_and_no_more() {
    with_program(|ring, program| {
        ring.lock().begin();
        resize(ring);
        program.left.set(100);
        // SAFETY: the lock was kept above.
        let mut polling = unsafe { ring.resume() };
        assert!(polling.advance().unwrap().is_none());
        assert_eq!(program.left.get(), 99, "the next call does the rest");
        assert!(polling.advance().unwrap().is_none());
        assert_eq!(program.left.get(), 98);
        program.left.set(0);
        polling.end();
        assert!(!ring.deferred.needs_attention());
    });
}
