// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Work requests: fetching WQEs from rings, and validation.

mod send;

use budget::{ChargedList, ChargedQueue, Exhausted, MemoryBudget};
use roce::work::{RecvWr, WcFault, WcReason};
use virtio_rdma_abi::qp::QpCap;
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::{rq_wqe_size, sq_wqe_size, RqHeader, Sge, INLINE_OFFSET};
use virtio_rdma_ring::RingError;

use crate::memory::{QueueView, WorkConsumer};
use crate::turn::done;

pub(crate) use send::fetch_again;
pub(crate) use send::{
    completion_opcode, fetch_send, malformed, max_message, Data, Fetched, PostedSend, SendRules,
};

/// Length in bytes of the longest send WQE for these capabilities. There is always room for one
/// SGE, since the length of inline data is read from the first SGE even if the QP does not permit
/// inline data.
pub(crate) fn max_sq_wqe(cap: &QpCap) -> usize {
    sq_wqe_size(cap.max_send_sge as usize).max(INLINE_OFFSET + cap.max_inline_data as usize)
}

/// Length in bytes of the longest receive WQE for these capabilities.
pub(crate) fn max_rq_wqe(cap: &QpCap) -> usize {
    rq_wqe_size(cap.max_recv_sge as usize)
}

/// Private copies of the WQEs that are being executed, so the driver can't change them.
#[derive(Debug)]
pub(crate) struct Snapshots {
    bytes: ChargedList<u8>,
    stride: usize,
    /// Indices of free snapshots. The index that was given back last is reused first.
    free: ChargedQueue<u16>,
    /// Index of the snapshot of a strongly ordered WQE, which must complete before another WQE is
    /// fetched.
    strongly_ordered: Option<u16>,
}

impl Snapshots {
    /// Room for one WQE of `stride` bytes.
    pub(crate) fn one(budget: &MemoryBudget, stride: usize) -> Result<Self, Exhausted> {
        let mut one = Self {
            bytes: ChargedList::filled(budget, stride, 0)?,
            stride,
            free: ChargedQueue::new(budget, 1)?,
            strongly_ordered: None,
        };
        one.clear();
        Ok(one)
    }

    /// Makes room for `count` WQEs in total. Existing copies are kept.
    pub(crate) fn make_room(&mut self, budget: &MemoryBudget, count: u16) -> Result<(), Exhausted> {
        let before = self.count();
        if count <= before {
            return Ok(());
        }
        let mut bytes = ChargedList::filled(budget, usize::from(count) * self.stride, 0)?;
        self.free.make_room(budget, count.into())?;
        bytes[..self.bytes.len()].copy_from_slice(&self.bytes);
        self.bytes = bytes;
        (before..count)
            .rev()
            .for_each(|index| self.give_back(index));
        Ok(())
    }

    /// Drops all snapshots, and their memory except for that of one WQE.
    pub(crate) fn clear(&mut self) {
        self.bytes.fit(self.stride);
        self.free.drain().for_each(drop);
        self.strongly_ordered = None;
        self.give_back(0);
    }

    /// Number of WQEs for which there is memory, including those that are being executed.
    fn count(&self) -> u16 {
        // The result is at most the `count` given to `make_room`, so the cast can't truncate.
        (self.bytes.len() / self.stride) as u16
    }

    /// Takes a free snapshot, if there is one.
    fn take(&mut self) -> Option<u16> {
        self.free.pop_back()
    }

    /// Frees the snapshot of a completed WQE.
    pub(crate) fn give_back(&mut self, index: u16) {
        let back = self.free.push_back(index);
        debug_assert!(back.is_ok(), "more were given back than taken");
        if self.strongly_ordered == Some(index) {
            self.strongly_ordered = None;
        }
    }

    /// Whether the WQE that was fetched last invalidates a key. No other WQE is fetched before that
    /// WQE completes, so later WQEs are checked against the keys that are valid afterwards.
    pub(crate) fn has_strongly_ordered(&self) -> bool {
        self.strongly_ordered.is_some()
    }

    /// The WQE at `index`.
    #[inline]
    pub(crate) fn get(&self, index: u16) -> &[u8] {
        &self.bytes[usize::from(index) * self.stride..][..self.stride]
    }

