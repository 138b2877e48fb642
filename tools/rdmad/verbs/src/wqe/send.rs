// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Send work requests: validation of opcodes, sizes and SGEs.

use roce::work::{
    AtomicOp, FlushOp, Remote, SendOp, SendWr, WcFault, WcReason, WcResult, With, ATOMIC_SIZE,
    MAX_MESSAGE,
};
use virtio_rdma_abi::feature::Features;
use virtio_rdma_abi::ib::{
    AccessFlags, FlushLevel, FlushTypes, QpType, SendFlags, WcStatus, WrOpcode,
};
use virtio_rdma_abi::qp::QpCap;
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::{
    sq_wqe_size, Atomic, AtomicWrite, Flush, Member, Rdma, Sge, SqHeader, INLINE_OFFSET,
};
use virtio_rdma_ring::RingError;

use super::{sge, Snapshots};
use crate::memory::{FetchedWqe, KeyFault, KeyUser, Keys, QueueView, WorkConsumer};

/// The part of a send work request that only the local side needs: its slot, the memory of its
/// message, and the properties of its completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostedSend {
    /// Slot of the work request in the SQ.
    pub slot: FetchedWqe,
    /// Index of the WQE in the QP's [`Snapshots`].
    pub snapshot: u16,
    /// Opcode of the completion.
    pub opcode: u8,
    /// Whether a CQE is generated if the work request succeeds.
    pub signaled: bool,
    /// The memory of the message.
    pub data: Data,
    /// L_Key or R_Key that is invalidated when the work request completes.
    pub invalidates: Option<u32>,
}

impl PostedSend {
    /// Whether the work request is a REG_MR.
    pub fn is_registration(&self) -> bool {
        u32::from(self.opcode) == WrOpcode::RegMr.value()
    }
}

/// The memory of a work request's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    /// The memory of this number of SGEs.
    Sges(u32),
    /// This number of bytes in the WQE itself.
    Inline(u32),
}

/// The properties of a QP against which its work requests are checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendRules<'a> {
    pub qp_type: QpType,
    pub cap: &'a QpCap,
    /// The QP, whose keys the work requests use.
    pub by: KeyUser,
    /// Whether the SQ belongs to a process.
    pub user: bool,
    /// Whether every WQE is signaled.
    pub signal_all: bool,
    /// The negotiated features.
    pub features: Features,
    /// Longest message in bytes.
    pub max_message: u32,
}

/// Number of bytes of a send WQE that are copied first: two cache lines, which have room for three
/// SGEs or a short inline message.
const FIRST_OF_SEND: usize = 128;

/// Length in bytes of the send WQE that begins with `first`.
#[inline]
fn send_size(first: &[u8]) -> usize {
    let Some(header) = SqHeader::decode(first) else {
        return 0;
    };
    if header.send_flags.contains(SendFlags::INLINE) && first.len() >= INLINE_OFFSET {
        INLINE_OFFSET + sge(first, SqHeader::SIZE, 0).length as usize
    } else {
        sq_wqe_size(header.num_sge as usize)
    }
}

/// A fetched WQE: its work request, and the fault it ends with if it must not be executed.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub wr: SendWr<PostedSend>,
    pub failed: Option<WcFault>,
}

/// Fetches the next WQE of the SQ and checks it. Returns `None` if no WQE is posted. `reads` is
/// true if the QP permits outstanding READs and atomic operations.
///
/// # Errors
///
/// The ring is corrupt.
pub(crate) fn fetch_send(
    queue: &mut WorkConsumer,
    view: &QueueView<'_>,
    snapshots: &mut Snapshots,
    keys: &Keys<'_>,
    rules: &SendRules<'_>,
    reads: bool,
) -> Result<Option<Fetched>, RingError> {
    let Some(snapshot) = snapshots.take() else {
        return Ok(None);
    };
    let slot = match queue.fetch(view) {
        Ok(Some(slot)) => slot,
        other => {
            snapshots.give_back(snapshot);
            return other.map(|_| None);
        }
    };
    let check = |sge: &Sge, access| {
        keys.check(sge.lkey, rules.by, sge.addr, sge.length.into(), access)
            .map_err(KeyFault::local)
    };
    let fetched = read_send(slot, snapshot, view, snapshots, check, rules, reads);
    if view.lost() {
        snapshots.give_back(snapshot);
        return Err(RingError::BadSlot);
    }
    Ok(Some(fetched))
}

/// Reads the incomplete WQE in `slot` again. Its keys are not checked again. `None` if there is no
/// room for it, or if it can't be read.
pub(crate) fn fetch_again(
    slot: FetchedWqe,
    view: &QueueView<'_>,
    snapshots: &mut Snapshots,
    rules: &SendRules<'_>,
    reads: bool,
) -> Option<Fetched> {
    let snapshot = snapshots.take()?;
    let check = |_: &Sge, _| Ok(());
    let fetched = read_send(slot, snapshot, view, snapshots, check, rules, reads);
    (!view.lost()).then_some(fetched)
}

