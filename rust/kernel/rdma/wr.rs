// SPDX-License-Identifier: GPL-2.0

//! Work requests of kernel clients.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    ah::{
        AddressHandles,
        Ah, //
    },
    mr::{
        FastReg,
        FastRegistration, //
    },
    qp::{
        Qp,
        QpType, //
    },
    qp_attr::ModifyQueuePairs, //
};
use crate::bindings;
use core::{
    marker::PhantomData,
    ptr,
    slice, //
};
use kernel::prelude::*;

/// A device whose QPs kernel clients post to. The callbacks run in any context. Several callbacks
/// may run for one QP at the same time.
pub trait ClientQueuePairs: ModifyQueuePairs + AddressHandles + FastRegistration {
    /// Posts send work requests until one is refused. Requests that were posted before it stay
    /// posted.
    fn post_send(qp: &Qp<Self>, requests: &mut SendWrs<'_, Self>) -> Result;

    /// Posts receive work requests until one is refused. Requests that were posted before it stay
    /// posted.
    fn post_recv(qp: &Qp<Self>, requests: &mut RecvWrs<'_>) -> Result;
}

/// A scatter/gather element.
#[repr(transparent)]
pub struct Sge(bindings::ib_sge);

impl Sge {
    /// DMA address or virtual address.
    pub fn addr(&self) -> u64 {
        self.0.addr
    }

    /// Length in bytes.
    pub fn length(&self) -> u32 {
        self.0.length
    }

    /// Local key.
    pub fn lkey(&self) -> u32 {
        self.0.lkey
    }
}

/// The scatter/gather list of a work request.
///
/// # Safety
///
/// `list` is valid for `count` elements during `'a`, unless `count` is 0.
unsafe fn sges<'a>(list: *const bindings::ib_sge, count: c_int) -> &'a [Sge] {
    match usize::try_from(count) {
        // SAFETY: `list` is valid for `count` elements during `'a`; `Sge` is transparent.
        Ok(count) if count > 0 => unsafe { slice::from_raw_parts(list.cast::<Sge>(), count) },
        _ => &[],
    }
}

/// Bits of `enum ib_send_flags`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendFlags(pub u32);

impl SendFlags {
    /// The payload is copied when the request is posted.
    pub const INLINE: Self = Self(bindings::ib_send_flags_IB_SEND_INLINE as u32);

    /// Whether all bits of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The operation of a send work request.
pub enum SendOperation<'a, T: ClientQueuePairs> {
    /// SEND.
    Send,
    /// SEND with immediate data in network byte order.
    SendWithImm([u8; 4]),
    /// SEND that invalidates an MR of the peer, by its remote key.
    SendWithInv(u32),
    /// RDMA WRITE.
    RdmaWrite(RemoteMemory),
    /// RDMA WRITE with immediate data in network byte order.
    RdmaWriteWithImm(RemoteMemory, [u8; 4]),
    /// RDMA READ.
    RdmaRead(RemoteMemory),
    /// RDMA READ that invalidates the local MR which it fills, by its key.
    RdmaReadWithInv(RemoteMemory, u32),
    /// Atomic comparison with the remote value, and exchange if both are equal.
    CompareAndSwap {
        /// The remote value: 8 bytes.
        remote: RemoteMemory,
        /// The expected value.
        compare: u64,
        /// The value that is stored if the remote value equals `compare`.
        swap: u64,
    },
    /// Atomic addition.
    FetchAndAdd {
        /// The remote value: 8 bytes.
        remote: RemoteMemory,
        /// The value that is added.
        add: u64,
    },
    /// Invalidation of a local MR, by its key.
    LocalInv(u32),
    /// Registration of a local MR.
    RegMr(FastReg<'a, T>),
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteMemory {
    /// Address in the memory of the peer.
    pub addr: u64,
    /// Remote key.
    pub rkey: u32,
}

impl From<&bindings::ib_rdma_wr> for RemoteMemory {
    fn from(raw: &bindings::ib_rdma_wr) -> Self {
        Self {
            addr: raw.remote_addr,
            rkey: raw.rkey,
        }
    }
}

impl From<&bindings::ib_atomic_wr> for RemoteMemory {
    fn from(raw: &bindings::ib_atomic_wr) -> Self {
        Self {
            addr: raw.remote_addr,
            rkey: raw.rkey,
        }
    }
}

/// The destination of a datagram.
pub struct Datagram<'a, T: AddressHandles> {
    /// The path.
    pub ah: &'a Ah<T>,
    /// QPN.
    pub remote_qpn: u32,
    /// Q_Key. If its top bit is set, the QP's own Q_Key is used.
    pub remote_qkey: u32,
    /// P_Key index. Only GSI QPs use it.
    pub pkey_index: u16,
}

/// A send work request.
///
/// # Examples
///
/// ```
/// use crate::rdma::wr::{
///     ClientQueuePairs, Datagram, Inline, RemoteMemory, SendFlags, SendOperation, SendWr, Sge,
/// };
///
/// /// Bytes of the local memory of a work request.
/// fn length<T: ClientQueuePairs>(request: &SendWr<'_, T>) -> u32 {
///     request.sges().iter().map(Sge::length).sum()
/// }
///
/// /// The inline payload of a SEND or an RDMA WRITE, for a device without other operations.
/// fn inline_payload<T: ClientQueuePairs>(request: &SendWr<'_, T>) -> Result<KVec<u8>> {
///     match request.operation()? {
///         SendOperation::Send => (),
///         SendOperation::RdmaWrite(RemoteMemory { addr, rkey }) => {
///             pr_debug!("to {addr:#x} by key {rkey:#x}\n");
///         }
///         _ => return Err(EOPNOTSUPP),
///     }
///     let mut payload = KVec::new();
///     if request.flags().contains(SendFlags::INLINE) {
///         for piece in request.inline() {
///             let piece: Inline<'_> = piece;
///             payload.extend_from_slice(piece.bytes(), GFP_ATOMIC)?;
///         }
///     }
///     Ok(payload)
/// }
///
/// /// The destination QPN of a datagram.
/// fn destination<T: ClientQueuePairs>(request: &SendWr<'_, T>) -> Result<u32> {
///     let datagram: Datagram<'_, T> = request.datagram()?.ok_or(EINVAL)?;
///     Ok(datagram.remote_qpn)
/// }
/// ```
///
/// # Invariants
///
/// `raw` is valid for `'a`, with its list, and embedded in the structure that its opcode implies.
/// For SENDs of a datagram QP, this structure is `ib_ud_wr`, whose AH is null or belongs to a
/// device of `T`. The MR of a REG_MR is of a device of `T`.
pub struct SendWr<'a, T: ClientQueuePairs> {
    raw: &'a bindings::ib_send_wr,
    /// The QP to which the request is posted.
    qp: &'a Qp<T>,
}

impl<'a, T: ClientQueuePairs> SendWr<'a, T> {
    /// Id of the work request.
    pub fn wr_id(&self) -> u64 {
        // SAFETY: Both members of the union are 64 bits of which all values are valid.
        unsafe { self.raw.__bindgen_anon_1.wr_id }
    }

    /// Flags.
    pub fn flags(&self) -> SendFlags {
        SendFlags(u32::from_ne_bytes(self.raw.send_flags.to_ne_bytes()))
    }

    /// Local memory. With [`SendFlags::INLINE`], see [`inline`](Self::inline).
    pub fn sges(&self) -> &'a [Sge] {
        // SAFETY: By the type invariants.
        unsafe { sges(self.raw.sg_list, self.raw.num_sge) }
    }

    /// The payload of a request with [`SendFlags::INLINE`], whose elements hold addresses of the
    /// kernel. Empty for a request that a process posts through the core, since the elements then
    /// hold addresses of the process.
    pub fn inline(&self) -> impl Iterator<Item = Inline<'a>> {
        // SAFETY: The QP is valid, and the core sets the pointer before the QP is created.
        let is_kernel = unsafe { (*self.qp.as_raw()).uobject.is_null() };
        let is_inline = is_kernel && self.flags().contains(SendFlags::INLINE);
        let sges: &[Sge] = if is_inline { self.sges() } else { &[] };
        sges.iter().map(Inline)
    }

