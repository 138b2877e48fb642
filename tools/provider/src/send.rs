// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Posting to the send queue of a QP.
//!
//! A work request is posted in three steps: [reserve](Slots::reserve) a slot of the ring, store the
//! WQE there, and [publish](Posting::publish) the position after it. `ibv_post_send`
//! does this for a list of work requests ([`Qp::post_send`]); the `ibv_wr_*` functions do it call
//! by call ([`crate::builder`]).

use std::ptr;
use std::slice;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;

use libc::c_int;
use virtio_rdma_abi::ib::AccessFlags;
use virtio_rdma_abi::ib::SendFlags;
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::ring::slot_shift_for;
use virtio_rdma_abi::wqe::sq_wqe_size;
use virtio_rdma_abi::wqe::Atomic;
use virtio_rdma_abi::wqe::BindMw;
use virtio_rdma_abi::wqe::Datagram;
use virtio_rdma_abi::wqe::Rdma;
use virtio_rdma_abi::wqe::Sge;
use virtio_rdma_abi::wqe::SqHeader;
use virtio_rdma_abi::wqe::INLINE_OFFSET;

use crate::ah::Ah;
use crate::ffi;
use crate::memory::RingSlot;
use crate::opcodes::Opcodes;
use crate::opcodes::SendLimits;
use crate::qp::Qp;
use crate::work_ring::sges;
use crate::work_ring::write_sges;
use crate::work_ring::List;
use crate::work_ring::Posting;
use crate::work_ring::Slots;
use crate::work_ring::WorkRequest;

/// The send queue of a QP, without its ring.
#[derive(Debug)]
pub struct SendQueue {
    pub limits: SendLimits,
    /// Value of the doorbell.
    pub doorbell: u32,
    /// The [simple](SendLimits::simple_opcodes) opcodes that `ibv_post_send` accepts in the QP's
    /// state.
    simple: AtomicU32,
}

impl SendQueue {
    /// The send queue of a QP that can't send yet.
    pub fn new(limits: SendLimits) -> Self {
        Self {
            limits,
            doorbell: 0,
            simple: AtomicU32::new(0),
        }
    }

    /// Notes whether the QP's state allows send work requests.
    pub fn allow(&self, can_send: bool) {
        let simple = match can_send {
            true => self.limits.simple_opcodes(),
            false => Opcodes::NONE,
        };
        self.simple.store(simple.bits(), Ordering::Relaxed);
    }
}

impl Qp {
    /// Posts the work requests of `list`, up to the first invalid one, and rings the doorbell if
    /// the device has requested it. Returns 0 or the error number: `EINVAL` for a work request that
    /// is invalid or not allowed in the QP's state, `ENOMEM` when the queue is full. On an error,
    /// `refuse` is called with the rest of the list, from the refused work request on.
    #[inline]
    fn post_send(
        &self,
        list: &mut List<'_, ffi::ibv_send_wr>,
        refuse: impl Fn(*mut ffi::ibv_send_wr),
    ) -> c_int {
        let Some(ring) = &self.rings().send else {
            refuse(list.first());
            return libc::ENOMEM;
        };
        let mut posting = ring.lock();
        let mut status = 0;
        while let Some(wr) = list.front() {
            let simple = Opcodes::from_bits(self.send().simple.load(Ordering::Relaxed));
            let posted = match simple.has(wr.opcode()) {
                true => post_simple(posting.slots(), wr),
                false => None,
            };
            let posted = posted.unwrap_or_else(|| self.post_other(posting.slots(), wr));
            if let Err(error) = posted {
                refuse(list.first());
                status = error;
                break;
            }
            list.pop();
        }
        self.publish_send(posting);
        status
    }

    /// Posts a work request that is not simple, or not valid.
    // Not inlined and with few arguments, so that simple work requests save no registers for this
    // call.
    #[inline(never)]
    fn post_other(&self, slots: Slots<'_>, wr: Send<'_>) -> Result<(), c_int> {
        let limits = &self.send().limits;
        if !self.can_send() || !limits.opcodes.posted().has(wr.opcode()) {
            return Err(libc::EINVAL);
        }
        match wr.is_inline() {
            true => post_inline(slots, wr, limits),
            false => post_sges(slots, wr, limits),
        }
    }