    fn get_mut(&mut self, index: u16) -> &mut [u8] {
        &mut self.bytes[usize::from(index) * self.stride..][..self.stride]
    }
}

/// A receive work request whose WQE is in the buffer of the responder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostedRecv {
    pub num_sge: u32,
    /// The queue from which the work request was fetched.
    pub origin: RecvOrigin,
}

/// The queue from which a receive work request was fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecvOrigin {
    /// The QP's own RQ. The slot was given back when the work request was fetched.
    Rq,
    /// An SRQ. The slot is given back when the work request completes.
    Srq {
        /// The slot in the SRQ's ring.
        slot: u16,
    },
}

/// Number of bytes of a receive WQE that are copied first: one cache line, which has room for three
/// SGEs.
pub(crate) const FIRST_OF_RECV: usize = 64;

/// Length in bytes of the receive WQE that begins with `first`.
#[inline]
pub(crate) fn recv_size(first: &[u8]) -> usize {
    RqHeader::decode(first).map_or(0, |header| rq_wqe_size(header.num_sge as usize))
}

/// Reason why a posted receive can't be fetched from the RQ or SRQ.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BadRecv {
    /// The ring is corrupt.
    Ring,
    /// The WQE with this `wr_id` is malformed.
    Wqe(u64, WcFault),
}

/// Fetches the next WQE of the RQ into `buffer` and gives its slot back. Returns `None` if no WQE
/// is posted.
pub(crate) fn fetch_recv(
    queue: &mut WorkConsumer,
    view: &QueueView<'_>,
    buffer: &mut [u8],
    cap: &QpCap,
) -> Result<Option<RecvWr<PostedRecv>>, BadRecv> {
    let Some(slot) = queue.fetch(view).map_err(|_| BadRecv::Ring)? else {
        return Ok(None);
    };
    let present = view.read_wqe(slot, buffer, FIRST_OF_RECV, recv_size);
    if view.lost() {
        return Err(BadRecv::Ring);
    }
    queue.complete(view, slot);
    // WQEs are fetched when messages arrive, so the driver need not ring the doorbell.
    queue.suppress_doorbell(view);
    parse_recv(buffer, present, cap.max_recv_sge, RecvOrigin::Rq).map(Some)
}

/// Parses the receive WQE in `buffer`, of which the first `present` bytes are valid.
pub(crate) fn parse_recv(
    buffer: &[u8],
    present: usize,
    max_sge: u32,
    origin: RecvOrigin,
) -> Result<RecvWr<PostedRecv>, BadRecv> {
    let header = RqHeader::get(&buffer[..RqHeader::SIZE]);
    let bad = |reason| BadRecv::Wqe(header.wr_id, malformed(reason));
    if header.num_sge > max_sge {
        return Err(bad(WcReason::TooManySges));
    }
    if present < rq_wqe_size(header.num_sge as usize) {
        return Err(bad(WcReason::ShortWqe));
    }
    let length: u64 = (0..header.num_sge)
        .map(|index| u64::from(sge(buffer, RqHeader::SIZE, index).length))
        .sum();
    Ok(RecvWr {
        id: header.wr_id,
        // A longer length may be cut to 4 GiB, since no message is longer.
        length: u32::try_from(length).unwrap_or(u32::MAX),
        local: PostedRecv {
            num_sge: header.num_sge,
            origin,
        },
    })
}

/// Fetches the next WQE of an SQ or RQ that is flushed, and gives its slot back. Returns the WQE's
/// header, or `None` if no WQE is posted.
pub(crate) fn fetch_flushed<const HEADER: usize>(
    queue: &mut WorkConsumer,
    view: &QueueView<'_>,
) -> Result<Option<[u8; HEADER]>, RingError> {
    let Some(slot) = queue.fetch(view)? else {
        return Ok(None);
    };
    let mut header = [0; HEADER];
    view.read_wqe(slot, &mut header, HEADER, |_| HEADER);
    if view.lost() {
        return Err(RingError::BadSlot);
    }
    queue.complete(view, slot);
    done::request();
    Ok(Some(header))
}

/// SGE number `index` of `wqe`, whose header has `header` bytes.
#[inline]
pub(crate) fn sge(wqe: &[u8], header: usize, index: u32) -> Sge {
    Sge::get(&wqe[header + index as usize * Sge::SIZE..][..Sge::SIZE])
}
