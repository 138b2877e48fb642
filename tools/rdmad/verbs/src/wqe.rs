// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Work requests: snapshots of the WQEs in the rings, and their validation.

use roce::work::{RecvWr, Remote, SendOp, SendWr, With, MAX_MESSAGE};
use virtio_rdma_abi::ib::{AccessFlags, SendFlags, WcStatus, WrOpcode};
use virtio_rdma_abi::qp::QpCap;
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::{
    rq_wqe_size, sq_wqe_size, Member, Rdma, RqHeader, Sge, SqHeader, INLINE_OFFSET,
};
use virtio_rdma_ring::{DeviceQueue, RingError};

use crate::memory::{MrTable, RingView};

/// Bytes of the largest send WQE for these capabilities. It has at least the SGE of inline data, whose length is
/// looked at even when the QP takes none.
pub(crate) fn max_sq_wqe(cap: &QpCap) -> usize {
    sq_wqe_size(cap.max_send_sge as usize).max(INLINE_OFFSET + cap.max_inline_data as usize)
}

/// Bytes of the largest receive WQE for these capabilities.
pub(crate) fn max_rq_wqe(cap: &QpCap) -> usize {
    rq_wqe_size(cap.max_recv_sge as usize)
}

/// Private copies of the WQEs that are being executed, so that their owner can't change them any more.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    bytes: Box<[u8]>,
    stride: usize,
    free: Vec<u16>,
}

impl Snapshots {
    /// Room for `count` WQEs of `stride` bytes.
    pub(crate) fn new(count: u16, stride: usize) -> Self {
        Self {
            bytes: vec![0; usize::from(count) * stride].into(),
            stride,
            free: (0..count).rev().collect(),
        }
    }

    /// Takes room for one WQE, if there is any.
    fn take(&mut self) -> Option<u16> {
        self.free.pop()
    }

    /// Gives the room of a completed WQE back.
    pub(crate) fn give_back(&mut self, index: u16) {
        self.free.push(index);
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

/// Where a send work request came from and where its data is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    /// Slot of the SQ.
    pub slot: u16,
    /// Its copy in the QP's [`Snapshots`].
    pub snapshot: u16,
    /// Opcode of its CQE.
    pub opcode: u8,
    /// Success produces a CQE.
    pub signaled: bool,
    /// Where the message is.
    pub data: Data,
}

/// Where the local memory of a work request is listed in its WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    /// In the memory that this many SGEs behind the header name.
    Sges(u32),
    /// In the WQE itself: so many bytes.
    Inline(u32),
}

/// What the QP allows its work requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendRules<'a> {
    pub cap: &'a QpCap,
    pub pdn: u32,
    /// Every WQE is signalled.
    pub signal_all: bool,
    /// READs may be outstanding.
    pub reads: bool,
}

/// A WQE that was taken from the SQ: the work request, and the status that it ends with if it is not to be executed.
pub(crate) struct Fetched {
    pub wr: SendWr<Posted>,
    pub failed: Option<WcStatus>,
}

/// Takes the next WQE from the SQ and checks it. `None` when there is none.
///
/// # Errors
///
/// The ring makes no sense.
pub(crate) fn fetch_send(
    queue: &mut DeviceQueue,
    ring: &RingView<'_>,
    snapshots: &mut Snapshots,
    mrs: &MrTable,
    rules: SendRules<'_>,
) -> Result<Option<Fetched>, RingError> {
    let Some(snapshot) = snapshots.take() else {
        return Ok(None);
    };
    let slot = match queue.fetch(ring) {
        Ok(Some(slot)) => slot,
        other => {
            snapshots.give_back(snapshot);
            return other.map(|_| None);
        }
    };
    let present = ring.read_wqe(slot, snapshots.get_mut(snapshot));
    if ring.lost() {
        snapshots.give_back(snapshot);
        return Err(RingError::BadSlot);
    }
    let wqe = snapshots.get(snapshot);
    let header = SqHeader::get(&wqe[..SqHeader::SIZE]);
    let mut wr = SendWr {
        id: header.wr_id,
        op: SendOp::Send {
            with: With::Nothing,
        },
        length: 0,
        flags: header.send_flags,
        local: Posted {
            slot,
            snapshot,
            opcode: completion_opcode(&header),
            signaled: rules.signal_all || header.send_flags.contains(SendFlags::SIGNALED),
            data: Data::Sges(0),
        },
    };
    let failed = check_send(&mut wr, &header, &wqe[..present], mrs, rules).err();
    Ok(Some(Fetched { wr, failed }))
}

/// The opcode of the CQE of a send WQE: its own, if there is such a one. It must not look like that of a receive.
pub(crate) fn completion_opcode(header: &SqHeader) -> u8 {
    let opcode = WrOpcode::try_from(header.opcode).unwrap_or(WrOpcode::Send);
    // All opcodes are below 0x80.
    opcode.value() as u8
}