    /// The operation.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for an opcode that is not in [`SendOperation`].
    pub fn operation(&self) -> Result<SendOperation<'a, T>> {
        // Each closure is called only for the opcodes of its structure.
        //
        // SAFETY: Called for RDMA WRITE and READ, whose requests have this structure.
        let rdma = || RemoteMemory::from(unsafe { self.outer::<bindings::ib_rdma_wr>() });
        // SAFETY: Called for atomic operations, whose requests have this structure.
        let atomic = || unsafe { self.outer::<bindings::ib_atomic_wr>() };
        Ok(match self.raw.opcode {
            bindings::ib_wr_opcode_IB_WR_SEND => SendOperation::Send,
            bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM => {
                SendOperation::SendWithImm(self.immediate())
            }
            bindings::ib_wr_opcode_IB_WR_SEND_WITH_INV => {
                SendOperation::SendWithInv(self.invalidated_key())
            }
            bindings::ib_wr_opcode_IB_WR_RDMA_WRITE => SendOperation::RdmaWrite(rdma()),
            bindings::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM => {
                SendOperation::RdmaWriteWithImm(rdma(), self.immediate())
            }
            bindings::ib_wr_opcode_IB_WR_RDMA_READ => SendOperation::RdmaRead(rdma()),
            bindings::ib_wr_opcode_IB_WR_RDMA_READ_WITH_INV => {
                SendOperation::RdmaReadWithInv(rdma(), self.invalidated_key())
            }
            bindings::ib_wr_opcode_IB_WR_ATOMIC_CMP_AND_SWP => SendOperation::CompareAndSwap {
                remote: atomic().into(),
                compare: atomic().compare_add,
                swap: atomic().swap,
            },
            bindings::ib_wr_opcode_IB_WR_ATOMIC_FETCH_AND_ADD => SendOperation::FetchAndAdd {
                remote: atomic().into(),
                add: atomic().compare_add,
            },
            bindings::ib_wr_opcode_IB_WR_LOCAL_INV => {
                SendOperation::LocalInv(self.invalidated_key())
            }
            bindings::ib_wr_opcode_IB_WR_REG_MR => {
                // SAFETY: A request with this opcode has this structure. The client keeps the MR
                // while it posts the request.
                SendOperation::RegMr(unsafe { FastReg::from_raw(self.outer())? })
            }
            _ => return Err(EOPNOTSUPP),
        })
    }

    /// Destination of a SEND of a datagram QP, else `None`.
    ///
    /// # Errors
    ///
    /// `EINVAL` without an AH.
    pub fn datagram(&self) -> Result<Option<Datagram<'a, T>>> {
        let is_send = matches!(
            self.raw.opcode,
            bindings::ib_wr_opcode_IB_WR_SEND | bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM
        );
        // SAFETY: The QP is valid, and the core sets its type before the QP is created.
        let qp_type = QpType::try_from(unsafe { (*self.qp.as_raw()).qp_type });
        if !is_send || !qp_type.is_ok_and(QpType::is_datagram) {
            return Ok(None);
        }
        // SAFETY: By the type invariants.
        let raw: &'a bindings::ib_ud_wr = unsafe { self.outer() };
        if raw.ah.is_null() {
            return Err(EINVAL);
        }
        Ok(Some(Datagram {
            // SAFETY: By the type invariants; the client does not destroy the AH before the request
            // is posted.
            ah: unsafe { Ah::from_raw(raw.ah) },
            remote_qpn: raw.remote_qpn,
            remote_qkey: raw.remote_qkey,
            pkey_index: raw.pkey_index,
        }))
    }

    fn immediate(&self) -> [u8; 4] {
        // SAFETY: Both members of the union are 32 bits of which all values are valid.
        unsafe { self.raw.ex.imm_data }.to_ne_bytes()
    }

    fn invalidated_key(&self) -> u32 {
        // SAFETY: Both members of the union are 32 bits of which all values are valid.
        unsafe { self.raw.ex.invalidate_rkey }
    }

    /// The structure that the request is embedded in.
    ///
    /// # Safety
    ///
    /// `W` is the structure that the type invariants name; it starts with the request.
    unsafe fn outer<W>(&self) -> &'a W {
        // SAFETY: `W` is the structure of the type invariants, which starts with the request.
        unsafe { &*ptr::from_ref(self.raw).cast::<W>() }
    }
}

