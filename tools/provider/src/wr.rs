// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Work requests as C programs pass them: linked lists with unions, seen through references.

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
    /// `first` and each `next` are valid work requests or null, for as long as `'a` is, and so are
    /// the SGEs that they name and, if they are inline, the bytes that those name. Address handles
    /// are this provider's, and windows and their MRs valid.
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

    /// The work request that [`first`](Self::first) names.
    #[inline(always)]
    pub fn front(&self) -> Option<W::View<'a>> {
        // SAFETY: by the contract of new(), this is null or a valid work request.
        let wr: Option<&'a W> = unsafe { self.first.as_ref() };
        wr.map(|wr| wr.view())
    }

    /// Takes the first work request off the list.
    #[inline(always)]
    pub fn pop(&mut self) {
        // SAFETY: as in `front`.
        if let Some(wr) = unsafe { self.first.as_ref() } {
            self.first = wr.next();
        }
    }

    /// Takes the work requests off the list, one by one, as long as `post` succeeds. Returns its
    /// error, or 0.
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

/// A work request as C has it.
pub trait WorkRequest: Sized {
    /// The provider's view of it.
    type View<'a>
    where
        Self: 'a;
    /// Looks at it.
    fn view(&self) -> Self::View<'_>;
    /// The next on its list, or null.
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

/// `num_sge` SGEs at `list`, or `None` if they are more than `max` or less than none.
///
/// # Safety
///
/// They are valid for `'a`.
#[inline]
unsafe fn sges<'a>(
    list: *const ffi::ibv_sge,
    num_sge: i32,
    max: u32,
) -> Option<impl ExactSizeIterator<Item = &'a ffi::ibv_sge> + Clone> {
    let count = num_sge as u32;
    let sge = move |index: u32| {
        // SAFETY: one of the caller's SGEs.
        let sge = unsafe { list.add(index as usize) };
        // SAFETY: it is valid.
        unsafe { assert_unchecked(!sge.is_null()) };
        // SAFETY: it is valid.
        unsafe { &*sge }
    };
    (count <= max).then(|| (0..count).map(sge))
}

/// The binding of `mw` under `rkey`, as `info` says. Without an MR there is no key of one.
///
/// # Safety
///
/// `mw` is a valid window, and the MR of `info` is valid or null.
#[inline]
pub unsafe fn binding(mw: *const ffi::ibv_mw, rkey: u32, info: &ffi::ibv_mw_bind_info) -> BindMw {
    // SAFETY: the caller's window and MR.
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

    /// Whether it carries its payload itself.
    #[inline]
    pub fn is_inline(self) -> bool {
        self.flags() & SendFlags::INLINE.0 != 0
    }

    /// The SGEs; `None` if they are more than `max`, or their number is negative.
    #[inline]
    pub fn sges(self, max: u32) -> Option<impl ExactSizeIterator<Item = &'a ffi::ibv_sge> + Clone> {
        // SAFETY: the SGEs of a work request on a list are valid.
        unsafe { sges(self.0.sg_list, self.0.num_sge, max) }
    }

    /// Immediate data, in network byte order, of opcodes that have it.
    #[inline]
    pub fn imm_data(self) -> u32 {
        // SAFETY: both members of the union are 32-bit integers.
        unsafe { self.0.__bindgen_anon_1.imm_data }
    }

    /// The key of opcodes that invalidate one.
    #[inline]
    pub fn invalidate_rkey(self) -> u32 {
        // SAFETY: both members of the union are 32-bit integers.
        unsafe { self.0.__bindgen_anon_1.invalidate_rkey }
    }

    /// The remote memory of RDMA opcodes.
    #[inline]
    pub fn rdma(self) -> Rdma {
        // SAFETY: every member of the union starts with a 64-bit integer or is one; RDMA work
        // requests have this one.
        let rdma = unsafe { self.0.wr.rdma };
        Rdma {
            remote_addr: rdma.remote_addr,
            rkey: rdma.rkey,
        }
    }

    /// The remote word of atomic opcodes and what becomes of it.
    #[inline]
    pub fn atomic(self) -> Atomic {
        // SAFETY: every member of the union is integers, or a pointer and integers; atomic work
        // requests have this one.
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
        // SAFETY: the window of a work request on a list is valid, and so is its MR.
        unsafe { binding(bind.mw, bind.rkey, &bind.bind_info) }
    }

    /// The destination of a datagram. Without an address handle the path is all zeroes, which leads
    /// nowhere.
    #[inline]
    pub fn datagram(self) -> Datagram {
        // SAFETY: work requests of a UD QP have this member.
        let ud = unsafe { self.0.wr.ud };
        // SAFETY: an address handle of a work request on a list is this provider's.
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
        // SAFETY: the SGEs of a work request on a list are valid.
        unsafe { sges(self.0.sg_list, self.0.num_sge, max) }
    }
}
