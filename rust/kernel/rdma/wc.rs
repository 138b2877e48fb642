// SPDX-License-Identifier: GPL-2.0

//! Work completions of kernel clients.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    cq::{
        CompletionQueues,
        Cq, //
    },
    qp::QpConsumer, //
};
use crate::bindings;
use core::marker::PhantomData;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// A device whose CQs kernel clients poll and arm. The callbacks run in any context. Several
/// callbacks may run for one CQ at the same time.
///
/// # Examples
///
/// ```
/// use crate::rdma::{
///     cq::Cq,
///     wc::{ClientCompletionQueues, Notify},
/// };
///
/// /// Arms a CQ for any completion, and returns whether the CQ must be polled first.
/// fn rearm<T: ClientCompletionQueues>(cq: &Cq<T>) -> Result<bool> {
///     let notify = Notify {
///         solicited_only: false,
///         report_missed: true,
///     };
///     T::req_notify_cq(cq, notify)
/// }
/// ```
pub trait ClientCompletionQueues: CompletionQueues {
    /// Takes completions out of a CQ.
    fn poll_cq(cq: &Cq<Self>, completions: &mut Completions<'_>) -> Result;

    /// Arms a CQ. If the consumer requested this by [`Notify::report_missed`], returns whether
    /// completions wait to be polled.
    fn req_notify_cq(cq: &Cq<Self>, notify: Notify) -> Result<bool>;
}

/// Outcome of a work request (IBTA 11.6.2): a value of `enum ib_wc_status`.
///
/// # Invariants
///
/// The value is a member of the enumeration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WcStatus(bindings::ib_wc_status);

impl WcStatus {
    /// The request was flushed.
    pub const WR_FLUSH_ERR: Self = Self(bindings::ib_wc_status_IB_WC_WR_FLUSH_ERR);
}

impl TryFrom<u32> for WcStatus {
    type Error = Error;

    fn try_from(value: u32) -> Result<Self> {
        // INVARIANT: The values of the enumeration follow each other.
        (bindings::ib_wc_status_IB_WC_SUCCESS..=bindings::ib_wc_status_IB_WC_GENERAL_ERR)
            .contains(&value)
            .then_some(Self(value))
            .ok_or(EINVAL)
    }
}

/// The operation that completed: a value of `enum ib_wc_opcode`.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum WcOpcode {
    Send = bindings::ib_wc_opcode_IB_WC_SEND,
    RdmaWrite = bindings::ib_wc_opcode_IB_WC_RDMA_WRITE,
    RdmaRead = bindings::ib_wc_opcode_IB_WC_RDMA_READ,
    CompareAndSwap = bindings::ib_wc_opcode_IB_WC_COMP_SWAP,
    FetchAndAdd = bindings::ib_wc_opcode_IB_WC_FETCH_ADD,
    LocalInv = bindings::ib_wc_opcode_IB_WC_LOCAL_INV,
    RegMr = bindings::ib_wc_opcode_IB_WC_REG_MR,
    Recv = bindings::ib_wc_opcode_IB_WC_RECV,
    RecvRdmaWithImm = bindings::ib_wc_opcode_IB_WC_RECV_RDMA_WITH_IMM,
}

/// A work completion.
pub struct Wc {
    /// Id of the work request.
    pub wr_id: u64,
    /// Outcome.
    pub status: WcStatus,
    /// The operation that completed. Clients read it only if the work request succeeded.
    pub opcode: WcOpcode,
    /// The device's own error code.
    pub vendor_err: u32,
    /// Number of bytes that were received or read.
    pub byte_len: u32,
    /// Data that a message carried besides its payload.
    pub extra: Extra,
    /// Port.
    pub port: u32,
    /// The sender of a received datagram; `None` for other completions.
    pub source: Option<DatagramSource>,
}

/// Data that a message may carry besides its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// No such data.
    None,
    /// Immediate data in network byte order.
    Immediate([u8; 4]),
    /// The key of a local MR that the message invalidated.
    Invalidated(u32),
}

/// The sender of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramSource {
    /// QPN of the sender.
    pub qpn: u32,
    /// Index of the P_Key of the datagram.
    pub pkey_index: u16,
    /// Service level.
    pub sl: u8,
    /// Whether the receive buffer begins with a GRH, or with the IP header in place of a GRH.
    pub has_grh: bool,
    /// VLAN id; `None` for a datagram without a VLAN tag.
    pub vlan: Option<u16>,
}

/// Room for work completions.
///
/// # Examples
///
/// ```
/// use crate::rdma::{
///     qp::QpConsumer,
///     wc::{Completions, DatagramSource, Extra, Wc, WcOpcode, WcSlot, WcStatus},
/// };
///
/// /// Writes the completion of a datagram of 100 bytes that QP 1 sent.
/// fn received(slot: WcSlot<'_, '_>, wr_id: u64) -> Result {
///     let source = DatagramSource {
///         qpn: 1,
///         pkey_index: 0,
///         sl: 0,
///         has_grh: true,
///         vlan: None,
///     };
///     slot.write(&Wc {
///         wr_id,
///         status: WcStatus::try_from(0)?,
///         opcode: WcOpcode::Recv,
///         vendor_err: 0,
///         byte_len: 100,
///         extra: Extra::None,
///         port: 1,
///         source: Some(source),
///     });
///     Ok(())
/// }
///
/// /// Completes a send work request as flushed, if there is room.
/// fn flush(completions: &mut Completions<'_>, consumer: &QpConsumer, wr_id: u64) {
///     if let Some(slot) = completions.slot(consumer) {
///         slot.write(&Wc {
///             wr_id,
///             status: WcStatus::WR_FLUSH_ERR,
///             opcode: WcOpcode::Send,
///             vendor_err: 0,
///             byte_len: 0,
///             extra: Extra::None,
///             port: 1,
///             source: None,
///         });
///     }
/// }
/// ```
///
/// # Invariants
///
/// `room` slots from `next` on are writable for `'a`.
pub struct Completions<'a> {
    next: *mut bindings::ib_wc,
    room: usize,
    _array: PhantomData<&'a mut bindings::ib_wc>,
}

