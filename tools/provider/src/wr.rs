// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Access to the work requests of C programs, which are linked lists with unions.

use std::hint::assert_unchecked;
use std::marker::PhantomData;

use libc::c_int;
use virtio_rdma_abi::ib::AccessFlags;
use virtio_rdma_abi::ib::SendFlags;
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::wqe::Atomic;
use virtio_rdma_abi::wqe::BindMw;
use virtio_rdma_abi::wqe::Datagram;
use virtio_rdma_abi::wqe::Rdma;

use crate::ah::Ah;
use crate::ffi;

/// A list of work requests of type `W`.
pub struct List<'a, W> {
    first: *mut W,
    lifetime: PhantomData<&'a W>,
}

impl<'a, W: WorkRequest + 'a> List<'a, W> {
    /// The list that starts with `first`.
    ///
    /// # Safety
    ///
    /// `first` and each `next` are null or work requests that are valid during `'a`. So are their
    /// SGEs and, for inline work requests, the memory of these SGEs. Address handles are of this
    /// provider; windows and their MRs are valid.
    pub unsafe fn new(first: *mut W) -> Self {
        Self {
            first,
            lifetime: PhantomData,
        }
    }

    /// The first work request that is still on the list, or null.
    #[inline]
    pub fn first(&self) -> *mut W {
        self.first
    }

    /// The work request at [`first`](Self::first), if there is one.
    #[inline(always)]
    pub fn front(&self) -> Option<W::View<'a>> {
        // SAFETY: by the contract of new(), this is null or a valid work request.
        let wr: Option<&'a W> = unsafe { self.first.as_ref() };
        wr.map(|wr| wr.view())
    }

    /// Removes the first work request from the list.
    #[inline(always)]
    pub fn pop(&mut self) {
        // SAFETY: as in `front`.
        if let Some(wr) = unsafe { self.first.as_ref() } {
            self.first = wr.next();
        }
    }

    /// Calls `post` with each work request and removes it from the list, until `post` fails.
    /// Returns the error number of `post`, or 0.
    #[inline]
    pub fn try_each(&mut self, mut post: impl FnMut(W::View<'a>) -> Result<(), c_int>) -> c_int {
        while let Some(wr) = self.front() {
            if let Err(errno) = post(wr) {
                return errno;
            }
            self.pop();
        }
        0
    }
}

/// A work request of C.
pub trait WorkRequest: Sized {
    /// The type with which the provider reads the work request.
    type View<'a>
    where
        Self: 'a;
    /// The view of this work request.
    fn view(&self) -> Self::View<'_>;
    /// The next work request of its list, or null.
    fn next(&self) -> *mut Self;
}

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

/// A send work request.
#[derive(Clone, Copy)]
pub struct Send<'a>(&'a ffi::ibv_send_wr);

/// A receive work request.
#[derive(Clone, Copy)]
pub struct Recv<'a>(&'a ffi::ibv_recv_wr);

/// `num_sge` SGEs at `list`, or `None` if their number is negative or greater than `max`.
///
/// # Safety
///
/// The SGEs are valid for `'a`.
#[inline]
unsafe fn sges<'a>(
    list: *const ffi::ibv_sge,
    num_sge: i32,
    max: u32,
) -> Option<impl ExactSizeIterator<Item = &'a ffi::ibv_sge> + Clone> {
    let count = num_sge as u32;
    let sge = move |index: u32| {
        // SAFETY: `index` is less than the number of the caller's SGEs.
        let sge = unsafe { list.add(index as usize) };
        // SAFETY: the SGE is valid.
        unsafe { assert_unchecked(!sge.is_null()) };
        // SAFETY: the SGE is valid.
        unsafe { &*sge }
    };
    (count <= max).then(|| (0..count).map(sge))
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