fn check_send(
    wr: &mut SendWr<Posted>,
    header: &SqHeader,
    wqe: &[u8],
    mrs: &MrTable,
    rules: SendRules<'_>,
) -> Result<(), WcStatus> {
    // A virtqueue's descriptors may end anywhere.
    let has = |size: usize| {
        (size <= wqe.len())
            .then_some(())
            .ok_or(WcStatus::LocQpOpErr)
    };
    has(SqHeader::SIZE)?;
    wr.op = operation(header).ok_or(WcStatus::LocQpOpErr)?;
    let is_read = matches!(wr.op, SendOp::Read { .. });
    if is_read && !rules.reads {
        return Err(WcStatus::LocQpOpErr);
    }
    if header.send_flags.contains(SendFlags::INLINE) {
        if is_read || header.num_sge != 1 {
            return Err(WcStatus::LocQpOpErr);
        }
        has(INLINE_OFFSET)?;
        let length = sge(wqe, SqHeader::SIZE, 0).length;
        if length > rules.cap.max_inline_data {
            return Err(WcStatus::LocLenErr);
        }
        has(INLINE_OFFSET + length as usize)?;
        wr.length = length;
        wr.local.data = Data::Inline(length);
        return Ok(());
    }
    if header.num_sge > rules.cap.max_send_sge {
        return Err(WcStatus::LocQpOpErr);
    }
    has(sq_wqe_size(header.num_sge as usize))?;
    let access = if is_read {
        AccessFlags::LOCAL_WRITE
    } else {
        AccessFlags::NONE
    };
    let mut length = 0u64;
    for index in 0..header.num_sge {
        let sge = sge(wqe, SqHeader::SIZE, index);
        length += u64::from(sge.length);
        if sge.length > 0 {
            mrs.check(sge.lkey, rules.pdn, sge.addr, sge.length.into(), access)
                .map_err(|_| WcStatus::LocProtErr)?;
        }
    }
    wr.length = u32::try_from(length)
        .ok()
        .filter(|length| *length <= MAX_MESSAGE)
        .ok_or(WcStatus::LocLenErr)?;
    wr.local.data = Data::Sges(header.num_sge);
    Ok(())
}

/// What a WQE of a reliable connection asks for, or `None` for opcodes that the device or QP does not have; these
/// include all that act on keys, and those for the kernel alone.
fn operation(header: &SqHeader) -> Option<SendOp> {
    let rdma = Rdma::load(&header.wr);
    let remote = Remote {
        va: rdma.remote_addr,
        rkey: rdma.rkey,
    };
    Some(match WrOpcode::try_from(header.opcode).ok()? {
        WrOpcode::Send => SendOp::Send {
            with: With::Nothing,
        },
        WrOpcode::SendWithImm => SendOp::Send {
            with: With::Imm(header.ex),
        },
        WrOpcode::RdmaWrite => SendOp::Write { remote, imm: None },
        WrOpcode::RdmaWriteWithImm => SendOp::Write {
            remote,
            imm: Some(header.ex),
        },
        WrOpcode::RdmaRead => SendOp::Read { remote },
        WrOpcode::AtomicCmpAndSwp
        | WrOpcode::AtomicFetchAndAdd
        | WrOpcode::LocalInv
        | WrOpcode::SendWithInv
        | WrOpcode::RdmaReadWithInv
        | WrOpcode::RegMr => return None,
    })
}

/// A receive work request whose WQE lies in the receive side's buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// Number of SGEs.
    pub num_sge: u32,
}

/// Why the RQ gives no receive work request although there is one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BadRecv {
    /// The ring makes no sense.
    Ring,
    /// The WQE with this id is malformed.
    Wqe(u64),
}

/// Takes the next WQE from the RQ into `buffer` and gives its slot back. `None` when there is none.
pub(crate) fn fetch_recv(
    queue: &mut DeviceQueue,
    ring: &RingView<'_>,
    buffer: &mut [u8],
    cap: &QpCap,
) -> Result<Option<RecvWr<Received>>, BadRecv> {
    let Some(slot) = queue.fetch(ring).map_err(|_| BadRecv::Ring)? else {
        return Ok(None);
    };
    let present = ring.read_wqe(slot, buffer);
    if ring.lost() {
        return Err(BadRecv::Ring);
    }
    queue.give_back(ring, slot, 0);
    queue.publish(ring);
    // Receives are taken when a message needs them; no doorbell has to tell of new ones.
    queue.suppress_doorbell(ring);
    let header = RqHeader::get(&buffer[..RqHeader::SIZE]);
    if header.num_sge > cap.max_recv_sge || present < rq_wqe_size(header.num_sge as usize) {
        return Err(BadRecv::Wqe(header.wr_id));
    }
    let length: u64 = (0..header.num_sge)
        .map(|index| u64::from(sge(buffer, RqHeader::SIZE, index).length))
        .sum();
    Ok(Some(RecvWr {
        id: header.wr_id,
        // No message is longer.
        length: u32::try_from(length).unwrap_or(u32::MAX),
        local: Received {
            num_sge: header.num_sge,
        },
    }))
}

/// Takes the next WQE of either queue only to flush it: its slot is given back. Returns its id and, of a send WQE, its
/// opcode.
pub(crate) fn fetch_flushed<const HEADER: usize>(
    queue: &mut DeviceQueue,
    ring: &RingView<'_>,
) -> Result<Option<[u8; HEADER]>, RingError> {
    let Some(slot) = queue.fetch(ring)? else {
        return Ok(None);
    };
    let mut header = [0; HEADER];
    ring.read_wqe(slot, &mut header);
    if ring.lost() {
        return Err(RingError::BadSlot);
    }
    queue.give_back(ring, slot, 0);
    queue.publish(ring);
    Ok(Some(header))
}

/// SGE number `index` behind a header of `header` bytes.
#[inline]
pub(crate) fn sge(wqe: &[u8], header: usize, index: u32) -> Sge {
    Sge::get(&wqe[header + index as usize * Sge::SIZE..][..Sge::SIZE])
}