/// Copies the WQE in `slot` to `snapshot` and checks it. `check` is called to check the key of each
/// SGE.
#[inline]
fn read_send(
    slot: FetchedWqe,
    snapshot: u16,
    view: &QueueView<'_>,
    snapshots: &mut Snapshots,
    check: impl Fn(&Sge, AccessFlags) -> WcResult,
    rules: &SendRules<'_>,
    reads: bool,
) -> Fetched {
    let wqe = snapshots.get_mut(snapshot);
    let present = view.read_wqe(slot, wqe, FIRST_OF_SEND, send_size);
    let wqe = snapshots.get(snapshot);
    let header = SqHeader::get(&wqe[..SqHeader::SIZE]);
    let mut wr = SendWr {
        id: header.wr_id,
        op: SendOp::Send {
            with: With::Nothing,
        },
        length: 0,
        flags: header.send_flags,
        local: PostedSend {
            slot,
            snapshot,
            opcode: completion_opcode(&header),
            signaled: rules.signal_all || header.send_flags.contains(SendFlags::SIGNALED),
            data: Data::Sges(0),
            invalidates: None,
        },
    };
    let failed = check_send(&mut wr, &header, &wqe[..present], check, rules, reads).err();
    if wr.op == LOCAL_INV || wr.local.invalidates.is_some() {
        snapshots.strongly_ordered = Some(snapshot);
    }
    Fetched { wr, failed }
}

/// Opcode of the completion of a send WQE: the WQE's opcode, or SEND if it is invalid. An invalid
/// value could be taken for the opcode of a receive.
pub(crate) fn completion_opcode(header: &SqHeader) -> u8 {
    let opcode = WrOpcode::try_from(header.opcode).unwrap_or(WrOpcode::Send);
    // All opcodes are below 0x80.
    opcode.value() as u8
}

fn check_send(
    wr: &mut SendWr<PostedSend>,
    header: &SqHeader,
    wqe: &[u8],
    check: impl Fn(&Sge, AccessFlags) -> WcResult,
    rules: &SendRules<'_>,
    reads: bool,
) -> WcResult {
    // In virtqueue mode the driver's buffer may be shorter than the WQE.
    let has = |size: usize| {
        (size <= wqe.len())
            .then_some(())
            .ok_or(malformed(WcReason::ShortWqe))
    };
    has(SqHeader::SIZE)?;
    let opcode =
        WrOpcode::try_from(header.opcode).map_err(|_| malformed(WcReason::UnknownOpcode))?;
    if !permits(rules.qp_type, opcode)
        || rules.user && opcode == WrOpcode::RegMr
        || opcode
            .feature()
            .is_some_and(|feature| !rules.features.has(feature))
    {
        return Err(WcFault::NOT_PERMITTED);
    }
    wr.op = operation(opcode, header).ok_or(malformed(WcReason::BadFlush))?;
    match wr.op {
        SendOp::Local { .. } => return Ok(()),
        SendOp::AtomicWrite { .. } | SendOp::Flush(_) => {
            // Atomic writes and FLUSHes count as outstanding atomic operations at the peer.
            let admitted = reads.then_some(()).ok_or(WcFault::NO_READS);
            if opcode == WrOpcode::AtomicWrite {
                wr.length = ATOMIC_SIZE;
            }
            return admitted;
        }
        _ => {}
    }
    if opcode == WrOpcode::RdmaReadWithInv {
        wr.local.invalidates = Some(u32::from_le_bytes(header.ex));
    }
    // Whether the peer's response is stored in the memory of the SGEs.
    let fetches = matches!(wr.op, SendOp::Read { .. } | SendOp::Atomic { .. });
    if fetches && !reads {
        return Err(WcFault::NO_READS);
    }
    let length = if header.send_flags.contains(SendFlags::INLINE) {
        if fetches || header.num_sge != 1 {
            return Err(malformed(WcReason::BadInline));
        }
        has(INLINE_OFFSET)?;
        let length = sge(wqe, SqHeader::SIZE, 0).length;
        if length > rules.cap.max_inline_data {
            return Err(WcFault::new(WcStatus::LocLenErr, WcReason::InlineTooLong));
        }
        has(INLINE_OFFSET + length as usize)?;
        wr.local.data = Data::Inline(length);
        length.into()
    } else {
        if header.num_sge > rules.cap.max_send_sge {
            return Err(malformed(WcReason::TooManySges));
        }
        has(sq_wqe_size(header.num_sge as usize))?;
        wr.local.data = Data::Sges(header.num_sge);
        let access = if fetches {
            AccessFlags::LOCAL_WRITE
        } else {
            AccessFlags::NONE
        };
        check_sges(wqe, header.num_sge, check, access)?
    };
    let (fits, misfit) = match wr.op {
        SendOp::Atomic { .. } => {
            let fits = length == u64::from(ATOMIC_SIZE);
            (fits, WcFault::BAD_ATOMIC_LENGTH)
        }
        _ => (length <= u64::from(rules.max_message), WcFault::TOO_LONG),
    };
    wr.length = u32::try_from(length).ok().filter(|_| fits).ok_or(misfit)?;
    Ok(())
}

