// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The `ibv_wr_*` functions: send work requests that are built call by call.
//!
//! `ibv_wr_start` locks the send queue and `ibv_wr_complete` or `ibv_wr_abort` unlocks it. The
//! calls in between run under that lock. A batch with an error posts nothing and reports its first
//! error.

use std::iter;
use std::mem::ManuallyDrop;
use std::slice;

use libc::c_int;
use libc::c_void;
use virtio_rdma_abi::ib::FlushTypes;
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::wqe::Atomic;
use virtio_rdma_abi::wqe::AtomicWrite;
use virtio_rdma_abi::wqe::Datagram;
use virtio_rdma_abi::wqe::Flush;
use virtio_rdma_abi::wqe::Rdma;

use crate::ah::Ah;
use crate::ffi;
use crate::memory::RingSlot;
use crate::qp::Qp;
use crate::send::binding;
use crate::send::encode_segment;
use crate::send::piece;
use crate::send::start_send;
use crate::send::Piece;
use crate::send::SendWqe;
use crate::work_ring::Batch;
use crate::work_ring::Posting;

/// Fills in the functions of `qp`.
pub fn install(qp: &mut ffi::ibv_qp_ex) {
    qp.wr_atomic_cmp_swp = Some(atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(atomic_fetch_add);
    qp.wr_bind_mw = Some(bind_mw);
    qp.wr_local_inv = Some(local_inv);
    qp.wr_rdma_read = Some(rdma_read);
    qp.wr_rdma_write = Some(rdma_write);
    qp.wr_rdma_write_imm = Some(rdma_write_imm);
    qp.wr_send = Some(send);
    qp.wr_send_imm = Some(send_imm);
    qp.wr_send_inv = Some(send_inv);
    qp.wr_set_ud_addr = Some(set_ud_addr);
    qp.wr_set_inline_data = Some(set_inline_data);
    qp.wr_set_inline_data_list = Some(set_inline_data_list);
    qp.wr_set_sge = Some(set_sge);
    qp.wr_set_sge_list = Some(set_sge_list);
    qp.wr_start = Some(start);
    qp.wr_complete = Some(complete);
    qp.wr_abort = Some(abort);
}

/// The send queue of a QP between start and end of a batch. The drop leaves it locked.
struct Building<'a> {
    qp: &'a Qp,
    posting: ManuallyDrop<Posting<'a>>,
}

impl Building<'_> {
    /// The batch of `qp`, or `None` if the QP has no send queue.
    ///
    /// # Safety
    ///
    /// `qp` is a QP of this provider, and this thread has started a batch on it.
    #[inline]
    unsafe fn of(qp: *mut ffi::ibv_qp_ex) -> Option<Self> {
        // SAFETY: the caller passes a QP of this provider.
        let qp: &Qp = unsafe { Qp::from_ibv(qp.cast()) };
        let ring = qp.rings().send.as_ref()?;
        // SAFETY: this thread has started a batch, and its earlier results of batch() are gone,
        // since each call of the application drops its own.
        let posting = unsafe { ring.batch() };
        Some(Self { qp, posting })
    }

    /// Completes the WQE in progress, if there is one.
    #[inline]
    fn finish(&mut self) {
        if let Some(wqe) = self.posting.batch().wqe.take() {
            if wqe.lacks_address() {
                return self.fail(libc::EINVAL);
            }
            wqe.finish(self.posting.slot(wqe.position()));
        }
    }

    /// Records the first error of the batch.
    #[cold]
    fn fail(&mut self, error: c_int) {
        let batch = self.posting.batch();
        batch.wqe = None;
        if batch.error == 0 {
            batch.error = error;
        }
    }
}