impl<'a> Completions<'a> {
    /// Whether there is no room left.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.room == 0
    }

    /// The next slot, for a completion of the QP of `consumer`. `None` if there is no room, or if
    /// the QP is being destroyed and so has no more completions.
    #[inline]
    pub fn slot(&mut self, consumer: &QpConsumer) -> Option<WcSlot<'_, 'a>> {
        let qp = consumer.owner();
        // INVARIANT: The completions are not full.
        (!qp.is_null() && !self.is_full()).then_some(WcSlot {
            completions: self,
            qp,
        })
    }
}

/// Room for a completion of a QP.
///
/// # Invariants
///
/// `completions` is not full.
pub struct WcSlot<'c, 'a> {
    completions: &'c mut Completions<'a>,
    qp: *mut bindings::ib_qp,
}

impl WcSlot<'_, '_> {
    /// Adds a completion.
    // Inlined, since the compiler would otherwise build the completion in memory twice.
    #[inline(always)]
    pub fn write(self, completion: &Wc) {
        let mut wc = bindings::ib_wc {
            status: completion.status.0,
            opcode: completion.opcode as bindings::ib_wc_opcode,
            vendor_err: completion.vendor_err,
            byte_len: completion.byte_len,
            qp: self.qp,
            port_num: completion.port,
            ..Default::default()
        };
        wc.__bindgen_anon_1.wr_id = completion.wr_id;
        match completion.extra {
            Extra::None => (),
            Extra::Immediate(immediate) => {
                wc.wc_flags |= bindings::ib_wc_flags_IB_WC_WITH_IMM as c_int;
                wc.ex.imm_data = u32::from_ne_bytes(immediate);
            }
            Extra::Invalidated(key) => {
                wc.wc_flags |= bindings::ib_wc_flags_IB_WC_WITH_INVALIDATE as c_int;
                wc.ex.invalidate_rkey = key;
            }
        }
        if let Some(source) = completion.source {
            wc.src_qp = source.qpn;
            wc.pkey_index = source.pkey_index;
            wc.sl = source.sl;
            if source.has_grh {
                wc.wc_flags |= bindings::ib_wc_flags_IB_WC_GRH as c_int;
            }
            if let Some(vlan) = source.vlan {
                wc.wc_flags |= bindings::ib_wc_flags_IB_WC_WITH_VLAN as c_int;
                wc.vlan_id = vlan;
            }
        }
        let completions = self.completions;
        // SAFETY: By the type invariants there is room.
        unsafe {
            completions.next.write(wc);
            completions.next = completions.next.add(1);
        }
        completions.room -= 1;
    }
}

/// The completions for which a consumer requests an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notify {
    /// Only solicited completions and errors.
    pub solicited_only: bool,
    /// Whether the consumer wants to know of completions that already wait to be polled.
    pub report_missed: bool,
}

/// # Safety
///
/// Called by a client as `poll_cq` of a device of `T`: `cq` is created, `wc` writable for `count`
/// elements.
pub(super) unsafe extern "C" fn poll_cq<T: ClientCompletionQueues>(
    cq: *mut bindings::ib_cq,
    count: c_int,
    wc: *mut bindings::ib_wc,
) -> c_int {
    from_result(|| {
        let room = usize::try_from(count)?;
        // INVARIANT: `wc` is writable for `count` elements.
        let mut completions = Completions {
            next: wc,
            room,
            _array: PhantomData,
        };
        // SAFETY: `cq` is created.
        T::poll_cq(unsafe { Cq::from_raw(cq) }, &mut completions)?;
        // LOSSLESS: The number is at most `count`.
        Ok((room - completions.room) as c_int)
    })
}

/// # Safety
///
/// Called by a client as `req_notify_cq` of a device of `T`: `cq` is created.
pub(super) unsafe extern "C" fn req_notify_cq<T: ClientCompletionQueues>(
    cq: *mut bindings::ib_cq,
    flags: bindings::ib_cq_notify_flags,
) -> c_int {
    from_result(|| {
        let mask = bindings::ib_cq_notify_flags_IB_CQ_SOLICITED_MASK;
        let notify = Notify {
            solicited_only: flags & mask == bindings::ib_cq_notify_flags_IB_CQ_SOLICITED,
            report_missed: flags & bindings::ib_cq_notify_flags_IB_CQ_REPORT_MISSED_EVENTS != 0,
        };
        // SAFETY: `cq` is created.
        let missed = T::req_notify_cq(unsafe { Cq::from_raw(cq) }, notify)?;
        Ok(c_int::from(missed))
    })
}