/// The fault of a WQE that is malformed.
pub(crate) const fn malformed(reason: WcReason) -> WcFault {
    WcFault::new(WcStatus::LocQpOpErr, reason)
}

/// Checks that the QP may access the memory of the SGEs. Returns their total length in bytes.
fn check_sges(
    wqe: &[u8],
    num_sge: u32,
    check: impl Fn(&Sge, AccessFlags) -> WcResult,
    access: AccessFlags,
) -> Result<u64, WcFault> {
    let mut length = 0;
    for index in 0..num_sge {
        let sge = sge(wqe, SqHeader::SIZE, index);
        length += u64::from(sge.length);
        if sge.length > 0 {
            check(&sge, access)?;
        }
    }
    Ok(length)
}

/// Length in bytes of the longest message of a QP of this type, on a port whose path MTU is `mtu`
/// bytes.
pub(crate) fn max_message(qp_type: QpType, mtu: u32) -> u32 {
    match qp_type {
        QpType::Rc | QpType::Uc => MAX_MESSAGE,
        QpType::Ud | QpType::Gsi | QpType::Smi => mtu,
    }
}

/// Whether QPs of this type support the operation (IBTA 10.8.2, table 96).
fn permits(qp_type: QpType, opcode: WrOpcode) -> bool {
    use WrOpcode::*;
    match qp_type {
        QpType::Rc => true,
        QpType::Uc => matches!(
            opcode,
            Send | SendWithImm | RdmaWrite | RdmaWriteWithImm | LocalInv | BindMw | RegMr
        ),
        QpType::Ud | QpType::Gsi => matches!(opcode, Send | SendWithImm),
        QpType::Smi => false,
    }
}

/// LOCAL_INV waits until earlier work requests are complete, since they may use the memory.
const LOCAL_INV: SendOp = SendOp::Local { drained: true };
/// REG_MR has taken effect when it was fetched, so it need not wait for other work requests.
const REG_MR: SendOp = SendOp::Local { drained: false };

/// BIND_MW takes effect in the order of the SQ, without a wait for the completion of earlier work
/// requests.
const BIND_MW: SendOp = SendOp::Local { drained: false };

/// The operation of a WQE, or `None` if the WQE is invalid.
fn operation(opcode: WrOpcode, header: &SqHeader) -> Option<SendOp> {
    let rdma = Rdma::load(&header.wr);
    let remote = Remote {
        va: rdma.remote_addr,
        rkey: rdma.rkey,
    };
    Some(match opcode {
        WrOpcode::Send => SendOp::Send {
            with: With::Nothing,
        },
        WrOpcode::SendWithImm => SendOp::Send {
            with: With::Imm(header.ex),
        },
        WrOpcode::SendWithInv => SendOp::Send {
            with: With::Inv(u32::from_le_bytes(header.ex)),
        },
        WrOpcode::RdmaWrite => SendOp::Write { remote, imm: None },
        WrOpcode::RdmaWriteWithImm => SendOp::Write {
            remote,
            imm: Some(header.ex),
        },
        WrOpcode::RdmaRead | WrOpcode::RdmaReadWithInv => SendOp::Read { remote },
        WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd => {
            let atomic = Atomic::load(&header.wr);
            let op = match opcode {
                WrOpcode::AtomicCmpAndSwp => AtomicOp::CompareSwap {
                    compare: atomic.compare_add,
                    swap: atomic.swap,
                },
                _ => AtomicOp::FetchAdd {
                    add: atomic.compare_add,
                },
            };
            let remote = Remote {
                va: atomic.remote_addr,
                rkey: atomic.rkey,
            };
            SendOp::Atomic { remote, op }
        }
        WrOpcode::LocalInv => LOCAL_INV,
        WrOpcode::BindMw => BIND_MW,
        WrOpcode::RegMr => REG_MR,
        WrOpcode::AtomicWrite => {
            let write = AtomicWrite::load(&header.wr);
            SendOp::AtomicWrite {
                remote: Remote {
                    va: write.remote_addr,
                    rkey: write.rkey,
                },
                data: write.data,
            }
        }
        WrOpcode::Flush => SendOp::Flush(flush(&Flush::load(&header.wr))?),
    })
}

fn flush(wqe: &Flush) -> Option<FlushOp> {
    let level = FlushLevel::try_from(wqe.level).ok()?;
    let valid = !wqe.types.has_unknown() && wqe.types != FlushTypes::NONE && wqe.reserved == [0; 6];
    valid.then_some(FlushOp {
        remote: Remote {
            va: wqe.remote_addr,
            rkey: wqe.rkey,
        },
        length: match level {
            FlushLevel::Range => Some(wqe.length),
            FlushLevel::Mr => None,
        },
        types: wqe.types,
    })
}