/// Starts the next WQE of a batch; `encode` fills in the fields of its opcode.
///
/// # Safety
///
/// The same as for [`Building::of`].
#[inline(always)]
unsafe fn operation(
    qp: *mut ffi::ibv_qp_ex,
    opcode: ffi::ibv_wr_opcode,
    encode: impl FnOnce(&mut SendWqe, RingSlot<'_>),
) {
    // SAFETY: the caller passes a QP; the application sets these fields before each call.
    let (wr_id, flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
    // SAFETY: `qp` is a QP of this provider, and this thread has started a batch on it.
    let Some(mut building) = (unsafe { Building::of(qp) }) else {
        return;
    };
    building.finish();
    if building.posting.batch().error == 0 {
        let limits = &building.qp.send().limits;
        let start = match limits.opcodes.has(opcode) {
            true => start_send(building.posting.slots(), wr_id, opcode, flags),
            false => Err(libc::EINVAL),
        };
        match start {
            Ok((mut wqe, slot)) => {
                if limits.datagrams {
                    wqe.require_address();
                }
                encode(&mut wqe, slot);
                building.posting.batch().wqe = Some(wqe);
            }
            Err(error) => building.fail(error),
        }
    }
}

/// Changes the WQE in progress. Without a WQE in progress, the batch fails.
///
/// # Safety
///
/// The same as for [`Building::of`].
#[inline(always)]
unsafe fn setting(
    qp: *mut ffi::ibv_qp_ex,
    set: impl FnOnce(&Qp, RingSlot<'_>, &mut SendWqe) -> Result<(), c_int>,
) {
    // SAFETY: `qp` is a QP of this provider, and this thread has started a batch on it.
    let Some(mut building) = (unsafe { Building::of(qp) }) else {
        return;
    };
    let Some((wqe, slot)) = building.posting.wqe() else {
        return building.fail(libc::EINVAL);
    };
    if let Err(error) = set(building.qp, slot, wqe) {
        building.fail(error);
    }
}

unsafe extern "C" fn start(qp: *mut ffi::ibv_qp_ex) {
    // SAFETY: libibverbs passes a QP of this provider.
    let qp: &Qp = unsafe { Qp::from_ibv(qp.cast()) };
    let Some(ring) = &qp.rings().send else {
        return;
    };
    ring.begin_batch(Batch {
        wqe: None,
        error: if qp.can_send() { 0 } else { libc::EINVAL },
    });
}

unsafe extern "C" fn complete(qp: *mut ffi::ibv_qp_ex) -> c_int {
    // SAFETY: the application ends the batch that it has started.
    let Some(mut building) = (unsafe { Building::of(qp) }) else {
        return libc::ENOMEM;
    };
    building.finish();
    let error = building.posting.batch().error;
    let posting = ManuallyDrop::into_inner(building.posting);
    match error {
        0 => building.qp.publish_send(posting),
        _ => posting.withdraw(),
    }
    error
}

unsafe extern "C" fn abort(qp: *mut ffi::ibv_qp_ex) {
    // SAFETY: the application ends the batch that it has started.
    if let Some(building) = unsafe { Building::of(qp) } {
        ManuallyDrop::into_inner(building.posting).withdraw();
    }
}

unsafe extern "C" fn send(qp: *mut ffi::ibv_qp_ex) {
    // SAFETY: the application has started a batch of this QP.
    unsafe { operation(qp, ffi::IBV_WR_SEND, |_, _| ()) };
}

unsafe extern "C" fn send_imm(qp: *mut ffi::ibv_qp_ex, imm_data: ffi::__be32) {
    // SAFETY: the application has started a batch of this QP.
    unsafe {
        operation(qp, ffi::IBV_WR_SEND_WITH_IMM, |wqe, _| {
            wqe.immediate(imm_data)
        })
    };
}

unsafe extern "C" fn send_inv(qp: *mut ffi::ibv_qp_ex, invalidate_rkey: u32) {
    let encode = |wqe: &mut SendWqe, _: RingSlot<'_>| wqe.invalidate(invalidate_rkey);
    // SAFETY: the application has started a batch of this QP.
    unsafe { operation(qp, ffi::IBV_WR_SEND_WITH_INV, encode) };
}

unsafe extern "C" fn local_inv(qp: *mut ffi::ibv_qp_ex, invalidate_rkey: u32) {
    let encode = |wqe: &mut SendWqe, _: RingSlot<'_>| wqe.invalidate(invalidate_rkey);
    // SAFETY: the application has started a batch of this QP.
    unsafe { operation(qp, ffi::IBV_WR_LOCAL_INV, encode) };
}

unsafe extern "C" fn bind_mw(
    qp: *mut ffi::ibv_qp_ex,
    mw: *mut ffi::ibv_mw,
    rkey: u32,
    bind_info: *const ffi::ibv_mw_bind_info,
) {
    // SAFETY: the application passes a valid window and valid bind information.
    let bind = unsafe { binding(mw, rkey, &*bind_info) }.to_bytes();
    let encode = |_: &mut SendWqe, slot: RingSlot<'_>| encode_segment(slot, bind);
    // SAFETY: the application has started a batch of this QP.
    unsafe { operation(qp, ffi::IBV_WR_BIND_MW, encode) };
}

unsafe extern "C" fn rdma_read(qp: *mut ffi::ibv_qp_ex, rkey: u32, remote_addr: u64) {
    let rdma = Rdma { remote_addr, rkey }.to_bytes();
    let encode = |_: &mut SendWqe, slot: RingSlot<'_>| encode_segment(slot, rdma);
    // SAFETY: the application has started a batch of this QP.
    unsafe { operation(qp, ffi::IBV_WR_RDMA_READ, encode) };
}

unsafe extern "C" fn rdma_write(qp: *mut ffi::ibv_qp_ex, rkey: u32, remote_addr: u64) {
    let rdma = Rdma { remote_addr, rkey }.to_bytes();
    let encode = |_: &mut SendWqe, slot: RingSlot<'_>| encode_segment(slot, rdma);
    // SAFETY: the application has started a batch of this QP.
    unsafe { operation(qp, ffi::IBV_WR_RDMA_WRITE, encode) };
}

unsafe extern "C" fn rdma_write_imm(
    qp: *mut ffi::ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    imm_data: ffi::__be32,
) {
    let rdma = Rdma { remote_addr, rkey }.to_bytes();
    let encode = |wqe: &mut SendWqe, slot: RingSlot<'_>| {
        encode_segment(slot, rdma);
        wqe.immediate(imm_data);
    };
    // SAFETY: the application has started a batch of this QP.
    unsafe { operation(qp, ffi::IBV_WR_RDMA_WRITE_WITH_IMM, encode) };
}

unsafe extern "C" fn atomic_cmp_swp(
    qp: *mut ffi::ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    compare: u64,
    swap: u64,
) {
    let atomic = Atomic {
        remote_addr,
        compare_add: compare,
        swap,
        rkey,
    }
    .to_bytes();
    let encode = |_: &mut SendWqe, slot: RingSlot<'_>| encode_segment(slot, atomic);
    // SAFETY: the application has started a batch of this QP.
    unsafe { operation(qp, ffi::IBV_WR_ATOMIC_CMP_AND_SWP, encode) };
}

unsafe extern "C" fn atomic_fetch_add(
    qp: *mut ffi::ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    add: u64,
) {
    let atomic = Atomic {
        remote_addr,
        compare_add: add,
        swap: 0,
        rkey,
    }
    .to_bytes();
    let encode = |_: &mut SendWqe, slot: RingSlot<'_>| encode_segment(slot, atomic);
    // SAFETY: the application has started a batch of this QP.
    unsafe { operation(qp, ffi::IBV_WR_ATOMIC_FETCH_AND_ADD, encode) };
}

/// # Safety
///
/// `qp` is an extended QP of this provider, on which this thread has started a batch. `atomic_wr`
/// points to 8 readable bytes.
pub unsafe extern "C" fn atomic_write(
    qp: *mut ffi::ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    atomic_wr: *const c_void,
) {
    let write = AtomicWrite {
        remote_addr,
        // SAFETY: the application passes 8 bytes, aligned or not.
        data: unsafe { atomic_wr.cast::<[u8; 8]>().read() },
        rkey,
    }
    .to_bytes();
    let encode = |_: &mut SendWqe, slot: RingSlot<'_>| encode_segment(slot, write);
    // SAFETY: the application has started a batch of this QP.
    unsafe { operation(qp, ffi::IBV_WR_ATOMIC_WRITE, encode) };
}

/// # Safety
///
/// `qp` is an extended QP of this provider, on which this thread has started a batch.
pub unsafe extern "C" fn flush(
    qp: *mut ffi::ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    len: usize,
    types: u8,
    level: u8,
) {
    let flush = Flush {
        remote_addr,
        // A length that does not fit the WQE's 32 bits is longer than any MR.
        length: u32::try_from(len).unwrap_or(u32::MAX),
        rkey,
        types: FlushTypes(types),
        level,
        reserved: [0; 6],
    }
    .to_bytes();
    let encode = |_: &mut SendWqe, slot: RingSlot<'_>| encode_segment(slot, flush);
    // SAFETY: the application has started a batch of this QP.
    unsafe { operation(qp, ffi::IBV_WR_FLUSH, encode) };
}

unsafe extern "C" fn set_ud_addr(
    qp: *mut ffi::ibv_qp_ex,
    ah: *mut ffi::ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    // SAFETY: the application passes an address handle of this provider.
    let ah = unsafe { Ah::from_ibv(ah) };
    let set = |qp: &Qp, slot: RingSlot<'_>, wqe: &mut SendWqe| {
        let ah = ah.filter(|_| qp.send().limits.datagrams);
        let av = ah.ok_or(libc::EINVAL)?.av();
        let datagram = Datagram {
            remote_qpn: Qpn::new(remote_qpn),
            remote_qkey,
            av,
        };
        wqe.address(slot, datagram);
        Ok(())
    };
    // SAFETY: the application has started a batch of this QP.
    unsafe { setting(qp, set) };
}

/// Makes `sges` the payload of the WQE in progress.
///
/// # Safety
///
/// The same as for [`Building::of`].
#[inline(always)]
unsafe fn set_sges(qp: *mut ffi::ibv_qp_ex, sges: &[ffi::ibv_sge]) {
    let set = |qp: &Qp, slot: RingSlot<'_>, wqe: &mut SendWqe| {
        if sges.len() > qp.send().limits.max_sge as usize {
            return Err(libc::EINVAL);
        }
        // SAFETY: `sges` has at most the number of SGEs of the QP's WQEs.
        unsafe { wqe.encode_sges(slot, sges.iter()) };
        Ok(())
    };
    // SAFETY: `qp` is a QP of this provider, and this thread has started a batch on it.
    unsafe { setting(qp, set) };
}

