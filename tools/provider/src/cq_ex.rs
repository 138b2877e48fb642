// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Extended CQs: completions that are polled one by one and read field by field.
//!
//! `ibv_start_poll` locks the CQ when it finds a completion and `ibv_end_poll` unlocks it. Other
//! threads that poll wait meanwhile; control verbs do not wait, whichever thread calls them.

use libc::c_int;
use virtio_rdma_abi::cqe::Cqe;

use crate::completion;
use crate::completion_ring::Polling;
use crate::cq::Cq;
use crate::ffi;

/// Fills in the functions of `cq`.
pub fn install(cq: &mut ffi::ibv_cq_ex) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_byte_len = Some(read_byte_len);
    cq.read_imm_data = Some(read_imm_data);
    cq.read_qp_num = Some(read_qp_num);
    cq.read_src_qp = Some(read_src_qp);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_slid = Some(read_slid);
    cq.read_sl = Some(read_sl);
    cq.read_dlid_path_bits = Some(read_dlid_path_bits);
}

/// The CQ behind libibverbs' pointer.
///
/// # Safety
///
/// The same as for [`Cq::from_ibv`].
#[inline]
unsafe fn of<'a>(cq: *mut ffi::ibv_cq_ex) -> &'a Cq {
    // SAFETY: the caller passes a CQ of this provider.
    unsafe { Cq::from_ibv(cq.cast()) }
}

/// Advances to the next completion. Returns 0, `ENOENT` if there is none, or `EIO` where `poll_cq`
/// would return it.
///
/// # Safety
///
/// `cq` is a CQ of this provider, which `polling` polls.
#[inline]
unsafe fn advance(cq: *mut ffi::ibv_cq_ex, polling: &mut Polling<'_>) -> c_int {
    match polling.advance() {
        Ok(Some((status, wr_id))) => {
            // SAFETY: the caller passes a CQ of this provider, and this thread holds its lock.
            unsafe {
                (*cq).status = completion::status(status);
                (*cq).wr_id = wr_id;
            }
            0
        }
        Ok(None) => libc::ENOENT,
        Err(_) => libc::EIO,
    }
}

unsafe extern "C" fn start_poll(
    cq: *mut ffi::ibv_cq_ex,
    attr: *mut ffi::ibv_poll_cq_attr,
) -> c_int {
    // SAFETY: libibverbs passes attributes.
    if unsafe { (*attr).comp_mask } != 0 {
        return libc::EINVAL;
    }
    // SAFETY: libibverbs passes a CQ of this provider.
    let mut polling = unsafe { of(cq) }.ring().lock();
    // SAFETY: as above.
    let status = unsafe { advance(cq, &mut polling) };
    if status == 0 {
        polling.begin();
    } else {
        // Completions of destroyed QPs may have been skipped, so their slots are given back to the
        // device.
        polling.stop();
    }
    status
}

unsafe extern "C" fn next_poll(cq: *mut ffi::ibv_cq_ex) -> c_int {
    // SAFETY: the application has started to poll, so this thread holds the lock.
    let mut polling = unsafe { of(cq).ring().resume() };
    // SAFETY: libibverbs passes a CQ of this provider.
    let status = unsafe { advance(cq, &mut polling) };
    polling.keep();
    status
}

unsafe extern "C" fn end_poll(cq: *mut ffi::ibv_cq_ex) {
    // SAFETY: the application has started to poll, so this thread holds the lock.
    unsafe { of(cq).ring().resume() }.end();
}

/// The completion that was polled last.
///
/// # Safety
///
/// `cq` is a CQ of this provider that this thread has started to poll.
#[inline]
unsafe fn current(cq: *mut ffi::ibv_cq_ex) -> Cqe {
    // SAFETY: `cq` is a CQ of this provider that this thread has started to poll.
    let polling = unsafe { of(cq).ring().resume() };
    let cqe = polling.current();
    polling.keep();
    cqe
}

unsafe extern "C" fn read_opcode(cq: *mut ffi::ibv_cq_ex) -> ffi::ibv_wc_opcode {
    // SAFETY: the application reads a completion between start and end.
    completion::opcode(unsafe { current(cq) }.opcode)
}

unsafe extern "C" fn read_vendor_err(cq: *mut ffi::ibv_cq_ex) -> u32 {
    // SAFETY: the application reads a completion between start and end.
    unsafe { current(cq) }.vendor_err
}

unsafe extern "C" fn read_byte_len(cq: *mut ffi::ibv_cq_ex) -> u32 {
    // SAFETY: the application reads a completion between start and end.
    unsafe { current(cq) }.byte_len
}

/// Immediate data. libibverbs reads an invalidated key through the same function and treats it as
/// a number.
unsafe extern "C" fn read_imm_data(cq: *mut ffi::ibv_cq_ex) -> ffi::__be32 {
    // SAFETY: the application reads a completion between start and end.
    completion::immediate_or_rkey(&unsafe { current(cq) })
}

unsafe extern "C" fn read_qp_num(cq: *mut ffi::ibv_cq_ex) -> u32 {
    // SAFETY: the application reads a completion between start and end.
    unsafe { current(cq) }.qp_num.get()
}

unsafe extern "C" fn read_src_qp(cq: *mut ffi::ibv_cq_ex) -> u32 {
    // SAFETY: the application reads a completion between start and end.
    unsafe { current(cq) }.src_qp.get()
}

unsafe extern "C" fn read_wc_flags(cq: *mut ffi::ibv_cq_ex) -> u32 {
    // SAFETY: the application reads a completion between start and end.
    completion::flags(unsafe { current(cq) }.wc_flags)
}

unsafe extern "C" fn read_sl(cq: *mut ffi::ibv_cq_ex) -> u8 {
    // SAFETY: the application reads a completion between start and end.
    unsafe { current(cq) }.sl
}

/// RoCE has no local identifiers.
unsafe extern "C" fn read_slid(_cq: *mut ffi::ibv_cq_ex) -> u32 {
    0
}

/// RoCE has no local identifiers.
unsafe extern "C" fn read_dlid_path_bits(_cq: *mut ffi::ibv_cq_ex) -> u8 {
    0
}