    /// Hands the WQEs of `posting` to the device.
    #[inline]
    pub fn publish_send(&self, posting: Posting<'_>) {
        if posting.publish() {
            self.doorbells().ring(self.send().doorbell);
        }
    }
}

/// # Safety
///
/// `qp` is a QP of this provider, `wr` a list of valid work requests, and `bad_wr` can be written.
pub unsafe extern "C" fn post_send(
    qp: *mut ffi::ibv_qp,
    wr: *mut ffi::ibv_send_wr,
    bad_wr: *mut *mut ffi::ibv_send_wr,
) -> c_int {
    // SAFETY: the caller passes a QP of this provider and a list of valid work requests.
    let (qp, mut list) = unsafe { (Qp::from_ibv(qp), List::new(wr)) };
    // SAFETY: the caller passes a writable `bad_wr`.
    qp.post_send(&mut list, |refused| unsafe { bad_wr.write(refused) })
}

/// Takes a slot for a send WQE. The QP supports the WQE's opcode.
///
/// # Errors
///
/// `ENOMEM` when the queue is full.
#[inline]
pub fn start_send(
    slots: Slots<'_>,
    wr_id: u64,
    opcode: ffi::ibv_wr_opcode,
    flags: u32,
) -> Result<(SendWqe, RingSlot<'_>), c_int> {
    let (position, slot) = slots.reserve(wr_id).ok_or(libc::ENOMEM)?;
    Ok((SendWqe::new(position, opcode, flags), slot))
}

/// Posts one send work request with a [simple](SendLimits::simple_opcodes) opcode, if it has at
/// most one SGE and no inline payload. Else returns `None`.
///
/// # Errors
///
/// `ENOMEM` when the queue is full.
#[inline(always)]
fn post_simple(slots: Slots<'_>, wr: Send<'_>) -> Option<Result<(), c_int>> {
    if wr.is_inline() {
        return None;
    }
    let (opcode, sges) = (wr.opcode(), wr.sges(1)?);
    let (mut wqe, slot) = match start_send(slots, wr.wr_id(), opcode, wr.flags()) {
        Ok(start) => start,
        Err(error) => return Some(Err(error)),
    };
    set_immediate_or_rkey(&mut wqe, wr);
    // SAFETY: every slot of a send queue has room for an SGE.
    unsafe { wqe.encode_sges(slot, sges) };
    wqe.finish(slot);
    if Opcodes::RDMA.has(opcode) {
        encode_segment(slot, wr.rdma().to_bytes());
    }
    Some(Ok(()))
}

/// Posts one send work request within `limits`. The QP supports its opcode.
///
/// # Errors
///
/// `EINVAL` if it is invalid, `ENOMEM` when the queue is full.
#[inline]
fn post_sges(slots: Slots<'_>, wr: Send<'_>, limits: &SendLimits) -> Result<(), c_int> {
    let opcode = wr.opcode();
    let sges = wr.sges(limits.max_sge).ok_or(libc::EINVAL)?;
    let (mut wqe, slot) = start_send(slots, wr.wr_id(), opcode, wr.flags())?;
    set_immediate_or_rkey(&mut wqe, wr);
    // SAFETY: `wr.sges` returned at most `max_sge` SGEs.
    unsafe { wqe.encode_sges(slot, sges) };
    wqe.finish(slot);
    encode_operation(slot, wr, limits);
    Ok(())
}

