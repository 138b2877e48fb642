// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Posting receives to the receive queue of a QP, and their WQEs, which SRQs have too.

use libc::c_int;
use virtio_rdma_abi::wqe::RqHeader;

use crate::ffi;
use crate::memory::RingSlot;
use crate::qp::Qp;
use crate::work_ring::sges;
use crate::work_ring::write_sges;
use crate::work_ring::List;
use crate::work_ring::Slots;
use crate::work_ring::WorkRequest;

/// The receive queue of a QP, without its ring.
#[derive(Debug)]
pub struct RecvQueue {
    /// Maximum number of SGEs.
    pub max_sge: u32,
    /// Value of the doorbell.
    pub doorbell: u32,
}

impl Qp {
    /// Posts the work requests of `list`, up to the first invalid one, and rings the doorbell if
    /// the device has requested it. Returns 0 or the error number: `EINVAL` in RESET and for an
    /// invalid work request, `ENOMEM` when the queue is full.
    #[inline]
    fn post_recv(&self, list: &mut List<'_, ffi::ibv_recv_wr>) -> c_int {
        if self.is_reset() {
            return libc::EINVAL;
        }
        let Some(ring) = &self.rings().recv else {
            // With an SRQ, receives are posted to the SRQ.
            return match self.rings().shared {
                Some(_) => libc::EINVAL,
                None => libc::ENOMEM,
            };
        };
        let mut posting = ring.lock();
        let max_sge = self.recv().max_sge;
        let status = list.try_each(|wr| post_one(posting.slots(), wr, max_sge));
        if posting.publish() {
            self.doorbells().ring(self.recv().doorbell);
        }
        status
    }
}

/// # Safety
///
/// `qp` is a QP of this provider, `wr` a list of valid work requests, and `bad_wr` can be written.
pub unsafe extern "C" fn post_recv(
    qp: *mut ffi::ibv_qp,
    wr: *mut ffi::ibv_recv_wr,
    bad_wr: *mut *mut ffi::ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller passes a QP of this provider and a list of valid work requests.
    let (qp, mut list) = unsafe { (Qp::from_ibv(qp), List::new(wr)) };
    let status = qp.post_recv(&mut list);
    if status != 0 {
        // SAFETY: the caller passes a writable `bad_wr`.
        unsafe { bad_wr.write(list.first()) };
    }
    status
}

/// Posts one work request of at most `max_sge` SGEs.
#[inline]
fn post_one(slots: Slots<'_>, wr: Recv<'_>, max_sge: u32) -> Result<(), c_int> {
    let sges = wr.sges(max_sge).ok_or(libc::EINVAL)?;
    let (position, slot) = slots.reserve(wr.wr_id()).ok_or(libc::ENOMEM)?;
    // SAFETY: `sges` has at most the number of SGEs of the queue's WQEs.
    unsafe { write_receive(slot, position, sges) };
    Ok(())
}

/// Writes the WQE of the receive `id` to `slot`.
///
/// # Safety
///
/// `sges` has at most the number of SGEs for which the queue was created.
#[inline]
pub unsafe fn write_receive<'a>(
    slot: RingSlot<'_>,
    id: u32,
    sges: impl ExactSizeIterator<Item = &'a ffi::ibv_sge>,
) {
    let header = RqHeader {
        num_sge: sges.len() as u32,
        wr_id: u64::from(id),
    };
    // SAFETY: the slots of a receive queue have room for a header and the caller's SGEs.
    unsafe {
        slot.write(0, &header.to_bytes());
        write_sges(slot, RqHeader::SIZE, sges);
    }
}

/// A receive work request.
#[derive(Clone, Copy)]
pub struct Recv<'a>(&'a ffi::ibv_recv_wr);

impl WorkRequest for ffi::ibv_recv_wr {
    type View<'a> = Recv<'a>;
    #[inline]
    fn view(&self) -> Recv<'_> {
        Recv(self)
    }
    #[inline]
    fn next(&self) -> *mut Self {
        self.next
    }
}

impl<'a> Recv<'a> {
    /// The application's id.
    #[inline]
    pub fn wr_id(self) -> u64 {
        self.0.wr_id
    }

    /// The SGEs; `None` if they are more than `max`, or their number is negative.
    #[inline]
    pub fn sges(self, max: u32) -> Option<impl ExactSizeIterator<Item = &'a ffi::ibv_sge> + Clone> {
        // SAFETY: by the contract of `List::new`, the SGEs of a work request are valid.
        unsafe { sges(self.0.sg_list, self.0.num_sge, max) }
    }
}