unsafe extern "C" fn set_sge(qp: *mut ffi::ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: the application has started a batch of this QP.
    unsafe { set_sges(qp, &[ffi::ibv_sge { addr, length, lkey }]) };
}

unsafe extern "C" fn set_sge_list(
    qp: *mut ffi::ibv_qp_ex,
    num_sge: usize,
    sg_list: *const ffi::ibv_sge,
) {
    let sges = match num_sge {
        0 => &[],
        // SAFETY: the application passes that many SGEs.
        _ => unsafe { slice::from_raw_parts(sg_list, num_sge) },
    };
    // SAFETY: the application has started a batch of this QP.
    unsafe { set_sges(qp, sges) };
}

/// Copies `pieces` into the WQE in progress.
///
/// # Safety
///
/// The same as for [`Building::of`], and each piece is valid memory or empty.
#[inline(always)]
unsafe fn inline(qp: *mut ffi::ibv_qp_ex, pieces: impl Iterator<Item = Piece> + Clone) {
    let set = |qp: &Qp, slot: RingSlot<'_>, wqe: &mut SendWqe| {
        let limits = &qp.send().limits;
        let length = limits.inline_length(wqe.opcode(), pieces.clone())?;
        // SAFETY: the caller passes valid pieces, whose length was checked.
        unsafe { wqe.encode_inline(slot, length, pieces) };
        Ok(())
    };
    // SAFETY: `qp` is a QP of this provider, and this thread has started a batch on it.
    unsafe { setting(qp, set) };
}

unsafe extern "C" fn set_inline_data(qp: *mut ffi::ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: the application has started a batch of this QP and passes valid memory.
    unsafe { inline(qp, iter::once(piece(addr.cast(), length))) };
}

unsafe extern "C" fn set_inline_data_list(
    qp: *mut ffi::ibv_qp_ex,
    num_buf: usize,
    buf_list: *const ffi::ibv_data_buf,
) {
    let buffers = match num_buf {
        0 => &[],
        // SAFETY: the application passes that many buffers.
        _ => unsafe { slice::from_raw_parts(buf_list, num_buf) },
    };
    let pieces = buffers
        .iter()
        .map(|buffer| piece(buffer.addr.cast(), buffer.length));
    // SAFETY: the application has started a batch of this QP, and the buffers are valid memory.
    unsafe { inline(qp, pieces) };
}