/// Posts one send work request like [`post_sges`], and copies its payload into the WQE.
#[inline]
fn post_inline(slots: Slots<'_>, wr: Send<'_>, limits: &SendLimits) -> Result<(), c_int> {
    let sges = wr.sges(limits.max_sge).ok_or(libc::EINVAL)?;
    let pieces = sges.map(|sge| piece(sge.addr as *const u8, sge.length as usize));
    let length = limits.inline_length(wr.opcode(), pieces.clone())?;
    let (mut wqe, slot) = start_send(slots, wr.wr_id(), wr.opcode(), wr.flags())?;
    set_immediate_or_rkey(&mut wqe, wr);
    encode_operation(slot, wr, limits);
    // SAFETY: an inline work request of a list refers to valid memory, whose length was checked.
    unsafe { wqe.encode_inline(slot, length, pieces) };
    wqe.finish(slot);
    Ok(())
}

/// Encodes the segment that the opcode and the QP's type require.
#[inline(always)]
fn encode_operation(slot: RingSlot<'_>, wr: Send<'_>, limits: &SendLimits) {
    let opcode = wr.opcode();
    if Opcodes::RDMA.has(opcode) {
        encode_segment(slot, wr.rdma().to_bytes());
    } else if Opcodes::ATOMIC.has(opcode) {
        encode_segment(slot, wr.atomic().to_bytes());
    } else if Opcodes::BIND.has(opcode) {
        encode_segment(slot, wr.bind_mw().to_bytes());
    } else if limits.datagrams {
        encode_segment(slot, wr.datagram().to_bytes());
    }
}

// A slot without SGEs has the same size as a slot with one SGE.
const _: () = assert!(matches!(
    (slot_shift_for(sq_wqe_size(0)), slot_shift_for(sq_wqe_size(1))),
    (Some(without), Some(with)) if without == with
));

/// Sets immediate data or the key to invalidate.
#[inline(always)]
fn set_immediate_or_rkey(wqe: &mut SendWqe, wr: Send<'_>) {
    if Opcodes::INVALIDATE.has(wr.opcode()) {
        wqe.invalidate(wr.invalidate_rkey());
    } else {
        wqe.immediate(wr.imm_data());
    }
}

/// Flags of the application that are passed to the device. The inline flag is not among them: a WQE
/// has that flag if its payload is inline.
const SEND_FLAGS: u32 = SendFlags::FENCE.0 | SendFlags::SIGNALED.0 | SendFlags::SOLICITED.0;

/// A piece of inline payload in the memory of the process.
pub type Piece = *const [u8];

/// `length` bytes at `addr`.
#[inline]
pub fn piece(addr: *const u8, length: usize) -> Piece {
    ptr::slice_from_raw_parts(addr, length)
}

/// A send WQE whose slot is reserved. The payload and the [segment](encode_segment) of the header
/// are written to the slot immediately, the other fields by [`finish`](Self::finish).
///
/// The slots of a send queue have room for a header and as many SGEs or bytes of inline payload as
/// the QP was created for.
#[derive(Clone, Copy, Debug)]
pub struct SendWqe {
    /// Position of the slot in the queue.
    position: u32,
    opcode: ffi::ibv_wr_opcode,
    flags: u32,
    num_sge: u32,
    ex: [u8; 4],
    /// Whether the destination of the datagram is still missing.
    lacks_address: bool,
}

impl SendWqe {
    /// A WQE without payload in the slot at `position`.
    #[inline]
    pub fn new(position: u32, opcode: ffi::ibv_wr_opcode, flags: u32) -> Self {
        Self {
            position,
            opcode,
            flags: flags & SEND_FLAGS,
            num_sge: 0,
            ex: [0; 4],
            lacks_address: false,
        }
    }

    /// Requires a [destination](Self::address).
    #[inline]
    pub fn require_address(&mut self) {
        self.lacks_address = true;
    }

    /// Whether the destination is missing. The slot then still has the destination of an earlier
    /// WQE.
    #[inline]
    pub fn lacks_address(&self) -> bool {
        self.lacks_address
    }

    /// Sets the destination of a datagram.
    #[inline]
    pub fn address(&mut self, slot: RingSlot<'_>, datagram: Datagram) {
        self.lacks_address = false;
        encode_segment(slot, datagram.to_bytes());
    }

    /// Position of the slot in the queue.
    #[inline]
    pub fn position(&self) -> u32 {
        self.position
    }