/// A piece of inline payload.
pub struct Inline<'a>(&'a Sge);

impl<'a> Inline<'a> {
    /// The bytes.
    pub fn bytes(&self) -> &'a [u8] {
        let length = self.0.length() as usize;
        if length == 0 {
            return &[];
        }
        // SAFETY: The kernel client that posted the request promises that `length` bytes of kernel
        // memory are at the address, and that nothing changes these bytes until the request is
        // posted.
        unsafe {
            slice::from_raw_parts(ptr::with_exposed_provenance(self.0.addr() as usize), length)
        }
    }
}

/// A list of send work requests.
///
/// # Examples
///
/// ```
/// use crate::rdma::wr::{ClientQueuePairs, SendWr, SendWrs};
///
/// /// Posts work requests until the queue, which has `room`, is full.
/// fn post<T: ClientQueuePairs>(
///     requests: &mut SendWrs<'_, T>,
///     mut room: usize,
///     mut put: impl FnMut(SendWr<'_, T>) -> Result,
/// ) -> Result {
///     requests.try_for_each(|request| {
///         room = room.checked_sub(1).ok_or(ENOMEM)?;
///         put(request)
///     })
/// }
/// ```
///
/// # Invariants
///
/// `next` is null or the head of a list that is valid for `'a`; `last` is the element that was
/// returned last.
pub struct SendWrs<'a, T: ClientQueuePairs> {
    next: *const bindings::ib_send_wr,
    last: *const bindings::ib_send_wr,
    /// The QP to which the list is posted.
    qp: &'a Qp<T>,
}