    /// Opcode, `enum ibv_wr_opcode`.
    #[inline]
    pub fn opcode(&self) -> ffi::ibv_wr_opcode {
        self.opcode
    }

    /// Sets immediate data in network byte order.
    #[inline]
    pub fn immediate(&mut self, imm_data: u32) {
        self.ex = imm_data.to_ne_bytes();
    }

    /// Sets the key to invalidate.
    #[inline]
    pub fn invalidate(&mut self, key: u32) {
        self.ex = key.to_le_bytes();
    }

    /// Makes `sges` the payload.
    ///
    /// # Safety
    ///
    /// `sges` has at most the number of SGEs for which the QP was created.
    #[inline]
    pub unsafe fn encode_sges<'a>(
        &mut self,
        slot: RingSlot<'_>,
        sges: impl ExactSizeIterator<Item = &'a ffi::ibv_sge>,
    ) {
        self.num_sge = sges.len() as u32;
        // SAFETY: the slot has room for the SGEs, of which there are at most as many as the QP was
        // created for.
        unsafe { write_sges(slot, SqHeader::SIZE, sges) };
    }

    /// Copies `pieces` into the WQE as its payload.
    ///
    /// # Safety
    ///
    /// Each piece is valid memory or empty. Together they have `length` bytes, at most the inline
    /// payload for which the QP was created.
    #[inline]
    pub unsafe fn encode_inline(
        &mut self,
        slot: RingSlot<'_>,
        length: u32,
        pieces: impl Iterator<Item = Piece>,
    ) {
        self.num_sge = 1;
        self.flags |= SendFlags::INLINE.0;
        let whole = Sge {
            length,
            ..Sge::default()
        };
        // SAFETY: the slot has room for an SGE, which inline payload follows.
        unsafe { slot.write(SqHeader::SIZE, &whole.to_bytes()) };
        let mut offset = INLINE_OFFSET;
        for piece in pieces.filter(|piece| !piece.is_empty()) {
            // SAFETY: the piece is not empty, so the caller's memory is valid.
            let bytes = unsafe { slice::from_raw_parts(piece.cast::<u8>(), piece.len()) };
            // SAFETY: the slot has room for the pieces, which have at most the QP's inline payload
            // together.
            unsafe { slot.write(offset, bytes) };
            offset += bytes.len();
        }
    }

    /// Completes the WQE: writes its header.
    #[inline]
    pub fn finish(&self, slot: RingSlot<'_>) {
        let header = SqHeader {
            num_sge: self.num_sge,
            send_flags: SendFlags(self.flags),
            opcode: self.opcode,
            wr_id: u64::from(self.position),
            ex: self.ex,
            ..SqHeader::default()
        };
        // SAFETY: these bytes are a part of the header.
        unsafe { slot.write(0, &header.to_bytes()[..SqHeader::UNION]) };
    }
}

/// Encodes the segment of the header that the opcode or the QP's type requires, for example the
/// remote address or the destination of a datagram.
#[inline]
pub fn encode_segment<const N: usize>(slot: RingSlot<'_>, segment: [u8; N]) {
    const { assert!(SqHeader::UNION + N <= SqHeader::SIZE) };
    // SAFETY: the segment lies in the header.
    unsafe { slot.write(SqHeader::UNION, &segment) };
}

/// A send work request of C.
#[derive(Clone, Copy)]
pub struct Send<'a>(&'a ffi::ibv_send_wr);

impl WorkRequest for ffi::ibv_send_wr {
    type View<'a> = Send<'a>;
    #[inline]
    fn view(&self) -> Send<'_> {
        Send(self)
    }
    #[inline]
    fn next(&self) -> *mut Self {
        self.next
    }
}

/// The binding of `mw` under `rkey` that `info` describes. Without an MR, the L_Key is 0.
///
/// # Safety
///
/// `mw` is a valid window, and the MR of `info` is valid or null.
#[inline]
pub unsafe fn binding(mw: *const ffi::ibv_mw, rkey: u32, info: &ffi::ibv_mw_bind_info) -> BindMw {
    // SAFETY: the caller passes a valid window, and an MR that is valid or null.
    let (mw_rkey, lkey) = unsafe { ((*mw).rkey, info.mr.as_ref().map_or(0, |mr| mr.lkey)) };
    BindMw {
        addr: info.addr,
        length: info.length,
        mw_rkey,
        rkey,
        lkey,
        access: AccessFlags(info.mw_access_flags),
        reserved: [0; 4],
    }
}

impl<'a> Send<'a> {
    /// The application's id.
    #[inline]
    pub fn wr_id(self) -> u64 {
        self.0.wr_id
    }

    /// Opcode, `enum ibv_wr_opcode`.
    #[inline]
    pub fn opcode(self) -> u32 {
        self.0.opcode
    }

    /// Flags, `enum ibv_send_flags`.
    #[inline]
    pub fn flags(self) -> u32 {
        self.0.send_flags
    }

    /// Whether the payload is inline.
    #[inline]
    pub fn is_inline(self) -> bool {
        self.flags() & SendFlags::INLINE.0 != 0
    }

    /// The SGEs; `None` if they are more than `max`, or their number is negative.
    #[inline]
    pub fn sges(self, max: u32) -> Option<impl ExactSizeIterator<Item = &'a ffi::ibv_sge> + Clone> {
        // SAFETY: by the contract of `List::new`, the SGEs of a work request are valid.
        unsafe { sges(self.0.sg_list, self.0.num_sge, max) }
    }

    /// Immediate data in network byte order, for opcodes with immediate data.
    #[inline]
    pub fn imm_data(self) -> u32 {
        // SAFETY: both members of the union are 32-bit integers.
        unsafe { self.0.__bindgen_anon_1.imm_data }
    }

    /// The key to invalidate, for opcodes that invalidate a key.
    #[inline]
    pub fn invalidate_rkey(self) -> u32 {
        // SAFETY: both members of the union are 32-bit integers.
        unsafe { self.0.__bindgen_anon_1.invalidate_rkey }
    }

    /// The remote address and R_Key, for RDMA opcodes.
    #[inline]
    pub fn rdma(self) -> Rdma {
        // SAFETY: every member of the union starts with a 64-bit integer or is one; RDMA work
        // requests have this member.
        let rdma = unsafe { self.0.wr.rdma };
        Rdma {
            remote_addr: rdma.remote_addr,
            rkey: rdma.rkey,
        }
    }

    /// The remote word and the operands, for atomic opcodes.
    #[inline]
    pub fn atomic(self) -> Atomic {
        // SAFETY: every member of the union consists of integers, or of a pointer and integers;
        // atomic work requests have this member.
        let atomic = unsafe { self.0.wr.atomic };
        Atomic {
            remote_addr: atomic.remote_addr,
            compare_add: atomic.compare_add,
            swap: atomic.swap,
            rkey: atomic.rkey,
        }
    }

    /// The binding of a memory window.
    #[inline]
    pub fn bind_mw(self) -> BindMw {
        // SAFETY: work requests that bind a window have this member of the union.
        let bind = unsafe { self.0.__bindgen_anon_2.bind_mw };
        // SAFETY: the window and the MR of a posted work request are valid.
        unsafe { binding(bind.mw, bind.rkey, &bind.bind_info) }
    }

    /// The destination of a datagram. Without an address handle, the address vector is all zeroes:
    /// an address to which nothing can be sent.
    #[inline]
    pub fn datagram(self) -> Datagram {
        // SAFETY: work requests of a UD QP have this member.
        let ud = unsafe { self.0.wr.ud };
        // SAFETY: by the contract of `List::new`, the address handle is this provider's.
        let av = unsafe { Ah::from_ibv(ud.ah) }.map_or_else(Default::default, Ah::av);
        Datagram {
            remote_qpn: Qpn::new(ud.remote_qpn),
            remote_qkey: ud.remote_qkey,
            av,
        }
    }
}