impl<'a, T: ClientQueuePairs> Iterator for SendWrs<'a, T> {
    type Item = SendWr<'a, T>;

    fn next(&mut self) -> Option<SendWr<'a, T>> {
        // SAFETY: By the type invariants.
        let raw = unsafe { self.next.as_ref() }?;
        self.last = self.next;
        self.next = raw.next;
        // INVARIANT: The client promises a valid list of requests, each in the structure that its
        // opcode and the type of the QP imply.
        Some(SendWr { raw, qp: self.qp })
    }
}

/// A receive work request.
///
/// # Invariants
///
/// `raw` is valid for `'a`, with its list.
pub struct RecvWr<'a> {
    raw: &'a bindings::ib_recv_wr,
}

impl<'a> RecvWr<'a> {
    /// Id of the work request.
    pub fn wr_id(&self) -> u64 {
        // SAFETY: Both members of the union are 64 bits of which all values are valid.
        unsafe { self.raw.__bindgen_anon_1.wr_id }
    }

    /// Local memory.
    pub fn sges(&self) -> &'a [Sge] {
        // SAFETY: By the type invariants.
        unsafe { sges(self.raw.sg_list, self.raw.num_sge) }
    }
}

/// A list of receive work requests.
///
/// # Examples
///
/// ```
/// use crate::rdma::wr::{RecvWr, RecvWrs};
///
/// /// Posts work requests until one has more than one SGE.
/// fn post(requests: &mut RecvWrs<'_>, mut put: impl FnMut(RecvWr<'_>)) -> Result {
///     requests.try_for_each(|request| match request.sges().len() {
///         0 | 1 => Ok(put(request)),
///         _ => Err(EINVAL),
///     })
/// }
/// ```
///
/// # Invariants
///
/// `next` is null or the head of a list that is valid for `'a`; `last` is the element that was
/// returned last.
pub struct RecvWrs<'a> {
    next: *const bindings::ib_recv_wr,
    last: *const bindings::ib_recv_wr,
    _list: PhantomData<&'a bindings::ib_recv_wr>,
}

impl<'a> Iterator for RecvWrs<'a> {
    type Item = RecvWr<'a>;

    fn next(&mut self) -> Option<RecvWr<'a>> {
        // SAFETY: By the type invariants.
        let raw = unsafe { self.next.as_ref() }?;
        self.last = self.next;
        self.next = raw.next;
        // INVARIANT: The client promises a valid list of requests.
        Some(RecvWr { raw })
    }
}

/// # Safety
///
/// Called by a client as `post_send` of a device of `T`: `qp` is created, `list` valid, `bad`
/// writable.
pub(super) unsafe extern "C" fn post_send<T: ClientQueuePairs>(
    qp: *mut bindings::ib_qp,
    list: *const bindings::ib_send_wr,
    bad: *mut *const bindings::ib_send_wr,
) -> c_int {
    // SAFETY: `qp` is created.
    let qp = unsafe { Qp::<T>::from_raw(qp) };
    // INVARIANT: `list` is null or the head of a valid list, and nothing was returned yet.
    let mut requests = SendWrs {
        next: list,
        last: list,
        qp,
    };
    match T::post_send(qp, &mut requests) {
        Ok(()) => 0,
        Err(error) => {
            // SAFETY: `bad` is writable.
            unsafe { *bad = requests.last };
            error.to_errno()
        }
    }
}

/// # Safety
///
/// Called by a client as `post_recv` of a device of `T`: `qp` is created, `list` valid, `bad`
/// writable.
pub(super) unsafe extern "C" fn post_recv<T: ClientQueuePairs>(
    qp: *mut bindings::ib_qp,
    list: *const bindings::ib_recv_wr,
    bad: *mut *const bindings::ib_recv_wr,
) -> c_int {
    // SAFETY: `list` is valid, and `bad` is writable.
    unsafe {
        recv_list(list, bad, |requests| {
            T::post_recv(Qp::from_raw(qp), requests)
        })
    }
}

/// Posts the receive work requests of a list with `post`.
///
/// # Safety
///
/// `list` is valid, `bad` writable.
pub(super) unsafe fn recv_list(
    list: *const bindings::ib_recv_wr,
    bad: *mut *const bindings::ib_recv_wr,
    post: impl FnOnce(&mut RecvWrs<'_>) -> Result,
) -> c_int {
    // INVARIANT: `list` is null or the head of a valid list, and nothing was returned yet.
    let mut requests = RecvWrs {
        next: list,
        last: list,
        _list: PhantomData,
    };
    match post(&mut requests) {
        Ok(()) => 0,
        Err(error) => {
            // SAFETY: `bad` is writable.
            unsafe { *bad = requests.last };
            error.to_errno()
        }
    }
}
